//! Times as people and the protocol write them.

use std::time::Duration;

use jiff::Timestamp;

use crate::error::{Exit, Failure};

/// The instant so long from now.
pub fn from_now(duration: Duration) -> Result<Timestamp, Failure> {
    Timestamp::now()
        .checked_add(duration)
        .map_err(|_| Failure::new(Exit::Usage, "usage", "--expires is too far in the future"))
}

/// Milliseconds, as parameters have them.
pub fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

/// The time since an instant in ms since 1970; none for one in the future.
pub fn since_ms(started: u64) -> Duration {
    let now = u64::try_from(Timestamp::now().as_millisecond()).unwrap_or(0);
    Duration::from_millis(now.saturating_sub(started))
}

/// A duration with its largest unit: `42s`, `17m`, `5h`, `12d`.
pub fn age(duration: Duration) -> String {
    let seconds = duration.as_secs();
    match seconds {
        0..60 => format!("{seconds}s"),
        60..3_600 => format!("{}m", seconds / 60),
        3_600..172_800 => format!("{}h", seconds / 3_600),
        _ => format!("{}d", seconds / 86_400),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_age_has_its_largest_unit() {
        for (seconds, text) in [(0, "0s"), (59, "59s"), (60, "1m"), (3_599, "59m"), (3_600, "1h"), (172_800, "2d")] {
            assert_eq!(age(Duration::from_secs(seconds)), text);
        }
    }
}
