//! Methods of approvals. What deciders are shown is written here, and decided by the registry.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crossbeam_channel::bounded;
use serde::Deserialize;

use crate::account::Charge;
use crate::auth::gate::Permit;
use crate::ids::{ApprovalId, SessionId};
use crate::limits::{DETAIL_MAX_BYTES, SESSION_PREFIX_MIN};
use crate::registry::approvals::{Ask, Decided, Look, Withdraw, now};
use crate::registry::{busy, report::Report};
use crate::route::directory::Session;
use crate::route::feed::Audience;
use crate::route::peer::Place;
use crate::wire::approvals::{self, Asker, AskerSession, Decide, Decision, Shown};
use crate::wire::codes::{Code, Refusal};
use crate::wire::message;
use crate::wire::object;
use crate::wire::selector::{Selector, is_beginning};

use super::caller::{page_start, paged};
use super::dispatch::{Conversation, Done, Request};

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct List {
    #[serde(default, deserialize_with = "object::some")]
    approval_id: Option<String>,
    #[serde(default, deserialize_with = "object::some")]
    page: Option<String>,
    #[serde(default)]
    receipt: bool,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Named {
    approval_id: ApprovalId,
    #[serde(default)]
    receipt: bool,
}

#[inline(never)]
pub(super) fn request(on: &Conversation, permit: Permit<'_>, request: &Request<'_>) -> Done {
    let asked: approvals::Request = message::params(request.params)?;
    asked.check()?;
    let detail = request.payload.map(detail).transpose()?;
    let session = asked.session_id.and_then(|id| session(on, id));
    let ask = ask(on, request, asked, detail, session.as_ref())?;
    on.peer.open(request.id, Place::Registry)?;
    // The registry looks at the gate again when it takes the question.
    drop(permit);
    if !on.hub.report(Report::Ask(ask)) && on.peer.settle(request.id) {
        return Err(Code::ShuttingDown.into());
    }
    Ok(())
}

/// A text, with what a terminal would act on still in it: whoever shows it escapes it.
fn detail(payload: &[u8]) -> Result<String, Refusal> {
    let text: String = serde_json::from_slice(payload)
        .map_err(|_| Refusal::from(Code::InvalidPayload).message("detail is not one JSON string"))?;
    if text.len() > DETAIL_MAX_BYTES {
        return Err(Refusal::too_large("detail", DETAIL_MAX_BYTES as u64));
    }
    Ok(text)
}

/// The session that the asker says it runs in, where it exists for the asker.
fn session(on: &Conversation, id: SessionId) -> Option<Arc<Session>> {
    let selector = Selector { session: Some(id.to_string()), ..Selector::default() };
    on.hub.directory.resolve(&selector, on.peer.authority()).ok()
}

fn ask(
    on: &Conversation,
    request: &Request<'_>,
    asked: approvals::Request,
    detail: Option<String>,
    session: Option<&Arc<Session>>,
) -> Result<Ask, Refusal> {
    let credential = on.peer.authority().credential();
    let within = Duration::from_millis(asked.ttl_ms());
    let receipt = request.receipt(asked.receipt);
    let facts = session.map(|session| (session.id, session.facts()));
    let now = now();
    let shown = Shown {
        summary: asked.summary,
        detail,
        asker: Asker {
            credential: credential.id,
            label: credential.label.clone(),
            session: facts.as_ref().map(|(session_id, facts)| {
                let (session_id, title) = (*session_id, facts.title.clone());
                AskerSession { session_id, title }
            }),
            terminal: asked.terminal,
            cwd: asked.cwd,
            pid: asked.pid,
        },
        asked: now,
        expires: now + within,
    };
    // Our own type: it always serialises.
    let text: Arc<str> = serde_json::to_string(&shown).unwrap_or_default().into();
    let (totals, shares) = (&on.hub.totals, &credential.shares);
    let charges = [
        Charge::take(&totals.approvals, &shares.approvals, 1).map_err(busy)?,
        Charge::take(&totals.approvals_bytes, &shares.approvals_bytes, text.len() as u64).map_err(busy)?,
    ];
    Ok(Ask {
        peer: Arc::clone(&on.peer),
        request: request.id,
        receipt,
        id: ApprovalId::random(),
        session: session.map(|session| session.id),
        audience: Audience::Question(credential.id, facts),
        text,
        summary: shown.summary,
        asked: shown.asked,
        expires: shown.expires,
        due: Instant::now() + within,
        charges,
    })
}

#[inline(never)]
pub(super) fn list(on: &Conversation, permit: Permit<'_>, request: &Request<'_>) -> Done {
    let List { approval_id: prefix, page, receipt } = message::params(request.params)?;
    if let Some(prefix) = &prefix {
        if !is_beginning(prefix) {
            return Err(Refusal::invalid(format!(
                "approval_id takes an approval's id or at least {SESSION_PREFIX_MIN} characters of its beginning"
            )));
        }
    }
    let from = page_start(page.as_deref())?;
    drop(permit);
    let (reply, seen) = bounded(1);
    on.hub.report(Report::Look(Look { peer: Arc::clone(&on.peer), prefix, reply }));
    let seen = seen.recv().map_err(|_| Code::ShuttingDown)?;
    let rows = seen.into_iter().filter(|one| one.order >= from).map(|one| (one.order, one.into_row()));
    let (page, rows) = paged(rows);
    let _gone = on.peer.answer(request.id, &page, Some(&rows), request.receipt(receipt));
    Ok(())
}

#[inline(never)]
pub(super) fn withdraw(on: &Conversation, permit: Permit<'_>, request: &Request<'_>) -> Done {
    let Named { approval_id, receipt } = message::params(request.params)?;
    drop(permit);
    let (peer, receipt) = (Arc::clone(&on.peer), request.receipt(receipt));
    reported(on, Report::Withdraw(Withdraw { peer, request: request.id, receipt, approval: approval_id }))
}

#[inline(never)]
pub(super) fn decide(on: &Conversation, permit: Permit<'_>, request: &Request<'_>) -> Done {
    let decide: Decide = message::params(request.params)?;
    if !matches!(decide.decision, Decision::Approved | Decision::Rejected) {
        return Err(Refusal::invalid("decision takes approved or rejected"));
    }
    if let Some(reason) = &decide.reason {
        approvals::line("reason", reason)?;
    }
    drop(permit);
    let (peer, receipt) = (Arc::clone(&on.peer), request.receipt(decide.receipt));
    reported(on, Report::Decide(Decided { peer, request: request.id, receipt, decide }))
}

/// The registry looks at the gate again, and answers.
fn reported(on: &Conversation, report: Report) -> Done {
    if on.hub.report(report) { Ok(()) } else { Err(Code::ShuttingDown.into()) }
}
