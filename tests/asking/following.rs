//! `usher approvals --follow`, also by a reader that goes away or does not read.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader};
use std::process::Stdio;

use serde_json::{Value, json};

use super::super::support::daemon::{Place, finished};
use super::super::support::wait::until;
use super::super::support::wire::{Identity, Peer};
use super::{ask, asked, id, lines};

#[test]
fn approvals_are_followed_from_those_that_are_open_on() {
    let place = Place::with_daemon(&[]);
    let first = ask(&place, &["first?"]);
    let first_id = id(&asked(&place, "first?"));
    let mut command = place.usher();
    let out = std::fs::File::create(place.scratch().join("followed")).unwrap();
    let mut following =
        command.args(["approvals", "--follow", "--json"]).stdout(out).stderr(Stdio::piped()).spawn().unwrap();
    let told = || lines(&std::fs::read_to_string(place.scratch().join("followed")).unwrap_or_default());
    until("the open one is told", || told().iter().any(|one| one["summary"] == "first?").then_some(()));
    let second = ask(&place, &["second?"]);
    until("the new one is told", || told().iter().any(|one| one["summary"] == "second?").then_some(()));
    assert_eq!(place.run(&["approve", &first_id]).code, 0);
    until("the end is told", || told().iter().any(|one| one["state"] == "approved").then_some(()));
    assert_eq!(finished(first).code, 0);
    assert!(following.try_wait().unwrap().is_none(), "it goes on");
    assert_eq!(place.run(&["stop"]).code, 0);
    let following = finished(following);
    assert_eq!(following.code, 3);
    assert_eq!(lines(&following.stderr)[0]["error"]["message"], json!("the daemon has ended"));
    assert_eq!(finished(second).code, 3);
    let all = told();
    let ends: Vec<_> = all.iter().filter(|one| one["state"] != "open").collect();
    assert_eq!((&ends[0]["approval_id"], &ends[0]["by"]["label"]), (&json!(first_id), &json!("operator")), "{all:?}");
    assert_eq!((&ends[1]["state"], &ends[1]["reason"]), (&json!("cancelled"), &json!("shutting-down")), "{all:?}");
    assert_eq!(all.iter().filter(|one| one["summary"] == "first?").count(), 1, "told once: {all:?}");
}

#[test]
fn a_follower_whose_key_is_taken_back_does_not_say_that_the_daemon_has_ended() {
    let place = Place::with_daemon(&[]);
    let bundle = place.scratch().join("watcher");
    let bundle = bundle.to_str().unwrap();
    assert_eq!(
        place.run(&["keys", "new", "--label", "watcher", "--role", "operator", "--row", "--out", bundle]).code,
        0
    );
    let asking = ask(&place, &["still there?"]);
    let question = id(&asked(&place, "still there?"));
    let out = std::fs::File::create(place.scratch().join("followed")).unwrap();
    let mut command = place.usher();
    command.args(["approvals", "--follow", "--credential", bundle]).stdout(out).stderr(Stdio::piped());
    let following = command.spawn().unwrap();
    until("it follows", || {
        std::fs::read_to_string(place.scratch().join("followed")).unwrap().contains("still there?").then_some(())
    });
    assert_eq!(place.run(&["keys", "revoke", "watcher"]).code, 0);
    let following = finished(following);
    assert_eq!((following.code, following.stderr.as_str()), (3, "usher: the connection was lost\n"));
    assert_eq!(place.run(&["reject", &question]).code, 0);
    assert_eq!(finished(asking).code, 1);
}

#[test]
fn a_follower_ends_with_its_reader_though_nothing_happens() {
    let place = Place::with_daemon(&[]);
    let mut follower = place.usher();
    let follower = follower.args(["approvals", "--follow"]).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut follower = follower.spawn().unwrap();
    let mut reader = BufReader::new(follower.stdout.take().unwrap());
    let asking = ask(&place, &["seen?"]);
    let question = id(&asked(&place, "seen?"));
    let mut line = String::new();
    reader.read_line(&mut line).unwrap();
    assert!(line.starts_with(&question) && line.ends_with(": seen?\n"), "{line}");
    drop(reader);
    let done = finished(follower);
    assert_eq!((done.code, done.stderr.as_str()), (0, ""), "{done:?}");
    assert_eq!(place.run(&["reject", &question]).code, 0);
    assert_eq!(finished(asking).code, 1);
}

/// A question that is asked and taken back at once.
fn passing(peer: &mut Peer) {
    let request = peer.request("approval.request", &json!({"summary": "passing?"}), None);
    let pending = peer.next().unwrap();
    let id = &pending.header["params"]["approval_id"];
    peer.call("approval.withdraw", &json!({ "approval_id": id }), None).unwrap();
    peer.answer(request).unwrap();
}

#[test]
fn a_follower_that_is_not_read_for_long_tells_each_question_and_each_end_once() {
    let place = Place::with_daemon(&[]);
    let mut peer = Peer::connect(&Identity::of(&place, "caller"));
    // More than a pipe holds: the follower waits in the middle of the first line.
    let detail = json!("x".repeat(200_000)).to_string();
    let first = peer.request("approval.request", &json!({"summary": "first?"}), Some(detail.as_bytes()));
    let pending = peer.next().unwrap();
    let first_id = pending.header["params"]["approval_id"].as_str().unwrap().to_owned();
    let mut follower = place.usher();
    let follower = follower.args(["approvals", "--follow", "--json"]).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut follower = follower.spawn().unwrap();
    let mut reader = BufReader::new(follower.stdout.take().unwrap());
    reader.fill_buf().unwrap();
    // Some that it will read of, then more than is kept for it.
    for _ in 0..4_500 {
        passing(&mut peer);
    }
    peer.call("approval.withdraw", &json!({"approval_id": first_id}), None).unwrap();
    peer.answer(first).unwrap();
    peer.request("approval.request", &json!({"summary": "last?"}), None);
    until("the last one is open", || super::open(&place).into_iter().find(|one| one["summary"] == "last?"));

    let mut told: BTreeMap<String, Vec<Value>> = BTreeMap::new();
    loop {
        let mut line = String::new();
        assert_ne!(reader.read_line(&mut line).unwrap(), 0, "it goes on");
        let one: Value = serde_json::from_str(&line).unwrap();
        let is_last = one["summary"] == "last?";
        told.entry(id(&one)).or_default().push(one);
        if is_last {
            break;
        }
    }
    assert!(told.len() < 4_500, "all was kept for it: nothing was to be caught up with");
    for (id, told) in &told {
        let states: Vec<_> = told.iter().map(|one| one["state"].as_str().unwrap()).collect();
        let once = [&["open"][..], &["open", "cancelled"], &["cancelled"]];
        assert!(once.contains(&states.as_slice()), "{id}: {states:?}");
    }
    let of_first: Vec<_> = told[&first_id].iter().map(|one| one["state"].as_str().unwrap()).collect();
    assert_eq!(of_first, ["open", "cancelled"], "what ended while it was not read");
    place.kill_daemons();
    drop(reader);
    let done = finished(follower);
    assert!([0, 3].contains(&done.code), "{done:?}");
}
