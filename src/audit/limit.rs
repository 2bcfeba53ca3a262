//! How many facts of a kind get a line: a burst, then one now and then, and the others are counted.
//!
//! Pure: times come in. What was left out is told when [`TOLD_AFTER`] has passed, and at the end.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use jiff::Timestamp;

use crate::ids::CredentialId;

use super::fact::Fact;

/// How long what is left out is counted before a line tells it.
pub const TOLD_AFTER: Duration = Duration::from_secs(600);

/// Kinds that are kept without need: credentials times facts, of which few are ever busy.
const KINDS_KEPT: usize = 1_024;

/// Facts that are counted together.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Kind {
    /// The fact's word.
    pub fact: &'static str,
    /// Whose doing.
    pub credential: Option<CredentialId>,
    /// A finer word, where there is one.
    pub code: Option<&'static str>,
}

/// So many at once, and one more in each period.
#[derive(Debug, Clone, Copy)]
pub struct Rate {
    burst: u32,
    period: Duration,
}

impl Rate {
    /// Whoever polls with a short command each second would fill the files otherwise.
    pub const CONNECTION: Self = Self { burst: 128, period: Duration::from_secs(10) };
    /// Strangers and their like: the first tell enough.
    pub const REFUSAL: Self = Self { burst: 20, period: Duration::from_secs(60) };
    /// Every session there may be comes at once after a start.
    pub const SESSION: Self = Self { burst: 1_024, period: Duration::from_secs(10) };
    /// People and scripts of theirs, and what they are asked.
    pub const OPERATOR: Self = Self { burst: 256, period: Duration::from_secs(5) };
}

struct Bucket {
    rate: Rate,
    /// Lines that are left now.
    left: u32,
    /// Since when, for the next one.
    since: Instant,
    /// What has no line, since when, and when that is told.
    out: Option<Out>,
}

struct Out {
    count: u64,
    first: Timestamp,
    due: Instant,
}

impl Bucket {
    fn refill(&mut self, now: Instant) {
        let periods = now.saturating_duration_since(self.since).as_nanos() / self.rate.period.as_nanos().max(1);
        let periods = u32::try_from(periods).unwrap_or(u32::MAX);
        if self.left.saturating_add(periods) >= self.rate.burst {
            (self.left, self.since) = (self.rate.burst, now);
        } else {
            self.left += periods;
            self.since += self.rate.period * periods;
        }
    }

    fn is_idle(&self) -> bool {
        self.left == self.rate.burst && self.out.is_none()
    }
}

/// Whether a fact gets its line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// It does.
    Told,
    /// It is counted.
    Counted,
    /// It is counted, and the first one: somebody has to come back for the count.
    FirstCounted,
}

/// Every kind that was met lately.
#[derive(Default)]
pub struct Limiter(HashMap<Kind, Bucket>);

impl Limiter {
    /// Takes one line of the kind, or counts.
    pub fn admit(&mut self, kind: Kind, rate: Rate, now: Instant, at: Timestamp) -> Verdict {
        if self.0.len() >= KINDS_KEPT && !self.0.contains_key(&kind) {
            self.0.values_mut().for_each(|bucket| bucket.refill(now));
            self.0.retain(|_, bucket| !bucket.is_idle());
        }
        let bucket = self.0.entry(kind).or_insert(Bucket { rate, left: rate.burst, since: now, out: None });
        bucket.refill(now);
        if bucket.left > 0 {
            bucket.left -= 1;
            return Verdict::Told;
        }
        match &mut bucket.out {
            Some(out) => {
                out.count += 1;
                Verdict::Counted
            }
            None => {
                bucket.out = Some(Out { count: 1, first: at, due: now + TOLD_AFTER });
                Verdict::FirstCounted
            }
        }
    }

    /// When the next count is to be told.
    pub fn next(&self) -> Option<Instant> {
        self.0.values().filter_map(|bucket| bucket.out.as_ref().map(|out| out.due)).min()
    }

    /// The counts that are due, in no order.
    pub fn due(&mut self, now: Instant) -> Vec<Fact> {
        self.take(|out| out.due <= now)
    }

    /// All counts.
    pub fn rest(&mut self) -> Vec<Fact> {
        self.take(|_| true)
    }

    fn take(&mut self, is_wanted: impl Fn(&Out) -> bool) -> Vec<Fact> {
        let mut facts = Vec::new();
        for (kind, bucket) in &mut self.0 {
            if let Some(Out { count, first, .. }) = bucket.out.take_if(|out| is_wanted(out)) {
                let Kind { fact: of, credential, code } = *kind;
                facts.push(Fact::LeftOut { of, credential, code, count, since: first });
            }
        }
        facts
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KIND: Kind = Kind { fact: "refused", credential: None, code: Some("x") };
    const RATE: Rate = Rate { burst: 3, period: Duration::from_secs(10) };

    fn admit(limiter: &mut Limiter, now: Instant) -> Verdict {
        limiter.admit(KIND, RATE, now, Timestamp::UNIX_EPOCH)
    }

    #[test]
    fn a_burst_is_told_then_one_a_period_and_the_rest_is_counted_and_told_once() {
        let (mut limiter, start) = (Limiter::default(), Instant::now());
        for _ in 0..3 {
            assert_eq!(admit(&mut limiter, start), Verdict::Told);
        }
        assert_eq!(admit(&mut limiter, start), Verdict::FirstCounted);
        assert_eq!(admit(&mut limiter, start + Duration::from_secs(9)), Verdict::Counted);
        assert_eq!(admit(&mut limiter, start + Duration::from_secs(10)), Verdict::Told);
        assert_eq!(admit(&mut limiter, start + Duration::from_secs(11)), Verdict::Counted);
        assert_eq!(limiter.next(), Some(start + TOLD_AFTER));
        assert_eq!(limiter.due(start), []);
        let [Fact::LeftOut { of: "refused", credential: None, code: Some("x"), count: 3, .. }] =
            limiter.due(start + TOLD_AFTER)[..]
        else {
            panic!("not told")
        };
        assert_eq!((limiter.next(), limiter.rest()), (None, Vec::new()));
        let later = start + TOLD_AFTER;
        assert_eq!(
            [0; 4].map(|_| admit(&mut limiter, later)),
            [Verdict::Told, Verdict::Told, Verdict::Told, Verdict::FirstCounted]
        );
    }

    #[test]
    fn kinds_that_are_at_rest_are_forgotten() {
        let (mut limiter, start) = (Limiter::default(), Instant::now());
        for number in 0..3 * KINDS_KEPT {
            let mut id = [0; 16];
            id[..8].copy_from_slice(&(number as u64).to_le_bytes());
            let kind = Kind { credential: Some(CredentialId(id)), ..KIND };
            limiter.admit(kind, RATE, start + RATE.period * u32::try_from(number).unwrap(), Timestamp::UNIX_EPOCH);
        }
        assert!(limiter.0.len() <= KINDS_KEPT);
    }
}
