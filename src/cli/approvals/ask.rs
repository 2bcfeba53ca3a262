//! `usher ask`: asks a person and waits for the answer.

use std::io::IsTerminal;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::thread::sleep;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use serde::Serialize;

use crate::client::{CallError, Caller, Hello, Reply, Target, connect_or_start};
use crate::error::{Exit, Failure};
use crate::ids::{ApprovalId, SessionId};
use crate::limits::{DETAIL_MAX_BYTES, START_MS, TTL_DEFAULT_MS};
use crate::wire::approvals::{By, Decision, Outcome as Ended, Pending, Request, Shown};
use crate::wire::codes::Code;
use crate::wire::message;
use crate::wire::methods::{APPROVAL_PENDING, Method};
use crate::wire::object;
use crate::wire::text::escaped;
use crate::wire::transcript::{Statement, sha256};

use super::super::args::{AskArgs, Detail, Global};
use super::super::trouble::{self, Trouble};
use super::super::{Outcome, ask, foreign, out, receipt, session, terminal, time};

/// For the daemon's own word after a question's time.
const SLACK: Duration = Duration::from_secs(10);
/// Between two tries to put a question to a daemon that is just going.
const PAUSE: Duration = Duration::from_millis(50);

#[derive(Serialize)]
struct Document<'a> {
    approval_id: ApprovalId,
    decision: Decision,
    decided: jiff::Timestamp,
    #[serde(skip_serializing_if = "Option::is_none")]
    by: Option<&'a By>,
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<&'a str>,
}

/// Exits 0 when somebody approved, and for no other reason.
pub fn main(global: &Global, args: &AskArgs) -> Outcome {
    let detail = args.detail.as_ref().map(detail).transpose()?;
    let request = request(args);
    request.check().map_err(|refusal| Failure::usage(refusal.object().message))?;
    let target = ask::target(global)?;
    let place = receipt::Place::take(args.receipt.as_deref())?;
    let asked = put(&target, &request, detail.as_deref())?;
    let ended: Ended = ask::read(&asked.reply.result, Method::ApprovalRequest.name())?;
    if ended.decision == Decision::Approved && !asked.is_approved(&ended, &request, detail.as_deref()) {
        let message = "the daemon's answer is no approval of this question: its signature, id or text is another";
        return Err(Failure::new(Exit::Bug, "internal", message).into());
    }
    receipt::keep(place, asked.reply.receipt.as_ref())?;
    if global.json {
        let Ended { approval_id, decision, decided, .. } = ended;
        let (by, reason) = (ended.by.as_ref(), ended.reason.as_deref());
        out::json(&Document { approval_id, decision, decided, by, reason })?;
    }
    verdict(&ended, global.json)
}

fn detail(from: &Detail) -> Result<String, Failure> {
    let max_bytes = DETAIL_MAX_BYTES as u64;
    let bytes = match from {
        Detail::Text(text) => text.clone().into_bytes(),
        Detail::File(path) if path == &PathBuf::from("-") => foreign::read_stdin(max_bytes)?,
        Detail::File(path) => foreign::read(path, max_bytes)?,
    };
    String::from_utf8(bytes).map_err(|_| Failure::usage("the detail is not UTF-8 text"))
}

fn request(args: &AskArgs) -> Request {
    let session = std::env::var("USHER_SESSION").ok();
    let cwd = session::here().to_string_lossy().into_owned();
    Request {
        summary: args.summary.clone(),
        ttl_ms: args.ttl.map(time::millis),
        session_id: session.and_then(|id| id.parse::<SessionId>().ok()),
        // What cannot be shown is left away.
        cwd: crate::wire::text::is_plain(&cwd).then_some(cwd),
        terminal: terminal::find(),
        pid: Some(std::process::id()),
        receipt: false,
    }
}

/// A question that was answered.
struct Asked {
    caller: Caller,
    reply: Reply,
    pending: Option<ApprovalId>,
}

/// Puts the question, to the next daemon where one is just going.
fn put(target: &Target, request: &Request, detail: Option<&str>) -> Result<Asked, Trouble> {
    let deadline = Instant::now() + Duration::from_millis(START_MS);
    loop {
        let error = match put_once(target, request, detail)? {
            Ok(asked) => return Ok(asked),
            Err(error) => error,
        };
        let goes = match &error {
            CallError::Refused(error) => error
                .data
                .as_ref()
                .is_some_and(|data| [Code::Draining, Code::ShuttingDown].iter().any(|code| data.code == code.word())),
            _ => false,
        };
        if !goes || Instant::now() >= deadline {
            return Err(trouble::call("the question", error));
        }
        sleep(PAUSE);
    }
}

fn put_once(target: &Target, request: &Request, detail: Option<&str>) -> Result<Result<Asked, CallError>, Trouble> {
    let hello = Hello::new(ask::role_for(target, Method::ApprovalRequest));
    let connection =
        connect_or_start(target, &hello, None, || ()).map_err(|failure| ask::explained(target, failure))?;
    let pending = Arc::new(Mutex::new(None));
    let is_watched = std::io::stderr().is_terminal();
    let caller = {
        let pending = Arc::clone(&pending);
        Caller::hearing(connection, move |news| {
            if news.method != APPROVAL_PENDING {
                return;
            }
            let Ok(Pending { approval_id, expires, .. }) = message::params(news.params.as_deref()) else { return };
            *pending.lock() = Some(approval_id);
            if is_watched {
                let left = time::age(Duration::try_from(expires - jiff::Timestamp::now()).unwrap_or_default());
                out::note(&format!("waiting for approval, for {left}: usher approve {approval_id}"));
            }
        })?
    };
    // Our own text: it always has a JSON form.
    let detail = detail.map(|text| serde_json::to_string(text).unwrap_or_default());
    let patience = Duration::from_millis(request.ttl_ms.unwrap_or(TTL_DEFAULT_MS)) + SLACK;
    let payload = detail.as_deref().map(str::as_bytes);
    let answer = caller.call_signed(Method::ApprovalRequest.name(), request, payload, Instant::now() + patience);
    let pending = pending.lock().take();
    Ok(answer.map(|reply| Asked { caller, reply, pending }))
}

impl Asked {
    /// Whether somebody with a key has signed that this question is approved.
    fn is_approved(&self, ended: &Ended, request: &Request, detail: Option<&str>) -> bool {
        let (Some(by), Some(signature), Some(text)) = (&ended.by, &ended.signature, &self.reply.payload) else {
            return false;
        };
        let Ok(shown) = object::read::<Shown>(text) else { return false };
        let statement = Statement::Decision {
            generation: self.caller.proved().generation,
            approval: ended.approval_id,
            text: sha256(&[text]),
            is_approved: true,
        };
        self.pending == Some(ended.approval_id)
            && shown.summary == request.summary
            && shown.detail.as_deref() == detail
            && statement.is_signed_by(by.public_key, signature)
    }
}

/// What the answer means for whoever asked.
fn verdict(ended: &Ended, json: bool) -> Outcome {
    let by = ended.by.as_ref().map_or_else(String::new, |by| format!(" by {}", escaped(&by.label, 64)));
    let why = ended.reason.as_ref().map_or_else(String::new, |reason| format!(": {}", escaped(reason, 1_024)));
    let (exit, code, message) = match (ended.decision, ended.reason.as_deref()) {
        (Decision::Approved, _) => {
            if !json && std::io::stderr().is_terminal() {
                out::note(&format!("approved{by}{why}"));
            }
            return Ok(ExitCode::SUCCESS);
        }
        (Decision::Rejected, _) => (Exit::Negative, "rejected", format!("rejected{by}{why}")),
        (Decision::Expired, _) => (Exit::Timeout, Code::Expired.word(), "nobody has answered in time".to_owned()),
        (Decision::Cancelled, Some(reason)) if reason == Code::ShuttingDown.word() => {
            (Exit::Unavailable, Code::ShuttingDown.word(), "the daemon has ended, and nobody had answered".to_owned())
        }
        (Decision::Cancelled, _) => {
            (Exit::Negative, Code::Cancelled.word(), format!("the question was withdrawn before anybody answered{why}"))
        }
    };
    Err(Failure::new(exit, code, message).into())
}
