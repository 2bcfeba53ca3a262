//! What is held of each bound, and that it is given back.

use serde_json::json;

use crate::support::daemon::Place;
use crate::support::peers::{Operator, registration};
use crate::support::system::Process;
use crate::support::wire::{Identity, Peer, Refused};

#[test]
fn a_session_that_was_unregistered_holds_nothing_and_its_place_can_be_taken_by_the_same_connection() {
    let place = Place::with_daemon(&["--limit", "sessions=1"]);
    let mut operator = Operator::connect(&place);
    let mut producer = Peer::connect(&Identity::of(&place, "producer"));
    for _ in 0..3 {
        producer.call("session.register", &registration("again", 1), Some(b"\"snapshot\"")).unwrap();
        assert_eq!((operator.used("sessions"), operator.used("snapshots-total-bytes")), (1, 10));
        producer.call("session.unregister", &json!({}), None).unwrap();
    }
}

#[test]
fn what_is_kept_for_a_peer_that_does_not_read_takes_no_more_memory_than_is_charged() {
    let limit = 4 * 1024 * 1024;
    let place = Place::with_daemon(&["--limit", &format!("peer-outbound-bytes={limit}")]);
    let resident = || {
        let status = Process::new(place.pid()).status("VmRSS");
        status.split_whitespace().next().unwrap().parse::<u64>().unwrap() * 1024
    };
    let mut producer = Peer::connect(&Identity::of(&place, "producer"));
    producer.call("session.register", &registration("mute", 1), None).unwrap();
    let before = resident();
    let outgoing = producer.outgoing();
    // Each is answered with some 40 bytes, until the daemon ends it.
    let sent = (0..200_000).take_while(|_| outgoing.lock().request("session.heartbeat", &json!({}), None).is_some());
    let sent = sent.count();
    let taken = resident().saturating_sub(before);
    assert!(taken < 3 * limit, "{taken} bytes of memory for {sent} answers under a limit of {limit}");
}

#[test]
fn a_daemon_that_is_allowed_few_descriptors_tells_the_newcomer_that_it_is_busy() {
    let mut place = Place::empty();
    let mut limited = std::process::Command::new("sh");
    limited.args(["-c", "ulimit -n 100 && exec \"$0\"", crate::support::daemon::USHERD]);
    limited.env("USHER_DIR", place.path()).env_remove("USHER_LOG");
    place.start_daemon_as(limited);
    let producer = Identity::of(&place, "producer");
    let mut held = Vec::new();
    let refused = loop {
        match Peer::hello(&producer) {
            Ok(peer) => held.push(peer),
            Err(refused) => break refused,
        }
        assert!(held.len() < 100, "more connections than descriptors");
    };
    assert!(
        matches!(&refused, Refused::Busy) || matches!(&refused, Refused::Sealed(code) if code == "busy"),
        "{refused:?}"
    );
    assert!(held.len() > 20, "{} connections are too few", held.len());
    // What is kept for operators is there.
    Operator::connect(&place).status();
}
