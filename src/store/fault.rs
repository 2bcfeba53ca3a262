//! Where a test can have the daemon killed: between any two steps that a crash must not confuse.
//!
//! Only a build with debug assertions has it; in a release build [`point`] is empty and no variable is read.

/// Ends the process as `kill -9` would, where `USHER_FIXTURE_KILL` is `WHAT/STEP/N` and this is the `N`th time here.
#[cfg(debug_assertions)]
pub fn point(what: &str, step: &str) {
    use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
    static PASSED: AtomicU32 = AtomicU32::new(0);
    let Ok(wanted) = std::env::var("USHER_FIXTURE_KILL") else { return };
    let Some((place, number)) = wanted.rsplit_once('/') else { return };
    if place.split_once('/') == Some((what, step)) && number.parse() == Ok(PASSED.fetch_add(1, Relaxed) + 1) {
        let _ended = nix::sys::signal::raise(nix::sys::signal::Signal::SIGKILL);
    }
}

/// Nothing.
#[cfg(not(debug_assertions))]
pub fn point(_what: &str, _step: &str) {}
