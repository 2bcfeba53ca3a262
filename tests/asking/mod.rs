//! `usher ask`, `approvals`, `approve`, `reject`, `verify`: the real programs, asked and answered.

use std::process::{Child, Stdio};

use nix::sys::signal::Signal;
use serde_json::{Value, json};

use super::support::daemon::{Place, Ran, USHER, finished, ran};
use super::support::peers::Operator;
use super::support::system::{kill, put};
use super::support::wait::until;

mod following;
mod going;
mod receipts;
mod recipes;
mod terminal;

/// A question that waits in a process of its own.
fn ask(place: &Place, args: &[&str]) -> Child {
    let mut command = place.usher();
    command.arg("ask").args(args).stdout(Stdio::piped()).stderr(Stdio::piped());
    command.spawn().unwrap()
}

/// What is open, as a person sees it with `--json`.
fn open(place: &Place) -> Vec<Value> {
    let ran = place.run(&["approvals", "--json", "--operator"]);
    assert_eq!(ran.code, 0, "{ran:?}");
    let document: Value = serde_json::from_str(&ran.stdout).unwrap();
    document["approvals"].as_array().unwrap().clone()
}

/// The question with this summary, as soon as it is open.
fn asked(place: &Place, summary: &str) -> Value {
    until("the question is open", || open(place).into_iter().find(|one| one["summary"] == summary))
}

fn id(question: &Value) -> String {
    question["approval_id"].as_str().unwrap().to_owned()
}

fn gone(place: &Place) {
    until("no question is open", || open(place).is_empty().then_some(()));
}

/// One JSON object a line.
fn lines(text: &str) -> Vec<Value> {
    text.lines().map(|line| serde_json::from_str(line).unwrap_or_else(|_| panic!("no JSON: {line}"))).collect()
}

#[test]
fn a_question_that_is_approved_ends_with_zero_and_in_silence() {
    let place = Place::with_daemon(&[]);
    let asking = ask(&place, &["apply?", "--detail", "the plan"]);
    let question = asked(&place, "apply?");
    assert_eq!((&question["detail"], &question["asker"]["label"]), (&json!("the plan"), &json!("caller")));
    let approved = place.run(&["approve", &id(&question)[..6], "--reason", "fine"]);
    assert_eq!((approved.code, approved.stderr.as_str()), (0, ""));
    assert_eq!(approved.stdout, format!("approved {}: apply? (asked by caller)\n", id(&question)));
    let done = finished(asking);
    assert_eq!((done.code, done.stdout.as_str(), done.stderr.as_str()), (0, "", ""), "{done:?}");
}

#[test]
fn every_other_end_of_a_question_has_its_exit_code_and_its_word() {
    let mut place = Place::with_daemon(&["--limit", "approvals=1"]);
    let rejected = ask(&place, &["no?"]);
    let question = asked(&place, "no?");
    let full = place.run(&["ask", "two?"]);
    assert_eq!((full.code, full.stdout.as_str()), (10, ""), "{full:?}");
    assert_eq!(place.run(&["reject", &id(&question), "--reason", "not today"]).code, 0);
    let rejected = finished(rejected);
    assert_eq!((rejected.code, rejected.stderr.as_str()), (1, "usher: rejected by operator: not today\n"));

    let expired = place.run(&["ask", "soon?", "--ttl", "50ms", "--json"]);
    assert_eq!(expired.code, 4, "{expired:?}");
    assert_eq!(lines(&expired.stdout)[0]["decision"], json!("expired"));
    assert_eq!(lines(&expired.stderr)[0]["error"]["code"], json!("expired"));

    let stopped = ask(&place, &["stopped?"]);
    asked(&place, "stopped?");
    assert_eq!(place.run(&["stop"]).code, 0);
    let stopped = finished(stopped);
    assert_eq!((stopped.code, stopped.stdout.as_str()), (3, ""), "{stopped:?}");
    assert_eq!(place.wait_daemon(), 0);

    place.start_daemon(&[]);
    let killed = ask(&place, &["killed?", "--json"]);
    asked(&place, "killed?");
    place.kill_daemons();
    let killed = finished(killed);
    assert_eq!((killed.code, killed.stdout.as_str()), (3, ""), "{killed:?}");
    assert_eq!(lines(&killed.stderr)[0]["error"]["code"], json!("connection-lost"));
}

// 40
#[test]
fn a_window_that_dies_takes_its_question_with_it_and_whoever_decides_hears_that() {
    let place = Place::with_daemon(&[]);
    for signal in [Signal::SIGKILL, Signal::SIGINT, Signal::SIGTERM] {
        let asking = ask(&place, &["there?"]);
        let question = asked(&place, "there?");
        kill(asking.id(), signal);
        assert_eq!(finished(asking).code, 128 + signal as i32);
        gone(&place);
        let late = place.run(&["approve", &id(&question)]);
        assert_eq!((late.code, late.stdout.as_str()), (9, ""), "{late:?}");
        assert!(late.stderr.contains("cancelled (asker-gone)"), "{late:?}");
    }
}

// 41
#[test]
fn the_second_of_two_answers_exits_nine_and_names_the_first() {
    let place = Place::with_daemon(&[]);
    for round in 0..10 {
        let asking = ask(&place, &["race?"]);
        let id = id(&asked(&place, "race?"));
        let decide = |verb: &str| {
            let mut command = place.usher();
            command.args([verb, &id, "--json"]).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
        };
        let verbs = if round % 2 == 0 { ["approve", "reject"] } else { ["reject", "approve"] };
        let both = verbs.map(|verb| (verb, decide(verb))).map(|(verb, child)| (verb, finished(child)));
        let won: Vec<_> = both.iter().filter(|(_, ran)| ran.code == 0).collect();
        let late: Vec<_> = both.iter().filter(|(_, ran)| ran.code == 9).collect();
        assert_eq!((won.len(), late.len()), (1, 1), "{both:?}");
        let told = &lines(&late[0].1.stderr)[0]["error"];
        assert_eq!((&told["code"], &told["outcome"]["by"]["label"]), (&json!("already-decided"), &json!("operator")));
        assert_eq!(finished(asking).code, i32::from(won[0].0 == "reject"));
    }
}

#[test]
fn whoever_answers_what_has_ended_is_told_how_and_is_an_event() {
    let place = Place::with_daemon(&[]);
    let asking = ask(&place, &["twice?"]);
    let decided = id(&asked(&place, "twice?"));
    assert_eq!(place.run(&["approve", &decided, "--reason", "looks right"]).code, 0);
    assert_eq!(finished(asking).code, 0);
    let expired = place.run(&["ask", "soon?", "--ttl", "50ms", "--json"]);
    let expired = id(&lines(&expired.stdout)[0]);
    for (ended, told) in [
        (&decided, format!("usher: approval {decided} was approved by operator (looks right)\n")),
        (&expired, format!("usher: approval {expired} has expired\n")),
    ] {
        let late = place.run(&["reject", &ended[..8]]);
        assert_eq!((late.code, late.stdout.as_str(), late.stderr.as_str()), (9, "", told.as_str()));
    }
    let events = lines(&place.run(&["events", "--json", "--kind", "stale-approval-decision"]).stdout);
    let told: Vec<_> = events.iter().map(|event| (&event["approval_id"], &event["decision"])).collect();
    assert_eq!(told, [(&json!(decided), &json!("rejected")), (&json!(expired), &json!("rejected"))]);
}

// 42
#[test]
fn several_are_answered_in_turn_and_what_is_not_named_stays_open() {
    let place = Place::with_daemon(&[]);
    let (first, second, third) = (ask(&place, &["A?"]), ask(&place, &["B?"]), ask(&place, &["C?"]));
    let ids = ["A?", "B?", "C?"].map(|summary| id(&asked(&place, summary)));
    let done = place.run(&["approve", &ids[0], "zzzzzz", &ids[1]]);
    assert_eq!(done.code, 6, "{done:?}");
    assert_eq!(done.stdout.lines().count(), 2, "{done:?}");
    assert!(done.stderr.contains("zzzzzz"), "{done:?}");
    assert_eq!((finished(first).code, finished(second).code), (0, 0));
    let left = open(&place);
    assert_eq!((left.len(), &left[0]["summary"]), (1, &json!("C?")));
    for args in
        [&["approve"][..], &["approve", "--latest"], &["approve", "abc"], &["approve", ""], &["reject", "--all"]]
    {
        assert_eq!(place.run(args).code, 2, "{args:?}");
    }
    assert_eq!(place.run(&["reject", &ids[2]]).code, 0);
    assert_eq!(finished(third).code, 1);
}

// 43
#[test]
fn an_agent_tries_every_door_and_approves_nothing() {
    let place = Place::with_daemon(&[]);
    let bundle = place.scratch().join("agent");
    let made = ran(place.usher().args(["keys", "new", "--label", "agent", "--row", "--out"]).arg(&bundle));
    assert_eq!(made.code, 0, "{made:?}");
    let mut asking = place.usher();
    asking.args(["ask", "may I?"]).env("USHER_CREDENTIAL", &bundle).stdout(Stdio::piped()).stderr(Stdio::piped());
    let asking = asking.spawn().unwrap();
    let question = id(&asked(&place, "may I?"));
    let params = json!({
        "approval_id": question, "decision": "approved", "signature": "A".repeat(85) + "A",
    });
    let params = params.to_string();
    // With its bundle, by every verb.
    for args in [
        &["approve", &question][..],
        &["reject", &question],
        &["approve", &question, "--operator"],
        &["rpc", "approval.decide", &params],
        &["rpc", "--role", "operator", "approval.decide", &params],
        &["rpc", "--role", "producer", "approval.decide", &params],
        &["keys", "new", "--label", "more", "--role", "operator", "--row", "--out", "more"],
    ] {
        let tried = ran(place.usher().args(args).env("USHER_CREDENTIAL", &bundle).current_dir(place.scratch()));
        assert!([2, 5].contains(&tried.code), "{args:?}: {tried:?}");
    }
    // Inside a session, where the operator's key is not used unless somebody says that it is meant.
    for words in [
        vec!["approve", &question],
        vec!["reject", &question],
        vec!["approvals"],
        vec!["rpc", "approval.decide", &params],
        vec!["keys", "new", "--label", "more", "--role", "operator", "--row", "--out", "more"],
    ] {
        let mut run = place.usher();
        run.args(["run", "--", USHER]).args(&words).current_dir(place.scratch());
        let tried = ran(&mut run);
        assert_eq!(tried.code, 5, "{words:?}: {tried:?}");
    }
    assert_eq!(open(&place).len(), 1, "the question is as open as before");
    let mut run = place.usher();
    let meant = ran(run.args(["run", "--", USHER, "approve", "--operator", &question]));
    assert_eq!(meant.code, 0, "{meant:?}");
    assert_eq!(finished(asking).code, 0);
}

#[test]
fn a_question_starts_a_daemon_and_leaves_its_shell_nothing_to_wait_for() {
    let place = Place::empty();
    let script = format!("x=$('{USHER}' ask 'now?' --ttl 200ms 2>/dev/null); echo \"[$x] $?\"");
    let done = ran(place.program("sh").args(["-c", &script]));
    assert_eq!((done.stdout.as_str(), done.code), ("[] 4\n", 0), "{done:?}");
    assert_eq!(place.daemons().len(), 1, "the daemon lives on");
}

#[test]
fn a_question_from_a_session_names_it() {
    let place = Place::with_daemon(&[]);
    let mut run = place.usher();
    run.args(["run", "--title", "board", "--", "sh", "-c"]);
    // The program is faster than its session is registered: then it is not known yet.
    run.arg(format!("'{USHER}' wait --session $USHER_SESSION && exec '{USHER}' ask 'from here?'"));
    let running = run.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let question = asked(&place, "from here?");
    assert_eq!(question["asker"]["session"]["title"], json!("board"), "{question}");
    let shown = place.run(&["approvals"]);
    assert!(shown.stdout.contains("board") && shown.stdout.contains("from here?"), "{shown:?}");
    let whole = place.run(&["approvals", &id(&question)]).stdout;
    let session = whole.lines().find(|line| line.starts_with("session   board (")).unwrap();
    assert!(session.ends_with(") (as it says)"), "whoever knows a session's id can say that: {whole}");
    assert_eq!(place.run(&["reject", &id(&question)]).code, 0);
    assert_eq!(finished(running).code, 1);
}

#[test]
fn a_question_that_is_withdrawn_says_so_once() {
    let place = Place::with_daemon(&[]);
    let asking = ask(&place, &["still?"]);
    let params = json!({"approval_id": id(&asked(&place, "still?"))}).to_string();
    assert_eq!(place.run(&["rpc", "approval.withdraw", &params]).code, 0);
    let ran = finished(asking);
    assert_eq!((ran.code, ran.stderr.as_str()), (1, "usher: the question was withdrawn before anybody answered\n"));
}

#[test]
fn a_key_that_lacks_a_scope_is_told_which() {
    let place = Place::with_daemon(&[]);
    let bundle = place.scratch().join("lead");
    let bundle = bundle.to_str().unwrap();
    let new = ["keys", "new", "--label", "lead", "--role", "operator", "--scope", "approval.list", "--out", bundle];
    assert_eq!(place.run(&new).code, 0);
    assert_eq!(place.run(&["approvals", "--credential", bundle]).code, 0);
    let refused = place.run(&["approvals", "--follow", "--credential", bundle]);
    let told = "usher: this credential was not granted events.subscribe\n";
    assert_eq!((refused.code, refused.stderr.as_str()), (5, told));
}

#[test]
fn hostile_text_neither_breaks_a_listing_nor_reaches_a_terminal() {
    let place = Place::with_daemon(&[]);
    for summary in ["two\nlines", "\u{1b}[2J", "", "\u{202e}evil", &"x".repeat(1_025)] {
        let refused = place.run(&["ask", summary]);
        assert_eq!((refused.code, refused.stdout.as_str()), (2, ""), "{refused:?}");
    }
    let asking = ask(&place, &["fine?", "--detail", "a\u{1b}[31mred\u{7}\n\napproval  fake\n"]);
    let question = id(&asked(&place, "fine?"));
    let shown = place.run(&["approvals", &question]);
    assert!(
        shown.stdout.ends_with("\n\n  a\\u{1b}[31mred\\u{7}\n\n  approval  fake\n"),
        "no line passes for ours: {shown:?}"
    );
    assert!(!shown.stdout.contains('\u{1b}'), "{shown:?}");
    assert_eq!(place.run(&["reject", &question]).code, 0);
    assert_eq!(finished(asking).code, 1);
    let long = place.scratch().join("long");
    put(&long, vec![b'x'; 262_145]);
    let refused = ran(place.usher().args(["ask", "long?", "--detail-file"]).arg(&long));
    assert_eq!(refused.code, 2, "{refused:?}");
}

#[test]
fn without_a_daemon_nothing_is_asked_and_nothing_can_be_answered() {
    let place = Place::empty();
    let shown = place.run(&["approvals", "--json"]);
    assert_eq!((shown.code, lines(&shown.stdout)[0]["daemon"].clone()), (0, json!("not-running")));
    let approved: Ran = place.run(&["approve", "AAAAAA"]);
    assert_eq!((approved.code, approved.stdout.as_str()), (3, ""), "{approved:?}");
    assert!(place.daemons().is_empty(), "neither has started one");
}

#[test]
fn what_a_question_held_is_given_back() {
    let place = Place::with_daemon(&[]);
    let mut operator = Operator::connect(&place);
    let asking: Vec<_> = (0..10).map(|_| ask(&place, &["many?", "--detail", "x", "--ttl", "1m"])).collect();
    until("all are open", || (open(&place).len() == 10).then_some(()));
    assert_eq!(operator.used("approvals"), 10);
    let ids: Vec<_> = open(&place).iter().map(id).collect();
    let args: Vec<_> = std::iter::once("approve").chain(ids.iter().map(String::as_str)).collect();
    assert_eq!(place.run(&args).code, 0);
    asking.into_iter().for_each(|child| assert_eq!(finished(child).code, 0));
    assert_eq!((operator.used("approvals"), operator.used("approvals-bytes")), (0, 0));
}

#[test]
fn who_cannot_be_told_has_decided_all_the_same() {
    let place = Place::with_daemon(&[]);
    let asking = [ask(&place, &["A?"]), ask(&place, &["B?"])];
    let ids = ["A?", "B?"].map(|summary| id(&asked(&place, summary)));
    let receipt = place.scratch().join("taken");
    put(&receipt, "before");
    let refused = ran(place.usher().args(["approve", &ids[0], "--receipt"]).arg(&receipt));
    assert_eq!((refused.code, open(&place).len()), (2, 2), "what cannot be kept is not asked for: {refused:?}");
    let mut approve = place.usher();
    let full = std::fs::File::options().write(true).open("/dev/full").unwrap();
    let told = finished(approve.arg("approve").args(&ids).stdout(full).stderr(Stdio::piped()).spawn().unwrap());
    assert_eq!(told.code, 1, "{told:?}");
    asking.into_iter().for_each(|child| assert_eq!(finished(child).code, 0));
}

// 44
#[test]
fn with_json_standard_output_is_empty_or_one_document_whatever_fails() {
    let place = Place::with_daemon(&["--limit", "approvals=1"]);
    let bundle = place.scratch().join("producer");
    let mut made = place.usher();
    let made = ran(made.args(["keys", "new", "--label", "p", "--role", "producer", "--row", "--out"]).arg(&bundle));
    assert_eq!(made.code, 0, "{made:?}");
    let asking = ask(&place, &["open?"]);
    let open = id(&asked(&place, "open?"));
    let long = "x".repeat(1_025);
    let own = bundle.to_str().unwrap();
    for (code, args) in [
        (2, &["ask"][..]),
        (2, &["ask", &long]),
        (2, &["ask", "a", "b"]),
        (2, &["ask", "a", "--ttl", "25h"]),
        (2, &["ask", "a", "--detail", "b", "--detail-file", "c"]),
        (2, &["ask", "a", "--detail-file", "/nowhere/at/all"]),
        (2, &["ask", "a", "--detail-file", "/"]),
        (2, &["ask", "a", "--receipt", "/nowhere/at/all"]),
        (10, &["ask", "a"]),
        (5, &["ask", "a", "--credential", own]),
        (5, &["approvals", "--credential", own]),
        (5, &["approvals", "--follow", "--credential", own]),
        (5, &["approve", &open, "--credential", own]),
        (6, &["approvals", "zzzz"]),
        (2, &["approvals", "zz"]),
        (2, &["approvals", "--follow", "zzzz"]),
        (2, &["approve"]),
        (6, &["approve", "zzzz"]),
        (2, &["reject", "z z z"]),
        (2, &["reject", &open, "--reason", ""]),
        (2, &["reject", &open, "--reason", "two\nlines"]),
        (2, &["reject", &open, &open, "--receipt", "r"]),
    ] {
        let ran = place.run(&[args, &["--json"]].concat());
        assert_eq!((ran.code, ran.stdout.as_str()), (code, ""), "{args:?}: {ran:?}");
        let told = lines(&ran.stderr);
        assert_eq!(told.len(), 1, "{args:?}: {ran:?}");
        assert!(told[0]["error"]["code"].is_string(), "{args:?}: {ran:?}");
    }
    let some = place.run(&["reject", "zzzz", &open, "zzzz", "--json"]);
    assert_eq!((some.code, lines(&some.stderr).len()), (6, 2), "{some:?}");
    let document: Value = serde_json::from_str(&some.stdout).unwrap();
    assert_eq!(document["decided"][0]["approval_id"], json!(open), "{document}");
    let rejected = finished(asking);
    assert_eq!(rejected.code, 1, "{rejected:?}");
}
