//! The daemon's end, as subscribers are told.

use nix::sys::signal::Signal;
use serde_json::{Value, json};

use super::{Board, Subscriber, events, kinds, seq};
use crate::support::daemon::Place;
use crate::support::peers::{Caller, Operator, Producer};
use crate::support::wire::Identity;

/// Everything that still comes: the events, and the reason of the `closing` that must be the last.
fn to_the_end(subscriber: &mut Subscriber) -> (Vec<Value>, Option<String>) {
    let (mut seen, mut closing) = (Vec::new(), None);
    while let Some(message) = subscriber.peer.next() {
        assert!(closing.is_none(), "something came behind closing: {message:?}");
        match message.method() {
            "events" => seen.extend(events(&message)),
            "closing" => closing = Some(message.header["params"]["reason"].as_str().unwrap().to_owned()),
            other => panic!("{other}"),
        }
    }
    (seen, closing)
}

#[test]
fn the_end_is_told_first_and_last_with_nothing_behind_it() {
    let mut place = Place::with_daemon(&[]);
    let mut one = Subscriber::operator(&place);
    let mut other = Subscriber::new(&Identity::of(&place, "caller"), &json!({"kinds": ["session-gone"]}));
    let producer = Producer::start(&place, "held");
    let caller = Caller::connect(&place);
    let held = caller.start(&producer.session, "hold", None);
    producer.nth("hold", 1);
    let asker = Caller::connect(&place);
    asker.0.request("approval.request", &json!({"summary": "now?"}), None);
    one.until(|event| event["kind"] == "awaiting-approval");
    let mut operator = Operator::connect(&place);
    operator.done("daemon.stop", &json!({"force": true}));
    // What is pending has its time: it is answered now.
    let asked = producer.nth("hold", 1);
    producer.release(asked.id, crate::support::peers::Reply::Result(None));
    let (seen, closing) = to_the_end(&mut one);
    let own: Vec<_> = kinds(&seen).into_iter().filter(|kind| *kind != "connection").collect();
    assert_eq!(own.first(), Some(&"shutdown-requested"));
    assert_eq!(own.last(), Some(&"shutdown-complete"));
    assert!(own.contains(&"approval-decided"), "what ended with the daemon is told: {own:?}");
    let last = seen.last().unwrap();
    assert_eq!(last["kind"], "shutdown-complete", "nothing is behind it, no connection that ended either");
    assert_eq!((&last["reason"], &last["undelivered"]), (&json!("stop"), &json!(0)));
    assert_eq!(closing.as_deref(), Some("stop"));
    let (seen, closing) = to_the_end(&mut other);
    assert_eq!(kinds(&seen), ["shutdown-requested", "shutdown-complete"]);
    assert_eq!(closing.as_deref(), Some("stop"));
    assert_eq!(place.wait_daemon(), 0);
    drop((caller, held));
}

#[test]
fn one_that_does_not_read_takes_the_end_from_nobody_and_what_it_did_not_get_is_counted() {
    let mut place = Place::with_daemon(&["--limit", "shutdown-ms=500"]);
    let mut board = Board::new(&place, "board");
    let identity = Identity::of(&place, "operator");
    let mut sleeper = Subscriber::new(&identity, &json!({"kinds": ["session-updated"]}));
    let mut reader = Subscriber::new(&identity, &json!({}));
    board.pour(3_000);
    place.signal_daemon(Signal::SIGTERM);
    let (seen, closing) = to_the_end(&mut reader);
    let end: Vec<_> = seen.iter().filter(|event| event["kind"].as_str().unwrap().starts_with("shutdown")).collect();
    assert_eq!(
        (end.len(), &end[0]["kind"], &end[1]["kind"]),
        (2, &json!("shutdown-requested"), &json!("shutdown-complete"))
    );
    assert_eq!((seen.last().unwrap(), closing.as_deref()), (end[1], Some("signal")));
    assert_eq!(place.wait_daemon(), 0);
    let (got, closing) = to_the_end(&mut sleeper);
    assert!(!kinds(&got).contains(&"shutdown-complete") && closing.is_none());
    let not_got = 3_000 + 1 - got.len() as u64;
    let undelivered = end[1]["undelivered"].as_u64().unwrap();
    assert!(0 < undelivered && undelivered <= not_got, "{undelivered} of {not_got}");
}

#[test]
fn a_subscription_at_any_moment_of_the_end_is_refused_or_told_of_it() {
    for round in 0..10 {
        let mut place = Place::with_daemon(&["--limit", "shutdown-ms=500"]);
        let identity = Identity::of(&place, "caller");
        let mut peers: Vec<_> = (0..4).map(|_| crate::support::wire::Peer::connect(&identity)).collect();
        let place_pid = nix::unistd::Pid::from_raw(i32::try_from(place.pid()).unwrap());
        for (number, peer) in peers.iter().enumerate() {
            if number == round % 4 {
                nix::sys::signal::kill(place_pid, Signal::SIGTERM).unwrap();
            }
            let _gone = peer.outgoing().lock().request("events.subscribe", &json!({"since": "start"}), None);
        }
        for peer in &mut peers {
            let (mut is_subscribed, mut is_told) = (false, false);
            while let Some(message) = peer.next() {
                match message.method() {
                    "" => is_subscribed = message.header.get("result").is_some(),
                    "events" => is_told |= kinds(&events(&message)).contains(&"shutdown-complete"),
                    _ => {}
                }
            }
            assert!(!is_subscribed || is_told, "a subscriber was not told of the end, round {round}");
        }
        assert_eq!(place.wait_daemon(), 0);
    }
}

#[test]
fn the_cursor_of_the_end_is_one_to_go_on_from() {
    let mut place = Place::with_daemon(&[]);
    let mut subscriber = Subscriber::operator(&place);
    place.signal_daemon(Signal::SIGTERM);
    let (seen, _) = to_the_end(&mut subscriber);
    assert_eq!(place.wait_daemon(), 0);
    place.start_daemon(&[]);
    let params = json!({"since": seen.last().unwrap()["cursor"]});
    let mut subscriber = Subscriber::new(&Identity::of(&place, "operator"), &params);
    let told = subscriber.next().unwrap();
    assert_eq!((&told[0]["kind"], &told[0]["reason"], seq(&told[0])), (&json!("lagged"), &json!("restart"), 0));
}
