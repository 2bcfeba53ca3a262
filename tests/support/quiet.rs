//! A daemon, and that nothing is left of those who came and went.

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::daemon::Place;
use super::peers::Operator;
use super::process::Process;
use super::wait::until;

/// Threads that the daemon keeps for the next connections.
const PARKED: usize = 4;
/// A daemon with an operator, and what it was like before anybody else came.
pub struct Quiet {
    /// Who looks.
    pub operator: Operator,
    /// The daemon.
    pub process: Process,
    threads: usize,
    descriptors: usize,
    /// Its directory.
    pub place: Place,
}

impl Quiet {
    /// With limits, as `NAME=N`.
    pub fn new(limits: &[&str]) -> Self {
        let args: Vec<_> = limits.iter().flat_map(|limit| ["--limit", limit]).collect();
        let place = Place::with_daemon(&args);
        let mut operator = Operator::connect(&place);
        let process = Process(place.pid());
        until("nobody else is connected", || {
            (operator.status()["connections"]["open"].as_u64() == Some(1)).then_some(())
        });
        let (threads, descriptors) = (process.threads(), process.descriptors());
        Self { operator, process, threads, descriptors, place }
    }

    /// Nothing is held any more; to be asked when everybody else has gone.
    pub fn is_as_before(&mut self) {
        let mut last = Value::Null;
        let held = |status: &Value| -> Vec<String> {
            let accounts = status["accounts"].as_array().unwrap().iter();
            // We are an operator, and leases outlast their sessions on purpose.
            let counts = |name: &Value| name != "operators" && name != "leases";
            let used = accounts.filter(|account| account["used"] != 0 && counts(&account["name"]));
            let mut held: Vec<_> = used.map(|account| account["name"].to_string()).collect();
            for holder in status["credentials"].as_array().unwrap() {
                for name in ["sessions", "in_flight", "queued", "queued_bytes", "outbound_bytes"] {
                    if holder[name] != 0 {
                        held.push(format!("{name} of {}", holder["label"]));
                    }
                }
            }
            for (name, rest) in [("pending", 0), ("sessions", 0)] {
                if status[name] != rest {
                    held.push(name.to_owned());
                }
            }
            if status["connections"] != json!({"open": 1, "unfinished_hellos": 0}) {
                held.push(format!("connections {}", status["connections"]));
            }
            held
        };
        let begun = Instant::now();
        until("everything is given back", || {
            last = self.operator.status();
            let held = held(&last);
            assert!(begun.elapsed() < Duration::from_secs(20), "still held: {held:?}\n{last}");
            held.is_empty().then_some(())
        });
        until("every descriptor is closed", || (self.process.descriptors() == self.descriptors).then_some(()));
        until("threads are gone but the parked ones", || {
            (self.process.threads() <= self.threads + PARKED).then_some(())
        });
    }

    /// What is held of a bound, and was.
    pub fn account(&mut self, name: &str) -> Value {
        let status = self.operator.status();
        status["accounts"].as_array().unwrap().iter().find(|account| account["name"] == name).unwrap().clone()
    }

    /// How much more memory it uses than it did.
    pub fn grown_mib(&self, before_kib: u64) -> u64 {
        self.process.resident_kib().saturating_sub(before_kib) / 1024
    }
}
