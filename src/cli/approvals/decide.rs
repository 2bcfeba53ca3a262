//! `usher approve` and `usher reject`: the answer to one question each.

use std::process::ExitCode;

use serde::{Deserialize, Serialize};

use crate::client::Target;
use crate::error::{Exit, Failure};
use crate::ids::ApprovalId;
use crate::wire::approvals::{Decide, Decision, Outcome as Ended, Shown, line};
use crate::wire::codes::Code;
use crate::wire::lines::Role;
use crate::wire::methods::Method;
use crate::wire::text::escaped;
use crate::wire::transcript::{Statement, sha256};

use super::super::args::{DecideArgs, Global};
use super::super::ask::{self, Asker};
use super::super::trouble::Trouble;
use super::super::{Outcome, out, receipt};
use super::{Question, questions};

#[derive(Serialize)]
struct Document {
    decided: Vec<Told>,
}

/// A decision that counts.
#[derive(Serialize)]
struct Told {
    approval_id: ApprovalId,
    decision: Decision,
    decided: jiff::Timestamp,
    summary: String,
    asked_by: String,
}

#[derive(Deserialize)]
struct Decided {
    decided: jiff::Timestamp,
}

/// Tries each; exits as the first one that failed.
pub fn main(global: &Global, decision: Decision, args: &DecideArgs) -> Outcome {
    if let Some(reason) = &args.reason {
        line("--reason", reason).map_err(|refusal| Failure::usage(refusal.object().message))?;
    }
    ask::operator_is_meant(global)?;
    let target = ask::target(global)?;
    let mut asker = Asker::connect_as(&target, Role::Operator)?;
    let mut place = receipt::Place::take(args.receipt.as_deref())?;
    let (mut decided, mut failed) = (Vec::new(), None);
    for id in &args.ids {
        match decide(&target, &mut asker, id, decision, args.reason.as_deref(), &mut place) {
            Ok(told) => {
                if !global.json {
                    let (id, word) = (told.approval_id, told.decision.word());
                    let (summary, by) = (escaped(&told.summary, 1_024), escaped(&told.asked_by, 64));
                    out::text(&format!("{word} {id}: {summary} (asked by {by})\n"))?;
                }
                decided.push(told);
            }
            Err(trouble) => {
                trouble.tell(global.json);
                failed.get_or_insert(trouble.exit());
            }
        }
    }
    if global.json && !decided.is_empty() {
        out::json(&Document { decided })?;
    }
    Ok(failed.map_or(ExitCode::SUCCESS, |exit| ExitCode::from(exit as u8)))
}

fn decide(
    target: &Target,
    asker: &mut Asker,
    id: &str,
    decision: Decision,
    reason: Option<&str>,
    place: &mut Option<receipt::Place>,
) -> Result<Told, Trouble> {
    let (approval_id, text, shown) = open(asker, id)?;
    let statement = Statement::Decision {
        generation: asker.caller().proved().generation,
        approval: approval_id,
        text: sha256(&[text.as_bytes()]),
        is_approved: decision == Decision::Approved,
    };
    let signature = target.sign(Role::Operator, &statement)?;
    let reason = reason.map(str::to_owned);
    let params = Decide { approval_id, decision, signature, reason, receipt: false };
    let reply = asker.ask_signed(Method::ApprovalDecide, &params)?;
    let Decided { decided } = ask::read(&reply.result, Method::ApprovalDecide.name())?;
    receipt::keep(place.take(), reply.receipt.as_ref())?;
    Ok(Told { approval_id, decision, decided, summary: shown.summary, asked_by: shown.asker.label })
}

/// The one open question that an id or its beginning means.
fn open(asker: &mut Asker, id: &str) -> Result<(ApprovalId, String, Shown), Trouble> {
    let mut found = questions(asker, Some(id))?;
    match (found.pop(), found.len()) {
        (None, _) => {
            let message = format!("no approval's id begins with {}", escaped(id, 64));
            Err(Failure::new(Exit::NotFound, Code::ApprovalNotFound.word(), message)
                .hint("usher approvals shows those that are open")
                .into())
        }
        (Some(question), 0) => {
            let approval_id = question.id();
            let Question { row, shown } = question;
            match (row.text, shown, row.outcome) {
                (Some(text), Some(shown), _) => Ok((approval_id, text, shown)),
                (_, _, Some(outcome)) => Err(already_decided(outcome)),
                _ => Err(ask::misread(Method::ApprovalList.name())),
            }
        }
        (Some(last), _) => {
            let ids: Vec<_> = found.iter().chain([&last]).map(|question| question.id().to_string()).collect();
            let message = format!("several approvals' ids begin with {}", escaped(id, 64));
            Err(Failure::new(Exit::Ambiguous, Code::Ambiguous.word(), message)
                .hint(format!("they are {}", ids.join(" ")))
                .into())
        }
    }
}

fn already_decided(outcome: Ended) -> Trouble {
    let by = outcome.by.as_ref().map(|by| format!(" by {}", by.label)).unwrap_or_default();
    let why = outcome.reason.as_ref().map(|reason| format!(" ({reason})")).unwrap_or_default();
    let message = format!("that approval was {}{by}{why}", outcome.decision.word());
    Trouble::from(Failure::new(Code::AlreadyDecided.exit(), Code::AlreadyDecided.word(), message)).outcome(outcome)
}
