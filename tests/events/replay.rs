//! From a cursor on: once each, or told what is missing.

use nix::sys::signal::Signal;
use serde_json::{Value, json};

use super::{Board, Subscriber, kept, kinds, seq};
use crate::support::daemon::Place;
use crate::support::wire::{Identity, Peer};

#[test]
fn a_subscriber_that_comes_back_with_its_cursor_sees_each_event_once() {
    let place = Place::with_daemon(&[]);
    let mut board = Board::new(&place, "board");
    let caller = Identity::of(&place, "caller");
    let params = json!({"kinds": ["session-updated"]});
    let mut seen = Vec::new();
    let mut since: Option<String> = None;
    for round in 0..10 {
        let mut params = params.clone();
        if let Some(cursor) = &since {
            params["since"] = json!(cursor);
        }
        let mut subscriber = Subscriber::new(&caller, &params);
        since.get_or_insert_with(|| subscriber.cursor.clone());
        board.pour(20);
        // Goes away somewhere in between.
        while seen.len() < 20 * round + 11 {
            seen.extend(subscriber.next().unwrap());
        }
        since = Some(seen.last().unwrap()["cursor"].as_str().unwrap().to_owned());
        subscriber.peer.hang_up();
    }
    let mut peer = Peer::connect(&caller);
    let mut params = params;
    params["since"] = json!(since.unwrap());
    seen.extend(kept(&mut peer, &params));
    assert_eq!(seen.len(), 200);
    params["since"] = json!("start");
    assert_eq!(seen, kept(&mut peer, &params), "the feed has the same");
}

#[test]
fn what_five_thousand_updates_have_pushed_out_is_a_gap_with_its_exact_number() {
    let place = Place::with_daemon(&[]);
    let mut board = Board::new(&place, "board");
    let mut peer = Peer::connect(&Identity::of(&place, "operator"));
    let cursor = peer.call("events.subscribe", &json!({}), None).unwrap().result["cursor"].clone();
    let subscription = 1;
    peer.call("events.unsubscribe", &json!({"subscription": subscription}), None).unwrap();
    let from = super::seq_of(cursor.as_str().unwrap());
    board.pour(5_000);
    let seen = kept(&mut peer, &json!({"since": cursor}));
    let last = from + 5_000;
    assert_eq!((&seen[0]["kind"], &seen[0]["reason"]), (&json!("lagged"), &json!("age")));
    let missed = seen[0]["missed"].as_u64().unwrap();
    assert_eq!((missed, seq(&seen[0])), (5_000 - 4_096, last - 4_096));
    assert_eq!(seen[1..].iter().map(seq).collect::<Vec<_>>(), (last - 4_095..=last).collect::<Vec<_>>());
    // Whoever goes on from the gap is told nothing twice.
    let again = kept(&mut peer, &json!({"since": seen[0]["cursor"]}));
    assert_eq!(again, seen[1..]);
    let start = kept(&mut peer, &json!({"since": "start"}));
    assert_eq!(start, seen[1..], "the start is that of what is kept, and no gap");
    // The number counts what this subscriber would not have seen as well.
    let narrow = kept(&mut peer, &json!({"since": cursor, "kinds": ["paired"]}));
    assert_eq!((kinds(&narrow), &narrow[0]["missed"]), (vec!["lagged"], &json!(missed)));
}

#[test]
fn a_cursor_of_the_daemon_before_is_told_as_a_gap_and_then_everything_that_the_next_one_knows() {
    let mut place = Place::with_daemon(&[]);
    let caller = Identity::of(&place, "caller");
    let mut board = Board::new(&place, "board");
    let mut subscriber = Subscriber::new(&caller, &json!({"kinds": ["session-updated"]}));
    board.pour(3);
    let seen = subscriber.take(3);
    for signal in [Signal::SIGKILL, Signal::SIGTERM] {
        place.signal_daemon(signal);
        place.wait_daemon();
        place.start_daemon(&[]);
        let mut next = Board::new(&place, "next");
        next.pour(2);
        let mut subscriber = Subscriber::new(&caller, &json!({"since": seen[2]["cursor"]}));
        let told: Vec<Value> = subscriber.until(|event| event["kind"] == "session-updated" && seq(event) >= 4);
        let told: Vec<_> = told.iter().filter(|event| event["kind"] != "connection").cloned().collect();
        assert_eq!(kinds(&told), ["lagged", "session-registered", "session-updated", "session-updated"]);
        assert_eq!((&told[0]["reason"], told[0].get("missed"), seq(&told[0])), (&json!("restart"), None, 0));
        let generation = |event: &Value| event["cursor"].as_str().unwrap().split(':').next().unwrap().to_owned();
        assert!(told.iter().all(|event| generation(event) == generation(&told[0])));
        assert_ne!(generation(&told[0]), generation(&seen[0]));
        // From the gap's own cursor there is no gap.
        let mut peer = Peer::connect(&caller);
        let again = kept(&mut peer, &json!({"since": told[0]["cursor"], "kinds": ["session-updated"]}));
        assert_eq!(again, told[2..]);
    }
}

#[test]
fn what_cannot_be_followed_is_refused_and_holds_nothing() {
    let place = Place::with_daemon(&[]);
    let mut peer = Peer::connect(&Identity::of(&place, "caller"));
    let generation = Subscriber::operator(&place).cursor.split(':').next().unwrap().to_owned();
    let ahead = format!("{generation}:1000000");
    for params in [
        json!({"kinds": ["connexion"]}),
        json!({"kinds": ["lagged", ""]}),
        json!({"kinds": "lagged"}),
        json!({"since": ""}),
        json!({"since": "end"}),
        json!({"since": 5}),
        json!({"since": generation}),
        json!({"since": format!("{generation}:-1")}),
        json!({ "since": ahead }),
        json!({"selector": {"session": "abc"}}),
        json!({"selector": {"cwd": "here"}}),
        json!({"selector": null}),
        json!({"follow": "no"}),
        json!({"from": "start"}),
    ] {
        let failure = peer.call("events.subscribe", &params, None).unwrap_err();
        assert_eq!(failure.code, "invalid-params", "{params}");
    }
    let told = peer.call("events.subscribe", &json!({"kinds": ["connexion"]}), None).unwrap_err();
    assert!(told.error["message"].as_str().unwrap().contains("session-registered"), "{}", told.error);
    assert_eq!(peer.call("events.unsubscribe", &json!({"subscription": 1}), None).unwrap_err().code, "invalid-params");
    let mut operator = crate::support::peers::Operator::connect(&place);
    crate::support::wait::until("nothing is held", || (operator.used("streams") == 0).then_some(()));
}
