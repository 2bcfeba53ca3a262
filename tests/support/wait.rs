//! Waiting for a condition, with a deadline and a word on what was waited for.

use std::time::{Duration, Instant};

/// The longest that anything may take before a test fails: generous, machines are shared.
pub const PATIENCE: Duration = Duration::from_secs(30);

/// Asks again until there is an answer.
pub fn until<T>(what: &str, ask: impl FnMut() -> Option<T>) -> T {
    within(PATIENCE, what, ask)
}

/// The same with another deadline, for promises that name one.
pub fn within<T>(patience: Duration, what: &str, mut ask: impl FnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + patience;
    loop {
        if let Some(answer) = ask() {
            return answer;
        }
        assert!(Instant::now() < deadline, "waited {patience:?} in vain: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}
