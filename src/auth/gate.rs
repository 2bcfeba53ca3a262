//! The gate of a credential: every effect and every byte passes it, and revocation closes it.
//!
//! A [`Permit`] is a shared guard. Closing first makes every later look fail, then waits until the last permit is gone.
//! So once [`Gate::close`] has returned, nothing that was admitted is still on its way. A permit is held until its effect
//! is published or the kernel has the frame, and never across a wait; a closer waits for permits and for nothing else, and
//! must hold none itself.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU8, Ordering::SeqCst};

use parking_lot::{RwLock, RwLockReadGuard};

use crate::wire::codes::Code;
use crate::wire::lines::Role;
use crate::wire::methods::{Method, Scopes};

use super::credential::Credential;

/// Why a gate is closed for ever.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum End {
    /// By an operator.
    Revoked = 1,
    /// By the clock.
    Expired = 2,
}

impl End {
    /// What the peer is told.
    pub fn code(self) -> Code {
        match self {
            Self::Revoked => Code::Revoked,
            Self::Expired => Code::Expired,
        }
    }
}

/// No end in sight.
const NEVER: i64 = i64::MAX;

/// Open until it is closed for ever.
#[derive(Debug)]
pub struct Gate {
    end: AtomicU8,
    expires_ms: AtomicI64,
    passing: RwLock<()>,
}

impl Gate {
    /// Open, or closed from the start.
    pub fn new(end: Option<End>, expires: Option<jiff::Timestamp>) -> Self {
        Self {
            end: AtomicU8::new(end.map_or(0, |end| end as u8)),
            expires_ms: AtomicI64::new(expires.map_or(NEVER, jiff::Timestamp::as_millisecond)),
            passing: RwLock::new(()),
        }
    }

    /// Why it is closed, if it is. Reads the wall clock where there is an expiry.
    pub fn end(&self) -> Option<End> {
        match self.end.load(SeqCst) {
            0 => {}
            1 => return Some(End::Revoked),
            _ => return Some(End::Expired),
        }
        let expires_ms = self.expires_ms.load(SeqCst);
        if expires_ms != NEVER && jiff::Timestamp::now().as_millisecond() >= expires_ms {
            // First seen: from here on it stays expired, whatever the clock says later.
            let _already = self.end.compare_exchange(0, End::Expired as u8, SeqCst, SeqCst);
            return self.end();
        }
        None
    }

    /// Whether time can close it.
    pub fn can_expire(&self) -> bool {
        self.expires_ms.load(SeqCst) != NEVER
    }

    /// When time closes it.
    pub fn expires(&self) -> Option<jiff::Timestamp> {
        jiff::Timestamp::from_millisecond(self.expires_ms.load(SeqCst)).ok()
    }

    /// Moves the expiry of a gate that is open; one that has closed meanwhile stays closed.
    pub fn renew(&self, expires: Option<jiff::Timestamp>) -> Result<(), End> {
        self.expires_ms.store(expires.map_or(NEVER, jiff::Timestamp::as_millisecond), SeqCst);
        self.end().map_or(Ok(()), Err)
    }

    /// Closes it and waits for everything that was admitted. The caller holds no permit of it.
    pub fn close(&self, end: End) {
        match end {
            End::Revoked => self.end.store(end as u8, SeqCst),
            // Who is revoked stays so.
            End::Expired => {
                let _ended_already = self.end.compare_exchange(0, end as u8, SeqCst, SeqCst);
            }
        }
        drop(self.passing.write());
    }

    fn pass(&self) -> Result<RwLockReadGuard<'_, ()>, End> {
        // Without this look, a stream of newcomers could keep a closer waiting.
        if let Some(end) = self.end() {
            return Err(end);
        }
        let guard = self.passing.read_recursive();
        match self.end() {
            None => Ok(guard),
            Some(end) => Err(end),
        }
    }
}

/// What one connection may do: a verified credential, narrowed by its hello.
#[derive(Debug)]
pub struct Authority {
    credential: Arc<Credential>,
    scopes: Scopes,
}

impl Authority {
    /// Only a verified hello makes one.
    pub(super) fn new(credential: Arc<Credential>, scopes: Scopes) -> Self {
        Self { credential, scopes }
    }

    /// Without a hello.
    #[cfg(test)]
    pub fn of_test(credential: Arc<Credential>) -> Self {
        let scopes = Scopes::row(credential.role);
        Self::new(credential, scopes)
    }

    /// The record behind it.
    pub fn credential(&self) -> &Arc<Credential> {
        &self.credential
    }

    /// What the peer is.
    pub fn role(&self) -> Role {
        self.credential.role
    }

    /// What it may call.
    pub fn scopes(&self) -> Scopes {
        self.scopes
    }

    /// A look at the gate for something the peer wants done.
    pub fn admit(&self, method: Method) -> Result<Permit<'_>, Code> {
        let permit = self.admit_delivery()?;
        if self.scopes.has(method) { Ok(permit) } else { Err(Code::Denied) }
    }

    /// A look at the gate for something the peer is to get.
    pub fn admit_delivery(&self) -> Result<Permit<'_>, Code> {
        match self.credential.gate.pass() {
            Ok(passing) => Ok(Permit { _passing: passing }),
            Err(end) => Err(end.code()),
        }
    }
}

/// Proof of a look at the gate, for as long as it is held.
#[must_use = "what is admitted must happen while the permit is held"]
pub struct Permit<'a> {
    _passing: RwLockReadGuard<'a, ()>,
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicBool;

    #[test]
    fn closing_waits_for_what_was_admitted_and_refuses_what_comes_later() {
        let gate = Gate::new(None, None);
        let closed = AtomicBool::new(false);
        let first = gate.pass().unwrap();
        std::thread::scope(|scope| {
            #[expect(clippy::disallowed_methods, reason = "a scoped thread of a test")]
            std::thread::Builder::new()
                .spawn_scoped(scope, || {
                    gate.close(End::Revoked);
                    closed.store(true, SeqCst);
                })
                .unwrap();
            while gate.end().is_none() {
                std::thread::yield_now();
            }
            assert!(gate.pass().is_err(), "a newcomer passed a closing gate");
            assert!(!closed.load(SeqCst), "closing returned while a permit was held");
            drop(first);
        });
        assert!(closed.load(SeqCst));
        assert_eq!(gate.end(), Some(End::Revoked));
    }

    #[test]
    fn one_thread_may_hold_two_permits_while_somebody_closes() {
        let gate = Gate::new(None, None);
        let first = gate.pass().unwrap();
        let second = gate.pass().unwrap();
        drop((first, second));
        gate.close(End::Revoked);
        assert!(gate.pass().is_err());
    }

    #[test]
    fn an_expiry_once_seen_stays_even_when_the_clock_goes_back() {
        let past = jiff::Timestamp::from_second(1).unwrap();
        let gate = Gate::new(None, Some(past));
        assert_eq!(gate.end(), Some(End::Expired));
        assert_eq!(gate.renew(None), Err(End::Expired));
        assert_eq!(gate.end(), Some(End::Expired));
    }

    #[test]
    fn an_expiry_that_comes_after_a_revocation_changes_nothing() {
        let gate = Gate::new(None, None);
        gate.close(End::Revoked);
        gate.close(End::Expired);
        assert_eq!(gate.end(), Some(End::Revoked));
    }
}
