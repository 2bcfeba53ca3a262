//! Whether the daemon has anything left to stay for: what the registry cannot know by itself.
//!
//! Owns: how many peers are let in, when the last one left, and whether a successor waits. Nothing that a stranger does
//! gets here: only a hello whose proof was verified counts.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::SeqCst};
use std::time::{Duration, Instant};

use super::clock::Clock;
use super::lane::millis;

/// Shared by workers and the registry.
pub struct Quiescence {
    clock: Arc<Clock>,
    started: Instant,
    /// How long a daemon stays with nothing to do; `None`: for ever.
    idle_exit: Option<Duration>,
    /// How old it has to be before it makes room for a successor.
    settled: Duration,
    connected: AtomicUsize,
    /// ms after the start at which something last kept it.
    kept_ms: AtomicU64,
    has_successor: AtomicBool,
}

/// What a quiescent daemon does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// Stay; look again then, if there is a time.
    Stay(Option<Instant>),
    /// Go: nobody has needed it for long.
    Idle,
    /// Go: a newer one waits.
    Successor,
}

impl Quiescence {
    /// Just started.
    pub fn new(clock: Arc<Clock>, idle_exit: Option<Duration>, settled: Duration) -> Self {
        let started = Instant::now();
        if let Some(idle_exit) = idle_exit {
            clock.alarm(started + idle_exit);
        }
        Self {
            clock,
            started,
            idle_exit,
            settled,
            connected: AtomicUsize::new(0),
            kept_ms: AtomicU64::new(0),
            has_successor: AtomicBool::new(false),
        }
    }

    /// A peer was let in.
    pub fn connected(&self) {
        self.connected.fetch_add(1, SeqCst);
    }

    /// It has left.
    pub fn disconnected(&self) {
        self.kept();
        self.connected.fetch_sub(1, SeqCst);
    }

    /// Something has kept the daemon until now.
    pub fn kept(&self) {
        self.kept_ms.fetch_max(millis(self.started.elapsed()), SeqCst);
        if let Some(idle_exit) = self.idle_exit {
            self.clock.alarm(Instant::now() + idle_exit);
        }
    }

    /// A newer daemon is wanted, by a producer that has proved itself and cannot speak with this one.
    pub fn successor_waits(&self) {
        if !self.has_successor.swap(true, SeqCst) {
            log::info!("a window of a newer version waits for this daemon to end");
            self.clock.alarm(Instant::now());
        }
    }

    /// What to do, with no session, command or approval left.
    pub fn judge(&self, now: Instant) -> Verdict {
        if self.has_successor.load(SeqCst) {
            let settled = self.started + self.settled;
            return if now >= settled { Verdict::Successor } else { Verdict::Stay(Some(settled)) };
        }
        let Some(idle_exit) = self.idle_exit else { return Verdict::Stay(None) };
        // Whoever is connected comes first, and whoever leaves is seen to have been there.
        if self.connected.load(SeqCst) > 0 {
            return Verdict::Stay(None);
        }
        let due = self.started + Duration::from_millis(self.kept_ms.load(SeqCst)) + idle_exit;
        if now >= due { Verdict::Idle } else { Verdict::Stay(Some(due)) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SETTLED: Duration = Duration::from_secs(30);

    fn quiescence(idle_exit: Option<Duration>) -> Quiescence {
        Quiescence::new(Arc::new(Clock::default()), idle_exit, SETTLED)
    }

    #[test]
    fn a_daemon_with_nothing_to_do_goes_after_its_time_and_not_while_somebody_is_there() {
        let minute = Duration::from_secs(60);
        let quiescence = quiescence(Some(minute));
        let start = quiescence.started;
        assert_eq!(quiescence.judge(start + minute / 2), Verdict::Stay(Some(start + minute)));
        assert_eq!(quiescence.judge(start + minute), Verdict::Idle);
        quiescence.connected();
        assert_eq!(quiescence.judge(start + 10 * minute), Verdict::Stay(None));
        quiescence.disconnected();
        assert_eq!(quiescence.judge(start + 10 * minute), Verdict::Idle);
    }

    #[test]
    fn a_daemon_that_is_to_stay_stays() {
        let quiescence = quiescence(None);
        assert_eq!(quiescence.judge(quiescence.started + Duration::from_secs(1_000_000)), Verdict::Stay(None));
    }

    #[test]
    fn a_successor_ends_even_one_that_is_to_stay_but_none_that_has_just_started() {
        let quiescence = quiescence(None);
        quiescence.connected();
        quiescence.successor_waits();
        let settled = quiescence.started + SETTLED;
        assert_eq!(quiescence.judge(quiescence.started), Verdict::Stay(Some(settled)));
        assert_eq!(quiescence.judge(settled), Verdict::Successor, "who is connected without a session does not matter");
    }
}
