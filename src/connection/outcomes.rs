//! One log line for each connection's end, and a bound on how many: whoever knocks without end must not fill the disk.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

/// Lines of one reason in a window.
const BURST: u32 = 20;
const WINDOW: Duration = Duration::from_secs(60);

struct Seen {
    since: Instant,
    told: u32,
    untold: u64,
}

/// How connections ended.
#[derive(Default)]
pub struct Outcomes(Mutex<BTreeMap<&'static str, Seen>>);

impl Outcomes {
    /// Tells one, or counts it: `reason` is one of a fixed set.
    pub fn tell(&self, reason: &'static str, line: impl FnOnce() -> String) {
        let now = Instant::now();
        let mut reasons = self.0.lock();
        let seen = reasons.entry(reason).or_insert(Seen { since: now, told: 0, untold: 0 });
        if now.duration_since(seen.since) >= WINDOW {
            if seen.untold > 0 {
                log::info!("{} more connections: {reason}", seen.untold);
            }
            *seen = Seen { since: now, told: 0, untold: 0 };
        }
        if seen.told == BURST {
            seen.untold += 1;
            return;
        }
        seen.told += 1;
        let more = if seen.told == BURST { "; more of these are only counted for a minute" } else { "" };
        drop(reasons);
        log::info!("{}{more}", line());
    }
}
