//! `usher events`: for people, for scripts, and for a reader that stalls.

use std::io::{BufRead, BufReader, Read};
use std::process::{Child, ChildStdout, Stdio};

use nix::sys::signal::Signal;
use serde_json::{Value, json};

use super::{Board, kinds, seq};
use crate::support::daemon::{Place, Ran, finished};
use crate::support::peers::Operator;
use crate::support::process::Process;
use crate::support::wait::until;

/// `usher events …` that runs, with its lines.
struct Follower {
    child: Child,
    lines: BufReader<ChildStdout>,
}

impl Follower {
    /// Returns when the daemon tells it.
    fn start(place: &Place, args: &[&str]) -> Self {
        let mut operator = Operator::connect(place);
        let before = operator.used("streams");
        let mut command = place.usher();
        command.arg("events").args(args).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        until("it follows", || {
            assert!(child.try_wait().unwrap().is_none(), "usher events has ended");
            (operator.used("streams") > before).then_some(())
        });
        let lines = BufReader::new(child.stdout.take().unwrap());
        Self { child, lines }
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        assert!(self.lines.read_line(&mut line).unwrap() > 0, "usher events has ended");
        line
    }

    fn event(&mut self) -> Value {
        serde_json::from_str(&self.line()).unwrap()
    }

    /// To its end.
    fn rest(mut self) -> Ran {
        let mut stdout = String::new();
        self.lines.read_to_string(&mut stdout).unwrap();
        Ran { stdout, ..finished(self.child) }
    }
}

#[test]
fn what_is_kept_is_shown_and_what_happens_is_followed_in_lines_that_tell_the_same() {
    let place = Place::with_daemon(&[]);
    let mut follower =
        Follower::start(&place, &["--follow", "--json", "--kind", "session-registered", "--kind", "session-gone"]);
    let mut people = Follower::start(&place, &["--follow", "--title", "board"]);
    let mut board = Board::new(&place, "board");
    let registered = follower.event();
    assert_eq!((&registered["kind"], &registered["title"]), (&json!("session-registered"), &json!("board")));
    let line = people.line();
    assert!(line.contains("  session-registered  ") && line.contains(&format!("session_id={}", board.id)), "{line}");
    assert!(line.starts_with(registered["ts"].as_str().unwrap()) && !line.contains('\u{1b}'), "{line}");
    board.update(&json!({"labels": {"a": "b"}}));
    board.peer.call("session.unregister", &json!({}), None).unwrap();
    assert_eq!(follower.event()["kind"], "session-gone");
    let ran = place.run(&["events", "--json"]);
    assert_eq!((ran.code, ran.stderr.as_str()), (0, ""));
    let all: Vec<Value> = ran.stdout.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert!(kinds(&all).contains(&"connection"), "an operator sees everything");
    assert_eq!(all.iter().map(seq).collect::<Vec<_>>(), (1..=all.len() as u64).collect::<Vec<_>>());
    assert!(ran.stdout.lines().any(|line| serde_json::from_str::<Value>(line).unwrap() == registered));
    let cursor = registered["cursor"].as_str().unwrap();
    let ran = place.run(&["events", "--since", cursor, "--title", "board"]);
    let shown: Vec<_> = ran.stdout.lines().map(|line| line.split_whitespace().nth(1).unwrap()).collect();
    assert_eq!((ran.code, shown), (0, vec!["session-updated", "session-gone"]));
    assert_eq!(place.run(&["events", "--kind", "paired"]).stdout, "");
}

#[test]
fn when_the_daemon_ends_the_cursor_to_go_on_from_is_named() {
    let mut place = Place::with_daemon(&[]);
    let (people, script) = (Follower::start(&place, &["--follow"]), Follower::start(&place, &["--follow", "--json"]));
    place.signal_daemon(Signal::SIGTERM);
    let ran = script.rest();
    let events: Vec<Value> = ran.stdout.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!((ran.code, events.last().unwrap()["kind"].as_str()), (3, Some("shutdown-complete")));
    let error: Value = serde_json::from_str(&ran.stderr).unwrap();
    assert_eq!(error["error"]["code"], "connection-lost");
    let cursor = events.last().unwrap()["cursor"].as_str().unwrap();
    assert!(error["error"]["hint"].as_str().unwrap().contains(&format!("usher events --follow --since {cursor} ")));
    let ran = people.rest();
    assert_eq!(ran.code, 3);
    assert!(
        ran.stderr.starts_with("usher: the daemon has ended (signal)\n  usher events --follow --since "),
        "{ran:?}"
    );
    assert_eq!(place.wait_daemon(), 0);
    place.start_daemon(&[]);
    let ran = place.run(&["events", "--json", "--since", cursor]);
    let first: Value = serde_json::from_str(ran.stdout.lines().next().unwrap()).unwrap();
    assert_eq!((ran.code, &first["kind"], &first["reason"]), (0, &json!("lagged"), &json!("restart")));
    let follower = Follower::start(&place, &["--follow"]);
    place.signal_daemon(Signal::SIGKILL);
    let ran = follower.rest();
    assert!(ran.code == 3 && ran.stderr.contains("the connection was lost"), "{ran:?}");
}

#[test]
fn without_a_daemon_there_is_nothing_to_show_and_nobody_to_follow() {
    let place = Place::empty();
    let ran = place.run(&["events"]);
    assert_eq!((ran.code, ran.stdout.as_str(), ran.stderr.as_str()), (0, "", "no daemon is running\n"));
    let ran = place.run(&["events", "--json"]);
    assert_eq!((ran.code, ran.stdout.as_str(), ran.stderr.as_str()), (0, "", ""));
    let ran = place.run(&["events", "--follow", "--json"]);
    let error: Value = serde_json::from_str(&ran.stderr).unwrap();
    assert_eq!((ran.code, ran.stdout.as_str(), &error["error"]["code"]), (3, "", &json!("not-running")));
    assert!(place.daemons().is_empty());
}

#[test]
fn what_was_said_wrongly_is_told_before_anything_is_shown() {
    let place = Place::with_daemon(&[]);
    for (args, part) in [
        (&["events", "--kind", "connexion"][..], "\"connexion\" is no kind; there are connection "),
        (&["events", "--since", "yesterday"], "cursor"),
        (&["events", "--follow", "--session", "abc"], "session"),
        (&["events", "board"], "unexpected"),
    ] {
        let ran = place.run(args);
        assert!(ran.code == 2 && ran.stdout.is_empty() && ran.stderr.contains(part), "{args:?}: {ran:?}");
    }
}

#[test]
fn a_persons_key_follows_everything_and_a_sessions_key_what_a_caller_sees() {
    let place = Place::with_daemon(&[]);
    let _board = Board::new(&place, "board");
    let sees = |session: Option<&str>, args: &[&str]| {
        let mut command = place.usher();
        if let Some(session) = session {
            command.env("USHER_SESSION", session);
        }
        let ran = crate::support::daemon::ran(command.args(["events", "--json", "--kind", "connection"]).args(args));
        assert_eq!(ran.code, 0, "{ran:?}");
        let events = ran.stdout.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
        let roles: std::collections::BTreeSet<_> =
            events.map(|event| event["role"].as_str().unwrap().to_owned()).collect();
        roles.into_iter().collect::<Vec<_>>()
    };
    assert_eq!(sees(Some("inside"), &[]), ["caller"]);
    assert_eq!(sees(None, &[]), ["caller", "operator", "producer"]);
    assert_eq!(sees(Some("inside"), &["--operator"]), ["caller", "operator", "producer"]);
    let bundle = place.path().join("bundle");
    let out = bundle.to_str().unwrap();
    place.json(&["keys", "new", "--label", "x", "--scope", "events.subscribe", "--title", "board", "--out", out]);
    let ran = place.run(&["--credential", out, "events", "--json"]);
    let seen: Vec<Value> = ran.stdout.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert!(seen.iter().all(|event| event["kind"] != "connection" || event["label"] == "x"), "{ran:?}");
    assert!(kinds(&seen).contains(&"session-registered"), "{ran:?}");
    let producer = place.path().join("producer");
    let out = producer.to_str().unwrap();
    place.json(&["keys", "new", "--label", "p", "--role", "producer", "--row", "--out", out]);
    assert_eq!(place.run(&["--credential", out, "events"]).code, 5);
}

#[test]
fn hostile_titles_break_no_line_of_a_person() {
    let place = Place::with_daemon(&[]);
    let mut board = Board::new(&place, "b\"o=a\\r d");
    board.update(&json!({"info": {"a": 1}}));
    let ran = place.run(&["events", "--kind", "session-registered", "--kind", "session-updated"]);
    assert_eq!(ran.stdout.lines().count(), 2, "{}", ran.stdout);
    assert!(ran.stdout.contains(r#"title="b\"o=a\\r d""#), "its own backslash is none of ours: {}", ran.stdout);
}

#[test]
fn a_reader_that_has_gone_away_ends_it_quietly_also_while_nothing_happens() {
    let place = Place::with_daemon(&[]);
    let follower = Follower::start(&place, &["--follow"]);
    drop(follower.lines);
    let ran = finished(follower.child);
    assert_eq!((ran.code, ran.stderr.as_str()), (0, ""));
    // While events pour, too.
    let mut board = Board::new(&place, "board");
    let mut follower = Follower::start(&place, &["--follow", "--json"]);
    board.pour(5_000);
    follower.line();
    drop(follower.lines);
    let ran = finished(follower.child);
    assert_eq!((ran.code, ran.stderr.as_str()), (0, ""));
    let mut shell = place.program("sh");
    shell.args(["-c", "\"$0\" events --json | head -n 1", crate::support::daemon::USHER]);
    let ran = crate::support::daemon::ran(&mut shell);
    assert_eq!((ran.code, ran.stdout.lines().count(), ran.stderr.as_str()), (0, 1, ""));
}

#[test]
fn a_reader_that_stalls_makes_nothing_grow_and_reads_the_gap_and_all_that_is_not_missing() {
    const EVENTS: u64 = 30_000;
    let place = Place::with_daemon(&[]);
    let mut board = Board::new(&place, "board");
    // Of all kinds: then each number is there, whoever comes and goes meanwhile.
    let mut follower = Follower::start(&place, &["--follow", "--json"]);
    let (ours, daemon) = (Process(follower.child.id()), Process(place.pid()));
    board.pour(10_000);
    let before = (ours.resident_kib(), daemon.resident_kib());
    board.pour(EVENTS - 10_000);
    let grown = (ours.resident_kib().saturating_sub(before.0), daemon.resident_kib().saturating_sub(before.1));
    assert!(grown.0 < 1024 && grown.1 < 4 * 1024, "{grown:?} KiB more");
    board.update(&json!({"title": "last"}));
    let (mut seen, mut missed, mut next) = (0, 0, None);
    loop {
        let event = follower.event();
        let gone = if event["kind"] == "lagged" { event["missed"].as_u64().unwrap() } else { 0 };
        assert!(next.is_none_or(|next: u64| seq(&event) == next + gone.max(1) - 1), "{event}");
        next = Some(seq(&event) + 1);
        missed += gone;
        seen += u64::from(gone == 0);
        if event["title"] == "last" {
            break;
        }
    }
    assert!(missed > 0);
    assert!(seen + missed > EVENTS, "{seen} seen and {missed} missed of {EVENTS} and more");
    let _ended_already = follower.child.kill();
    follower.child.wait().unwrap();
}
