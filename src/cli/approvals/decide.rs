//! `usher approve` and `usher reject`: the answer to one question each.

use std::process::ExitCode;

use serde::{Deserialize, Serialize};

use crate::client::Target;
use crate::error::{Exit, Failure};
use crate::ids::ApprovalId;
use crate::wire::approvals::{Decide, Decision, line};
use crate::wire::codes::Code;
use crate::wire::lines::Role;
use crate::wire::methods::Method;
use crate::wire::receipt::Receipt;
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
    let mut place = receipt::Place::take(args.receipt.as_deref())?;
    let mut asker = Asker::connect_as(&target, Role::Operator)?;
    let (mut decided, mut failed) = (Vec::new(), None);
    let mut fail = |trouble: Trouble| {
        trouble.tell(global.json);
        failed.get_or_insert(trouble.exit());
    };
    for id in &args.ids {
        let (told, receipt) = match decide(&target, &mut asker, id, decision, args.reason.as_deref()) {
            Ok(done) => done,
            Err(trouble) => {
                fail(trouble);
                continue;
            }
        };
        receipt::keep(place.take(), receipt.as_ref()).unwrap_or_else(&mut fail);
        if !global.json {
            let (id, word) = (told.approval_id, told.decision.word());
            let (summary, by) = (escaped(&told.summary, 1_024), escaped(&told.asked_by, 64));
            // Whoever named several means each of them, also when this cannot be told.
            out::text(&format!("{word} {id}: {summary} (asked by {by})\n")).unwrap_or_else(&mut fail);
        }
        decided.push(told);
    }
    if global.json && !decided.is_empty() {
        out::json(&Document { decided }).unwrap_or_else(&mut fail);
    }
    Ok(failed.map_or(ExitCode::SUCCESS, |exit| ExitCode::from(exit as u8)))
}

fn decide(
    target: &Target,
    asker: &mut Asker,
    id: &str,
    decision: Decision,
    reason: Option<&str>,
) -> Result<(Told, Option<Receipt>), Trouble> {
    let Question { row, shown } = pick(questions(asker, Some(id))?, id)?;
    let approval_id = row.approval_id;
    // One that has ended has no text any more. It is decided all the same: the daemon says who was first, and tells that
    // somebody came late.
    let text = row.text.unwrap_or_default();
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
    let shown = shown.ok_or_else(|| ask::misread(Method::ApprovalList.name()))?;
    let told = Told { approval_id, decision, decided, summary: shown.summary, asked_by: shown.asker.label };
    Ok((told, reply.receipt))
}

/// The one question that an id or its beginning means.
fn pick(mut found: Vec<Question>, id: &str) -> Result<Question, Trouble> {
    match (found.pop(), found.len()) {
        (None, _) => {
            let message = format!("no approval's id begins with {}", escaped(id, 64));
            Err(Failure::new(Exit::NotFound, Code::ApprovalNotFound.word(), message)
                .hint("usher approvals shows those that are open")
                .into())
        }
        (Some(question), 0) => Ok(question),
        (Some(last), _) => {
            let states =
                found.iter().chain([&last]).map(|question| format!("{} ({})", question.id(), question.row.state));
            let message = format!("several approvals' ids begin with {}", escaped(id, 64));
            Err(Failure::new(Exit::Ambiguous, Code::Ambiguous.word(), message)
                .hint(format!("they are {}", states.collect::<Vec<_>>().join(", ")))
                .into())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::approvals::Row;

    fn question(first: u8, state: &str) -> Question {
        let (asked, expires) = ("2026-12-01T00:00:00Z", "2026-12-01T00:10:00Z");
        let id = ApprovalId([first; 16]);
        let mut row = serde_json::json!({"approval_id": id, "state": state, "asked": asked, "expires": expires});
        if state == "open" {
            let asker = r#"{"credential":"AAAAAAAAAAAAAAAAAAAAAA","label":"caller"}"#;
            let text = format!(r#"{{"summary":"s","asker":{asker},"asked":"{asked}","expires":"{expires}"}}"#);
            row["text"] = text.into();
        } else {
            row["outcome"] = serde_json::json!({"approval_id": id, "decision": state, "decided": expires});
        }
        Question::new(serde_json::from_value::<Row>(row).unwrap()).unwrap()
    }

    #[test]
    fn a_beginning_of_an_id_means_one_question_or_none() {
        let found = pick(vec![question(1, "open")], "AQEB").unwrap();
        assert_eq!((found.id(), found.shown.unwrap().summary.as_str()), (ApprovalId([1; 16]), "s"));
        assert_eq!(pick(Vec::new(), "AQEB").unwrap_err().exit(), Exit::NotFound);
        assert_eq!(pick(vec![question(1, "expired")], "AQEB").unwrap().row.state, "expired");
        // One of them has ended: which was meant is not ours to guess.
        let several = pick(vec![question(1, "expired"), question(2, "open")], "AQEB").unwrap_err();
        assert_eq!(several.exit(), Exit::Ambiguous);
    }
}
