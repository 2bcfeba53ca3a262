//! One thread that wakes at the next deadline, and not before: command deadlines, expiries, stale sessions.
//!
//! Arming is one atomic comparison unless the new alarm is the earliest. Without anything due the thread sleeps for good.

use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};

use super::lane::millis;

const NONE: u64 = u64::MAX;
/// An alarm that rings so late rang in a process that did not run.
const AWAY: Duration = Duration::from_secs(3);

/// When to look again.
pub struct Clock {
    start: Instant,
    /// ms after `start`, or none.
    armed: AtomicU64,
    ended: Mutex<bool>,
    changed: Condvar,
}

impl Default for Clock {
    fn default() -> Self {
        Self { start: Instant::now(), armed: AtomicU64::new(NONE), ended: Mutex::new(false), changed: Condvar::new() }
    }
}

impl Clock {
    /// Makes sure that somebody looks at this time.
    pub fn alarm(&self, at: Instant) {
        // Rounded up: an alarm a little late finds what is due, one too early would find nothing.
        let at = millis(at.saturating_duration_since(self.start)) + 1;
        if self.armed.fetch_min(at, SeqCst) > at {
            // The lock orders this with a thread that has just read `armed` and is about to sleep.
            drop(self.ended.lock());
            self.changed.notify_one();
        }
    }

    /// Ends [`Clock::run`].
    pub fn end(&self) {
        *self.ended.lock() = true;
        self.changed.notify_one();
    }

    /// Calls `look` at each alarm; it returns when to look again. `was_away` says that this process was stopped meanwhile.
    pub fn run(&self, mut look: impl FnMut(Instant, bool) -> Option<Instant>) {
        let mut was_away = false;
        loop {
            let mut ended = self.ended.lock();
            loop {
                if *ended {
                    return;
                }
                let armed = self.armed.load(SeqCst);
                if armed == NONE {
                    self.changed.wait(&mut ended);
                    continue;
                }
                let due = self.start + Duration::from_millis(armed);
                let now = Instant::now();
                if due <= now {
                    was_away |= now - due > AWAY;
                    break;
                }
                self.changed.wait_until(&mut ended, due);
            }
            drop(ended);
            self.armed.store(NONE, SeqCst);
            if let Some(next) = look(Instant::now(), std::mem::take(&mut was_away)) {
                self.alarm(next);
            }
        }
    }
}
