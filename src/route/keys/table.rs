//! What became of commands that were sent under a key: pure, times are passed in.
//!
//! A run of a command goes `Running → Known | NotKept | Unknown`, and from `Unknown` on to the first two when its answer
//! comes late; one that certainly never reached the producer is forgotten. From its end on it is known for a time.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::account::Charge;
use crate::auth::gate::Authority;
use crate::ids::{CredentialId, SessionId};
use crate::wire::codes::{Code, Refusal};
use crate::wire::transcript::Hash;

/// A key, of the credential that sends and the session that it sends to.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Name {
    /// The session.
    pub session: SessionId,
    /// The caller's record.
    pub caller: CredentialId,
    /// Its word.
    pub key: String,
}

/// One run under a key.
#[derive(Debug, Clone)]
pub struct Ticket {
    name: Arc<Name>,
    serial: u64,
}

impl Ticket {
    /// The key.
    pub fn name(&self) -> &Name {
        &self.name
    }
}

/// How a run ended, for whoever asks again.
#[derive(Debug)]
pub struct Kept {
    /// What is told.
    pub outcome: Outcome,
    /// Who said it: his gate is asked each time that it is told.
    pub producer: Arc<Authority>,
    /// What it holds.
    pub _charge: Charge,
}

/// What is told.
#[derive(Debug)]
pub enum Outcome {
    /// A result.
    Done {
        /// The producer's.
        payload: Option<Vec<u8>>,
        /// How long it took.
        took_ms: u64,
    },
    /// A failure, with its delivery.
    Failed(Refusal),
}

/// What is known of a key.
#[derive(Debug, Clone)]
pub enum Found {
    /// Nothing: it may run.
    Nothing,
    /// It stands for another command.
    Conflict,
    /// It runs.
    Running,
    /// It has ended.
    Known(Arc<Kept>),
    /// It may or may not have run.
    Unknown(Code),
    /// It has ended, and there was no room for how.
    NotKept,
}

#[derive(Debug)]
enum State {
    Running,
    Known(Arc<Kept>),
    Unknown(Code),
    NotKept,
}

#[derive(Debug)]
struct Entry {
    /// The record of the session's producer: another one's session is another session.
    owner: CredentialId,
    digest: Hash,
    state: State,
    serial: u64,
    _charge: Charge,
}

/// Every key that is known.
#[derive(Debug)]
pub struct Table {
    entries: BTreeMap<Name, Entry>,
    /// In order of time, since every run is known equally long.
    over: VecDeque<(Instant, Ticket)>,
    serial: u64,
    period: Duration,
}

impl Table {
    /// Knows each run for that long after its end.
    pub fn new(period: Duration) -> Self {
        Self { entries: BTreeMap::new(), over: VecDeque::new(), serial: 0, period }
    }

    /// Looks a key up. `owner` is the session's producer, where there is one.
    pub fn find(&self, name: &Name, owner: Option<CredentialId>, digest: &Hash) -> Found {
        let same = |entry: &&Entry| owner.is_none_or(|owner| owner == entry.owner);
        match self.entries.get(name).filter(same) {
            None => Found::Nothing,
            Some(entry) if entry.digest != *digest => Found::Conflict,
            Some(entry) => match &entry.state {
                State::Running => Found::Running,
                State::Known(kept) => Found::Known(Arc::clone(kept)),
                State::Unknown(code) => Found::Unknown(*code),
                State::NotKept => Found::NotKept,
            },
        }
    }

    /// Keys of a session.
    pub fn count(&self, session: SessionId) -> usize {
        self.of(session).count()
    }

    /// A run begins.
    pub fn begin(&mut self, name: Name, owner: CredentialId, digest: Hash, charge: Charge) -> Ticket {
        self.serial += 1;
        let serial = self.serial;
        let entry = Entry { owner, digest, state: State::Running, serial, _charge: charge };
        if let Some(anothers) = self.entries.insert(name.clone(), entry) {
            // Nothing pays for it any more.
            self.over.retain(|(_, ticket)| ticket.serial != anothers.serial);
        }
        Ticket { name: Arc::new(name), serial }
    }

    /// The producer has answered; none where that could not be kept. What had ended already stays as it is.
    pub fn settle(&mut self, ticket: &Ticket, kept: Option<Arc<Kept>>, now: Instant) {
        let Some(entry) = self.entry(ticket) else { return };
        let is_first = matches!(entry.state, State::Running);
        if is_first || matches!(entry.state, State::Unknown(_)) {
            entry.state = kept.map_or(State::NotKept, State::Known);
        }
        if is_first {
            self.over.push_back((now + self.period, ticket.clone()));
        }
    }

    /// It is not known whether it has run, and it is never run again.
    pub fn unknown(&mut self, ticket: &Ticket, code: Code, now: Instant) {
        let Some(entry) = self.entry(ticket).filter(|entry| matches!(entry.state, State::Running)) else { return };
        entry.state = State::Unknown(code);
        self.over.push_back((now + self.period, ticket.clone()));
    }

    /// It has certainly not run.
    pub fn forget(&mut self, ticket: &Ticket) {
        if self.entry(ticket).is_some() {
            self.entries.remove(ticket.name());
        }
    }

    /// Whether an answer would still tell something.
    pub fn is_open(&self, ticket: &Ticket) -> bool {
        self.entries.get(ticket.name()).is_some_and(|entry| entry.serial == ticket.serial)
    }

    /// Forgets what has been known long enough; when the next one is due.
    pub fn expire(&mut self, now: Instant) -> Option<Instant> {
        while self.over.front().is_some_and(|(at, _)| *at <= now) {
            if let Some((_, ticket)) = self.over.pop_front() {
                self.forget(&ticket);
            }
        }
        self.over.front().map(|(at, _)| *at)
    }

    /// The session's lease is gone, and what is known of it.
    pub fn forget_session(&mut self, session: SessionId) {
        let names: Vec<_> = self.of(session).cloned().collect();
        for name in names {
            self.entries.remove(&name);
        }
        self.over.retain(|(_, ticket)| ticket.name().session != session);
    }

    /// Nobody can ask any more.
    pub fn forget_caller(&mut self, caller: CredentialId) {
        self.entries.retain(|name, _| name.caller != caller);
        self.over.retain(|(_, ticket)| ticket.name().caller != caller);
    }

    fn entry(&mut self, ticket: &Ticket) -> Option<&mut Entry> {
        self.entries.get_mut(ticket.name()).filter(|entry| entry.serial == ticket.serial)
    }

    fn of(&self, session: SessionId) -> impl Iterator<Item = &Name> {
        let first = Name { session, caller: CredentialId([0; 16]), key: String::new() };
        self.entries.range(first..).map(|(name, _)| name).take_while(move |name| name.session == session)
    }
}

#[cfg(test)]
mod tests;
