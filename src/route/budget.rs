//! What one session holds, whatever connection its producer has: lasts as long as the session's lease.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// A session's counters.
#[derive(Debug, Default)]
pub struct Budget {
    in_flight: AtomicU64,
    queued: AtomicU64,
    queued_bytes: AtomicU64,
    rejected: AtomicU64,
}

/// What a session holds at a moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Held {
    /// Commands at its producer.
    pub in_flight: u64,
    /// Commands in its queue.
    pub queued: u64,
    /// Bytes of their inputs.
    pub queued_bytes: u64,
    /// Commands that were refused, since the session has its lease.
    pub rejected: u64,
}

/// A command in the queue; given back when dropped.
#[derive(Debug)]
pub struct Place {
    budget: Arc<Budget>,
    bytes: u64,
}

impl Budget {
    /// What is held now.
    pub fn held(&self) -> Held {
        Held {
            in_flight: self.in_flight.load(Relaxed),
            queued: self.queued.load(Relaxed),
            queued_bytes: self.queued_bytes.load(Relaxed),
            rejected: self.rejected.load(Relaxed),
        }
    }

    /// One more in the queue.
    pub fn queue(self: &Arc<Self>, bytes: u64) -> Place {
        self.queued.fetch_add(1, Relaxed);
        self.queued_bytes.fetch_add(bytes, Relaxed);
        Place { budget: Arc::clone(self), bytes }
    }

    /// One more at the producer.
    pub fn start(&self) {
        self.in_flight.fetch_add(1, Relaxed);
    }

    /// One of them has ended.
    pub fn settle(&self) {
        self.in_flight.fetch_sub(1, Relaxed);
    }

    /// One more was refused.
    pub fn reject(&self) {
        self.rejected.fetch_add(1, Relaxed);
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.budget.queued.fetch_sub(1, Relaxed);
        self.budget.queued_bytes.fetch_sub(self.bytes, Relaxed);
    }
}
