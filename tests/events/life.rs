//! Every kind, in order, and in the feed before the answer to what caused it.

use data_encoding::BASE64URL_NOPAD;
use serde_json::{Value, json};

use super::{Board, Subscriber, kept, kinds, seq};
use crate::support::daemon::Place;
use crate::support::peers::{Operator, registration};
use crate::support::threads;
use crate::support::wire::{Identity, Peer, sha256};

/// All kinds that have one cause each, which is answered.
const ANSWERED: [&str; 10] = [
    "session-registered",
    "session-updated",
    "session-gone",
    "runtimes-detected",
    "paired",
    "unpaired",
    "credential-revoked",
    "awaiting-approval",
    "approval-decided",
    "stale-approval-decision",
];

/// What the feed got since it was looked at last.
struct Watcher {
    peer: Peer,
    cursor: String,
}

impl Watcher {
    fn new(place: &Place) -> Self {
        let mut peer = Peer::connect(&Identity::of(place, "operator"));
        let cursor = peer.call("events.subscribe", &json!({"follow": false}), None).unwrap().result["cursor"].clone();
        assert!(super::events(&peer.next().unwrap()).is_empty());
        Self { peer, cursor: cursor.as_str().unwrap().to_owned() }
    }

    fn new_ones(&mut self) -> Vec<Value> {
        let events = kept(&mut self.peer, &json!({"since": self.cursor, "kinds": ANSWERED}));
        if let Some(last) = events.last() {
            last["cursor"].as_str().unwrap().clone_into(&mut self.cursor);
        }
        events
    }

    /// Exactly these, now.
    #[track_caller]
    fn sees(&mut self, expected: &[&str]) -> Vec<Value> {
        let events = self.new_ones();
        assert_eq!(kinds(&events), expected, "{events:?}");
        events
    }
}

fn decide(operator: &mut Peer, place: &Place, id: &str, text: &str, decision: &str) -> crate::support::wire::Answer {
    let challenge: Value = serde_json::from_slice(&operator.lines.challenge).unwrap();
    let bytes = |text: &str| BASE64URL_NOPAD.decode(text.as_bytes()).unwrap();
    let generation = bytes(challenge["challenge"]["generation"].as_str().unwrap());
    let said: [&[u8]; 5] =
        [b"usher/1 decision\n", &generation, &bytes(id), &sha256(text.as_bytes()), &[u8::from(decision == "approved")]];
    let signature = Identity::of(place, "operator").key.sign(&said);
    let params = json!({"approval_id": id, "decision": decision, "signature": signature, "reason": "because"});
    operator.call("approval.decide", &params, None)
}

#[test]
fn a_whole_life_is_told_in_order_and_before_the_answers_to_what_caused_it() {
    let place = Place::with_daemon(&[]);
    let mut operator = Operator::connect(&place);
    let mut watcher = Watcher::new(&place);

    let enrolled = operator.enroll(&place, "producer", &json!({"label": "agent"}));
    let told = watcher.sees(&["paired"]);
    assert_eq!((&told[0]["credential"], &told[0]["label"]), (&json!(enrolled.id), &json!("agent")));
    assert_eq!((&told[0]["role"], &told[0]["by"]), (&json!("producer"), &json!(operator.credentials("operator")[0])));

    let mut producer = Peer::connect(&enrolled.identity);
    let mut params = registration("board", 1);
    params["runtimes"] = json!([{"id": "claude", "version": "1"}]);
    let session = producer.call("session.register", &params, None).unwrap().result["session_id"].clone();
    let told = watcher.sees(&["session-registered", "runtimes-detected"]);
    let mut registered = told[0].clone();
    for name in ["cursor", "ts"] {
        registered.as_object_mut().unwrap().remove(name).unwrap();
    }
    let pid = std::process::id();
    let expected = json!({
        "kind": "session-registered", "session_id": session, "title": "board", "cwd": "/tmp", "pid": pid,
        "credential": enrolled.id, "resumed": false,
    });
    assert_eq!(registered, expected);
    assert_eq!(told[1]["runtimes"], json!([{"id": "claude", "version": "1"}]));

    producer.call("session.update", &json!({"title": "new", "snapshot": true}), Some(b"1")).unwrap();
    let told = watcher.sees(&["session-updated"]);
    assert_eq!((&told[0]["title"], &told[0]["changed"]), (&json!("new"), &json!(["title", "snapshot"])));
    producer.call("session.update", &json!({"runtimes": []}), None).unwrap();
    let told = watcher.sees(&["session-updated", "runtimes-detected"]);
    assert_eq!(told[1]["runtimes"], json!([]));
    // What is refused did not happen.
    producer.call("session.update", &json!({"title": ""}), None).unwrap_err();
    watcher.sees(&[]);

    let mut asker = Peer::connect(&Identity::of(&place, "caller"));
    let question = json!({"summary": "apply?", "session_id": session});
    asker.request("approval.request", &question, None);
    let approval = asker.next().unwrap().header["params"]["approval_id"].as_str().unwrap().to_owned();
    let told = watcher.sees(&["awaiting-approval"]);
    assert_eq!((&told[0]["approval_id"], &told[0]["summary"]), (&json!(approval), &json!("apply?")));
    assert_eq!((&told[0]["session_id"], &told[0]["label"]), (&session, &json!("caller")));
    let listed = operator.done("approval.list", &json!({})).payload.unwrap();
    let listed: Vec<Value> = serde_json::from_slice(&listed).unwrap();
    let text = listed[0]["text"].as_str().unwrap();
    decide(&mut operator.0, &place, &approval, text, "approved").unwrap();
    let told = watcher.sees(&["approval-decided"]);
    assert_eq!((&told[0]["decision"], &told[0]["reason"]), (&json!("approved"), &json!("because")));
    assert_eq!(told[0]["by"]["label"], "operator");
    decide(&mut operator.0, &place, &approval, text, "rejected").unwrap_err();
    let told = watcher.sees(&["stale-approval-decision"]);
    assert_eq!((&told[0]["decision"], &told[0]["reason"]), (&json!("rejected"), &json!("already-decided")));

    producer.call("session.unregister", &json!({}), None).unwrap();
    let told = watcher.sees(&["session-gone"]);
    assert_eq!((&told[0]["session_id"], &told[0]["reason"]), (&session, &json!("unregistered")));
    producer.call("session.register", &registration("again", 1), None).unwrap();
    watcher.sees(&["session-registered"]);

    operator.revoke(&enrolled.id).unwrap();
    let told = watcher.new_ones();
    let ends: Vec<_> = told.iter().filter(|event| event["kind"] != "session-gone").cloned().collect();
    assert_eq!(kinds(&ends), ["unpaired", "credential-revoked"]);
    assert_eq!((&ends[0]["credential"], &ends[0]["reason"]), (&json!(enrolled.id), &json!("revoked")));
    operator.revoke(&enrolled.id).unwrap();
    let again = watcher.new_ones();
    assert!(again.iter().all(|event| event["kind"] == "session-gone"), "an end is told once: {again:?}");
}

#[test]
fn a_connection_is_told_when_it_is_let_in_and_how_it_ended() {
    let place = Place::with_daemon(&[]);
    let mut subscriber = Subscriber::operator(&place);
    let mut operator = Operator::connect(&place);
    let enrolled = operator.enroll(&place, "producer", &json!({}));
    let (closes, lost) = (Peer::connect(&enrolled.identity), Peer::connect(&enrolled.identity));
    let session = registration("board", 1);
    let mut owner = Peer::connect(&enrolled.identity);
    owner.call("session.register", &session, None).unwrap();
    let names: Vec<_> = [&closes, &lost, &owner].map(|peer| peer.welcome["connection"].clone()).into();
    closes.text(br#"{"jsonrpc":"2.0","method":"closing","params":{"reason":"done"}}"#);
    lost.hang_up();
    let is_end = |name: &Value, state: &str, event: &Value| {
        event["kind"] == "connection" && event["peer"] == *name && event["state"] == state
    };
    let mut seen = Vec::new();
    while !names[..2].iter().all(|name| seen.iter().any(|event| is_end(name, "closed", event))) {
        seen.extend(subscriber.next().unwrap());
    }
    for name in &names {
        assert_eq!(seen.iter().filter(|event| is_end(name, "open", event)).count(), 1);
    }
    let open = seen.iter().find(|event| is_end(&names[0], "open", event)).unwrap();
    assert_eq!((&open["credential"], &open["role"]), (&json!(enrolled.id), &json!("producer")));
    operator.revoke(&enrolled.id).unwrap();
    let mut seen = Vec::new();
    while !seen.iter().any(|event: &Value| is_end(&names[2], "revoked", event))
        || !seen.iter().any(|event: &Value| event["kind"] == "session-gone")
    {
        seen.extend(subscriber.next().unwrap());
    }
    let gone = seen.iter().find(|event| event["kind"] == "session-gone").unwrap();
    assert_eq!(gone["reason"], "revoked");
}

#[test]
fn a_session_that_is_lost_falls_silent_or_is_taken_back_is_told_with_the_reason() {
    use crate::support::peers::Lease;
    let place = Place::with_daemon(&["--limit", "stale-ms=200", "--limit", "gone-ms=400"]);
    let kinds = json!({"kinds": ["session-registered", "session-gone"]});
    let mut subscriber = Subscriber::new(&Identity::of(&place, "caller"), &kinds);
    let producer = Identity::of(&place, "producer");
    let lost = Board::new(&place, "lost");
    lost.peer.hang_up();
    let told = subscriber.take(2);
    assert_eq!((&told[1]["session_id"], &told[1]["reason"]), (&json!(lost.id), &json!("lost")));
    let _silent = Board::new(&place, "silent");
    let told = subscriber.take(2);
    assert_eq!((&told[1]["title"], &told[1]["reason"]), (&json!("silent"), &json!("silent")));
    let (lease, mut first, mut second) = (Lease::random(), Peer::connect(&producer), Peer::connect(&producer));
    lease.register(&mut first).unwrap();
    lease.take_back(&mut second).unwrap();
    let told: Vec<_> = subscriber.take(2).iter().map(|event| event["resumed"].clone()).collect();
    assert_eq!(told, [json!(false), json!(true)], "a session that is taken back was not gone");
}

#[test]
fn every_subscriber_sees_each_event_once_in_order_without_a_gap() {
    const EACH: u64 = 250;
    let place = Place::with_daemon(&[]);
    let mut boards: Vec<_> = (0..4).map(|number| Board::new(&place, &format!("board {number}"))).collect();
    let identity = Identity::of(&place, "operator");
    // All connections are made before the first is counted from.
    let peers: Vec<_> = (0..7).map(|_| Peer::connect(&identity)).collect();
    let mut subscribers: Vec<_> = peers.into_iter().map(|peer| Subscriber::over(peer, &json!({})).unwrap()).collect();
    let from = super::seq_of(&subscribers[0].cursor);
    let last = from + EACH * boards.len() as u64;
    let pouring: Vec<_> = boards
        .drain(..)
        .map(|mut board| {
            threads::spawn("pour", move || {
                board.pour(EACH);
                board
            })
        })
        .collect();
    let reading: Vec<_> = subscribers
        .drain(..)
        .map(|mut one| threads::spawn("read", move || one.until(|event| seq(event) == last)))
        .collect();
    let boards: Vec<_> = pouring.into_iter().map(|thread| thread.join().unwrap()).collect();
    let seen: Vec<_> = reading.into_iter().map(|thread| thread.join().unwrap()).collect();
    for events in &seen {
        assert_eq!(events.iter().map(seq).collect::<Vec<_>>(), (from + 1..=last).collect::<Vec<_>>());
        assert_eq!(events, &seen[0]);
    }
    for board in &boards {
        let own = seen[0].iter().filter(|event| event["session_id"] == json!(board.id)).count();
        assert_eq!(own as u64, EACH);
    }
}

#[test]
fn two_subscriptions_of_one_connection_are_told_apart() {
    let place = Place::with_daemon(&[]);
    let mut board = Board::new(&place, "board");
    let mut peer = Peer::connect(&Identity::of(&place, "caller"));
    let all = peer.call("events.subscribe", &json!({}), None).unwrap().result["subscription"].clone();
    let gone = peer.call("events.subscribe", &json!({"kinds": ["session-gone"]}), None).unwrap();
    let gone = gone.result["subscription"].clone();
    board.update(&json!({"title": "new"}));
    board.peer.call("session.unregister", &json!({}), None).unwrap();
    let (mut to_all, mut to_gone) = (Vec::new(), Vec::new());
    while to_all.len() < 2 || to_gone.is_empty() {
        let message = peer.next().unwrap();
        let to = if message.header["params"]["subscription"] == all { &mut to_all } else { &mut to_gone };
        assert!([&all, &gone].contains(&&message.header["params"]["subscription"]));
        to.extend(super::events(&message));
    }
    assert_eq!((kinds(&to_all), kinds(&to_gone)), (vec!["session-updated", "session-gone"], vec!["session-gone"]));
}
