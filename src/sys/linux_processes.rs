//! Linux: signals by `signalfd`, children by `waitid`, processes through `/proc`.

use std::fs;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;
use std::time::Duration;

use nix::errno::Errno;
use nix::fcntl::OFlag;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::{SigSet, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use nix::sys::wait::{Id, WaitPidFlag, WaitStatus, waitid, waitpid};
use nix::unistd::{Pid, pipe2};

use super::{Arrived, Origin, Stop};

/// The kernel tells of every child by SIGCHLD: nobody has to look by time.
pub const LOOK_AT_CHILDREN: Option<Duration> = None;

/// Ticks a second in `/proc`: `USER_HZ` is 100 on every architecture that is left.
const TICK_MS: u64 = 10;

/// Blocked signals, taken one at a time.
#[derive(Debug)]
pub struct Signals(SignalFd);

impl Signals {
    /// Of a set that every thread has blocked already.
    pub fn new(set: &SigSet) -> nix::Result<Self> {
        SignalFd::with_flags(set, SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK).map(Self)
    }

    /// The next one; none when the time is over, or for no reason.
    pub fn wait(&self, timeout: Option<Duration>) -> nix::Result<Option<Arrived>> {
        let timeout = timeout.map_or(PollTimeout::NONE, |left| PollTimeout::try_from(left).unwrap_or(PollTimeout::MAX));
        match poll(&mut [PollFd::new(self.0.as_fd(), PollFlags::POLLIN)], timeout) {
            Ok(_) | Err(Errno::EINTR) => {}
            Err(errno) => return Err(errno),
        }
        let Some(info) = self.0.read_signal()? else { return Ok(None) };
        let Some(signal) = i32::try_from(info.ssi_signo).ok().and_then(|number| Signal::try_from(number).ok()) else {
            return Ok(None);
        };
        let origin = if info.ssi_code > 0 { Origin::Kernel } else { Origin::Process(info.ssi_pid) };
        Ok(Some(Arrived { signal, origin: Some(origin) }))
    }
}

/// Whether this process was started with a signal ignored.
pub fn ignores(signal: Signal) -> bool {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let set = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let set = set.and_then(|digits| u64::from_str_radix(digits.trim(), 16).ok()).unwrap_or_default();
    set & (1 << (signal as i32 - 1)) != 0
}

/// Whether a child has ended and waits to be reaped; it stays as it is.
pub fn has_ended(child: Pid) -> bool {
    let flags = WaitPidFlag::WEXITED | WaitPidFlag::WNOHANG | WaitPidFlag::WNOWAIT;
    // A signal that has no name (a real-time one) is told as EINVAL.
    !matches!(waitid(Id::Pid(child), flags), Ok(WaitStatus::StillAlive) | Err(Errno::EINTR))
}

/// Reaps a child if it has ended, without waiting. None while it runs; `ECHILD` when somebody else has reaped it.
pub fn reap(child: Pid) -> nix::Result<Option<ExitStatus>> {
    // Before it is gone, for a signal without a name: only here is its number told.
    let told = if has_ended(child) { exit_code_in_proc(child) } else { return Ok(None) };
    match waitpid(child, Some(WaitPidFlag::WNOHANG)) {
        Ok(status) => Ok(super::exit_status(status)),
        Err(Errno::EINVAL) => Ok(Some(ExitStatus::from_raw(told.unwrap_or(Signal::SIGKILL as i32)))),
        Err(errno) => Err(errno),
    }
}

/// Field 52 of `/proc/PID/stat`, as wait(2) would tell it.
fn exit_code_in_proc(child: Pid) -> Option<i32> {
    fs::read_to_string(format!("/proc/{child}/stat")).ok()?.split_ascii_whitespace().next_back()?.parse().ok()
}

/// A pipe, to read from and to write to, that no child inherits.
pub fn pipe() -> nix::Result<(OwnedFd, OwnedFd)> {
    pipe2(OFlag::O_CLOEXEC)
}

/// Whether a child was stopped or continued since this was asked last. It is never reaped here.
pub fn stop_of(child: Pid) -> Option<Stop> {
    let flags = WaitPidFlag::WSTOPPED | WaitPidFlag::WCONTINUED | WaitPidFlag::WNOHANG;
    match waitid(Id::Pid(child), flags) {
        Ok(WaitStatus::Stopped(..)) => Some(Stop::Stopped),
        Ok(WaitStatus::Continued(_)) => Some(Stop::Continued),
        _ => None,
    }
}

/// When a process started, in ms since 1970.
pub fn process_started(pid: u32) -> Option<u64> {
    let ticks = ticks_in(&fs::read_to_string(format!("/proc/{pid}/stat")).ok()?)?;
    let system = fs::read_to_string("/proc/stat").ok()?;
    let boot: u64 = system.lines().find_map(|line| line.strip_prefix("btime "))?.trim().parse().ok()?;
    Some(boot * 1_000 + ticks * TICK_MS)
}

/// Field 22 of `/proc/PID/stat`. The second, the name, may hold anything, so counting begins behind its parenthesis.
fn ticks_in(stat: &str) -> Option<u64> {
    stat.rsplit_once(')')?.1.split_ascii_whitespace().nth(19)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_start_of_a_process_is_read_whatever_its_name_is() {
        let stat = "7 (a) b) S 1 7 7 0 -1 4194560 1 2 3 4 5 6 7 8 20 0 1 0 4711 1 2";
        assert_eq!(ticks_in(stat), Some(4711));
        assert_eq!(ticks_in("7 (a"), None);
        let now = std::time::SystemTime::UNIX_EPOCH.elapsed().unwrap().as_millis();
        let started = u128::from(process_started(std::process::id()).unwrap());
        assert!(started <= now + 2_000 && started + 86_400_000 > now, "{started} {now}");
    }

    #[test]
    fn a_test_does_not_ignore_sigchld() {
        assert!(!ignores(Signal::SIGCHLD));
    }
}
