//! The main thread while the program runs: signals to us, and the program's end, taken in one place.
//!
//! Owns: which signals are passed on. Invariant: a signal that the terminal gave to the whole foreground group is not
//! given to the program a second time. Waits for the kernel alone.

use std::time::{Duration, Instant};

use nix::sys::signal::{SigSet, Signal, raise};
use nix::unistd::Pid;

use crate::sys::{self, Arrived, Origin, Signals, Stop};

use super::child::Child;
use crate::cli::terminal;

/// What is passed on. Job control's signals keep their default: they stop and continue the whole group, us with it.
const FORWARDED: [Signal; 6] =
    [Signal::SIGTERM, Signal::SIGHUP, Signal::SIGINT, Signal::SIGQUIT, Signal::SIGUSR1, Signal::SIGUSR2];

/// How long a program may be stopped alone before we stop too: a key at the terminal stops, and `fg` continues, one
/// process of the group after the other.
const ALONE: Duration = Duration::from_millis(100);

/// What main takes in place of being ended by it: to be blocked before there is a second thread.
pub fn taken() -> SigSet {
    FORWARDED.into_iter().chain([Signal::SIGCHLD]).collect()
}

/// Passes signals on until the program has ended; its exit code. `children` hears that a child of ours changed.
pub fn until_end(child: &Child, signals: &Signals, children: impl Fn()) -> u8 {
    let mut stopped: Option<Instant> = None;
    loop {
        let patience = stopped.map(|since| (since + ALONE).saturating_duration_since(Instant::now()));
        match signals.wait(patience) {
            Ok(Some(arrived)) if arrived.signal == Signal::SIGCHLD => children(),
            Ok(Some(arrived)) if is_for_child(arrived, child.pid()) => drop(child.signal(arrived.signal)),
            Ok(Some(_)) => {}
            Ok(None) => children(),
            // Signals cannot be taken any more: the end is all that is left to look for.
            Err(_) => std::thread::sleep(ALONE),
        }
        if let Some(code) = child.reap() {
            return code;
        }
        match sys::stop_of(child.pid()) {
            Some(Stop::Stopped) => stopped = Some(Instant::now()),
            Some(Stop::Continued) => stopped = None,
            None => {}
        }
        stopped = stopped.and_then(|since| match since.elapsed() {
            early if early < ALONE => Some(since),
            // We did not run meanwhile: stopped with it, and continued perhaps before it.
            late if late > 4 * ALONE => Some(Instant::now()),
            _ => {
                stop_too();
                None
            }
        });
    }
}

/// A program that stops itself alone, as some do on Ctrl-Z, would leave the shell waiting for us: it looks at its own
/// child only. Where no shell waits (the group is not the terminal's) nothing is done.
fn stop_too() {
    if terminal::is_foreground() {
        let _ = raise(Signal::SIGSTOP);
    }
}

fn is_for_child(arrived: Arrived, child: Pid) -> bool {
    match arrived.origin {
        // A terminal that is closed tells its session's leader alone, which we may be: a second hangup harms nobody.
        Some(Origin::Kernel) => arrived.signal == Signal::SIGHUP,
        // What it sent to its whole group it has itself.
        Some(Origin::Process(sender)) => sender != child.as_raw().unsigned_abs(),
        None => !(matches!(arrived.signal, Signal::SIGINT | Signal::SIGQUIT) && terminal::stdin_is_terminal()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_terminal_or_the_program_itself_sent_is_not_sent_twice() {
        let from = |origin| is_for_child(Arrived { signal: Signal::SIGINT, origin: Some(origin) }, Pid::from_raw(7));
        assert!(from(Origin::Process(8)) && from(Origin::Process(0)));
        assert!(!from(Origin::Process(7)) && !from(Origin::Kernel));
        assert!(is_for_child(Arrived { signal: Signal::SIGHUP, origin: Some(Origin::Kernel) }, Pid::from_raw(7)));
        assert!(is_for_child(Arrived { signal: Signal::SIGTERM, origin: None }, Pid::from_raw(7)));
    }

    #[test]
    fn job_control_keeps_its_default() {
        let taken = taken();
        for signal in [Signal::SIGTSTP, Signal::SIGTTIN, Signal::SIGTTOU, Signal::SIGCONT, Signal::SIGWINCH] {
            assert!(!taken.contains(signal));
        }
        assert!(taken.contains(Signal::SIGCHLD) && taken.contains(Signal::SIGTERM));
    }
}
