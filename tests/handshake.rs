//! What is altered, cut short, replayed, reordered or said by the wrong one is refused, and nothing of it is acted on.

use std::io::Write;
use std::os::unix::fs::DirBuilderExt;
use std::os::unix::net::UnixListener;
use std::path::PathBuf;
use std::process::Stdio;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::support::daemon::{Place, Ran, finished};
use crate::support::peers::{Caller, Operator, Producer, Reply, registration, reply_to, sending};
use crate::support::threads;
use crate::support::wait::until;
use crate::support::wire::{
    Done, Hello, Identity, Key, Lines, Message, Peer, Refused, Stream, base64, random, request, with_payload,
};

/// Connections at once: far below the bound on unfinished hellos.
const AT_ONCE: usize = 6;

/// A daemon with one session whose effects are counted.
struct Arena {
    producer: Producer,
    caller: Identity,
    place: Place,
}

impl Arena {
    fn new(args: &[&str]) -> Self {
        let place = Place::with_daemon(args);
        let producer = Producer::with(&Identity::of(&place, "producer"), &registration("counts", 64));
        Self { producer, caller: Identity::of(&place, "caller"), place }
    }

    /// The frame that somebody wants acted on.
    fn count(&self, id: u64) -> Vec<u8> {
        request(id, "session.send", &sending(&self.producer.session, "count"), None)
    }

    /// How often that has happened, once nothing can be on its way any more.
    fn effects(&self) -> usize {
        let mut operator = Operator::connect(&self.place);
        until("every other connection has ended", || {
            (operator.status()["connections"]["open"].as_u64() == Some(2)).then_some(())
        });
        Caller::connect(&self.place).fence(&self.producer.session);
        self.producer.effects("count")
    }

    fn refuses_and_serves_on(&self) {
        assert_eq!(self.effects(), 0, "something altered was acted on");
        let fate = attempt(self, &|_, bytes| bytes);
        assert!(matches!(fate, Fate::Welcomed(_)), "unaltered it is let in: {fate:?}");
        self.producer.nth("count", 1);
    }
}

/// What goes over the wire up to the first request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Part {
    First,
    Challenge,
    DaemonProof,
    ClientProof,
    Frame,
}

/// How a connection ended.
#[derive(Debug)]
enum Fate {
    /// Without a frame.
    Ended,
    /// With this code, sealed.
    Refused(String),
    /// With one frame of this length that the client cannot open.
    Unopened(usize),
    /// It was let in; what else it was told.
    Welcomed(Vec<Message>),
}

/// A hello and a first request through a relay that alters one part, for a client that does not look. The request is
/// sealed with the keys that the daemon would come to: nobody could do more.
fn attempt(arena: &Arena, alter: &dyn Fn(Part, Vec<u8>) -> Vec<u8>) -> Fate {
    let Hello { ephemeral, lines: mut ours } = Hello::new(&arena.caller);
    let mut theirs = Lines { first: alter(Part::First, ours.first.clone()), ..Lines::default() };
    let mut stream = Stream::connect(&arena.caller.socket);
    stream.send(&theirs.first);
    if !theirs.first.contains(&b'\n') {
        stream.half_close();
    }
    let (Some(challenge), Some(daemon_proof)) = (stream.line(), stream.line()) else { return Fate::Ended };
    ours.challenge = alter(Part::Challenge, challenge.clone());
    ours.daemon_proof = alter(Part::DaemonProof, daemon_proof.clone());
    (theirs.challenge, theirs.daemon_proof) = (challenge, daemon_proof);
    ours.sign(&arena.caller.key);
    theirs.client_proof = alter(Part::ClientProof, ours.client_proof);
    let (mut seal, mut open) = theirs.keys(ephemeral, &theirs.daemon_ephemeral().unwrap()).unwrap();
    let frame = alter(Part::Frame, seal.seal(&arena.count(1)));
    stream.send(&[theirs.client_proof, frame].concat());
    stream.half_close();

    let Some(first) = stream.frame() else { return Fate::Ended };
    let Some(first) = open.open(&first).map(|text| Message::read(&text)) else {
        assert!(stream.rest().is_empty(), "more than one frame for somebody who cannot open the first");
        return Fate::Unopened(first.len());
    };
    let mut more = Vec::new();
    while let Some(frame) = stream.frame() {
        more.push(Message::read(&open.open(&frame).unwrap()));
    }
    match first.method() {
        "refused" => {
            assert!(more.is_empty(), "something came behind a refusal: {more:?}");
            Fate::Refused(first.header["params"]["code"].as_str().unwrap().to_owned())
        }
        _ => Fate::Welcomed(more),
    }
}

/// The length of a sealed `refused unauthenticated`.
fn refusal_bytes() -> usize {
    let text = r#"{"jsonrpc":"2.0","method":"refused","params":{"code":"unauthenticated"}}"#;
    4 + text.len() + 16
}

fn flipped(mut bytes: Vec<u8>, bit: usize) -> Vec<u8> {
    bytes[bit / 8] ^= 1 << (bit % 8);
    bytes
}

/// Does everything from 0 to `count`, several at once.
fn each(count: usize, one: impl Fn(usize) + Sync) {
    let next = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for _ in 0..AT_ONCE {
            scope.spawn(|| {
                loop {
                    let number = next.fetch_add(1, SeqCst);
                    if number >= count {
                        return;
                    }
                    one(number);
                }
            });
        }
    });
}

/// How long each part is. It is the same on every connection.
fn bytes_of(arena: &Arena, part: Part) -> usize {
    let peer = Peer::connect(&arena.caller);
    match part {
        Part::First => peer.lines.first.len(),
        Part::Challenge => peer.lines.challenge.len(),
        Part::DaemonProof => peer.lines.daemon_proof.len(),
        Part::ClientProof => peer.lines.client_proof.len(),
        Part::Frame => 4 + arena.count(1).len() + 16,
    }
}

fn every_bit(part: Part, judge: impl Fn(usize, Fate) + Sync) {
    let arena = Arena::new(&[]);
    let bytes = bytes_of(&arena, part);
    let tried = AtomicUsize::new(0);
    each(bytes * 8, |bit| {
        let fate = attempt(&arena, &|this, bytes| if this == part { flipped(bytes, bit) } else { bytes });
        judge(bit, fate);
        tried.fetch_add(1, SeqCst);
    });
    assert!(bytes > 90 && tried.load(SeqCst) == bytes * 8);
    arena.refuses_and_serves_on();
}

fn is_refused(what: &str, bit: usize, fate: &Fate) {
    match fate {
        Fate::Ended => {}
        Fate::Refused(code) => assert_eq!(code, "unauthenticated", "{what}, bit {bit}"),
        other => panic!("{what}, bit {bit}: {other:?}"),
    }
}

#[test]
fn every_changed_bit_of_the_first_line_is_refused() {
    every_bit(Part::First, |bit, fate| match fate {
        // With another X25519 key than the client's own it cannot open its refusal.
        Fate::Unopened(length) => assert_eq!(length, refusal_bytes(), "bit {bit}"),
        other => is_refused("line 1", bit, &other),
    });
}

#[test]
fn every_changed_bit_of_the_challenge_is_refused_even_when_the_client_does_not_look() {
    every_bit(Part::Challenge, |bit, fate| {
        assert!(matches!(&fate, Fate::Refused(code) if code == "unauthenticated"), "bit {bit}: {fate:?}");
    });
}

#[test]
fn every_changed_bit_of_the_daemons_proof_is_refused_even_when_the_client_does_not_look() {
    every_bit(Part::DaemonProof, |bit, fate| {
        assert!(matches!(&fate, Fate::Refused(code) if code == "unauthenticated"), "bit {bit}: {fate:?}");
    });
}

#[test]
fn every_changed_bit_of_the_clients_proof_is_refused() {
    every_bit(Part::ClientProof, |bit, fate| is_refused("client proof", bit, &fate));
}

#[test]
fn every_changed_bit_of_a_sealed_frame_ends_the_connection() {
    every_bit(Part::Frame, |bit, fate| match fate {
        Fate::Welcomed(more) => {
            let methods: Vec<_> = more.iter().map(Message::method).collect();
            assert_eq!(methods, ["closing"], "bit {bit}: {more:?}");
        }
        other => panic!("bit {bit}: {other:?}"),
    });
}

#[test]
fn a_client_that_looks_refuses_every_changed_bit_of_what_the_daemon_says() {
    let arena = Arena::new(&[]);
    let peer = Peer::connect(&arena.caller);
    let lines = &peer.lines;
    assert_eq!(lines.check_daemon(&arena.caller.daemon), Ok(()));
    each(lines.challenge.len() * 8, |bit| {
        let altered = Lines { challenge: flipped(lines.challenge.clone(), bit), ..lines.clone() };
        assert!(altered.check_daemon(&arena.caller.daemon).is_err(), "challenge, bit {bit}");
    });
    each(lines.daemon_proof.len() * 8, |bit| {
        let altered = Lines { daemon_proof: flipped(lines.daemon_proof.clone(), bit), ..lines.clone() };
        assert!(altered.check_daemon(&arena.caller.daemon).is_err(), "daemon proof, bit {bit}");
    });
}

/// Sends a part only up to a byte, then says nothing more (`half`) or is gone.
fn cut_short(arena: &Arena, part: Part, at: usize, half: bool) {
    let Hello { ephemeral, mut lines } = Hello::new(&arena.caller);
    let mut stream = Stream::connect(&arena.caller.socket);
    let leave = |stream: Stream, sent: &[u8]| {
        stream.send(&sent[..at]);
        if half {
            stream.half_close();
            Some(stream)
        } else {
            None
        }
    };
    if part == Part::First {
        if let Some(mut stream) = leave(stream, &lines.first) {
            assert!(stream.rest().is_empty(), "line 1 up to byte {at} was answered");
        }
        return;
    }
    stream.send(&lines.first);
    lines.challenge = stream.line().unwrap();
    lines.daemon_proof = stream.line().unwrap();
    lines.sign(&arena.caller.key);
    if part == Part::ClientProof {
        if let Some(mut stream) = leave(stream, &lines.client_proof) {
            assert!(stream.rest().is_empty(), "a proof up to byte {at} was answered");
        }
        return;
    }
    let (mut seal, mut open) = lines.keys(ephemeral, &lines.daemon_ephemeral().unwrap()).unwrap();
    stream.send(&lines.client_proof);
    if let Some(mut stream) = leave(stream, &seal.seal(&arena.count(1))) {
        let mut methods = Vec::new();
        while let Some(frame) = stream.frame() {
            methods.push(Message::read(&open.open(&frame).unwrap()).method().to_owned());
        }
        let end = if at == 0 { &["welcome"][..] } else { &["welcome", "closing"][..] };
        assert_eq!(methods, end, "a frame up to byte {at}");
    }
}

#[test]
fn nothing_that_was_cut_short_is_acted_on() {
    let arena = Arena::new(&[]);
    for part in [Part::First, Part::ClientProof, Part::Frame] {
        each(bytes_of(&arena, part) * 2, |number| cut_short(&arena, part, number / 2, number % 2 == 0));
    }
    arena.refuses_and_serves_on();
}

#[test]
fn a_recorded_connection_cannot_be_replayed() {
    let arena = Arena::new(&[]);
    let mut recorded = Peer::connect(&arena.caller);
    recorded.text(&arena.count(1));
    recorded.answer(1).unwrap();
    assert_eq!(arena.producer.effects("count"), 1);
    let sent = recorded.stream.sent();
    let first = recorded.lines.first.len();
    assert!(sent.len() > first + recorded.lines.client_proof.len(), "the record holds the frame too");

    // All at once, as a tape; then each part when its turn comes; while the first is there and when it is gone.
    for round in 0..4 {
        let mut stream = Stream::connect(&arena.caller.socket);
        let challenge = if round % 2 == 0 {
            stream.send(&sent);
            stream.line().unwrap()
        } else {
            stream.send(&sent[..first]);
            let challenge = stream.line().unwrap();
            stream.send(&sent[first..]);
            challenge
        };
        assert_ne!(challenge, recorded.lines.challenge, "a challenge is never the same");
        stream.line().unwrap();
        stream.half_close();
        assert_eq!(stream.frame().unwrap().len(), refusal_bytes());
        assert!(stream.rest().is_empty());
        if round == 1 {
            recorded.hang_up();
        }
    }
    assert_eq!(arena.effects(), 1);
}

#[test]
fn a_frame_counts_once_in_its_place_on_its_own_connection() {
    let arena = Arena::new(&[]);
    let ends = |peer: &mut Peer| {
        let more = peer.all_that_comes();
        let last = more.last().map(Message::method).unwrap_or_default();
        assert_eq!(last, "closing", "{more:?}");
        more.iter().filter(|message| message.id().is_some()).count()
    };

    let mut twice = Peer::connect(&arena.caller);
    let frame = twice.outgoing().lock().seal(&arena.count(1));
    twice.outgoing().lock().raw(&frame);
    twice.answer(1).unwrap();
    twice.outgoing().lock().raw(&frame);
    assert_eq!(ends(&mut twice), 0);
    assert_eq!(arena.effects(), 1, "a second use of a frame");

    let mut swapped = Peer::connect(&arena.caller);
    let outgoing = swapped.outgoing();
    let frames = { [1, 2].map(|id| outgoing.lock().seal(&arena.count(id))) };
    outgoing.lock().raw(&[frames[1].as_slice(), &frames[0]].concat());
    assert_eq!(ends(&mut swapped), 0);

    let other = Peer::connect(&arena.caller);
    let frame = other.outgoing().lock().seal(&arena.count(1));
    let mut foreign = Peer::connect(&arena.caller);
    foreign.outgoing().lock().raw(&frame);
    assert_eq!(ends(&mut foreign), 0);
    other.hang_up();

    let mut reflected = Peer::connect(&arena.caller);
    let lines = reflected.lines.challenge.len() + reflected.lines.daemon_proof.len();
    let welcome = reflected.stream.heard[lines..].to_vec();
    assert!(!welcome.is_empty());
    reflected.outgoing().lock().raw(&welcome);
    assert_eq!(ends(&mut reflected), 0);

    let mut dropped = Peer::connect(&arena.caller);
    let outgoing = dropped.outgoing();
    let _never_sent = outgoing.lock().seal(&arena.count(1));
    let second = outgoing.lock().seal(&arena.count(1));
    outgoing.lock().raw(&second);
    assert_eq!(ends(&mut dropped), 0);

    assert_eq!(arena.effects(), 1);
}

/// What a daemon with this key says to a line 1.
fn impostor(first: &[u8], named: &[u8; 32], signs: &Key) -> (Vec<u8>, Vec<u8>) {
    let challenge = json!({"challenge": {
        "protocol": 1,
        "generation": base64(&random::<16>()),
        "daemon": base64(named),
        "nonce": base64(&random::<32>()),
        "ephemeral": base64(&random::<32>()),
    }});
    let challenge = format!("{challenge}\n").into_bytes();
    let lines = Lines { first: first.to_vec(), challenge, ..Lines::default() };
    let proof = signs.proof("usher/1 daemon proof\n", &lines.t1());
    (lines.challenge, proof)
}

#[test]
fn a_relay_that_answers_with_a_key_of_its_own_is_not_believed() {
    let place = Place::with_daemon(&[]);
    let identity = Identity::of(&place, "caller");
    let (own, folder) = (Key::random(), tempfile::tempdir().unwrap());
    for named in [own.public(), identity.daemon] {
        let path = folder.path().join(format!("{}.sock", base64(&named)));
        let listener = UnixListener::bind(&path).unwrap();
        let key = Key::random();
        let relay = threads::spawn("relay", move || {
            let (mut socket, _) = listener.accept().unwrap();
            let mut first = Vec::new();
            while !first.ends_with(b"\n") {
                let mut byte = [0];
                std::io::Read::read_exact(&mut socket, &mut byte).unwrap();
                first.push(byte[0]);
            }
            let (challenge, proof) = impostor(&first, &named, &key);
            socket.write_all(&[challenge, proof].concat()).unwrap();
        });
        let mut stream = Stream::connect(&path);
        let Hello { mut lines, .. } = Hello::new(&identity);
        stream.send(&lines.first);
        lines.challenge = stream.line().unwrap();
        lines.daemon_proof = stream.line().unwrap();
        assert!(lines.check_daemon(&identity.daemon).is_err());
        relay.join().unwrap();
    }
}

/// A directory that trusts the daemon of `place`, with a relay of ours where that daemon should listen.
struct Front {
    place: Place,
    relay: UnixListener,
    daemon: PathBuf,
}

impl Front {
    fn of(place: &Place) -> Self {
        let front = Place::empty();
        let folder = |name: &str| {
            let path = front.path().join(name);
            std::fs::DirBuilder::new().mode(0o700).create(&path).unwrap();
            path
        };
        let keys = folder("keys");
        for entry in std::fs::read_dir(place.path().join("keys")).unwrap() {
            let entry = entry.unwrap();
            std::fs::copy(entry.path(), keys.join(entry.file_name())).unwrap();
        }
        folder("s");
        let relay = UnixListener::bind(front.socket()).unwrap();
        relay.set_nonblocking(true).unwrap();
        Self { place: front, relay, daemon: place.socket() }
    }

    /// Runs `usher list` against what `alter` makes of the daemon's two lines; how it ended, and what it said after line 1.
    fn list(&self, alter: impl FnOnce(&[u8], Vec<u8>) -> Vec<u8>) -> (Ran, Vec<u8>) {
        let mut usher = self.place.usher();
        let usher = usher.arg("list").stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let (socket, _) = until("usher connects", || self.relay.accept().ok());
        socket.set_nonblocking(false).unwrap();
        let mut client = Stream::over(socket);
        let mut daemon = Stream::connect(&self.daemon);
        let first = client.line().unwrap();
        daemon.send(&first);
        let said = [daemon.line().unwrap(), daemon.line().unwrap()].concat();
        client.send(&alter(&first, said));
        client.half_close();
        let more = client.rest();
        (finished(usher), more)
    }
}

#[test]
fn the_command_line_proves_nothing_to_a_daemon_whose_words_were_altered() {
    let place = Place::with_daemon(&[]);
    let bytes = Peer::connect(&Identity::of(&place, "caller")).lines;
    let bytes = bytes.challenge.len() + bytes.daemon_proof.len();
    let refused = |what: &str, (ran, more): (Ran, Vec<u8>)| {
        assert_eq!((ran.code, ran.stdout.as_str()), (3, ""), "{what}: {ran:?}");
        assert!(more.is_empty(), "{what}: it went on with {:?}", String::from_utf8_lossy(&more));
    };
    // The relay itself is no reason to refuse: what comes unaltered is proved.
    let (_, more) = Front::of(&place).list(|_, said| said);
    assert!(more.starts_with(b"{\"proof\":\""), "{:?}", String::from_utf8_lossy(&more));

    let next = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                let front = Front::of(&place);
                loop {
                    let byte = next.fetch_add(1, SeqCst);
                    if byte >= bytes {
                        return;
                    }
                    let fate = front.list(|_, said| flipped(said, byte * 8 + byte % 8));
                    refused(&format!("byte {byte}"), fate);
                }
            });
        }
    });
    let (pinned, own) = (Identity::of(&place, "caller").daemon, Key::random());
    for named in [own.public(), pinned] {
        let fate = Front::of(&place).list(|first, _| {
            let (challenge, proof) = impostor(first, &named, &own);
            [challenge, proof].concat()
        });
        refused("a daemon with a key of its own", fate);
    }
}

#[test]
fn a_key_of_one_daemon_opens_no_other() {
    let (here, there) = (Place::with_daemon(&[]), Place::with_daemon(&[]));
    for role in ["producer", "caller", "operator"] {
        let lost =
            Identity { socket: there.socket(), daemon: Identity::of(&there, role).daemon, ..Identity::of(&here, role) };
        assert_eq!(Peer::hello(&lost).err(), Some(Refused::Sealed("unauthenticated".to_owned())));
    }
}

#[test]
fn a_stranger_and_a_wrong_key_for_a_known_name_are_told_the_same() {
    let place = Place::with_daemon(&[]);
    let unauthenticated = Some(Refused::Sealed("unauthenticated".to_owned()));
    for role in ["producer", "caller", "operator"] {
        let known = Identity::of(&place, role);
        assert_eq!(Peer::hello(&known.with_key(Key::random())).err(), unauthenticated, "a stranger");
        let wrong = Identity { named: known.named, ..known.with_key(Key::random()) };
        assert_eq!(Peer::hello(&wrong).err(), unauthenticated, "the name of another");
        let unnamed = Identity { named: random(), ..known.clone() };
        assert_eq!(Peer::hello(&unnamed).err(), unauthenticated, "a name that nobody has");
        let other = Identity::of(&place, if role == "operator" { "caller" } else { "operator" });
        let borrowed = Identity { named: other.named, role: other.role, ..known };
        assert_eq!(Peer::hello(&borrowed).err(), unauthenticated, "the name of another role");
    }
}

#[test]
fn a_key_is_let_in_in_its_own_role_only() {
    let place = Place::with_daemon(&[]);
    for own in ["producer", "caller", "operator"] {
        for asked in ["producer", "caller", "operator"] {
            let fate = Peer::hello(&Identity::of(&place, own).with_role(asked)).map(|peer| peer.welcome);
            match fate {
                Ok(welcome) => assert!(own == asked && welcome["role"] == own, "{own} as {asked}: {welcome}"),
                Err(refused) => {
                    assert!(own != asked, "{own} is not let in");
                    assert_eq!(refused, Refused::Sealed("role".to_owned()), "{own} as {asked}");
                }
            }
        }
    }
}

#[test]
fn the_scopes_of_a_hello_narrow_and_never_widen() {
    let arena = Arena::new(&[]);
    let send = sending(&arena.producer.session, "count");
    let mut narrow = Peer::connect(&arena.caller.with_scopes(&["session.list"]));
    assert_eq!(narrow.welcome["scopes"], json!(["session.list"]));
    narrow.call("session.list", &json!({}), None).unwrap();
    assert_eq!(narrow.call("session.send", &send, None).unwrap_err().told(), ("denied", "not-delivered"));
    assert_eq!(narrow.call("daemon.status", &json!({}), None).unwrap_err().code, "denied");

    let mut nothing = Peer::connect(&arena.caller.with_scopes(&[]));
    assert_eq!(nothing.welcome["scopes"], json!([]));
    assert_eq!(nothing.call("session.list", &json!({}), None).unwrap_err().code, "denied");

    let greedy = ["session.list", "credential.revoke", "daemon.stop", "session.register", "no.such"];
    let mut greedy = Peer::connect(&arena.caller.with_scopes(&greedy));
    assert_eq!(greedy.welcome["scopes"], json!(["session.list"]));
    assert_eq!(greedy.call("daemon.stop", &json!({"force": true}), None).unwrap_err().code, "unknown-method");
    drop((narrow, nothing, greedy));
    assert_eq!(arena.effects(), 0);
}

#[test]
fn a_proof_that_comes_after_the_deadline_is_not_taken() {
    let arena = Arena::new(&["--limit", "hello-ms=400"]);
    let late = |drip: bool| {
        let begun = Instant::now();
        let Hello { ephemeral, mut lines } = Hello::new(&arena.caller);
        let mut stream = Stream::connect(&arena.caller.socket);
        stream.send(&lines.first);
        lines.challenge = stream.line().unwrap();
        lines.daemon_proof = stream.line().unwrap();
        lines.sign(&arena.caller.key);
        let (mut seal, _) = lines.keys(ephemeral, &lines.daemon_ephemeral().unwrap()).unwrap();
        let mut rest = lines.client_proof.clone();
        if drip {
            // A byte now and then delays nothing.
            let last = rest.split_off(rest.len() - 1);
            until("a proof that never ends is cut", || {
                let byte = if rest.is_empty() { b'}' } else { rest.remove(0) };
                (!stream.send(&[byte])).then_some(())
            });
            rest = last;
        }
        assert!(stream.rest().is_empty(), "the daemon said something to an unfinished hello");
        assert!(begun.elapsed() >= Duration::from_millis(400), "cut before the deadline");
        rest.extend(seal.seal(&arena.count(1)));
        assert!(!stream.send(&rest), "a late proof still went somewhere");
    };
    late(false);
    late(true);
    arena.refuses_and_serves_on();
}

#[test]
fn a_first_line_that_does_not_come_within_its_second_is_not_waited_for() {
    let arena = Arena::new(&[]);
    let begun = Instant::now();
    let Hello { lines, .. } = Hello::new(&arena.caller);
    let mut silent = Stream::connect(&arena.caller.socket);
    let mut slow = Stream::connect(&arena.caller.socket);
    slow.send(&lines.first[..lines.first.len() - 1]);
    for stream in [&mut silent, &mut slow] {
        assert!(stream.rest().is_empty());
        assert!(begun.elapsed() >= Duration::from_secs(1), "cut before the deadline");
        assert!(!stream.send(&lines.first), "a late line still went somewhere");
    }
    arena.refuses_and_serves_on();
}

/// What the daemon answers to raw bytes on a connection of their own, to the end of the stream.
fn answer_to_line(place: &Place, line: &[u8]) -> Vec<u8> {
    let mut stream = Stream::connect(&place.socket());
    stream.send(line);
    stream.half_close();
    stream.rest()
}

#[test]
fn a_first_line_is_one_exact_object() {
    let place = Place::with_daemon(&[]);
    let good = Hello::new(&Identity::of(&place, "caller")).lines.first;
    assert!(answer_to_line(&place, &good).starts_with(b"{\"challenge\""));
    let text = String::from_utf8(good.clone()).unwrap();
    let line = text.trim_end();
    let deep = format!("{{\"hello\":{}{}}}\n", "[".repeat(2_000), "]".repeat(2_000));
    let wrong: Vec<Vec<u8>> = vec![
        b"\n".to_vec(),
        b"{}\n".to_vec(),
        b"null\n".to_vec(),
        b"\0\n".to_vec(),
        format!("{line}\r\n").into(),
        format!("{line} \n").into(),
        format!(" {line}\n").into(),
        format!("\u{feff}{line}\n").into(),
        format!("{line}{{}}\n").into(),
        format!("[{line}]\n").into(),
        text.replace("test/1", "test\\u0000").into(),
        text.replace("test/1", "test\u{0}").into(),
        text.replace("test/1", "").into(),
        text.replace("test/1", &"x".repeat(65)).into(),
        text.replace("test/1", "tést").into(),
        text.replace("test/1", "\\ud800").into(),
        text.replacen("{\"hello\":{", "{\"hello\":{\"more\":1,", 1).into(),
        text.replacen("{\"hello\":{", "{\"hello\":{\"role\":\"caller\",", 1).into(),
        text.replacen("{\"hello\":{", "{\"more\":1,\"hello\":{", 1).into(),
        format!("{},\"hello\":{}\n", &line[..line.len() - 1], &line[9..]).into(),
        text.replace("\"max\":1", "\"max\":0").into(),
        text.replace("\"max\":1", "\"max\":1e0").into(),
        text.replace("\"max\":1", "\"max\":1e999").into(),
        text.replace("\"max\":1", "\"max\":65536").into(),
        text.replace("\"max\":1", "\"max\":-1").into(),
        text.replace("\"max\":1", "\"max\":null").into(),
        text.replace("\"role\":\"caller\"", "\"role\":\"Caller\"").into(),
        text.replace("\"role\":\"caller\"", "\"role\":{}").into(),
        text.replace("{\"max\":1,\"min\":1}", "[1,1]").into(),
        good.iter().map(|&byte| if byte == b't' { 0xff } else { byte }).collect(),
        deep.into(),
        b"{\"health\":2}\n".to_vec(),
        b"{\"health\":1,\"more\":1}\n".to_vec(),
        b"{\"health\":1,\"health\":1}\n".to_vec(),
        b"{\"health\":[1]}\n".to_vec(),
        b"{\"health\":1}\r\n".to_vec(),
        b" {\"health\":1}\n".to_vec(),
        b"{\"health\":1}".to_vec(),
    ];
    for wrong in wrong {
        assert_ne!(wrong, good);
        let answer = answer_to_line(&place, &wrong);
        assert!(answer.is_empty(), "{:?}: {:?}", String::from_utf8_lossy(&wrong), String::from_utf8_lossy(&answer));
    }
    let longest = format!("{{\"health\":1{}}}\n", " ".repeat(4_096 - 13));
    assert_eq!(longest.len(), 4_096);
    assert!(answer_to_line(&place, longest.as_bytes()).starts_with(b"{\"ok\":true,"));
    let too_long = format!("{{\"health\":1{}}}\n", " ".repeat(4_097 - 13));
    assert!(answer_to_line(&place, too_long.as_bytes()).is_empty());
    assert!(place.health().is_some());
}

/// Says something that breaks a rule: the daemon says `closing` with a reason, nothing else, and cuts.
fn is_cut(identity: &Identity, what: &str, say: impl FnOnce(&Peer)) {
    let mut peer = Peer::connect(identity);
    say(&peer);
    let more = peer.all_that_comes();
    assert_eq!(more.iter().map(Message::method).collect::<Vec<_>>(), ["closing"], "{what}: {more:?}");
    assert!(more[0].header["params"]["reason"].as_str().is_some_and(|reason| !reason.is_empty()), "{what}");
    assert!(!peer.text(b"{}"), "{what}: the connection is still there");
}

#[test]
fn a_frame_length_out_of_bounds_ends_the_connection_before_anything_else_comes() {
    let arena = Arena::new(&[]);
    for length in [0, 1, 16, 9_437_185, 0x7fff_ffff, u32::MAX] {
        is_cut(&arena.caller, &format!("N = {length}"), |peer| {
            peer.outgoing().lock().raw(&u32::to_be_bytes(length));
        });
    }
    // The largest length is one that is waited for.
    let mut largest = Peer::connect(&arena.caller);
    let text = with_payload(
        &json!({"jsonrpc": "2.0", "id": 1, "method": "session.send",
            "params": sending(&arena.producer.session, "count")}),
        Some(&[b'x'; 9_437_184 - 16 - 200]),
    );
    let padded = [b"{".as_slice(), &b" ".repeat(9_437_184 - 16 - text.len()), &text[1..]].concat();
    assert_eq!(padded.len(), 9_437_184 - 16);
    largest.text(&padded);
    assert_eq!(largest.answer(1).unwrap_err().told(), ("too-large", "not-delivered"));
    drop(largest);
    arena.refuses_and_serves_on();
}

#[test]
fn a_message_that_breaks_a_rule_ends_the_connection() {
    let arena = Arena::new(&[]);
    let head = |id: u64, method: &str| format!("{{\"jsonrpc\":\"2.0\",\"id\":{id},\"method\":\"{method}\"}}");
    let status = head(1, "daemon.status");
    let deep = format!("{{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"daemon.status\",\"more\":{}", "[".repeat(10_000));
    let padded = |bytes: usize| format!("{{{}{}", " ".repeat(bytes - status.len()), status.strip_prefix('{').unwrap());
    let texts: Vec<(&str, Vec<u8>)> = vec![
        ("no object", b"[]".to_vec()),
        ("a byte", b"{".to_vec()),
        ("LF alone", b"\n".to_vec()),
        ("a batch", format!("[{status}]").into()),
        ("a space before it", format!(" {status}").into()),
        ("a byte order mark", format!("\u{feff}{status}").into()),
        ("NUL", b"\0".to_vec()),
        ("NUL within a string", status.replace("status", "sta\0us").into()),
        ("NUL behind it", format!("{status}\0").into()),
        ("bad UTF-8", status.bytes().map(|byte| if byte == b'u' { 0xff } else { byte }).collect()),
        ("a lone surrogate", status.replace("status", "\\ud800").into()),
        ("a key twice", status.replace("{\"jsonrpc\"", "{\"id\":1,\"jsonrpc\"").into()),
        ("an unknown key", status.replace("{\"jsonrpc\"", "{\"more\":1,\"jsonrpc\"").into()),
        ("another JSON-RPC", status.replace("2.0", "1.0").into()),
        ("two objects", format!("{status}{{}}").into()),
        ("depth without end", deep.into()),
        ("an id that is no integer", status.replace("\"id\":1", "\"id\":1.0").into()),
        ("an id without bound", status.replace("\"id\":1", "\"id\":1e999").into()),
        ("an id of null", status.replace("\"id\":1", "\"id\":null").into()),
        ("an id of text", status.replace("\"id\":1", "\"id\":\"1\"").into()),
        ("id 0", head(0, "daemon.status").into()),
        ("id 2 first", head(2, "daemon.status").into()),
        ("the largest id", head(u64::MAX, "daemon.status").into()),
        ("an empty payload", format!("{}\n", head(1, "session.send")).into()),
        ("LF where no payload goes", format!("{status}\n").into()),
        ("a payload where none goes", format!("{status}\n{{}}").into()),
        ("a payload of an unknown method", format!("{}\n{{}}", head(1, "no.such")).into()),
        (
            "a payload of a notification",
            b"{\"jsonrpc\":\"2.0\",\"method\":\"$/cancel\",\"params\":{\"id\":1}}\n1".to_vec(),
        ),
        ("a header over its limit", padded(65_537).into()),
        ("an answer to nothing", b"{\"jsonrpc\":\"2.0\",\"id\":1,\"result\":{}}".to_vec()),
        ("a failure of nothing", b"{\"jsonrpc\":\"2.0\",\"id\":1,\"error\":{\"code\":1,\"message\":\"\"}}".to_vec()),
        (
            "result and error",
            b"{\"jsonrpc\":\"2.0\",\"id\":1,\"result\":{},\"error\":{\"code\":1,\"message\":\"\"}}".to_vec(),
        ),
        ("a result that is a list", b"{\"jsonrpc\":\"2.0\",\"id\":1,\"result\":[]}".to_vec()),
    ];
    for (what, text) in &texts {
        is_cut(&arena.caller, what, |peer| {
            peer.text(text);
        });
    }
    for second in [1, 3, 0] {
        let mut peer = Peer::connect(&arena.caller);
        peer.text(head(1, "daemon.status").as_bytes());
        peer.answer(1).unwrap();
        peer.text(head(second, "daemon.status").as_bytes());
        let more = peer.all_that_comes();
        assert_eq!(more.iter().map(Message::method).collect::<Vec<_>>(), ["closing"], "1, then {second}: {more:?}");
    }
    // The longest header is still one.
    let mut peer = Peer::connect(&arena.caller);
    peer.text(padded(65_536).as_bytes());
    peer.answer(1).unwrap();
    drop(peer);
    arena.refuses_and_serves_on();
}

#[test]
fn a_request_that_cannot_be_done_is_refused_and_the_conversation_goes_on() {
    let arena = Arena::new(&[]);
    let mut peer = Peer::connect(&arena.caller);
    let failure = peer.call("no.such", &json!({}), None).unwrap_err();
    assert_eq!((failure.code.as_str(), failure.error["code"].as_i64()), ("unknown-method", Some(-32_601)));
    for method in ["credential.list", "daemon.stop", "session.register", "session.update", "command", "welcome"] {
        assert_eq!(peer.call(method, &json!({}), None).unwrap_err().code, "unknown-method", "{method}");
    }
    let session = &arena.producer.session;
    let deep: Value = serde_json::from_str(&format!("{}{}", "[".repeat(120), "]".repeat(120))).unwrap();
    for params in [
        json!([]),
        json!({"selector": {}}),
        json!({"selector": [], "command": "count"}),
        json!({"selector": {"session": session}, "command": "count", "more": 1}),
        json!({"selector": {"session": session, "more": 1}, "command": "count"}),
        json!({"selector": {"session": session}, "command": "count", "deadline_ms": 0}),
        json!({"selector": {"session": session}, "command": "count", "deadline_ms": 300_001}),
        json!({"selector": {"session": session}, "command": "count", "deadline_ms": null}),
        json!({"selector": {"session": session}, "command": ["count"]}),
        json!({"selector": {"session": "abc"}, "command": "count"}),
        json!({"selector": deep, "command": "count"}),
    ] {
        let failure = peer.call("session.send", &params, None).unwrap_err();
        assert_eq!(failure.told(), ("invalid-params", "not-delivered"), "{params}");
        assert_eq!(failure.error["code"], -32_602, "{params}");
    }
    let texts = [
        format!("{{\"selector\":{{\"session\":\"{session}\"}},\"selector\":{{}},\"command\":\"count\"}}"),
        format!("{{\"selector\":{{\"session\":\"{session}\",\"session\":\"{session}\"}},\"command\":\"count\"}}"),
        "{\"selector\":{\"labels\":{\"a\":\"1\",\"a\":\"1\"}},\"command\":\"count\"}".to_owned(),
        format!("{{\"selector\":{}{},\"command\":\"count\"}}", "[".repeat(10_000), "]".repeat(10_000)),
        format!("{{\"selector\":{{\"session\":\"{session}\"}},\"command\":\"count\",\"deadline_ms\":1e999}}"),
    ];
    for (id, params) in (19..).zip(texts) {
        peer.text(
            format!("{{\"jsonrpc\":\"2.0\",\"id\":{id},\"method\":\"session.send\",\"params\":{params}}}").as_bytes(),
        );
        assert_eq!(peer.answer(id).unwrap_err().told(), ("invalid-params", "not-delivered"), "{params:.100}");
    }
    drop(peer);
    assert_eq!(arena.effects(), 0);
}

/// Texts and bytes that a daemon which read payloads would change or refuse.
fn odd_payloads() -> Vec<Vec<u8>> {
    vec![
        b"1".to_vec(),
        b"\xef\xbb\xbf1".to_vec(),
        b"\xff\xfe\x80 no UTF-8".to_vec(),
        b"\0".to_vec(),
        b"\"a\0b\"".to_vec(),
        b"{\"a\":1,\"a\":2}".to_vec(),
        b"1e999".to_vec(),
        b"\"\\ud800\"".to_vec(),
        b"{\r\n  \"a\": 1.0e0\r\n}".to_vec(),
        b"\n\n".to_vec(),
        b"\r".to_vec(),
        b" ".to_vec(),
        b"not JSON".to_vec(),
        b"{\"jsonrpc\":\"2.0\",\"id\":1,\"result\":{}}".to_vec(),
        [b"[".repeat(10_000), b"]".repeat(10_000)].concat(),
    ]
}

#[test]
fn a_payload_goes_through_byte_for_byte_whatever_it_is() {
    let arena = Arena::new(&[]);
    let mut caller = Caller::connect(&arena.place);
    for (number, payload) in odd_payloads().iter().enumerate() {
        let done = caller.send(&arena.producer.session, "echo", Some(payload)).unwrap();
        let arrived = arena.producer.nth("echo", number + 1);
        assert_eq!(arrived.input.as_ref(), Some(payload), "on the way to the session");
        assert_eq!(done.payload.as_ref(), Some(payload), "on the way back");
    }
    let done = caller.send(&arena.producer.session, "echo", None).unwrap();
    assert_eq!(done.payload, None, "no LF means null");

    let mut producer = Peer::connect(&Identity::of(&arena.place, "producer"));
    let mut get = |id: &str| caller.0.call("session.get", &json!({"selector": {"session": id}}), None).unwrap();
    let mut session: Option<String> = None;
    for payload in odd_payloads() {
        match &session {
            None => {
                let done = producer.call("session.register", &registration("odd", 1), Some(&payload)).unwrap();
                session = done.result["session_id"].as_str().map(str::to_owned);
            }
            Some(_) => {
                producer.call("session.update", &json!({"snapshot": true}), Some(&payload)).unwrap();
            }
        }
        let done = get(session.as_ref().unwrap());
        assert_eq!(done.payload.as_ref(), Some(&payload), "a snapshot");
        assert_eq!(done.result["session"]["title"], "odd");
    }
}

#[test]
fn a_producer_that_answers_what_it_was_never_asked_is_cut_and_no_other_session_notices() {
    let place = Place::with_daemon(&[]);
    let asked = Producer::start(&place, "asked");
    let mut caller = Caller::connect(&place);
    let held = caller.start(&asked.session, "hold", None);
    let command = asked.nth("hold", 1);

    let identity = Identity::of(&place, "producer");
    let answer = |id: u64| json!({"jsonrpc": "2.0", "id": id, "result": {}});
    for id in [0, command.id, 2, u64::MAX] {
        let mut other = Peer::connect(&identity);
        other.call("session.register", &registration("other", 1), None).unwrap();
        other.text(&with_payload(&answer(id), Some(b"\"stolen\"")));
        let more = other.all_that_comes();
        assert_eq!(more.iter().map(Message::method).collect::<Vec<_>>(), ["closing"], "id {id}: {more:?}");
    }

    assert!(asked.release(command.id, Reply::Result(Some(b"\"mine\"".to_vec()))));
    assert_eq!(caller.answer(held).unwrap().payload.unwrap(), b"\"mine\"");
    assert!(caller.send(&asked.session, "echo", Some(b"1")).is_ok());
}

#[test]
fn nothing_that_a_producer_puts_beside_its_payload_reaches_a_caller() {
    let place = Place::with_daemon(&[]);
    let mut producer = Peer::connect(&Identity::of(&place, "producer"));
    let done = producer.call("session.register", &registration("talks", 1), None).unwrap();
    let session = done.result["session_id"].as_str().unwrap().to_owned();
    let mut caller = Caller::connect(&place);
    for text in [
        json!({"jsonrpc": "2.0", "id": 1, "result": {"took_ms": 1, "session_id": "forged", "more": "x"}}),
        json!({"jsonrpc": "2.0", "id": 2, "result": {}, "receipt": "forged"}),
    ] {
        let pending = caller.start(&session, "count", None);
        assert_eq!(producer.next().unwrap().id(), text["id"].as_u64());
        producer.text(&with_payload(&text, Some(b"\"mine\"")));
        let message = caller.0.next().unwrap();
        assert_eq!(message.id(), Some(pending));
        assert!(!message.header.to_string().contains("forged"), "{}", message.header);
        let result = message.header["result"].as_object().unwrap();
        assert_eq!(result.keys().collect::<Vec<_>>(), ["session_id", "took_ms"]);
        assert_eq!(result["session_id"], session.as_str());
        assert_eq!(message.payload.unwrap(), b"\"mine\"");
    }
}

#[test]
fn a_second_answer_to_a_command_is_dropped() {
    let place = Place::with_daemon(&[]);
    let mut producer = Peer::connect(&Identity::of(&place, "producer"));
    let done = producer.call("session.register", &registration("twice", 1), None).unwrap();
    let session = done.result["session_id"].as_str().unwrap().to_owned();
    let mut caller = Caller::connect(&place);
    let request = caller.start(&session, "count", None);
    let id = producer.next().unwrap().id().unwrap();
    for payload in ["\"first\"", "\"second\""] {
        reply_to(&producer.outgoing(), id, Reply::Result(Some(payload.into())));
    }
    producer.call("session.heartbeat", &json!({}), None).unwrap();
    assert_eq!(caller.answer(request).unwrap().payload.unwrap(), b"\"first\"");
    let next = caller.start(&session, "count", None);
    let id = producer.next().unwrap().id().unwrap();
    reply_to(&producer.outgoing(), id, Reply::Failure("no".to_owned()));
    let failure = caller.answer(next).unwrap_err();
    assert_eq!((failure.told(), failure.error["message"].as_str()), (("command-failed", "delivered"), Some("no")));
}

#[test]
fn a_refused_registration_does_not_begin_the_ids_of_a_connection_anew() {
    let place = Place::with_daemon(&[]);
    let taken = Producer::start(&place, "taken");
    let mut producer = Peer::connect(&Identity::of(&place, "producer"));
    let caller = Caller::connect(&place);
    let id_of = |done: Done| done.result["session_id"].as_str().unwrap().to_owned();
    let first = id_of(producer.call("session.register", &registration("first", 1), None).unwrap());
    caller.start(&first, "count", None);
    assert_eq!(producer.next().unwrap().id(), Some(1));
    producer.call("session.unregister", &json!({}), None).unwrap();
    let mut owned = registration("second", 1);
    owned["session_id"] = taken.session.as_str().into();
    assert_eq!(producer.call("session.register", &owned, None).unwrap_err().told().0, "session-owned");
    // Late, and not for nothing: it was asked.
    producer.text(&with_payload(&json!({"jsonrpc": "2.0", "id": 1, "result": {}}), None));
    let third = id_of(producer.call("session.register", &registration("third", 1), None).unwrap());
    caller.start(&third, "count", None);
    assert_eq!(producer.next().unwrap().id(), Some(2));
}
