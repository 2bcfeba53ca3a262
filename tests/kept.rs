//! What the daemon keeps for a peer that does not read, when whoever it comes from is revoked meanwhile.

use serde_json::{Value, json};

use crate::support::daemon::Place;
use crate::support::peers::{Caller, Enrolled, Operator, Reply, big, registration, reply_to};
use crate::support::wait::until;
use crate::support::wire::{Identity, Message, Peer};

/// More than any socket takes at once.
fn much() -> Vec<u8> {
    big()
}

/// A session whose program reads nothing until it is asked to.
fn slow(identity: &Identity, title: &str) -> (Peer, String) {
    let mut producer = Peer::connect(identity);
    let session = producer.call("session.register", &registration(title, 8), None).unwrap().result;
    (producer, session["session_id"].as_str().unwrap().to_owned())
}

/// The next command that reaches a session.
fn command(producer: &mut Peer) -> Option<Message> {
    std::iter::from_fn(|| producer.next()).find(|message| message.method() == "command")
}

fn sender(message: &Message) -> &Value {
    &message.header["params"]["caller"]["credential"]
}

struct Scene {
    place: Place,
    operator: Operator,
    caller: Caller,
    victim: Enrolled,
}

impl Scene {
    fn new(role: &str) -> Self {
        let place = Place::with_daemon(&[]);
        let (mut operator, caller) = (Operator::connect(&place), Caller::connect(&place));
        let victim = operator.enroll(&place, role, &json!({}));
        Self { place, operator, caller, victim }
    }

    fn until_pending(&mut self, count: u64) {
        until("the commands are at their session", || (self.operator.status()["pending"] == count).then_some(()));
    }

    fn until_kept(&mut self, bytes: usize) {
        until("the daemon keeps them", || (self.operator.used("outbound-bytes") > bytes as u64).then_some(()));
    }
}

#[test]
fn a_kept_command_of_a_revoked_caller_never_reaches_a_session_that_reads_later() {
    let mut scene = Scene::new("caller");
    let (mut producer, session) = slow(&Identity::of(&scene.place, "producer"), "slow");
    let victim = Caller(Peer::connect(&scene.victim.identity));
    let first = scene.caller.start(&session, "echo", Some(&much()));
    scene.until_kept(much().len() / 2);
    for _ in 0..3 {
        victim.start(&session, "echo", Some(b"2"));
    }
    scene.until_pending(4);
    scene.operator.revoke(&scene.victim.id).unwrap();
    let last = scene.caller.start(&session, "echo", Some(b"3"));
    for (expected, payload) in [(first, much()), (last, b"3".to_vec())] {
        let arrived = command(&mut producer).expect("the session goes on");
        assert_ne!(sender(&arrived), &json!(scene.victim.id), "a command of a revoked caller arrived");
        assert_eq!(arrived.payload.as_ref(), Some(&payload));
        reply_to(&producer.outgoing(), arrived.id().unwrap(), Reply::Result(arrived.payload));
        assert_eq!(scene.caller.answer(expected).unwrap().payload, Some(payload));
    }
    until("nothing is held for it any more", || (scene.operator.status()["pending"] == 0).then_some(()));
}

#[test]
fn a_command_of_a_revoked_caller_whose_first_half_is_written_ends_with_its_sessions_connection() {
    let mut scene = Scene::new("caller");
    let (mut producer, session) = slow(&Identity::of(&scene.place, "producer"), "slow");
    let victim = Caller(Peer::connect(&scene.victim.identity));
    victim.start(&session, "echo", Some(&much()));
    scene.until_kept(much().len() / 2);
    let other = scene.caller.start(&session, "echo", Some(b"2"));
    scene.until_pending(2);
    scene.operator.revoke(&scene.victim.id).unwrap();
    assert!(command(&mut producer).is_none(), "a command arrived behind half a one of a revoked caller");
    assert_eq!(scene.caller.answer(other).unwrap_err().told(), ("session-lost", "not-delivered"));
}

#[test]
fn a_kept_answer_of_a_revoked_session_is_told_as_lost_to_a_caller_that_reads_later() {
    let mut scene = Scene::new("producer");
    let (mut other, other_session) = slow(&Identity::of(&scene.place, "producer"), "other");
    let (mut victim, session) = slow(&scene.victim.identity, "victim");
    let filling = scene.caller.start(&other_session, "big", None);
    let asked = command(&mut other).unwrap();
    reply_to(&other.outgoing(), asked.id().unwrap(), Reply::Result(Some(much())));
    scene.until_kept(much().len() / 2);
    let lost = scene.caller.start(&session, "echo", None);
    let asked = command(&mut victim).unwrap();
    reply_to(&victim.outgoing(), asked.id().unwrap(), Reply::Result(Some(b"\"never\"".to_vec())));
    scene.until_pending(0);
    scene.operator.revoke(&scene.victim.id).unwrap();
    assert_eq!(scene.caller.answer(filling).unwrap().payload, Some(much()));
    assert_eq!(scene.caller.answer(lost).unwrap_err().told(), ("session-lost", "delivered"));
    assert!(scene.caller.0.has_nothing_aside(), "an answer came twice");
}

#[test]
fn half_an_answer_of_a_revoked_session_ends_its_callers_connection() {
    let mut scene = Scene::new("producer");
    let (mut victim, session) = slow(&scene.victim.identity, "victim");
    let id = scene.caller.start(&session, "big", None);
    let asked = command(&mut victim).unwrap();
    reply_to(&victim.outgoing(), asked.id().unwrap(), Reply::Result(Some(much())));
    scene.until_kept(much().len() / 2);
    scene.operator.revoke(&scene.victim.id).unwrap();
    assert!(scene.caller.0.try_answer(id).is_none(), "an answer of a revoked session arrived");
}

#[test]
fn the_kept_state_of_a_revoked_session_is_told_as_not_there() {
    let mut scene = Scene::new("producer");
    let mut victim = Peer::connect(&scene.victim.identity);
    victim.call("session.register", &registration("victim", 8), Some(b"\"never\"")).unwrap();
    let mut other = Peer::connect(&Identity::of(&scene.place, "producer"));
    other.call("session.register", &registration("other", 8), Some(&much())).unwrap();
    let selecting = |title: &str| json!({"selector": {"title": title}});
    let filling = scene.caller.0.request("session.get", &selecting("other"), None);
    scene.until_kept(much().len() / 2);
    let mut kept = scene.operator.used("outbound-bytes");
    for (method, params) in [("session.get", selecting("victim")), ("session.wait", selecting("victim"))] {
        scene.caller.0.request(method, &params, None);
        scene.until_kept(usize::try_from(kept).unwrap());
        kept = scene.operator.used("outbound-bytes");
    }
    scene.operator.revoke(&scene.victim.id).unwrap();
    assert_eq!(scene.caller.answer(filling).unwrap().payload, Some(much()));
    for id in [filling + 1, filling + 2] {
        assert_eq!(scene.caller.answer(id).unwrap_err().code, "session-not-found");
    }
}

#[test]
fn a_session_is_not_there_from_the_moment_its_revocation_is_answered() {
    let mut scene = Scene::new("caller");
    for _ in 0..60 {
        let victim = scene.operator.enroll(&scene.place, "producer", &json!({}));
        let mut producer = Peer::connect(&victim.identity);
        producer.call("session.register", &registration("victim", 8), Some(b"\"state\"")).unwrap();
        scene.operator.revoke(&victim.id).unwrap();
        let rows = scene.operator.done("session.list", &json!({})).payload.unwrap();
        assert_eq!(String::from_utf8_lossy(&rows), "[]");
        let selecting = json!({"selector": {"title": "victim"}, "deadline_ms": 1});
        let waited = scene.operator.0.call("session.wait", &selecting, None).unwrap_err();
        assert_eq!(waited.code, "timeout");
    }
}
