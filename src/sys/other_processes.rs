//! Systems that are not Linux: signals by `sigwait`, which does not tell who sent them nor, everywhere, of children.

use std::os::fd::OwnedFd;
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;
use std::time::Duration;

use crossbeam_channel::{Receiver, RecvTimeoutError, bounded};
use nix::errno::Errno;
use nix::fcntl::{FcntlArg, FdFlag, fcntl};
use nix::sys::signal::{SigSet, Signal};
use nix::sys::wait::{WaitPidFlag, waitpid};
use nix::unistd::Pid;

use crate::threads;

use super::{Arrived, Stop};

/// A blocked SIGCHLD may be dropped here, so children are looked at by time.
pub const LOOK_AT_CHILDREN: Option<Duration> = Some(Duration::from_millis(50));

/// Blocked signals, taken one at a time by a thread that lives as long as the process.
#[derive(Debug)]
pub struct Signals(Receiver<Signal>);

impl Signals {
    /// Of a set that every thread has blocked already.
    pub fn new(set: &SigSet) -> nix::Result<Self> {
        let (sender, receiver) = bounded(16);
        let set = *set;
        let taker = move || {
            while let Ok(signal) = set.wait() {
                if sender.send(signal).is_err() {
                    return;
                }
            }
        };
        threads::spawn("signals", taker).map_err(|_| Errno::EAGAIN)?;
        Ok(Self(receiver))
    }

    /// The next one; none when the time is over, or it is time to look at children.
    pub fn wait(&self, timeout: Option<Duration>) -> nix::Result<Option<Arrived>> {
        let timeout = [timeout, LOOK_AT_CHILDREN].into_iter().flatten().min().unwrap_or(Duration::MAX);
        match self.0.recv_timeout(timeout) {
            Ok(signal) => Ok(Some(Arrived { signal, origin: None })),
            Err(RecvTimeoutError::Timeout) => Ok(None),
            Err(RecvTimeoutError::Disconnected) => Err(Errno::EINVAL),
        }
    }
}

/// What this process was started with is not told here.
pub fn ignores(_signal: Signal) -> bool {
    false
}

/// Not told here without reaping.
pub fn has_ended(_child: Pid) -> bool {
    false
}

/// Reaps a child if it has ended, without waiting. None while it runs; `ECHILD` when somebody else has reaped it.
pub fn reap(child: Pid) -> nix::Result<Option<ExitStatus>> {
    match waitpid(child, Some(WaitPidFlag::WNOHANG)) {
        Ok(status) => Ok(super::exit_status(status)),
        // A signal without a name: reaped, and its number is not told.
        Err(Errno::EINVAL) => Ok(Some(ExitStatus::from_raw(Signal::SIGKILL as i32))),
        Err(errno) => Err(errno),
    }
}

/// A pipe, to read from and to write to, that no child inherits (but for one forked between these calls).
pub fn pipe() -> nix::Result<(OwnedFd, OwnedFd)> {
    let ends = nix::unistd::pipe()?;
    fcntl(&ends.0, FcntlArg::F_SETFD(FdFlag::FD_CLOEXEC))?;
    fcntl(&ends.1, FcntlArg::F_SETFD(FdFlag::FD_CLOEXEC))?;
    Ok(ends)
}

/// Not told here without the danger of reaping.
pub fn stop_of(_child: Pid) -> Option<Stop> {
    None
}

/// Not told here.
pub fn process_started(_pid: u32) -> Option<u64> {
    None
}
