//! Who sees which event, and what a subscriber chooses.

use serde_json::{Value, json};

use super::{Board, Subscriber, kept, kinds};
use crate::support::daemon::Place;
use crate::support::peers::{Operator, registration};
use crate::support::wire::{Identity, Key, Peer, base64};

fn labels(seen: &[Value]) -> Vec<(&str, &str)> {
    let told = seen.iter().map(|event| {
        let about = ["title", "summary", "label"].iter().find_map(|name| event[*name].as_str()).unwrap_or_default();
        (event["kind"].as_str().unwrap(), about)
    });
    told.collect()
}

#[test]
fn a_subscriber_sees_the_events_of_what_exists_for_it_and_of_nothing_else() {
    let place = Place::with_daemon(&[]);
    let mut operator = Operator::connect(&place);
    let sessions = json!({"sessions": [{"title": "mine"}], "label": "narrow"});
    let narrow = operator.enroll(&place, "caller", &sessions);
    let narrow_operator = operator.enroll(&place, "operator", &json!({"sessions": [{"title": "mine"}]}));
    let wide = Identity::of(&place, "caller");
    let from = kept(&mut operator.0, &json!({"since": "start"})).last().unwrap()["cursor"].clone();

    let (mut mine, mut other) = (Board::new(&place, "mine"), Board::new(&place, "other"));
    let stranger = operator.enroll(&place, "caller", &json!({"label": "stranger"}));
    let mut asks = Vec::new();
    for (identity, summary, session) in [
        (&narrow.identity, "narrow asks", None),
        (&wide, "wide asks of mine", Some(&mine.id)),
        (&wide, "wide asks of other", Some(&other.id)),
    ] {
        let mut peer = Peer::connect(identity);
        let mut params = json!({ "summary": summary });
        if let Some(session) = session {
            params["session_id"] = json!(session);
        }
        peer.request("approval.request", &params, None);
        assert_eq!(peer.next().unwrap().method(), "approval.pending");
        asks.push(peer);
    }
    mine.update(&json!({"labels": {"a": "b"}}));
    other.update(&json!({"labels": {"a": "b"}}));
    // Out of the grant: from then on it does not exist for its holder.
    mine.update(&json!({"title": "renamed"}));
    operator.revoke(&stranger.id).unwrap();

    let see = |identity: &Identity| {
        let mut peer = Peer::connect(identity);
        let own = peer.welcome["connection"].clone();
        let seen = kept(&mut peer, &json!({ "since": from }));
        (seen, own)
    };
    let (seen, own) = see(&narrow.identity);
    let (connections, seen): (Vec<_>, Vec<_>) = seen.into_iter().partition(|event| event["kind"] == "connection");
    assert_eq!(
        labels(&seen),
        [("session-registered", "mine"), ("awaiting-approval", "narrow asks"), ("session-updated", "mine")]
    );
    assert!(connections.iter().all(|event| event["credential"] == json!(narrow.id)), "{connections:?}");
    assert!(connections.iter().any(|event| event["peer"] == own), "its own connection is told to it");

    let (seen, _) = see(&narrow_operator.identity);
    let seen: Vec<_> = seen.into_iter().filter(|event| event["kind"] != "connection").collect();
    assert_eq!(
        labels(&seen),
        [("session-registered", "mine"), ("awaiting-approval", "wide asks of mine"), ("session-updated", "mine")]
    );

    let (seen, _) = see(&wide);
    let of = |seen: &[Value], kind: &str| seen.iter().filter(|event| event["kind"] == kind).count();
    assert_eq!((of(&seen, "session-registered"), of(&seen, "session-updated")), (2, 3));
    assert_eq!((of(&seen, "awaiting-approval"), of(&seen, "paired"), of(&seen, "unpaired")), (2, 0, 0));

    let (seen, _) = see(&Identity::of(&place, "operator"));
    assert_eq!((of(&seen, "session-updated"), of(&seen, "awaiting-approval")), (3, 3));
    assert_eq!((of(&seen, "paired"), of(&seen, "unpaired"), of(&seen, "credential-revoked")), (1, 1, 1));
}

#[test]
fn a_key_without_the_scope_follows_nothing() {
    let place = Place::with_daemon(&[]);
    let mut operator = Operator::connect(&place);
    let lists = operator.enroll(&place, "caller", &json!({"scopes": ["session.list"]}));
    let mut peer = Peer::connect(&lists.identity);
    assert_eq!(peer.call("events.subscribe", &json!({}), None).unwrap_err().code, "denied");
    let mut peer = Peer::connect(&Identity::of(&place, "operator").with_scopes(&["daemon.status"]));
    assert_eq!(peer.call("events.subscribe", &json!({}), None).unwrap_err().code, "denied");
    let mut peer = Peer::connect(&Identity::of(&place, "producer"));
    assert_eq!(peer.call("events.subscribe", &json!({}), None).unwrap_err().code, "unknown-method");
}

#[test]
fn kinds_and_selectors_choose_and_the_daemons_end_is_told_all_the_same() {
    let mut place = Place::with_daemon(&[]);
    let caller = Identity::of(&place, "caller");
    let follow = |params: Value| Subscriber::new(&caller, &params);
    let mut by_kind = follow(json!({"kinds": ["session-gone", "session-updated"]}));
    let mut by_title = follow(json!({"selector": {"title": "one"}}));
    let mut by_repo = follow(json!({"selector": {"repo": "/work/site/src"}}));
    let mut by_task = follow(json!({"task_id": "t1"}));
    let mut nothing = follow(json!({"kinds": []}));
    let register = |title: &str, cwd: &str| {
        let mut peer = Peer::connect(&Identity::of(&place, "producer"));
        let mut params = registration(title, 1);
        params["cwd"] = json!(cwd);
        params["reconnect_key"] = json!(base64(&Key::random().public()));
        peer.call("session.register", &params, None).unwrap();
        peer
    };
    // Nearest or not: every root that holds the path.
    let mut one = register("one", "/work/site");
    let _two = register("two", "/work");
    let _three = register("three", "/else");
    one.call("session.update", &json!({"labels": {}}), None).unwrap();
    one.call("session.unregister", &json!({}), None).unwrap();
    place.signal_daemon(nix::sys::signal::Signal::SIGTERM);
    let all = |subscriber: &mut Subscriber| subscriber.until(|event| event["kind"] == "shutdown-complete");
    let end = ["shutdown-requested", "shutdown-complete"];
    let and_end = |kinds: &[&'static str]| [kinds, &end].concat();
    assert_eq!(kinds(&all(&mut by_kind)), and_end(&["session-updated", "session-gone"]));
    let seen = all(&mut by_title);
    assert_eq!(kinds(&seen), and_end(&["session-registered", "session-updated", "session-gone"]));
    let seen = all(&mut by_repo);
    assert_eq!(seen.iter().filter(|event| event["kind"] == "session-registered").count(), 2);
    assert_eq!((kinds(&all(&mut by_task)), kinds(&all(&mut nothing))), (end.to_vec(), end.to_vec()));
    assert_eq!(place.wait_daemon(), 0);
}
