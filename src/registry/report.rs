//! What workers tell the registry, and how the daemon is told to end.

use std::sync::Arc;
use std::time::Instant;

use crossbeam_channel::Sender;

use crate::ids::{ConnectionId, PublicKey, RotationId, SessionId};
use crate::route::directory::Session;
use crate::route::peer::Peer;
use crate::wire::codes::Refusal;
use crate::wire::events::GoneReason;
use crate::wire::rows::Facts;
use crate::wire::selector::Selector;
use crate::wire::transcript::Hash;

use super::approvals::{Ask, Decided, Look, Withdraw};
use super::leases::{Claim, Staged};

/// Something happened on a connection.
pub enum Report {
    /// A producer brings a session.
    Register(Register),
    /// A producer changes its session.
    Update(Update),
    /// A producer changes what takes its session back.
    Rotate(Rotate),
    /// A session's connection has ended, or it was taken back. Only its owner's report counts.
    Gone {
        /// The session.
        session: SessionId,
        /// Who owned it.
        connection: ConnectionId,
        /// Why.
        reason: GoneReason,
        /// Dropped when nobody finds it any more.
        removed: Option<Sender<()>>,
    },
    /// A caller waits for a session.
    Wait(Wait),
    /// A caller asks a person.
    Ask(Ask),
    /// An operator decides.
    Decide(Decided),
    /// A caller takes back what it has asked.
    Withdraw(Withdraw),
    /// Somebody wants to see what was asked.
    Look(Look),
    /// Nobody waits any more for a request that waits here.
    Cancel {
        /// Whose.
        connection: ConnectionId,
        /// Its request.
        request: u64,
    },
    /// The clock rang.
    Tick,
    /// No new sessions; end with the last one.
    Drain(Asked),
    /// End. With sessions only by force.
    Stop(Asked, bool),
}

/// An operator's request, which the registry answers: what is asked and the answer are one step.
pub struct Asked {
    /// Who asks.
    pub peer: Arc<Peer>,
    /// The request.
    pub request: u64,
    /// Digest of the request where a receipt is asked for.
    pub receipt: Option<Hash>,
    /// Whether the answer tells the number of sessions: not in protocol 0.
    pub tells_sessions: bool,
}

/// See [`Report::Register`].
pub struct Register {
    /// The producer.
    pub peer: Arc<Peer>,
    /// Its session's id.
    pub id: SessionId,
    /// Requests that went to this connection before.
    pub issued: u64,
    /// What it reports.
    pub facts: Facts,
    /// Its first state.
    pub snapshot: Option<Vec<u8>>,
    /// Its lease; none for who may not have one.
    pub claim: Option<Claim>,
    /// Gets the session.
    pub reply: Sender<Result<Registered, Refusal>>,
}

/// A session that was registered.
pub struct Registered {
    /// The session.
    pub session: Arc<Session>,
    /// The change of its lease that has to be stored before its producer is told; none where it has no lease.
    pub change: Option<u64>,
}

/// See [`Report::Update`].
pub struct Update {
    /// The producer.
    pub peer: Arc<Peer>,
    /// Its session.
    pub session: Arc<Session>,
    /// All facts, the changed ones with the others.
    pub facts: Facts,
    /// A new state.
    pub snapshot: Option<Vec<u8>>,
    /// What changes.
    pub changed: Vec<&'static str>,
    /// Whether it was taken.
    pub reply: Sender<Result<(), Refusal>>,
}

/// See [`Report::Rotate`].
pub struct Rotate {
    /// The producer.
    pub peer: Arc<Peer>,
    /// Its session.
    pub session: SessionId,
    /// What to do.
    pub step: Step,
    /// The change that has to be stored before the producer is told.
    pub reply: Sender<Result<u64, Refusal>>,
}

/// A step of a rotation.
pub enum Step {
    /// Both keys have signed.
    Stage {
        /// The key so far.
        old: PublicKey,
        /// The next one.
        staged: Staged,
    },
    /// The old one counts no more.
    Confirm(RotationId),
}

/// See [`Report::Wait`].
pub struct Wait {
    /// The caller.
    pub peer: Arc<Peer>,
    /// Its request.
    pub request: u64,
    /// Digest of the request where a receipt is asked for.
    pub receipt: Option<Hash>,
    /// Which session.
    pub selector: Selector,
    /// Until when.
    pub deadline: Instant,
}

/// Why the daemon ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StopReason {
    /// SIGTERM or SIGINT.
    Signal(i32),
    /// An operator said so.
    Asked,
    /// It was drained and the last session has ended.
    Drained,
    /// Nobody has needed it for long.
    Idle,
    /// Nobody needs it, and a newer one waits.
    Successor,
}

impl StopReason {
    /// Nobody needs the daemon any more: it goes without turning anybody away.
    pub fn is_quiet(self) -> bool {
        matches!(self, Self::Drained | Self::Idle | Self::Successor)
    }

    /// The word that peers are told.
    pub fn word(self) -> &'static str {
        match self {
            Self::Signal(_) => "signal",
            Self::Asked => "stop",
            Self::Drained => "drained",
            Self::Idle => "idle",
            Self::Successor => "successor",
        }
    }
}

/// Whoever holds it can end the daemon, once.
#[derive(Clone)]
pub struct Stop(Sender<StopReason>);

impl Stop {
    /// Over a channel with one place.
    pub fn new(to: Sender<StopReason>) -> Self {
        Self(to)
    }

    /// Asks the daemon to end. Asking twice is asking once.
    pub fn request(&self, reason: StopReason) {
        let _asked_already = self.0.try_send(reason);
    }
}
