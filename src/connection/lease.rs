//! The producer's side of leases: signatures are checked here, the registry decides, and the disk is waited for here.

use std::sync::Arc;

use crossbeam_channel::bounded;
use serde::{Deserialize, Serialize};

use crate::audit::Fact;
use crate::auth::gate::Permit;
use crate::ids::{PublicKey, RotationId, SessionId, Signature};
use crate::registry::leases::{Claim, Proof, Staged};
use crate::registry::report::{Report, Rotate, Step};
use crate::route::lane::millis;
use crate::route::peer::Peer;
use crate::store::{StoreError, fault};
use crate::wire::codes::{Code, Refusal};
use crate::wire::message;
use crate::wire::methods::Method;
use crate::wire::object;
use crate::wire::rows;
use crate::wire::transcript::Statement;

use super::dispatch::{Conversation, Done, Request};
use super::hub::Hub;

/// `lease` of a registration's answer.
#[derive(Serialize)]
pub(super) struct Granted {
    ttl_ms: u64,
    durable: bool,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct StageKey {
    rotation_id: RotationId,
    new_key: PublicKey,
    #[serde(deserialize_with = "object::object")]
    signatures: Signatures,
    #[serde(default)]
    receipt: bool,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Signatures {
    old: Signature,
    new: Signature,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ConfirmKey {
    rotation_id: RotationId,
    #[serde(default)]
    receipt: bool,
}

#[derive(Serialize)]
struct Nothing {}

/// What a registration claims; nothing for a peer that may only register: it has neither of the two methods of leases.
pub(super) fn claim(peer: &Peer, id: SessionId, params: &rows::Register) -> Result<Option<Claim>, Refusal> {
    let scopes = peer.authority().scopes();
    if !scopes.has(Method::SessionStageKey) || !scopes.has(Method::SessionConfirmKey) {
        return match params.lease_signature {
            None => Ok(None),
            Some(_) => Err(Refusal::from(Code::Denied).message("this credential has no leases")),
        };
    }
    usable("reconnect_key", params.reconnect_key)?;
    let statement = Statement::Lease { t3: *peer.t3(), session: id };
    let proof = match &params.lease_signature {
        None => Proof::Absent,
        Some(signature) if statement.is_signed_by(params.reconnect_key, signature) => Proof::Good,
        Some(_) => Proof::Bad,
    };
    Ok(Some(Claim { credential: peer.authority().credential().id, key: params.reconnect_key, proof }))
}

/// Waits until the lease is on the disk. Without room there it counts as long as this daemon runs.
pub(super) fn granted(hub: &Hub, id: SessionId, change: u64) -> Granted {
    let stored = hub.leases.store(change);
    if let Err(error) = &stored {
        log::error!("the lease of session {id} ends with this daemon: {error}");
    }
    fault::point("session.register", "answer");
    Granted { ttl_ms: millis(hub.leases.period()), durable: stored.is_ok() }
}

#[inline(never)]
pub(super) fn stage_key(on: &Conversation, permit: Permit<'_>, request: &Request<'_>) -> Done {
    let StageKey { rotation_id, new_key, signatures, receipt } = message::params(request.params)?;
    let session = on.session()?.id;
    usable("new_key", new_key)?;
    let old = on.hub.leases.key(session).ok_or(Code::NotRegistered)?;
    let statement = Statement::Stage { t3: *on.peer.t3(), session, rotation: rotation_id, new_key };
    let unsigned = |which: &str| {
        Err(Refusal::from(Code::Denied).message(format!("signatures.{which} is not that of the {which} key")))
    };
    // Of a rotation that is done already the old key is not known any more.
    if old != new_key && !statement.is_signed_by(old, &signatures.old) {
        return unsigned("old");
    }
    if !statement.is_signed_by(new_key, &signatures.new) {
        return unsigned("new");
    }
    drop(permit);
    let change = rotate(on, session, Step::Stage { old, staged: Staged { rotation_id, new_key } })?;
    on.hub.leases.store_staged(session, change).map_err(|error| not_stored(&error, "nothing was staged"))?;
    let (connection, credential) = (on.peer.id(), on.peer.authority().credential().id);
    on.hub.audit.record(Fact::SessionKeyStaged { session, credential, connection });
    fault::point("session.stage_key", "answer");
    let _gone = on.peer.answer(request.id, &Nothing {}, None, request.receipt(receipt));
    Ok(())
}

#[inline(never)]
pub(super) fn confirm_key(on: &Conversation, permit: Permit<'_>, request: &Request<'_>) -> Done {
    let ConfirmKey { rotation_id, receipt } = message::params(request.params)?;
    let session = on.session()?.id;
    drop(permit);
    let change = rotate(on, session, Step::Confirm(rotation_id))?;
    on.hub
        .leases
        .store(change)
        .map_err(|error| not_stored(&error, "the old key counts again when this daemon has ended"))?;
    let (connection, credential) = (on.peer.id(), on.peer.authority().credential().id);
    on.hub.audit.record(Fact::SessionKeyConfirmed { session, credential, connection });
    fault::point("session.confirm_key", "answer");
    let _gone = on.peer.answer(request.id, &Nothing {}, None, request.receipt(receipt));
    Ok(())
}

fn rotate(on: &Conversation, session: SessionId, step: Step) -> Result<u64, Refusal> {
    let (reply, answer) = bounded(1);
    on.hub.report(Report::Rotate(Rotate { peer: Arc::clone(&on.peer), session, step, reply }));
    answer.recv().map_err(|_| Code::ShuttingDown)?
}

fn usable(name: &str, key: PublicKey) -> Result<(), Refusal> {
    match key.has_small_order() {
        true => Err(Refusal::invalid(format!("{name} is one for which anybody can make signatures"))),
        false => Ok(()),
    }
}

fn not_stored(error: &StoreError, so: &str) -> Refusal {
    log::error!("{error}");
    let refusal = if error.is_full() { Refusal::busy("disk") } else { Code::Internal.into() };
    refusal.message(format!("{so}: {error}"))
}
