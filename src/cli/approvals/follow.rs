//! `usher approvals --follow`: each question once when it is asked, and once when it has ended.
//!
//! Owns: the order of the two. It subscribes first and lists then, so nothing is missed between. A question is told as
//! `approval.list` shows it, its end as the event says: when the daemon goes, nobody answers any more. Invariant: each is
//! told once however often it is heard of. Threads: the one that reads events waits for the one that prints, which
//! therefore asks over a connection of its own.

use std::collections::HashSet;
use std::process::ExitCode;
use std::time::Instant;

use crossbeam_channel::{Receiver, bounded, select_biased};
use serde::{Deserialize, Serialize};
use serde_json::json;

use crate::client::{Caller, Hello, Target, connect};
use crate::error::{Exit, Failure};
use crate::ids::{ApprovalId, CredentialId};
use crate::wire::approvals::Outcome;
use crate::wire::codes::Code;
use crate::wire::events::Kind;
use crate::wire::lines::Role;
use crate::wire::methods::{EVENTS, Method};
use crate::wire::text::escaped;

use super::super::args::Global;
use super::super::ask::{self, Asker, PATIENCE};
use super::super::trouble::{self, Trouble};
use super::super::{Outcome as Exited, out, time};
use super::list::{Line, until};
use super::{Question, questions};

/// Notifications that wait to be printed: behind them the daemon is held back, and tells how far.
const NEWS: usize = 64;

/// What happens. Dropped in this order: the reader, which the second waits for, may be waiting for the first.
struct Stream {
    news: Receiver<Vec<u8>>,
    _caller: Caller,
}

/// An event, as far as it is of use here.
#[derive(Deserialize)]
struct Happened {
    ts: jiff::Timestamp,
    kind: String,
    approval_id: Option<ApprovalId>,
    decision: Option<String>,
    by: Option<By>,
    reason: Option<String>,
}

#[derive(Serialize, Deserialize)]
struct By {
    credential: CredentialId,
    label: String,
}

/// How a question has ended.
#[derive(Serialize)]
struct End {
    approval_id: ApprovalId,
    state: String,
    decided: jiff::Timestamp,
    #[serde(skip_serializing_if = "Option::is_none")]
    by: Option<By>,
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<String>,
}

struct Follower {
    json: bool,
    asker: Asker,
    /// Those whose end is still to be told.
    told: HashSet<ApprovalId>,
    /// Whether the daemon has said that it ends.
    daemon_ends: bool,
}

/// First those that are open, then what comes, for as long as there are a daemon and a reader.
pub(super) fn main(global: &Global, target: &Target, role: Role) -> Exited {
    let reader_gone = out::reader_gone()?;
    let Stream { news, _caller } = &subscribe(target, role)?;
    let asker = Asker::connect_as(target, role)?;
    let mut follower = Follower { json: global.json, asker, told: HashSet::new(), daemon_ends: false };
    follower.catch_up()?;
    loop {
        select_biased! {
            recv(reader_gone) -> _ => return Ok(ExitCode::SUCCESS),
            recv(news) -> batch => match batch {
                Ok(batch) => follower.hear(&batch)?,
                Err(_) => return Err(follower.lost().into()),
            },
        }
    }
}

fn subscribe(target: &Target, role: Role) -> Result<Stream, Trouble> {
    let connection = connect(target, &Hello::new(role)).map_err(|failure| ask::explained(target, failure))?;
    let (tell, news) = bounded(NEWS);
    let caller = Caller::hearing(connection, move |heard| {
        if heard.method == EVENTS {
            let _nobody_prints = tell.send(heard.payload.unwrap_or_default());
        }
    })?;
    let kinds = [Kind::AwaitingApproval.word(), Kind::ApprovalDecided.word()];
    let (method, deadline) = (Method::EventsSubscribe.name(), Instant::now() + PATIENCE);
    caller.call(method, &json!({ "kinds": kinds }), None, deadline).map_err(|error| trouble::call(method, error))?;
    Ok(Stream { news, _caller: caller })
}

impl Follower {
    /// Why nothing comes any more.
    fn lost(&self) -> Failure {
        let why = if self.daemon_ends { "the daemon has ended" } else { "the connection was lost" };
        Failure::new(Exit::Unavailable, Code::ConnectionLost.word(), why)
    }

    fn hear(&mut self, batch: &[u8]) -> Result<(), Trouble> {
        let events: Vec<Happened> =
            serde_json::from_slice(batch).map_err(|_| ask::misread(Method::EventsSubscribe.name()))?;
        for event in events {
            let Happened { ts, kind, approval_id, decision, by, reason } = event;
            match approval_id {
                Some(id) if kind == Kind::AwaitingApproval.word() && self.told.insert(id) => {
                    // One that has ended meanwhile is told with its end.
                    let asked = self.look(id)?.filter(|question| question.shown.is_some());
                    asked.iter().try_for_each(|question| self.print(question))?;
                }
                Some(id) if kind == Kind::ApprovalDecided.word() => {
                    let state = decision.unwrap_or_default();
                    self.end(End { approval_id: id, state, decided: ts, by, reason })?;
                }
                None if kind == Kind::Lagged.word() => self.catch_up()?,
                None if kind == Kind::ShutdownRequested.word() => self.daemon_ends = true,
                _ => {}
            }
        }
        Ok(())
    }

    /// Those that are open and not told yet, and the end of those that were told and are open no longer.
    fn catch_up(&mut self) -> Result<(), Trouble> {
        let open = questions(&mut self.asker, None)?;
        let still: HashSet<ApprovalId> = open.iter().map(Question::id).collect();
        let over: Vec<_> = self.told.difference(&still).copied().collect();
        for id in over {
            // None: so many have ended since that this one is forgotten.
            let Some(outcome) = self.look(id)?.and_then(|question| question.row.outcome) else { continue };
            let Outcome { decision, decided, by, reason, .. } = outcome;
            let by = by.map(|by| By { credential: by.credential, label: by.label });
            self.end(End { approval_id: id, state: decision.word().to_owned(), decided, by, reason })?;
        }
        for question in &open {
            if self.told.insert(question.id()) {
                self.print(question)?;
            }
        }
        Ok(())
    }

    fn end(&mut self, end: End) -> Result<(), Trouble> {
        if !self.told.remove(&end.approval_id) {
            return Ok(());
        }
        if self.json {
            return out::json(&end);
        }
        let End { approval_id, state, by, reason, .. } = end;
        let by = by.map(|by| format!(" by {}", escaped(&by.label, 64))).unwrap_or_default();
        let why = reason.map(|why| format!(": {}", escaped(&why, 1_024))).unwrap_or_default();
        out::text(&format!("{approval_id}  {}{by}{why}\n", escaped(&state, 32)))
    }

    fn look(&mut self, id: ApprovalId) -> Result<Option<Question>, Trouble> {
        Ok(questions(&mut self.asker, Some(&id.to_string()))?.pop())
    }

    fn print(&self, question: &Question) -> Result<(), Trouble> {
        if self.json {
            return out::json(&Line::of(question));
        }
        let Question { row, shown: Some(shown) } = question else { return Ok(()) };
        let (summary, label) = (escaped(&shown.summary, 1_024), escaped(&shown.asker.label, 64));
        let left = time::age(until(row.expires));
        out::text(&format!("{}  {label} asks, for {left}: {summary}\n", row.approval_id))
    }
}
