//! The program that was asked for: started at once on our terminal, reaped once.
//!
//! Owns: the one handle to it. Invariant: no signal is ever sent to a recycled pid. Whoever signals and whoever reaps
//! hold the same lock, and until it is reaped a pid stays the child's; they wait for each other for one system call.

use std::ffi::{OsStr, OsString};
use std::io::{Write, stderr};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;

use nix::errno::Errno;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use parking_lot::Mutex;

use crate::ids::SessionId;
use crate::sys;

use super::spawn::{self, Start};
use crate::cli::text::clean;

/// What shells answer for a command that is there and cannot be run.
const NOT_EXECUTABLE: u8 = 126;
/// What shells answer for a command that is not there.
const NOT_FOUND: u8 = 127;
/// What shells add to the number of the signal that ended a program.
const BY_SIGNAL: i32 = 128;

/// The running program.
#[derive(Debug)]
pub struct Child {
    pid: Pid,
    /// Locked by whoever signals or reaps.
    is_reaped: Mutex<bool>,
}

/// The program has ended: there is nothing to send a signal to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HasEnded;

impl Child {
    /// Starts it with our terminal, group and working directory, an empty signal mask, and the session's id in its
    /// environment. When it cannot be started, the exit code is what a shell would give.
    pub fn start(command: &[OsString], session: SessionId) -> Result<Self, u8> {
        let Some(program) = command.first() else { return Err(NOT_FOUND) };
        let started = match start(program, command, session) {
            // A script without its first line: every shell reads it itself.
            Err(Errno::ENOEXEC) if program.as_bytes().contains(&b'/') => {
                let shell = [OsString::from("sh")].iter().chain(command).cloned().collect::<Vec<_>>();
                start("/bin/sh".as_ref(), &shell, session)
            }
            done => done,
        };
        started.map(|pid| Self { pid, is_reaped: Mutex::new(false) }).map_err(|errno| {
            // Nobody else will say it, and the terminal is still ours.
            let _ = writeln!(stderr().lock(), "usher: {}: {}", clean(&program.to_string_lossy()), reason(errno));
            if matches!(errno, Errno::ENOENT | Errno::ENOTDIR) { NOT_FOUND } else { NOT_EXECUTABLE }
        })
    }

    /// Its process id.
    pub fn pid(&self) -> Pid {
        self.pid
    }

    /// Whether it was not reaped yet.
    pub fn is_running(&self) -> bool {
        !*self.is_reaped.lock()
    }

    /// Sends it a signal.
    pub fn signal(&self, signal: Signal) -> Result<(), HasEnded> {
        let is_reaped = self.is_reaped.lock();
        if *is_reaped {
            return Err(HasEnded);
        }
        // Refused only for a program that has become another user's; it is told nothing then, as by kill(1).
        let _ = kill(self.pid, signal);
        Ok(())
    }

    /// Reaps it if it has ended, without waiting.
    pub fn reap(&self) -> Option<u8> {
        let mut is_reaped = self.is_reaped.lock();
        let code = match sys::reap(self.pid) {
            Ok(None) => return None,
            Ok(Some(status)) => code(status),
            // Somebody took the status away from us; that it has ended is all that is known.
            Err(_) => 1,
        };
        *is_reaped = true;
        Some(code)
    }
}

fn start(program: &OsStr, arguments: &[OsString], session: SessionId) -> nix::Result<Pid> {
    let environment = [("USHER_SESSION", &*session.to_string())];
    spawn::start(&Start { program, arguments, environment: &environment, stdio: None, closed: None, own_group: false })
}

fn reason(errno: Errno) -> &'static str {
    match errno {
        Errno::ENOENT | Errno::ENOTDIR => "command not found",
        Errno::EACCES => "not executable",
        errno => errno.desc(),
    }
}

/// As a shell tells it.
fn code(status: ExitStatus) -> u8 {
    let code = status.code().or_else(|| Some(BY_SIGNAL + status.signal()?)).unwrap_or(1);
    u8::try_from(code).unwrap_or(u8::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn start(command: &[&str]) -> Result<Child, u8> {
        let command: Vec<OsString> = command.iter().map(Into::into).collect();
        Child::start(&command, SessionId([1; 16]))
    }

    fn end_of(child: &Child) -> u8 {
        loop {
            match child.reap() {
                Some(code) => return code,
                None => std::thread::yield_now(),
            }
        }
    }

    #[test]
    fn a_program_ends_with_its_own_code_or_128_and_its_signal() {
        assert_eq!(end_of(&start(&["sh", "-c", "exit 3"]).unwrap()), 3);
        assert_eq!(end_of(&start(&["sh", "-c", "kill -9 $$"]).unwrap()), 137);
        assert_eq!(end_of(&start(&["sh", "-c", "exit 255"]).unwrap()), 255);
    }

    #[test]
    fn a_signal_reaches_it_until_it_is_reaped() {
        let child = start(&["sleep", "60"]).unwrap();
        assert!(child.is_running() && child.reap().is_none());
        assert_eq!(child.signal(Signal::SIGTERM), Ok(()));
        assert_eq!(end_of(&child), 143);
        assert_eq!(child.signal(Signal::SIGTERM), Err(HasEnded));
        assert!(!child.is_running());
    }

    #[test]
    fn what_cannot_be_started_has_the_code_that_a_shell_gives() {
        assert_eq!(start(&["usher-no-such-program"]).unwrap_err(), 127);
        assert_eq!(start(&["/"]).unwrap_err(), 126);
    }
}
