//! What a daemon leaves last: how it is seen to be gone.

use std::thread::sleep;
use std::time::{Duration, Instant};

use crate::client::Target;
use crate::store::paths::{LOCK, SOCKET};
use crate::store::{Dir, Identity};
use crate::sys;

/// The pauses between two looks.
const PAUSE: Duration = Duration::from_millis(5);
const PAUSE_MAX: Duration = Duration::from_millis(100);

/// What shows that a daemon is there: its socket, and who holds the lock where the system tells. Looked at only, since
/// taking the lock would stand in the way of a daemon that starts.
pub struct Traces {
    root: Option<Dir>,
    folder: Option<Dir>,
    socket: Option<Identity>,
    holder: Option<u32>,
}

impl Traces {
    /// Of the daemon that is there now.
    pub fn of(target: &Target) -> Self {
        let root = target.paths().and_then(|paths| Dir::open(paths.root()).ok());
        let folder = Dir::open(&target.socket_folder()).ok();
        let mut traces = Self { root, folder, socket: None, holder: None };
        (traces.socket, traces.holder) = (traces.socket(), traces.holder());
        traces
    }

    fn socket(&self) -> Option<Identity> {
        self.folder.as_ref()?.identity(SOCKET).ok()?
    }

    fn holder(&self) -> Option<u32> {
        let lock = self.root.as_ref()?.identity(LOCK).ok()??;
        sys::lock_holder(lock.dev, lock.ino)
    }

    /// Whether it is there yet. The lock goes last, and its holder is the better witness: the socket of the next daemon may
    /// have the same number on the disk.
    fn are_there(&self) -> bool {
        match self.holder {
            Some(_) => self.holder() == self.holder,
            None => self.socket.is_some() && self.socket() == self.socket,
        }
    }

    /// Waits until they are gone.
    pub fn are_gone(&self, deadline: Instant) -> bool {
        let mut pause = PAUSE;
        loop {
            if !self.are_there() {
                return true;
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return false;
            }
            sleep(pause.min(left));
            pause = (pause * 2).min(PAUSE_MAX);
        }
    }
}
