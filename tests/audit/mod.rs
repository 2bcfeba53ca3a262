//! The audit of real daemons: what stands in it, that nobody alters it unseen, and that nothing about it stops a daemon.

mod disk;
mod facts;
mod follow;
mod verify;

use std::fs;
use std::path::PathBuf;

use nix::sys::signal::Signal;
use serde_json::Value;

use crate::support::daemon::{Place, Ran};
use crate::support::wait::until;

/// Where the audit is.
fn file(place: &Place) -> PathBuf {
    place.path().join("audit.ndjson")
}

/// Every line there is, the old copy's first; bytes that are torn are none.
fn lines(place: &Place) -> Vec<Value> {
    let old = fs::read(place.path().join("audit.ndjson.1")).unwrap_or_default();
    let text = String::from_utf8([old, fs::read(file(place)).unwrap_or_default()].concat()).unwrap();
    text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect()
}

/// The first line of a fact behind line `seq`, when it has come.
fn line(place: &Place, fact: &str, seq: u64) -> Value {
    until(&format!("the audit has {fact} behind line {seq}"), || {
        let text = fs::read_to_string(file(place)).ok()?;
        let whole = text.rsplit_once('\n')?.0;
        let mut lines = whole.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
        lines.find(|line| line["fact"] == fact && line["seq"].as_u64().unwrap() > seq)
    })
}

/// The number of its last line, as the daemon knows it.
fn seq(place: &Place) -> u64 {
    place.json(&["rpc", "audit.head"])["result"]["seq"].as_u64().unwrap()
}

/// Stops the daemon and waits for its end.
fn stop(place: &mut Place) {
    place.signal_daemon(Signal::SIGTERM);
    assert_eq!(place.wait_daemon(), 0);
}

/// It verifies, against this.
fn verifies(place: &Place, against: &str) -> Value {
    let document = place.json(&["audit", "--verify"]);
    assert_eq!((&document["verified"], document["against"].as_str()), (&Value::Bool(true), Some(against)));
    document
}

/// It does not verify, for this reason.
fn fails(place: &Place, why: &str) -> Ran {
    let ran = place.run(&["audit", "--verify"]);
    assert_eq!((ran.code, ran.stdout.as_str()), (1, ""), "{ran:?}");
    assert!(ran.stderr.starts_with("usher: the audit does not verify: "), "{ran:?}");
    assert!(ran.stderr.contains(why), "says no {why:?}: {ran:?}");
    ran
}
