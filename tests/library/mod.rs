//! The library as a program uses it, against the real daemon.

#![expect(clippy::unwrap_used, reason = "a helper that fails is a test that fails")]

mod caller;
mod events;
mod producer;

use std::time::{Duration, Instant};

use usher::client::{Caller, ConnectionState, Description, Producer, Selector, StartDaemon, Target};

use super::support::daemon::{Place, USHERD};
use super::support::wait::PATIENCE;

fn target(place: &Place) -> Target {
    Target::dir(place.path()).unwrap()
}

fn caller(place: &Place) -> Caller {
    Caller::connect(&target(place)).unwrap()
}

/// A session that is open.
fn open(place: &Place, description: Description) -> Producer {
    let description = description.cwd("/").start_daemon(StartDaemon::Program(USHERD.into()));
    let producer = Producer::new(target(place), description).unwrap();
    producer.start().unwrap();
    wait_for(&producer, ConnectionState::Open);
    producer
}

fn wait_for(producer: &Producer, state: ConnectionState) {
    let is_there = producer.wait_for(state, Instant::now() + PATIENCE);
    assert!(is_there, "the connection is {:?}, not {state:?}", producer.state());
}

fn titled(title: &str) -> Selector {
    Selector { title: Some(title.to_owned()), ..Selector::default() }
}

/// A deadline that nothing here needs.
const LONG: Duration = Duration::from_secs(60);
