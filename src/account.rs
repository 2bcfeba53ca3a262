//! Everything that is held against a bound, charged when it is taken and given back exactly once.
//!
//! A [`Pool`] is one bound; a [`Charge`] is what somebody holds of a total and of his share of it, and gives back when
//! it is dropped. Running out is told with the pool's name and harms nothing that is held.

use std::sync::Arc;
use std::sync::atomic::{
    AtomicU64, AtomicUsize,
    Ordering::{Relaxed, SeqCst},
};
use std::time::Instant;

use parking_lot::{Condvar, Mutex};

/// A bound and what is used of it.
#[derive(Debug)]
pub struct Pool {
    name: &'static str,
    limit: u64,
    used: AtomicU64,
    peak: AtomicU64,
    refused: AtomicU64,
    waiting: AtomicUsize,
    turn: Mutex<()>,
    freed: Condvar,
}

/// What a pool holds now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Usage {
    /// The pool.
    pub name: &'static str,
    /// Held now.
    pub used: u64,
    /// The most that was ever held.
    pub peak: u64,
    /// The bound.
    pub limit: u64,
    /// How often it was reached.
    pub refused: u64,
}

/// A pool has not that much left.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Full {
    /// Everybody together holds too much of it.
    Total(&'static str),
    /// The one who asks does.
    Share(&'static str),
}

impl Full {
    /// What is exhausted.
    pub fn resource(self) -> &'static str {
        match self {
            Self::Total(name) | Self::Share(name) => name,
        }
    }
}

impl Pool {
    /// An empty pool.
    pub fn new(name: &'static str, limit: u64) -> Arc<Self> {
        Arc::new(Self {
            name,
            limit,
            used: AtomicU64::new(0),
            peak: AtomicU64::new(0),
            refused: AtomicU64::new(0),
            waiting: AtomicUsize::new(0),
            turn: Mutex::new(()),
            freed: Condvar::new(),
        })
    }

    /// What it holds now.
    pub fn usage(&self) -> Usage {
        Usage {
            name: self.name,
            used: self.used.load(Relaxed),
            peak: self.peak.load(Relaxed),
            limit: self.limit,
            refused: self.refused.load(Relaxed),
        }
    }

    /// Held now.
    pub fn used(&self) -> u64 {
        self.used.load(Relaxed)
    }

    /// Whether somebody waits for others to give back.
    pub fn is_waited_for(&self) -> bool {
        self.waiting.load(Relaxed) > 0
    }

    fn add(&self, amount: u64) -> Option<()> {
        let taken =
            self.used.fetch_update(Relaxed, Relaxed, |used| used.checked_add(amount).filter(|&sum| sum <= self.limit));
        match taken {
            Ok(before) => {
                self.peak.fetch_max(before + amount, Relaxed);
                Some(())
            }
            Err(_) => {
                self.refused.fetch_add(1, Relaxed);
                None
            }
        }
    }

    fn sub(&self, amount: u64) {
        self.used.fetch_sub(amount, SeqCst);
        if self.waiting.load(SeqCst) > 0 {
            // Whoever waits looks under the lock: taking it orders this with a look that has just failed.
            drop(self.turn.lock());
            self.freed.notify_all();
        }
    }
}

/// What is held of a total and of one holder's share; given back when dropped.
#[derive(Debug)]
pub struct Charge {
    total: Arc<Pool>,
    share: Arc<Pool>,
    amount: u64,
}

impl Charge {
    /// Takes from both or from neither.
    pub fn take(total: &Arc<Pool>, share: &Arc<Pool>, amount: u64) -> Result<Self, Full> {
        share.add(amount).ok_or(Full::Share(share.name))?;
        if total.add(amount).is_none() {
            share.sub(amount);
            return Err(Full::Total(total.name));
        }
        Ok(Self { total: Arc::clone(total), share: Arc::clone(share), amount })
    }

    /// The same, but waits for others to give back, until the deadline. For a reader, which holds its peer back thereby.
    pub fn take_by(total: &Arc<Pool>, share: &Arc<Pool>, amount: u64, deadline: Instant) -> Result<Self, Full> {
        loop {
            let full = match Self::take(total, share, amount) {
                // For what is larger than the whole pool there will never be room.
                Err(full) if amount > total.limit.min(share.limit) => return Err(full),
                Ok(charge) => return Ok(charge),
                Err(full) => full,
            };
            let pool = match full {
                Full::Total(_) => total,
                Full::Share(_) => share,
            };
            pool.waiting.fetch_add(1, SeqCst);
            let mut turn = pool.turn.lock();
            let room = pool.used.load(SeqCst).saturating_add(amount) <= pool.limit;
            let late = !room && pool.freed.wait_until(&mut turn, deadline).timed_out();
            drop(turn);
            pool.waiting.fetch_sub(1, SeqCst);
            if late {
                return Err(full);
            }
        }
    }

    /// How much is held.
    pub fn amount(&self) -> u64 {
        self.amount
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        self.total.sub(self.amount);
        self.share.sub(self.amount);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_charge_takes_from_both_pools_or_from_neither_and_gives_back_once() {
        let (total, share) = (Pool::new("total", 10), Pool::new("share", 4));
        let first = Charge::take(&total, &share, 3).unwrap();
        assert_eq!(Charge::take(&total, &share, 2).unwrap_err(), Full::Share("share"));
        assert_eq!((total.used(), share.used()), (3, 3));
        let other = Pool::new("other", 100);
        assert_eq!(Charge::take(&total, &other, 8).unwrap_err(), Full::Total("total"));
        assert_eq!((total.used(), other.used()), (3, 0));
        drop(first);
        assert_eq!((total.used(), share.used(), total.usage().peak), (0, 0, 3));
        assert_eq!((share.usage().refused, total.usage().refused), (1, 1));
    }

    #[test]
    fn who_waits_for_room_gets_it_when_another_gives_back_and_is_refused_at_its_deadline() {
        let (total, share) = (Pool::new("total", 10), Pool::new("share", 10));
        let held = Charge::take(&total, &share, 8).unwrap();
        let soon = Instant::now() + std::time::Duration::from_millis(20);
        assert_eq!(Charge::take_by(&total, &share, 5, soon).unwrap_err(), Full::Share("share"));
        let (pool, other) = (Arc::clone(&total), Pool::new("other", 10));
        let waiting = crate::threads::spawn("test", move || {
            let later = Instant::now() + std::time::Duration::from_secs(30);
            Charge::take_by(&pool, &other, 5, later).map(|charge| charge.amount())
        })
        .unwrap();
        while total.waiting.load(SeqCst) == 0 {
            std::thread::yield_now();
        }
        drop(held);
        assert_eq!(waiting.join().unwrap(), Ok(5));
    }
}
