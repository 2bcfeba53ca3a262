//! The audit as a daemon uses it, without the daemon.

use std::time::Duration;

use super::check::{Bound, Source, check};
use super::*;
use crate::ids::{CredentialId, Generation};
use crate::store::pem::Seed;
use crate::store::scratch::Scratch;

const PATIENCE: Duration = Duration::from_secs(30);

fn identity() -> Arc<Identity> {
    Arc::new(Identity::from_seed(&Seed::random()).unwrap())
}

/// A start, and how the one before it ended.
fn start(scratch: &Scratch, identity: &Arc<Identity>, max_bytes: u64) -> (Audit, After) {
    let mut ended = None;
    let audit = Audit::start(scratch.dir(), Arc::clone(identity), max_bytes, |after| {
        ended = Some(after);
        Fact::Started { build: "test", generation: Generation([0; 16]), after }
    });
    (audit, ended.unwrap())
}

fn asked() -> Fact {
    Fact::StopAsked { by: CredentialId([1; 16]), force: false }
}

fn read(scratch: &Scratch, name: &str) -> Option<Vec<u8>> {
    std::fs::read(scratch.path().join(name)).ok()
}

/// The facts of both files, which are one unbroken audit.
fn facts(scratch: &Scratch, bound: Bound) -> Vec<String> {
    let (old, current) = (read(scratch, OLD), read(scratch, FILE));
    let source = |name, bytes| Source { name, bytes };
    let checked = check(
        old.as_deref().map(|bytes| source(OLD, bytes)),
        current.as_deref().map(|bytes| source(FILE, bytes)),
        bound,
    );
    checked.unwrap_or_else(|broken| panic!("{broken}"));
    let bytes = [old, current].into_iter().flatten().flatten().collect::<Vec<u8>>();
    bytes.split(|byte| *byte == b'\n').filter_map(|line| Some(read_line(line).ok()?.fact)).collect()
}

fn wait(what: &str, mut is_so: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !is_so() {
        assert!(Instant::now() < deadline, "waited in vain: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn an_audit_goes_on_across_starts_and_says_how_each_one_ended() {
    let (scratch, identity) = (Scratch::new(), identity());
    let start = || start(&scratch, &identity, 1 << 20);
    let (audit, after) = start();
    assert_eq!(after, After::First);
    audit.end("stop", 3);
    audit.record(asked());
    let head = head::read(&scratch.dir(), identity.public()).unwrap().unwrap();
    assert_eq!(head, audit.state().head);
    assert_eq!(facts(&scratch, Bound::Ends(head)), ["begun", "started", "stopped"]);

    let (audit, after) = start();
    assert_eq!(after, After::Clean);
    assert_eq!(head::read(&scratch.dir(), identity.public()), Ok(None), "no old head while one runs");
    assert_eq!(audit.state().head.seq, 4, "it has its line at once");
    drop(audit);

    let (audit, after) = start();
    assert_eq!(after, After::Crash);
    audit.end("signal", 0);
    assert_eq!(
        facts(&scratch, Bound::Ends(audit.state().head)),
        ["begun", "started", "stopped", "started", "started", "stopped"]
    );
}

#[test]
fn a_file_that_was_cut_while_no_daemon_ran_is_told_and_so_is_one_that_is_gone() {
    for cut in [true, false] {
        let (scratch, identity) = (Scratch::new(), identity());
        let (audit, _) = start(&scratch, &identity, 1 << 20);
        audit.end("stop", 0);
        let text = read(&scratch, FILE).unwrap();
        let second = text.iter().position(|byte| *byte == b'\n').unwrap() + 1;
        if cut {
            scratch.file(FILE, &text[..second], 0o600);
        } else {
            std::fs::remove_file(scratch.path().join(FILE)).unwrap();
        }
        let (audit, after) = start(&scratch, &identity, 1 << 20);
        assert_eq!(after, After::Clean);
        audit.end("stop", 0);
        let text = String::from_utf8(read(&scratch, FILE).unwrap()).unwrap();
        let told = text.lines().nth(1).unwrap();
        assert!(told.contains(r#""fact":"end-differs","known_seq":3,"#), "{told}");
        let broken = check(None, Some(Source { name: FILE, bytes: text.as_bytes() }), Bound::Unknown).unwrap_err();
        assert_eq!(broken.line, 2, "{broken}");
    }
}

#[test]
fn a_file_that_is_touched_while_the_daemon_runs_is_told_and_gone_on_with() {
    let scratch = Scratch::new();
    let (audit, _) = start(&scratch, &identity(), 1 << 20);
    std::fs::remove_file(scratch.path().join(FILE)).unwrap();
    audit.record(asked());
    audit.end("stop", 0);
    let text = String::from_utf8(read(&scratch, FILE).unwrap()).unwrap();
    let facts: Vec<_> = text.lines().map(|line| read_line(line.as_bytes()).unwrap().fact).collect();
    assert_eq!(facts, ["begun", "end-differs", "stop-asked", "stopped"]);
}

/// Nothing is missing at the end then, and what the old copy held is gone.
#[test]
fn a_file_that_is_moved_over_the_old_copy_is_told_whether_a_daemon_runs_or_not() {
    for runs in [true, false] {
        let (scratch, identity) = (Scratch::new(), identity());
        let (audit, _) = start(&scratch, &identity, 1 << 20);
        audit.record(asked());
        wait("the line is there", || audit.state().head.seq == 3);
        let moved = || std::fs::rename(scratch.path().join(FILE), scratch.path().join(OLD)).unwrap();
        let audit = if runs {
            moved();
            audit
        } else {
            audit.end("stop", 0);
            moved();
            start(&scratch, &identity, 1 << 20).0
        };
        audit.record(asked());
        audit.end("stop", 0);
        let text = String::from_utf8(read(&scratch, FILE).unwrap()).unwrap();
        let facts: Vec<_> = text.lines().map(|line| read_line(line.as_bytes()).unwrap().fact).collect();
        assert_eq!(facts[..2], ["continued", "end-differs"], "{text}");
        assert_eq!(facts.iter().filter(|fact| *fact == "end-differs").count(), 1, "{text}");
    }
}

#[test]
fn torn_bytes_are_told_and_the_chain_goes_on_behind_them() {
    for (torn, told) in [(&b"{\"seq\":3,"[..], true), (b"", false)] {
        let (scratch, identity) = (Scratch::new(), identity());
        let (audit, _) = start(&scratch, &identity, 1 << 20);
        drop(audit);
        let text = read(&scratch, FILE).unwrap();
        // Without its last LF a line is whole all the same.
        let kept = if told { &text[..] } else { &text[..text.len() - 1] };
        scratch.file(FILE, &[kept, torn].concat(), 0o600);
        let (audit, after) = start(&scratch, &identity, 1 << 20);
        assert_eq!(after, After::Crash);
        audit.end("stop", 0);
        let expected: &[&str] = if told {
            &["begun", "started", "torn", "started", "stopped"]
        } else {
            &["begun", "started", "started", "stopped"]
        };
        assert_eq!(facts(&scratch, Bound::Ends(audit.state().head)), expected);
    }
}

#[test]
fn a_full_file_becomes_the_old_copy_and_the_chain_goes_on() {
    let scratch = Scratch::new();
    let (audit, _) = start(&scratch, &identity(), 4_096);
    for number in 2..300 {
        audit.record(asked());
        wait("the line is there", || audit.state().head.seq >= number);
        for name in [FILE, OLD] {
            let size = read(&scratch, name).map_or(0, |bytes| bytes.len());
            assert!(size <= 4_096, "{name} has {size} bytes");
        }
    }
    audit.end("stop", 0);
    let facts = facts(&scratch, Bound::Ends(audit.state().head));
    assert_eq!(facts.iter().filter(|fact| *fact == "continued").count(), 2);
    assert_eq!(audit.state().lost, 0);
    assert!(audit.state().head.seq > 300, "each turn has a line of its own");
}

#[test]
fn a_bound_below_a_line_still_takes_one_a_file() {
    let scratch = Scratch::new();
    let (audit, _) = start(&scratch, &identity(), 1);
    audit.record(asked());
    audit.record(asked());
    audit.end("stop", 0);
    assert_eq!(facts(&scratch, Bound::Ends(audit.state().head)), ["continued", "stop-asked", "continued", "stopped"]);
}

#[test]
fn what_cannot_be_an_audit_of_ours_is_left_and_facts_are_counted_until_it_is_gone() {
    let scratch = Scratch::new();
    scratch.file(FILE, b"notes of mine", 0o600);
    let (audit, _) = start(&scratch, &identity(), 1 << 20);
    for _ in 0..5 {
        audit.record(asked());
    }
    wait("all are counted", || audit.state().lost == 6);
    assert!(!audit.state().available);
    assert_eq!(read(&scratch, FILE).unwrap(), b"notes of mine");
    std::fs::rename(scratch.path().join(FILE), scratch.path().join("notes")).unwrap();
    wait("it is written again", || audit.state().available);
    audit.end("stop", 0);
    assert_eq!(facts(&scratch, Bound::Ends(audit.state().head)), ["begun", "lost", "stopped"]);
    let text = String::from_utf8(read(&scratch, FILE).unwrap()).unwrap();
    assert!(text.contains(r#""fact":"lost","count":6,"since":""#), "{text}");
}

#[test]
fn a_queue_that_is_full_holds_nobody_up_and_the_gap_is_told() {
    let scratch = Scratch::new();
    let (audit, _) = start(&scratch, &identity(), 1 << 24);
    let count = 50_000;
    for _ in 0..count {
        audit.record(asked());
    }
    audit.end("stop", 0);
    let lost = audit.state().lost;
    let facts = facts(&scratch, Bound::Ends(audit.state().head));
    let written = facts.iter().filter(|fact| *fact == "stop-asked").count() as u64;
    if facts[0] == "begun" {
        assert_eq!(written + lost, count, "each fact has a line or is counted");
    }
    assert_eq!(lost > 0, facts.iter().any(|fact| fact == "lost"));
}
