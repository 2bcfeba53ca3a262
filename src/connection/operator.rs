//! Methods of operators, the frozen ones of protocol 0 among them.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::audit::{Fact, Head, State};
use crate::auth::credentials::Enrolment;
use crate::auth::gate::{End, Permit};
use crate::auth::record::{Record, ScopeList};
use crate::ids::{CredentialId, Fingerprint, PublicKey};
use crate::registry::report::{Asked, Report};
use crate::route::feed::Audience;
use crate::wire::codes::{Code, Refusal};
use crate::wire::events::Event;
use crate::wire::lines::Role;
use crate::wire::message;
use crate::wire::object;
use crate::wire::selector::Selector;

use super::caller::{page_start, paged};
use super::dispatch::{Conversation, Done, Request};
use super::status::{FullStatus, ZeroStatus};

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Plain {
    #[serde(default)]
    receipt: bool,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Paged {
    #[serde(default, deserialize_with = "object::some")]
    page: Option<String>,
    #[serde(default)]
    receipt: bool,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Enroll {
    public_key: PublicKey,
    label: String,
    role: Role,
    scopes: ScopeList,
    #[serde(default, deserialize_with = "object::some_objects")]
    sessions: Option<Vec<Selector>>,
    #[serde(default, deserialize_with = "object::some")]
    commands: Option<Vec<String>>,
    #[serde(default, deserialize_with = "object::some")]
    expires: Option<jiff::Timestamp>,
    #[serde(default, deserialize_with = "object::some")]
    replaces: Option<CredentialId>,
    #[serde(default)]
    receipt: bool,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Named {
    credential: CredentialId,
    #[serde(default)]
    receipt: bool,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Renew {
    credential: CredentialId,
    #[serde(default, deserialize_with = "object::some")]
    expires: Option<jiff::Timestamp>,
    #[serde(default)]
    receipt: bool,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Stop {
    #[serde(default, deserialize_with = "object::some")]
    force: Option<bool>,
    #[serde(default)]
    receipt: bool,
}

#[derive(Serialize)]
struct RecordRow {
    credential: CredentialId,
    label: String,
    role: Role,
    default: bool,
    fingerprint: Fingerprint,
    scopes: ScopeList,
    #[serde(skip_serializing_if = "Option::is_none")]
    sessions: Option<Vec<Selector>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    commands: Option<Vec<String>>,
    issued: jiff::Timestamp,
    #[serde(skip_serializing_if = "Option::is_none")]
    expires: Option<jiff::Timestamp>,
    #[serde(skip_serializing_if = "Option::is_none")]
    revoked: Option<jiff::Timestamp>,
    #[serde(skip_serializing_if = "Option::is_none")]
    expired: Option<jiff::Timestamp>,
    state: &'static str,
    connections: usize,
}

#[derive(Serialize)]
struct Enrolled {
    credential: CredentialId,
    fingerprint: Fingerprint,
}

#[derive(Serialize)]
struct Revoked {
    credential: CredentialId,
    label: String,
    cut: usize,
}

#[derive(Serialize)]
struct Renewed {
    credential: CredentialId,
    #[serde(skip_serializing_if = "Option::is_none")]
    expires: Option<jiff::Timestamp>,
}

#[inline(never)]
pub(super) fn status(on: &Conversation, _permit: Permit<'_>, request: &Request<'_>) -> Done {
    let Plain { receipt } = message::params(request.params)?;
    let receipt = request.receipt(receipt);
    let _gone = match on.protocol {
        0 => on.peer.answer(request.id, &ZeroStatus::of(on), None, receipt),
        _ => on.peer.answer(request.id, &FullStatus::of(on), None, receipt),
    };
    Ok(())
}

#[inline(never)]
pub(super) fn credential_list(on: &Conversation, _permit: Permit<'_>, request: &Request<'_>) -> Done {
    let Paged { page, receipt } = message::params(request.params)?;
    let from = page_start(page.as_deref())?;
    let rows = on.hub.credentials.list().into_iter().zip(0_u64..).skip_while(|(_, number)| *number < from);
    let rows = rows.map(|((record, live), number)| {
        let end = live.as_ref().and_then(|credential| credential.gate.end());
        let connections = live.as_ref().map_or(0, |credential| credential.connected());
        (number, row(record, end, connections))
    });
    let (page, rows) = paged(rows);
    let _gone = on.peer.answer(request.id, &page, Some(&rows), request.receipt(receipt));
    Ok(())
}

fn row(record: Record, end: Option<End>, connections: usize) -> RecordRow {
    RecordRow {
        credential: record.credential,
        label: record.label,
        role: record.role,
        default: record.default,
        fingerprint: record.public_key.fingerprint(),
        scopes: record.scopes,
        sessions: record.sessions,
        commands: record.commands,
        issued: record.issued,
        expires: record.expires,
        revoked: record.revoked,
        expired: record.expired,
        state: match end {
            None => "active",
            Some(End::Revoked) => "revoked",
            Some(End::Expired) => "expired",
        },
        connections,
    }
}

#[inline(never)]
pub(super) fn credential_enroll(on: &Conversation, permit: Permit<'_>, request: &Request<'_>) -> Done {
    let asked: Enroll = message::params(request.params)?;
    let fingerprint = asked.public_key.fingerprint();
    let receipt = request.receipt(asked.receipt);
    let (label, role) = (asked.label.clone(), asked.role);
    let enrolment = Enrolment {
        public_key: asked.public_key,
        label: asked.label,
        role: asked.role,
        scopes: asked.scopes,
        sessions: asked.sessions,
        commands: asked.commands,
        expires: asked.expires,
        replaces: asked.replaces,
    };
    let replaces = enrolment.replaces;
    let credential = on.hub.credentials.enroll(permit, on.peer.authority(), enrolment)?;
    let by = on.peer.authority().credential().id;
    log::info!("credential {credential} enrolled by {by}");
    let paired = Event::Paired { credential, label: &label, role, by };
    on.hub.feed.publish(Audience::Credential(credential), &paired);
    on.hub.forget_ended();
    on.hub.audit.record(Fact::CredentialEnrolled { credential, fingerprint, role: role.word(), by });
    if let Some(replaced) = replaces {
        on.hub.audit.record(Fact::CredentialRevoked { credential: replaced, durable: true, by });
    }
    let _gone = on.peer.answer(request.id, &Enrolled { credential, fingerprint }, None, receipt);
    Ok(())
}

#[inline(never)]
pub(super) fn credential_revoke(on: &Conversation, permit: Permit<'_>, request: &Request<'_>) -> Done {
    let Named { credential, receipt } = message::params(request.params)?;
    let revoked = on.hub.credentials.revoke(permit, credential);
    on.hub.forget_ended();
    let by = on.peer.authority().credential().id;
    if revoked.as_ref().is_err_and(|refusal| matches!(refusal.code, Code::Busy | Code::Internal)) {
        on.hub.audit.record(Fact::CredentialRevoked { credential, durable: false, by });
    }
    let (label, cut) = revoked?;
    log::info!("credential {credential} revoked by {by}, {cut} connections cut");
    on.hub.audit.record(Fact::CredentialRevoked { credential, durable: true, by });
    let _gone = on.peer.answer(request.id, &Revoked { credential, label, cut }, None, request.receipt(receipt));
    Ok(())
}

#[inline(never)]
pub(super) fn credential_renew(on: &Conversation, permit: Permit<'_>, request: &Request<'_>) -> Done {
    let Renew { credential, expires, receipt } = message::params(request.params)?;
    let renewed = on.hub.credentials.renew(permit, on.peer.authority(), credential, expires);
    on.hub.forget_ended();
    renewed?;
    let by = on.peer.authority().credential().id;
    on.hub.audit.record(Fact::CredentialRenewed { credential, expires, by });
    on.hub.clock.alarm(std::time::Instant::now());
    let _gone = on.peer.answer(request.id, &Renewed { credential, expires }, None, request.receipt(receipt));
    Ok(())
}

#[derive(Serialize)]
struct AuditHead {
    #[serde(flatten)]
    head: Head,
    lost: u64,
    available: bool,
}

#[inline(never)]
pub(super) fn audit_head(on: &Conversation, _permit: Permit<'_>, request: &Request<'_>) -> Done {
    let Plain { receipt } = message::params(request.params)?;
    let State { head, lost, available } = on.hub.audit.state();
    let _gone = on.peer.answer(request.id, &AuditHead { head, lost, available }, None, request.receipt(receipt));
    Ok(())
}

#[inline(never)]
pub(super) fn drain(on: &Conversation, permit: Permit<'_>, request: &Request<'_>) -> Done {
    let Plain { receipt } = message::params(request.params)?;
    ask(on, permit, request, receipt, Report::Drain)
}

#[inline(never)]
pub(super) fn stop(on: &Conversation, permit: Permit<'_>, request: &Request<'_>) -> Done {
    let Stop { force, receipt } = message::params(request.params)?;
    if on.protocol == 0 && force.is_none() {
        return Err(Refusal::invalid("force takes true or false"));
    }
    ask(on, permit, request, receipt, |asked| Report::Stop(asked, force.unwrap_or(false)))
}

/// The registry looks at the gate again, and answers.
fn ask(
    on: &Conversation,
    permit: Permit<'_>,
    request: &Request<'_>,
    receipt: bool,
    report: impl FnOnce(Asked) -> Report,
) -> Done {
    drop(permit);
    let (peer, receipt) = (Arc::clone(&on.peer), request.receipt(receipt));
    let asked = Asked { peer, request: request.id, receipt, tells_sessions: on.protocol > 0 };
    if on.hub.report(report(asked)) { Ok(()) } else { Err(Code::ShuttingDown.into()) }
}
