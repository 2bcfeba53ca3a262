//! What the programs under test find of signals.

use std::fs;
use std::sync::{Arc, Once};

use nix::sys::signal::Signal;

/// What was ignored when the tests were started (`nohup`, a script's `&`) would be ignored by all that they start. It is
/// handled instead, by doing nothing: that is not handed on, and the tests live on as before.
pub fn hand_none_on() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
        let ignored = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
        let ignored = ignored.map_or(0, |set| u64::from_str_radix(set.trim(), 16).unwrap());
        for signal in [Signal::SIGHUP, Signal::SIGINT, Signal::SIGQUIT, Signal::SIGTERM] {
            let number = signal as i32;
            if ignored & (1 << (number - 1)) != 0 {
                signal_hook::flag::register(number, Arc::default()).unwrap();
            }
        }
    });
}
