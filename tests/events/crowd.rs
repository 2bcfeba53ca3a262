//! Many subscribers, those that go, and those that are sent away.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};

use serde_json::{Value, json};

use super::{Board, Subscriber, events, seq, seq_of};
use crate::support::daemon::Place;
use crate::support::peers::{Operator, registration};
use crate::support::quiet::Quiet;
use crate::support::threads;
use crate::support::wait::until;
use crate::support::wire::{Identity, Peer, is_shut};

/// A session that changes until the flag is set.
fn pouring(place: &Place) -> (std::thread::JoinHandle<()>, Arc<AtomicBool>) {
    let mut board = Board::new(place, "board");
    let over = Arc::new(AtomicBool::new(false));
    let is_over = Arc::clone(&over);
    let thread = threads::spawn("pour", move || {
        while !is_over.load(SeqCst) {
            board.pour(50);
        }
    });
    (thread, over)
}

#[test]
fn behind_the_answer_to_an_unsubscription_nothing_of_it_comes_while_events_pour() {
    let place = Place::with_daemon(&[]);
    let (pouring, over) = pouring(&place);
    let mut peer = Peer::connect(&Identity::of(&place, "caller"));
    for round in 0..50 {
        let subscription = peer.call("events.subscribe", &json!({}), None).unwrap().result["subscription"].clone();
        let mut heard = 0;
        while heard <= round % 5 {
            assert_eq!(peer.next().unwrap().header["params"]["subscription"], subscription);
            heard += 1;
        }
        let asked = peer.request("events.unsubscribe", &json!({ "subscription": subscription }), None);
        // What is in front of the answer is its own; behind it comes the fence alone.
        while peer.next().unwrap().id() != Some(asked) {}
        let fence = peer.request("session.list", &json!({}), None);
        assert_eq!(peer.next().unwrap().id(), Some(fence), "round {round}");
    }
    over.store(true, SeqCst);
    pouring.join().unwrap();
}

#[test]
fn a_subscriber_that_is_revoked_gets_not_a_byte_more_while_events_pour() {
    let place = Place::with_daemon(&[]);
    let mut operator = Operator::connect(&place);
    let (pouring, over) = pouring(&place);
    for round in 0..20 {
        let enrolled = operator.enroll(&place, "caller", &json!({}));
        let mut reads = Subscriber::new(&enrolled.identity, &json!({}));
        let mut sleeps = Subscriber::new(&enrolled.identity, &json!({"since": "start"}));
        for _ in 0..round % 4 {
            reads.next().unwrap();
        }
        operator.revoke(&enrolled.id).unwrap();
        assert!(is_shut(&reads.peer.stream.socket) && is_shut(&sleeps.peer.stream.socket), "round {round}");
        // Whatever the kernel had by then was said before; so it is all of what had happened by now.
        let head = operator.done("events.subscribe", &json!({"follow": false})).result["cursor"].clone();
        let head = seq_of(head.as_str().unwrap());
        for subscriber in [&mut reads, &mut sleeps] {
            while let Some(message) = subscriber.peer.next() {
                assert_ne!(message.method(), "closing");
                assert!(events(&message).iter().all(|event| seq(event) <= head));
            }
        }
        // The notification that the look above has ended.
        while operator.0.next().unwrap().header["params"].get("ended").is_none() {}
    }
    over.store(true, SeqCst);
    pouring.join().unwrap();
    until("no subscriber is left", || (operator.used("streams") == 0).then_some(()));
}

#[test]
fn more_subscriptions_than_there_are_streams_are_refused_and_a_place_is_free_as_soon_as_one_has_ended() {
    let place = Place::with_daemon(&["--limit", "streams=4"]);
    let mut peer = Peer::connect(&Identity::of(&place, "caller"));
    let subscribe = |peer: &mut Peer| peer.call("events.subscribe", &json!({}), None);
    let ids: Vec<Value> = (0..4).map(|_| subscribe(&mut peer).unwrap().result["subscription"].clone()).collect();
    let refused = subscribe(&mut peer).unwrap_err();
    assert_eq!((refused.code.as_str(), &refused.error["data"]["resource"]), ("busy", &json!("streams")));
    let mut other = Peer::connect(&Identity::of(&place, "operator"));
    assert_eq!(subscribe(&mut other).unwrap_err().code, "busy");
    peer.call("events.unsubscribe", &json!({"subscription": ids[0]}), None).unwrap();
    for _ in 0..50 {
        // In the place that is free: one that ends by itself, one that is ended.
        super::kept(&mut other, &json!({"since": "start"}));
        let again = subscribe(&mut peer).unwrap().result["subscription"].clone();
        peer.call("events.unsubscribe", &json!({ "subscription": again }), None).unwrap();
    }
    assert_eq!(subscribe(&mut other).map(|_| ()).map_err(|failure| failure.code), Ok(()));
    peer.hang_up();
    let mut operator = Operator(other);
    until("the places of a connection go with it", || (operator.used("streams") == 1).then_some(()));
}

#[test]
fn a_credential_that_is_no_default_has_a_quarter_of_the_streams() {
    let place = Place::with_daemon(&["--limit", "streams=8"]);
    let mut operator = Operator::connect(&place);
    let enrolled = operator.enroll(&place, "caller", &json!({}));
    let mut peer = Peer::connect(&enrolled.identity);
    for _ in 0..2 {
        peer.call("events.subscribe", &json!({}), None).unwrap();
    }
    let refused = peer.call("events.subscribe", &json!({}), None).unwrap_err();
    assert_eq!((refused.code.as_str(), &refused.error["data"]["resource"]), ("busy", &json!("streams")));
    operator.done("events.subscribe", &json!({}));
}

#[test]
fn a_thousand_subscribers_come_and_go_and_nothing_is_left_of_them() {
    const THREADS: usize = 4;
    let mut quiet = Quiet::new(&[]);
    let identity = Identity::of(&quiet.place, "caller");
    let mut steady = Subscriber::new(&identity, &json!({"kinds": ["session-registered", "session-updated"]}));
    let (poured, over) = pouring(&quiet.place);
    let mut before = None;
    for _ in 0..2 {
        let coming: Vec<_> = (0..THREADS)
            .map(|part| {
                let identity = identity.clone();
                threads::spawn("come and go", move || {
                    for number in (part..500).step_by(THREADS) {
                        let since = if number % 2 == 0 { json!({"since": "start"}) } else { json!({}) };
                        let mut subscriber = Subscriber::new(&identity, &since);
                        match number % 3 {
                            // At once, while it is told something.
                            0 => subscriber.peer.hang_up(),
                            1 => drop(subscriber.next().unwrap()),
                            _ => {
                                let id = subscriber.subscription;
                                let gone = json!({ "subscription": id });
                                subscriber.peer.call("events.unsubscribe", &gone, None).unwrap();
                            }
                        }
                    }
                })
            })
            .collect();
        coming.into_iter().for_each(|thread| thread.join().unwrap());
        before.get_or_insert_with(|| quiet.process.resident_kib());
    }
    over.store(true, SeqCst);
    poured.join().unwrap();
    let grown = quiet.grown_mib(before.unwrap());
    assert!(grown < 8, "{grown} MiB more after the second five hundred");
    let mut last = Board::of(&Identity::of(&quiet.place, "producer"), "last");
    last.update(&json!({"title": "the last"}));
    let events = steady.until(|event| event["title"] == "the last");
    let mut next = None;
    for event in events.iter().filter(|event| event["kind"] != "lagged") {
        assert!(next.is_none_or(|next| seq(event) >= next), "in order, whoever comes and goes");
        next = Some(seq(event) + 1);
    }
    drop((steady, last));
    quiet.is_as_before();
}

#[test]
fn a_subscriber_that_the_streams_have_no_room_for_can_still_do_everything_else() {
    let place = Place::with_daemon(&["--limit", "streams=1"]);
    let _first = Subscriber::operator(&place);
    let mut peer = Peer::connect(&Identity::of(&place, "caller"));
    assert_eq!(peer.call("events.subscribe", &json!({}), None).unwrap_err().code, "busy");
    let mut producer = Peer::connect(&Identity::of(&place, "producer"));
    producer.call("session.register", &registration("board", 1), None).unwrap();
    peer.call("session.get", &json!({"selector": {"title": "board"}}), None).unwrap();
}
