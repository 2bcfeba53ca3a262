//! How an attached session ends, and what it survives.

use std::process::Stdio;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::json;

use super::super::support::daemon::{Place, finished};
use super::super::support::wait::until;
use super::{Attached, is_gone, session};

fn signal(pid: u32, signal: Signal) {
    kill(Pid::from_raw(i32::try_from(pid).unwrap()), signal).unwrap();
}

#[test]
fn the_end_of_its_input_ends_the_session_at_once() {
    let place = Place::with_daemon(&[]);
    let mut attached = Attached::open(&place, &["--title", "w", "--command", "hang"]);
    let sending = attached.sending(&place, &["hang"]);
    attached.command();
    drop(attached.stdin.take());
    let ran = attached.end();
    assert_eq!((ran.code, ran.stderr.as_str()), (0, ""));
    assert!(session(&place, "w").is_none(), "who lists afterwards does not find it");
    assert_eq!(finished(sending).code, 3);
}

#[test]
fn a_signal_ends_the_session_and_is_the_exit_code() {
    let place = Place::with_daemon(&[]);
    for (number, code) in [(Signal::SIGTERM, 143), (Signal::SIGINT, 130), (Signal::SIGHUP, 129)] {
        let attached = Attached::open(&place, &["--title", "w"]);
        signal(attached.pid(), number);
        attached.wait_for("closed");
        assert_eq!(attached.end().code, code);
        assert!(session(&place, "w").is_none());
    }
}

#[test]
fn a_program_that_hears_nothing_more_ends_its_session() {
    let place = Place::with_daemon(&[]);
    let mut command = place.usher();
    command.args(["attach", "--title", "w", "--command", "a"]);
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    until("the session is listed", || session(&place, "w"));
    drop(child.stdout.take());
    let sent = place.run(&["send", "--title", "w", "a"]);
    // Lost with its session, or, where that has heard of its broken output before, not even found.
    assert!([3, 6].contains(&sent.code), "{sent:?}");
    // Taken out, so that only the broken output can end it.
    let input = child.stdin.take();
    assert_eq!(until("it ends", || child.try_wait().unwrap()).code(), Some(0));
    drop(input);
    is_gone(&place, "w");
}

#[test]
fn a_session_comes_back_after_its_daemon_was_killed_and_says_so() {
    let mut place = Place::with_daemon(&[]);
    let mut attached = Attached::open(&place, &["--title", "w", "--command", "ok"]);
    attached.is_well(&place);
    place.signal_daemon(Signal::SIGKILL);
    place.wait_daemon();
    let states: Vec<_> = (0..4).map(|_| attached.next()).collect();
    let words: Vec<_> = states.iter().map(|line| line["params"]["state"].as_str().unwrap()).collect();
    assert_eq!(words, ["closed", "waiting", "connecting", "open"]);
    assert!(states.iter().all(|line| line["params"]["session_id"] == attached.id.as_str()));
    attached.is_well(&place);
    drop(attached);
}

#[test]
fn a_command_of_a_lost_daemon_is_over_when_it_is_answered_and_harms_nothing() {
    let mut place = Place::with_daemon(&[]);
    let mut attached = Attached::open(&place, &["--title", "w", "--command", "ok", "--max-in-flight", "2"]);
    let sending = attached.sending(&place, &["ok"]);
    let id = attached.command()["id"].clone();
    place.signal_daemon(Signal::SIGKILL);
    place.wait_daemon();
    assert_eq!(finished(sending).code, 3);
    attached.wait_for("open");
    attached.say(&json!({"id": id, "result": "to nobody"}));
    attached.is_well(&place);
}

#[test]
fn a_key_that_is_revoked_is_told_and_the_program_goes_on() {
    let place = Place::with_daemon(&[]);
    let bundle = place.path().join("bundle");
    let out = bundle.to_str().unwrap();
    let made = place.json(&["keys", "new", "--role", "producer", "--row", "--label", "x", "--out", out]);
    let mut attached = Attached::open(&place, &["--title", "w", "--credential", out]);
    place.json(&["keys", "revoke", made["credential"].as_str().unwrap()]);
    assert!(attached.wait_for("revoked")["reason"].as_str().is_some_and(|reason| reason.contains("revoked")));
    attached.say(&json!({"id": 1, "method": "update", "params": {"title": "still here"}}));
    assert_eq!(attached.next()["result"], json!({}));
    drop(attached.stdin.take());
    assert_eq!(attached.end().code, 0);
}

#[test]
fn a_daemon_is_started_where_none_runs_and_a_bundle_that_cannot_be_used_is_said() {
    let place = Place::empty();
    let mut attached = Attached::open(&place, &["--title", "w", "--command", "ok"]);
    attached.is_well(&place);
    drop(attached);
    let ran = place.run(&["attach", "--credential", "/nonexistent"]);
    assert!(ran.code == 3 && ran.stdout.is_empty() && ran.stderr.contains("/nonexistent"), "{ran:?}");
    for wrong in [&["attach", "--command", "a b"][..], &["attach", "--title", ""], &["attach", "--max-in-flight", "0"]]
    {
        assert_eq!(place.run(wrong).code, 2, "{wrong:?}");
    }
}

#[test]
fn a_program_that_does_not_read_is_bounded_and_works_again_when_it_does() {
    let place = Place::with_daemon(&[]);
    let mut command = place.usher();
    command.args(["attach", "--title", "w", "--command", "a", "--max-in-flight", "64"]);
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    until("the session is listed", || session(&place, "w"));
    let input = format!("\"{}\"", "x".repeat(100_000));
    let file = place.path().join("input");
    super::super::support::system::put(&file, &input);
    let from = format!("@{}", file.display());
    let send = || {
        let mut send = place.usher();
        send.args(["send", "--title", "w", "--deadline", "60s", "a", &from]);
        send.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
    };
    let mut sending: Vec<_> = (0..32).map(|_| send()).collect();
    until("32 are held", || (session(&place, "w").unwrap()["pending"] == 32).then_some(()));
    let refused = finished(send());
    assert!(refused.code == 1 && refused.stderr.contains("as many commands"), "{refused:?}");
    // One whose line cannot have been begun is never told.
    let mut last = sending.pop().unwrap();
    last.kill().unwrap();
    last.wait().unwrap();
    until("one is given up", || (session(&place, "w").unwrap()["pending"] == 31).then_some(()));

    let mut stdin = child.stdin.take().unwrap();
    let lines = std::io::BufRead::lines(std::io::BufReader::new(child.stdout.take().unwrap()));
    let mut answered = 0;
    for line in lines.map_while(Result::ok) {
        let line: serde_json::Value = serde_json::from_str(&line).unwrap();
        if line["method"] == "command" {
            let answer = json!({"id": line["id"], "result": line["params"]["input"]});
            std::io::Write::write_all(&mut stdin, format!("{answer}\n").as_bytes()).unwrap();
            answered += 1;
        }
        if answered == 31 {
            break;
        }
    }
    for child in sending {
        let ran = finished(child);
        assert_eq!((ran.code, ran.stdout.len()), (0, 100_001), "{}", ran.stderr);
    }
    drop(stdin);
    assert_eq!(until("it ends", || child.try_wait().unwrap()).code(), Some(0));
}

#[test]
fn a_program_that_did_not_read_its_answers_and_went_ends_its_session_and_what_it_said_before_counts() {
    let place = Place::with_daemon(&[]);
    let mut command = place.usher();
    command.args(["attach", "--title", "w", "--command", "a"]);
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut stdin = child.stdin.take().unwrap();
    until("the session is listed", || session(&place, "w"));
    let mut send = place.usher();
    let send = send.args(["send", "--title", "w", "a"]).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    until("the command is there", || (session(&place, "w").unwrap()["pending"] == 1).then_some(()));
    // More answers than a pipe and what may wait hold together, requests in one pipe of their own.
    let request = format!("{{\"id\":\"{}\",\"method\":\"update\",\"params\":{{}}}}\n", "x".repeat(900));
    for _ in 0..64 + 80 {
        std::io::Write::write_all(&mut stdin, request.as_bytes()).unwrap();
    }
    std::io::Write::write_all(&mut stdin, b"{\"id\":1,\"result\":\"said\"}\n").unwrap();
    drop(stdin);
    // Its standard output is held open by another.
    let output = child.stdout.take();
    assert_eq!(until("it ends", || child.try_wait().unwrap()).code(), Some(0));
    drop(output);
    let ran = finished(send);
    assert_eq!((ran.code, ran.stdout.as_str()), (0, "said\n"), "{ran:?}");
}

#[test]
fn a_command_that_was_answered_before_its_line_was_begun_is_not_told_any_more() {
    let place = Place::with_daemon(&[]);
    let mut command = place.usher();
    command.args(["attach", "--title", "w", "--command", "a"]);
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut stdin = child.stdin.take().unwrap();
    until("the session is listed", || session(&place, "w"));
    // More than a pipe takes: whatever comes behind it waits.
    let input = format!("\"{}\"", "x".repeat(300_000));
    let file = place.path().join("input");
    super::super::support::system::put(&file, &input);
    let from = format!("@{}", file.display());
    for id in 1..=10 {
        let mut send = place.usher();
        send.args(["send", "--title", "w", "a", &from]);
        let mut send = send.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        // It knows the id without having read it.
        let answer = format!("{{\"id\":{id},\"result\":{id}}}\n");
        let status = until("it is answered", || {
            std::io::Write::write_all(&mut stdin, answer.as_bytes()).unwrap();
            send.try_wait().unwrap()
        });
        assert!(status.success());
    }
    let mut last = place.usher();
    last.args(["send", "--title", "w", "a", "\"last\""]).stdout(Stdio::piped()).stderr(Stdio::piped());
    let last = last.spawn().unwrap();
    until("the last one is there", || (session(&place, "w").unwrap()["pending"] == 1).then_some(()));
    let mut told = Vec::new();
    for line in std::io::BufRead::lines(std::io::BufReader::new(child.stdout.take().unwrap())) {
        let line: serde_json::Value = serde_json::from_str(&line.unwrap()).unwrap();
        if line["method"] == "command" {
            told.push(line["id"].as_u64().unwrap());
            if line["params"]["input"] == "last" {
                std::io::Write::write_all(&mut stdin, b"{\"id\":11,\"result\":1}\n").unwrap();
                break;
            }
        }
    }
    assert_eq!(told, [1, 11], "of the others nothing is kept");
    assert_eq!(finished(last).code, 0);
    drop(stdin);
    assert_eq!(until("it ends", || child.try_wait().unwrap()).code(), Some(0));
}
