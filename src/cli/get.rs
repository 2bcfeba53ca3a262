//! `usher get`: one session and its latest snapshot.

use std::fmt::Write as _;
use std::process::ExitCode;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use crate::error::{Exit, Failure};
use crate::wire::codes::Code;
use crate::wire::methods::Method;
use crate::wire::rows::Row;
use crate::wire::selector::Selector;
use crate::wire::text::escaped;

use super::args::{Global, SelectorArgs};
use super::ask::{self, Asker, Missed};
use super::payload::Json;
use super::trouble::Trouble;
use super::{Outcome, list, out, select, time};

#[derive(Serialize)]
struct Get<'a> {
    selector: &'a Selector,
}

/// `{session: row}`, the row as it was sent.
#[derive(Deserialize)]
pub struct One {
    pub session: Box<RawValue>,
}

#[derive(Serialize)]
struct Document<'a> {
    session: &'a RawValue,
    snapshot: &'a RawValue,
}

/// Shows it.
pub fn main(global: &Global, args: &SelectorArgs) -> Outcome {
    let selector = select::request(args)?;
    let mut asker = Asker::connect(&ask::target(global)?, Method::SessionGet).map_err(no_session)?;
    let reply = asker.ask(Method::SessionGet, &Get { selector: &selector })?;
    let One { session } = ask::read(&reply.result, Method::SessionGet.name())?;
    let snapshot = Json::new(reply.payload.as_deref().unwrap_or(b"null")).map_err(|why| {
        let message = format!("the session's snapshot is not one JSON text: {why}");
        Failure::new(Exit::Negative, Code::InvalidPayload.word(), message)
    })?;
    if global.json {
        out::json(&Document { session: &session, snapshot: snapshot.raw() })?;
    } else {
        let row: Row = ask::read(&session, Method::SessionGet.name())?;
        out::text(&human(&row, &snapshot))?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Without a daemon there is no session to find.
pub fn no_session(missed: Missed) -> Trouble {
    match missed {
        Missed::NotRunning => {
            let message = "no session matches: no daemon is running";
            Failure::new(Exit::NotFound, Code::SessionNotFound.word(), message)
                .hint("usher run starts a program as a session, and the daemon with it")
                .into()
        }
        Missed::Trouble(trouble) => trouble,
    }
}

fn human(row: &Row, snapshot: &Json) -> String {
    let mut text = String::new();
    let mut line = |name: &str, value: &str| {
        if !value.is_empty() {
            let _ = writeln!(text, "{name:<10}{}", escaped(value, 4096));
        }
    };
    line("session", &row.session_id.to_string());
    line("title", &row.title);
    line("cwd", &row.cwd);
    line("repo", row.repo_root.as_deref().unwrap_or_default());
    line("terminal", &row.terminal.as_ref().map(list::terminal).unwrap_or_default());
    line("pid", &format!("{}, for {}", row.pid, time::age(time::since_ms(row.started))));
    let state = format!("{:?}", row.state).to_lowercase();
    line("state", &format!("{state}, heard {} ago", time::age(Duration::from_millis(row.last_seen_ms))));
    line("pending", &format!("{}, at most {} at once", row.pending, row.max_in_flight));
    for (key, value) in &row.labels {
        line("label", &format!("{key}={value}"));
    }
    for command in &row.commands {
        let description = command.description.as_ref().map(|text| format!("  {text}")).unwrap_or_default();
        line("command", &format!("{}{description}", command.name));
    }
    for runtime in &row.runtimes {
        line("runtime", runtime.get());
    }
    line("info", row.info.as_ref().map(|info| info.get()).unwrap_or_default());
    let _ = writeln!(text, "snapshot  {}", escaped(snapshot.get(), usize::MAX));
    text
}
