//! `usher send`: a command to one session, and its result.

use std::process::ExitCode;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use crate::client::Reply;
use crate::error::{Exit, Failure};
use crate::ids::SessionId;
use crate::limits::{DEADLINE_DEFAULT_MS, DEADLINE_MAX_MS, Limits};
use crate::wire::codes::{Code, Delivery};
use crate::wire::methods::Method;
use crate::wire::selector::Selector;
use crate::wire::text::escaped_lines;

use super::args::{Global, SendArgs};
use super::ask::{self, Asker};
use super::payload::{self, Json};
use super::trouble::{self, Trouble};
use super::{Outcome, get, out, select, time};

/// For the daemon's own answer after the deadline.
const SLACK: Duration = Duration::from_secs(5);

#[derive(Serialize)]
struct Send<'a> {
    selector: Selector,
    command: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    deadline_ms: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    key: Option<&'a str>,
}

#[derive(Deserialize)]
struct Done {
    session_id: SessionId,
    took_ms: u64,
}

#[derive(Serialize)]
struct Document<'a> {
    session_id: SessionId,
    took_ms: u64,
    result: &'a RawValue,
}

/// Sends it and prints what came of it. Whatever fails before it is sent was not delivered.
pub fn main(global: &Global, args: &SendArgs) -> Outcome {
    let (mut asker, question) = prepare(global, args).map_err(|trouble| trouble.delivery(Delivery::NotDelivered))?;
    let patience = Duration::from_millis(question.params.deadline_ms.unwrap_or(DEADLINE_DEFAULT_MS)) + SLACK;
    let input = question.input.as_ref().map(|json| json.get().as_bytes());
    let called = asker.ask_within(Method::SessionSend, &question.params, input, patience);
    let reply = called.map_err(|error| {
        let delivery = error.delivery();
        trouble::call(&format!("the command {:?}", args.command), error).delivery(delivery)
    })?;
    told(global, &reply).map_err(|trouble| trouble.delivery(Delivery::Delivered))?;
    Ok(ExitCode::SUCCESS)
}

struct Question<'a> {
    params: Send<'a>,
    input: Option<Json>,
}

fn prepare<'a>(global: &Global, args: &'a SendArgs) -> Result<(Asker, Question<'a>), Trouble> {
    let deadline_ms = args.deadline.map(time::millis);
    if deadline_ms.is_some_and(|ms| ms > DEADLINE_MAX_MS) {
        let most = DEADLINE_MAX_MS / 60_000;
        return Err(Failure::usage(format!("--deadline takes {most}m at most; what takes longer is a task")).into());
    }
    let selector = select::request(&args.selector)?;
    let input = args.input.as_ref().map(|input| payload::input(input, Limits::default().input_bytes)).transpose()?;
    let asker = Asker::connect(&ask::target(global)?, Method::SessionSend).map_err(get::no_session)?;
    let params = Send { selector, command: &args.command, deadline_ms, key: args.key.as_deref() };
    Ok((asker, Question { params, input }))
}

fn told(global: &Global, reply: &Reply) -> Result<(), Trouble> {
    let Done { session_id, took_ms } = ask::read(&reply.result, Method::SessionSend.name())?;
    let result = Json::new(reply.payload.as_deref().unwrap_or(b"null")).map_err(|why| {
        let message = format!("the session's result is not one JSON text: {why}");
        Failure::new(Exit::Negative, Code::InvalidResult.word(), message)
    })?;
    if global.json {
        out::json(&Document { session_id, took_ms, result: result.raw() })
    } else {
        out::text(&shown(&result, out::is_terminal()))
    }
}

/// A string as it is, all else as JSON; a terminal is not handed control characters.
fn shown(result: &Json, terminal: bool) -> String {
    let mut text = result.as_text().unwrap_or_else(|| result.get().to_owned());
    if terminal {
        text = escaped_lines(&text);
    }
    if !text.ends_with('\n') {
        text.push('\n');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn json(text: &str) -> Json {
        Json::new(text.as_bytes()).unwrap()
    }

    #[test]
    fn a_string_is_shown_as_it_is_and_all_else_as_json() {
        assert_eq!(shown(&json("\"a\\nb\""), false), "a\nb\n");
        assert_eq!(shown(&json("\"a\\n\""), false), "a\n");
        assert_eq!(shown(&json("{ \"a\": 1 }"), false), "{\"a\":1}\n");
        assert_eq!(shown(&json("null"), false), "null\n");
    }

    #[test]
    fn a_terminal_gets_no_control_characters() {
        assert_eq!(shown(&json("\"\\u001b[31mx\""), true), "\\u{1b}[31mx\n");
        assert_eq!(shown(&json("\"\\u001b[31mx\""), false), "\u{1b}[31mx\n");
    }
}
