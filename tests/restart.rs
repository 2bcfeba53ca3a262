//! `usher drain` and `usher restart` with the real programs and windows that stay open.

use std::process::{Child, Stdio};

use serde_json::{Value, json};

use crate::support::daemon::{Place, Ran, USHER, USHERD, finished, ran};
use crate::support::system::{copy_program, put_program};
use crate::support::wait::until;

/// A window: a program that stays, with a command that answers at once and one that takes its time.
fn window(place: &Place, title: &str) -> Child {
    let mut command = place.usher();
    command.args([
        "run",
        "--title",
        title,
        "--on",
        "echo=cat",
        "--on",
        "slow=sleep 2; echo done",
        "--",
        "sleep",
        "1000",
    ]);
    command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap()
}

fn sessions(place: &Place) -> Vec<Value> {
    let listed = place.run(&["list", "--json"]);
    assert_eq!(listed.code, 0, "{listed:?}");
    serde_json::from_str::<Value>(&listed.stdout).unwrap()["sessions"].as_array().unwrap().clone()
}

fn ids(place: &Place) -> Vec<String> {
    let mut ids: Vec<_> = sessions(place).iter().map(|row| row["session_id"].as_str().unwrap().to_owned()).collect();
    ids.sort();
    ids
}

fn end(mut window: Child) {
    crate::support::system::kill(window.id(), nix::sys::signal::Signal::SIGTERM);
    window.wait().unwrap();
}

fn ended(ran: &Ran) -> Value {
    serde_json::from_str(&ran.stdout).unwrap_or_else(|_| panic!("{ran:?}"))
}

#[test]
fn a_daemon_that_is_drained_stays_for_its_windows_and_drain_waits_for_the_last() {
    let place = Place::empty();
    let first = window(&place, "first");
    until("the window is there", || (ids(&place).len() == 1).then_some(()));
    let mut drain = place.usher();
    let drain =
        drain.args(["drain", "--wait", "--json"]).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    until("the daemon drains", || {
        let status: Value = serde_json::from_str(&place.run(&["status", "--json"]).stdout).ok()?;
        (status["status"]["draining"] == true).then_some(())
    });
    let again = place.run(&["drain"]);
    assert_eq!(again.stdout, "draining: the daemon ends with its one session\n");
    let late = place.run(&["drain", "--wait", "--timeout", "50ms"]);
    assert_eq!((late.code, late.stdout.as_str()), (4, ""), "{late:?}");
    assert_eq!(place.run(&["send", "--title", "first", "echo", "1"]).stdout, "1\n", "it serves on");
    end(first);
    let drained = finished(drain);
    assert_eq!((drained.code, &ended(&drained)["ended"]), (0, &json!(true)), "{drained:?}");
    assert!(place.daemons().is_empty());
}

#[test]
fn a_restart_brings_every_window_back_under_its_id() {
    let place = Place::empty();
    let windows: Vec<_> = (0..4).map(|number| window(&place, &format!("w{number}"))).collect();
    until("all are there", || (ids(&place).len() == 4).then_some(()));
    let (before, daemon) = (ids(&place), place.daemons());
    for _ in 0..3 {
        let restarted = place.run(&["restart", "--json"]);
        assert_eq!(restarted.code, 0, "{restarted:?}");
        let told = ended(&restarted);
        assert_eq!((&told["sessions_before"], &told["sessions"]), (&json!(4), &json!(4)), "{told}");
        assert_eq!(ids(&place), before);
    }
    assert_eq!(place.daemons().len(), 1);
    assert_ne!(place.daemons(), daemon, "another process serves");
    assert_eq!(place.run(&["send", "--title", "w2", "echo", "7"]).stdout, "7\n");
    windows.into_iter().for_each(end);
}

#[test]
fn restarts_at_once_end_in_one_daemon_and_none_takes_it_for_the_one_that_it_has_ended() {
    let place = Place::empty();
    let windows: Vec<_> = (0..2).map(|number| window(&place, &format!("w{number}"))).collect();
    until("all are there", || (ids(&place).len() == 2).then_some(()));
    let before = ids(&place);
    for _ in 0..4 {
        let restarts: Vec<Child> = (0..3)
            .map(|_| place.usher().arg("restart").stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap())
            .collect();
        let restarts: Vec<Ran> = restarts.into_iter().map(finished).collect();
        assert!(restarts.iter().any(|ran| ran.code == 0), "{restarts:?}");
        for ran in &restarts {
            assert!([0, 3].contains(&ran.code), "done, or the daemon was ended by another: {ran:?}");
        }
        until("all are back", || (ids(&place) == before).then_some(()));
        assert_eq!(place.daemons().len(), 1);
    }
    windows.into_iter().for_each(end);
}

#[test]
fn a_restart_waits_for_what_is_pending_and_changes_nothing_when_that_takes_too_long() {
    let place = Place::empty();
    let one = window(&place, "one");
    until("the window is there", || (ids(&place).len() == 1).then_some(()));
    let daemon = place.daemons();
    let send = || {
        let mut command = place.usher();
        let child = command.args(["send", "slow"]).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        until("the command runs", || (sessions(&place)[0]["pending"] == 1).then_some(()));
        child
    };
    let sending = send();
    let late = place.run(&["restart", "--timeout", "100ms"]);
    assert_eq!((late.code, late.stdout.as_str()), (4, ""), "{late:?}");
    assert!(late.stderr.contains("nothing was changed"), "{late:?}");
    assert_eq!(place.daemons(), daemon);
    assert_eq!(finished(sending).stdout, "done\n");

    let sending = send();
    let restarted = place.run(&["restart"]);
    assert_eq!(restarted.code, 0, "{restarted:?}");
    assert_eq!(finished(sending).stdout, "done\n", "it was waited for");
    assert_ne!(place.daemons(), daemon);
    end(one);
}

#[test]
fn a_restart_ends_nothing_when_there_is_no_daemon_to_start() {
    let place = Place::empty();
    let one = window(&place, "one");
    until("the window is there", || (ids(&place).len() == 1).then_some(()));
    let daemon = place.daemons();
    // An upgrade that went wrong: beside this `usher` lies something that is no daemon.
    let broken = place.scratch().join("broken");
    std::fs::create_dir(&broken).unwrap();
    copy_program(USHER, broken.join("usher"));
    let restart = || ran(place.program(broken.join("usher")).arg("restart"));
    let missing = restart();
    assert_eq!((missing.code, missing.stdout.as_str()), (3, ""), "{missing:?}");
    for text in ["#!/bin/sh\necho 'usherd: out of order' >&2\nexit 1\n", "no program\n"] {
        put_program(broken.join("usherd"), text);
        let failed = restart();
        assert_eq!((failed.code, failed.stdout.as_str()), (3, ""), "{failed:?}");
    }
    assert_eq!(place.daemons(), daemon, "the daemon serves on");
    assert_eq!(place.run(&["send", "echo", "3"]).stdout, "3\n");
    copy_program(USHERD, broken.join("usherd"));
    let restarted = restart();
    assert_eq!(restarted.code, 0, "{restarted:?}");
    assert_ne!(place.daemons(), daemon);
    end(one);
    let mut inside = place.usher();
    let denied = ran(inside.args(["run", "--"]).arg(USHER).arg("restart"));
    assert_eq!(denied.code, 5, "{denied:?}");
}
