//! What stands in it.

use std::fs;

use nix::sys::signal::Signal;
use serde_json::{Value, json};

use super::{file, line, lines, seq, stop, verifies};
use crate::approvals::{Decider, ask};
use crate::support::daemon::Place;
use crate::support::peers::{Caller, Lease, Operator, Producer, registration};
use crate::support::system::mode_of;
use crate::support::wait::until;
use crate::support::wire::{Identity, Key, Peer, Stream, base64, sha256};

/// What peers send stands nowhere.
const SECRET: &str = "Sesame-0pen";

#[test]
fn a_life_has_a_line_for_each_fact_and_none_holds_what_a_peer_has_sent() {
    let mut place = Place::with_daemon(&[]);
    let mut operator = Operator::connect(&place);
    let by = operator.credentials("operator").remove(0);
    let connected = line(&place, "connected", 0);
    assert_eq!((&connected["role"], &connected["credential"]), (&json!("operator"), &json!(by)));

    let enrolled = operator.enroll(&place, "caller", &json!({"label": SECRET, "commands": ["echo", SECRET]}));
    let told = line(&place, "credential-enrolled", 0);
    assert_eq!((&told["credential"], &told["role"], &told["by"]), (&json!(enrolled.id), &json!("caller"), &json!(by)));
    operator.done("credential.renew", &json!({"credential": enrolled.id, "expires": "2999-01-01T00:00:00Z"}));
    let told = line(&place, "credential-renewed", 0);
    assert_eq!((&told["credential"], &told["expires"]), (&json!(enrolled.id), &json!("2999-01-01T00:00:00Z")));

    let mut params = registration(SECRET, 1);
    params["cwd"] = json!(format!("/{SECRET}"));
    params["labels"] = json!({SECRET: SECRET});
    params["info"] = json!({SECRET: SECRET});
    params["commands"] = json!([{"name": "echo", "description": SECRET}, {"name": SECRET}]);
    let mut producer = Producer::with(&Identity::of(&place, "producer"), &params);
    let told = line(&place, "session-registered", 0);
    assert_eq!((&told["session"], &told["title_bytes"]), (&json!(producer.session), &json!(SECRET.len())));
    assert_eq!(told["title_sha256"], base64(&sha256(SECRET.as_bytes())));
    assert_eq!(told["connection"], line(&place, "connected", connected["seq"].as_u64().unwrap())["connection"]);

    let mut caller = Caller(Peer::connect(&enrolled.identity));
    let before = line(&place, "connected", told["seq"].as_u64().unwrap())["seq"].as_u64().unwrap();
    let input = json!(SECRET).to_string();
    for _ in 0..20 {
        caller.send_keyed(&producer.session, "echo", Some(input.as_bytes()), SECRET).unwrap();
        caller.send(&producer.session, "echo", Some(input.as_bytes())).unwrap();
    }
    assert_eq!(caller.send(&producer.session, "count", None).unwrap_err().code, "denied");
    assert_eq!(caller.0.call("daemon.stop", &json!({"force": true}), None).unwrap_err().code, "unknown-method");
    assert_eq!(caller.0.call(SECRET, &json!({SECRET: 1}), None).unwrap_err().code, "unknown-method");
    let denied = line(&place, "denied", before);
    assert_eq!(denied["seq"], before + 1, "commands have no line");
    assert_eq!((&denied["method"], &denied["code"]), (&json!("session.send"), &json!("denied")));
    assert_eq!(denied["credential"], enrolled.id);
    let denied = line(&place, "denied", before + 1);
    assert_eq!((&denied["method"], &denied["code"]), (&json!("daemon.stop"), &json!("unknown-method")));

    operator.revoke(&enrolled.id).unwrap();
    let told = line(&place, "credential-revoked", before);
    assert_eq!((&told["credential"], &told["by"], &told["durable"]), (&json!(enrolled.id), &json!(by), &json!(true)));
    assert!(Peer::hello(&enrolled.identity).is_err());
    let refused = line(&place, "refused", told["seq"].as_u64().unwrap());
    assert_eq!((&refused["code"], &refused["credential"]), (&json!("revoked"), &json!(enrolled.id)));

    let session = producer.session.clone();
    producer.kill();
    let gone = line(&place, "session-gone", before);
    assert_eq!((&gone["session"], &gone["reason"]), (&json!(session), &json!("lost")));
    operator.done("daemon.stop", &json!({}));
    assert_eq!(place.wait_daemon(), 0);

    let lines = lines(&place);
    let facts: Vec<_> = lines.iter().map(|line| line["fact"].as_str().unwrap()).collect();
    assert_eq!(facts[..3], ["begun", "started", "connected"]);
    assert_eq!(facts[facts.len() - 2..], ["stop-asked", "stopped"]);
    assert_eq!((&lines[1]["after"], &lines[lines.len() - 1]["reason"]), (&json!("first"), &json!("stop")));
    for (line, number) in lines.iter().zip(1..) {
        assert_eq!(line["seq"], number);
    }
    let text = fs::read_to_string(file(&place)).unwrap();
    assert!(!text.contains(SECRET) && !text.contains("Sesame"), "{text}");
    assert_eq!(mode_of(file(&place)), 0o600);
    verifies(&place, "stop");
}

#[test]
fn what_happens_to_a_session_and_a_credential_without_anybodys_word_is_told() {
    let mut place = Place::with_daemon(&["--limit", "gone-ms=300"]);
    let lease = Lease::random();
    let mut peer = Peer::connect(&Identity::of(&place, "producer"));
    lease.register(&mut peer).unwrap();
    let gone = line(&place, "session-gone", 0);
    assert_eq!((&gone["session"], &gone["reason"]), (&json!(lease.id()), &json!("silent")));
    lease.take_back(&mut peer).unwrap();
    let back = line(&place, "session-resumed", 0);
    assert_eq!(back["session"], lease.id());
    let (rotation, new) = ([7; 16], Key::random());
    peer.call("session.stage_key", &lease.staging(&peer, &rotation, &new), None).unwrap();
    peer.call("session.confirm_key", &json!({"rotation_id": base64(&rotation)}), None).unwrap();
    assert_eq!(line(&place, "session-key-staged", 0)["session"], lease.id());
    assert_eq!(line(&place, "session-key-confirmed", 0)["session"], lease.id());
    peer.call("session.unregister", &json!({}), None).unwrap();
    let gone = line(&place, "session-gone", back["seq"].as_u64().unwrap());
    assert_eq!(gone["reason"], "unregistered");

    let soon = jiff::Timestamp::now() + jiff::SignedDuration::from_millis(600);
    let mut operator = Operator::connect(&place);
    let enrolled = operator.enroll(&place, "caller", &json!({"expires": soon.to_string()}));
    let _held = Peer::hello(&enrolled.identity);
    assert_eq!(line(&place, "credential-expired", 0)["credential"], enrolled.id);
    operator.done("daemon.drain", &json!({}));
    assert_eq!(place.wait_daemon(), 0);
    let lines = lines(&place);
    let facts = |fact: &str| lines.iter().filter(|line| line["fact"] == fact).count();
    assert_eq!((facts("credential-expired"), facts("drain-asked"), facts("stopped")), (1, 1, 1));
    assert_eq!(lines[lines.len() - 1]["reason"], "drained");
}

// 41, 43
#[test]
fn what_a_person_has_decided_can_be_proved_from_the_audit_alone() {
    let mut place = Place::with_daemon(&[]);
    let mut decider = Decider::new(&place);
    let mut asker = Caller::connect(&place).0;
    let asked = ask(&mut asker, &json!({"summary": SECRET}), Some(SECRET));
    assert_eq!(asker.call("approval.decide", &json!({}), None).unwrap_err().code, "unknown-method");
    decider.decide(&asked.id, "rejected").unwrap();
    assert_eq!(decider.decide(&asked.id, "approved").unwrap_err().code, "already-decided");
    let other = ask(&mut Caller::connect(&place).0, &json!({"summary": SECRET}), None);
    line(&place, "approval-stale", 0);
    let gone = until("the other one has ended", || {
        lines(&place).into_iter().find(|line| line["fact"] == "approval-decided" && line["approval"] == other.id)
    });
    assert_eq!((&gone["decision"], gone.get("by"), gone.get("signature")), (&json!("cancelled"), None, None));

    let of = |fact: &str| line(&place, fact, 0);
    let (started, requested, decided) = (of("started"), of("approval-requested"), of("approval-decided"));
    assert_eq!((&requested["approval"], &decided["approval"]), (&json!(asked.id), &json!(asked.id)));
    assert_eq!((&decided["decision"], &decided["credential"]), (&json!("rejected"), &requested["credential"]));
    let bytes = |line: &Value, name: &str| {
        data_encoding::BASE64URL_NOPAD.decode(line[name].as_str().unwrap().as_bytes()).unwrap()
    };
    let said = [
        b"usher/1 decision\n".as_slice(),
        &bytes(&started, "generation"),
        &bytes(&requested, "approval"),
        &bytes(&requested, "text_sha256"),
        &[0],
    ];
    let key = ring::signature::UnparsedPublicKey::new(&ring::signature::ED25519, bytes(&decided, "public_key"));
    key.verify(&said.concat(), &bytes(&decided, "signature")).unwrap();
    let stale = of("approval-stale");
    assert_eq!(
        (&stale["approval"], &stale["decision"], &stale["by"]),
        (&json!(asked.id), &json!("approved"), &decided["by"])
    );
    let denied = of("denied");
    assert_eq!((&denied["method"], &denied["credential"]), (&json!("approval.decide"), &requested["credential"]));
    stop(&mut place);
    assert!(!fs::read_to_string(file(&place)).unwrap().contains("Sesame"));
    verifies(&place, "stop");
}

// 31
#[test]
fn malformed_hellos_without_end_roll_nothing_out_and_are_counted() {
    const COUNT: u64 = 10_000;
    let mut place = Place::with_daemon(&[]);
    let socket = place.socket();
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for _ in 0..COUNT / 4 {
                    let mut stream = Stream::connect(&socket);
                    stream.send(b"{\"hello\":\"Sesame\"}\n");
                    assert!(stream.rest().is_empty());
                }
            });
        }
    });
    assert!(seq(&place) < 64, "a line for each of them");
    stop(&mut place);
    let lines = lines(&place);
    let refused = lines.iter().filter(|line| line["fact"] == "refused");
    let told = refused.filter(|line| line["code"] == "malformed first line").count() as u64;
    let left_out: Vec<&Value> = lines.iter().filter(|line| line["fact"] == "left-out").collect();
    assert_eq!((left_out.len(), &left_out[0]["of"]), (1, &json!("refused")));
    assert_eq!(left_out[0]["code"], "malformed first line");
    assert_eq!(told + left_out[0]["count"].as_u64().unwrap(), COUNT);
    assert!(told < 30 && fs::metadata(file(&place)).unwrap().len() < 16 * 1024);
    verifies(&place, "stop");
}

#[test]
fn a_peer_that_comes_and_goes_without_end_is_counted_too() {
    let mut place = Place::with_daemon(&[]);
    let identity = Identity::of(&place, "caller");
    for _ in 0..400 {
        drop(Peer::connect(&identity));
    }
    stop(&mut place);
    let lines = lines(&place);
    for fact in ["connected", "disconnected"] {
        let told = lines.iter().filter(|line| line["fact"] == fact).count() as u64;
        let left_out = lines.iter().find(|line| line["fact"] == "left-out" && line["of"] == fact).unwrap();
        // What was still connected at the end goes with the end.
        let count = told + left_out["count"].as_u64().unwrap();
        assert!(told < 200 && count <= 400 && count > 390, "{fact}: {told} of {count}");
    }
}

#[test]
fn a_daemon_says_how_the_one_before_it_ended() {
    let mut place = Place::with_daemon(&[]);
    stop(&mut place);
    place.start_daemon(&[]);
    until("the second has its line", || {
        (lines(&place).iter().filter(|line| line["fact"] == "started").count() == 2).then_some(())
    });
    place.signal_daemon(Signal::SIGKILL);
    place.wait_daemon();
    place.start_daemon(&[]);
    let started = until("three have started", || {
        let lines = lines(&place);
        let started: Vec<_> = lines.into_iter().filter(|line| line["fact"] == "started").collect();
        (started.len() == 3).then_some(started)
    });
    let after: Vec<_> = started.iter().map(|line| line["after"].as_str().unwrap()).collect();
    assert_eq!(after, ["first", "clean", "crash"]);
    assert_eq!(started[2]["generation"], place.health().unwrap());
    let status = place.json(&["status", "--operator"])["status"]["audit"].clone();
    assert_eq!((&status["state"], &status["lost"]), (&json!("available"), &json!(0)));
    assert!(status["seq"].as_u64() >= started[2]["seq"].as_u64());
}
