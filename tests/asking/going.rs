//! Daemons that go, stop or come anew while a question waits: it is approved by none of it.

use std::process::Stdio;

use nix::sys::signal::Signal;

use super::super::support::daemon::{Place, finished};
use super::{ask, asked, id};

#[test]
fn a_daemon_that_hangs_is_waited_for_until_the_questions_time_is_over() {
    let place = Place::with_daemon(&[]);
    let waiting = ask(&place, &["there?", "--ttl", "2s"]);
    asked(&place, "there?");
    place.signal_daemon(Signal::SIGSTOP);
    let hung = place.run(&["ask", "anybody?"]);
    assert_eq!((hung.code, hung.stdout.as_str()), (3, ""), "{hung:?}");
    let waiting = finished(waiting);
    place.signal_daemon(Signal::SIGCONT);
    assert_eq!((waiting.code, waiting.stdout.as_str()), (4, ""), "{waiting:?}");
}

#[test]
fn a_question_does_not_outlive_its_daemon_and_the_next_one_knows_nothing_of_it() {
    let mut place = Place::with_daemon(&[]);
    let waiting = ask(&place, &["before?", "--json"]);
    let question = id(&asked(&place, "before?"));
    place.signal_daemon(Signal::SIGTERM);
    assert_eq!(place.wait_daemon(), 0);
    let waiting = finished(waiting);
    assert_eq!(waiting.code, 3, "{waiting:?}");
    let document: serde_json::Value = serde_json::from_str(&waiting.stdout).unwrap();
    assert_eq!((&document["decision"], &document["reason"]), (&"cancelled".into(), &"shutting-down".into()));
    place.start_daemon(&[]);
    let approved = place.run(&["approve", &question]);
    assert_eq!((approved.code, approved.stdout.as_str()), (6, ""), "{approved:?}");
}

#[test]
fn a_daemon_that_drains_lets_an_open_question_be_answered_and_takes_no_other() {
    let mut place = Place::with_daemon(&[]);
    let waiting = ask(&place, &["old?"]);
    let question = id(&asked(&place, "old?"));
    assert_eq!(place.run(&["drain"]).code, 0);
    let late = place.run(&["ask", "new?"]);
    assert_eq!((late.code, late.stdout.as_str()), (3, ""), "{late:?}");
    assert_eq!(late.stderr, "usher: the daemon takes no new questions\n");
    // One that comes while it goes is put to the next.
    let mut next = place.usher();
    let next = next.args(["ask", "next?"]).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    assert_eq!(place.run(&["approve", &question]).code, 0);
    assert_eq!(finished(waiting).code, 0);
    assert_eq!(place.wait_daemon(), 0);
    let question = id(&asked(&place, "next?"));
    assert_eq!(place.run(&["approve", &question]).code, 0);
    let next = finished(next);
    assert_eq!((next.code, next.stderr.as_str()), (0, ""), "{next:?}");
}

#[test]
fn a_key_that_is_revoked_while_it_asks_is_approved_nothing() {
    let place = Place::with_daemon(&[]);
    let bundle = place.scratch().join("agent");
    let made = super::ran(place.usher().args(["keys", "new", "--label", "agent", "--row", "--out"]).arg(&bundle));
    assert_eq!(made.code, 0, "{made:?}");
    let mut asking = place.usher();
    asking.args(["ask", "mine?"]).env("USHER_CREDENTIAL", &bundle).stdout(Stdio::piped()).stderr(Stdio::piped());
    let asking = asking.spawn().unwrap();
    let question = id(&asked(&place, "mine?"));
    assert_eq!(place.run(&["keys", "revoke", "agent"]).code, 0);
    assert_eq!(place.run(&["approve", &question]).code, 9);
    let asking = finished(asking);
    assert_eq!((asking.code, asking.stdout.as_str()), (3, ""), "{asking:?}");
}
