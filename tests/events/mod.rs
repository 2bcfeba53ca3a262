//! What happened, as subscribers are told: over the wire, and by `usher events`.

mod crowd;
mod ending;
mod grants;
mod life;
mod replay;
mod shell;
mod slow;

use serde_json::{Value, json};

use crate::support::daemon::Place;
use crate::support::peers::registration;
use crate::support::wire::{Failure, Identity, Message, Peer};

/// More events than a notification has.
const BATCH: usize = 1_000;

/// Updates that a pouring session has under way.
const WINDOW: u64 = 64;

/// A connection that follows.
struct Subscriber {
    peer: Peer,
    subscription: u64,
    /// Where the feed stood.
    cursor: String,
}

impl Subscriber {
    fn new(identity: &Identity, params: &Value) -> Self {
        Self::over(Peer::connect(identity), params).unwrap_or_else(|failure| panic!("{failure:?}"))
    }

    fn operator(place: &Place) -> Self {
        Self::new(&Identity::of(place, "operator"), &json!({}))
    }

    fn over(mut peer: Peer, params: &Value) -> Result<Self, Failure> {
        let result = peer.call("events.subscribe", params, None)?.result;
        let cursor = result["cursor"].as_str().unwrap().to_owned();
        Ok(Self { peer, subscription: result["subscription"].as_u64().unwrap(), cursor })
    }

    /// The events of the next notification; none at the end of the stream.
    fn next(&mut self) -> Option<Vec<Value>> {
        loop {
            let message = self.peer.next()?;
            if message.method() == "events" {
                assert_eq!(message.header["params"]["subscription"], json!(self.subscription));
                return Some(events(&message));
            }
        }
    }

    /// Reads until an event is so, and what came with it.
    fn until(&mut self, is_last: impl Fn(&Value) -> bool) -> Vec<Value> {
        let mut seen = Vec::new();
        while !seen.iter().rev().take(BATCH).any(&is_last) {
            seen.extend(self.next().unwrap_or_else(|| panic!("the stream ended behind {:?}", seen.last())));
        }
        seen
    }

    /// Reads until so many are there.
    fn take(&mut self, count: usize) -> Vec<Value> {
        let mut seen = Vec::new();
        while seen.len() < count {
            seen.extend(self.next().unwrap_or_else(|| panic!("the stream ended behind {:?}", seen.last())));
        }
        assert_eq!(seen.len(), count, "{seen:?}");
        seen
    }
}

/// The events of a notification.
fn events(message: &Message) -> Vec<Value> {
    serde_json::from_slice(message.payload.as_ref().unwrap()).unwrap()
}

/// What there is up to now, as the subscription `params` shows it.
fn kept(peer: &mut Peer, params: &Value) -> Vec<Value> {
    let mut params = params.clone();
    params["follow"] = json!(false);
    let subscription = peer.call("events.subscribe", &params, None).unwrap().result["subscription"].clone();
    let mut seen = Vec::new();
    loop {
        let message = peer.next().unwrap();
        assert_eq!((message.method(), &message.header["params"]["subscription"]), ("events", &subscription));
        seen.extend(events(&message));
        if message.header["params"].get("ended") == Some(&json!(true)) {
            return seen;
        }
    }
}

fn seq(event: &Value) -> u64 {
    seq_of(event["cursor"].as_str().unwrap())
}

fn seq_of(cursor: &str) -> u64 {
    cursor.split_once(':').unwrap().1.parse().unwrap()
}

fn kinds(events: &[Value]) -> Vec<&str> {
    events.iter().map(|event| event["kind"].as_str().unwrap()).collect()
}

/// A session that changes.
struct Board {
    peer: Peer,
    id: String,
}

impl Board {
    fn new(place: &Place, title: &str) -> Self {
        Self::of(&Identity::of(place, "producer"), title)
    }

    fn of(identity: &Identity, title: &str) -> Self {
        let mut peer = Peer::connect(identity);
        let registered = peer.call("session.register", &registration(title, 1), None).unwrap().result;
        Self { peer, id: registered["session_id"].as_str().unwrap().to_owned() }
    }

    fn update(&mut self, params: &Value) {
        self.peer.call("session.update", params, None).unwrap();
    }

    /// So many new snapshots, several under way at a time; returns when all are answered.
    fn pour(&mut self, count: u64) {
        let outgoing = self.peer.outgoing();
        let params = json!({"snapshot": true});
        let (mut sent, mut answered) = (0, 0);
        while answered < count {
            while sent < count && sent - answered < WINDOW {
                outgoing.lock().request("session.update", &params, Some(b"1")).unwrap();
                sent += 1;
            }
            let message = self.peer.next().unwrap();
            assert!(message.header.get("result").is_some(), "{}", message.header);
            answered += 1;
        }
    }
}
