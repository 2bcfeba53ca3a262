//! Commands of a session: what handlers print, and how they end.

use std::time::{Duration, Instant};

use serde_json::json;

use super::super::support::daemon::Place;
use super::super::support::wait::{until, within};
use super::{Window, children, descriptors, line_in, signal, state};

#[test]
fn json_goes_through_a_handler_and_any_other_output_is_a_text() {
    let place = Place::with_daemon(&[]);
    let on = [
        "--on",
        "cat=cat",
        "--on",
        "text=echo not json; echo two",
        "--on",
        "none=:",
        "--on",
        "env=echo \"$USHER_COMMAND $USHER_SESSION\"",
    ];
    let window = Window::open(&place, "w", &on);
    assert_eq!(window.result(&place, &["cat", r#"{"a":[1,"é"]}"#]), json!({"a": [1, "é"]}));
    assert_eq!(window.result(&place, &["cat"]), json!(null));
    assert_eq!(window.result(&place, &["text"]), json!("not json\ntwo"));
    assert_eq!(window.result(&place, &["none"]), json!(""));
    assert_eq!(window.result(&place, &["env"]), json!(format!("env {}", window.id())));
}

#[test]
fn a_handler_that_fails_is_told_with_its_code_and_its_last_words() {
    let place = Place::with_daemon(&[]);
    let flood = "flood=yes 0123456789 | head -c 5000000 >&2; echo last >&2; exit 1";
    let on = ["--on", "fail=echo one; echo two >&2; exit 4", "--on", "killed=kill -KILL $$", "--on", flood];
    let window = Window::open(&place, "w", &on);
    for (command, words) in [("fail", "exit code 4: two"), ("killed", "ended by SIGKILL"), ("flood", "last")] {
        let ran = window.send(&place, &[command]);
        assert!(ran.code == 1 && ran.stderr.contains(words) && ran.stderr.len() < 6_000, "{ran:?}");
    }
}

#[test]
fn a_handler_that_reads_nothing_or_leaves_something_behind_hangs_nobody() {
    let place = Place::with_daemon(&[]);
    let on = ["--on", "deaf=exec <&-; echo done", "--on", "left=sleep 30 & echo $!"];
    let window = Window::open(&place, "w", &on);
    let large = format!("\"{}\"", "x".repeat(100_000));
    assert_eq!(window.result(&place, &["deaf", &large]), "done");
    let asked = Instant::now();
    let left = window.result(&place, &["left"]).as_u64().unwrap();
    assert!(asked.elapsed() < Duration::from_secs(5));
    signal(u32::try_from(left).unwrap(), nix::sys::signal::Signal::SIGKILL);
}

#[test]
fn a_result_over_its_limit_is_a_failure_and_ends_the_handler() {
    let place = Place::with_daemon(&[]);
    let file = place.path().join("pid");
    let huge = format!("huge=echo $$ >'{}'; exec yes", file.display());
    let fits = "fits=head -c 8388606 /dev/zero | tr '\\0' x";
    let escapes = "escapes=head -c 3000000 /dev/zero";
    let window = Window::open(&place, "w", &["--on", &huge, "--on", fits, "--on", escapes]);
    let ran = window.send(&place, &["huge"]);
    assert!(ran.code == 1 && ran.stderr.contains("larger than 8388608 bytes"), "{ran:?}");
    let pid = line_in(&file).unwrap().parse().unwrap();
    assert_eq!(state(pid), None);
    assert_eq!(window.result(&place, &["fits"]).as_str().unwrap().len(), 8_388_606);
    let ran = window.send(&place, &["escapes"]);
    assert!(ran.code == 1 && ran.stderr.contains("larger than"), "{ran:?}");
}

#[test]
fn a_handler_that_hangs_is_ended_at_its_deadline_with_all_that_it_started() {
    let place = Place::with_daemon(&[]);
    let file = place.path().join("pid");
    let hang = format!("hang=trap '' TERM; sleep 600 & echo $! >'{}'; wait; sleep 600", file.display());
    let window = Window::open(&place, "w", &["--on", &hang, "--on", "ok=echo ok"]);
    let ran = window.send(&place, &["--deadline", "300ms", "hang"]);
    assert_eq!(ran.code, 4, "{ran:?}");
    let pid = line_in(&file).unwrap().parse().unwrap();
    within(Duration::from_secs(4), "the handler's group ends", || ended(pid));
    assert_eq!(window.result(&place, &["ok"]), "ok");
    until("the handler is reaped", || (children(window.pid()).len() == 1).then_some(()));
}

#[test]
fn a_caller_that_goes_away_ends_its_handler() {
    let place = Place::with_daemon(&[]);
    let file = place.path().join("pid");
    let slow = format!("slow=echo $$ >'{}'; exec sleep 600", file.display());
    let window = Window::open(&place, "w", &["--on", &slow]);
    let mut caller = place.usher().args(["send", "--session", window.id(), "slow"]).spawn().unwrap();
    let pid = until("the handler runs", || line_in(&file)).parse().unwrap();
    caller.kill().unwrap();
    caller.wait().unwrap();
    within(Duration::from_secs(4), "the handler ends", || ended(pid));
}

#[test]
fn the_end_of_the_program_ends_its_handlers_at_once() {
    let place = Place::with_daemon(&[]);
    let file = place.path().join("pid");
    let slow = format!("slow=trap '' TERM; echo $$ >'{}'; while :; do sleep 1; done", file.display());
    let window = Window::open(&place, "w", &["--on", &slow]);
    let mut caller = place.usher().args(["send", "--session", window.id(), "slow"]).spawn().unwrap();
    let pid = until("the handler runs", || line_in(&file)).parse().unwrap();
    signal(window.program(), nix::sys::signal::Signal::SIGTERM);
    let killed = Instant::now();
    assert_eq!(window.end().code, 143);
    assert!(killed.elapsed() < Duration::from_secs(1), "{:?}", killed.elapsed());
    within(Duration::from_secs(1), "the handler ends", || ended(pid));
    assert_eq!(caller.wait().unwrap().code(), Some(3));
}

#[test]
fn commands_run_at_once_up_to_the_number_that_was_given() {
    let place = Place::with_daemon(&[]);
    let meet = place.path().join("meet");
    std::fs::create_dir(&meet).unwrap();
    // Each waits for the other: done one after the other they would never end.
    let on = format!(
        "meet=cd '{}'; touch $$; while [ $(ls | wc -l) -lt 2 ]; do sleep 0.02; done; ls | wc -l",
        meet.display()
    );
    let window = Window::open(&place, "w", &["--max-in-flight", "2", "--on", &on]);
    std::thread::scope(|scope| {
        for caller in [0, 1].map(|_| scope.spawn(|| window.result(&place, &["meet"]))) {
            assert_eq!(caller.join().unwrap(), 2);
        }
    });
}

#[test]
fn every_run_tells_its_status_and_takes_signals() {
    let place = Place::with_daemon(&[]);
    let window = Window::open(&place, "w", &[]);
    let status = window.result(&place, &["status"]);
    assert_eq!((&status["pid"], &status["started"]), (&window.row["pid"], &window.row["started"]));
    assert_eq!((&status["running"], &status["handlers_running"]), (&json!(true), &json!(0)));
    assert_eq!(status["command"], json!(["sleep", "600"]));

    for input in [r#""STOP""#, r#"{"signal":"SIGSTOP"}"#] {
        assert_eq!(window.result(&place, &["signal", input]), json!({"sent": "STOP"}));
        until("the program stops", || (state(window.program()) == Some('T')).then_some(()));
        assert_eq!(window.result(&place, &["signal", "18"]), json!({"sent": "CONT"}));
        until("the program goes on", || (state(window.program()) == Some('S')).then_some(()));
    }
    let ran = window.send(&place, &["signal", "\"SEGV\""]);
    assert!(ran.code == 1 && ran.stderr.contains("not one of the signals"), "{ran:?}");
    assert_eq!(window.result(&place, &["signal", "\"KILL\""]), json!({"sent": "KILL"}));
    assert_eq!(window.end().code, 137);
}

#[test]
fn a_thousand_commands_leave_no_zombie_and_no_descriptor() {
    let place = Place::with_daemon(&[]);
    let window = Window::open(&place, "w", &["--max-in-flight", "4", "--on", "help=(true &); /bin/true; cat"]);
    let before = descriptors(window.pid());
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for number in 0..250 {
                    assert_eq!(window.result(&place, &["help", &number.to_string()]), number);
                }
            });
        }
    });
    until("the last handler is gone", || (children(window.pid()).len() == 1).then_some(()));
    until("descriptors are as before", || (descriptors(window.pid()) == before).then_some(()));
    let threads = || std::fs::read_dir(format!("/proc/{}/task", window.pid())).unwrap().count();
    until("only main and link are left", || (threads() == 2).then_some(()));
}

fn ended(pid: u32) -> Option<()> {
    state(pid).is_none_or(|state| state == 'Z').then_some(())
}

#[test]
fn a_command_that_takes_too_long_is_a_timeout_whoever_notices_first() {
    let place = Place::with_daemon(&[]);
    let window = Window::open(&place, "w", &["--on", "slow=sleep 30"]);
    for deadline in ["50ms", "100ms", "150ms", "200ms", "250ms", "300ms"] {
        let sent = place.run(&["--json", "send", "--title", "w", "--deadline", deadline, "slow"]);
        assert_eq!(sent.code, 4, "{deadline}: {sent:?}");
        assert!(sent.stderr.contains(r#""code":"timeout""#), "{sent:?}");
    }
    drop(window);
}

#[test]
fn a_command_that_is_sent_again_under_its_key_runs_once_and_tells_its_first_outcome_again() {
    let place = Place::with_daemon(&[]);
    let ran = place.scratch().join("ran");
    let count = format!("count=echo x >> {0}; wc -l < {0}", ran.display());
    let window = Window::open(&place, "w", &["--on", &count]);
    let send = |key: &str, input: &str| place.run(&["send", "--title", "w", "--key", key, "count", input]);
    for _ in 0..3 {
        let sent = send("once", "1");
        assert_eq!((sent.code, sent.stdout.as_str()), (0, "1\n"), "{sent:?}");
    }
    assert_eq!(send("twice", "1").stdout, "2\n");
    let conflict = send("once", "2");
    assert_eq!(conflict.code, 9, "{conflict:?}");
    drop(window);
}
