//! Leases: what lets a producer take its session back, from any later connection or start of the daemon.
//!
//! Owns the table and its file. The registry's thread decides in the table and never waits for a disk: whoever has to
//! tell a producer something durable comes here by itself afterwards ([`Leases::store`]). One writes; those who came
//! meanwhile find their change in what it wrote and write nothing. Lock order: `writer`, then `table`; the table's lock is
//! held for as long as it takes to copy it, never over a write.

mod file;
mod table;

use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use crate::account::{Charge, Pool};
use crate::auth::credential::Credential;
use crate::auth::credentials::Credentials;
use crate::ids::{CredentialId, PublicKey, RotationId, SessionId};
use crate::limits::Limits;
use crate::route::budget::Budget;
use crate::store::{Dir, Problem, StoreError, document};
use crate::wire::codes::{Code, Refusal};

use file::{Document, FILE, MAX_BYTES, VERSION};
use table::Table;

pub use file::Staged;
pub use table::{Claim, Claimed, Proof};

use super::busy;

struct Writer {
    folder: Dir,
    /// The last change that is on the disk.
    stored: u64,
}

/// All leases of a daemon.
pub struct Leases {
    writer: Mutex<Writer>,
    table: Mutex<Table>,
    total: Arc<Pool>,
    period: Duration,
}

impl Leases {
    /// Reads the file. What cannot be read as leases is set aside by name and begun anew; a newer program's file, and a disk
    /// that does not answer, end the start.
    pub fn load(folder: Dir, credentials: &Credentials, limits: &Limits) -> Result<Self, StoreError> {
        let period = Duration::from_millis(limits.lease_ms);
        let recover = Duration::from_millis(limits.recover_ms);
        let total = Pool::new("leases", limits.leases);
        let usable = credentials.usable();
        let charge = |id: CredentialId| {
            let credential = usable.iter().find(|credential| credential.id == id)?;
            Charge::take(&total, &credential.shares.leases, 1).ok()
        };
        let read = document::read::<Document>(&folder, FILE, MAX_BYTES, VERSION).and_then(|document| {
            Table::load(document, Instant::now(), jiff::Timestamp::now(), period, recover, charge)
                .map_err(|reason| StoreError::new(folder.path().join(FILE), Problem::Corrupt(reason.to_owned())))
        });
        let table = match read {
            Ok(table) => table,
            Err(error) if error.is_missing() => Table::default(),
            Err(error) => {
                let is_of_no_use = matches!(
                    error.problem(),
                    Problem::Unsafe(_) | Problem::Empty | Problem::TooLarge { .. } | Problem::Corrupt(_)
                );
                if !is_of_no_use {
                    return Err(error);
                }
                let aside = folder.set_aside(FILE)?;
                let remedy = format!("set aside as {aside}; sessions of before cannot be taken back");
                log::error!("{}", error.with_remedy(remedy));
                Table::default()
            }
        };
        Ok(Self { writer: Mutex::new(Writer { folder, stored: 0 }), table: Mutex::new(table), total, period })
    }

    /// The bound on them.
    pub fn total(&self) -> &Arc<Pool> {
        &self.total
    }

    /// How long one lasts after its session.
    pub fn period(&self) -> Duration {
        self.period
    }

    /// Whether a session that was there when the file was last written has not come back, this early after the start.
    pub fn awaits(&self) -> bool {
        self.table.lock().awaits(Instant::now())
    }

    /// The key of a session that is not staged.
    pub fn key(&self, session: SessionId) -> Option<PublicKey> {
        self.table.lock().key(session)
    }

    /// What the session of a lease holds, across its connections.
    pub(super) fn budget(&self, session: SessionId) -> Option<Arc<Budget>> {
        self.table.lock().budget(session)
    }

    /// Whether a producer may register a session: one without a claim, only what nobody has.
    pub(super) fn claim(&self, session: SessionId, claim: Option<&Claim>) -> Result<Claimed, Refusal> {
        let table = self.table.lock();
        match claim {
            Some(claim) => table.claim(session, claim),
            None if table.has(session) => Err(Code::SessionOwned.into()),
            None => Ok(Claimed::Free),
        }
    }

    /// What was claimed is registered. The change that has to be stored, and the session whose lease made room.
    pub(super) fn take(
        &self,
        session: SessionId,
        claim: &Claim,
        claimed: Claimed,
        credential: &Credential,
    ) -> Result<(u64, Option<SessionId>), Refusal> {
        let mut table = self.table.lock();
        if claimed == Claimed::Back {
            return Ok((table.resume(session, claim.key), None));
        }
        let share = &credential.shares.leases;
        let mut given_up = None;
        let charge = Charge::take(&self.total, share, 1).or_else(|full| {
            given_up = table.make_room(credential.id);
            given_up.map_or(Err(full), |_| Charge::take(&self.total, share, 1))
        });
        Ok((table.grant(session, claim, charge.map_err(busy)?), given_up))
    }

    /// A session has ended.
    pub(super) fn ended(&self, session: SessionId, now: Instant) {
        self.table.lock().ended(session, now + self.period);
    }

    /// Gives up those whose time is over, and says which.
    pub(super) fn expire(&self, now: Instant) -> Vec<SessionId> {
        self.table.lock().expire(now)
    }

    /// A credential has ended, and its leases with it: nothing of it is registered any more, since its gate is closed. The
    /// file may say otherwise: at the next start the credential's end counts. Says which.
    pub fn forget(&self, credential: CredentialId) -> Vec<SessionId> {
        self.table.lock().forget(credential)
    }

    /// See [`Table::stage`].
    pub(super) fn stage(&self, session: SessionId, old: PublicKey, staged: Staged) -> Result<u64, Refusal> {
        self.table.lock().stage(session, old, staged)
    }

    /// See [`Table::confirm`].
    pub(super) fn confirm(&self, session: SessionId, rotation: RotationId) -> Result<u64, Code> {
        self.table.lock().confirm(session, rotation)
    }

    /// Returns once a change is on the disk.
    pub fn store(&self, change: u64) -> Result<(), StoreError> {
        self.store_or(change, |_| ())
    }

    /// The same for a rotation, which is taken back where it cannot be stored.
    pub fn store_staged(&self, session: SessionId, change: u64) -> Result<(), StoreError> {
        self.store_or(change, |table| table.unstage(session, change))
    }

    /// The daemon begins to end: who leaves now is awaited by the next one.
    pub fn close(&self) {
        self.table.lock().close();
    }

    /// At the daemon's end: what may be lost is written all the same, if it can be.
    pub fn store_rest(&self) {
        let mut writer = self.writer.lock();
        if self.table.lock().is_stale() {
            if let Err(error) = self.write(&mut writer) {
                log::warn!("{error}");
            }
        }
    }

    /// `undo` comes before anybody else can write what failed.
    fn store_or(&self, change: u64, undo: impl FnOnce(&mut Table)) -> Result<(), StoreError> {
        let mut writer = self.writer.lock();
        if writer.stored >= change {
            return Ok(());
        }
        let written = self.write(&mut writer);
        if written.is_err() {
            undo(&mut self.table.lock());
        }
        written
    }

    fn write(&self, writer: &mut Writer) -> Result<(), StoreError> {
        let (document, change) = self.table.lock().document(Instant::now(), jiff::Timestamp::now(), self.period);
        document::write(&writer.folder, FILE, MAX_BYTES, VERSION, &document)?;
        writer.stored = change;
        Ok(())
    }
}
