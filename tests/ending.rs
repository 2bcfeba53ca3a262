//! How a daemon ends, and what does not keep it from ending.

use std::os::unix::net::UnixStream;
use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use serde_json::Value;

use crate::support::daemon::{Place, finished};
use crate::support::system::{Process, kill};
use crate::support::threads;
use crate::support::wait::until;

#[test]
fn a_signal_that_means_nothing_does_not_make_the_daemon_deaf() {
    let mut place = Place::with_daemon(&[]);
    place.signal_daemon(Signal::SIGUSR1);
    until("the signal is taken", || Process::new(place.pid()).status("ShdPnd").ends_with("0000").then_some(()));
    place.signal_daemon(Signal::SIGTERM);
    assert_eq!(place.wait_daemon(), 0);
}

#[test]
fn who_connects_without_end_does_not_keep_the_daemon_from_ending() {
    let mut place = Place::with_daemon(&[]);
    let (socket, over) = (place.socket(), Arc::new(AtomicBool::new(false)));
    let knocking: Vec<_> = (0..4)
        .map(|_| {
            let (socket, over) = (socket.clone(), Arc::clone(&over));
            threads::spawn("knocks", move || {
                while !over.load(SeqCst) {
                    drop(UnixStream::connect(&socket));
                }
            })
        })
        .collect();
    let ended = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        until("they knock", || place.log_text().contains("only counted").then_some(()));
        place.signal_daemon(Signal::SIGTERM);
        place.wait_daemon()
    }));
    over.store(true, SeqCst);
    for thread in knocking {
        thread.join().unwrap();
    }
    assert_eq!(ended.ok(), Some(0));
}

#[test]
fn what_the_end_of_a_daemon_interrupts_ends_once_and_says_whether_it_was_delivered() {
    // Killed, the daemon can say nothing: who sent it does not know.
    let ends: [(&str, &[&str]); 3] = [
        ("stop", &["not-delivered", "unknown"]),
        ("TERM", &["not-delivered", "unknown"]),
        ("KILL", &["unknown", "unknown"]),
    ];
    for (how, wanted) in ends {
        let mut place = Place::with_daemon(&["--limit", "shutdown-ms=200"]);
        let started = place.scratch().join("started");
        let mut window = place.usher();
        let slow = format!("slow=echo x >>'{}'; exec sleep 30", started.display());
        let mut window =
            window.args(["run", "--on", &slow, "--", "sleep", "1000"]).stderr(Stdio::null()).spawn().unwrap();
        assert_eq!(place.run(&["wait"]).code, 0);
        let send = || {
            let mut send = place.usher();
            send.args(["--json", "send", "--deadline", "60s", "slow"]).stdout(Stdio::piped()).stderr(Stdio::piped());
            send.spawn().unwrap()
        };
        let running = send();
        until("it runs", || std::fs::read_to_string(&started).ok());
        let queued = send();
        until("the other is queued", || (place.json(&["list"])["sessions"][0]["pending"] == 2).then_some(()));
        let begun = Instant::now();
        match how {
            "stop" => assert_eq!(place.run(&["stop", "--force"]).code, 0),
            "TERM" => place.signal_daemon(Signal::SIGTERM),
            _ => place.signal_daemon(Signal::SIGKILL),
        }
        place.wait_daemon();
        let mut told: Vec<String> = [running, queued]
            .map(|send| {
                let ran = finished(send);
                assert_eq!((ran.code, ran.stdout.as_str()), (3, ""), "{how}: {ran:?}");
                let error: Value = serde_json::from_str(&ran.stderr).unwrap();
                error["error"]["delivery"].as_str().unwrap().to_owned()
            })
            .into();
        told.sort();
        assert_eq!(told, wanted, "{how}");
        assert!(begun.elapsed() < Duration::from_secs(25), "nobody waits for the deadline: {:?}", begun.elapsed());
        assert_eq!(std::fs::read_to_string(&started).unwrap(), "x\n", "{how}: what was queued never ran");
        kill(window.id(), Signal::SIGTERM);
        window.wait().unwrap();
    }
}
