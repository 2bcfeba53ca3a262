//! The reconnect key of a session is replaced in two steps, and whatever crashes in between, one that works is left.
//!
//! A debug build can be told to end itself between any two steps (`store::fault`); a release build cannot.

use serde_json::json;

use crate::support::daemon::Place;
use crate::support::peers::Lease;
use crate::support::wire::{Answer, Identity, Key, Peer, base64};

const ROTATION: [u8; 16] = [7; 16];

fn producer(place: &Place) -> Peer {
    Peer::connect(&Identity::of(place, "producer"))
}

fn code(answer: Answer) -> Result<(), String> {
    answer.map(drop).map_err(|failure| failure.code)
}

/// The same session with the other key.
fn with_key(lease: &Lease, key: &Key) -> Lease {
    Lease { session: lease.session, key: key.clone() }
}

fn stage(lease: &Lease, peer: &mut Peer, new: &Key) -> Answer {
    let params = lease.staging(peer, &ROTATION, new);
    peer.call("session.stage_key", &params, None)
}

fn confirm(peer: &mut Peer) -> Answer {
    peer.call("session.confirm_key", &json!({"rotation_id": base64(&ROTATION)}), None)
}

#[test]
fn both_keys_count_until_the_new_one_is_used() {
    let place = Place::with_daemon(&[]);
    let (old, new) = (Lease::random(), Key::random());
    let new_lease = with_key(&old, &new);
    let mut peer = producer(&place);
    old.register(&mut peer).unwrap();
    stage(&old, &mut peer, &new).unwrap();
    for _ in 0..2 {
        old.take_back(&mut producer(&place)).unwrap();
    }
    new_lease.take_back(&mut producer(&place)).unwrap();
    assert_eq!(code(old.take_back(&mut producer(&place))), Err("session-owned".to_owned()));
    let mut peer = producer(&place);
    new_lease.take_back(&mut peer).unwrap();
    assert_eq!(code(confirm(&mut peer)), Ok(()), "it is confirmed by its use");
}

#[test]
fn a_confirmation_retires_the_old_key_at_once_and_is_answered_as_often_as_it_is_asked() {
    let place = Place::with_daemon(&[]);
    let (old, new) = (Lease::random(), Key::random());
    let mut peer = producer(&place);
    old.register(&mut peer).unwrap();
    assert_eq!(code(confirm(&mut peer)), Err("rotation-not-found".to_owned()));
    stage(&old, &mut peer, &new).unwrap();
    for _ in 0..2 {
        confirm(&mut peer).unwrap();
    }
    assert_eq!(code(stage(&old, &mut peer, &new)), Ok(()), "it is done");
    assert_eq!(code(old.take_back(&mut producer(&place))), Err("session-owned".to_owned()));
    with_key(&old, &new).take_back(&mut producer(&place)).unwrap();
}

#[test]
fn one_rotation_is_pending_at_a_time_and_another_one_is_told_which() {
    let place = Place::with_daemon(&[]);
    let (old, new) = (Lease::random(), Key::random());
    let mut peer = producer(&place);
    old.register(&mut peer).unwrap();
    stage(&old, &mut peer, &new).unwrap();
    stage(&old, &mut peer, &new).unwrap();
    let params = old.staging(&peer, &[8; 16], &Key::random());
    let failure = peer.call("session.stage_key", &params, None).unwrap_err();
    assert_eq!(failure.code, "rotation-pending");
    assert_eq!(failure.error["data"]["rotation_id"], base64(&ROTATION));
    assert_eq!(code(stage(&old, &mut peer, &Key::random())), Err("rotation-pending".to_owned()), "the same id");
}

#[test]
fn a_rotation_needs_both_signatures_of_this_connection_and_a_session() {
    let place = Place::with_daemon(&[]);
    let (old, new) = (Lease::random(), Key::random());
    let (mut peer, other) = (producer(&place), producer(&place));
    let params = old.staging(&peer, &ROTATION, &new);
    assert_eq!(code(peer.call("session.stage_key", &params, None)), Err("not-registered".to_owned()));
    assert_eq!(code(confirm(&mut peer)), Err("not-registered".to_owned()));
    old.register(&mut peer).unwrap();
    let replayed = old.staging(&other, &ROTATION, &new);
    assert_eq!(code(peer.call("session.stage_key", &replayed, None)), Err("denied".to_owned()));
    for which in ["old", "new"] {
        let mut params = old.staging(&peer, &ROTATION, &new);
        params["signatures"][which] = replayed["signatures"][which].clone();
        assert_eq!(code(peer.call("session.stage_key", &params, None)), Err("denied".to_owned()), "{which}");
    }
    let stranger = with_key(&old, &Key::random()).staging(&peer, &ROTATION, &new);
    assert_eq!(code(peer.call("session.stage_key", &stranger, None)), Err("denied".to_owned()), "not the old key");
    assert_eq!(code(with_key(&old, &new).take_back(&mut producer(&place))), Err("session-owned".to_owned()));
    stage(&old, &mut peer, &new).unwrap();
}

/// What a producer does: the last step is the one that is killed.
#[cfg(debug_assertions)]
#[derive(Debug, Clone, Copy, PartialEq)]
enum Step {
    Stage,
    Confirm,
    FirstUse,
}

/// The daemon is killed at each step of writing and answering, at stage, confirm and first use. The producer has heard
/// what it has heard; then it comes back as it would: with the new key, and if that is refused with the old one.
#[cfg(debug_assertions)]
#[test]
fn a_crash_at_any_step_of_a_rotation_leaves_a_key_that_works() {
    for (step, answer) in [
        (Step::Stage, "session.stage_key/answer/1"),
        (Step::Confirm, "session.confirm_key/answer/1"),
        // The first registration was the first one.
        (Step::FirstUse, "session.register/answer/2"),
    ] {
        // The registration writes first, staging second, what follows third.
        let write = if step == Step::Stage { 2 } else { 3 };
        let writes = ["begun", "aside", "renamed", "synced"].map(|point| format!("leases.json/{point}/{write}"));
        for point in writes.into_iter().chain([answer.to_owned()]) {
            crash(step, &point);
        }
    }
}

#[cfg(debug_assertions)]
fn crash(step: Step, point: &str) {
    let mut place = Place::empty();
    let mut usherd = place.usherd();
    usherd.env("USHER_FIXTURE_KILL", point);
    place.start_daemon_as(usherd);
    let (old, new) = (Lease::random(), Key::random());
    let new_lease = with_key(&old, &new);
    let mut peer = producer(&place);
    old.register(&mut peer).unwrap();
    let params = old.staging(&peer, &ROTATION, &new);
    let ask = |peer: &mut Peer, method: &str, params: &serde_json::Value| {
        let id = peer.request(method, params, None);
        let answer = peer.try_answer(id);
        if let Some(answer) = &answer {
            assert!(answer.is_ok(), "{step:?} {point}: {answer:?}");
        }
        answer.is_some()
    };
    let staged = ask(&mut peer, "session.stage_key", &params);
    let finished = staged
        && match step {
            Step::Stage => panic!("{point}: the daemon was to be killed while it staged"),
            Step::Confirm => ask(&mut peer, "session.confirm_key", &json!({"rotation_id": base64(&ROTATION)})),
            Step::FirstUse => {
                let mut next = producer(&place);
                let mut params = new_lease.registration();
                params["lease_signature"] = json!(new_lease.signature(&next));
                ask(&mut next, "session.register", &params)
            }
        };
    assert!(!finished, "{step:?} {point}: the daemon was to be killed");
    assert_eq!(place.wait_daemon(), 137, "{step:?} {point}");
    place.start_daemon(&[]);

    let mut peer = producer(&place);
    let new_works = code(new_lease.take_back(&mut peer));
    if new_works.is_ok() {
        // Whoever hears nothing may ask again.
        assert_eq!(code(stage(&old, &mut peer, &new)), Ok(()), "{step:?} {point}");
        assert_eq!(code(confirm(&mut peer)), Ok(()), "{step:?} {point}");
        assert_eq!(code(old.take_back(&mut producer(&place))), Err("session-owned".to_owned()), "{step:?} {point}");
        return;
    }
    assert_eq!(new_works, Err("session-owned".to_owned()), "{step:?} {point}");
    assert!(!staged, "{step:?} {point}: staging was answered, so the new key has to work");
    old.take_back(&mut peer).unwrap_or_else(|failure| panic!("{step:?} {point}: no key works: {failure:?}"));
    stage(&old, &mut peer, &new).unwrap();
    new_lease.take_back(&mut producer(&place)).unwrap();
}
