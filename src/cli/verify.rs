//! `usher verify`: what a receipt proves, found out without the daemon.

use std::fmt::Write as _;
use std::process::ExitCode;

use serde::Serialize;
use serde_json::value::RawValue;

use crate::client::ConnectFailure;
use crate::error::{Exit, Failure};
use crate::ids::{Fingerprint, Generation, PublicKey};
use crate::limits::FRAME_MAX_BYTES;
use crate::wire::approvals::{By, Decision, Outcome as Ended, Shown};
use crate::wire::lines::Role;
use crate::wire::message::{self, Header};
use crate::wire::methods::Method;
use crate::wire::object;
use crate::wire::receipt::Receipt;
use crate::wire::text::escaped;
use crate::wire::transcript::{Statement, sha256};

use super::approvals::list::indented;
use super::args::{Global, VerifyArgs};
use super::trouble::Trouble;
use super::{Outcome, ask, foreign, keys, out};

/// A request and a result at their largest, escaped as JSON strings.
const RECEIPT_MAX_BYTES: u64 = 4 * FRAME_MAX_BYTES as u64;

#[derive(Serialize)]
struct Document<'a> {
    verified: bool,
    method: &'a str,
    params: Option<&'a RawValue>,
    result: &'a RawValue,
    role: Role,
    fingerprint: Fingerprint,
    client: &'a str,
    generation: Generation,
    daemon: PublicKey,
    #[serde(skip_serializing_if = "Option::is_none")]
    decision: Option<Decided>,
}

/// What came of a question, with the decider's own signature where there is one.
#[derive(Serialize)]
struct Decided {
    decision: Decision,
    decided: jiff::Timestamp,
    #[serde(skip_serializing_if = "Option::is_none")]
    by: Option<By>,
    question: Shown,
}

/// Prints what it proves; exits 1 when it proves nothing.
pub fn main(global: &Global, args: &VerifyArgs) -> Outcome {
    let bytes = foreign::read(&args.file, RECEIPT_MAX_BYTES)?;
    let daemon = match &args.daemon_key {
        Some(key) => keys::public_key(key)?,
        None => ask::target(global)?.daemon_key().map_err(|failure| {
            let trouble = match failure {
                ConnectFailure::NotRunning => {
                    Failure::new(Exit::NotFound, "not-found", "there is no key of a daemon here").into()
                }
                other => Trouble::from(other),
            };
            trouble.hint("name the daemon's public key with --daemon-key KEY or @FILE")
        })?,
    };
    let receipt: Receipt =
        object::read(bytes.trim_ascii()).map_err(|why| unproved(&format!("it is no receipt: {why}")))?;
    let proved = receipt.verify(daemon).map_err(|why| unproved(&why))?;
    let request = message::read(receipt.request.as_bytes()).map_err(unproved)?;
    let Header::Request { method, params, .. } = &request.header else {
        return Err(unproved("what it is about is no request").into());
    };
    // The signed text: the daemon's fields, and behind an LF what an application said.
    let (result, payload) = match receipt.result.split_once('\n') {
        Some((own, payload)) => (own, Some(payload)),
        None => (receipt.result.as_str(), None),
    };
    let result: &RawValue = serde_json::from_str(result).map_err(|_| unproved("the result is no JSON"))?;
    let is_question = [Method::ApprovalRequest, Method::ApprovalDecide].iter().any(|one| *method == one.name());
    let decision = is_question.then(|| decision(proved.generation, result, payload)).transpose()?;
    let hello = &proved.hello;
    let document = Document {
        verified: true,
        method,
        params: *params,
        result,
        role: hello.role,
        fingerprint: hello.credential,
        client: &hello.client,
        generation: proved.generation,
        daemon,
        decision,
    };
    if global.json {
        out::json(&document)?;
    } else {
        out::text(&human(&document))?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Whoever decided has signed what was shown: that is checked beside the daemon's word for it.
fn decision(generation: Generation, result: &RawValue, payload: Option<&str>) -> Result<Decided, Failure> {
    let not_one = |_| unproved("its result is no outcome of a question");
    let outcome: Ended = object::read(result.get().as_bytes()).map_err(not_one)?;
    let text = payload.ok_or_else(|| unproved("the question is not in it"))?;
    let question: Shown = object::read(text.as_bytes()).map_err(not_one)?;
    let by_somebody = matches!(outcome.decision, Decision::Approved | Decision::Rejected);
    match (&outcome.by, &outcome.signature) {
        (Some(by), Some(signature)) => {
            let statement = Statement::Decision {
                generation,
                approval: outcome.approval_id,
                text: sha256(&[text.as_bytes()]),
                is_approved: outcome.decision == Decision::Approved,
            };
            if !by_somebody || !statement.is_signed_by(by.public_key, signature) {
                return Err(unproved("whoever decided has not signed this question and decision"));
            }
        }
        _ if by_somebody => return Err(unproved("nobody has signed the decision")),
        _ => {}
    }
    let Ended { decision, decided, by, .. } = outcome;
    Ok(Decided { decision, decided, by, question })
}

fn unproved(why: &str) -> Failure {
    Failure::new(Exit::Negative, "not-verified", format!("the receipt proves nothing: {why}"))
}

fn human(document: &Document<'_>) -> String {
    let mut text = String::from("verified: the daemon with this key answered this request with this result\n");
    let decision = document.decision.as_ref();
    if let Some(Decided { decision, by, question, .. }) = decision {
        let by = by.as_ref().map(|by| format!(" by {}, who signed it with {}", escaped(&by.label, 64), by.public_key));
        let summary = escaped(&question.summary, usize::MAX);
        let _ = writeln!(text, "{}{}: {summary}", decision.word(), by.unwrap_or_default());
    }
    let mut line = |name: &str, value: &str| {
        let _ = writeln!(text, "{name:<13}{}", escaped(value, usize::MAX));
    };
    if let Some(Decided { decided, question, .. }) = decision {
        line("asked", &format!("{:.0} by {}", question.asked, question.asker.label));
        line("decided", &format!("{decided:.0}"));
    }
    line("method", document.method);
    line("params", document.params.map_or("{}", RawValue::get));
    line("result", document.result.get());
    line("role", document.role.word());
    line("fingerprint", &document.fingerprint.to_string());
    line("client", document.client);
    line("generation", &document.generation.to_string());
    line("daemon", &document.daemon.to_string());
    if let Some(detail) = decision.and_then(|decision| decision.question.detail.as_ref()) {
        let _ = write!(text, "\n{}", indented(detail));
    }
    text
}
