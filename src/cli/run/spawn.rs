//! How a program is started by a process that has signals blocked and SIGPIPE ignored: the program has neither.
//!
//! The standard library hands the signal mask on, and a thread that took it off for a moment could be ended in that
//! moment. Owns: the one call that sets it right within the child.

use std::env;
use std::ffi::{CString, OsStr, OsString};
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};

use nix::errno::Errno;
use nix::spawn::{PosixSpawnAttr, PosixSpawnFileActions, PosixSpawnFlags, posix_spawnp};
use nix::sys::signal::{SigSet, Signal};
use nix::unistd::Pid;

use super::relay;

/// What is started, and how it differs from us.
pub struct Start<'a> {
    /// A path, or a name to be looked for.
    pub program: &'a OsStr,
    /// The program's name for itself, and what it is given.
    pub arguments: &'a [OsString],
    /// In addition to our environment.
    pub environment: &'a [(&'a str, &'a str)],
    /// Standard input, output and error in place of ours.
    pub stdio: Option<&'a [OwnedFd; 3]>,
    /// Not handed on, although it has no flag that says so.
    pub closed: Option<RawFd>,
    /// In a process group of its own.
    pub own_group: bool,
}

/// Starts it. The error is execve(2)'s.
pub fn start(start: &Start<'_>) -> nix::Result<Pid> {
    let mut attributes = PosixSpawnAttr::init()?;
    let mut flags = PosixSpawnFlags::POSIX_SPAWN_SETSIGDEF | PosixSpawnFlags::POSIX_SPAWN_SETSIGMASK;
    if start.own_group {
        flags |= PosixSpawnFlags::POSIX_SPAWN_SETPGROUP;
        attributes.set_pgroup(Pid::from_raw(0))?;
    }
    attributes.set_flags(flags)?;
    attributes.set_sigmask(&SigSet::empty())?;
    // What else we were started with ignored (by nohup, say) stays so.
    attributes.set_sigdefault(&[Signal::SIGPIPE, Signal::SIGCHLD].into_iter().collect())?;
    let mut actions = PosixSpawnFileActions::init()?;
    for (target, fd) in (0..).zip(start.stdio.into_iter().flatten()) {
        actions.add_dup2(fd.as_raw_fd(), target)?;
    }
    if let Some(fd) = start.closed {
        actions.add_close(fd)?;
    }
    let program = c_string(start.program.as_bytes().to_vec())?;
    let arguments =
        start.arguments.iter().map(|word| c_string(word.clone().into_vec())).collect::<nix::Result<Vec<_>>>()?;
    posix_spawnp(&program, &actions, &attributes, &arguments, &environment(start.environment)?)
}

/// Ours, with some of it set anew.
fn environment(added: &[(&str, &str)]) -> nix::Result<Vec<CString>> {
    let is_ours = |name: &OsStr| name != relay::VARIABLE && added.iter().all(|(set, _)| name != *set);
    let kept = env::vars_os().filter(|(name, _)| is_ours(name));
    let added = added.iter().map(|(name, value)| (OsString::from(name), OsString::from(value)));
    kept.chain(added)
        .map(|(mut name, value)| {
            name.push("=");
            name.push(value);
            c_string(name.into_vec())
        })
        .collect()
}

fn c_string(bytes: Vec<u8>) -> nix::Result<CString> {
    CString::new(bytes).map_err(|_| Errno::EINVAL)
}
