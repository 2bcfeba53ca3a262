//! Linux: paths through `/proc`, peers by `SO_PEERCRED`, folders watched by inotify.

use std::ffi::OsStr;
use std::fs::File;
use std::io::Read;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::Duration;

use nix::errno::Errno;
use nix::sys::inotify::{AddWatchFlags, InitFlags, Inotify};
use nix::sys::socket::sockopt::PeerCredentials;
use nix::sys::socket::{AddressFamily, MsgFlags, SockFlag, SockType, getsockopt, socket};
use nix::sys::stat::{major, minor};

/// A send that raises no SIGPIPE.
pub const NO_SIGNAL: MsgFlags = MsgFlags::MSG_NOSIGNAL;

/// Bytes of `/proc/locks` that are read at most: some ten thousand locks, and the answer is only for people.
const LOCKS_MAX_BYTES: u64 = 1024 * 1024;

/// Looks at `/proc/locks` before nobody is said to hold a lock. The kernel tells it in pieces, and between two of them
/// passes over a line when one before it goes away; each look asks for pieces of another size.
const LOCKS_LOOKS: usize = 8;
const LOCKS_PIECE_BYTES: usize = 700;

/// A short path that leads to what `fd` holds open; none where `/proc` is not mounted.
pub fn fd_path(fd: BorrowedFd<'_>) -> Option<PathBuf> {
    let path = PathBuf::from(format!("/proc/self/fd/{}", fd.as_raw_fd()));
    path.symlink_metadata().is_ok().then_some(path)
}

/// A Unix stream socket that no child inherits.
pub fn stream_socket() -> nix::Result<OwnedFd> {
    socket(AddressFamily::Unix, SockType::Stream, SockFlag::SOCK_CLOEXEC, None)
}

/// The uid that the other end had when it connected (or when it listened).
pub fn peer_uid(stream: &impl AsFd) -> nix::Result<u32> {
    getsockopt(stream, PeerCredentials).map(|peer| peer.uid())
}

/// The pid that the other end had when it connected: to be shown, never acted on.
pub fn peer_pid(stream: &impl AsFd) -> Option<u32> {
    // 0 stands for a process outside our pid namespace.
    let pid = getsockopt(stream, PeerCredentials).ok()?.pid();
    u32::try_from(pid).ok().filter(|pid| *pid != 0)
}

/// Who holds the flock on an inode, as the kernel tells it: to be shown, never acted on.
pub fn lock_holder(dev: nix::libc::dev_t, ino: nix::libc::ino_t) -> Option<u32> {
    let inode = format!("{:02x}:{:02x}:{ino}", major(dev), minor(dev));
    (1..=LOCKS_LOOKS).find_map(|look| {
        let mut table = String::with_capacity(look * LOCKS_PIECE_BYTES);
        File::open("/proc/locks").ok()?.take(LOCKS_MAX_BYTES).read_to_string(&mut table).ok()?;
        holder_in(&table, &inode)
    })
}

/// The pid in the line of `/proc/locks` for this inode. A waiter's line has `->` before the kind and is passed over.
fn holder_in(table: &str, inode: &str) -> Option<u32> {
    table.lines().find_map(|line| {
        let mut words = line.split_ascii_whitespace().skip(1);
        let (kind, _advisory, _access) = (words.next()?, words.next()?, words.next()?);
        let (pid, place) = (words.next()?, words.next()?);
        if kind == "FLOCK" && place == inode { pid.parse().ok().filter(|pid| *pid != 0) } else { None }
    })
}

/// Renames to a name that must not exist yet (`EEXIST`), in one step where the file system can.
#[cfg(target_env = "gnu")]
pub fn rename_new(from: (BorrowedFd<'_>, &OsStr), to: (BorrowedFd<'_>, &OsStr)) -> nix::Result<()> {
    use nix::fcntl::{RenameFlags, renameat2};
    match renameat2(from.0, from.1, to.0, to.1, RenameFlags::RENAME_NOREPLACE) {
        Err(Errno::EINVAL | Errno::ENOSYS | Errno::EOPNOTSUPP) => super::rename_after_look(from, to),
        done => done,
    }
}

/// Renames to a name that must not exist yet (`EEXIST`).
#[cfg(not(target_env = "gnu"))]
pub fn rename_new(from: (BorrowedFd<'_>, &OsStr), to: (BorrowedFd<'_>, &OsStr)) -> nix::Result<()> {
    super::rename_after_look(from, to)
}

/// Tells when names in a folder come and go. Without a watch (inotify instances are few) it asks to be polled.
#[derive(Debug)]
pub struct Watch(Option<Inotify>);

impl Watch {
    /// Watches the folder that `fd` holds open; `path` is where it stands, for systems without `/proc`.
    pub fn new(fd: BorrowedFd<'_>, path: &Path) -> Self {
        let seen = AddWatchFlags::IN_ONLYDIR
            | AddWatchFlags::IN_CREATE
            | AddWatchFlags::IN_DELETE
            | AddWatchFlags::IN_MOVE
            | AddWatchFlags::IN_DELETE_SELF
            | AddWatchFlags::IN_MOVE_SELF;
        let path = fd_path(fd).unwrap_or_else(|| path.to_owned());
        let watch = Inotify::init(InitFlags::IN_CLOEXEC | InitFlags::IN_NONBLOCK)
            .and_then(|inotify| inotify.add_watch(&path, seen).map(|_| inotify));
        Self(watch.ok())
    }

    /// Readable when something happened; none when the folder has to be looked at by time.
    pub fn fd(&self) -> Option<BorrowedFd<'_>> {
        self.0.as_ref().map(AsFd::as_fd)
    }

    /// How long to wait at most before looking; none when [`Watch::fd`] tells.
    pub fn poll_timeout(&self) -> Option<Duration> {
        self.0.is_none().then_some(super::LOOK_EVERY)
    }

    /// Takes what was told; true when it is time to look at the folder.
    pub fn drain(&self) -> bool {
        let Some(inotify) = &self.0 else { return true };
        let mut told = false;
        loop {
            match inotify.read_events() {
                Ok(events) if !events.is_empty() => told = true,
                Err(Errno::EINTR) => {}
                Err(Errno::EAGAIN) => return told,
                Ok(_) | Err(_) => return true,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicBool;
    use std::sync::atomic::Ordering::SeqCst;

    use nix::fcntl::{Flock, FlockArg};

    use super::*;

    #[test]
    fn the_holder_of_a_lock_is_read_from_its_own_line() {
        let table = "1: POSIX  ADVISORY  WRITE 11 fe:00:77 0 EOF\n\
                     2: FLOCK  ADVISORY  WRITE 12 fe:00:777 0 EOF\n\
                     3: -> FLOCK  ADVISORY  WRITE 13 fe:00:77 0 EOF\n\
                     4: FLOCK  ADVISORY  WRITE 14 fe:00:77 0 EOF\n";
        assert_eq!(holder_in(table, "fe:00:77"), Some(14));
        assert_eq!(holder_in(table, "fe:00:7"), None);
        assert_eq!(holder_in("1: FLOCK  ADVISORY  WRITE 0 fe:00:77 0 EOF\n", "fe:00:77"), None);
        assert_eq!(holder_in("1: FLOCK\n\nnonsense", "fe:00:77"), None);
    }

    #[test]
    fn the_holder_of_a_lock_is_named_while_others_come_and_go() {
        let folder = std::env::temp_dir().join(format!("usher-locks-{:x}", u64::from_ne_bytes(crate::ids::random())));
        std::fs::create_dir(&folder).unwrap();
        let lock = |number: usize| {
            let file = File::create(folder.join(number.to_string())).unwrap();
            Flock::lock(file, FlockArg::LockExclusiveNonblock).map_err(|(_, errno)| errno).unwrap()
        };
        let held: Vec<_> = (0..200).map(lock).collect();
        let stats = held.iter().map(|file| nix::sys::stat::fstat(&**file).unwrap());
        // A kernel that tells of no locks at all is no matter here.
        let told: Vec<_> = stats.filter(|stat| lock_holder(stat.st_dev, stat.st_ino).is_some()).collect();
        let is_over = AtomicBool::new(false);
        let missed = std::thread::scope(|scope| {
            for number in 200..202 {
                let (lock, is_over) = (&lock, &is_over);
                scope.spawn(move || {
                    while !is_over.load(SeqCst) {
                        drop(lock(number));
                    }
                });
            }
            let own = Some(std::process::id());
            let looks = told.iter().cycle().take(2_000);
            let missed = looks.filter(|stat| lock_holder(stat.st_dev, stat.st_ino) != own).count();
            is_over.store(true, SeqCst);
            missed
        });
        std::fs::remove_dir_all(&folder).unwrap();
        assert_eq!(missed, 0);
    }

    #[test]
    fn a_descriptor_has_a_path_that_leads_to_it() {
        let null = File::open("/dev/null").unwrap();
        let path = fd_path(null.as_fd()).unwrap();
        assert_eq!(std::fs::read_link(path).unwrap(), Path::new("/dev/null"));
    }
}
