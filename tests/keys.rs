//! Commands under a key: sent once, told as often as they are asked for.

use serde_json::json;

use crate::support::daemon::Place;
use crate::support::peers::{Caller, Command, Lease, Operator, Producer, Reply, registration, reply_to};
use crate::support::wait::until;
use crate::support::wire::{Answer, Identity, Peer};

fn producer(place: &Place, max_in_flight: u32) -> Producer {
    Producer::with(&Identity::of(place, "producer"), &registration("keyed", max_in_flight))
}

/// Code and delivery of what must have failed.
fn told(answer: Answer) -> (String, String) {
    let failure = answer.map(|done| done.result).unwrap_err();
    let (code, delivery) = failure.told();
    (code.to_owned(), delivery.to_owned())
}

fn pair(code: &str, delivery: &str) -> (String, String) {
    (code.to_owned(), delivery.to_owned())
}

/// Asks again until it is told something else.
fn until_not(code: &str, mut ask: impl FnMut() -> Answer) -> Answer {
    until(&format!("something else is told than {code}"), || {
        let answer = ask();
        (!matches!(&answer, Err(failure) if failure.code == code)).then_some(answer)
    })
}

#[test]
fn a_repeat_gets_the_first_outcome_and_the_command_runs_once() {
    let place = Place::with_daemon(&[]);
    let session = producer(&place, 4);
    let (mut first, mut second) = (Caller::connect(&place), Caller::connect(&place));
    let done = first.send_keyed(&session.session, "echo", Some(b"{ \"a\": 1 }"), "one").unwrap();
    for caller in [&mut first, &mut second] {
        let again = caller.send_keyed(&session.session, "echo", Some(b"{ \"a\": 1 }"), "one").unwrap();
        assert_eq!((&again.result, &again.payload), (&done.result, &done.payload), "to the byte");
    }
    assert_eq!(told(first.send_keyed(&session.session, "fail", None, "two")), pair("command-failed", "delivered"));
    let again = second.send_keyed(&session.session, "fail", None, "two").unwrap_err();
    assert_eq!((again.told(), again.error["message"].as_str()), (("command-failed", "delivered"), Some("as asked")));
    assert_eq!((session.effects("echo"), session.effects("fail")), (1, 1));
    assert_eq!(session.nth("echo", 1).key.as_deref(), Some("one"), "the producer is told the key");
    first.send(&session.session, "count", None).unwrap();
    assert_eq!(session.nth("count", 1).key, None);

    // Of the credential and the session: for others it is another key.
    let other = Operator::connect(&place).enroll(&place, "caller", &json!({}));
    let mut other = Caller(Peer::connect(&other.identity));
    other.send_keyed(&session.session, "echo", Some(b"2"), "one").unwrap();
    let elsewhere = producer(&place, 1);
    first.send_keyed(&elsewhere.session, "echo", Some(b"3"), "one").unwrap();
    assert_eq!((session.effects("echo"), elsewhere.effects("echo")), (2, 1));
}

#[test]
fn a_repeat_while_the_first_runs_waits_with_it() {
    let place = Place::with_daemon(&[]);
    let session = producer(&place, 1);
    let (mut first, mut second) = (Caller::connect(&place), Caller::connect(&place));
    let one = first.start_keyed(&session.session, "hold", Some(b"1"), "k", 60_000);
    let command = session.nth("hold", 1);
    let two = second.start_keyed(&session.session, "hold", Some(b"1"), "k", 60_000);
    let three = first.start_keyed(&session.session, "hold", Some(b"1"), "k", 60_000);
    // Behind all three, and so not before them.
    let fence = second.start(&session.session, "echo", Some(b"\"fence\""));
    until("the fence is queued behind one command", || {
        let mut operator = Operator::connect(&place);
        (operator.status()["pending"] == 2).then_some(())
    });
    assert!(session.release(command.id, Reply::Result(Some(b"\"done\"".to_vec()))));
    for answer in [first.answer(one), second.answer(two), first.answer(three)] {
        assert_eq!(answer.unwrap().payload.unwrap(), b"\"done\"");
    }
    second.answer(fence).unwrap();
    assert_eq!(session.effects("hold"), 1);
}

#[test]
fn a_key_stands_for_one_command_with_one_input() {
    let place = Place::with_daemon(&[]);
    let session = producer(&place, 4);
    let mut caller = Caller::connect(&place);
    let held = caller.start_keyed(&session.session, "hold", Some(b"1"), "k", 60_000);
    let command = session.nth("hold", 1);
    for (name, input) in [("hold", Some(&b"2"[..])), ("hold", None), ("echo", Some(b"1"))] {
        let refused = caller.send_keyed(&session.session, name, input, "k");
        assert_eq!(told(refused), pair("key-conflict", "not-delivered"), "while it runs");
    }
    session.release(command.id, Reply::Result(None));
    caller.answer(held).unwrap();
    assert_eq!(told(caller.send_keyed(&session.session, "hold", None, "k")), pair("key-conflict", "not-delivered"));
    caller.send_keyed(&session.session, "hold", Some(b"1"), "k").unwrap();
    assert_eq!(session.effects("hold"), 1);
    for key in [String::new(), "x".repeat(129), "a\nb".to_owned(), "\u{202e}".to_owned()] {
        assert_eq!(told(caller.send_keyed(&session.session, "echo", None, &key)).0, "invalid-params", "{key:?}");
    }
    caller.send_keyed(&session.session, "echo", Some(b"1"), &"é".repeat(64)).unwrap();
}

#[test]
fn a_session_whose_keys_are_all_known_refuses_a_new_one_and_tells_the_others() {
    let place = Place::with_daemon(&["--limit", "session-keys=2", "--limit", "key-ms=3000"]);
    let session = producer(&place, 4);
    let mut caller = Caller::connect(&place);
    for key in ["one", "two"] {
        caller.send_keyed(&session.session, "count", None, key).unwrap();
    }
    let refused = caller.send_keyed(&session.session, "count", None, "three").unwrap_err();
    assert_eq!(
        (refused.told(), &refused.error["data"]["resource"]),
        (("busy", "not-delivered"), &json!("session-keys"))
    );
    caller.send_keyed(&session.session, "count", None, "one").unwrap();
    assert_eq!(session.effects("count"), 2);
    until_not("busy", || caller.send_keyed(&session.session, "count", None, "three")).unwrap();
    assert_eq!(session.effects("count"), 3, "their time is over");
    let mut operator = Operator::connect(&place);
    until("nothing is known any more", || (operator.used("keys") == 0).then_some(()));
    caller.send_keyed(&session.session, "count", None, "one").unwrap();
    assert_eq!(session.effects("count"), 4);
}

#[test]
fn a_result_for_which_there_is_no_room_is_told_once_and_never_made_again() {
    let place = Place::with_daemon(&["--limit", "kept-results-bytes=1000"]);
    let session = producer(&place, 4);
    let mut caller = Caller::connect(&place);
    caller.send_keyed(&session.session, "big", None, "k").unwrap();
    let again = caller.send_keyed(&session.session, "big", None, "k");
    assert_eq!(told(again), pair("result-not-kept", "delivered"));
    assert_eq!(session.effects("big"), 1);
    caller.send_keyed(&session.session, "echo", Some(b"1"), "small").unwrap();
    assert_eq!(Operator::connect(&place).used("kept-results-bytes"), 1);
    assert_eq!(caller.send_keyed(&session.session, "echo", Some(b"1"), "small").unwrap().payload.unwrap(), b"1");
}

#[test]
fn a_command_whose_outcome_is_unknown_is_never_sent_again_and_a_late_answer_tells_it() {
    let place = Place::with_daemon(&["--limit", "settle-ms=50"]);
    let session = producer(&place, 1);
    let mut caller = Caller::connect(&place);
    let held = caller.start_keyed(&session.session, "hold", None, "k", 100);
    let command = session.nth("hold", 1);
    assert_eq!(told(caller.answer(held)), pair("timeout", "unknown"));
    assert_eq!(told(caller.send_keyed(&session.session, "hold", None, "k")), pair("timeout", "unknown"));
    // The place is free again, long after the deadline, and the answer counts all the same.
    caller.fence(&session.session);
    session.release(command.id, Reply::Result(Some(b"\"late\"".to_vec())));
    let done = until_not("timeout", || caller.send_keyed(&session.session, "hold", None, "k")).unwrap();
    assert_eq!(done.payload.unwrap(), b"\"late\"");
    assert_eq!(session.effects("hold"), 1);

    let held = caller.start_keyed(&session.session, "hold", None, "cancelled", 60_000);
    session.nth("hold", 2);
    let cancel = json!({"jsonrpc": "2.0", "method": "$/cancel", "params": {"id": held}});
    caller.0.text(cancel.to_string().as_bytes());
    assert_eq!(told(caller.answer(held)), pair("cancelled", "unknown"));
    let again = caller.send_keyed(&session.session, "hold", None, "cancelled");
    assert_eq!(told(again), pair("cancelled", "unknown"));
    assert_eq!(session.effects("hold"), 2);
}

#[test]
fn what_was_certainly_not_delivered_may_run_when_it_is_asked_for_again() {
    let place = Place::with_daemon(&[]);
    let session = producer(&place, 1);
    let mut caller = Caller::connect(&place);
    let held = caller.start(&session.session, "hold", None);
    let command = session.nth("hold", 1);
    let queued = caller.start_keyed(&session.session, "count", None, "k", 100);
    assert_eq!(told(caller.answer(queued)), pair("timeout", "not-delivered"));
    assert_eq!(Operator::connect(&place).used("keys"), 0);
    session.release(command.id, Reply::Result(None));
    caller.answer(held).unwrap();
    caller.send_keyed(&session.session, "count", None, "k").unwrap();
    assert_eq!(session.effects("count"), 1);
}

#[test]
fn a_command_goes_on_while_anybody_waits_for_it_and_is_withdrawn_with_the_last() {
    let place = Place::with_daemon(&[]);
    let session = producer(&place, 1);
    let (first, mut second, third) = (Caller::connect(&place), Caller::connect(&place), Caller::connect(&place));
    first.start_keyed(&session.session, "hold", None, "k", 60_000);
    let command = session.nth("hold", 1);
    let waits = second.start_keyed(&session.session, "hold", None, "k", 60_000);
    let impatient = second.start_keyed(&session.session, "hold", None, "k", 100);
    assert_eq!(told(second.answer(impatient)), pair("timeout", "unknown"));
    first.0.hang_up();
    let mut operator = Operator::connect(&place);
    until("the first caller is gone", || (operator.status()["connections"]["open"] == 4).then_some(()));
    assert!(session.cancelled().is_empty(), "one still waits");
    session.release(command.id, Reply::Result(Some(b"1".to_vec())));
    assert_eq!(second.answer(waits).unwrap().payload.unwrap(), b"1");

    second.start_keyed(&session.session, "hold", None, "l", 60_000);
    let command = session.nth("hold", 2);
    third.start_keyed(&session.session, "hold", None, "l", 60_000);
    second.0.hang_up();
    third.0.hang_up();
    until("the producer hears that nobody waits", || (session.cancelled() == [command.id]).then_some(()));
}

#[test]
fn a_queued_command_is_told_as_unknown_to_who_leaves_while_another_waits_for_it() {
    let place = Place::with_daemon(&[]);
    let session = producer(&place, 1);
    let mut caller = Caller::connect(&place);
    let held = caller.start(&session.session, "hold", None);
    let command = session.nth("hold", 1);
    let leaves = caller.start_keyed(&session.session, "count", None, "k", 100);
    let waits = caller.start_keyed(&session.session, "count", None, "k", 60_000);
    assert_eq!(told(caller.answer(leaves)), pair("timeout", "unknown"), "it may still run");
    session.release(command.id, Reply::Result(None));
    caller.answer(held).unwrap();
    caller.answer(waits).unwrap();
    assert_eq!(session.effects("count"), 1);
}

/// A producer that takes its session back, without a thread.
fn heard(peer: &mut Peer) -> Command {
    let message = peer.next().unwrap();
    assert_eq!(message.method(), "command");
    Command::of(&message)
}

#[test]
fn keys_outlive_the_producers_connection_and_what_it_may_have_run_is_not_sent_to_the_next() {
    let place = Place::with_daemon(&[]);
    let (lease, mut old) = (Lease::random(), Peer::connect(&Identity::of(&place, "producer")));
    lease.register(&mut old).unwrap();
    let mut caller = Caller::connect(&place);
    let done = caller.start_keyed(&lease.id(), "echo", None, "done", 60_000);
    let command = heard(&mut old);
    reply_to(&old.outgoing(), command.id, Reply::Result(Some(b"1".to_vec())));
    caller.answer(done).unwrap();
    let running = caller.start_keyed(&lease.id(), "hold", None, "running", 60_000);
    heard(&mut old);
    let queued = caller.start_keyed(&lease.id(), "count", None, "queued", 60_000);
    let mut new = Peer::connect(&Identity::of(&place, "producer"));
    lease.take_back(&mut new).unwrap();
    assert_eq!(told(caller.answer(running)), pair("superseded", "unknown"));
    assert_eq!(told(caller.answer(queued)), pair("superseded", "not-delivered"));

    assert_eq!(caller.send_keyed(&lease.id(), "echo", None, "done").unwrap().payload.unwrap(), b"1");
    assert_eq!(told(caller.send_keyed(&lease.id(), "hold", None, "running")), pair("superseded", "unknown"));
    let queued = caller.start_keyed(&lease.id(), "count", None, "queued", 60_000);
    let command = heard(&mut new);
    assert_eq!((command.name.as_str(), command.key.as_deref()), ("count", Some("queued")), "the only one it is sent");
    reply_to(&new.outgoing(), command.id, Reply::Result(None));
    caller.answer(queued).unwrap();

    // Also while the session is not there.
    new.hang_up();
    let mut operator = Operator::connect(&place);
    until("the session is gone", || (operator.status()["sessions"] == 0).then_some(()));
    assert_eq!(caller.send_keyed(&lease.id(), "echo", None, "done").unwrap().payload.unwrap(), b"1");
    assert_eq!(told(caller.send_keyed(&lease.id(), "hold", None, "running")), pair("superseded", "unknown"));
    assert_eq!(told(caller.send_keyed(&lease.id(), "echo", Some(b"2"), "done")), pair("key-conflict", "not-delivered"));
    assert_eq!(told(caller.send_keyed(&lease.id(), "echo", None, "new")), pair("session-not-found", "not-delivered"));
}

#[test]
fn a_repeat_that_does_not_find_the_session_any_more_is_not_told_that_the_running_command_never_left() {
    let place = Place::with_daemon(&[]);
    let (lease, mut owner) = (Lease::random(), Peer::connect(&Identity::of(&place, "producer")));
    lease.register(&mut owner).unwrap();
    let mut caller = Caller::connect(&place);
    let by_both = json!({"selector": {"session": lease.id(), "title": "leased"}, "command": "hold", "key": "k"});
    let running = caller.0.request("session.send", &by_both, None);
    let command = heard(&mut owner);
    owner.call("session.update", &json!({"title": "another"}), None).unwrap();
    assert_eq!(told(caller.0.call("session.send", &by_both, None)), pair("session-not-found", "unknown"));
    reply_to(&owner.outgoing(), command.id, Reply::Result(None));
    caller.answer(running).unwrap();
    caller.0.call("session.send", &by_both, None).unwrap();
}

#[test]
fn a_repeat_is_told_what_became_of_a_command_that_is_offered_no_more() {
    let place = Place::with_daemon(&[]);
    let (lease, mut owner) = (Lease::random(), Peer::connect(&Identity::of(&place, "producer")));
    lease.register(&mut owner).unwrap();
    let mut caller = Caller::connect(&place);
    let first = caller.start_keyed(&lease.id(), "hold", None, "k", 60_000);
    let command = heard(&mut owner);
    owner.call("session.update", &json!({"commands": []}), None).unwrap();
    let repeat = caller.start_keyed(&lease.id(), "hold", None, "k", 60_000);
    assert_eq!(told(caller.send_keyed(&lease.id(), "hold", None, "new")), pair("command-not-found", "not-delivered"));
    reply_to(&owner.outgoing(), command.id, Reply::Result(Some(b"1".to_vec())));
    for request in [first, repeat] {
        assert_eq!(caller.answer(request).unwrap().payload.unwrap(), b"1");
    }
    assert_eq!(caller.send_keyed(&lease.id(), "hold", None, "k").unwrap().payload.unwrap(), b"1");
}

#[test]
fn no_repeat_is_told_that_a_command_never_left_at_the_moment_at_which_its_session_changes_hands() {
    let place = Place::with_daemon(&[]);
    let (lease, mut owner) = (Lease::random(), Peer::connect(&Identity::of(&place, "producer")));
    lease.register(&mut owner).unwrap();
    let (mut first, mut second) = (Caller::connect(&place), Caller::connect(&place));
    for round in 0..100 {
        let key = format!("{round}");
        let running = first.start_keyed(&lease.id(), "hold", None, &key, 60_000);
        heard(&mut owner);
        let mut next = Peer::connect(&Identity::of(&place, "producer"));
        let mut params = lease.registration();
        params["lease_signature"] = json!(lease.signature(&next));
        let register = next.request("session.register", &params, None);
        let repeats: Vec<_> = (0..50).map(|_| second.start_keyed(&lease.id(), "hold", None, &key, 60_000)).collect();
        next.answer(register).unwrap();
        assert_eq!(told(first.answer(running)), pair("superseded", "unknown"));
        for repeat in repeats {
            assert_eq!(told(second.answer(repeat)), pair("superseded", "unknown"), "round {round}");
        }
        owner = next;
    }
}

#[test]
fn what_is_known_of_keys_goes_with_the_caller_and_with_the_lease() {
    let place = Place::with_daemon(&[]);
    let mut operator = Operator::connect(&place);
    let caller_of = operator.enroll(&place, "caller", &json!({}));
    let producer_of = operator.enroll(&place, "producer", &json!({}));
    let session = Producer::with(&producer_of.identity, &registration("keyed", 4));
    let mut other = Caller(Peer::connect(&caller_of.identity));
    let mut caller = Caller::connect(&place);
    other.send_keyed(&session.session, "echo", Some(b"1"), "k").unwrap();
    caller.send_keyed(&session.session, "echo", Some(b"1"), "k").unwrap();
    assert_eq!((operator.used("keys"), operator.used("kept-results-bytes")), (2, 2));
    operator.revoke(&caller_of.id).unwrap();
    assert_eq!((operator.used("keys"), operator.used("kept-results-bytes")), (1, 1));
    operator.revoke(&producer_of.id).unwrap();
    assert_eq!((operator.used("keys"), operator.used("kept-results-bytes")), (0, 0));
    assert_eq!(told(caller.send_keyed(&session.session, "echo", Some(b"1"), "k")).0, "session-not-found");
}

#[test]
fn after_a_start_a_command_under_a_key_waits_for_its_session_to_come_back() {
    let mut place = Place::with_daemon(&[]);
    let (lease, mut owner) = (Lease::random(), Peer::connect(&Identity::of(&place, "producer")));
    lease.register(&mut owner).unwrap();
    place.signal_daemon(nix::sys::signal::Signal::SIGKILL);
    place.wait_daemon();
    place.start_daemon(&[]);
    let mut caller = Caller::connect(&place);
    let refused = caller.send_keyed(&lease.id(), "echo", None, "k").unwrap_err();
    assert_eq!((refused.told(), &refused.error["data"]["retryable"]), (("recovering", "not-delivered"), &json!(true)));
    assert_eq!(
        told(caller.send(&lease.id(), "echo", None)).0,
        "session-not-found",
        "without a key nothing is promised"
    );
    let by_title = json!({"selector": {"title": "leased"}, "command": "echo", "key": "k"});
    assert_eq!(told(caller.0.call("session.send", &by_title, None)).0, "recovering");
    let other = producer(&place, 1);
    caller.send_keyed(&other.session, "echo", Some(b"1"), "k").unwrap();

    let mut owner = Peer::connect(&Identity::of(&place, "producer"));
    lease.take_back(&mut owner).unwrap();
    let runs = caller.start_keyed(&lease.id(), "echo", None, "k", 60_000);
    let command = heard(&mut owner);
    reply_to(&owner.outgoing(), command.id, Reply::Result(None));
    caller.answer(runs).unwrap();
    owner.hang_up();
    let mut operator = Operator::connect(&place);
    until("the session is gone", || (operator.status()["sessions"] == 1).then_some(()));
    let gone = caller.send_keyed(&lease.id(), "echo", None, "another");
    assert_eq!(told(gone).0, "session-not-found", "it was back, so nothing is awaited");
}

#[test]
fn a_session_that_does_not_come_back_is_awaited_for_a_time_and_a_daemon_that_had_none_awaits_nobody() {
    let mut place = Place::with_daemon(&[]);
    let absent = Lease::random().id();
    let mut caller = Caller::connect(&place);
    assert_eq!(told(caller.send_keyed(&absent, "echo", None, "k")).0, "session-not-found");
    let (ended, mut peer) = (Lease::random(), Peer::connect(&Identity::of(&place, "producer")));
    ended.register(&mut peer).unwrap();
    peer.call("session.unregister", &json!({}), None).unwrap();
    let mut operator = Operator::connect(&place);
    until("the session is gone", || (operator.status()["sessions"] == 0).then_some(()));
    place.signal_daemon(nix::sys::signal::Signal::SIGTERM);
    assert_eq!(place.wait_daemon(), 0);
    place.start_daemon(&[]);
    let mut caller = Caller::connect(&place);
    let told_of = told(caller.send_keyed(&ended.id(), "echo", None, "k")).0;
    assert_eq!(told_of, "session-not-found", "it had ended, and the daemon ended in order");

    // Who leaves because the daemon says that it ends will come back.
    let (leaves, mut peer) = (Lease::random(), Peer::connect(&Identity::of(&place, "producer")));
    leaves.register(&mut peer).unwrap();
    caller.start(&leaves.id(), "hold", None);
    assert_eq!(peer.next().unwrap().method(), "command", "which the daemon waits for");
    place.signal_daemon(nix::sys::signal::Signal::SIGTERM);
    assert_eq!(peer.next().unwrap().method(), "daemon.closing");
    peer.hang_up();
    assert_eq!(place.wait_daemon(), 0);
    place.start_daemon(&[]);
    let mut caller = Caller::connect(&place);
    assert_eq!(told(caller.send_keyed(&leaves.id(), "echo", None, "k")).0, "recovering");

    let _producer = producer(&place, 1);
    place.signal_daemon(nix::sys::signal::Signal::SIGKILL);
    place.wait_daemon();
    place.start_daemon(&["--limit", "recover-ms=300"]);
    let mut caller = Caller::connect(&place);
    let last = until_not("recovering", || caller.send_keyed(&absent, "echo", None, "k"));
    assert_eq!(told(last).0, "session-not-found");
}
