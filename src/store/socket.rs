//! The rendezvous: where the daemon listens and everybody else connects.
//!
//! Owns: binding, finding and removing the socket. It must not know what is said on it, nor who may say it. Invariant:
//! nothing but a socket of ours is ever removed, and that only by whoever holds the daemon's lock; a path that does not
//! fit into an address is reached through the folder's handle or refused, never cut.

use std::fmt;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::fcntl::{AT_FDCWD, AtFlags};
use nix::sys::socket::{Backlog, UnixAddr, bind, connect as connect_fd, listen};
use nix::sys::stat::{FchmodatFlags, Mode, fchmodat, fstatat};
use nix::unistd::{UnlinkatFlags, unlinkat};

use crate::sys;

use super::check::{self, FileKind, Identity};
use super::dir::Dir;
use super::error::{Problem, StoreError};
use super::lock::Lock;
use super::paths::SOCKET;

/// Connections that may wait to be accepted, where the system allows as many; the acceptor never rests, so this is for
/// bursts.
const BACKLOG: i32 = 1024;

/// The pauses between two tries while the backlog is full: it tells nobody when it empties.
const PAUSE: Duration = Duration::from_millis(1);
const PAUSE_MAX: Duration = Duration::from_millis(20);

/// The daemon's end.
#[derive(Debug)]
pub struct Listener {
    listener: UnixListener,
    folder: Dir,
    identity: Identity,
}

impl Listener {
    /// Listens in the folder. The lock is the daemon's, so whatever socket lies there is of a daemon that is gone.
    pub fn bind(folder: &Dir, _lock: &Lock) -> Result<Self, StoreError> {
        let folder = folder.try_clone()?;
        let address = address(&folder)?;
        let failed = |errno| folder.error(SOCKET, bind_problem(errno));
        // First what can fail for want of descriptors: then the old socket stays.
        let fd = sys::stream_socket().map_err(failed)?;
        remove_stale(&folder)?;
        bind(fd.as_raw_fd(), &address).map_err(failed)?;
        // Looked at through the handle: had the path led elsewhere by now, nothing of ours would be here.
        let identity = folder.identity(SOCKET)?.ok_or_else(|| folder.error(SOCKET, Problem::Missing))?;
        let listener = Self { listener: UnixListener::from(fd), folder, identity };
        if let Err(error) = listener.open_for_others() {
            listener.unlink();
            return Err(error);
        }
        Ok(listener)
    }

    /// Mode 0600 before the first connection is possible.
    fn open_for_others(&self) -> Result<(), StoreError> {
        let failed = |errno| self.folder.errno(SOCKET, errno);
        if self.identity.kind != FileKind::Socket {
            return Err(self.folder.error(SOCKET, Problem::Unsafe(check::NOT_A_SOCKET)));
        }
        let mode = Mode::S_IRUSR | Mode::S_IWUSR;
        match fchmodat(&self.folder, SOCKET, mode, FchmodatFlags::NoFollowSymlink) {
            // An old C library has no such call; that it is no link was seen above.
            Err(Errno::EOPNOTSUPP) => fchmodat(&self.folder, SOCKET, mode, FchmodatFlags::FollowSymlink),
            done => done,
        }
        .map_err(failed)?;
        listen(&self.listener, Backlog::new(BACKLOG).unwrap_or(Backlog::MAXCONN)).map_err(failed)?;
        // So that a connection that is gone by the time it is accepted does not stop the acceptor.
        self.listener.set_nonblocking(true).map_err(|error| StoreError::io(self.folder.path().join(SOCKET), &error))
    }

    /// The next connection, blocking in its reads and writes; `WouldBlock` when there is none.
    pub fn accept(&self) -> io::Result<UnixStream> {
        let (stream, _) = self.listener.accept()?;
        // Some systems hand the listener's mode on.
        stream.set_nonblocking(false)?;
        Ok(stream)
    }

    /// The path, followed anew from its start, still leads to the socket that we bound. Where the system cannot tell it
    /// is taken to be there: binding again would remove it.
    pub fn is_ours_still(&self) -> bool {
        let path = self.folder.path().join(SOCKET);
        match fstatat(AT_FDCWD, &path, AtFlags::AT_SYMLINK_NOFOLLOW) {
            Ok(stat) => Identity::of(&stat) == self.identity,
            Err(errno) => !matches!(errno, Errno::ENOENT | Errno::ENOTDIR | Errno::ELOOP),
        }
    }

    /// Removes the socket, if it is still the one that we bound. Its number cannot pass to another while it is open.
    pub fn unlink(&self) {
        if self.folder.identity(SOCKET) == Ok(Some(self.identity)) {
            let _ = unlinkat(&self.folder, SOCKET, UnlinkatFlags::NoRemoveDir);
        }
    }
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.listener.as_fd()
    }
}

/// Why there is no connection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ConnectError {
    /// No socket: no daemon, or one that is about to listen.
    Absent,
    /// A socket of a daemon that is gone.
    NobodyListens,
    /// A daemon that accepted nothing until the deadline: busy or stopped, not dead.
    Busy,
    /// Something else is wrong with the path.
    Failed(StoreError),
}

impl fmt::Display for ConnectError {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Absent => out.write_str("no daemon is running"),
            Self::NobodyListens => out.write_str("no daemon listens any more"),
            Self::Busy => out.write_str("the daemon did not accept the connection in time"),
            Self::Failed(error) => error.fmt(out),
        }
    }
}

impl std::error::Error for ConnectError {}

/// Connects to the daemon that listens in the folder; waits while its backlog is full, at most for `patience`.
pub fn connect(folder: &Dir, patience: Duration) -> Result<UnixStream, ConnectError> {
    let failed = |errno| ConnectError::Failed(folder.errno(SOCKET, errno));
    match folder.identity(SOCKET).map_err(ConnectError::Failed)? {
        None => return Err(ConnectError::Absent),
        Some(found) if found.kind == FileKind::Socket => {}
        // A link would be followed, and a plain file would look like a daemon that is gone.
        Some(_) => return Err(ConnectError::Failed(folder.error(SOCKET, Problem::Unsafe(check::NOT_A_SOCKET)))),
    }
    let address = address(folder).map_err(ConnectError::Failed)?;
    let deadline = Instant::now() + patience;
    let stream = UnixStream::from(sys::stream_socket().map_err(failed)?);
    let set = |result: io::Result<()>| {
        result.map_err(|error| ConnectError::Failed(StoreError::io(folder.path().join(SOCKET), &error)))
    };
    set(stream.set_nonblocking(true))?;
    let mut pause = PAUSE;
    loop {
        match connect_fd(stream.as_raw_fd(), &address) {
            Ok(()) => break,
            Err(Errno::ENOENT) => return Err(ConnectError::Absent),
            Err(Errno::ECONNREFUSED) => return Err(ConnectError::NobodyListens),
            Err(Errno::EAGAIN | Errno::EINTR) => {
                let left = deadline.saturating_duration_since(Instant::now());
                if left.is_zero() {
                    return Err(ConnectError::Busy);
                }
                std::thread::sleep(pause.min(left));
                pause = (pause * 2).min(PAUSE_MAX);
            }
            Err(errno) => return Err(failed(errno)),
        }
    }
    set(stream.set_nonblocking(false))?;
    Ok(stream)
}

/// The socket's path, or a short one through the folder's handle where that does not fit (`sun_path`: 108 bytes on
/// Linux, 104 elsewhere).
fn address(folder: &Dir) -> Result<UnixAddr, StoreError> {
    let path = folder.path().join(SOCKET);
    UnixAddr::new(&path).or_else(|_| {
        sys::fd_path(folder.as_fd()).and_then(|short| UnixAddr::new(&short.join(SOCKET)).ok()).ok_or_else(|| {
            StoreError::new(path, Problem::Io(Errno::ENAMETOOLONG))
                .with_remedy("a socket needs a shorter path here: name another directory in USHER_DIR")
        })
    })
}

/// Removes what a daemon left that is gone; what is no socket of ours is named and stays.
fn remove_stale(folder: &Dir) -> Result<(), StoreError> {
    let stat = match fstatat(folder, SOCKET, AtFlags::AT_SYMLINK_NOFOLLOW) {
        Ok(stat) => stat,
        Err(Errno::ENOENT) => return Ok(()),
        Err(errno) => return Err(folder.errno(SOCKET, errno)),
    };
    if Identity::of(&stat).kind != FileKind::Socket {
        return Err(folder.error(SOCKET, Problem::Unsafe(check::NOT_A_SOCKET)));
    }
    check::owned(&stat).map_err(|problem| folder.error(SOCKET, problem))?;
    unlinkat(folder, SOCKET, UnlinkatFlags::NoRemoveDir).map_err(|errno| folder.errno(SOCKET, errno))
}

/// What a failed bind means: `EPERM` is how a file system says that it has no sockets (mknod(2)).
fn bind_problem(errno: Errno) -> Problem {
    match errno {
        Errno::ENOENT => Problem::Missing,
        Errno::EOPNOTSUPP | Errno::EPERM | Errno::ENOSYS | Errno::EAFNOSUPPORT => Problem::Unsupported(errno),
        errno => Problem::Io(errno),
    }
}

#[cfg(test)]
mod tests;
