//! How a daemon ends, and what does not keep it from ending.

use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};

use nix::sys::signal::Signal;

use crate::support::daemon::Place;
use crate::support::system::Process;
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
