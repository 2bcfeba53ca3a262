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
use crate::ids::{ApprovalId, Generation, SessionId};
use crate::limits::{DETAIL_MAX_BYTES, PATH_MAX_BYTES, START_MS, TTL_DEFAULT_MS, TTL_MAX_MS};
use crate::wire::approvals::{By, Decision, Outcome as Ended, Pending, Request, Shown};
use crate::wire::codes::Code;
use crate::wire::message;
use crate::wire::methods::{APPROVAL_PENDING, Method};
use crate::wire::object;
use crate::wire::text::{escaped, is_plain};
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
    if args.ttl.is_some_and(|ttl| time::millis(ttl) > TTL_MAX_MS) {
        return Err(Failure::usage("--ttl takes at most 24h").into());
    }
    let request = request(args);
    request.check().map_err(|refusal| Failure::usage(refusal.object().message))?;
    let target = ask::target(global)?;
    let place = receipt::Place::take(args.receipt.as_deref())?;
    let asked = put(&target, &request, detail.as_deref())?;
    let ended: Ended = ask::read(&asked.reply.result, Method::ApprovalRequest.name())?;
    if ended.decision == Decision::Approved && !asked.is_approved(&ended, &request, detail.as_deref()) {
        return Err(no_approval("its signature, id or text is another").into());
    }
    let kept = receipt::keep(place, asked.reply.receipt.as_ref());
    if global.json {
        let Ended { approval_id, decision, decided, .. } = ended;
        let (by, reason) = (ended.by.as_ref(), ended.reason.as_deref());
        out::json(&Document { approval_id, decision, decided, by, reason })?;
    }
    kept?;
    verdict(&ended, global.json)
}

fn no_approval(why: &str) -> Failure {
    let message = format!("the daemon's answer is no approval of this question: {why}");
    Failure::new(Exit::Bug, "internal", message).hint("it does not count as approved; please report it")
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
        cwd: (is_plain(&cwd) && cwd.len() <= PATH_MAX_BYTES).then_some(cwd),
        terminal: terminal::find(),
        pid: Some(std::process::id()),
        receipt: false,
    }
}

/// A question that was answered.
struct Asked {
    generation: Generation,
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
            return Err(match error {
                CallError::BadReceipt(why) => no_approval(&why).into(),
                error => trouble::call("the question", error),
            });
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
                // To the next second: of 10m a moment has passed.
                let left = time::age(super::list::until(expires) + Duration::from_millis(999));
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
    Ok(answer.map(|reply| Asked { generation: caller.proved().generation, reply, pending }))
}

impl Asked {
    /// Whether somebody with a key has signed that this question is approved.
    fn is_approved(&self, ended: &Ended, request: &Request, detail: Option<&str>) -> bool {
        let (Some(by), Some(signature), Some(text)) = (&ended.by, &ended.signature, &self.reply.payload) else {
            return false;
        };
        let Ok(shown) = object::read::<Shown>(text) else { return false };
        let statement = Statement::Decision {
            generation: self.generation,
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
            let message = "the question was withdrawn before anybody answered";
            (Exit::Negative, Code::Cancelled.word(), message.to_owned())
        }
    };
    Err(Failure::new(exit, code, message).into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::auth::identity::Identity;
    use crate::ids::CredentialId;
    use crate::store::pem::Seed;

    const ID: ApprovalId = ApprovalId([1; 16]);
    const NOW: Generation = Generation([2; 16]);

    fn request() -> Request {
        Request {
            summary: "apply?".to_owned(),
            ttl_ms: None,
            session_id: None,
            cwd: None,
            terminal: None,
            pid: None,
            receipt: false,
        }
    }

    fn text(summary: &str, detail: &str) -> Vec<u8> {
        let asker = r#"{"credential":"AAAAAAAAAAAAAAAAAAAAAA","label":"caller"}"#;
        let (asked, expires) = ("2026-12-01T00:00:00Z", "2026-12-01T00:10:00Z");
        format!(
            r#"{{"summary":"{summary}","detail":"{detail}","asker":{asker},"asked":"{asked}","expires":"{expires}"}}"#
        )
        .into_bytes()
    }

    /// An answer whose decider has signed this; what is told of it can be something else.
    fn signed(generation: Generation, approval: ApprovalId, text: &[u8], is_approved: bool) -> Ended {
        let key = Identity::from_seed(&Seed::random()).unwrap();
        let signature = key.sign(&Statement::Decision { generation, approval, text: sha256(&[text]), is_approved });
        let by = By { credential: CredentialId([3; 16]), label: "operator".to_owned(), public_key: key.public() };
        let (decided, decision) = (jiff::Timestamp::UNIX_EPOCH, Decision::Approved);
        Ended { approval_id: ID, decision, decided, by: Some(by), reason: None, signature: Some(signature) }
    }

    fn told(text: Option<Vec<u8>>, pending: Option<ApprovalId>) -> Asked {
        let result = serde_json::value::RawValue::from_string("{}".to_owned()).unwrap();
        Asked { generation: NOW, reply: Reply { result, payload: text, receipt: None }, pending }
    }

    #[test]
    fn what_is_approved_is_this_question_of_this_daemon_and_signed() {
        let question = text("apply?", "plan");
        let good = signed(NOW, ID, &question, true);
        let answer = told(Some(question.clone()), Some(ID));
        assert!(answer.is_approved(&good, &request(), Some("plan")));

        for (why, ended) in [
            ("a rejection", signed(NOW, ID, &question, false)),
            ("of another start", signed(Generation([9; 16]), ID, &question, true)),
            ("of another question", signed(NOW, ApprovalId([9; 16]), &question, true)),
            ("of another text", signed(NOW, ID, &text("apply?", "plan B"), true)),
            (
                "of another id",
                Ended { approval_id: ApprovalId([9; 16]), ..signed(NOW, ApprovalId([9; 16]), &question, true) },
            ),
            ("of another key", Ended { by: signed(NOW, ID, &question, true).by, ..good.clone() }),
            ("by nobody", Ended { by: None, ..good.clone() }),
            ("not signed", Ended { signature: None, ..good.clone() }),
        ] {
            assert!(!answer.is_approved(&ended, &request(), Some("plan")), "{why}");
        }
        for (why, text) in [
            ("the summary is another", text("apply!", "plan")),
            ("the detail is another", text("apply?", "plan B")),
            ("it is no question", b"{}".to_vec()),
        ] {
            let ended = signed(NOW, ID, &text, true);
            assert!(!told(Some(text), Some(ID)).is_approved(&ended, &request(), Some("plan")), "{why}");
        }
        assert!(!answer.is_approved(&good, &request(), None), "a detail that was not asked with");
        assert!(!told(None, Some(ID)).is_approved(&good, &request(), Some("plan")), "no text");
        assert!(!told(Some(question), None).is_approved(&good, &request(), Some("plan")), "never pending");
    }
}
