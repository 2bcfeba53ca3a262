//! Once `credential.revoke` has been answered, nothing of that credential takes effect and no byte is written to it.
//!
//! No clock decides here. What counts is the order of bytes on a connection: a *fence* is a message that the daemon can
//! only write after the revocation was answered, to the same socket as what must not come behind it.

use std::collections::{HashMap, HashSet};
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Barrier};
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::sys::socket::{MsgFlags, recv};
use parking_lot::Mutex;
use serde_json::{Value, json};

use crate::support::daemon::Place;
use crate::support::peers::{Caller, Heard, Operator, Producer, Reply, registration, sending};
use crate::support::wait::{PATIENCE, until, within};
use crate::support::wire::{Answer, Identity, Key, Peer, Refused, base64, is_shut};

const ROUNDS: usize = 200;
const SENDERS: usize = 8;
/// `max_in_flight` of the four producers: with two nearly everything passes at once, with two nearly everything queues.
const IN_FLIGHT: [u32; 4] = [64, 64, 1, 1];
/// Commands that a sender of a producer's round has open.
const WINDOW: usize = 8;

/// Random moments, the same in each run: xorshift64.
struct Dice(u64);

impl Dice {
    fn below(&mut self, bound: u64) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        usize::try_from(self.0 % bound).unwrap()
    }
}

/// Waits without sleeping, so that the moment is that one.
fn at_once(what: &str, mut is_so: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !is_so() {
        assert!(Instant::now() < deadline, "waited in vain: {what}");
        std::thread::yield_now();
    }
}

/// Reads what the kernel holds without waiting for anything: the bytes, and whether the end of the stream stands behind.
fn drained(socket: &UnixStream) -> (usize, bool) {
    let (mut piece, mut bytes) = (vec![0; 64 * 1024], 0);
    loop {
        match recv(socket.as_raw_fd(), &mut piece, MsgFlags::MSG_DONTWAIT) {
            Ok(0) | Err(Errno::ECONNRESET) => return (bytes, true),
            Ok(count) => bytes += count,
            Err(Errno::EAGAIN) => return (bytes, false),
            Err(error) => panic!("a socket failed: {error}"),
        }
    }
}

/// The persistent part of all rounds.
struct Field {
    place: Place,
    operator: Operator,
    /// Sends the fences.
    fencer: Caller,
    /// Sessions of the default producer.
    producers: Vec<Producer>,
    /// Connections of the default caller.
    senders: Vec<Peer>,
    /// Effects in all.
    effects: Arc<AtomicUsize>,
    /// The caller that a fence stands for.
    ended: Arc<Mutex<String>>,
    /// Effects of a caller behind its fence.
    late: Arc<AtomicUsize>,
    dice: Dice,
}

impl Field {
    fn new(seed: u64) -> Self {
        let place = Place::with_daemon(&[]);
        let (effects, late) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
        let ended = Arc::new(Mutex::new(String::new()));
        let identity = Identity::of(&place, "producer");
        let producers = IN_FLIGHT.map(|in_flight| {
            let (effects, late) = (Arc::clone(&effects), Arc::clone(&late));
            let mut revoked = HashSet::new();
            let ended = Arc::clone(&ended);
            Producer::custom(&identity, &registration("default", in_flight), move |heard| {
                if let Heard::Command(command) = heard {
                    if command.name == "count" {
                        effects.fetch_add(1, SeqCst);
                        late.fetch_add(usize::from(revoked.contains(&command.caller)), SeqCst);
                        return Reply::Result(None);
                    }
                }
                // Either fence: the command through the lane, or the answer past it.
                revoked.insert(ended.lock().clone());
                Reply::Result(None)
            })
        });
        let caller = Identity::of(&place, "caller");
        Self {
            operator: Operator::connect(&place),
            fencer: Caller::connect(&place),
            producers: producers.into(),
            senders: (0..SENDERS).map(|_| Peer::connect(&caller)).collect(),
            effects,
            ended,
            late,
            dice: Dice(seed),
            place,
        }
    }

    /// Eight senders of one credential, which never read, and a newcomer who knocks without end; then it is revoked.
    fn caller_round(&mut self) -> Result<(), String> {
        let enrolled = self.operator.enroll(&self.place, "caller", &json!({}));
        let moment = self.dice.below(1_500);
        let (sent, returned) = (AtomicUsize::new(0), AtomicBool::new(false));
        let (connected, sockets) = (Barrier::new(SENDERS + 1), Mutex::new(Vec::new()));
        let sends: Vec<_> = self.producers.iter().map(|producer| sending(&producer.session, "count")).collect();
        let identity = &enrolled.identity;
        let Self { operator, fencer, producers, ended, .. } = self;
        ended.lock().clone_from(&enrolled.id);
        std::thread::scope(|scope| {
            let newcomer = scope.spawn(|| knock(identity, &returned));
            let senders: Vec<_> = (0..SENDERS)
                .map(|number| {
                    let (connected, sockets, sent, sends) = (&connected, &sockets, &sent, &sends);
                    scope.spawn(move || {
                        let peer = Peer::connect(identity);
                        sockets.lock().push(Arc::clone(&peer.stream.socket));
                        connected.wait();
                        let outgoing = peer.outgoing();
                        for turn in number.. {
                            if outgoing.lock().request("session.send", &sends[turn % 4], Some(b"1")).is_none() {
                                return;
                            }
                            sent.fetch_add(1, SeqCst);
                        }
                    })
                })
                .collect();
            connected.wait();
            at_once("the senders send", || sent.load(SeqCst) >= moment);

            let revoked = operator.revoke(&enrolled.id);
            for producer in producers.iter() {
                // Answered by the producer's own worker, which asks no lane.
                producer.outgoing().lock().request("no.such.method", &json!({}), None).unwrap();
            }
            let fences: Vec<_> = producers.iter().map(|one| fencer.start(&one.session, "echo", None)).collect();
            returned.store(true, SeqCst);
            let sockets = sockets.lock().clone();
            let shut = sockets.iter().all(|socket| is_shut(socket));
            let ends: Vec<_> = sockets.iter().map(|socket| drained(socket)).collect();

            for sender in senders {
                sender.join().unwrap();
            }
            for (producer, id) in producers.iter().zip(fences) {
                let mut answer = fencer.answer(id);
                // What the revoked one had queued still stands before it, and is thrown out one by one.
                while matches!(&answer, Err(failure) if failure.code == "queue-full") {
                    answer = fencer.send(&producer.session, "echo", None);
                }
                answer.map_err(|failure| format!("a fence was not answered: {failure:?}"))?;
            }
            let welcomed = newcomer.join().unwrap()?;
            let revoked = revoked.map_err(|failure| format!("not revoked: {failure:?}"))?;
            if revoked.result["cut"].as_u64() < Some(SENDERS as u64) {
                return Err(format!("not all connections were cut: {}", revoked.result));
            }
            if !shut || ends.iter().any(|(_, ended)| !ended) {
                return Err(format!("a connection was still open when the answer was read: {ends:?}"));
            }
            if welcomed.iter().any(|peer| !drained(&peer.stream.socket).1) {
                return Err("a newcomer was let in and not cut".to_owned());
            }
            Ok(())
        })?;
        match self.late.swap(0, SeqCst) {
            0 => Ok(()),
            late => Err(format!("{late} commands of a revoked caller reached a session behind the fence")),
        }
    }

    /// Four sessions of one credential under eight senders; then it is revoked.
    fn producer_round(&mut self) -> Result<(), String> {
        let enrolled = self.operator.enroll(&self.place, "producer", &json!({}));
        let moment = self.dice.below(200);
        let done = AtomicUsize::new(0);
        let returned = Arc::new(AtomicBool::new(false));
        let owned: Vec<_> = IN_FLIGHT
            .iter()
            .map(|&in_flight| {
                let returned = Arc::clone(&returned);
                Producer::custom(&enrolled.identity, &registration("revoked", in_flight), move |_| {
                    Reply::Result(Some(if returned.load(SeqCst) { b"\"late\"".to_vec() } else { b"1".to_vec() }))
                })
            })
            .collect();
        let sockets: Vec<_> = owned.iter().map(|producer| Arc::clone(producer.socket())).collect();
        let sends: Vec<_> = owned.iter().map(|producer| sending(&producer.session, "count")).collect();
        let nobody = json!({"selector": {"session": base64(&[0; 16])}});
        let Self { operator, senders, effects, .. } = self;
        std::thread::scope(|scope| {
            let outgoing: Vec<_> = senders.iter().map(Peer::outgoing).collect();
            let (returned, done, sends, identity) = (&*returned, &done, &sends, &enrolled.identity);
            let newcomer = scope.spawn(move || knock(identity, returned));
            let senders: Vec<_> =
                senders.iter_mut().map(|peer| scope.spawn(move || hammer(peer, sends, done, returned))).collect();
            at_once("the sessions answer", || done.load(SeqCst) >= moment);

            let revoked = operator.revoke(&enrolled.id);
            returned.store(true, SeqCst);
            for outgoing in outgoing {
                outgoing.lock().request("session.get", &nobody, None).unwrap();
            }
            let shut = sockets.iter().all(|socket| is_shut(socket));

            for sender in senders {
                sender.join().unwrap()?;
            }
            let welcomed = newcomer.join().unwrap()?;
            let revoked = revoked.map_err(|failure| format!("not revoked: {failure:?}"))?;
            if revoked.result["cut"].as_u64() < Some(IN_FLIGHT.len() as u64) {
                return Err(format!("not all connections were cut: {}", revoked.result));
            }
            if !shut || welcomed.iter().any(|peer| !drained(&peer.stream.socket).1) {
                return Err("a connection was still open when the answer was read".to_owned());
            }
            effects.fetch_add(done.load(SeqCst), SeqCst);
            Ok(())
        })
    }
}

/// Connects again and again until it is told that the credential is revoked; whom it had been before.
fn knock(identity: &Identity, returned: &AtomicBool) -> Result<Vec<Peer>, String> {
    let mut welcomed = Vec::new();
    loop {
        let after = returned.load(SeqCst);
        match Peer::hello(identity) {
            Err(Refused::Sealed(code)) if code == "revoked" => return Ok(welcomed),
            Ok(peer) if !after => welcomed.push(peer),
            Err(Refused::Ended) if !after => {}
            other => {
                return Err(format!("a hello after the revocation, {after}: {:?}", other.map(|peer| peer.welcome)));
            }
        }
    }
}

/// Keeps a window of commands open until the credential is revoked, then waits for the end of each. The one request that
/// is not its own is the fence: no result may come behind its answer.
fn hammer(peer: &mut Peer, sends: &[Value], done: &AtomicUsize, returned: &AtomicBool) -> Result<(), String> {
    let outgoing = peer.outgoing();
    let (mut open, mut fenced, mut wrong) = (HashSet::new(), false, None);
    for turn in 0.. {
        while open.len() < WINDOW && !returned.load(SeqCst) {
            let send = &sends[(turn + open.len()) % sends.len()];
            open.insert(outgoing.lock().request("session.send", send, None).ok_or("the sender was cut")?);
        }
        if open.is_empty() && fenced {
            break;
        }
        let message = peer.next().ok_or("the sender was cut")?;
        let is_own = open.remove(&message.id().unwrap());
        match message.answer() {
            Ok(_) if fenced => drop(wrong.get_or_insert("a result of a revoked producer came behind the fence".into())),
            Ok(answer) if is_own && answer.payload.as_deref() == Some(b"1") => drop(done.fetch_add(1, SeqCst)),
            Ok(answer) => drop(wrong.get_or_insert(format!("a result from after the revocation: {answer:?}"))),
            Err(failure) if !is_own && failure.code == "session-not-found" && !fenced => fenced = true,
            Err(failure) => {
                let told = failure.told();
                let usual = matches!(
                    told,
                    ("session-lost", "unknown" | "not-delivered")
                        | ("session-not-found" | "queue-full", "not-delivered")
                );
                if !is_own || !usual {
                    wrong.get_or_insert(format!("a command ended as {told:?}, own: {is_own}"));
                }
            }
        }
    }
    wrong.map_or(Ok(()), Err)
}

#[test]
fn revocation_is_linear_under_full_load() {
    let seed = std::env::var("USHER_TEST_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or(0x7573_6865_7264);
    let mut field = Field::new(seed);
    let mut wrong = Vec::new();
    for round in 0..ROUNDS {
        let outcome = if round % 2 == 0 { field.caller_round() } else { field.producer_round() };
        wrong.extend(outcome.err().map(|what| format!("round {round}: {what}")));
    }
    assert!(wrong.is_empty(), "{} of {ROUNDS} rounds, seed {seed}:\n{}", wrong.len(), wrong.join("\n"));
    let effects = field.effects.load(SeqCst);
    assert!(effects > ROUNDS * 10, "only {effects} effects: that is no load");
    println!("{effects} effects in {ROUNDS} rounds");

    let Field { place, mut operator, fencer, producers, senders, .. } = field;
    drop((fencer, producers, senders));
    until("everything is given back", || {
        let status = operator.status();
        let held = |name: &str| {
            let accounts = status["accounts"].as_array().unwrap().iter();
            accounts.filter(|account| account["name"] == name).map(|account| account["used"].as_u64().unwrap()).sum()
        };
        let all: u64 = ["connections", "sessions", "queued", "queued-bytes", "outbound-bytes"].map(held).iter().sum();
        (all == 0 && status["pending"] == 0).then_some(())
    });
    drop(place);
}

#[test]
fn a_command_that_is_queued_when_its_caller_is_revoked_never_leaves() {
    let place = Place::with_daemon(&[]);
    let producer = Producer::start(&place, "busy");
    let (mut operator, mut caller) = (Operator::connect(&place), Caller::connect(&place));
    let held = caller.start(&producer.session, "hold", None);
    let id = producer.nth("hold", 1).id;
    let enrolled = operator.enroll(&place, "caller", &json!({}));
    let mut revoked = Caller(Peer::connect(&enrolled.identity));
    for _ in 0..3 {
        revoked.start(&producer.session, "count", Some(b"\"never\""));
    }
    until("the commands are queued", || (operator.used("queued") == 3).then_some(()));
    assert_eq!(operator.revoke(&enrolled.id).unwrap().result["cut"], 1);
    assert!(revoked.0.all_that_comes().is_empty(), "no byte is written to a revoked caller");
    producer.release(id, Reply::Result(None));
    caller.answer(held).unwrap();
    caller.fence(&producer.session);
    assert_eq!(producer.effects("count"), 0);
    assert_eq!((operator.used("queued"), operator.used("queued-bytes")), (0, 0));
}

#[test]
fn every_command_at_a_producer_that_is_revoked_ends_once() {
    let place = Place::with_daemon(&[]);
    let (mut operator, mut caller) = (Operator::connect(&place), Caller::connect(&place));
    let enrolled = operator.enroll(&place, "producer", &json!({}));
    let mut producer = Producer::with(&enrolled.identity, &registration("revoked", 1));
    let held = caller.start(&producer.session, "hold", None);
    let id = producer.nth("hold", 1).id;
    let queued = [(); 3].map(|()| caller.start(&producer.session, "count", None));
    until("the commands are queued", || (operator.used("queued") == 3).then_some(()));
    operator.revoke(&enrolled.id).unwrap();
    producer.release(id, Reply::Result(Some(b"\"late\"".to_vec())));
    producer.ended();
    assert_eq!(producer.effects("count"), 0);
    assert_eq!(caller.answer(held).unwrap_err().told(), ("session-lost", "unknown"));
    for id in queued {
        assert_eq!(caller.answer(id).unwrap_err().told(), ("session-lost", "not-delivered"));
    }
    until("its session is gone", || {
        let rows = caller.0.call("session.list", &json!({}), None).unwrap();
        (rows.payload.unwrap() == b"[]").then_some(())
    });
    assert!(caller.0.has_nothing_aside(), "an answer came twice");
}

#[test]
fn a_hello_of_a_revoked_credential_is_told_so_and_its_scopes_are_of_no_use() {
    let place = Place::with_daemon(&[]);
    let mut operator = Operator::connect(&place);
    for role in ["producer", "caller", "operator"] {
        let enrolled = operator.enroll(&place, role, &json!({}));
        let mut peer = Peer::connect(&enrolled.identity);
        let first = operator.revoke(&enrolled.id).unwrap().result;
        assert_eq!(first, json!({"credential": enrolled.id, "label": "test", "cut": 1}));
        assert!(peer.all_that_comes().is_empty(), "a revoked connection is cut without a byte");
        let revoked = Some(Refused::Sealed("revoked".to_owned()));
        assert_eq!(Peer::hello(&enrolled.identity).err(), revoked);
        // Who cannot prove that the key is his learns nothing of it, and another role is not told before.
        let forged = Identity { key: Arc::new(Key::random()), ..enrolled.identity.clone() };
        assert_eq!(Peer::hello(&forged).err(), Some(Refused::Sealed("unauthenticated".to_owned())));
        let other = enrolled.identity.with_role(if role == "caller" { "producer" } else { "caller" });
        assert_eq!(Peer::hello(&other).err(), revoked);
        let again = operator.revoke(&enrolled.id).unwrap().result;
        assert_eq!(again, json!({"credential": enrolled.id, "label": "test", "cut": 0}));
    }
    let unknown = operator.revoke(&base64(&[7; 16])).unwrap_err();
    assert_eq!(unknown.code, "credential-not-found");
}

/// What stands in `credentials.json` of a credential, behind its first line.
fn stored(place: &Place, id: &str) -> Value {
    let text = std::fs::read_to_string(place.path().join("credentials.json")).unwrap();
    let file: Value = serde_json::from_str(text.split_once('\n').unwrap().1).unwrap();
    let found = file["credentials"].as_array().unwrap().iter().find(|record| record["credential"] == id);
    found.unwrap_or_else(|| panic!("{id} is not stored: {file}")).clone()
}

#[test]
fn what_was_answered_is_on_disk_and_holds_for_the_next_daemon() {
    let mut place = Place::with_daemon(&[]);
    let mut operator = Operator::connect(&place);
    let (kept, revoked) =
        (operator.enroll(&place, "caller", &json!({})), operator.enroll(&place, "caller", &json!({})));
    assert!(stored(&place, &kept.id)["revoked"].is_null());
    assert!(stored(&place, &revoked.id)["revoked"].is_null());
    operator.revoke(&revoked.id).unwrap();
    assert!(stored(&place, &revoked.id)["revoked"].is_string(), "it was answered before it was stored");
    assert!(stored(&place, &kept.id)["revoked"].is_null());
    place.signal_daemon(nix::sys::signal::Signal::SIGKILL);
    assert_eq!(place.wait_daemon(), 128 + 9);
    place.start_daemon(&[]);
    assert_eq!(Peer::hello(&revoked.identity).err(), Some(Refused::Sealed("revoked".to_owned())));
    Peer::connect(&kept.identity);
}

#[test]
fn the_last_operator_cannot_be_revoked_and_one_who_revokes_himself_hears_no_answer() {
    let place = Place::with_daemon(&[]);
    let mut first = Operator::connect(&place);
    let own = first.credentials("operator").remove(0);
    assert_eq!(first.revoke(&own).unwrap_err().code, "last-operator");
    assert!(stored(&place, &own)["revoked"].is_null());

    let enrolled = first.enroll(&place, "operator", &json!({}));
    let mut second = Operator(Peer::connect(&enrolled.identity));
    let id = second.0.request("credential.revoke", &json!({"credential": enrolled.id}), None);
    assert!(second.0.try_answer(id).is_none(), "no byte is written to a revoked operator, the answer neither");
    assert!(stored(&place, &enrolled.id)["revoked"].is_string());
    assert_eq!(first.revoke(&own).unwrap_err().code, "last-operator", "a revoked operator is none");

    let enrolled = first.enroll(&place, "operator", &json!({}));
    let mut third = Operator(Peer::connect(&enrolled.identity));
    third.revoke(&own).unwrap();
    assert!(first.0.all_that_comes().is_empty());
    assert_eq!(third.revoke(&enrolled.id).unwrap_err().code, "last-operator");
    assert_eq!(Peer::hello(&Identity::of(&place, "operator")).err(), Some(Refused::Sealed("revoked".to_owned())));
}

#[test]
fn a_default_credential_that_is_replaced_is_revoked_in_the_same_step() {
    let place = Place::with_daemon(&[]);
    let mut operator = Operator::connect(&place);
    let old = operator.credentials("caller").remove(0);
    let mut before = Caller::connect(&place);
    let new = operator.enroll(&place, "caller", &json!({ "replaces": old }));
    assert!(before.0.all_that_comes().is_empty());
    assert!(stored(&place, &old)["revoked"].is_string());
    assert_eq!(stored(&place, &new.id)["default"], true);
    assert_eq!(Peer::hello(&Identity::of(&place, "caller")).err(), Some(Refused::Sealed("revoked".to_owned())));
    Peer::connect(&new.identity);
}

#[test]
fn a_wait_of_a_revoked_caller_is_never_answered_and_gives_its_place_back() {
    let place = Place::with_daemon(&[]);
    let mut operator = Operator::connect(&place);
    let enrolled = operator.enroll(&place, "caller", &json!({}));
    let mut peer = Peer::connect(&enrolled.identity);
    peer.request("session.wait", &json!({"selector": {"title": "awaited"}}), None);
    until("the wait is kept", || (operator.used("streams") == 1).then_some(()));
    operator.revoke(&enrolled.id).unwrap();
    let _awaited = Producer::start(&place, "awaited");
    assert!(peer.all_that_comes().is_empty());
    until("the wait is given back", || (operator.used("streams") == 0).then_some(()));
}

/// A credential that ends soon, and when.
fn ending(operator: &mut Operator, place: &Place, role: &str) -> (Identity, String, jiff::Timestamp) {
    let expires = jiff::Timestamp::now() + jiff::SignedDuration::from_millis(1_200);
    let enrolled = operator.enroll(place, role, &json!({ "expires": expires }));
    (enrolled.identity, enrolled.id, expires)
}

#[test]
fn an_idle_connection_whose_credential_expires_is_cut() {
    let place = Place::with_daemon(&[]);
    let mut operator = Operator::connect(&place);
    for role in ["producer", "caller", "operator"] {
        let (identity, id, expires) = ending(&mut operator, &place, role);
        let mut peer = Peer::connect(&identity);
        let told: jiff::Timestamp = peer.welcome["expires"].as_str().unwrap().parse().unwrap();
        assert_eq!(told.as_millisecond(), expires.as_millisecond());
        // The sweep is a second; the rest is for a busy machine.
        peer.stream.socket.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
        assert!(peer.all_that_comes().is_empty(), "an expired {role} was told something");
        assert!(jiff::Timestamp::now() >= expires, "cut before its end");
        within(Duration::from_secs(5), "the expiry is stored", || stored(&place, &id)["expired"].as_str().map(drop));
        assert_eq!(Peer::hello(&identity).err(), Some(Refused::Sealed("expired".to_owned())));
    }
}

#[test]
fn a_command_that_is_queued_when_its_caller_expires_never_leaves() {
    let place = Place::with_daemon(&[]);
    let producer = Producer::start(&place, "busy");
    let (mut operator, mut caller) = (Operator::connect(&place), Caller::connect(&place));
    let held = caller.start(&producer.session, "hold", None);
    let id = producer.nth("hold", 1).id;
    let (identity, _, _) = ending(&mut operator, &place, "caller");
    let mut expiring = Caller(Peer::connect(&identity));
    expiring.start(&producer.session, "count", None);
    until("the command is queued", || (operator.used("queued") == 1).then_some(()));
    until("the credential expires", || {
        (Peer::hello(&identity).err() == Some(Refused::Sealed("expired".to_owned()))).then_some(())
    });
    producer.release(id, Reply::Result(None));
    caller.answer(held).unwrap();
    caller.fence(&producer.session);
    assert_eq!(producer.effects("count"), 0);
    assert!(expiring.0.all_that_comes().is_empty());
}

#[test]
fn a_credential_that_is_renewed_in_time_goes_on_and_one_that_has_ended_does_not() {
    let place = Place::with_daemon(&[]);
    let producer = Producer::start(&place, "there");
    let mut operator = Operator::connect(&place);
    let (identity, id, _) = ending(&mut operator, &place, "caller");
    let (gone, gone_id, _) = ending(&mut operator, &place, "caller");
    let mut renewed = Caller(Peer::connect(&identity));
    operator.done("credential.renew", &json!({ "credential": id }));
    until("the other credential expires", || {
        (Peer::hello(&gone).err() == Some(Refused::Sealed("expired".to_owned()))).then_some(())
    });
    renewed.fence(&producer.session);
    let mut renew = |id: &str| operator.0.call("credential.renew", &json!({ "credential": id }), None);
    let answers: HashMap<_, Answer> = [("expired", renew(&gone_id)), ("none", renew(&base64(&[9; 16])))].into();
    assert_eq!(answers["expired"].as_ref().unwrap_err().code, "expired");
    assert_eq!(answers["none"].as_ref().unwrap_err().code, "credential-not-found");
    operator.revoke(&id).unwrap();
    assert_eq!(operator.0.call("credential.renew", &json!({ "credential": id }), None).unwrap_err().code, "revoked");
}

#[test]
fn an_operator_that_is_revoked_while_it_enrols_makes_nothing_behind_the_answer() {
    let place = Place::with_daemon(&[]);
    let mut operator = Operator::connect(&place);
    for round in 0..5 {
        let rogue = operator.enroll(&place, "operator", &json!({}));
        let peers: Vec<_> = (0..8).map(|_| Peer::connect(&rogue.identity)).collect();
        for peer in &peers {
            for _ in 0..20 {
                let public_key = base64(&Key::random().public());
                let wanted = json!({"public_key": public_key, "label": "late", "role": "operator", "scopes": "row"});
                peer.request("credential.enroll", &wanted, None);
            }
        }
        operator.revoke(&rogue.id).unwrap();
        let stored = || std::fs::read(place.path().join("credentials.json")).unwrap();
        let then = stored();
        until("the others are gone", || (operator.status()["connections"]["open"] == 1).then_some(()));
        assert!(stored() == then, "round {round}: something was stored after the revocation was answered");
    }
}
