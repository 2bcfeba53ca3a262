//! How many commands are pending anywhere, for the daemon's end: it waits for the last one.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Instant;

use crossbeam_channel::{Receiver, Sender, bounded};

/// How many commands are pending anywhere; tells when the last one ends, once somebody waits for that.
pub struct Pending {
    count: AtomicU64,
    none: (Sender<()>, Receiver<()>),
}

impl Default for Pending {
    fn default() -> Self {
        Self { count: AtomicU64::new(0), none: bounded(1) }
    }
}

impl Pending {
    /// One more.
    pub fn add(&self) {
        self.count.fetch_add(1, Relaxed);
    }

    /// One has ended.
    pub fn sub(&self) {
        if self.count.fetch_sub(1, Relaxed) == 1 {
            let _told_already = self.none.0.try_send(());
        }
    }

    /// Pending now.
    pub fn count(&self) -> u64 {
        self.count.load(Relaxed)
    }

    /// Waits until none is pending; `false` at the deadline.
    pub fn wait_none(&self, deadline: Instant) -> bool {
        while self.count() > 0 {
            if self.none.1.recv_deadline(deadline).is_err() {
                return self.count() == 0;
            }
        }
        true
    }
}
