//! What callers are told when a producer has answered, at once or again.

use std::sync::Arc;

use crate::auth::gate::Authority;
use crate::ids::SessionId;
use crate::route::keys::{Kept, Outcome};
use crate::route::outbound::Origin;
use crate::route::peer::Peer;
use crate::wire::codes::{Code, Delivery, Refusal};
use crate::wire::message;
use crate::wire::transcript::Hash;

use super::work::{Answer, SendResult, Work};

/// A producer's answer as its callers get it.
pub(super) enum Verdict<'a> {
    Done(Option<&'a [u8]>),
    Failed(Refusal),
}

impl Verdict<'_> {
    /// For the keyring: a copy.
    pub(super) fn outcome(&self, took_ms: u64) -> Outcome {
        match self {
            Self::Done(payload) => Outcome::Done { payload: payload.map(<[u8]>::to_vec), took_ms },
            Self::Failed(refusal) => Outcome::Failed(refusal.clone()),
        }
    }
}

pub(super) fn judge(answer: Answer<'_>, result_max: u64) -> Verdict<'_> {
    let failed = |refusal: Refusal| Verdict::Failed(refusal.delivery(Delivery::Delivered));
    match answer {
        Answer::Done(payload) if payload.map_or(0, <[u8]>::len) as u64 <= result_max => Verdict::Done(payload),
        Answer::Done(_) => failed(
            Refusal { resource: Some("result"), ..Code::InvalidResult.into() }
                .message(format!("the session's result is larger than {result_max} bytes")),
        ),
        Answer::Failed(message) => failed(Refusal::from(Code::CommandFailed).message(message)),
    }
}

/// Everybody who waits, and whom nobody has answered.
pub(super) fn all(work: &Work, session: SessionId, producer: &Arc<Authority>, verdict: &Verdict<'_>, took_ms: u64) {
    for call in work.calls.iter().filter(|call| call.caller.settle(call.request)) {
        match verdict {
            Verdict::Done(payload) => {
                done(&call.caller, call.request, call.receipt, session, producer, *payload, took_ms);
            }
            Verdict::Failed(refusal) => failed(&call.caller, call.request, producer, refusal),
        }
    }
}

/// Somebody who asks once more for what is kept. What a revoked producer said is told to nobody.
pub fn again(caller: &Arc<Peer>, request: u64, receipt: Option<Hash>, session: SessionId, kept: &Kept) {
    let producer = &kept.producer;
    match (producer.admit_delivery(), &kept.outcome) {
        (Ok(_permit), Outcome::Done { payload, took_ms }) => {
            done(caller, request, receipt, session, producer, payload.as_deref(), *took_ms);
        }
        (Ok(_permit), Outcome::Failed(refusal)) => failed(caller, request, producer, refusal),
        (Err(_), _) => {
            let _gone = caller.fail(request, &lost());
        }
    }
}

fn done(
    caller: &Arc<Peer>,
    request: u64,
    receipt: Option<Hash>,
    session: SessionId,
    producer: &Arc<Authority>,
    payload: Option<&[u8]>,
    took_ms: u64,
) {
    let text = caller.answering(request, &SendResult { session_id: session, took_ms }, payload, receipt);
    let _gone = caller.send_for(origin(producer, request), text);
}

fn failed(caller: &Arc<Peer>, request: u64, producer: &Arc<Authority>, refusal: &Refusal) {
    let _gone = caller.send_for(origin(producer, request), message::failure(request, &refusal.object()));
}

fn origin(producer: &Arc<Authority>, request: u64) -> Origin {
    Origin { authority: Arc::clone(producer), instead: Some((request, lost())) }
}

/// In place of an answer whose producer was revoked before it went.
fn lost() -> Refusal {
    Refusal::from(Code::SessionLost).delivery(Delivery::Delivered)
}
