//! The ledger of keyed commands, shared by all lanes: what was sent under a key is sent once, and told again.
//!
//! Owns the table and what it may hold. It must not know lanes: a lane says what became of a run, while it holds its own
//! lock, so that nobody finds a command neither in the lane nor here. Lock order: lane, then this one. Outlives the
//! producers' connections; dropped with a session's lease, a caller's credential, or after its time.

mod table;

use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use crate::account::{Charge, Pool};
use crate::auth::credential::Credential;
use crate::auth::gate::Authority;
use crate::ids::{CredentialId, SessionId};
use crate::limits::Limits;
use crate::wire::codes::{Code, Delivery, Refusal};
use crate::wire::transcript::{Hash, sha256};

use super::clock::Clock;
use table::Table;

pub use table::{Found, Kept, Name, Outcome, Ticket};

/// What a caller names its command by.
#[derive(Debug, Clone)]
pub struct Key {
    /// Its word.
    pub word: String,
    /// What it stands for.
    pub digest: Hash,
}

impl Key {
    /// For a command with its input.
    pub fn new(word: String, command: &str, input: Option<&[u8]>) -> Self {
        Self { word, digest: sha256(&[command.as_bytes(), b"\n", input.unwrap_or_default()]) }
    }
}

/// Every key.
pub struct Keyring {
    table: Mutex<Table>,
    keys: Arc<Pool>,
    results: Arc<Pool>,
    session_max: usize,
    clock: Arc<Clock>,
    period: Duration,
}

impl Keyring {
    /// Empty.
    pub fn new(limits: &Limits, clock: Arc<Clock>) -> Self {
        let period = Duration::from_millis(limits.key_ms);
        Self {
            table: Mutex::new(Table::new(period)),
            keys: Pool::new("keys", limits.keys),
            results: Pool::new("kept-results-bytes", limits.kept_results_bytes),
            session_max: usize::try_from(limits.session_keys).unwrap_or(usize::MAX),
            clock,
            period,
        }
    }

    /// The bounds on keys and on what is kept of their results.
    pub fn totals(&self) -> [&Arc<Pool>; 2] {
        [&self.keys, &self.results]
    }

    /// What is known of a key; `owner` is the producer's record, where the session is there.
    pub fn find(&self, session: SessionId, caller: CredentialId, owner: Option<CredentialId>, key: &Key) -> Found {
        self.table.lock().find(&Name { session, caller, key: key.word.clone() }, owner, &key.digest)
    }

    /// A run begins.
    pub fn begin(
        &self,
        session: SessionId,
        caller: &Credential,
        owner: CredentialId,
        key: &Key,
    ) -> Result<Ticket, Refusal> {
        let mut table = self.table.lock();
        if table.count(session) >= self.session_max {
            return Err(Refusal::busy("session-keys"));
        }
        let charge = Charge::take(&self.keys, &caller.shares.keys, 1).map_err(|full| Refusal::busy(full.resource()))?;
        let name = Name { session, caller: caller.id, key: key.word.clone() };
        Ok(table.begin(name, owner, key.digest, charge))
    }

    /// The producer has answered. What has no room is not kept, and that is told to whoever asks again.
    pub fn settle(&self, ticket: &Ticket, caller: &Credential, producer: Arc<Authority>, outcome: Outcome) {
        let bytes = match &outcome {
            Outcome::Done { payload, .. } => payload.as_ref().map_or(0, Vec::len),
            Outcome::Failed(refusal) => refusal.message.as_ref().map_or(0, String::len),
        };
        let charge = Charge::take(&self.results, &caller.shares.kept_results, bytes as u64);
        let kept = charge.ok().map(|charge| Arc::new(Kept { outcome, producer, _charge: charge }));
        let now = Instant::now();
        self.table.lock().settle(ticket, kept, now);
        self.clock.alarm(now + self.period);
    }

    /// Nobody knows whether it has run: it is never run again.
    pub fn unknown(&self, ticket: &Ticket, code: Code) {
        let now = Instant::now();
        self.table.lock().unknown(ticket, code, now);
        self.clock.alarm(now + self.period);
    }

    /// It has certainly not run: it may.
    pub fn forget(&self, ticket: &Ticket) {
        self.table.lock().forget(ticket);
    }

    /// Keys that a session may have.
    pub fn session_max(&self) -> usize {
        self.session_max
    }

    /// Whether an answer would still tell something.
    pub fn is_open(&self, ticket: &Ticket) -> bool {
        self.table.lock().is_open(ticket)
    }

    /// Forgets what was known long enough; when to look again.
    pub fn expire(&self, now: Instant) -> Option<Instant> {
        self.table.lock().expire(now)
    }

    /// See [`Table::forget_session`].
    pub fn forget_sessions(&self, sessions: &[SessionId]) {
        let mut table = self.table.lock();
        for &session in sessions {
            table.forget_session(session);
        }
    }

    /// See [`Table::forget_caller`].
    pub fn forget_caller(&self, caller: CredentialId) {
        self.table.lock().forget_caller(caller);
    }
}

/// What a caller is told whose key's outcome is not to be had.
pub fn told_again(found: &Found) -> Option<Refusal> {
    match found {
        Found::Conflict => Some(Refusal::from(Code::KeyConflict).delivery(Delivery::NotDelivered)),
        Found::Unknown(code) => Some(Refusal::from(*code).delivery(Delivery::Unknown)),
        Found::NotKept => Some(Refusal::from(Code::ResultNotKept).delivery(Delivery::Delivered)),
        Found::Nothing | Found::Running | Found::Known(_) => None,
    }
}
