//! Time that does not go on as usual: a process that is stopped, a wall clock that steps.

use std::path::Path;
use std::process::Stdio;
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use serde_json::Value;

use crate::support::daemon::{Place, finished};
use crate::support::system::{cannot, kill, put};
use crate::support::wait::until;

/// The one session.
fn session(place: &Place) -> Option<Value> {
    let listed = place.run(&["list", "--json"]);
    let document: Value = serde_json::from_str(&listed.stdout).ok()?;
    match document["sessions"].as_array()?.as_slice() {
        [session] => Some(session.clone()),
        _ => None,
    }
}

// 35
#[test]
fn a_machine_that_was_suspended_goes_on_with_the_same_sessions() {
    let place = Place::with_daemon(&["--limit", "gone-ms=11000"]);
    let mut window = place.usher();
    let mut window =
        window.args(["run", "--", "sleep", "1000"]).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    let before = until("the window is there", || session(&place));
    place.signal_daemon(Signal::SIGSTOP);
    kill(window.id(), Signal::SIGSTOP);
    let later = Instant::now() + Duration::from_secs(16);
    until("longer than a session may be silent", || (Instant::now() > later).then_some(()));
    place.signal_daemon(Signal::SIGCONT);
    until("the daemon goes on", || place.log_text().contains("did not run for a while").then_some(()));
    let after = session(&place).expect("it was not silent: nobody could hear it");
    assert_eq!((&after["session_id"], &after["registered"]), (&before["session_id"], &before["registered"]));
    kill(window.id(), Signal::SIGCONT);
    assert_eq!(place.run(&["send", "status"]).code, 0);
    assert!(!place.log_text().contains("removed"), "{}", place.log_text());
    kill(window.id(), Signal::SIGTERM);
    window.wait().unwrap();
}

// 36
#[test]
fn a_wall_clock_that_steps_back_and_far_ahead_ends_what_it_has_to_and_no_session() {
    let library = ["x86_64-linux-gnu", "aarch64-linux-gnu"]
        .map(|machine| format!("/usr/lib/{machine}/faketime/libfaketimeMT.so.1"));
    let Some(library) = library.iter().find(|path| Path::new(path).exists()) else {
        return cannot("a wall clock that steps", "libfaketime is not installed (Debian: apt-get install faketime)");
    };
    let mut place = Place::empty();
    let steps = place.scratch().join("steps");
    put(&steps, "+0");
    let mut daemon = place.usherd();
    daemon.env("LD_PRELOAD", library).env("FAKETIME_TIMESTAMP_FILE", &steps);
    daemon.env("FAKETIME_NO_CACHE", "1").env("FAKETIME_DONT_FAKE_MONOTONIC", "1").env("DONT_FAKE_MONOTONIC", "1");
    place.start_daemon_as(daemon);
    let mut window = place.usher();
    let mut window =
        window.args(["run", "--", "sleep", "1000"]).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    let before = until("the window is there", || session(&place));
    let bundle = place.scratch().join("bundle");
    let made = place.run(&[
        "keys",
        "new",
        "--label",
        "agent",
        "--role",
        "caller",
        "--expires",
        "1d",
        "--row",
        "--out",
        bundle.to_str().unwrap(),
    ]);
    assert_eq!(made.code, 0, "{made:?}");
    let lists = || place.run(&["list", "--credential", bundle.to_str().unwrap()]);
    assert_eq!(lists().code, 0);
    let asking = place
        .usher()
        .args(["ask", "now?", "--ttl", "1h"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let open = || place.json(&["approvals"])["approvals"].as_array().unwrap().len();
    until("the question is there", || (open() == 1).then_some(()));

    for (step, is_over) in [("-1h", false), ("-10m", false), ("+10m", false), ("+1y", true)] {
        put(&steps, step);
        assert_eq!(place.run(&["send", "status"]).code, 0, "{step}");
        let now = session(&place).unwrap_or_else(|| panic!("{step}: the session is gone\n{}", place.log_text()));
        assert_eq!((&now["session_id"], &now["state"]), (&before["session_id"], &Value::from("live")), "{step}");
        if is_over {
            until("the credential has ended", || (lists().code == 5).then_some(()));
            until("the question has ended", || (open() == 0).then_some(()));
        } else {
            assert_eq!((lists().code, open()), (0, 1), "{step}");
        }
    }
    assert_ne!(finished(asking).code, 0, "nobody has said yes");
    assert!(!place.log_text().contains("panicked"), "{}", place.log_text());
    kill(window.id(), Signal::SIGTERM);
    window.wait().unwrap();
}
