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

/// What is promised for a machine with nothing else to do, on one that builds and runs other tests: twice as long, and
/// as many times longer again as each processor has tasks. What hangs is later than that.
pub fn promised(idle: Duration) -> Duration {
    let load = std::fs::read_to_string("/proc/loadavg").ok();
    let load = load.and_then(|text| text.split(' ').next()?.parse().ok()).unwrap_or(1.0_f64);
    let processors = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    idle.mul_f64(2.0 + (load / processors as f64).clamp(0.0, 10.0))
}
