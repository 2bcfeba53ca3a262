//! How a daemon ends, and what does not keep it from ending.

use nix::sys::signal::Signal;

use crate::support::daemon::Place;
use crate::support::system::Process;
use crate::support::wait::until;

#[test]
fn a_signal_that_means_nothing_does_not_make_the_daemon_deaf() {
    let mut place = Place::with_daemon(&[]);
    place.signal_daemon(Signal::SIGUSR1);
    until("the signal is taken", || Process::new(place.pid()).status("ShdPnd").ends_with("0000").then_some(()));
    place.signal_daemon(Signal::SIGTERM);
    assert_eq!(place.wait_daemon(), 0);
}
