//! Questions to a person, over the wire: who asks, who may decide, and that each ends once.

use serde_json::{Value, json};

use crate::support::daemon::Place;
use crate::support::peers::{Operator, Producer, registration};
use crate::support::threads;
use crate::support::wait::until;
use crate::support::wire::{Answer, Identity, Key, Peer, base64, sha256};

/// A question that was taken.
pub struct Asked {
    request: u64,
    pub id: String,
}

fn asking(summary: &str) -> Value {
    json!({"summary": summary})
}

/// Asks, and waits until the question is taken.
pub fn ask(peer: &mut Peer, params: &Value, detail: Option<&str>) -> Asked {
    let detail = detail.map(|text| json!(text).to_string());
    let request = peer.request("approval.request", params, detail.as_deref().map(str::as_bytes));
    let pending = peer.next().expect("the question is taken or refused");
    assert_eq!(pending.method(), "approval.pending", "{pending:?}");
    assert_eq!(pending.header["params"]["request"], json!(request));
    Asked { request, id: pending.header["params"]["approval_id"].as_str().unwrap().to_owned() }
}

/// What somebody sees.
fn list(peer: &mut Peer, params: &Value) -> Vec<Value> {
    let done = peer.call("approval.list", params, None).unwrap();
    serde_json::from_slice(&done.payload.unwrap()).unwrap()
}

fn bytes16(text: &str) -> Vec<u8> {
    data_encoding::BASE64URL_NOPAD.decode(text.as_bytes()).unwrap()
}

/// A key's word on what it was shown.
pub fn signature(key: &Key, peer: &Peer, id: &str, text: &str, is_approved: bool) -> String {
    let challenge: Value = serde_json::from_slice(&peer.lines.challenge).unwrap();
    let generation = bytes16(challenge["challenge"]["generation"].as_str().unwrap());
    let byte = [u8::from(is_approved)];
    key.sign(&[b"usher/1 decision\n", &generation, &bytes16(id), &sha256(text.as_bytes()), &byte])
}

/// An operator that decides.
pub struct Decider {
    pub peer: Peer,
    key: Key,
}

impl Decider {
    pub fn new(place: &Place) -> Self {
        Self::of(&Identity::of(place, "operator"))
    }

    fn of(identity: &Identity) -> Self {
        Self { peer: Peer::connect(identity), key: Key::clone(&identity.key) }
    }

    fn text(&mut self, id: &str) -> Option<String> {
        let rows = list(&mut self.peer, &json!({ "approval_id": id }));
        rows.first()?["text"].as_str().map(str::to_owned)
    }

    fn deciding(&mut self, id: &str, decision: &str) -> Value {
        let text = self.text(id).unwrap_or_default();
        let signature = signature(&self.key, &self.peer, id, &text, decision == "approved");
        json!({"approval_id": id, "decision": decision, "signature": signature})
    }

    pub fn decide(&mut self, id: &str, decision: &str) -> Answer {
        let params = self.deciding(id, decision);
        self.peer.call("approval.decide", &params, None)
    }
}

fn caller(place: &Place) -> Peer {
    Peer::connect(&Identity::of(place, "caller"))
}

#[test]
fn a_question_is_shown_with_its_asker_decided_once_and_told_with_a_signature() {
    let place = Place::with_daemon(&[]);
    let board = Producer::start(&place, "board");
    let (mut asker, mut decider) = (caller(&place), Decider::new(&place));
    let params = json!({
        "summary": "apply this plan?", "session_id": board.session, "cwd": "/srv/site", "pid": 4711, "ttl_ms": 60_000,
        "terminal": {"tty": "/dev/pts/3"}, "receipt": true,
    });
    let asked = ask(&mut asker, &params, Some("one\ntwo\u{1b}[31m"));
    let rows = list(&mut decider.peer, &json!({}));
    assert_eq!((rows.len(), &rows[0]["state"], &rows[0]["approval_id"]), (1, &json!("open"), &json!(asked.id)));
    let text = rows[0]["text"].as_str().unwrap();
    let shown: Value = serde_json::from_str(text).unwrap();
    assert_eq!((&shown["summary"], &shown["detail"]), (&json!("apply this plan?"), &json!("one\ntwo\u{1b}[31m")));
    assert_eq!(shown["asker"]["label"], json!("caller"), "{shown}");
    assert_eq!(shown["asker"]["session"], json!({"session_id": board.session, "title": "board"}));
    assert_eq!((&shown["asker"]["cwd"], &shown["asker"]["pid"]), (&json!("/srv/site"), &json!(4711)));

    let mut params = decider.deciding(&asked.id, "approved");
    params["reason"] = json!("looks right");
    let decided = decider.peer.call("approval.decide", &params, None).unwrap().result;
    assert_eq!((&decided["approval_id"], &decided["decision"]), (&json!(asked.id), &json!("approved")));
    let message = asker.next().unwrap();
    assert!(message.header["receipt"].is_string(), "a receipt was asked for: {}", message.header);
    let told = message.answer().unwrap();
    assert_eq!((&told.result["decision"], &told.result["reason"]), (&json!("approved"), &json!("looks right")));
    assert_eq!(told.payload.as_deref(), Some(text.as_bytes()), "the asker gets what was signed");
    assert_eq!(told.result["by"]["public_key"], json!(base64(&decider.key.public())));
    assert_eq!(told.result["signature"], params["signature"]);
    assert!(list(&mut decider.peer, &json!({})).is_empty());
    let ended = list(&mut decider.peer, &json!({"approval_id": &asked.id[..6]}));
    assert_eq!((&ended[0]["state"], &ended[0]["outcome"]["by"]["label"]), (&json!("approved"), &json!("operator")));
    let mut operator = Operator(decider.peer);
    assert_eq!((operator.used("approvals"), operator.used("approvals-bytes")), (0, 0));
}

#[test]
fn of_an_approval_and_a_rejection_that_race_one_wins_and_the_other_is_told_who_decided() {
    let place = Place::with_daemon(&[]);
    let mut asker = caller(&place);
    let mut operator = Operator::connect(&place);
    let (first, second) =
        (operator.enroll(&place, "operator", &json!({})), operator.enroll(&place, "operator", &json!({})));
    let (mut yes, mut no) = (Decider::of(&first.identity), Decider::of(&second.identity));
    let mut wins = [0, 0];
    for round in 0..100 {
        let asked = ask(&mut asker, &asking("now?"), None);
        let (yes_says, no_says) = (yes.deciding(&asked.id, "approved"), no.deciding(&asked.id, "rejected"));
        // Both are written before either is answered, in turn.
        let order = [round % 2 == 0, round % 2 != 0];
        let mut requests = [0, 0];
        for is_yes in order {
            if is_yes {
                requests[0] = yes.peer.request("approval.decide", &yes_says, None);
            } else {
                requests[1] = no.peer.request("approval.decide", &no_says, None);
            }
        }
        let (said_yes, said_no) = (yes.peer.answer(requests[0]), no.peer.answer(requests[1]));
        let told = asker.answer(asked.request).unwrap().result;
        let (winner, loser, decision, by) = match (said_yes, said_no) {
            (Ok(_), Err(late)) => (0, late, "approved", &first.id),
            (Err(late), Ok(_)) => (1, late, "rejected", &second.id),
            both => panic!("exactly one decision counts: {both:?}"),
        };
        wins[winner] += 1;
        assert_eq!((&told["decision"], &told["by"]["credential"]), (&json!(decision), &json!(by)));
        let outcome = &loser.error["data"]["outcome"];
        assert_eq!(loser.code, "already-decided");
        assert_eq!((&outcome["decision"], &outcome["by"]["credential"]), (&json!(decision), &json!(by)));
    }
    assert_eq!(wins.iter().sum::<u32>(), 100);
}

#[test]
fn nobody_without_the_scope_decides_by_any_door() {
    let place = Place::with_daemon(&[]);
    let mut operator = Operator::connect(&place);
    let agent = operator.enroll(&place, "caller", &json!({"scopes": ["approval.request", "approval.list"]}));
    let reader = operator.enroll(&place, "operator", &json!({"scopes": ["approval.list", "events.subscribe"]}));
    let mut asker = Peer::connect(&agent.identity);
    let asked = ask(&mut asker, &asking("may I?"), None);
    let mut owner = Decider::new(&place);
    let text = owner.text(&asked.id).unwrap();

    // By the method, with every other key: as itself, or calling itself an operator.
    for identity in [Identity::of(&place, "producer"), Identity::of(&place, "caller"), agent.identity.clone()] {
        let mut peer = Peer::connect(&identity);
        let signature = signature(&identity.key, &peer, &asked.id, &text, true);
        let params = json!({"approval_id": asked.id, "decision": "approved", "signature": signature});
        assert_eq!(peer.call("approval.decide", &params, None).unwrap_err().code, "unknown-method");
        assert!(Peer::hello(&identity.with_role("operator")).is_err());
    }
    // An operator that may only read.
    let mut peer = Peer::connect(&reader.identity);
    let signed = signature(&reader.identity.key, &peer, &asked.id, &text, true);
    let params = json!({"approval_id": asked.id, "decision": "approved", "signature": signed});
    assert_eq!(peer.call("approval.decide", &params, None).unwrap_err().code, "denied");
    // One that may decide and narrows its own connection.
    let mut narrowed = Peer::connect(&Identity::of(&place, "operator").with_scopes(&["approval.list"]));
    assert_eq!(narrowed.call("approval.decide", &params, None).unwrap_err().code, "denied");
    // The right door with a signature of another key, of another decision, of another approval, of another text.
    let other = ask(&mut asker, &asking("and this?"), None);
    let wrong = [
        signature(&agent.identity.key, &owner.peer, &asked.id, &text, true),
        signature(&owner.key, &owner.peer, &asked.id, &text, false),
        signature(&owner.key, &owner.peer, &other.id, &text, true),
        signature(&owner.key, &owner.peer, &asked.id, &text.replace("may I?", "may you?"), true),
    ];
    for signature in wrong {
        let params = json!({"approval_id": asked.id, "decision": "approved", "signature": signature});
        assert_eq!(owner.peer.call("approval.decide", &params, None).unwrap_err().code, "invalid-params");
    }
    for decision in ["expired", "cancelled", "open"] {
        let mut params = owner.deciding(&asked.id, "approved");
        params["decision"] = json!(decision);
        assert_eq!(owner.peer.call("approval.decide", &params, None).unwrap_err().code, "invalid-params");
    }
    assert_eq!(list(&mut owner.peer, &json!({})).len(), 2, "nothing of this has decided anything");
    owner.decide(&asked.id, "rejected").unwrap();
    assert_eq!(asker.answer(asked.request).unwrap().result["decision"], json!("rejected"));
}

#[test]
fn a_decision_for_one_question_leaves_the_others_alone() {
    let place = Place::with_daemon(&[]);
    let (mut asker, mut decider) = (caller(&place), Decider::new(&place));
    let (first, second) = (ask(&mut asker, &asking("A?"), None), ask(&mut asker, &asking("B?"), None));
    decider.decide(&first.id, "rejected").unwrap();
    assert_eq!(asker.answer(first.request).unwrap().result["decision"], json!("rejected"));
    let late = decider.decide(&first.id, "approved").unwrap_err();
    assert_eq!(
        (late.code.as_str(), &late.error["data"]["outcome"]["decision"]),
        ("already-decided", &json!("rejected"))
    );
    let unknown = decider.decide("AAAAAAAAAAAAAAAAAAAAAA", "approved").unwrap_err();
    assert_eq!(unknown.code, "approval-not-found");
    let left = list(&mut decider.peer, &json!({}));
    assert_eq!((left.len(), &left[0]["approval_id"]), (1, &json!(second.id)), "nothing happened to the other");
}

#[test]
fn a_question_ends_with_its_asker_and_whoever_decides_hears_that() {
    let place = Place::with_daemon(&[]);
    let (mut asker, mut decider) = (caller(&place), Decider::new(&place));
    let asked = ask(&mut asker, &asking("still there?"), None);
    let params = decider.deciding(&asked.id, "approved");
    asker.hang_up();
    until("the question has ended", || list(&mut decider.peer, &json!({})).is_empty().then_some(()));
    let late = decider.peer.call("approval.decide", &params, None).unwrap_err();
    let outcome = &late.error["data"]["outcome"];
    assert_eq!((late.code.as_str(), &outcome["decision"]), ("already-decided", &json!("cancelled")));
    assert_eq!((&outcome["reason"], &outcome["by"]), (&json!("asker-gone"), &Value::Null));
}

#[test]
fn an_asker_that_is_revoked_is_approved_nothing_any_more() {
    let place = Place::with_daemon(&[]);
    let mut operator = Operator::connect(&place);
    let agent = operator.enroll(&place, "caller", &json!({}));
    let (mut asker, mut decider) = (Peer::connect(&agent.identity), Decider::new(&place));
    let asked = ask(&mut asker, &asking("may I?"), None);
    let params = decider.deciding(&asked.id, "approved");
    operator.revoke(&agent.id).unwrap();
    let late = decider.peer.call("approval.decide", &params, None).unwrap_err();
    assert_eq!(
        (late.code.as_str(), &late.error["data"]["outcome"]["decision"]),
        ("already-decided", &json!("cancelled"))
    );
    assert!(asker.try_answer(asked.request).is_none());
}

#[test]
fn an_asker_takes_its_question_back_itself_or_by_another_connection_of_its_key_alone() {
    let place = Place::with_daemon(&[]);
    let mut operator = Operator::connect(&place);
    let agent = operator.enroll(&place, "caller", &json!({}));
    let mut asker = caller(&place);
    let cancelled = ask(&mut asker, &asking("A?"), None);
    let note = json!({"jsonrpc": "2.0", "method": "$/cancel", "params": {"id": cancelled.request}});
    asker.text(note.to_string().as_bytes());
    assert_eq!(asker.answer(cancelled.request).unwrap_err().code, "cancelled");

    let withdrawn = ask(&mut asker, &asking("B?"), None);
    let params = json!({"approval_id": withdrawn.id});
    let stranger = Peer::connect(&agent.identity).call("approval.withdraw", &params, None).unwrap_err();
    assert_eq!(stranger.code, "approval-not-found");
    let mut same = caller(&place);
    same.call("approval.withdraw", &params, None).unwrap();
    let told = asker.answer(withdrawn.request).unwrap().result;
    assert_eq!((&told["decision"], &told["reason"]), (&json!("cancelled"), &json!("withdrawn")));
    assert_eq!(same.call("approval.withdraw", &params, None).unwrap_err().code, "already-decided");
}

#[test]
fn a_question_expires_by_itself() {
    let place = Place::with_daemon(&[]);
    let (mut asker, mut decider) = (caller(&place), Decider::new(&place));
    let asked = ask(&mut asker, &json!({"summary": "quick?", "ttl_ms": 50}), None);
    let told = asker.answer(asked.request).unwrap().result;
    assert_eq!((&told["decision"], &told["by"]), (&json!("expired"), &Value::Null));
    let late = decider.decide(&asked.id, "approved").unwrap_err();
    assert_eq!(
        (late.code.as_str(), &late.error["data"]["outcome"]["decision"]),
        ("already-decided", &json!("expired"))
    );
}

#[test]
fn what_somebody_does_not_see_does_not_exist_for_him() {
    let place = Place::with_daemon(&[]);
    let mut operator = Operator::connect(&place);
    let (mine, secret) = (Producer::start(&place, "mine"), Producer::start(&place, "secret"));
    let agent = operator.enroll(&place, "caller", &json!({"sessions": [{"title": "mine"}]}));
    let narrow = operator.enroll(&place, "operator", &json!({"sessions": [{"title": "mine"}]}));
    let (mut asker, mut other) = (Peer::connect(&agent.identity), caller(&place));
    let from_mine = ask(&mut asker, &json!({"summary": "A?", "session_id": mine.session}), None);
    let from_nowhere = ask(&mut asker, &json!({"summary": "B?", "session_id": secret.session}), None);
    let from_secret = ask(&mut other, &json!({"summary": "C?", "session_id": secret.session}), None);

    let mut all = Decider::new(&place);
    let rows = list(&mut all.peer, &json!({}));
    assert_eq!(rows.len(), 3);
    let shown: Value = serde_json::from_str(rows[1]["text"].as_str().unwrap()).unwrap();
    assert_eq!(shown["asker"]["session"], Value::Null, "a session that does not exist for the asker is not shown");
    let ids =
        |rows: &[Value]| rows.iter().map(|row| row["approval_id"].as_str().unwrap().to_owned()).collect::<Vec<_>>();
    assert_eq!(ids(&list(&mut asker, &json!({}))), [from_mine.id.clone(), from_nowhere.id.clone()]);
    assert_eq!(ids(&list(&mut other, &json!({}))), std::slice::from_ref(&from_secret.id));
    let mut narrow = Decider::of(&narrow.identity);
    assert_eq!(ids(&list(&mut narrow.peer, &json!({}))), std::slice::from_ref(&from_mine.id));
    for hidden in [&from_nowhere.id, &from_secret.id] {
        assert_eq!(narrow.decide(hidden, "approved").unwrap_err().code, "approval-not-found");
        assert!(list(&mut narrow.peer, &json!({"approval_id": hidden})).is_empty());
    }
    narrow.decide(&from_mine.id, "approved").unwrap();
    assert_eq!(asker.answer(from_mine.request).unwrap().result["decision"], json!("approved"));
}

#[test]
fn at_a_limit_the_newcomer_is_refused_and_the_open_questions_stay() {
    let place = Place::with_daemon(&["--limit", "approvals=4", "--limit", "approvals-bytes=400000"]);
    let mut operator = Operator::connect(&place);
    let agent = operator.enroll(&place, "caller", &json!({}));
    let mut scoped = Peer::connect(&agent.identity);
    let first = ask(&mut scoped, &asking("1?"), None);
    let full = scoped.call("approval.request", &asking("2?"), None).unwrap_err();
    assert_eq!((full.code.as_str(), &full.error["data"]["resource"]), ("busy", &json!("approvals")), "a quarter");
    let mut asker = caller(&place);
    let _second = ask(&mut asker, &asking("2?"), Some(&"x".repeat(200_000)));
    let long = json!("x".repeat(200_000)).to_string();
    let full = asker.call("approval.request", &asking("3?"), Some(long.as_bytes())).unwrap_err();
    assert_eq!((full.code.as_str(), &full.error["data"]["resource"]), ("busy", &json!("approvals-bytes")));
    let _third = ask(&mut asker, &asking("3?"), None);
    let _fourth = ask(&mut asker, &asking("4?"), None);
    let full = asker.call("approval.request", &asking("5?"), None).unwrap_err();
    assert_eq!((full.code.as_str(), &full.error["data"]["resource"]), ("busy", &json!("approvals")));
    let mut decider = Decider::new(&place);
    assert_eq!(list(&mut decider.peer, &json!({})).len(), 4);
    decider.decide(&first.id, "approved").unwrap();
    assert_eq!(scoped.answer(first.request).unwrap().result["decision"], json!("approved"));
    ask(&mut scoped, &asking("2?"), None);
}

#[test]
fn a_question_that_is_not_as_documented_is_refused() {
    let place = Place::with_daemon(&[]);
    let mut asker = caller(&place);
    let refused = |asker: &mut Peer, params: Value, detail: Option<&str>| {
        asker.call("approval.request", &params, detail.map(str::as_bytes)).unwrap_err().code
    };
    for params in [
        json!({}),
        asking(""),
        asking("two\nlines"),
        json!({"summary": "x", "ttl_ms": 0}),
        json!({"summary": "x", "ttl_ms": 86_400_001}),
        json!({"summary": "x", "cwd": "relative"}),
        json!({"summary": "x", "more": 1}),
    ] {
        assert_eq!(refused(&mut asker, params.clone(), None), "invalid-params", "{params}");
    }
    assert_eq!(refused(&mut asker, asking("x"), Some("{}")), "invalid-payload");
    assert_eq!(refused(&mut asker, asking("x"), Some("\"open")), "invalid-payload");
    let long = json!("x".repeat(262_145)).to_string();
    assert_eq!(refused(&mut asker, asking("x"), Some(&long)), "too-large");
    assert!(list(&mut asker, &json!({})).is_empty());
    for prefix in ["abc", "a b c d", "ABCDEFGHIJKLMNOPQRSTUVWX"] {
        let refused = asker.call("approval.list", &json!({"approval_id": prefix}), None).unwrap_err();
        assert_eq!(refused.code, "invalid-params", "{prefix}");
    }
}

#[test]
fn a_draining_daemon_takes_no_question_and_stays_for_the_open_ones() {
    let mut place = Place::with_daemon(&[]);
    let (mut asker, mut decider) = (caller(&place), Decider::new(&place));
    let asked = ask(&mut asker, &asking("last one?"), None);
    decider.peer.call("daemon.drain", &json!({}), None).unwrap();
    assert_eq!(asker.call("approval.request", &asking("one more?"), None).unwrap_err().code, "draining");
    decider.decide(&asked.id, "approved").unwrap();
    assert_eq!(asker.answer(asked.request).unwrap().result["decision"], json!("approved"));
    assert_eq!(place.wait_daemon(), 0);
}

#[test]
fn a_daemon_that_ends_approves_nothing() {
    let mut place = Place::with_daemon(&[]);
    let (mut asker, mut decider) = (caller(&place), Decider::new(&place));
    let asked = ask(&mut asker, &asking("still?"), None);
    decider.peer.call("daemon.stop", &json!({}), None).unwrap();
    let told = asker.answer(asked.request).unwrap().result;
    assert_eq!((&told["decision"], &told["reason"]), (&json!("cancelled"), &json!("shutting-down")));
    assert_eq!(place.wait_daemon(), 0);

    place.start_daemon(&[]);
    let mut asker = caller(&place);
    let asked = ask(&mut asker, &asking("again?"), None);
    place.signal_daemon(nix::sys::signal::Signal::SIGKILL);
    assert!(asker.try_answer(asked.request).is_none(), "a daemon that was killed answers nothing");
}

#[test]
fn a_revoked_operator_decides_nothing_under_load() {
    let place = Place::with_daemon(&[]);
    let mut operator = Operator::connect(&place);
    for _ in 0..20 {
        let victim = operator.enroll(&place, "operator", &json!({}));
        let (mut asker, mut decider) = (caller(&place), Decider::of(&victim.identity));
        let asked: Vec<_> = (0..8).map(|_| ask(&mut asker, &asking("now?"), None)).collect();
        let params: Vec<_> = asked.iter().map(|one| decider.deciding(&one.id, "approved")).collect();
        let outgoing = decider.peer.outgoing();
        let deciding = threads::spawn("decider", move || {
            for params in params {
                if outgoing.lock().request("approval.decide", &params, None).is_none() {
                    break;
                }
            }
        });
        operator.revoke(&victim.id).unwrap();
        // From here on nothing of it counts: what is open now stays open.
        let open = list(&mut operator.0, &json!({})).len();
        deciding.join().unwrap();
        assert_eq!(list(&mut operator.0, &json!({})).len(), open, "a revoked operator has decided");
        asker.hang_up();
        until("the questions have ended", || list(&mut operator.0, &json!({})).is_empty().then_some(()));
    }
}

#[test]
fn a_session_that_asks_through_its_own_connection_is_told_that_it_cannot() {
    let place = Place::with_daemon(&[]);
    let mut producer = Peer::connect(&Identity::of(&place, "producer"));
    producer.call("session.register", &registration("agent", 1), None).unwrap();
    let refused = producer.call("approval.request", &asking("may I?"), None).unwrap_err();
    assert_eq!(refused.code, "unknown-method");
    assert_eq!(producer.call("approval.list", &json!({}), None).unwrap_err().code, "unknown-method");
}
