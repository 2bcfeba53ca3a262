//! Receipts of questions and decisions: what they prove, and what is left of one that never came.

use std::path::Path;
use std::process::Stdio;

use nix::sys::signal::Signal;

use super::super::support::daemon::{Place, USHER, code, finished, ran};
use super::super::support::system::{kill, put};
use super::{asked, gone, id};

fn verify(place: &Place, path: &Path) -> super::Ran {
    ran(place.usher().arg("verify").arg(path))
}

#[test]
fn a_receipt_proves_who_decided_what_and_no_altered_one_does() {
    let place = Place::with_daemon(&[]);
    let (asked_file, decided_file) = (place.scratch().join("asked"), place.scratch().join("decided"));
    let mut asking = place.usher();
    asking.args(["ask", "sure?", "--detail", "all\n\u{1b}[2Jof it", "--receipt"]).arg(&asked_file);
    let asking = asking.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let question = id(&asked(&place, "sure?"));
    let mut approve = place.usher();
    assert_eq!(ran(approve.args(["approve", &question, "--receipt"]).arg(&decided_file)).code, 0);
    assert_eq!(finished(asking).code, 0);
    // The asker's and the decider's say the same.
    for file in [&asked_file, &decided_file] {
        let proved = verify(&place, file);
        assert_eq!(proved.code, 0, "{proved:?}");
        let second = proved.stdout.lines().nth(1).unwrap();
        assert!(second.starts_with("approved by operator, who signed it with "), "{proved:?}");
        assert!(second.ends_with(": sure?"), "{proved:?}");
        assert!(proved.stdout.ends_with("\n\n  all\n  \\u{1b}[2Jof it\n"), "{proved:?}");
    }
    for file in [&asked_file, &decided_file] {
        let whole = std::fs::read(file).unwrap();
        let altered = place.scratch().join("altered");
        for (count, at) in (0..whole.len()).step_by(31).enumerate() {
            let mut bytes = whole.clone();
            bytes[at] ^= 1 << (count % 8);
            put(&altered, &bytes);
            let refused = verify(&place, &altered);
            assert_eq!((refused.code, refused.stdout.as_str()), (1, ""), "byte {at} does not matter: {refused:?}");
        }
        for end in (0..whole.len() - 1).step_by(199) {
            put(&altered, &whole[..end]);
            assert_eq!(verify(&place, &altered).code, 1, "cut at {end}");
        }
    }
}

#[test]
fn a_question_that_was_not_approved_has_a_receipt_too() {
    let place = Place::with_daemon(&[]);
    let [no, late] = ["no", "late"].map(|name| place.scratch().join(name));
    let mut asking = place.usher();
    let asking = asking.args(["ask", "no?", "--receipt"]).arg(&no).stdout(Stdio::piped()).stderr(Stdio::piped());
    let asking = asking.spawn().unwrap();
    assert_eq!(place.run(&["reject", &id(&asked(&place, "no?"))]).code, 0);
    assert_eq!(finished(asking).code, 1);
    assert_eq!(ran(place.usher().args(["ask", "late?", "--ttl", "20ms", "--receipt"]).arg(&late)).code, 4);
    for (file, says) in [(&no, "rejected by operator, who signed it with "), (&late, "expired: late?\n")] {
        let proved = verify(&place, file);
        assert!(proved.code == 0 && proved.stdout.contains(says), "{proved:?}");
    }
}

#[test]
fn a_question_that_is_taken_back_leaves_no_empty_receipt() {
    let place = Place::with_daemon(&[]);
    let receipt = place.scratch().join("receipt");
    for signal in [Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP] {
        let mut asking = place.usher();
        let mut asking = asking.args(["ask", "keep?", "--receipt"]).arg(&receipt).spawn().unwrap();
        asked(&place, "keep?");
        assert!(receipt.exists(), "its place is taken");
        kill(asking.id(), signal);
        let status = asking.wait().unwrap();
        assert_eq!(code(status), 128 + signal as i32);
        // Else a shell goes on with the line behind it.
        assert_eq!(std::os::unix::process::ExitStatusExt::signal(&status), Some(signal as i32), "it died of it");
        assert!(!receipt.exists(), "{signal} left it there");
        gone(&place);
    }
    // Refused, and lost with the daemon.
    assert_eq!(ran(place.usher().args(["ask", "x\ny", "--receipt"]).arg(&receipt)).code, 2);
    assert!(!receipt.exists());
    let mut asking = place.usher();
    let asking = asking.args(["ask", "keep?", "--receipt"]).arg(&receipt).stdout(Stdio::piped()).stderr(Stdio::piped());
    let asking = asking.spawn().unwrap();
    asked(&place, "keep?");
    place.kill_daemons();
    assert_eq!(finished(asking).code, 3);
    assert!(!receipt.exists());
}

#[test]
fn a_signal_that_is_ignored_takes_nothing_back() {
    let place = Place::with_daemon(&[]);
    let receipt = place.scratch().join("receipt");
    let script = format!("trap '' INT; exec '{USHER}' ask 'stay?' --receipt \"$1\"");
    let mut asking = place.program("sh");
    let asking = asking.args(["-c", &script, "sh"]).arg(&receipt).stdout(Stdio::piped()).stderr(Stdio::piped());
    let asking = asking.spawn().unwrap();
    let question = id(&asked(&place, "stay?"));
    kill(asking.id(), Signal::SIGINT);
    assert_eq!(place.run(&["approve", &question]).code, 0);
    let done = finished(asking);
    assert_eq!((done.code, done.stderr.as_str()), (0, ""), "{done:?}");
    assert_eq!(verify(&place, &receipt).code, 0);
}
