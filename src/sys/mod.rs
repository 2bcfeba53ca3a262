//! What differs between systems, each behind one name with a plain fallback.
//!
//! Owns: the calls that Linux has and others do not. It must not know files, names or limits of ours, and uses nothing
//! else of this crate but `threads`. Invariant: every descriptor it makes is close-on-exec, and a fallback is never less safe, only
//! slower or less telling.

#[cfg(target_os = "linux")]
mod linux;
#[cfg(target_os = "linux")]
mod linux_processes;
#[cfg(not(target_os = "linux"))]
mod other;
#[cfg(not(target_os = "linux"))]
mod other_processes;

#[cfg(target_os = "linux")]
pub use linux::{NO_SIGNAL, Watch, fd_path, lock_holder, peer_pid, peer_uid, rename_new, stream_socket};
#[cfg(target_os = "linux")]
pub use linux_processes::{LOOK_AT_CHILDREN, Signals, has_ended, ignores, pipe, process_started, reap, stop_of};
#[cfg(not(target_os = "linux"))]
pub use other::{NO_SIGNAL, Watch, fd_path, lock_holder, peer_pid, peer_uid, rename_new, stream_socket};
#[cfg(not(target_os = "linux"))]
pub use other_processes::{LOOK_AT_CHILDREN, Signals, has_ended, ignores, pipe, process_started, reap, stop_of};

use std::ffi::OsStr;
use std::os::fd::BorrowedFd;
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;
use std::time::Duration;

use nix::errno::Errno;
use nix::fcntl::{AtFlags, renameat};
use nix::sys::signal::Signal;
use nix::sys::stat::fstatat;
use nix::sys::wait::WaitStatus;

/// How often a folder is looked at where nothing tells of changes.
const LOOK_EVERY: Duration = Duration::from_secs(5);

/// A signal that was taken in place of being acted on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Arrived {
    /// Which.
    pub signal: Signal,
    /// From where; none where the system does not tell.
    pub origin: Option<Origin>,
}

/// Who made a signal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Origin {
    /// A process, by its pid, sent it to us.
    Process(u32),
    /// The kernel: a key at the terminal, a terminal that went away. The whole foreground group has it.
    Kernel,
}

/// What job control did to a child.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stop {
    /// It is stopped.
    Stopped,
    /// It runs again.
    Continued,
}

/// As wait(2) tells it; none for a child that goes on.
fn exit_status(status: WaitStatus) -> Option<ExitStatus> {
    match status {
        WaitStatus::Exited(_, code) => Some(ExitStatus::from_raw(code << 8)),
        WaitStatus::Signaled(_, signal, _) => Some(ExitStatus::from_raw(signal as i32)),
        _ => None,
    }
}

/// A rename that looks first. Not atomic: enough where only we write to the folder, or the new name is random.
fn rename_after_look(from: (BorrowedFd<'_>, &OsStr), to: (BorrowedFd<'_>, &OsStr)) -> nix::Result<()> {
    match fstatat(to.0, to.1, AtFlags::AT_SYMLINK_NOFOLLOW) {
        Ok(_) => Err(Errno::EEXIST),
        Err(Errno::ENOENT) => renameat(from.0, from.1, to.0, to.1),
        Err(errno) => Err(errno),
    }
}

#[cfg(test)]
mod tests {
    use std::fs::{self, File};
    use std::os::fd::AsFd;
    use std::os::unix::net::UnixStream;

    use super::*;

    #[test]
    fn the_kernel_names_the_peer_of_a_socket() {
        let (ours, _theirs) = UnixStream::pair().unwrap();
        assert_eq!(peer_uid(&ours), Ok(nix::unistd::geteuid().as_raw()));
        if let Some(pid) = peer_pid(&ours) {
            assert_eq!(pid, std::process::id());
        }
    }

    #[test]
    fn a_rename_to_a_new_name_never_overwrites() {
        let folder = std::env::temp_dir().join(format!("usher-sys-{:x}", u64::from_ne_bytes(crate::ids::random())));
        fs::create_dir(&folder).unwrap();
        File::create(folder.join("a")).unwrap();
        File::create(folder.join("b")).unwrap();
        let handle = File::open(&folder).unwrap();
        let at = |name| (handle.as_fd(), OsStr::new(name));
        assert_eq!(rename_new(at("a"), at("b")), Err(Errno::EEXIST));
        assert_eq!(rename_after_look(at("a"), at("b")), Err(Errno::EEXIST));
        assert_eq!(rename_new(at("a"), at("c")), Ok(()));
        assert_eq!(rename_after_look(at("c"), at("d")), Ok(()));
        assert!(folder.join("d").exists() && folder.join("b").exists());
        fs::remove_dir_all(&folder).unwrap();
    }

    #[test]
    fn a_watch_tells_of_a_removed_file_or_asks_to_be_polled() {
        let folder = std::env::temp_dir().join(format!("usher-sys-{:x}", u64::from_ne_bytes(crate::ids::random())));
        fs::create_dir(&folder).unwrap();
        File::create(folder.join("a")).unwrap();
        let handle = File::open(&folder).unwrap();
        let watch = Watch::new(handle.as_fd(), &folder);
        assert_eq!(watch.fd().is_none(), watch.poll_timeout().is_some());
        let quiet = watch.drain();
        fs::remove_file(folder.join("a")).unwrap();
        assert!(watch.drain());
        if watch.fd().is_some() {
            assert!(!quiet && !watch.drain());
        }
        fs::remove_dir_all(&folder).unwrap();
    }
}
