//! Who does not read is left behind and told so; nobody else notices.

use std::time::{Duration, Instant};

use serde_json::json;

use super::{Board, Subscriber, seq};
use crate::support::peers::{Caller, Producer};
use crate::support::quiet::Quiet;
use crate::support::threads;
use crate::support::wait::promised;
use crate::support::wire::Identity;

/// Updates while nobody reads.
const EVENTS: u64 = 100_000;

/// 99 of 100 round trips took no longer.
fn p99(mut times: Vec<Duration>) -> Duration {
    times.sort();
    times[times.len() * 99 / 100]
}

#[test]
fn who_does_not_read_a_hundred_thousand_events_costs_nothing_and_hears_exactly_how_many_it_missed() {
    let mut quiet = Quiet::new(&[]);
    let mut board = Board::new(&quiet.place, "board");
    let echo = Producer::start(&quiet.place, "echo");
    let mut caller = Caller::connect(&quiet.place);
    let mut round_trip = || {
        let begun = Instant::now();
        caller.send(&echo.session, "echo", Some(b"1")).unwrap();
        begun.elapsed()
    };
    let undisturbed = p99((0..500).map(|_| round_trip()).collect());
    let identity = Identity::of(&quiet.place, "operator");
    let mut sleeper = Subscriber::new(&identity, &json!({"kinds": ["session-updated"]}));
    // The list for replay is full, and the sleeper's socket too.
    board.pour(10_000);
    let resident = quiet.process.resident_kib();
    let pouring = threads::spawn("pour", move || {
        board.pour(EVENTS - 10_000);
        board
    });
    let mut times = Vec::new();
    while !pouring.is_finished() || times.len() < 100 {
        times.push(round_trip());
    }
    let mut board = pouring.join().unwrap();
    let disturbed = p99(times);
    let bound = (5 * undisturbed).max(promised(Duration::from_millis(100)));
    assert!(disturbed <= bound, "{disturbed:?} in place of {undisturbed:?}");
    let grown = quiet.grown_mib(resident);
    assert!(grown < 4, "{grown} MiB more");
    assert!(quiet.account("outbound-bytes")["used"].as_u64().unwrap() < 256 * 1024);

    // It wakes: what its socket held, the gap, what is kept, and then what happens now.
    board.update(&json!({"title": "last"}));
    let events = sleeper.until(|event| event["title"] == "last");
    let from = super::seq_of(&sleeper.cursor);
    let (mut next, mut missed, mut seen) = (from + 1, 0, 0);
    for event in &events {
        if event["kind"] == "lagged" {
            assert_eq!(event["reason"], "slow");
            let gone = event["missed"].as_u64().unwrap();
            assert_eq!(seq(event), next + gone - 1, "the gap's cursor is that of the last that is missing");
            missed += gone;
            next += gone;
        } else {
            assert_eq!(seq(event), next, "in order, none twice, none missing but what was told");
            seen += 1;
            next += 1;
        }
    }
    assert_eq!(missed + seen, EVENTS + 1);
    assert!(missed > EVENTS / 2 && seen >= 4_096, "{missed} missed, {seen} seen");
    drop((sleeper, board, echo, caller));
    quiet.is_as_before();
}

#[test]
fn one_that_reads_slowly_keeps_up_with_what_is_kept_or_is_told_and_never_sees_a_thing_twice() {
    let quiet = Quiet::new(&[]);
    let mut board = Board::new(&quiet.place, "board");
    let identity = Identity::of(&quiet.place, "caller");
    let mut subscriber = Subscriber::new(&identity, &json!({"kinds": ["session-updated"]}));
    let pouring = threads::spawn("pour", move || {
        board.pour(20_000);
        board.update(&json!({"title": "last"}));
    });
    let mut next = super::seq_of(&subscriber.cursor) + 1;
    loop {
        let events = subscriber.next().unwrap();
        for event in &events {
            next = if event["kind"] == "lagged" { next + event["missed"].as_u64().unwrap() - 1 } else { next };
            assert_eq!(seq(event), next);
            next += 1;
        }
        if events.iter().any(|event| event["title"] == "last") {
            break;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    pouring.join().unwrap();
}
