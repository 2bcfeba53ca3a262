//! Methods of producers. Ownership is the connection's: no parameter names a session to act on.

use crossbeam_channel::bounded;
use serde::{Deserialize, Serialize};

use crate::auth::gate::Permit;
use crate::ids::SessionId;
use crate::registry::report::{self, Report};
use crate::wire::codes::{Code, Refusal};
use crate::wire::events::GoneReason;
use crate::wire::message;
use crate::wire::rows::{self, Facts};
use crate::wire::transcript::Hash;

use super::dispatch::{Conversation, Done, Owned, Request, session_id};
use super::lease;

#[derive(Serialize)]
struct Registered {
    session_id: SessionId,
    #[serde(skip_serializing_if = "Option::is_none")]
    lease: Option<lease::Granted>,
    limits: RegisteredLimits,
}

#[derive(Serialize)]
struct RegisteredLimits {
    max_in_flight: u32,
    queued_max: u64,
}

#[derive(Serialize)]
struct Nothing {}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Plain {
    #[serde(default)]
    receipt: bool,
}

#[inline(never)]
pub(super) fn register(on: &mut Conversation, permit: Permit<'_>, request: Request<'_>) -> Done {
    let params: rows::Register = message::params(request.params)?;
    let receipt = request.receipt(params.receipt);
    let id = session_id(params.session_id);
    let claim = lease::claim(&on.peer, id, &params)?;
    let facts = Facts::new(params)?;
    let max_in_flight = facts.max_in_flight;
    let snapshot = snapshot(on, request.payload)?;
    if on.session().is_ok() {
        return Err(Code::AlreadyRegistered.into());
    }
    // An earlier session of this connection has ended; late answers to it count until there is a new one.
    let issued = on.owned.as_ref().map_or(0, |earlier| {
        earlier.end(GoneReason::Unregistered);
        earlier.session.lane.issued()
    });
    // The registry looks at the gate again and holds its permit until the session is published.
    drop(permit);
    // An id may be held by a credential that has run out unseen.
    on.hub.credentials.sweep();
    on.hub.forget_ended();
    let (reply, answer) = bounded(1);
    let peer = std::sync::Arc::clone(&on.peer);
    on.hub.report(Report::Register(report::Register { peer, id, issued, facts, snapshot, claim, reply }));
    let report::Registered { session, change } = answer.recv().map_err(|_| Code::ShuttingDown)??;
    on.owned = Some(Owned::new(&on.hub, &on.peer, session));
    let limits = RegisteredLimits { max_in_flight, queued_max: on.hub.limits.session_queued };
    let lease = change.map(|change| lease::granted(&on.hub, id, change));
    let _gone = on.peer.answer(request.id, &Registered { session_id: id, lease, limits }, None, receipt);
    Ok(())
}

#[inline(never)]
pub(super) fn update(on: &mut Conversation, permit: Permit<'_>, request: Request<'_>) -> Done {
    let params: rows::Update = message::params(request.params)?;
    let session = std::sync::Arc::clone(on.session()?);
    let receipt = request.receipt(params.receipt);
    let snapshot = match (params.snapshot, request.payload) {
        (true, payload) => Some(snapshot(on, payload)?.unwrap_or_else(|| b"null".to_vec())),
        (false, None) => None,
        (false, Some(_)) => return Err(Refusal::invalid("a payload goes with \"snapshot\":true")),
    };
    let changed = params.changed();
    let facts = session.facts().updated(params)?;
    drop(permit);
    let (reply, answer) = bounded(1);
    let peer = std::sync::Arc::clone(&on.peer);
    on.hub.report(Report::Update(report::Update { peer, session, facts, snapshot, changed, reply }));
    answer.recv().map_err(|_| Code::ShuttingDown)??;
    let _gone = on.peer.answer(request.id, &Nothing {}, None, receipt);
    Ok(())
}

#[inline(never)]
pub(super) fn heartbeat(on: &Conversation, _permit: Permit<'_>, request: &Request<'_>) -> Done {
    let receipt = plain(request)?;
    on.session()?;
    let _gone = on.peer.answer(request.id, &Nothing {}, None, receipt);
    Ok(())
}

#[inline(never)]
pub(super) fn unregister(on: &Conversation, permit: Permit<'_>, request: &Request<'_>) -> Done {
    let receipt = plain(request)?;
    on.session()?;
    drop(permit);
    if let Some(owned) = &on.owned {
        owned.unregister();
    }
    let _gone = on.peer.answer(request.id, &Nothing {}, None, receipt);
    Ok(())
}

/// What is to be signed of a request that takes nothing else.
#[inline(never)]
fn plain(request: &Request<'_>) -> Result<Option<Hash>, Refusal> {
    let Plain { receipt } = message::params(request.params)?;
    Ok(request.receipt(receipt))
}

fn snapshot(on: &Conversation, payload: Option<&[u8]>) -> Result<Option<Vec<u8>>, Refusal> {
    match payload {
        Some(bytes) if bytes.len() as u64 > on.hub.limits.snapshot_bytes => {
            Err(Refusal::too_large("snapshot", on.hub.limits.snapshot_bytes))
        }
        other => Ok(other.map(<[u8]>::to_vec)),
    }
}
