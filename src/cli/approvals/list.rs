//! `usher approvals`: what is asked, by whom, and for how long.

use std::fmt::Write as _;
use std::process::ExitCode;
use std::time::Duration;

use serde::Serialize;

use crate::error::{Exit, Failure};
use crate::ids::{ApprovalId, Generation};
use crate::wire::approvals::{Asker as AskedBy, Outcome as Ended};
use crate::wire::codes::Code;
use crate::wire::lines::Role;
use crate::wire::methods::Method;
use crate::wire::text::{escaped, escaped_lines};
use crate::wire::transcript::sha256;

use super::super::args::{ApprovalsArgs, Global};
use super::super::ask::{self, Asker, Missed};
use super::super::list::{place, prefix_length, terminal};
use super::super::table::{self, Column};
use super::super::{Outcome, out, time};
use super::{Question, follow, questions};

const COLUMNS: &[Column] = &[
    Column::new("APPROVAL", 22),
    Column::new("WHO", 24),
    Column::new("SESSION", 24),
    Column::path("WHERE", 40),
    Column::new("TERMINAL", 20),
    Column::number("AGE"),
    Column::number("LEFT"),
    Column::new("SUMMARY", 80),
];

#[derive(Serialize)]
struct Document<'a> {
    daemon: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    generation: Option<Generation>,
    approvals: Vec<Line<'a>>,
}

/// One, as `--json` shows it.
#[derive(Serialize)]
pub(super) struct Line<'a> {
    approval_id: ApprovalId,
    state: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    summary: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    detail: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    asker: Option<&'a AskedBy>,
    asked: jiff::Timestamp,
    expires: jiff::Timestamp,
    /// What a decider signs the hash of.
    #[serde(skip_serializing_if = "Option::is_none")]
    text_sha256: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    outcome: Option<&'a Ended>,
}

impl<'a> Line<'a> {
    pub(super) fn of(question: &'a Question) -> Self {
        let Question { row, shown } = question;
        Self {
            approval_id: row.approval_id,
            state: &row.state,
            summary: shown.as_ref().map(|shown| shown.summary.as_str()),
            detail: shown.as_ref().and_then(|shown| shown.detail.as_deref()),
            asker: shown.as_ref().map(|shown| &shown.asker),
            asked: row.asked,
            expires: row.expires,
            text_sha256: row.text.as_ref().map(|text| data_encoding::HEXLOWER.encode(&sha256(&[text.as_bytes()]))),
            outcome: row.outcome.as_ref(),
        }
    }
}

/// Shows those that are open, or one.
pub fn main(global: &Global, args: &ApprovalsArgs) -> Outcome {
    let target = ask::target(global)?;
    let own = target.as_bundle().map(|bundle| bundle.role).filter(|role| Method::ApprovalList.is_for(*role));
    let role = match own {
        Some(role) => role,
        None => {
            ask::operator_is_meant(global)?;
            Role::Operator
        }
    };
    if args.follow {
        return follow::main(global, &target, role);
    }
    let mut asker = match Asker::connect_as(&target, role) {
        Ok(asker) => asker,
        Err(Missed::NotRunning) => return nobody(global, args),
        Err(Missed::Trouble(trouble)) => return Err(trouble),
    };
    let found = questions(&mut asker, args.id.as_deref())?;
    if let (Some(id), true) = (&args.id, found.is_empty()) {
        return Err(unknown(id).into());
    }
    if global.json {
        let generation = Some(asker.caller().proved().generation);
        out::json(&Document { daemon: "running", generation, approvals: found.iter().map(Line::of).collect() })?;
    } else if found.is_empty() {
        out::note("nothing is asked");
    } else if args.id.is_some() {
        out::text(&found.iter().map(whole).collect::<Vec<_>>().join("\n"))?;
    } else {
        let width = std::env::var("COLUMNS").ok().and_then(|columns| columns.parse().ok());
        out::text(&table::text(COLUMNS, &cells(&found), width))?;
    }
    Ok(ExitCode::SUCCESS)
}

fn nobody(global: &Global, args: &ApprovalsArgs) -> Outcome {
    if let Some(id) = &args.id {
        return Err(unknown(id).into());
    }
    if global.json {
        out::json(&Document { daemon: "not-running", generation: None, approvals: Vec::new() })?;
    } else {
        out::note("no daemon is running");
    }
    Ok(ExitCode::SUCCESS)
}

fn unknown(id: &str) -> Failure {
    let message = format!("no approval's id begins with {}", escaped(id, 64));
    Failure::new(Exit::NotFound, Code::ApprovalNotFound.word(), message)
}

fn cells(questions: &[Question]) -> Vec<Vec<String>> {
    let length = prefix_length(&questions.iter().map(Question::id).collect::<Vec<_>>());
    let home = std::env::var("HOME").unwrap_or_default();
    let row = |question: &Question| {
        let Question { row, shown } = question;
        let asker = shown.as_ref().map(|shown| &shown.asker);
        let text = |pick: &dyn Fn(&AskedBy) -> Option<String>| asker.and_then(pick).unwrap_or_default();
        vec![
            row.approval_id.to_string()[..length].to_owned(),
            text(&|asker| Some(asker.label.clone())),
            text(&|asker| asker.session.as_ref().map(|session| session.title.clone())),
            text(&|asker| asker.cwd.as_ref().map(|cwd| place(cwd, None, &home))),
            text(&|asker| asker.terminal.as_ref().map(terminal)),
            time::age(since(row.asked)),
            time::age(until(row.expires)),
            shown.as_ref().map(|shown| shown.summary.clone()).unwrap_or_default(),
        ]
    };
    questions.iter().map(row).collect()
}

fn since(instant: jiff::Timestamp) -> Duration {
    Duration::try_from(jiff::Timestamp::now() - instant).unwrap_or_default()
}

pub(super) fn until(instant: jiff::Timestamp) -> Duration {
    Duration::try_from(instant - jiff::Timestamp::now()).unwrap_or_default()
}

/// One in full. What foreign text says stands behind a name of ours, and its detail last and indented: no line of it can
/// pass for one of ours.
fn whole(question: &Question) -> String {
    let Question { row, shown } = question;
    let mut text = String::new();
    let mut line = |name: &str, value: &str| {
        let _infallible = writeln!(text, "{name:<10}{}", escaped(value, usize::MAX));
    };
    line("approval", &row.approval_id.to_string());
    line("state", &row.state);
    if let Some(outcome) = &row.outcome {
        line("decided", &format!("{:.0}", outcome.decided));
        if let Some(by) = &outcome.by {
            line("by", &by.label);
        }
        if let Some(reason) = &outcome.reason {
            line("reason", reason);
        }
    }
    line("asked", &format!("{:.0} ({} ago)", row.asked, time::age(since(row.asked))));
    line("expires", &format!("{:.0}", row.expires));
    let Some(shown) = shown else { return text };
    line("who", &format!("{} ({})", shown.asker.label, shown.asker.credential));
    // What the asker says of itself. That there is such a session, and its title, the daemon knows.
    let session = shown.asker.session.as_ref();
    let says = [
        ("session", session.map(|session| format!("{} ({})", session.title, session.session_id))),
        ("terminal", shown.asker.terminal.as_ref().map(terminal)),
        ("cwd", shown.asker.cwd.clone()),
        ("pid", shown.asker.pid.map(|pid| pid.to_string())),
    ];
    for (name, value) in says {
        if let Some(value) = value.filter(|value| !value.is_empty()) {
            line(name, &format!("{value} (as it says)"));
        }
    }
    line("summary", &shown.summary);
    if let Some(detail) = &shown.detail {
        text.push('\n');
        text.push_str(&indented(detail));
    }
    text
}

/// Foreign text of several lines under lines of ours.
pub(in crate::cli) fn indented(foreign: &str) -> String {
    let mut text = String::new();
    for line in foreign.trim_end().split('\n') {
        text.push_str(format!("  {}", escaped_lines(line)).trim_end());
        text.push('\n');
    }
    text
}
