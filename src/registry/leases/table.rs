//! Who may take which session back: pure, without clock or file. Times are passed in.
//!
//! A lease is in use while its session is registered, and else ends at an instant. Whatever has to be on the disk before
//! somebody is told gets a number, counting up; what may be lost in a crash (that a session ended) gets none.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::account::Charge;
use crate::ids::{CredentialId, PublicKey, RotationId, SessionId};
use crate::route::budget::Budget;
use crate::wire::codes::{Code, Refusal};

use super::file::{Document, Staged, Stored};

/// What a producer says to take a session back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Claim {
    /// Its credential's record.
    pub credential: CredentialId,
    /// Its reconnect key.
    pub key: PublicKey,
    /// Whether that key has signed.
    pub proof: Proof,
}

/// What a `lease_signature` is worth.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Proof {
    /// There is none.
    Absent,
    /// The key signed this connection and this session.
    Good,
    /// It did not.
    Bad,
}

/// What a session is to its claimant.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Claimed {
    /// Nobody's so far.
    Free,
    /// His own.
    Back,
}

#[derive(Debug)]
struct Lease {
    credential: CredentialId,
    key: PublicKey,
    staged: Option<Staged>,
    rotated: Option<RotationId>,
    /// Until when the session can be taken back; none while it is in use.
    until: Option<Instant>,
    /// In use when it was written and not back since the load: until when that is waited for.
    awaited: Option<Instant>,
    /// The file says that the session has ended.
    ended_on_file: bool,
    /// The change that has to be on the disk.
    change: u64,
    budget: Arc<Budget>,
    _charge: Charge,
}

impl Lease {
    fn has(&self, key: PublicKey) -> bool {
        self.key == key || self.staged.is_some_and(|staged| staged.new_key == key)
    }
}

/// Every lease.
#[derive(Debug, Default)]
pub struct Table {
    leases: BTreeMap<SessionId, Lease>,
    changes: u64,
    /// The file differs in what may be lost.
    stale: bool,
    /// The daemon ends: who leaves now does so because of that.
    is_closing: bool,
}

impl Table {
    /// As a file has them. One that was in use counts from now on and is awaited for the time `recover`; a wall clock that
    /// went back makes none last longer than `period`. Where `charge` has no room the oldest go.
    pub fn load(
        document: Document,
        now: Instant,
        wall: jiff::Timestamp,
        period: Duration,
        recover: Duration,
        mut charge: impl FnMut(CredentialId) -> Option<Charge>,
    ) -> Result<Self, &'static str> {
        let mut table = Self::default();
        let mut stored: Vec<_> = document
            .leases
            .into_iter()
            .map(|stored| {
                let age = stored.ended.map_or(Duration::ZERO, |ended| {
                    Duration::try_from(wall.duration_since(ended)).unwrap_or(Duration::ZERO)
                });
                (period.saturating_sub(age), stored)
            })
            .collect();
        stored.sort_by_key(|(left, _)| std::cmp::Reverse(*left));
        for (left, stored) in stored {
            let keys = [Some(stored.key), stored.staged.map(|staged| staged.new_key)];
            if keys.into_iter().flatten().any(|key| key.has_small_order()) {
                return Err("a key in it is none");
            }
            let Some(charge) = charge(stored.credential).filter(|_| !left.is_zero()) else { continue };
            let lease = Lease {
                credential: stored.credential,
                key: stored.key,
                staged: stored.staged,
                rotated: stored.rotated,
                until: Some(now + left),
                awaited: stored.ended.is_none().then(|| now + recover),
                ended_on_file: stored.ended.is_some(),
                change: 0,
                budget: Arc::default(),
                _charge: charge,
            };
            if table.leases.insert(stored.session, lease).is_some() {
                return Err("a session stands twice in it");
            }
        }
        Ok(table)
    }

    /// What is to be written now, and the change that is in it.
    pub fn document(&mut self, now: Instant, wall: jiff::Timestamp, period: Duration) -> (Document, u64) {
        self.stale = false;
        let stored = self.leases.iter_mut().map(|(&session, lease)| {
            let until = lease.until.filter(|_| lease.awaited.is_none_or(|until| until <= now));
            lease.ended_on_file = until.is_some();
            let ended = until.map(|until| {
                let age = period.saturating_sub(until.saturating_duration_since(now));
                jiff::SignedDuration::try_from(age).ok().and_then(|age| wall.checked_sub(age).ok()).unwrap_or(wall)
            });
            Stored {
                session,
                credential: lease.credential,
                key: lease.key,
                staged: lease.staged,
                rotated: lease.rotated,
                ended,
            }
        });
        (Document { leases: stored.collect() }, self.changes)
    }

    /// Whether the file differs in what may be lost.
    pub fn is_stale(&self) -> bool {
        self.stale
    }

    /// Whether the session has a lease.
    pub fn has(&self, session: SessionId) -> bool {
        self.leases.contains_key(&session)
    }

    /// The key that is not staged.
    pub fn key(&self, session: SessionId) -> Option<PublicKey> {
        self.leases.get(&session).map(|lease| lease.key)
    }

    /// What the session holds.
    pub fn budget(&self, session: SessionId) -> Option<Arc<Budget>> {
        self.leases.get(&session).map(|lease| Arc::clone(&lease.budget))
    }

    /// Whether a session that was there when the file was written is not back.
    pub fn awaits(&self, now: Instant) -> bool {
        self.leases.values().any(|lease| lease.awaited.is_some_and(|until| now < until))
    }

    /// Whether somebody may register the session.
    pub fn claim(&self, session: SessionId, claim: &Claim) -> Result<Claimed, Refusal> {
        match self.leases.get(&session) {
            Some(lease)
                if lease.credential == claim.credential && claim.proof == Proof::Good && lease.has(claim.key) =>
            {
                Ok(Claimed::Back)
            }
            Some(_) => Err(Code::SessionOwned.into()),
            None if claim.proof == Proof::Bad => Err(Refusal::invalid(
                "lease_signature is not that of reconnect_key over this connection and session_id",
            )),
            None => Ok(Claimed::Free),
        }
    }

    /// The owner of a lease has its session back; with the key that was staged, the one before is none any more. The change
    /// that has to be stored.
    pub fn resume(&mut self, session: SessionId, key: PublicKey) -> u64 {
        let Some(lease) = self.leases.get_mut(&session) else { return 0 };
        (lease.until, lease.awaited) = (None, None);
        let staged = lease.staged.filter(|staged| staged.new_key == key);
        if staged.is_some() || lease.ended_on_file {
            self.changes += 1;
            lease.change = self.changes;
        }
        if let Some(staged) = staged {
            lease.retire(staged);
        }
        lease.change
    }

    /// A new lease, in use. The change that has to be stored.
    pub fn grant(&mut self, session: SessionId, claim: &Claim, charge: Charge) -> u64 {
        self.changes += 1;
        let lease = Lease {
            credential: claim.credential,
            key: claim.key,
            staged: None,
            rotated: None,
            until: None,
            awaited: None,
            ended_on_file: false,
            change: self.changes,
            budget: Arc::default(),
            _charge: charge,
        };
        self.leases.insert(session, lease);
        self.changes
    }

    /// The daemon ends. Sessions that end from here on stay in use: the next daemon awaits them.
    pub fn close(&mut self) {
        self.is_closing = true;
    }

    /// The session has ended; its lease lasts until then.
    pub fn ended(&mut self, session: SessionId, until: Instant) {
        if let Some(lease) = self.leases.get_mut(&session).filter(|_| !self.is_closing) {
            lease.until = Some(until);
            self.stale = true;
        }
    }

    /// A new key beside the old one, which the worker has seen sign. The change that has to be stored.
    pub fn stage(&mut self, session: SessionId, old: PublicKey, staged: Staged) -> Result<u64, Refusal> {
        let lease = self.leases.get_mut(&session).ok_or(Code::NotRegistered)?;
        match lease.staged {
            Some(pending) if pending == staged => return Ok(lease.change),
            Some(Staged { rotation_id, .. }) => {
                let text = format!("rotation {rotation_id} of that key is pending");
                let refusal = Refusal { rotation_id: Some(rotation_id), ..Code::RotationPending.into() };
                return Err(refusal.message(text).hint("confirm it, or register with its key"));
            }
            None => {}
        }
        if lease.rotated == Some(staged.rotation_id) && lease.key == staged.new_key {
            return Ok(lease.change);
        }
        if lease.key != old {
            return Err(Refusal::from(Code::Denied).message("the reconnect key has changed meanwhile"));
        }
        if lease.key == staged.new_key {
            return Err(Refusal::invalid("new_key is the reconnect key already"));
        }
        self.changes += 1;
        (lease.staged, lease.change) = (Some(staged), self.changes);
        Ok(self.changes)
    }

    /// Takes back a rotation that could not be stored, unless more has happened to the lease since.
    pub fn unstage(&mut self, session: SessionId, change: u64) {
        if let Some(lease) = self.leases.get_mut(&session).filter(|lease| lease.change == change) {
            lease.staged = None;
        }
    }

    /// From now on only the new key counts. The change that has to be stored.
    pub fn confirm(&mut self, session: SessionId, rotation_id: RotationId) -> Result<u64, Code> {
        let lease = self.leases.get_mut(&session).ok_or(Code::NotRegistered)?;
        match lease.staged {
            Some(staged) if staged.rotation_id == rotation_id => {
                self.changes += 1;
                lease.change = self.changes;
                lease.retire(staged);
                Ok(self.changes)
            }
            None if lease.rotated == Some(rotation_id) => Ok(lease.change),
            _ => Err(Code::RotationNotFound),
        }
    }

    /// Gives up those whose time is over, and says which.
    pub fn expire(&mut self, now: Instant) -> Vec<SessionId> {
        self.remove(|lease| lease.until.is_some_and(|until| until <= now))
    }

    /// A credential has ended, and its leases with it.
    pub fn forget(&mut self, credential: CredentialId) -> Vec<SessionId> {
        self.remove(|lease| lease.credential == credential)
    }

    /// Gives up the credential's own lease whose session ended first; none, when all are in use.
    pub fn make_room(&mut self, credential: CredentialId) -> Option<SessionId> {
        let own = self.leases.iter().filter(|(_, lease)| lease.credential == credential);
        let ended = own.filter_map(|(&session, lease)| Some((lease.until?, session)));
        let (_, session) = ended.min()?;
        self.leases.remove(&session)?;
        self.stale = true;
        Some(session)
    }

    fn remove(&mut self, is_over: impl Fn(&Lease) -> bool) -> Vec<SessionId> {
        let over: Vec<_> =
            self.leases.iter().filter(|(_, lease)| is_over(lease)).map(|(&session, _)| session).collect();
        for session in &over {
            self.leases.remove(session);
            self.stale = true;
        }
        over
    }
}

impl Lease {
    fn retire(&mut self, by: Staged) {
        self.key = by.new_key;
        self.rotated = Some(by.rotation_id);
        self.staged = None;
    }
}

#[cfg(test)]
mod tests;
