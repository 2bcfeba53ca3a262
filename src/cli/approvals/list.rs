//! `usher approvals`: what is asked, by whom, and for how long.

use std::collections::HashSet;
use std::fmt::Write as _;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, bounded};
use serde::{Deserialize, Serialize};
use serde_json::json;

use crate::client::{Caller, Hello, Target, connect};
use crate::error::{Exit, Failure};
use crate::ids::{ApprovalId, Generation};
use crate::wire::approvals::{Asker as AskedBy, Outcome as Ended};
use crate::wire::codes::Code;
use crate::wire::events::Kind;
use crate::wire::lines::Role;
use crate::wire::methods::{EVENTS, Method};
use crate::wire::text::{escaped, escaped_lines};
use crate::wire::transcript::sha256;

use super::super::args::{ApprovalsArgs, Global};
use super::super::ask::{self, Asker, Missed, PATIENCE};
use super::super::list::{place, terminal};
use super::super::table::{self, Column};
use super::super::trouble::{self, Trouble};
use super::super::{Outcome, out, time};
use super::{Question, questions};

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

/// Characters of an id that are shown at least.
const ID_CHARS: usize = 8;
/// Notifications that wait to be printed: behind them the daemon is held back.
const NEWS: usize = 64;

#[derive(Serialize)]
struct Document<'a> {
    daemon: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    generation: Option<Generation>,
    approvals: Vec<Line<'a>>,
}

/// One, as `--json` shows it.
#[derive(Serialize)]
struct Line<'a> {
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
    fn of(question: &'a Question) -> Self {
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
    let role = match target.as_bundle() {
        Some(bundle) => bundle.role,
        None => {
            ask::operator_is_meant(global)?;
            Role::Operator
        }
    };
    if args.follow {
        return follow(global, &target, role);
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
    let length = prefix_length(&questions.iter().map(|one| one.id().to_string()).collect::<Vec<_>>());
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

/// So many characters that no two ids begin alike.
fn prefix_length(ids: &[String]) -> usize {
    let mut texts = ids.to_vec();
    texts.sort();
    let alike = |pair: &[String]| pair[0].bytes().zip(pair[1].bytes()).take_while(|(a, b)| a == b).count();
    texts.windows(2).map(|pair| alike(pair) + 1).max().unwrap_or(0).clamp(ID_CHARS, 22)
}

fn since(instant: jiff::Timestamp) -> Duration {
    Duration::try_from(jiff::Timestamp::now() - instant).unwrap_or_default()
}

fn until(instant: jiff::Timestamp) -> Duration {
    Duration::try_from(instant - jiff::Timestamp::now()).unwrap_or_default()
}

/// One in full. What foreign text says stands behind a name of ours, and its detail last.
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
    if let Some(session) = &shown.asker.session {
        line("session", &format!("{} ({})", session.title, session.session_id));
    }
    // What the asker says of itself.
    let says = [
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
        let _infallible = writeln!(text, "\n{}", escaped_lines(detail.trim_end()));
    }
    text
}

/// An event, as far as it is of use here.
#[derive(Deserialize)]
struct Happened {
    kind: String,
    approval_id: Option<ApprovalId>,
    decision: Option<String>,
    reason: Option<String>,
    by: Option<Who>,
}

#[derive(Deserialize)]
struct Who {
    label: String,
}

/// First those that are open, then what comes: nothing is missed between the two, and nothing told twice.
fn follow(global: &Global, target: &Target, role: Role) -> Outcome {
    let connection = connect(target, &Hello::new(role))?;
    let (tell, news) = bounded(NEWS);
    let caller = Caller::hearing(connection, move |heard| {
        if heard.method == EVENTS {
            let _nobody_prints = tell.send(heard.payload.unwrap_or_default());
        }
    })?;
    let kinds = [Kind::AwaitingApproval.word(), Kind::ApprovalDecided.word()];
    let (method, deadline) = (Method::EventsSubscribe.name(), Instant::now() + PATIENCE);
    caller.call(method, &json!({ "kinds": kinds }), None, deadline).map_err(|error| trouble::call(method, error))?;
    let mut asker = Asker::of(caller);
    let mut shown = HashSet::new();
    for question in questions(&mut asker, None)? {
        shown.insert(question.id());
        print(global, &question)?;
    }
    watch(global, &mut asker, &news, &mut shown)?;
    Err(Failure::new(Exit::Unavailable, Code::ConnectionLost.word(), "the daemon has ended").into())
}

fn watch(
    global: &Global,
    asker: &mut Asker,
    news: &Receiver<Vec<u8>>,
    shown: &mut HashSet<ApprovalId>,
) -> Result<(), Trouble> {
    for batch in news {
        let events: Vec<Happened> =
            serde_json::from_slice(&batch).map_err(|_| ask::misread(Method::EventsSubscribe.name()))?;
        for event in events {
            let Some(id) = event.approval_id else {
                if event.kind == Kind::Lagged.word() {
                    out::note("some events were missed: usher approvals shows what is open now");
                }
                continue;
            };
            if event.kind == Kind::AwaitingApproval.word() && shown.insert(id) {
                for question in questions(asker, Some(&id.to_string()))?.iter().filter(|one| one.shown.is_some()) {
                    print(global, question)?;
                }
            }
            if event.kind == Kind::ApprovalDecided.word() {
                print_end(global, id, &event)?;
            }
        }
    }
    Ok(())
}

fn print(global: &Global, question: &Question) -> Result<(), Trouble> {
    if global.json {
        return out::json(&Line::of(question));
    }
    let Some(shown) = &question.shown else { return Ok(()) };
    let (summary, label) = (escaped(&shown.summary, 1_024), escaped(&shown.asker.label, 64));
    let left = time::age(until(question.row.expires));
    out::text(&format!("{}  {label} asks, for {left}: {summary}\n", question.id()))
}

fn print_end(global: &Global, approval_id: ApprovalId, event: &Happened) -> Result<(), Trouble> {
    let decision = event.decision.as_deref().unwrap_or("ended");
    let by = event.by.as_ref().map(|by| by.label.as_str());
    if global.json {
        let mut line = json!({ "approval_id": approval_id, "state": decision });
        if let Some(by) = by {
            line["by"] = json!(by);
        }
        if let Some(reason) = &event.reason {
            line["reason"] = json!(reason);
        }
        return out::json(&line);
    }
    let by = by.map(|by| format!(" by {}", escaped(by, 64))).unwrap_or_default();
    let why = event.reason.as_ref().map(|reason| format!(": {}", escaped(reason, 1_024))).unwrap_or_default();
    out::text(&format!("{approval_id}  {}{by}{why}\n", escaped(decision, 32)))
}
