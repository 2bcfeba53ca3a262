//! What the daemon says of a request's members when one is strange, and when one is missing.

use std::cell::RefCell;
use std::collections::BTreeSet;

use serde_json::{Value, json};

use super::super::support::wire::Peer;
use super::talk::Notes;

/// Objects in requests that may hold what nobody knows: docs/protocol.md says which.
const OPEN: &[&str] = &["terminal", "commands", "info", "runtimes", "labels"];

/// Every object in a request, by the way to it.
fn objects(params: &Value, way: &str, found: &mut Vec<String>) {
    match params {
        Value::Object(members) => {
            found.push(way.to_owned());
            for (name, value) in members.iter().filter(|(name, _)| !OPEN.contains(&name.as_str())) {
                objects(value, &format!("{way}/{name}"), found);
            }
        }
        // All of a list are alike.
        Value::Array(elements) => elements.iter().take(1).for_each(|value| objects(value, &format!("{way}/0"), found)),
        _ => {}
    }
}

/// What is refused as not documented; how.
fn complaint(peer: &mut Peer, method: &str, params: &Value) -> Option<String> {
    let id = peer.request(method, params, None);
    let failure = peer.answer(id).err()?;
    (failure.code == "invalid-params").then(|| failure.error["message"].as_str().unwrap().to_owned())
}

fn quoted(text: &str) -> BTreeSet<String> {
    text.split('`').skip(1).step_by(2).map(str::to_owned).collect()
}

/// The members of that object in any request that was taken.
fn seen(notes: &Notes, method: &str, way: &str) -> BTreeSet<String> {
    let of_method = notes.taken.iter().filter(|(_, name, _)| name == method);
    of_method
        .filter_map(|(_, _, params)| params.pointer(way)?.as_object())
        .flat_map(|members| members.keys().cloned())
        .collect()
}

fn methods(notes: &Notes, role: &str, peer: &mut Peer) {
    let mut names: Vec<&String> =
        notes.taken.iter().filter(|(of, _, _)| *of == role).map(|(_, name, _)| name).collect();
    names.sort();
    names.dedup();
    for method in names {
        let taken: Vec<&Value> = notes
            .taken
            .iter()
            .filter(|(of, name, _)| *of == role && name == method)
            .map(|(_, _, params)| params)
            .collect();
        let mut ways: Vec<String> = Vec::new();
        taken.iter().for_each(|params| objects(params, "", &mut ways));
        ways.sort();
        ways.dedup();
        for way in ways {
            let there: Vec<&Value> = taken.iter().copied().filter(|params| params.pointer(&way).is_some()).collect();
            strange(notes, peer, method, there[0], &way);
            missing(peer, method, &there, &way);
        }
    }
}

/// With a strange member the daemon names all that it knows: each of them has been said.
fn strange(notes: &Notes, peer: &mut Peer, method: &str, params: &Value, way: &str) {
    let mut with = params.clone();
    with.pointer_mut(way).unwrap()["?"] = json!(0);
    let told =
        complaint(peer, method, &with).unwrap_or_else(|| panic!("{method} takes a strange member at {way:?}: {with}"));
    let expected = told.split_once("unknown field `?`").unwrap_or_else(|| panic!("{method} at {way:?}: {told}")).1;
    let takes = quoted(expected);
    assert_eq!(takes, seen(notes, method, way), "{method} takes these at {way:?}, and those were said: {told}");
}

/// Without a member that everybody gave it is refused: what may be absent was absent once.
fn missing(peer: &mut Peer, method: &str, taken: &[&Value], way: &str) {
    let members = |params: &Value| params.pointer(way).unwrap().as_object().unwrap().clone();
    for name in members(taken[0]).keys().filter(|name| taken.iter().all(|params| members(params).contains_key(*name))) {
        let mut without = taken[0].clone();
        without.pointer_mut(way).unwrap().as_object_mut().unwrap().remove(name);
        let told =
            complaint(peer, method, &without).unwrap_or_else(|| panic!("{method} does not need {name} at {way:?}"));
        assert!(told.contains(&format!("missing field `{name}`")), "{method} without {name} at {way:?}: {told}");
    }
}

pub fn all(notes: &RefCell<Notes>, operator: &mut Peer, caller: &mut Peer, producer: &mut Peer) {
    let notes = notes.borrow();
    methods(&notes, "operator", operator);
    methods(&notes, "caller", caller);
    methods(&notes, "producer", producer);
}

pub fn zero(notes: &RefCell<Notes>, operator: &mut Peer) {
    methods(&notes.borrow(), "operator", operator);
}
