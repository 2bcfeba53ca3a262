//! Systems that are not Linux: `getpeereid`, and folders that are looked at every few seconds.

use std::ffi::OsStr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::Duration;

use nix::fcntl::{FcntlArg, FdFlag, fcntl};
use nix::sys::socket::{AddressFamily, MsgFlags, SockFlag, SockType, socket};

/// There is no such flag here: a program that takes SIGPIPE back from the standard library's setting gets it.
pub const NO_SIGNAL: MsgFlags = MsgFlags::empty();

/// No path leads to a descriptor here.
pub fn fd_path(_fd: BorrowedFd<'_>) -> Option<PathBuf> {
    None
}

/// A Unix stream socket that no child inherits (but for one forked between these two calls, where there is no flag).
pub fn stream_socket() -> nix::Result<OwnedFd> {
    let fd = socket(AddressFamily::Unix, SockType::Stream, SockFlag::empty(), None)?;
    fcntl(&fd, FcntlArg::F_SETFD(FdFlag::FD_CLOEXEC))?;
    Ok(fd)
}

/// The uid that the other end had when it connected (or when it listened).
pub fn peer_uid(stream: &impl AsFd) -> nix::Result<u32> {
    nix::unistd::getpeereid(stream).map(|(uid, _)| uid.as_raw())
}

/// The pid of the other end is not told here.
pub fn peer_pid(_stream: &impl AsFd) -> Option<u32> {
    None
}

/// The holder of a flock is not told here.
pub fn lock_holder(_dev: nix::libc::dev_t, _ino: nix::libc::ino_t) -> Option<u32> {
    None
}

/// Renames to a name that must not exist yet (`EEXIST`).
pub fn rename_new(from: (BorrowedFd<'_>, &OsStr), to: (BorrowedFd<'_>, &OsStr)) -> nix::Result<()> {
    super::rename_after_look(from, to)
}

/// Asks for a folder to be looked at by time.
#[derive(Debug)]
pub struct Watch;

impl Watch {
    /// Nothing is watched; the folder is polled.
    pub fn new(_fd: BorrowedFd<'_>, _path: &Path) -> Self {
        Self
    }

    /// Never a descriptor here.
    pub fn fd(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    /// How long to wait at most before looking.
    pub fn poll_timeout(&self) -> Option<Duration> {
        Some(super::LOOK_EVERY)
    }

    /// It is always time to look.
    pub fn drain(&self) -> bool {
        true
    }
}
