//! Peers that do not read, do not speak, do not end or do not answer: they are cut or time out, others do not notice, and
//! everything that they held is given back.

use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::time::{Duration, Instant};

use serde_json::json;

use crate::support::daemon::Place;
use crate::support::peers::{Caller, Producer, Reply, big, registration, reply_to, sending};
use crate::support::quiet::Quiet;
use crate::support::wait::{until, within};
use crate::support::wire::{Identity, Message, Peer, Stream, is_shut};

const MIB: usize = 1024 * 1024;

fn text(bytes: usize) -> Vec<u8> {
    let mut text = vec![b'x'; bytes];
    text[0] = b'"';
    text[bytes - 1] = b'"';
    text
}

#[test]
fn a_caller_that_never_reads_is_cut_at_its_bound_while_others_get_through() {
    let mut quiet = Quiet::new(&["peer-outbound-bytes=4194304"]);
    let producer = Producer::start(&quiet.place, "answers at length");
    let mut other = Caller::connect(&quiet.place);
    let mut before = None;
    for _ in 0..12 {
        let mut deaf = Caller::connect(&quiet.place);
        let outgoing = deaf.0.outgoing();
        let send = sending(&producer.session, "big");
        for _ in 0..8 {
            // Once it is cut, nothing more is taken from it either.
            let _cut = outgoing.lock().request("session.send", &send, None);
        }
        until("whoever does not read is cut", || {
            other.fence(&producer.session);
            is_shut(&deaf.0.stream.socket).then_some(())
        });
        assert!(deaf.0.stream.rest().len() < MIB, "what was kept came behind the cut");
        before.get_or_insert_with(|| quiet.process.resident_kib());
    }
    let grown = quiet.grown_mib(before.unwrap());
    assert!(grown < 24, "memory grew by {grown} MiB while 44 MiB were not read");
    let peak = quiet.account("outbound-bytes")["peak"].as_u64().unwrap();
    assert!((3 << 20..=4 << 20).contains(&peak), "{peak} bytes were kept for somebody who may have 4 MiB");
    drop((producer, other));
    quiet.is_as_before();
}

#[test]
fn when_the_total_is_full_the_one_who_holds_the_most_is_cut() {
    let mut quiet = Quiet::new(&["outbound-bytes=8388608"]);
    let producer = Producer::start(&quiet.place, "answers at length");
    let (mut most, mut less, mut other) =
        (Caller::connect(&quiet.place), Caller::connect(&quiet.place), Caller::connect(&quiet.place));
    for _ in 0..5 {
        most.start(&producer.session, "big", None);
    }
    producer.nth("big", 5);
    // Behind them in the lane: when it is answered, their results are kept.
    other.fence(&producer.session);
    let asked: Vec<_> = (0..4).map(|_| less.start(&producer.session, "big", None)).collect();
    producer.nth("big", 9);
    other.fence(&producer.session);
    let came = most.0.stream.rest().len();
    assert!(came < 5 * MIB, "whoever holds the most was not cut");
    for id in asked {
        assert_eq!(less.answer(id).unwrap().payload.unwrap(), big());
    }
    drop((producer, most, less, other));
    quiet.is_as_before();
}

/// A producer that does not read until it is asked to.
struct Deaf {
    peer: Peer,
    session: String,
}

impl Deaf {
    fn new(place: &Place, in_flight: u32) -> Self {
        let mut peer = Peer::connect(&Identity::of(place, "producer"));
        let done = peer.call("session.register", &registration("does not read", in_flight), None).unwrap();
        Self { session: done.result["session_id"].as_str().unwrap().to_owned(), peer }
    }
}

#[test]
fn what_was_told_as_not_delivered_never_arrives() {
    let mut quiet = Quiet::new(&[]);
    let mut deaf = Deaf::new(&quiet.place, 64);
    let healthy = Producer::start(&quiet.place, "reads");
    let mut caller = Caller::connect(&quiet.place);
    let input = text(300 * 1024);
    // The first fills the socket and is begun, so it can only be unknown; the others wait behind it.
    let sent: Vec<_> = (0..6).map(|_| caller.start_within(&deaf.session, "count", Some(&input), 1_000)).collect();
    caller.fence(&healthy.session);
    let told: Vec<_> = sent.iter().map(|&id| caller.answer(id).unwrap_err()).collect();
    let told: Vec<_> = told.iter().map(|failure| failure.told()).collect();
    assert_eq!(told[0], ("timeout", "unknown"));
    assert_eq!(told[1..], [("timeout", "not-delivered"); 5]);

    let last = caller.start(&deaf.session, "echo", None);
    let mut arrived = Vec::new();
    loop {
        let message = deaf.peer.next().expect("the connection is there");
        match message.method() {
            "command" => arrived.push((message.id().unwrap(), message.header["params"]["command"].clone())),
            other => assert_eq!((other, &message.header["params"]["id"]), ("$/cancel", &json!(1))),
        }
        if arrived.last().is_some_and(|(_, name)| name == "echo") {
            break;
        }
    }
    assert_eq!(arrived.len(), 2, "told as not delivered and delivered all the same: {arrived:?}");
    let ids: Vec<_> = arrived.iter().map(|(id, _)| *id).collect();
    assert_eq!(ids, [1, 7], "ids grow, and skip what was withdrawn");
    reply_to(&deaf.peer.outgoing(), ids[1], Reply::Result(None));
    caller.answer(last).unwrap();
    assert!(caller.0.has_nothing_aside(), "an answer came twice");
    drop((deaf, healthy, caller));
    quiet.is_as_before();
}

#[test]
fn a_producer_that_never_reads_is_cut_at_its_bound_while_others_get_through() {
    let mut quiet = Quiet::new(&["peer-outbound-bytes=4194304"]);
    let mut deaf = Deaf::new(&quiet.place, 64);
    let healthy = Producer::start(&quiet.place, "reads");
    let (mut caller, mut other) = (Caller::connect(&quiet.place), Caller::connect(&quiet.place));
    let input = text(MIB);
    let mut sent = Vec::new();
    for _ in 0..8 {
        sent.push(caller.start(&deaf.session, "count", Some(&input)));
        other.fence(&healthy.session);
    }
    let ends: Vec<_> = sent.iter().map(|&id| caller.answer(id).unwrap_err()).collect();
    let lost = ends.iter().filter(|failure| failure.told() == ("session-lost", "not-delivered")).count();
    let unfound = ends.iter().filter(|failure| failure.told() == ("session-not-found", "not-delivered")).count();
    assert!(lost >= 4 && lost + unfound == 8, "{lost} lost, {unfound} not found: {ends:?}");
    assert!(caller.0.has_nothing_aside(), "an answer came twice");
    assert!(deaf.peer.stream.rest().len() < MIB, "a command was whole and told as not delivered");
    drop((deaf, healthy, caller, other));
    quiet.is_as_before();
}

#[test]
fn two_hundred_connections_that_never_say_hello_are_cut_and_keep_nobody_out() {
    let mut quiet = Quiet::new(&[]);
    let producer = Producer::start(&quiet.place, "there");
    let mut silent: Vec<_> = (0..200).map(|_| Stream::connect(&quiet.place.socket())).collect();
    for _ in 0..20 {
        Caller::connect(&quiet.place).fence(&producer.session);
        assert!(quiet.operator.status()["connections"]["unfinished_hellos"].as_u64() <= Some(64));
    }
    for stream in &mut silent {
        assert!(stream.rest().is_empty());
    }
    drop((producer, silent));
    quiet.is_as_before();
}

#[test]
fn a_line_without_end_is_cut_and_fills_no_memory() {
    let mut quiet = Quiet::new(&[]);
    let before = quiet.process.resident_kib();
    let piece = vec![b'x'; MIB];
    let mut stream = Stream::connect(&quiet.place.socket());
    let taken = (0..64).take_while(|_| stream.send(&piece)).count();
    assert!(taken < 4, "{taken} MiB of a line were taken");
    assert!(stream.rest().is_empty());
    let grown = quiet.grown_mib(before);
    assert!(grown < 8, "memory grew by {grown} MiB");
    drop(stream);
    quiet.is_as_before();
}

#[test]
fn frames_that_are_announced_and_never_come_are_cut_and_hold_no_more_than_their_bound() {
    let mut quiet = Quiet::new(&["frame-ms=700", "inbound-bytes=33554432"]);
    let producer = Producer::start(&quiet.place, "there");
    let mut other = Caller::connect(&quiet.place);
    let identity = Identity::of(&quiet.place, "caller");
    let mut peers: Vec<_> = (0..20).map(|_| Peer::connect(&identity)).collect();
    let before = quiet.process.resident_kib();
    for (number, peer) in peers.iter().enumerate() {
        let outgoing = peer.outgoing();
        let outgoing = outgoing.lock();
        match number % 4 {
            0 => outgoing.raw(&u32::MAX.to_be_bytes()),
            1 => outgoing.raw(&9_437_184_u32.to_be_bytes()),
            2 => outgoing.raw(&[0]),
            _ => outgoing.raw(&[9_437_184_u32.to_be_bytes().as_slice(), &[0; 1000]].concat()),
        };
    }
    for _ in 0..10 {
        other.fence(&producer.session);
    }
    let most = 32 + 16;
    let grown = quiet.grown_mib(before);
    assert!(grown < most, "memory grew by {grown} MiB for frames that nobody has sent");
    for (number, peer) in peers.iter_mut().enumerate() {
        let ends: Vec<_> = peer.all_that_comes().iter().map(Message::method).map(str::to_owned).collect();
        assert_eq!(ends, ["closing"], "connection {number}");
    }
    let inbound = quiet.account("inbound-bytes");
    assert!(inbound["peak"].as_u64() <= Some(33_554_432), "{inbound}");
    drop((producer, other, peers));
    quiet.is_as_before();
}

#[test]
fn half_a_frame_is_waited_for_until_its_deadline_and_no_byte_delays_it() {
    let mut quiet = Quiet::new(&["frame-ms=500"]);
    let begun = Instant::now();
    let (mut stopped, mut slow) = (Caller::connect(&quiet.place), Caller::connect(&quiet.place));
    let frame = slow.0.outgoing().lock().seal(&text(100_000));
    stopped.0.outgoing().lock().raw(&frame[..50_000]);
    let mut bytes = frame.iter().take(50_000);
    until("a frame that comes byte by byte is cut", || {
        (!slow.0.outgoing().lock().raw(&[*bytes.next().unwrap()])).then_some(())
    });
    for peer in [&mut stopped, &mut slow] {
        let ends = peer.0.all_that_comes();
        assert_eq!(ends.iter().map(Message::method).collect::<Vec<_>>(), ["closing"]);
        assert!(begun.elapsed() >= Duration::from_millis(500), "cut before its deadline");
    }
    drop((stopped, slow));
    quiet.is_as_before();
}

#[test]
fn ten_thousand_malformed_hellos_leave_nothing_behind() {
    let mut quiet = Quiet::new(&[]);
    let socket = quiet.place.socket();
    let lines: Vec<Vec<u8>> = vec![
        b"\n".to_vec(),
        b"GET / HTTP/1.1\r\n\r\n".to_vec(),
        b"{\"hello\":{}}\n".to_vec(),
        b"{\"hello\":\x1b[31m}\n".to_vec(),
        vec![0xff; 4_096],
        [b"{\"hello\":".as_slice(), &b"[".repeat(4_000), b"\n"].concat(),
        b"{".to_vec(),
        Vec::new(),
    ];
    let knock = |count: usize| {
        let next = AtomicUsize::new(0);
        std::thread::scope(|scope| {
            for _ in 0..6 {
                scope.spawn(|| {
                    loop {
                        let number = next.fetch_add(1, SeqCst);
                        if number >= count {
                            return;
                        }
                        let mut stream = Stream::connect(&socket);
                        stream.send(&lines[number % lines.len()]);
                        stream.half_close();
                        assert!(stream.rest().is_empty(), "a malformed hello was answered");
                    }
                });
            }
        });
    };
    knock(1_000);
    let (memory, log) = (quiet.process.resident_kib(), quiet.place.log_text().len());
    knock(9_000);
    let grown = quiet.grown_mib(memory);
    assert!(grown < 8, "memory grew by {grown} MiB");
    let logged = quiet.place.log_text().len() - log;
    assert!(logged < 16 * 1024, "the log grew by {logged} bytes");
    quiet.is_as_before();

    // A second is measured by the daemon itself: nothing but a wait that ends at its deadline.
    let mut caller = Caller::connect(&quiet.place);
    let before = quiet.process.ticks();
    let wait = json!({"selector": {"title": "nobody"}, "deadline_ms": 1_000});
    assert_eq!(caller.0.call("session.wait", &wait, None).unwrap_err().code, "timeout");
    let used = quiet.process.ticks() - before;
    assert!(used <= 20, "an idle daemon used {used} hundredths of a second in one");
    drop(caller);
    quiet.is_as_before();
}

#[test]
fn a_producer_that_hangs_holds_up_nobody_but_its_own() {
    let mut quiet = Quiet::new(&["settle-ms=100"]);
    let hung = Producer::start(&quiet.place, "hangs");
    let healthy: Vec<_> = (0..20).map(|number| Producer::start(&quiet.place, &format!("works {number}"))).collect();
    let mut stuck = Caller::connect(&quiet.place);
    let sent: Vec<_> = (0..80).map(|_| stuck.start_within(&hung.session, "hold", None, 300_000)).collect();
    // One at the producer, 64 in its queue; the rest finds it full.
    for &id in &sent[65..] {
        let failure = stuck.answer(id).unwrap_err();
        assert_eq!(failure.told(), ("queue-full", "not-delivered"));
        assert_eq!(failure.error["data"]["resource"], "session-queued");
    }
    let callers = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                let mut caller = Caller::connect(&quiet.place);
                let number = callers.fetch_add(1, SeqCst);
                for turn in 0..100 {
                    caller.fence(&healthy[(number * 5 + turn) % healthy.len()].session);
                }
            });
        }
    });
    assert_eq!(quiet.operator.status()["pending"], 65, "what hung did not end meanwhile");

    // Whoever waits for it may stop waiting; then each command ends once and the place is free again.
    for &id in &sent[..65] {
        let cancel = json!({"jsonrpc": "2.0", "method": "$/cancel", "params": {"id": id}});
        stuck.0.text(cancel.to_string().as_bytes());
    }
    assert_eq!(stuck.answer(sent[0]).unwrap_err().told(), ("cancelled", "unknown"));
    for &id in &sent[1..65] {
        assert_eq!(stuck.answer(id).unwrap_err().told(), ("cancelled", "not-delivered"));
    }
    stuck.fence(&hung.session);
    assert!(stuck.0.has_nothing_aside(), "an answer came twice");
    assert_eq!(hung.cancelled(), [1]);
    assert_eq!(hung.effects("hold"), 1);
    drop((hung, healthy, stuck));
    quiet.is_as_before();
}

#[test]
fn a_caller_that_hangs_up_in_the_middle_of_a_command_frees_its_place() {
    let mut quiet = Quiet::new(&["settle-ms=300"]);
    let producer = Producer::start(&quiet.place, "slow");
    let (gone, mut next) = (Caller::connect(&quiet.place), Caller::connect(&quiet.place));
    gone.start(&producer.session, "hold", None);
    gone.start(&producer.session, "count", None);
    let held = producer.nth("hold", 1);
    until("the second command is queued", || (quiet.operator.used("queued") == 1).then_some(()));
    let begun = Instant::now();
    gone.0.hang_up();
    until("$/cancel reaches the producer", || (producer.cancelled() == [held.id]).then_some(()));
    next.fence(&producer.session);
    assert!(begun.elapsed() >= Duration::from_millis(300), "the place was given away while it was held");
    assert_eq!(producer.effects("count"), 0, "a queued command of somebody who is gone");

    // An answer is still welcome, and counts for nothing.
    assert!(producer.release(held.id, Reply::Result(Some(b"\"late\"".to_vec()))));
    next.fence(&producer.session);
    assert!(next.0.has_nothing_aside());
    drop((producer, gone, next));
    quiet.is_as_before();
}

#[test]
fn a_command_whose_deadline_passes_ends_once_and_its_late_answer_reaches_nobody() {
    let mut quiet = Quiet::new(&["settle-ms=300"]);
    let producer = Producer::start(&quiet.place, "slow");
    let mut caller = Caller::connect(&quiet.place);
    let held = caller.start_within(&producer.session, "hold", None, 200);
    let queued = caller.start_within(&producer.session, "count", None, 200);
    assert_eq!(caller.answer(held).unwrap_err().told(), ("timeout", "unknown"));
    assert_eq!(caller.answer(queued).unwrap_err().told(), ("timeout", "not-delivered"));
    let id = producer.nth("hold", 1).id;
    until("$/cancel reaches the producer", || (producer.cancelled() == [id]).then_some(()));
    assert!(producer.release(id, Reply::Result(Some(b"\"late\"".to_vec()))));
    caller.fence(&producer.session);
    assert!(caller.0.has_nothing_aside(), "a late answer reached somebody");
    assert_eq!(producer.effects("count"), 0);
    drop((producer, caller));
    quiet.is_as_before();
}

#[test]
fn a_producer_that_is_killed_is_gone_within_a_second_and_its_commands_end_once() {
    let mut quiet = Quiet::new(&[]);
    let identity = Identity::of(&quiet.place, "producer");
    let mut producer = Producer::with(&identity, &registration("killed", 2));
    let (mut caller, mut other) = (Caller::connect(&quiet.place), Caller::connect(&quiet.place));
    let held = [(); 2].map(|()| caller.start(&producer.session, "hold", None));
    producer.nth("hold", 2);
    let queued = [(); 3].map(|()| caller.start(&producer.session, "count", None));
    until("the commands are queued", || (quiet.operator.used("queued") == 3).then_some(()));
    producer.kill();
    within(Duration::from_secs(1), "it is gone from the list", || {
        let rows = other.0.call("session.list", &json!({}), None).unwrap();
        (rows.payload.unwrap() == b"[]").then_some(())
    });
    for id in held {
        assert_eq!(caller.answer(id).unwrap_err().told(), ("session-lost", "unknown"));
    }
    for id in queued {
        assert_eq!(caller.answer(id).unwrap_err().told(), ("session-lost", "not-delivered"));
    }
    assert_eq!(caller.send(&producer.session, "count", None).unwrap_err().code, "session-not-found");
    assert!(caller.0.has_nothing_aside(), "an answer came twice");
    drop((producer, caller, other));
    quiet.is_as_before();
}

#[test]
fn a_caller_has_at_most_so_many_requests_open_and_the_next_one_is_refused() {
    let mut quiet = Quiet::new(&[]);
    let mut caller = Caller::connect(&quiet.place);
    let wait = json!({"selector": {"title": "nobody"}});
    let open: Vec<_> = (0..128).map(|_| caller.0.request("session.wait", &wait, None)).collect();
    let failure = caller.0.call("session.wait", &wait, None).unwrap_err();
    assert_eq!((failure.code.as_str(), &failure.error["data"]["resource"]), ("busy", &json!("open-requests")));
    until("all waits are kept", || (quiet.operator.used("streams") == 128).then_some(()));
    let mut another = Caller::connect(&quiet.place);
    let failure = another.0.call("session.wait", &wait, None).unwrap_err();
    assert_eq!((failure.code.as_str(), &failure.error["data"]["resource"]), ("busy", &json!("streams")));
    let cancel = json!({"jsonrpc": "2.0", "method": "$/cancel", "params": {"id": open[0]}});
    caller.0.text(cancel.to_string().as_bytes());
    assert_eq!(caller.answer(open[0]).unwrap_err().code, "cancelled");
    caller.0.call("session.list", &json!({}), None).unwrap();
    drop((caller, another));
    quiet.is_as_before();
}

#[test]
fn a_thousand_connections_one_after_another_leave_no_thread_and_no_descriptor() {
    let mut quiet = Quiet::new(&[]);
    let identity = Identity::of(&quiet.place, "caller");
    for turn in 0..1_000 {
        match turn % 3 {
            0 => drop(Peer::connect(&identity)),
            1 => Peer::connect(&identity).hang_up(),
            _ => assert!(quiet.place.health().is_some()),
        }
    }
    quiet.is_as_before();
}
