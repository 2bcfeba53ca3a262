//! What a session holds belongs to its credential and to it, not to a connection.

use serde_json::{Value, json};

use crate::support::daemon::Place;
use crate::support::peers::{Caller, Lease, Operator};
use crate::support::wait::until;
use crate::support::wire::{Identity, Peer};

fn producer(place: &Place) -> Peer {
    Peer::connect(&Identity::of(place, "producer"))
}

/// A session's row without its names, and who it belongs to.
fn budget(status: &Value, session: &str) -> Option<(Value, String)> {
    let mut row = status["budgets"].as_array().unwrap().iter().find(|row| row["session_id"] == session)?.clone();
    let fields = row.as_object_mut().unwrap();
    fields.remove("session_id");
    let credential = fields.remove("credential").unwrap();
    Some((row, credential.as_str().unwrap().to_owned()))
}

fn held(in_flight: u64, queued: u64, queued_bytes: u64, rejected: u64) -> Value {
    json!({"in_flight": in_flight, "queued": queued, "queued_bytes": queued_bytes, "rejected": rejected})
}

#[test]
fn a_sessions_budget_lasts_through_its_connections_and_ends_with_its_lease() {
    let place = Place::with_daemon(&["--limit", "session-queued=2"]);
    let (lease, mut first, mut second) = (Lease::random(), producer(&place), producer(&place));
    lease.register(&mut first).unwrap();
    let mut operator = Operator::connect(&place);
    let owner = operator.credentials("producer").remove(0);
    let mut now = || budget(&operator.status(), &lease.id());
    assert_eq!(now(), Some((held(0, 0, 0, 0), owner.clone())));

    let mut caller = Caller::connect(&place);
    let open: Vec<_> = (0..3).map(|_| caller.start(&lease.id(), "hold", Some(b"12345"))).collect();
    assert_eq!(caller.send(&lease.id(), "hold", None).unwrap_err().code, "queue-full");
    assert_eq!(now(), Some((held(1, 2, 10, 1), owner.clone())));

    lease.take_back(&mut second).unwrap();
    for request in open {
        assert_eq!(caller.answer(request).unwrap_err().code, "superseded");
    }
    assert_eq!(now(), Some((held(0, 0, 0, 1), owner.clone())), "what was refused is not forgotten");
    second.call("session.unregister", &json!({}), None).unwrap();
    until("the session is gone", || now().is_none().then_some(()));
    let mut third = producer(&place);
    lease.take_back(&mut third).unwrap();
    assert_eq!(now(), Some((held(0, 0, 0, 1), owner)));
}

#[test]
fn the_status_lists_the_busiest_sessions_and_counts_the_others() {
    let place = Place::with_daemon(&[]);
    let mut sessions: Vec<_> = (0..66).map(|_| (Lease::random(), producer(&place))).collect();
    for (lease, peer) in &mut sessions {
        lease.register(peer).unwrap();
    }
    let caller = Caller::connect(&place);
    let (last, peer) = sessions.last_mut().unwrap();
    caller.start(&last.id(), "hold", None);
    assert_eq!(peer.next().unwrap().method(), "command");
    let status = Operator::connect(&place).status();
    let listed = status["budgets"].as_array().unwrap();
    assert_eq!((listed.len(), &status["more_budgets"]), (64, &json!(2)));
    assert_eq!(listed[0]["session_id"], last.id());

    // A narrow grant sees the budgets of what exists for it.
    let selector = json!({"sessions": [{"session": last.id()}]});
    let narrow = Operator::connect(&place).enroll(&place, "caller", &selector);
    let status = Peer::connect(&narrow.identity).call("daemon.status", &json!({}), None).unwrap().result;
    assert_eq!((status["budgets"].as_array().unwrap().len(), &status["more_budgets"]), (1, &json!(0)));
}
