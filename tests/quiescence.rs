//! When a daemon goes by itself: idle, drained, or in the way of a successor; and what does not keep or end it.

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::support::daemon::{Place, ran};
use crate::support::peers::{Operator, Producer};
use crate::support::threads;
use crate::support::wait::until;
use crate::support::wire::{Hello, Identity, Key, Peer, Stream, sha256};

/// Asks for protocol 2 alone; with `key`, proves itself to the signed refusal.
fn ask_for_more(identity: &Identity, key: Option<&Key>) {
    let mut stream = Stream::connect(&identity.socket);
    let line = String::from_utf8(Hello::new(identity).lines.first).unwrap();
    let line = line.replace("{\"max\":1,\"min\":1}", "{\"max\":2,\"min\":2}");
    stream.send(line.as_bytes());
    let answer = stream.line().expect("an incompatible daemon says so");
    assert!(answer.starts_with(b"{\"incompatible\""), "{answer:?}");
    let proof = stream.line().expect("and signs it");
    if let Some(key) = key {
        let transcript = [b"usher/1 transcript\n", line.as_bytes(), &answer, &proof].concat();
        stream.send(&key.proof("usher/1 client proof\n", &sha256(&transcript)));
    }
    assert!(stream.rest().is_empty());
}

#[test]
fn a_daemon_with_nothing_to_do_goes_by_itself_and_strangers_do_not_keep_it() {
    let mut place = Place::with_daemon(&["--idle-exit", "1"]);
    let (socket, identity) = (place.socket(), Identity::of(&place, "producer"));
    let stranger = identity.with_key(Key::random());
    let knocking = threads::spawn("knocks", move || {
        // Health, hellos that fail, and windows of another version, until nobody is there any more.
        while let Ok(mut health) = std::os::unix::net::UnixStream::connect(&socket) {
            use std::io::{Read, Write};
            let _gone = health.write_all(b"{\"health\":1}\n").and_then(|()| health.read_to_end(&mut Vec::new()));
            if let Err(refused) = Peer::try_hello(&stranger) {
                assert_ne!(refused, crate::support::wire::Refused::Busy);
            }
        }
    });
    let started = Instant::now();
    assert_eq!(place.wait_daemon(), 0);
    assert!(started.elapsed() >= Duration::from_millis(500), "it went at once: {:?}", started.elapsed());
    knocking.join().unwrap();
    assert!(place.log_text().contains("ending: idle"), "{}", place.log_text());
}

#[test]
fn a_session_a_question_a_subscription_and_a_connection_keep_an_idle_daemon() {
    let mut place = Place::with_daemon(&["--idle-exit", "1"]);
    let producer = Producer::start(&place, "board");
    let still_there = |what: &str| {
        // Longer than it would stay for nothing.
        let later = Instant::now() + Duration::from_millis(1_500);
        until(what, || (Instant::now() > later).then_some(()));
        assert!(place.health().is_some(), "gone in spite of {what}");
    };
    still_there("a session");
    let mut asker = Peer::connect(&Identity::of(&place, "caller"));
    let asked = asker.request("approval.request", &json!({"summary": "now?"}), None);
    drop(producer);
    still_there("a question");
    asker.text(json!({"jsonrpc": "2.0", "method": "$/cancel", "params": {"id": asked}}).to_string().as_bytes());
    asker.answer(asked).unwrap_err();
    asker.call("events.subscribe", &json!({}), None).unwrap();
    still_there("a subscription");
    asker.hang_up();
    assert_eq!(place.wait_daemon(), 0);
}

#[test]
fn a_window_of_a_newer_version_ends_a_daemon_that_nobody_needs_and_no_other() {
    let mut place = Place::with_daemon(&["--idle-exit", "0", "--limit", "settled-ms=1"]);
    let mut board = Producer::start(&place, "board");
    let (producer, caller) = (Identity::of(&place, "producer"), Identity::of(&place, "caller"));
    let operator = Identity::of(&place, "operator");
    ask_for_more(&producer, Some(&producer.key));
    let mut watcher = Operator::connect(&place);
    assert_eq!(watcher.status()["sessions"], json!(1), "it serves on");
    board.kill();
    assert_eq!(place.wait_daemon(), 0);
    assert!(place.log_text().contains("ending: successor"), "{}", place.log_text());

    place.start_daemon(&["--idle-exit", "0", "--limit", "settled-ms=1"]);
    ask_for_more(&producer, None);
    ask_for_more(&producer, Some(&Key::random()));
    ask_for_more(&caller, Some(&caller.key));
    ask_for_more(&operator, Some(&operator.key));
    let mut watcher = Operator::connect(&place);
    assert_eq!(watcher.status()["sessions"], json!(0), "only a producer that proves itself has a successor");
}

#[test]
fn a_daemon_that_has_just_started_makes_no_room() {
    let place = Place::with_daemon(&["--idle-exit", "0"]);
    let producer = Identity::of(&place, "producer");
    ask_for_more(&producer, Some(&producer.key));
    until("the daemon knows", || place.log_text().contains("waits for this daemon to end").then_some(()));
    let mut operator = Operator::connect(&place);
    let status: Value = operator.status();
    assert_eq!(status["sessions"], json!(0));
    assert!(place.health().is_some());
}

// 6
#[test]
fn five_hundred_commands_around_the_idle_exit_of_a_daemon_never_fail() {
    let rounds: Vec<_> = (0..8)
        .map(|number: u64| {
            threads::spawn("rounds", move || {
                for round in 0..4 {
                    let place = Place::empty();
                    let launched = ran(place.usherd().args(["--background", "--idle-exit", "1"]));
                    assert_eq!((launched.code, launched.stderr.as_str()), (0, ""));
                    let exit = Instant::now() + Duration::from_millis(940 + 5 * (number * 4 + round));
                    until("the time is near", || (Instant::now() >= exit).then_some(()));
                    for _ in 0..4 {
                        for args in [&["list"][..], &["list", "--json"], &["run", "--", "true"], &["list"]] {
                            let ran = place.run(args);
                            assert!(ran.code == 0 && !ran.stderr.contains("usher:"), "{args:?}: {ran:?}");
                        }
                    }
                }
            })
        })
        .collect();
    rounds.into_iter().for_each(|thread| thread.join().unwrap());
}
