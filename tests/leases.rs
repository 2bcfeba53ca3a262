//! Leases: a session belongs to its credential with its reconnect key, through every loss of a connection or daemon.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use crate::support::daemon::Place;
use crate::support::peers::{Caller, Lease, Operator, Producer, Reply, registration, reply_to, sending};
use crate::support::wait::until;
use crate::support::wire::{Answer, Identity, Key, Peer, base64, with_payload};

fn producer(place: &Place) -> Peer {
    Peer::connect(&Identity::of(place, "producer"))
}

fn refused(answer: Answer) -> String {
    answer.map(|done| done.result).unwrap_err().code
}

/// The ids of all sessions, in order.
fn sessions(caller: &mut Caller) -> Vec<String> {
    let rows = caller.0.call("session.list", &json!({}), None).unwrap().payload.unwrap();
    let rows: Vec<Value> = serde_json::from_slice(&rows).unwrap();
    rows.iter().map(|row| row["session_id"].as_str().unwrap().to_owned()).collect()
}

/// Kills the daemon and starts another one.
fn restart(place: &mut Place, args: &[&str]) {
    place.signal_daemon(nix::sys::signal::Signal::SIGKILL);
    assert_eq!(place.wait_daemon(), 137);
    place.start_daemon(args);
}

#[expect(clippy::disallowed_methods, reason = "a test plays whoever damages a file")]
fn put(path: &Path, bytes: impl AsRef<[u8]>) {
    fs::write(path, bytes).unwrap();
}

fn file(place: &Place) -> PathBuf {
    place.path().join("leases.json")
}

#[test]
fn a_session_is_displaced_by_nobody_but_its_credential_with_its_reconnect_key() {
    let place = Place::with_daemon(&[]);
    let (lease, mut owner) = (Lease::random(), producer(&place));
    let granted = lease.register(&mut owner).unwrap().result["lease"].clone();
    assert_eq!(granted, json!({"ttl_ms": 86_400_000, "durable": true}));
    let mut caller = Caller::connect(&place);
    let request = caller.start(&lease.id(), "hold", None);
    let command = owner.next().unwrap();

    let other = Operator::connect(&place).enroll(&place, "producer", &json!({}));
    let mut stranger = Peer::connect(&other.identity);
    assert_eq!(refused(lease.take_back(&mut stranger)), "session-owned", "another credential, with the key");
    let mut same = producer(&place);
    assert_eq!(refused(lease.register(&mut same)), "session-owned", "the key without its signature");
    let another = Lease { session: lease.session, key: Key::random() };
    assert_eq!(refused(another.take_back(&mut same)), "session-owned", "another key");
    let mut replayed = lease.registration();
    replayed["lease_signature"] = json!(lease.signature(&owner));
    assert_eq!(refused(same.call("session.register", &replayed, None)), "session-owned", "of another connection");
    replayed["lease_signature"] = json!(lease.key.sign(&[b"usher/1 stage\n", &same.lines.t3(), &lease.session]));
    assert_eq!(refused(same.call("session.register", &replayed, None)), "session-owned", "of another statement");

    assert!(owner.call("session.heartbeat", &json!({}), None).is_ok(), "the owner is untouched");
    assert!(reply_to(&owner.outgoing(), command.id().unwrap(), Reply::Result(Some(b"1".to_vec()))));
    assert_eq!(caller.answer(request).unwrap().payload.unwrap(), b"1");
}

#[test]
fn who_takes_a_session_back_cuts_its_old_connection_whose_commands_end_once() {
    let place = Place::with_daemon(&[]);
    let (lease, mut old, mut new) = (Lease::random(), producer(&place), producer(&place));
    lease.register(&mut old).unwrap();
    let _later = Producer::start(&place, "registered later");
    let mut caller = Caller::connect(&place);
    let listed = sessions(&mut caller);
    let running = caller.start(&lease.id(), "hold", None);
    let queued = caller.start(&lease.id(), "hold", None);
    let command = old.next().unwrap().id().unwrap();

    lease.take_back(&mut new).unwrap();
    assert_eq!(caller.answer(running).unwrap_err().told(), ("superseded", "unknown"));
    assert_eq!(caller.answer(queued).unwrap_err().told(), ("superseded", "not-delivered"));
    // Late: it may still be written, and is heard by nobody.
    old.text(&with_payload(&json!({"jsonrpc": "2.0", "id": command, "result": {}}), Some(b"\"late\"")));
    old.text(&with_payload(
        &json!({"jsonrpc": "2.0", "id": 2, "method": "session.update", "params": {"title": "late"}}),
        None,
    ));
    assert!(old.all_that_comes().iter().all(|message| message.method() != "closing"), "it was cut without a word");

    let next = caller.start(&lease.id(), "echo", Some(b"2"));
    let command = new.next().unwrap();
    assert_eq!((command.method(), command.payload.as_deref()), ("command", Some(&b"2"[..])));
    reply_to(&new.outgoing(), command.id().unwrap(), Reply::Result(Some(b"\"new\"".to_vec())));
    assert_eq!(caller.answer(next).unwrap().payload.unwrap(), b"\"new\"");
    assert!(caller.0.has_nothing_aside(), "each command ended once");
    let row = caller.0.call("session.get", &json!({"selector": {"session": lease.id()}}), None).unwrap().result;
    assert_eq!((&row["session"]["title"], &row["session"]["pending"]), (&json!("leased"), &json!(0)));
    assert_eq!(sessions(&mut caller), listed, "it keeps its place, and stands once");
}

#[test]
fn a_session_is_taken_back_at_its_bound_and_costs_nothing_more() {
    let place = Place::with_daemon(&["--limit", "sessions=1"]);
    let (lease, mut old, mut new) = (Lease::random(), producer(&place), producer(&place));
    lease.register(&mut old).unwrap();
    assert_eq!(refused(Lease::random().register(&mut new)), "busy");
    lease.take_back(&mut new).unwrap();
    assert_eq!(Operator::connect(&place).used("sessions"), 1);
    assert_eq!(Operator::connect(&place).used("leases"), 1);
    new.call("session.unregister", &json!({}), None).unwrap();
    assert_eq!(Operator::connect(&place).used("sessions"), 0);
}

/// 52
#[test]
fn a_displaced_owner_is_one_no_more_whatever_it_had_said_before_it_was_cut() {
    let place = Place::with_daemon(&[]);
    let lease = Lease::random();
    let mut owner = producer(&place);
    lease.register(&mut owner).unwrap();
    let mut caller = Caller::connect(&place);
    for round in 0..50 {
        let request = caller.start(&lease.id(), "hold", None);
        let command = owner.next().unwrap().id().unwrap();
        let mut next = producer(&place);
        let register = {
            let mut params = lease.registration();
            params["lease_signature"] = json!(lease.signature(&next));
            next.request("session.register", &params, None)
        };
        // At the same moment: either the answer counts, or it is superseded, and then it is nobody's.
        reply_to(&owner.outgoing(), command, Reply::Result(Some(b"1".to_vec())));
        next.answer(register).unwrap();
        match caller.answer(request) {
            Ok(done) => assert_eq!(done.payload.unwrap(), b"1", "round {round}"),
            Err(failure) => assert_eq!(failure.told(), ("superseded", "unknown"), "round {round}"),
        }
        let _nothing_more = owner.all_that_comes();
        owner = next;
        assert!(owner.call("session.heartbeat", &json!({}), None).is_ok());
    }
    assert!(caller.0.has_nothing_aside());
}

/// 54
#[test]
fn the_lease_works_after_a_stale_removal_with_the_socket_open() {
    let place = Place::with_daemon(&["--limit", "stale-ms=50", "--limit", "gone-ms=100"]);
    let (lease, mut producer) = (Lease::random(), producer(&place));
    lease.register(&mut producer).unwrap();
    let mut operator = Operator::connect(&place);
    until("the session is removed", || (operator.status()["sessions"] == 0).then_some(()));
    assert_eq!(refused(producer.call("session.heartbeat", &json!({}), None)), "not-registered");
    assert_eq!(refused(lease.register(&mut producer)), "session-owned", "not without a signature");
    assert_eq!(lease.take_back(&mut producer).unwrap().result["session_id"], lease.id());
}

/// 54
#[test]
fn the_lease_works_after_a_clean_unregister_unless_somebody_else_has_the_id() {
    let place = Place::with_daemon(&["--limit", "lease-ms=1"]);
    let (lease, mut first, mut second) = (Lease::random(), producer(&place), producer(&place));
    lease.register(&mut first).unwrap();
    first.call("session.unregister", &json!({}), None).unwrap();
    until("its lease is over", || {
        Operator::connect(&place);
        let other = Lease { session: lease.session, key: Key::random() };
        other.register(&mut second).ok()
    });
    assert_eq!(refused(lease.take_back(&mut first)), "session-owned", "somebody else has it");

    let place = Place::with_daemon(&[]);
    let (mut first, mut second) = (producer(&place), producer(&place));
    lease.register(&mut first).unwrap();
    first.call("session.unregister", &json!({}), None).unwrap();
    let other = Lease { session: lease.session, key: Key::random() };
    assert_eq!(refused(other.take_back(&mut second)), "session-owned", "while it lasts it keeps others out");
    lease.take_back(&mut second).unwrap();
}

/// 54
#[test]
fn who_may_only_register_has_no_lease() {
    let place = Place::with_daemon(&[]);
    let mut operator = Operator::connect(&place);
    let scopes = ["session.register", "session.update", "session.heartbeat", "session.unregister"];
    let narrow = operator.enroll(&place, "producer", &json!({ "scopes": scopes }));
    let (lease, mut first, mut second) = (Lease::random(), Peer::connect(&narrow.identity), producer(&place));
    assert_eq!(lease.register(&mut first).unwrap().result.get("lease"), None);
    assert_eq!(operator.used("leases"), 0);
    let mut again = Peer::connect(&narrow.identity);
    assert_eq!(refused(lease.take_back(&mut again)), "denied");
    assert_eq!(refused(lease.register(&mut again)), "session-owned", "it is live");
    assert_eq!(refused(lease.take_back(&mut second)), "session-owned", "and displaced by nobody");
    assert!(first.call("session.heartbeat", &json!({}), None).is_ok());
    first.call("session.unregister", &json!({}), None).unwrap();
    lease.register(&mut second).unwrap();
    second.call("session.unregister", &json!({}), None).unwrap();
    assert_eq!(refused(lease.register(&mut first)), "session-owned", "now it has a lease");
    // So has who narrows a connection of the default credential.
    let narrowed = Identity::of(&place, "producer").with_scopes(&scopes);
    assert_eq!(refused(lease.take_back(&mut Peer::connect(&narrowed))), "denied");
}

#[test]
fn a_session_comes_back_with_its_id_after_the_daemon_was_killed() {
    let mut place = Place::with_daemon(&[]);
    let (lease, mut first) = (Lease::random(), producer(&place));
    lease.register(&mut first).unwrap();
    for round in 0..3 {
        restart(&mut place, &[]);
        let mut next = producer(&place);
        assert_eq!(refused(lease.register(&mut next)), "session-owned", "round {round}");
        let other = Operator::connect(&place).enroll(&place, "producer", &json!({}));
        assert_eq!(refused(lease.take_back(&mut Peer::connect(&other.identity))), "session-owned");
        let done = lease.take_back(&mut next).unwrap().result;
        assert_eq!((&done["session_id"], &done["lease"]["durable"]), (&json!(lease.id()), &json!(true)));
    }
    place.signal_daemon(nix::sys::signal::Signal::SIGTERM);
    assert_eq!(place.wait_daemon(), 0);
    place.start_daemon(&[]);
    lease.take_back(&mut producer(&place)).unwrap();
}

#[test]
fn a_registration_that_changes_no_lease_writes_no_file() {
    let place = Place::with_daemon(&[]);
    let (lease, mut first) = (Lease::random(), producer(&place));
    lease.register(&mut first).unwrap();
    let inode = || std::os::unix::fs::MetadataExt::ino(&fs::metadata(file(&place)).unwrap());
    let before = inode();
    for _ in 0..20 {
        let mut next = producer(&place);
        lease.take_back(&mut next).unwrap();
        next.call("session.unregister", &json!({}), None).unwrap();
    }
    assert_eq!(inode(), before);
    Lease::random().register(&mut producer(&place)).unwrap();
    assert_ne!(inode(), before, "a new one does");
}

#[test]
fn the_leases_of_a_credential_that_is_revoked_or_expires_end_with_it_and_stay_so_after_a_restart() {
    let mut place = Place::with_daemon(&[]);
    let mut operator = Operator::connect(&place);
    let soon = jiff::Timestamp::now() + jiff::SignedDuration::from_millis(1_500);
    let revoked = operator.enroll(&place, "producer", &json!({}));
    let expiring = operator.enroll(&place, "producer", &json!({"expires": soon.to_string()}));
    let leases = [Lease::random(), Lease::random()];
    for (lease, enrolled) in leases.iter().zip([&revoked, &expiring]) {
        lease.register(&mut Peer::connect(&enrolled.identity)).unwrap();
    }
    assert_eq!(operator.used("leases"), 2);
    operator.revoke(&revoked.id).unwrap();
    assert_eq!(operator.used("leases"), 1);
    let mut stranger = producer(&place);
    until("the other one has expired", || {
        let code = leases[1].register(&mut stranger).err().map(|failure| failure.code);
        assert!(code.as_deref().is_none_or(|code| code == "session-owned"), "{code:?}");
        code.is_none().then_some(())
    });
    restart(&mut place, &[]);
    assert_eq!(Operator::connect(&place).used("leases"), 1, "the stranger's");
    leases[0].register(&mut producer(&place)).unwrap();
}

#[test]
fn at_the_bound_of_leases_a_credential_gives_up_its_own_that_ended_first_or_is_refused() {
    let place = Place::with_daemon(&["--limit", "leases=8"]);
    let mut operator = Operator::connect(&place);
    let other = operator.enroll(&place, "producer", &json!({}));
    let leases: Vec<_> = (0..4).map(|_| Lease::random()).collect();
    let mut peers: Vec<_> = (0..4).map(|_| Peer::connect(&other.identity)).collect();
    leases[0].register(&mut peers[0]).unwrap();
    leases[1].register(&mut peers[1]).unwrap();
    let failure = leases[2].register(&mut peers[2]).unwrap_err();
    assert_eq!(
        (failure.code.as_str(), &failure.error["data"]["resource"]),
        ("busy", &json!("leases")),
        "a quarter is 2"
    );
    for peer in &mut peers[..2] {
        peer.call("session.unregister", &json!({}), None).unwrap();
    }
    leases[2].register(&mut peers[2]).unwrap();
    assert_eq!(refused(leases[1].register(&mut peers[3])), "session-owned", "the second still has its lease");
    assert_eq!(operator.used("leases"), 2);
    leases[0].register(&mut producer(&place)).unwrap();
}

#[test]
fn a_lease_file_that_cannot_be_read_is_set_aside_by_name_and_told_and_leases_begin_anew() {
    let mut place = Place::with_daemon(&[]);
    let lease = Lease::random();
    lease.register(&mut producer(&place)).unwrap();
    let good = fs::read(file(&place)).unwrap();
    let body = good.iter().position(|&byte| byte == b'\n').unwrap() + 1;
    let with_body = |text: &str| {
        let digest = base64(&crate::support::wire::sha256(text.as_bytes()));
        format!("{{\"version\":1,\"sha256\":\"{digest}\"}}\n{text}").into_bytes()
    };
    let text = String::from_utf8(good[body..].to_vec()).unwrap();
    let mut flipped = good.clone();
    *flipped.last_mut().unwrap() ^= 1;
    let cases: Vec<(&str, Vec<u8>)> = vec![
        ("truncated", good[..good.len() / 2].to_vec()),
        ("emptied", Vec::new()),
        ("one byte flipped", flipped),
        ("an unknown field", with_body(&text.replacen("\"session\"", "\"more\": 1,\n      \"session\"", 1))),
        (
            "a session twice",
            with_body(&{
                let entry = &text[text.find('[').unwrap() + 1..text.rfind(']').unwrap()];
                text.replacen(entry, &format!("{},{entry}", entry.trim_end()), 1)
            }),
        ),
        ("too large", vec![b' '; 4 * 1024 * 1024 + 1]),
        ("readable by nobody's rule", good.clone()),
    ];
    for (what, bytes) in cases {
        place.signal_daemon(nix::sys::signal::Signal::SIGKILL);
        place.wait_daemon();
        put(&file(&place), &bytes);
        if what.starts_with("readable") {
            fs::set_permissions(file(&place), fs::Permissions::from_mode(0o666)).unwrap();
        }
        let told = place.log_text().len();
        place.start_daemon(&[]);
        let aside: Vec<_> = fs::read_dir(place.path())
            .unwrap()
            .map(|entry| entry.unwrap().path())
            .filter(|path| path.file_name().unwrap().to_string_lossy().starts_with("leases.json.corrupt-"))
            .collect();
        assert_eq!(aside.len(), 1, "{what}: {aside:?}");
        assert_eq!(fs::read(&aside[0]).unwrap(), bytes, "{what}: no byte is lost");
        let log = place.log_text()[told..].to_owned();
        let name = aside[0].file_name().unwrap().to_string_lossy().into_owned();
        assert!(log.contains("leases.json ") && log.contains(&name), "{what}: {log}");
        fs::remove_file(&aside[0]).unwrap();
        let mut next = producer(&place);
        lease.register(&mut next).unwrap_or_else(|failure| panic!("{what}: leases begin anew: {failure:?}"));
        put(&file(&place), &good);
        fs::set_permissions(file(&place), fs::Permissions::from_mode(0o600)).unwrap();
    }
}

#[test]
fn a_lease_file_of_a_newer_program_ends_the_start_by_name_and_is_not_changed() {
    let place = Place::with_daemon(&[]);
    place.kill_daemons();
    let newer = b"{\"version\":2,\"digest\":\"of another kind\"}\nwhatever it is then\n";
    put(&file(&place), newer);
    let ran = crate::support::daemon::ran(&mut place.usherd());
    assert_eq!(ran.code, 3, "{ran:?}");
    assert!(ran.stderr.contains("leases.json has version 2"), "{ran:?}");
    assert_eq!(fs::read(file(&place)).unwrap(), newer);
}

#[test]
fn on_a_full_disk_a_session_is_registered_with_a_lease_that_ends_with_the_daemon() {
    let mut place = Place::empty();
    let mut command = std::process::Command::new("sh");
    // A limit on the size of files stands for a full disk: what is larger than 2 KiB is refused.
    command.args(["-c", "trap '' XFSZ; ulimit -f 4; exec \"$0\" 2>/dev/null", crate::support::daemon::USHERD]);
    command.env("USHER_DIR", place.path());
    place.start_daemon_as(command);
    let mut peers = Vec::new();
    let (lease, granted) = loop {
        let (lease, mut peer) = (Lease::random(), producer(&place));
        let granted = lease.register(&mut peer).unwrap().result["lease"].clone();
        peers.push(peer);
        if granted["durable"] == false {
            break (lease, granted);
        }
        assert!(peers.len() < 100, "the disk is never full");
    };
    assert_eq!(granted["ttl_ms"], 86_400_000);
    let mut last = peers.pop().unwrap();
    let staging = lease.staging(&last, &[1; 16], &Key::random());
    assert_eq!(refused(last.call("session.stage_key", &staging, None)), "internal");
    let mut next = producer(&place);
    assert_eq!(refused(lease.register(&mut next)), "session-owned", "it keeps others out all the same");
    assert_eq!(lease.take_back(&mut next).unwrap().result["lease"]["durable"], false);
    assert!(Caller::connect(&place).0.call("session.send", &sending(&lease.id(), "none"), None).is_err());
}

#[test]
fn a_reconnect_key_is_asked_for_and_has_to_be_one() {
    let place = Place::with_daemon(&[]);
    let mut peer = producer(&place);
    let mut params = registration("keyless", 1);
    params.as_object_mut().unwrap().remove("reconnect_key");
    assert_eq!(refused(peer.call("session.register", &params, None)), "invalid-params");
    params["reconnect_key"] = json!(base64(&[0; 32]));
    assert_eq!(refused(peer.call("session.register", &params, None)), "invalid-params", "anybody can sign for it");
    let lease = Lease::random();
    let mut params = lease.registration();
    params["lease_signature"] = json!(Key::random().sign(&[b"x"]));
    assert_eq!(refused(peer.call("session.register", &params, None)), "invalid-params", "not that key's");
    lease.take_back(&mut peer).unwrap();
}

#[test]
fn two_hundred_registrations_at_once_are_all_on_the_disk_when_they_are_answered() {
    let mut place = Place::with_daemon(&[]);
    let leases: Vec<_> = (0..200).map(|_| Lease::random()).collect();
    let mut peers: Vec<_> = leases.iter().map(|_| producer(&place)).collect();
    let asked: Vec<_> = leases
        .iter()
        .zip(&peers)
        .map(|(lease, peer)| peer.request("session.register", &lease.registration(), None))
        .collect();
    for (peer, id) in peers.iter_mut().zip(asked) {
        assert_eq!(peer.answer(id).unwrap().result["lease"]["durable"], true);
    }
    restart(&mut place, &[]);
    assert_eq!(Operator::connect(&place).used("leases"), 200);
    for lease in &leases {
        lease.take_back(&mut producer(&place)).unwrap();
    }
}

/// What the old connection had not read was kept for it, and is not kept for the new one.
#[test]
fn what_was_kept_for_a_displaced_owner_that_does_not_read_is_told_as_not_delivered_and_never_arrives() {
    let place = Place::with_daemon(&[]);
    let (lease, mut old, mut new) = (Lease::random(), producer(&place), producer(&place));
    let mut wide = lease.registration();
    wide["max_in_flight"] = json!(8);
    old.call("session.register", &wide, None).unwrap();
    let mut caller = Caller::connect(&place);
    let input = |number: usize| format!("\"{number}{}\"", "x".repeat(1024 * 1024 - 8)).into_bytes();
    let requests: Vec<_> = (0..8).map(|number| caller.start(&lease.id(), "hold", Some(&input(number)))).collect();
    let mut operator = Operator::connect(&place);
    until("all of them are at the producer or kept for it", || {
        (operator.status()["pending"] == 8 && operator.used("outbound-bytes") > 0).then_some(())
    });
    lease.take_back(&mut new).unwrap();
    let told: Vec<_> = requests.into_iter().map(|request| caller.answer(request).unwrap_err()).collect();
    let arrived: Vec<_> = old.all_that_comes().into_iter().filter(|message| message.method() == "command").collect();
    let delivered = told.iter().filter(|failure| failure.told() == ("superseded", "unknown")).count();
    let kept = told.iter().filter(|failure| failure.told() == ("superseded", "not-delivered")).count();
    assert_eq!((delivered, delivered + kept), (arrived.len(), 8), "whole ones arrived, the others never will");
    assert!(kept > 0, "the socket takes less than 8 MiB");
    for (number, command) in arrived.iter().enumerate() {
        assert_eq!(told[number].told().1, "unknown");
        assert!(command.payload.as_deref() == Some(&input(number)), "in their order");
    }
    assert_eq!(operator.used("outbound-bytes"), 0);
    assert!(new.call("session.heartbeat", &json!({}), None).is_ok() && new.has_nothing_aside());
}
