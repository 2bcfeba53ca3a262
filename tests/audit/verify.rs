//! `usher audit --verify`, against the running daemon, against the head of a clean stop, against nothing.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::{Command, Stdio};

use nix::sys::signal::Signal;
use serde_json::json;

use super::{fails, file, line, lines, seq, stop, verifies};
use crate::support::daemon::{Place, ran};
use crate::support::system::{fifo, mode, put};
use crate::support::wait::until;
use crate::support::wire::{Identity, Peer, base64, sha256};

/// A daemon with some lines.
fn running() -> Place {
    let place = Place::with_daemon(&[]);
    for _ in 0..4 {
        place.json(&["list"]);
    }
    line(&place, "disconnected", 6);
    place
}

/// What is left when the last line is taken away.
fn without_last(text: &[u8]) -> &[u8] {
    let end = text[..text.len() - 1].iter().rposition(|byte| *byte == b'\n').unwrap();
    &text[..=end]
}

/// Alters the file without the daemon's doing, as an editor does not: in its place.
fn overwrite(path: &Path, bytes: &[u8]) {
    put(path, bytes);
}

#[test]
fn a_tail_that_was_cut_off_is_named_against_the_running_daemon_and_against_a_clean_stop() {
    let mut place = running();
    let head = seq(&place);
    assert!(verifies(&place, "daemon")["last"].as_u64().unwrap() >= head);

    // Suspended, it can tell nobody and repair nothing; the head was asked for before.
    let text = fs::read(file(&place)).unwrap();
    stop(&mut place);
    let whole = fs::read(file(&place)).unwrap();
    assert!(whole.starts_with(&text));
    assert_eq!(verifies(&place, "stop")["last"], lines(&place).len());
    for cut in [without_last(&whole), without_last(without_last(&whole)), &whole[..whole.len() - 1], b""] {
        overwrite(&file(&place), cut);
        fails(&place, "line ");
    }
    let ran = {
        overwrite(&file(&place), without_last(&whole));
        fails(&place, "the file ends before it")
    };
    assert!(ran.stderr.contains(&format!("(seq {})", lines(&place).len() + 1)), "{ran:?}");
    fs::remove_file(file(&place)).unwrap();
    fails(&place, "the file ends before it");

    // A daemon that finds it so says it, and from then on the line that says it is the one that is named.
    overwrite(&file(&place), without_last(&whole));
    place.start_daemon(&[]);
    line(&place, "end-differs", 0);
    fails(&place, "it says that a daemon found the file cut off or altered");
}

#[test]
fn a_tail_that_is_cut_off_while_the_daemon_runs_is_named() {
    let place = running();
    // Nothing writes until the next fact: what the verification itself causes comes behind its question.
    let before = fs::read(file(&place)).unwrap();
    let mut operator = Peer::connect(&Identity::of(&place, "operator"));
    let head = operator.call("audit.head", &json!({}), None).unwrap().result;
    overwrite(&file(&place), without_last(&before));
    assert!(head["seq"].as_u64().unwrap() >= lines(&place).len() as u64);
    // The hello of this makes the daemon write: it finds the file cut and says so, or the head is not reached.
    let ran = fails(&place, "");
    assert!(
        ran.stderr.contains("the file ends before it")
            || ran.stderr.contains("it says that a daemon found the file cut off")
            || ran.stderr.contains("it is not the line"),
        "{ran:?}"
    );
    let told = line(&place, "end-differs", 0);
    assert!(told["known_seq"].as_u64() > told["found_seq"].as_u64(), "{told}");
}

#[test]
fn a_changed_byte_a_missing_a_doubled_and_a_swapped_line_are_named_by_file_and_line() {
    let mut place = running();
    stop(&mut place);
    let whole = fs::read(file(&place)).unwrap();
    let of: Vec<&[u8]> = whole.split_inclusive(|byte| *byte == b'\n').collect();
    let with = |change: &dyn Fn(&mut Vec<Vec<u8>>)| {
        let mut lines: Vec<Vec<u8>> = of.iter().map(|line| line.to_vec()).collect();
        change(&mut lines);
        lines.concat()
    };
    for (changed, named) in [
        (with(&|lines| lines[3][20] ^= 1), "audit.ndjson line 4: its hash"),
        (with(&|lines| lines[3][0] = b'x'), "audit.ndjson line 4: it is no line"),
        (with(&|lines| drop(lines.remove(3))), "audit.ndjson line 4 (seq 5): it does not follow line seq 3"),
        (
            with(&|lines| lines.insert(3, lines[3].clone())),
            "audit.ndjson line 5 (seq 4): it does not follow line seq 4",
        ),
        (with(&|lines| lines.swap(3, 5)), "audit.ndjson line 4 (seq 6): it does not follow line seq 3"),
        (with(&|lines| drop(lines.remove(0))), "audit.ndjson line 1 (seq 2): the file does not begin with it"),
        (with(&|lines| lines.push(b"{}\n".to_vec())), "it is no line"),
    ] {
        overwrite(&file(&place), &changed);
        fails(&place, named);
    }
    overwrite(&file(&place), &whole);
    verifies(&place, "stop");
    let head = place.path().join("audit-head.json");
    let recorded = fs::read(&head).unwrap();
    let other = String::from_utf8(recorded.clone()).unwrap().replace("\"seq\": ", "\"seq\": 1");
    put(&head, other);
    fails(&place, "audit-head.json is corrupt");
    fs::remove_file(&head).unwrap();
    assert!(place.run(&["audit", "--verify"]).stdout.contains("no head is known: the tail cannot be proved"));
    verifies(&place, "nothing");
    put(&head, recorded);
    verifies(&place, "stop");
}

/// A line that begins a file, and whose hash is its own.
fn forged(seq: u64) -> String {
    let prev = base64(&[7; 32]);
    let body = format!(r#"{{"seq":{seq},"ts":"2026-11-30T22:00:00.000Z","fact":"continued","prev":"{prev}""#);
    let hash = base64(&sha256(format!("usher/1 audit\n{body}").as_bytes()));
    format!("{body},\"hash\":\"{hash}\"}}\n")
}

#[test]
fn files_that_do_not_hold_the_line_that_the_running_daemon_wrote_last_do_not_verify() {
    let place = running();
    let identity = Identity::of(&place, "operator");
    // So that the daemon has nothing to write when it is asked, and does not look at the file.
    for _ in 0..140 {
        drop(Peer::connect(&identity));
    }
    let mut operator = Peer::connect(&identity);
    let mut head = || operator.call("audit.head", &json!({}), None).unwrap().result["seq"].as_u64().unwrap();
    let last = until("the daemon writes no more", || {
        let last = head();
        (last > 256 && lines(&place).len() as u64 == last && head() == last).then_some(last)
    });
    fs::remove_file(file(&place)).unwrap();
    put(place.path().join("audit.ndjson.1"), forged(last + 1_000));
    let ran = fails(&place, "");
    assert!(
        ran.stderr.contains("which the daemon has written last, is not in them")
            || ran.stderr.contains("it says that a daemon found the file cut off"),
        "{ran:?}"
    );
}

#[test]
fn a_current_file_that_is_moved_over_the_old_copy_is_named() {
    let mut place = Place::with_daemon(&["--limit", "audit-bytes=4096"]);
    until("there is an old copy", || {
        place.json(&["list"]);
        place.path().join("audit.ndjson.1").exists().then_some(())
    });
    stop(&mut place);
    verifies(&place, "stop");
    fs::rename(file(&place), place.path().join("audit.ndjson.1")).unwrap();
    fails(&place, "audit.ndjson line 1: there is no line: the file was moved over the old copy");
    // And after a daemon has gone on with it.
    place.start_daemon(&[]);
    line(&place, "end-differs", 0);
    fails(&place, "audit.ndjson line 2");
}

#[test]
fn a_file_that_cannot_be_read_is_named_with_the_reason_and_not_taken_for_one_that_was_cut() {
    let mut place = running();
    stop(&mut place);
    let (path, aside) = (file(&place), place.path().join("aside"));
    let alter: [(&str, &dyn Fn()); 4] = [
        ("is a symbolic link", &|| symlink(&aside, &path).unwrap()),
        ("is not a regular file", &|| fifo(&path)),
        ("has several links", &|| fs::hard_link(&aside, &path).unwrap()),
        ("can be written by others", &|| {
            fs::copy(&aside, &path).unwrap();
            mode(&path, 0o666);
        }),
    ];
    for against in ["stop", "nothing"] {
        verifies(&place, against);
        fs::rename(&path, &aside).unwrap();
        for (why, alter) in alter {
            alter();
            fails(&place, &format!("{} {why}", path.display()));
            fs::remove_file(&path).unwrap();
        }
        fs::rename(&aside, &path).unwrap();
        let _known_no_more = fs::remove_file(place.path().join("audit-head.json"));
    }
}

#[test]
fn after_a_kill_no_head_is_known_and_what_was_torn_is_told_by_the_next_daemon() {
    let mut place = running();
    place.signal_daemon(Signal::SIGKILL);
    place.wait_daemon();
    assert!(!place.path().join("audit-head.json").exists());
    verifies(&place, "nothing");
    let text = fs::read(file(&place)).unwrap();
    let torn = b"{\"seq\":99,\"ts\":\"2026";
    overwrite(&file(&place), &[&text[..], torn].concat());
    fails(&place, "it has no end: a write was cut off");
    place.start_daemon(&[]);
    let told = line(&place, "torn", 0);
    assert_eq!(told["bytes"], torn.len());
    let verified = verifies(&place, "daemon");
    assert_eq!(verified["notes"], json!([{"seq": told["seq"], "fact": "torn"}]));
    stop(&mut place);
    verifies(&place, "stop");
    // Nobody else's bytes pass for these.
    let whole = fs::read(file(&place)).unwrap();
    let at = whole.windows(torn.len()).position(|window| window == torn).unwrap();
    let mut other = whole.clone();
    other[at + 8] ^= 1;
    overwrite(&file(&place), &other);
    fails(&place, "it is no line");
}

/// The daemon is killed at every step of writing a line, turning the file and recording the head.
#[cfg(debug_assertions)]
#[test]
fn a_crash_at_any_step_leaves_an_audit_that_the_next_daemon_goes_on_with() {
    let steps = ["begun", "aside", "renamed", "synced"].map(|step| format!("audit-head.json/{step}/1"));
    let turning = ["audit.ndjson/full/1", "audit.ndjson/turned/1", "audit.ndjson/written/3"].map(str::to_owned);
    for point in steps.into_iter().chain(turning) {
        let mut place = Place::empty();
        let mut usherd = place.usherd();
        usherd.args(["--limit", "audit-bytes=4096"]).env("USHER_FIXTURE_KILL", &point);
        place.start_daemon_as(usherd);
        let is_head = point.starts_with("audit-head");
        if is_head {
            place.signal_daemon(Signal::SIGTERM);
        } else {
            // The disk may take its time before a file is turned.
            until("the daemon is killed", || {
                place.run(&["list"]);
                place.health().is_none().then_some(())
            });
        }
        assert_eq!(place.wait_daemon(), 137, "{point}");
        let before = lines(&place).len();
        let against = if point.contains("renamed") || point.contains("synced") { "stop" } else { "nothing" };
        verifies(&place, against);
        place.start_daemon(&["--limit", "audit-bytes=4096"]);
        let started = line(&place, "started", 2);
        assert_eq!(started["after"], if is_head { "clean" } else { "crash" }, "{point}");
        verifies(&place, "daemon");
        stop(&mut place);
        verifies(&place, "stop");
        assert!(before > 0 && lines(&place).len() > before, "{point}: lines were lost");
    }
}

#[test]
fn without_an_audit_or_with_the_wrong_words_there_is_one_plain_refusal() {
    let place = Place::empty();
    for args in [&["audit"][..], &["audit", "--verify"]] {
        let ran = place.run(args);
        assert_eq!((ran.code, ran.stdout.as_str()), (6, ""), "{ran:?}");
        assert!(ran.stderr.starts_with("usher: no audit: "), "{ran:?}");
    }
    let place = running();
    for args in [&["audit", "--verify", "--follow"][..], &["audit", "--since", "yesterday"], &["audit", "x"]] {
        assert_eq!(place.run(args).code, 2, "{args:?}");
    }
    let bundle = place.scratch().join("bundle");
    let bundle = bundle.to_str().unwrap();
    assert_eq!(place.run(&["keys", "new", "--label", "x", "--row", "--out", bundle]).code, 0);
    for args in [&["audit", "--credential", bundle][..], &["audit", "--verify", "--credential", bundle]] {
        let ran = place.run(args);
        assert_eq!((ran.code, ran.stderr.contains("a bundle does not know")), (2, true), "{ran:?}");
    }
    let inside = ran(place.usher().args(["audit", "--verify"]).env("USHER_SESSION", "AAAAAAAAAAAAAAAAAAAAAA"));
    assert_eq!(inside.code, 5, "the operator's key is not used by accident: {inside:?}");
    let shown = ran(place.usher().arg("audit").env("USHER_SESSION", "AAAAAAAAAAAAAAAAAAAAAA"));
    assert_eq!(shown.code, 0, "{shown:?}");
    let mut caller = crate::support::peers::Caller::connect(&place);
    assert_eq!(caller.0.call("audit.head", &json!({}), None).unwrap_err().code, "unknown-method");
}

#[test]
fn the_recipe_of_the_page_comes_to_the_same_verdict() {
    if Command::new("python3").arg("--version").stdout(Stdio::null()).status().is_err() {
        return crate::support::system::cannot("the recipe of docs/audit.md", "no python3 here");
    }
    let page = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/audit.md")).unwrap();
    let recipe = page.split("```python\n").nth(1).unwrap().split("```").next().unwrap();
    let mut place = Place::with_daemon(&["--limit", "audit-bytes=4096"]);
    for _ in 0..20 {
        place.json(&["list"]);
    }
    stop(&mut place);
    put(file(&place), [fs::read(file(&place)).unwrap().as_slice(), b"{\"seq\n\0"].concat());
    fs::remove_file(place.path().join("audit-head.json")).unwrap();
    place.start_daemon(&[]);
    line(&place, "torn", 0);
    stop(&mut place);
    assert!(place.path().join("audit.ndjson.1").exists());
    let python = || ran(place.program("python3").args(["-c", recipe]).current_dir(place.path()));
    let document = verifies(&place, "stop");
    let done = python();
    let head = format!("{} {}\n", document["head"]["seq"], document["head"]["hash"].as_str().unwrap());
    assert_eq!((done.code, done.stdout.as_str()), (0, head.as_str()), "{done:?}");
    for name in ["audit.ndjson", "audit.ndjson.1"] {
        let path = place.path().join(name);
        let whole = fs::read(&path).unwrap();
        for at in (0..whole.len()).step_by(whole.len() / 7) {
            let mut other = whole.clone();
            other[at] ^= 1;
            put(&path, &other);
            assert_eq!(python().code, 1, "{name} byte {at}");
            fails(&place, name);
        }
        put(&path, &whole);
    }
}
