//! What stands in a lane: a command, and whoever waits for it. Only a command under a key can have several.

use std::sync::Arc;
use std::time::Instant;

use serde::Serialize;

use crate::account::Charge;
use crate::auth::gate::Authority;
use crate::ids::{ConnectionId, CredentialId, SessionId};
use crate::route::budget::Place;
use crate::route::keys::{Key, Ticket};
use crate::route::outbound::Sent;
use crate::route::peer::Peer;
use crate::wire::codes::{Delivery, Refusal};
use crate::wire::transcript::Hash;

/// Somebody who waits for a command.
pub struct Call {
    /// Who.
    pub caller: Arc<Peer>,
    /// Its request.
    pub request: u64,
    /// Digest of the request where a receipt is asked for.
    pub receipt: Option<Hash>,
    /// When it came.
    pub arrived: Instant,
    /// When it is told as timed out.
    pub deadline: Instant,
}

impl Call {
    /// Whether it is this request of this connection.
    pub(super) fn is(&self, caller: ConnectionId, request: u64) -> bool {
        self.caller.id() == caller && self.request == request
    }

    /// Told that a command which was taken has failed, unless somebody else has answered.
    pub(super) fn fail(&self, refusal: &Refusal) {
        if self.caller.settle(self.request) {
            let _gone = self.caller.fail(self.request, refusal);
        }
    }
}

/// What is asked of a session.
pub struct Order<'a> {
    /// The command's name.
    pub command: String,
    /// Under which key.
    pub key: Option<Key>,
    /// Its input.
    pub input: Option<&'a [u8]>,
}

/// A command in the lane.
pub(super) struct Work {
    pub(super) command: String,
    pub(super) key: Option<Ticket>,
    /// Who began it: all that wait are of the same credential.
    pub(super) origin: Arc<Authority>,
    pub(super) arrived: Instant,
    /// Nobody: then it is on its way out.
    pub(super) calls: Vec<Call>,
}

impl Work {
    pub(super) fn new(command: String, key: Option<Ticket>, call: Call) -> Self {
        let origin = Arc::clone(call.caller.authority());
        Self { command, key, origin, arrived: call.arrived, calls: vec![call] }
    }

    /// Until when somebody waits.
    pub(super) fn deadline(&self) -> Option<Instant> {
        self.calls.iter().map(|call| call.deadline).max()
    }

    /// When the first of them is told as timed out.
    pub(super) fn due(&self) -> Option<Instant> {
        self.calls.iter().map(|call| call.deadline).min()
    }

    /// Takes out the chosen ones.
    pub(super) fn withdraw(&mut self, chosen: impl Fn(&Call) -> bool) -> Vec<Call> {
        let (out, kept) = std::mem::take(&mut self.calls).into_iter().partition(chosen);
        self.calls = kept;
        out
    }

    /// Whether it runs under this key.
    pub(super) fn is_under(&self, caller: CredentialId, key: &Key) -> bool {
        self.key.as_ref().is_some_and(|ticket| ticket.name().caller == caller && ticket.name().key == key.word)
    }

    /// Everybody who waits is told the same.
    pub(super) fn fail(&self, refusal: &Refusal, delivery: Delivery) {
        let refusal = refusal.clone().delivery(delivery);
        self.calls.iter().for_each(|call| call.fail(&refusal));
    }
}

pub(super) struct Queued {
    pub(super) work: Work,
    pub(super) input: Option<Vec<u8>>,
    pub(super) _charges: (Charge, Charge),
    pub(super) _place: Place,
}

pub(super) struct InFlight {
    /// `None` once it is settled: only the place is still held, until `settle_at`.
    pub(super) work: Option<Work>,
    pub(super) sent: Sent,
    pub(super) settle_at: Option<Instant>,
}

/// How a producer answered.
pub enum Answer<'a> {
    /// With a result.
    Done(Option<&'a [u8]>),
    /// With an error.
    Failed(String),
}

#[derive(Serialize)]
pub(super) struct CommandParams<'a> {
    pub(super) command: &'a str,
    pub(super) deadline_ms: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) key: Option<&'a str>,
    pub(super) caller: CallerInfo<'a>,
}

#[derive(Serialize)]
pub(super) struct CallerInfo<'a> {
    pub(super) credential: CredentialId,
    pub(super) label: &'a str,
}

#[derive(Serialize)]
pub(super) struct CancelParams {
    pub(super) id: u64,
}

#[derive(Serialize)]
pub(super) struct SendResult {
    pub(super) session_id: SessionId,
    pub(super) took_ms: u64,
}
