//! The link to the daemon: it begins one, comes back after it, and is never felt by the program.

use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;

use super::super::support::daemon::{Place, RUN_UNTIL_THERE, USHER, finished, ran};
use super::super::support::wait::{promised, until};
use super::{Window, session, sessions, signal, state};

/// Ends what runs have started, launchers that are still on their way too: a late one would find the place free.
fn end_daemons(place: &Place) {
    until("no usherd is left", || {
        let left = place.usherds();
        left.iter().for_each(|pid| signal(*pid, Signal::SIGTERM));
        left.is_empty().then_some(())
    });
}

#[test]
fn fifty_runs_at_once_end_with_one_daemon_and_nothing_said() {
    let place = Place::empty();
    let runs: Vec<_> = (0..50)
        .map(|_| {
            let mut command = place.usher();
            command.args(["run", "--", "true"]).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
        })
        .collect();
    for run in runs {
        let ran = finished(run);
        assert_eq!((ran.code, ran.stdout.as_str(), ran.stderr.as_str()), (0, "", ""));
    }
    until("a daemon answers", || place.health());
    until("one daemon is left", || (place.daemons().len() == 1).then_some(()));
    let log = std::fs::read_to_string(place.path().join("usherd.log")).unwrap();
    assert_eq!(log.lines().filter(|line| line.contains("is ready")).count(), 1, "{log}");
    end_daemons(&place);
}

#[test]
fn a_run_does_not_wait_for_a_daemon_that_hangs() {
    let place = Place::with_daemon(&[]);
    place.signal_daemon(Signal::SIGSTOP);
    let begun = Instant::now();
    let ran = place.run(&["run", "--", "true"]);
    assert_eq!((ran.code, ran.stderr.as_str()), (0, ""));
    assert!(begun.elapsed() < Duration::from_secs(1), "{:?}", begun.elapsed());
    place.signal_daemon(Signal::SIGCONT);
}

#[test]
fn where_no_daemon_can_be_the_program_runs_and_nothing_is_said() {
    for dir in ["/dev/null/usher", "/proc/usher"] {
        let ran = ran(Command::new(USHER).env("USHER_DIR", dir).args(["run", "--", "sh", "-c", "echo out; exit 6"]));
        assert_eq!((ran.code, ran.stdout.as_str(), ran.stderr.as_str()), (6, "out\n", ""), "{dir}");
    }
}

#[test]
fn a_credential_that_cannot_be_used_does_not_stop_the_program() {
    let place = Place::with_daemon(&[]);
    let ran = ran(place.usher().env("USHER_CREDENTIAL", "/nonexistent").args(["run", "--", "sh", "-c", "exit 5"]));
    assert_eq!((ran.code, ran.stderr.as_str()), (5, ""));
}

#[test]
fn a_stale_socket_is_no_obstacle() {
    let mut place = Place::with_daemon(&[]);
    place.signal_daemon(Signal::SIGKILL);
    place.wait_daemon();
    let begun = Instant::now();
    let ran = place.run(&RUN_UNTIL_THERE);
    assert_eq!((ran.code, ran.stderr.as_str()), (0, ""), "a new daemon answers");
    assert!(begun.elapsed() < promised(Duration::from_secs(3)), "{:?}", begun.elapsed());
    end_daemons(&place);
}

#[test]
fn a_window_comes_back_after_its_daemon_was_killed() {
    let mut place = Place::with_daemon(&[]);
    let window = Window::open(&place, "w", &["--on", "ok=echo ok"]);
    let first = place.health().unwrap();
    for _ in 0..2 {
        if place.daemons().contains(&place_pid(&place)) {
            signal(place_pid(&place), Signal::SIGKILL);
        }
        until("the session is back", || {
            session(&place, "w").filter(|_| place.health().is_some_and(|now| now != first))
        });
    }
    assert_eq!(session(&place, "w").unwrap()["session_id"], window.row["session_id"]);
    assert_eq!(window.result(&place, &["ok"]), "ok");
    place.wait_daemon();
    signal(window.program(), Signal::SIGTERM);
    let ran = window.end();
    assert_eq!((ran.code, ran.stdout.as_str(), ran.stderr.as_str()), (143, "", ""));
    assert!(sessions(&place).is_empty());
    end_daemons(&place);
}

fn place_pid(place: &Place) -> u32 {
    place.daemons().first().copied().unwrap_or_default()
}

#[test]
fn a_handler_that_has_begun_goes_on_when_the_daemon_is_killed() {
    let mut place = Place::with_daemon(&[]);
    let (begun, done) = (place.path().join("begun"), place.path().join("done"));
    let work =
        format!("work=echo $$ >'{}'; while ! test -e '{}'; do sleep 0.02; done", begun.display(), done.display());
    let window = Window::open(&place, "w", &["--on", &work]);
    let mut caller =
        place.usher().args(["send", "--session", window.id(), "work"]).stderr(Stdio::null()).spawn().unwrap();
    let pid = until("the handler runs", || super::line_in(&begun)).parse().unwrap();
    place.signal_daemon(Signal::SIGKILL);
    place.wait_daemon();
    assert_eq!(caller.wait().unwrap().code(), Some(3));
    until("the session is back", || session(&place, "w"));
    assert!(state(pid).is_some(), "the handler was ended");
    std::fs::File::create(done).unwrap();
    until("the handler ends and is reaped", || state(pid).is_none().then_some(()));
    drop(window);
    end_daemons(&place);
}

#[test]
fn a_run_that_a_draining_daemon_refuses_comes_to_the_next_one() {
    let mut place = Place::with_daemon(&[]);
    let first = Window::open(&place, "first", &[]);
    place.json(&["rpc", "daemon.drain"]);
    let second = place.usher().args(["run", "--title", "second", "--", "sleep", "600"]).spawn().unwrap();
    // Only when it has been refused, and has gone, is the first let go and the daemon with it.
    let keys = place.json(&["keys", "show", "producer"]);
    let gone = format!("key {}: closed by peer", keys["fingerprint"].as_str().unwrap());
    until("the second was refused", || place.log_text().contains(&gone).then_some(()));
    assert_eq!(sessions(&place).len(), 1);
    signal(first.program(), Signal::SIGTERM);
    first.end();
    assert_eq!(place.wait_daemon(), 0);
    let row = until("the next daemon has the second", || session(&place, "second"));
    let second = Window { run: Some(second), row };
    assert_eq!(second.result(&place, &["status"])["running"], true);
    drop(second);
    end_daemons(&place);
}

#[test]
fn a_run_whose_key_is_revoked_stays_away_and_its_program_goes_on() {
    let place = Place::with_daemon(&[]);
    let bundle = place.path().join("bundle");
    let bundle = bundle.to_str().unwrap();
    let made = place.json(&["keys", "new", "--role", "producer", "--row", "--label", "x", "--out", bundle]);
    let mut command = place.usher();
    command.env("USHER_CREDENTIAL", bundle).args(["run", "--title", "w", "--", "sleep", "600"]);
    let window = Window::of(&place, "w", &mut command);
    place.json(&["keys", "revoke", made["credential"].as_str().unwrap()]);
    until("the session is gone", || sessions(&place).is_empty().then_some(()));
    // The link looks at the daemon's health, says one hello, and then is no more.
    until("the link has ended", || (threads(window.pid()) == 1).then_some(()));
    assert_eq!(state(window.program()), Some('S'));
    signal(window.pid(), Signal::SIGTERM);
    let ran = window.end();
    assert_eq!((ran.code, ran.stdout.as_str(), ran.stderr.as_str()), (143, "", ""));
}

fn threads(pid: u32) -> usize {
    std::fs::read_dir(format!("/proc/{pid}/task")).unwrap().count()
}

#[test]
fn a_daemon_that_a_run_has_started_outlives_the_keys_of_its_terminal() {
    let place = Place::empty();
    let Some(mut screen) = super::terminal::bash(&place) else { return };
    screen.press(&format!("'{USHER}' run -- sh -c 'echo up; exec sleep 600'; echo \"code $?\"\n"));
    screen.wait_for("up\r\n");
    // On its way: a run that has ended before starts none.
    until("the daemon is being started", || (!place.usherds().is_empty()).then_some(()));
    screen.press("\u{3}");
    screen.wait_for("code 130");
    let generation = until("a daemon answers", || place.health());
    screen.press(&format!("'{USHER}' run --title w -- sleep 600\n"));
    until("the session is listed", || session(&place, "w"));
    drop(screen);
    until("the session is gone", || sessions(&place).is_empty().then_some(()));
    assert_eq!(place.health(), Some(generation));
    end_daemons(&place);
}
