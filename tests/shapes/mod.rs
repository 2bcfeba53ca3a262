//! The shape of every message of every protocol: what is really said is what `tests/vectors/protocol-N.json` holds.

mod conversation;
mod probe;
mod shape;
mod talk;

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use serde_json::Value;

use super::support::wire::sha256;
use shape::Book;

/// The files, and what they were when their protocol was released. A released shape does not change: see docs/protocol.md, "How a
/// number is raised".
const RELEASED: &[(u16, &str)] = &[
    (0, "adad21abcdef070b4da3f27ca666022516b1b8563b902d6a99c5db5779a4bc99"),
    (1, "a25e563081ada1e4676c29d7d49406bab296e06a9557bad1df2558a5891176d7"),
];

const RAISE: &str = "a shape that was released does not change: docs/protocol.md, \"How a number is raised\", says what may grow and \
                     what needs another number";

fn file(protocol: u16) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/vectors/protocol-{protocol}.json"))
}

fn manual(name: &str) -> String {
    fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("docs").join(name)).unwrap()
}

/// Compares message by message, for a failure that can be read.
fn compare(protocol: u16, book: &Book) {
    let now = book.document(protocol);
    let written = fs::read(file(protocol)).unwrap_or_default();
    let released: Value = serde_json::from_slice(&written).unwrap_or_default();
    let mut differences = Vec::new();
    let names = |document: &Value| -> BTreeSet<String> {
        document["shapes"].as_object().into_iter().flat_map(|shapes| shapes.keys().cloned()).collect()
    };
    for name in names(&now).union(&names(&released)) {
        let (then, now) = (&released["shapes"][name], &now["shapes"][name]);
        if then != now {
            differences.push(format!("{name}\n  released: {then}\n  now:      {now}"));
        }
    }
    let seen = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("protocol-{protocol}.json"));
    super::support::system::put(&seen, serde_json::to_string_pretty(&now).unwrap() + "\n");
    assert!(
        differences.is_empty(),
        "{}\n\n{RAISE}\n(what was seen now is in {})",
        differences.join("\n"),
        seen.display()
    );
}

// 20
#[test]
fn every_message_has_the_shape_that_was_released_with_its_protocol() {
    let notes = conversation::held();
    compare(1, &notes.borrow().book);
    let book = &notes.borrow().book;
    let said: BTreeSet<&str> = book.whats().collect();
    // The table of methods and that of events are those of the code: unit tests see to that.
    let manual = manual("protocol.md");
    let table = |heading: &str| -> Vec<String> {
        let behind = manual.split_once(heading).unwrap().1;
        let rows = behind.lines().skip(1).take_while(|line| line.starts_with('|'));
        rows.filter_map(|row| Some(row.strip_prefix("| `")?.split_once('`')?.0.to_owned())).collect()
    };
    let methods = table("| method | producer | caller | operator | payload in | payload out |");
    assert!(methods.len() >= 24, "{methods:?}");
    for method in methods {
        for what in [format!("client: request {method}"), format!("daemon: answer {method}")] {
            assert!(said.contains(what.as_str()), "{what} was never said");
        }
    }
    let kinds = table("| kind | fields | who sees it |");
    assert!(kinds.len() >= 14, "{kinds:?}");
    for kind in kinds {
        assert!(said.contains(format!("daemon: event {kind}").as_str()), "no event {kind} was seen");
    }
}

// 23
#[test]
fn protocol_zero_has_the_shape_that_it_has_for_ever() {
    let notes = conversation::held_in_zero();
    compare(0, &notes.borrow().book);
}

#[test]
fn the_files_of_released_shapes_are_those_that_were_released() {
    for (protocol, digest) in RELEASED {
        let now = data_encoding::HEXLOWER.encode(&sha256(&fs::read(file(*protocol)).unwrap()));
        assert_eq!(now, *digest, "{}: {RAISE}", file(*protocol).display());
    }
}
