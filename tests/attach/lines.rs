//! What lines say, and what becomes of those that break a rule.

use std::io::Write;

use serde_json::json;

use super::super::support::daemon::{Place, finished};
use super::super::support::peers::Caller;
use super::super::support::wait::until;
use super::{Attached, session};

#[test]
fn a_program_hears_where_its_connection_is_and_others_find_it() {
    let place = Place::with_daemon(&[]);
    let attached = Attached::of(place.usher().args(["attach", "--title", "w", "--label", "k=v", "--command", "a"]));
    let first = attached.next();
    assert_eq!((&first["method"], &first["params"]["state"]), (&json!("connection"), &json!("connecting")));
    let second = attached.next();
    assert_eq!(second["params"]["state"], "open");
    assert_eq!(first["params"]["session_id"], second["params"]["session_id"]);
    let row = session(&place, "w").unwrap();
    assert_eq!(row["session_id"], first["params"]["session_id"]);
    assert_eq!((&row["pid"], &row["labels"]), (&json!(std::process::id()), &json!({"k": "v"})));
    assert_eq!(row["commands"], json!([{"name": "a"}]));
}

#[test]
fn a_command_and_its_answer_keep_every_token() {
    let place = Place::with_daemon(&[]);
    let mut attached = Attached::open(&place, &["--title", "w", "--command", "a"]);
    let sending = attached.sending(&place, &["a", "{\"n\": 1.0e0,\n\"n\":[\"é\\n\"]}"]);
    let command = attached.command();
    assert_eq!((&command["jsonrpc"], &command["id"]), (&json!("2.0"), &json!(1)));
    let params = &command["params"];
    assert_eq!((&params["command"], &params["input"]), (&json!("a"), &json!({"n": ["é\n"]})));
    assert!(params["deadline_ms"].as_u64().is_some_and(|ms| ms > 5_000 && ms <= 15_000), "{params}");
    assert!(params["caller"]["label"] == "caller" && params["caller"]["credential"].is_string(), "{params}");
    attached.write("{\"id\":1,\"result\": {\"n\": 1.0e0,\t\"n\":12345678901234567890123} }");
    assert_eq!(finished(sending).stdout, "{\"n\":1.0e0,\"n\":12345678901234567890123}\n");
    let (command, ran) = attached.answered(&place, &["a"], json!({"result": null}));
    assert_eq!((&command["id"], &command["params"]["input"], ran.stdout.as_str()), (&json!(2), &json!(null), "null\n"));
    let (_, ran) = attached.answered(&place, &["a"], json!({"error": {"message": "no such page"}}));
    assert!(ran.code == 1 && ran.stderr.contains("no such page"), "{ran:?}");
    let (_, ran) =
        attached.answered(&place, &["a"], json!({"error": {"code": -1, "message": "more", "data": {"x": 1}}}));
    assert!(ran.code == 1 && ran.stderr.contains("more"), "{ran:?}");
}

#[test]
fn what_is_no_message_is_told_and_the_session_goes_on() {
    let place = Place::with_daemon(&[]);
    let mut attached = Attached::open(&place, &["--title", "w", "--command", "ok"]);
    let deep = format!("{{\"id\":1,\"result\":{}{}}}", "[".repeat(100_000), "]".repeat(100_000));
    for line in [
        "garbage",
        "[]",
        "[{\"id\":1,\"result\":1}]",
        "{}",
        "7",
        "{\"id\":1}",
        "{\"id\":1,\"result\":1,\"error\":{\"message\":\"x\"}}",
        "{\"id\":1,\"result\":1,\"result\":2}",
        "{\"id\":1,\"result\":{\"a\":}}",
        "{\"id\":1,\"error\":{}}",
        "{\"id\":1,\"error\":\"x\"}",
        "{\"id\":\"1\",\"result\":1}",
        "{\"id\":-1,\"result\":1}",
        "{\"id\":1,\"result\":1,\"more\":1}",
        "{\"jsonrpc\":\"1.0\",\"id\":1,\"result\":1}",
        "{\"method\":\"nonsense\"}",
        "{\"method\":\"update\",\"params\":[]}",
        "{\"id\":1,\"result\":1} {\"id\":1,\"result\":1}",
        "{\"id\":1,\"result\":1}",
        &deep,
    ] {
        attached.write(line);
        let (message, _) = attached.error();
        assert!(!message.is_empty() && message.len() < 500, "{line:.80}: {message}");
    }
    attached.stdin.as_mut().unwrap().write_all(b"\xff\xfe\n\n \r\n").unwrap();
    attached.error();
    attached.is_well(&place);
}

#[test]
fn an_answer_that_nobody_asked_for_or_that_comes_twice_or_late_does_nothing_and_is_told() {
    let place = Place::with_daemon(&[]);
    let mut attached = Attached::open(&place, &["--title", "w", "--command", "ok", "--command", "slow"]);
    attached.say(&json!({"id": 1, "result": "early"}));
    assert_eq!(attached.error(), ("there was no command 1".to_owned(), Some(1)));
    attached.is_well(&place);
    attached.say(&json!({"id": 1, "result": "twice"}));
    let (message, id) = attached.error();
    assert!(message.contains("is over") && id == Some(1), "{message}");

    let sending = attached.sending(&place, &["--deadline", "200ms", "slow"]);
    let id = attached.command()["id"].clone();
    assert_eq!(finished(sending).code, 4);
    assert_eq!(attached.next(), json!({"jsonrpc": "2.0", "method": "$/cancel", "params": {"id": id}}));
    attached.say(&json!({"id": id, "result": "late"}));
    assert!(attached.error().0.contains("is over"));
    attached.is_well(&place);
}

#[test]
fn a_result_that_is_no_payload_fails_its_command_alone_and_is_told() {
    let place = Place::with_daemon(&[]);
    let mut attached = Attached::open(&place, &["--title", "w", "--command", "ok"]);
    let nested = format!("{}{}", "[".repeat(129), "]".repeat(129));
    let large = format!("\"{}\"", "x".repeat(8 * 1024 * 1024));
    for (result, word) in [(nested, "invalid-payload"), (large, "larger than 8388608 bytes")] {
        let sending = attached.sending(&place, &["ok"]);
        let id = attached.command()["id"].clone();
        attached.write(&format!("{{\"id\":{id},\"result\":{result}}}"));
        let ran = finished(sending);
        assert!(ran.code == 1 && ran.stderr.contains(word), "{ran:?}");
        let (message, of) = attached.error();
        assert!(message.contains(word) && of == id.as_u64(), "{message}");
    }
    attached.write(&"x".repeat(9 * 1024 * 1024 + 1));
    assert!(attached.error().0.contains("longer than"));
    let fits = format!("{}x", "y".repeat(8 * 1024 * 1024 - 3));
    let (_, ran) = attached.answered(&place, &["ok"], json!({"result": fits}));
    assert_eq!((ran.code, ran.stdout.len()), (0, fits.len() + 1));
    attached.is_well(&place);
}

#[test]
fn an_input_that_is_no_payload_is_refused_and_the_program_never_sees_it() {
    let place = Place::with_daemon(&[]);
    let mut attached = Attached::open(&place, &["--title", "w", "--command", "ok"]);
    let mut caller = Caller::connect(&place);
    let nested = format!("{}{}", "[".repeat(129), "]".repeat(129));
    for input in [&b"{} {}"[..], b"\xff", b"\"\n\"", b"nul", nested.as_bytes()] {
        let failure = caller.send(&attached.id, "ok", Some(input)).unwrap_err();
        let message = failure.error["message"].as_str().unwrap();
        assert!(failure.code == "command-failed" && message.starts_with("invalid-payload: "), "{failure:?}");
    }
    attached.is_well(&place);
}

#[test]
fn an_update_changes_what_it_names_and_a_wrong_one_nothing() {
    let place = Place::with_daemon(&[]);
    let mut attached = Attached::open(&place, &["--title", "old", "--label", "k=v", "--command", "a"]);
    let update = json!({"title": "new", "commands": ["ok", {"name": "b", "description": "what b does"}],
        "snapshot": {"page": [1, 2]}});
    attached.say(&json!({"jsonrpc": "2.0", "id": "mine", "method": "update", "params": update}));
    assert_eq!(attached.next(), json!({"jsonrpc": "2.0", "id": "mine", "result": {}}));
    let row = until("the update is seen", || session(&place, "new"));
    assert_eq!(row["labels"], json!({"k": "v"}));
    assert_eq!(row["commands"], json!([{"name": "ok"}, {"name": "b", "description": "what b does"}]));
    until("the snapshot is seen", || {
        (place.json(&["get", "--title", "new"])["snapshot"] == json!({"page": [1, 2]})).then_some(())
    });
    attached.is_well(&place);
    for wrong in [
        json!({"title": ""}),
        json!({"title": "a\u{1b}"}),
        json!({"title": null}),
        json!({"commands": ["a b"]}),
        json!({"commands": ["a", "a"]}),
        json!({"commands": [{"name": "a", "run": "x"}], "labels": {"a b": "c"}}),
        json!({"titel": "x"}),
    ] {
        attached.say(&json!({"method": "update", "params": wrong}));
        assert!(attached.error().0.starts_with("update: "), "{wrong}");
        attached.say(&json!({"id": 7, "method": "update", "params": wrong}));
        let reply = attached.next();
        assert!(reply["id"] == 7 && reply["error"]["message"].is_string(), "{reply}");
    }
    assert_eq!(session(&place, "new").unwrap()["commands"], row["commands"]);
    attached.say(&json!({"id": 8, "method": "nonsense"}));
    assert!(attached.next()["error"]["message"].as_str().is_some_and(|text| text.contains("nonsense")));
}

#[test]
fn what_is_said_of_a_long_line_is_short() {
    let place = Place::with_daemon(&[]);
    let mut attached = Attached::open(&place, &["--title", "w", "--command", "ok"]);
    let long = "\u{1}\u{e9}".repeat(500_000);
    for wrong in [
        json!({"method": long}),
        json!({(long.as_str()): 1}),
        json!({"jsonrpc": "2.0", "method": "update", "params": {(long.as_str()): 1}}),
        json!({"method": "update", "params": {"commands": [{"name": long}]}}),
        json!({"method": "update", "params": {"labels": {(long.as_str()): "x"}}}),
        json!({"id": long, "method": "update", "params": {}}),
    ] {
        attached.say(&wrong);
        let line = attached.next();
        assert_eq!(line["method"], "error");
        assert!(line.to_string().len() < 4_096, "{} bytes", line.to_string().len());
    }
    attached.say(&json!({"id": 1, "method": long}));
    let line = attached.next();
    assert!(line["error"]["message"].is_string() && line.to_string().len() < 4_096, "{:.200}", line.to_string());
    attached.is_well(&place);
}

#[test]
fn commands_come_at_once_up_to_the_number_that_was_given() {
    let place = Place::with_daemon(&[]);
    let mut attached = Attached::open(&place, &["--title", "w", "--command", "a", "--max-in-flight", "3"]);
    let sending: Vec<_> = (0..3).map(|number| attached.sending(&place, &["a", &number.to_string()])).collect();
    let commands: Vec<_> = (0..3).map(|_| attached.command()).collect();
    for command in commands.iter().rev() {
        attached.say(&json!({"id": command["id"], "result": command["params"]["input"]}));
    }
    let mut results: Vec<_> = sending.into_iter().map(|child| finished(child).stdout).collect();
    results.sort();
    assert_eq!(results, ["0\n", "1\n", "2\n"]);
}
