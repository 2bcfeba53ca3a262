//! Calls over one connection, by many threads, and what becomes of them when it dies.

use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use usher::client::{Caller, Delivery, Description, Offer, Selector};

use super::super::support::daemon::Place;
use super::super::support::wait::PATIENCE;
use super::{LONG, caller, open, target, titled};

#[test]
fn many_threads_call_over_one_connection_and_each_gets_its_own_answer() {
    let place = Place::with_daemon(&[]);
    let echo = Offer::new("echo", |command| Ok(command.input().unwrap().to_vec()));
    let _producer = open(&place, Description::new("w").offer(echo).max_in_flight(4));
    let caller = caller(&place);
    std::thread::scope(|scope| {
        for thread in 0..8 {
            let caller = &caller;
            scope.spawn(move || {
                for number in 0..50 {
                    let input = format!("[{thread},{number}]");
                    let sent = caller.send(&titled("w"), "echo", Some(input.as_bytes()), LONG).unwrap();
                    assert_eq!(sent.result.unwrap(), input.as_bytes());
                }
            });
        }
    });
}

#[test]
fn a_call_tells_what_became_of_it_when_its_daemon_dies() {
    let mut place = Place::with_daemon(&[]);
    let (begin, begun) = std::sync::mpsc::sync_channel(1);
    let hang = Offer::new("hang", move |command| {
        begin.send(()).unwrap();
        command.wait_cancelled(LONG);
        Err("over".to_owned())
    });
    let producer = open(&place, Description::new("w").offer(hang));
    let caller = caller(&place);
    let params = serde_json::json!({"selector": {"title": "w"}, "command": "hang"});
    let pending = caller.start("session.send", &params, None).unwrap();
    begun.recv_timeout(PATIENCE).unwrap();
    assert!(pending.poll().is_none());
    place.signal_daemon(Signal::SIGKILL);
    place.wait_daemon();
    let error = pending.wait(Instant::now() + PATIENCE).unwrap_err();
    assert_eq!((error.code(), error.delivery()), ("connection-lost", Delivery::Unknown));
    assert!(caller.wait_for_end(Instant::now() + PATIENCE));
    let error = caller.send(&titled("w"), "hang", None, LONG).unwrap_err();
    assert_eq!((error.code(), error.delivery()), ("connection-lost", Delivery::NotDelivered));
    producer.stop();
}

#[test]
fn an_input_that_is_not_one_json_text_is_not_sent() {
    let place = Place::with_daemon(&[]);
    let caller = caller(&place);
    for input in [&b""[..], b"{} {}", b"\xff"] {
        let error = caller.send(&Selector::default(), "x", Some(input), LONG).unwrap_err();
        assert_eq!((error.code(), error.delivery()), ("invalid-payload", Delivery::NotDelivered));
    }
    assert_eq!(caller.send(&Selector::default(), "x", None, LONG).unwrap_err().code(), "session-not-found");
}

#[test]
fn a_question_that_is_too_large_harms_no_other_of_the_same_moment() {
    let place = Place::with_daemon(&[]);
    let caller = caller(&place);
    let large = titled(&"x".repeat(70_000));
    let is_over = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        let spoils = || {
            while !is_over.load(std::sync::atomic::Ordering::Relaxed) {
                assert_eq!(caller.send(&large, "x", None, LONG).unwrap_err().code(), "too-large");
            }
        };
        scope.spawn(spoils);
        scope.spawn(spoils);
        let codes: Vec<_> = (0..3_000)
            .map(|_| caller.send(&titled("w"), "x", None, LONG).unwrap_err().code().to_owned())
            .filter(|code| code != "session-not-found")
            .collect();
        is_over.store(true, std::sync::atomic::Ordering::Relaxed);
        assert_eq!(codes, [] as [String; 0]);
    });
}

#[test]
fn a_deadline_beyond_all_time_is_refused_by_the_daemon_and_no_bug() {
    let place = Place::with_daemon(&[]);
    let _producer = open(&place, Description::new("w"));
    let caller = caller(&place);
    assert_eq!(caller.send(&titled("w"), "x", None, Duration::MAX).unwrap_err().code(), "invalid-params");
    assert_eq!(caller.wait(&titled("w"), Duration::MAX).unwrap_err().code(), "invalid-params");
}

#[test]
fn a_list_of_several_pages_is_read_as_one() {
    let place = Place::with_daemon(&[]);
    let offer = |number: usize| {
        let name = format!("{number:a>64}");
        Offer::new(name, |_| Ok(b"1".to_vec())).description("d".repeat(256))
    };
    let large = |number: usize| {
        let description = Description::new(format!("{number}"));
        open(&place, (0..64).fold(description, |description, number| description.offer(offer(number))))
    };
    let producers: Vec<_> = (0..60).map(large).collect();
    let caller = caller(&place);
    let listed: Vec<_> = caller.list(&Selector::default()).map(Result::unwrap).collect();
    let titles: Vec<_> = listed.iter().map(|session| session.title.parse::<usize>().unwrap()).collect();
    assert_eq!(titles, (0..60).collect::<Vec<_>>());
    let bytes: usize = listed.iter().map(|session| serde_json::to_vec(session).unwrap().len()).sum();
    assert!(bytes > 1024 * 1024, "one page would have held them: {bytes}");
    drop(producers);
}

#[test]
fn a_session_is_waited_for_and_nobody_waits_past_the_deadline() {
    let place = Place::with_daemon(&[]);
    let caller = caller(&place);
    assert_eq!(caller.wait(&titled("w"), Duration::from_millis(50)).unwrap_err().code(), "timeout");
    std::thread::scope(|scope| {
        let waits = scope.spawn(|| caller.wait(&titled("w"), LONG).unwrap());
        let producer = open(&place, Description::new("w"));
        assert_eq!(waits.join().unwrap().session_id, producer.session_id());
    });
}

#[test]
fn where_no_daemon_runs_none_is_started_and_that_is_said() {
    let place = Place::empty();
    let error = Caller::connect(&target(&place)).err().unwrap();
    assert_eq!(error.code(), "not-running");
    assert!(place.daemons().is_empty());
}
