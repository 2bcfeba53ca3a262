//! All credentials, in memory and in `credentials.json`. A change is on disk before anybody hears of it.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;

use parking_lot::{Mutex, RwLock};

use crate::ids::{CredentialId, Fingerprint, PublicKey};
use crate::limits::{CREDENTIALS_MAX, LABEL_MAX_BYTES, Limits};
use crate::store::{Dir, document};
use crate::store::{Problem, StoreError};
use crate::wire::codes::{Code, Refusal};
use crate::wire::lines::Role;
use crate::wire::methods::Method;
use crate::wire::selector::Selector;
use crate::wire::text::is_plain;

use super::credential::Credential;
use super::gate::{Authority, End, Permit};
use super::reach::{is_open, keeps_operators, lies_within};
use super::record::{ENROL_MAX_BYTES, FILE, MAX_BYTES, Record, Records, ScopeList, VERSION};

/// What an operator asks to enrol.
#[derive(Debug)]
pub struct Enrolment {
    /// The new key.
    pub public_key: PublicKey,
    /// For people.
    pub label: String,
    /// What it may be.
    pub role: Role,
    /// What it may call.
    pub scopes: ScopeList,
    /// Which sessions exist for it.
    pub sessions: Option<Vec<Selector>>,
    /// Which commands it may send.
    pub commands: Option<Vec<String>>,
    /// When it ends.
    pub expires: Option<jiff::Timestamp>,
    /// Whose place as a default it takes.
    pub replaces: Option<CredentialId>,
}

#[derive(Default)]
struct Live {
    by_id: HashMap<CredentialId, Arc<Credential>>,
    by_key: HashMap<Fingerprint, Arc<Credential>>,
}

/// The set. Lock order: `records`, then `live`; neither is held while a gate closes.
pub struct Credentials {
    folder: Dir,
    limits: Limits,
    records: Mutex<Records>,
    live: RwLock<Live>,
    /// Those that have ended since somebody asked.
    ended: Mutex<Vec<CredentialId>>,
}

impl Credentials {
    /// Reads the file; whatever is wrong with it ends the start.
    pub fn load(folder: Dir, limits: &Limits) -> Result<Self, StoreError> {
        let records: Records = document::read(&folder, FILE, MAX_BYTES, VERSION)?;
        let mut live = Live::default();
        for record in &records.credentials {
            let credential = Credential::new(record, limits).map_err(|refusal| {
                StoreError::new(folder.path().join(FILE), Problem::Corrupt(refusal.object().message))
            })?;
            live.insert(credential);
        }
        Ok(Self {
            folder,
            limits: limits.clone(),
            records: Mutex::new(records),
            live: RwLock::new(live),
            ended: Mutex::default(),
        })
    }

    /// The credential of a key. Of several records the one that can still be used, else the latest.
    pub fn find(&self, key: Fingerprint) -> Option<Arc<Credential>> {
        self.live.read().by_key.get(&key).cloned()
    }

    /// The credential of a record.
    pub fn get(&self, id: CredentialId) -> Option<Arc<Credential>> {
        self.live.read().by_id.get(&id).cloned()
    }

    /// Every credential that can connect or ever could, in no order.
    pub fn all(&self) -> Vec<Arc<Credential>> {
        self.live.read().by_id.values().cloned().collect()
    }

    /// Every credential that has not ended, in no order.
    pub fn usable(&self) -> Vec<Arc<Credential>> {
        self.all().into_iter().filter(|credential| credential.gate.end().is_none()).collect()
    }

    /// Those that have ended since the last call, for whoever holds something of theirs.
    pub fn take_ended(&self) -> Vec<CredentialId> {
        std::mem::take(&mut self.ended.lock())
    }

    /// Records with their live side, in order of enrolment.
    pub fn list(&self) -> Vec<(Record, Option<Arc<Credential>>)> {
        let records = self.records.lock();
        let live = self.live.read();
        records.credentials.iter().map(|r| (r.clone(), live.by_id.get(&r.credential).cloned())).collect()
    }

    /// Makes a record that reaches no further than whoever asks; with `replaces` the old default's record is revoked in
    /// the same write. The operator's permit is held until the record counts, and given up before a gate is closed.
    pub fn enroll(&self, permit: Permit<'_>, by: &Authority, asked: Enrolment) -> Result<CredentialId, Refusal> {
        let now = jiff::Timestamp::now();
        if asked.label.is_empty() || asked.label.len() > LABEL_MAX_BYTES || !is_plain(&asked.label) {
            return Err(Refusal::invalid(format!(
                "label takes 1 to {LABEL_MAX_BYTES} bytes without control characters"
            )));
        }
        if asked.expires.is_some_and(|expires| expires <= now) {
            return Err(Refusal::invalid("expires lies in the past"));
        }
        if asked.public_key.has_small_order() {
            return Err(Refusal::invalid("public_key is one for which anybody can make signatures"));
        }
        let mut records = self.records.lock();
        let mut changed = records.clone();
        let usable = |record: &Record| record.revoked.is_none() && record.expired.is_none();
        if changed.credentials.iter().any(|record| record.public_key == asked.public_key && usable(record)) {
            return Err(Code::AlreadyEnrolled.into());
        }
        if changed.credentials.len() >= CREDENTIALS_MAX {
            // Of one that has ended only the word `revoked` is lost: without its record a key is not let in either.
            let ended = changed.credentials.iter().position(|record| !usable(record)).ok_or_else(no_room)?;
            changed.credentials.remove(ended);
        }
        if let Some(replaced) = asked.replaces {
            if !by.scopes().has(Method::CredentialRevoke) {
                return Err(Refusal::from(Code::Denied).message("replaces revokes: it needs credential.revoke as well"));
            }
            let old = changed.credentials.iter_mut().find(|record| record.credential == replaced && record.default);
            let Some(old) = old.filter(|old| old.role == asked.role) else {
                return Err(Refusal::from(Code::CredentialNotFound)
                    .message("replaces takes the id of the default credential of the same role"));
            };
            old.default = false;
            old.revoked = old.revoked.or(Some(now));
        }
        let record = Record {
            credential: CredentialId::random(),
            label: asked.label,
            role: asked.role,
            default: asked.replaces.is_some(),
            public_key: asked.public_key,
            scopes: asked.scopes,
            sessions: asked.sessions,
            commands: asked.commands,
            issued: now,
            expires: asked.expires,
            revoked: None,
            expired: None,
        };
        let new = Credential::new(&record, &self.limits)?;
        lies_within(by, &new, record.expires)?;
        changed.credentials.push(record);
        keeps_operators(&records, &changed)?;
        self.store(&changed, ENROL_MAX_BYTES).map_err(|error| match error.problem() {
            Problem::TooLarge { .. } => no_room(),
            _ => not_stored(&error),
        })?;
        *records = changed;
        let id = new.id;
        self.live.write().insert(new);
        drop(records);
        drop(permit);
        if let Some(old) = asked.replaces.and_then(|id| self.live.read().by_id.get(&id).cloned()) {
            self.end(&old, End::Revoked);
        }
        Ok(id)
    }

    /// Ends a credential: on disk, then at its gate, then its connections. When this returns nothing of it takes effect
    /// and no byte is written to it. The operator's permit is held until the disk has it, and given up before the gate is
    /// closed; the caller must hold no other.
    pub fn revoke(&self, permit: Permit<'_>, id: CredentialId) -> Result<(String, usize), Refusal> {
        let stored = self.change(id, |records, position| {
            let before = records.clone();
            let target = &mut records.credentials[position];
            target.revoked = target.revoked.or(Some(jiff::Timestamp::now()));
            keeps_operators(&before, records)
        });
        drop(permit);
        // When the disk refuses, the credential is ended for this run all the same, and the refusal says so.
        match stored {
            Err(refusal) if ![Code::Internal, Code::Busy].contains(&refusal.code) => return Err(refusal),
            _ => {}
        }
        let Some(credential) = self.live.read().by_id.get(&id).cloned() else {
            return Err(Code::CredentialNotFound.into());
        };
        let cut = self.end(&credential, End::Revoked);
        stored.map_err(|refusal| {
            let text = refusal.message.clone().unwrap_or_default();
            refusal.message(format!("revoked until the daemon ends, but not stored: {text}"))
        })?;
        Ok((credential.label.clone(), cut))
    }

    /// Moves the end of a credential that has not ended and reaches no further than whoever asks. The operator's permit is
    /// held until it is done, and given up before a gate is closed.
    pub fn renew(
        &self,
        permit: Permit<'_>,
        by: &Authority,
        id: CredentialId,
        expires: Option<jiff::Timestamp>,
    ) -> Result<(), Refusal> {
        if expires.is_some_and(|expires| expires <= jiff::Timestamp::now()) {
            return Err(Refusal::invalid("expires lies in the past"));
        }
        let credential = self.live.read().by_id.get(&id).cloned().ok_or(Code::CredentialNotFound)?;
        lies_within(by, &credential, expires)?;
        let mut renewed = Ok(());
        let change = |records: &mut Records, position: usize| {
            let before = records.clone();
            let target = &mut records.credentials[position];
            if target.revoked.is_some() {
                return Err(Code::Revoked.into());
            }
            if !is_open(target) {
                return Err(Code::Expired.into());
            }
            let ends_sooner = |new| target.expires.is_none_or(|old| new < old);
            if expires.is_some_and(ends_sooner) && !by.scopes().has(Method::CredentialRevoke) {
                let message = "to end a credential sooner needs credential.revoke as well";
                return Err(Refusal::from(Code::Denied).message(message));
            }
            target.expires = expires;
            keeps_operators(&before, records)
        };
        self.change_and(id, change, || renewed = credential.gate.renew(expires))?;
        drop(permit);
        renewed.map_err(|end| {
            // It has run out meanwhile, and the record says otherwise.
            if end == End::Expired {
                self.expire(&credential);
            }
            end.code().into()
        })
    }

    fn end(&self, credential: &Credential, end: End) -> usize {
        let cut = credential.end(end);
        self.ended.lock().push(credential.id);
        cut
    }

    /// Cuts and stores what has expired; `true` while something connected can still expire.
    pub fn sweep(&self) -> bool {
        let mut more = false;
        for credential in self.all() {
            if !credential.gate.can_expire() {
                continue;
            }
            match credential.gate.end() {
                None => more |= credential.connected() > 0,
                Some(End::Expired) => self.expire(&credential),
                Some(End::Revoked) => {}
            }
        }
        more
    }

    /// Cuts one that was seen expired and stores that it was.
    pub fn expire(&self, credential: &Credential) {
        if credential.connected() > 0 {
            credential.end(End::Expired);
        }
        if credential.expiry_is_stored.load(SeqCst) {
            return;
        }
        let mut ended = self.ended.lock();
        if !ended.contains(&credential.id) {
            ended.push(credential.id);
        }
        drop(ended);
        let mut fresh = true;
        let stored = self.change(credential.id, |records, position| {
            let target = &mut records.credentials[position];
            fresh = target.expired.is_none();
            target.expired = target.expired.or(Some(jiff::Timestamp::now()));
            Ok(())
        });
        match stored {
            Ok(()) => {
                credential.expiry_is_stored.store(true, SeqCst);
                if fresh {
                    log::info!("credential {} has expired", credential.id);
                }
            }
            Err(refusal) => log::warn!("credential {} has expired: {}", credential.id, refusal.object().message),
        }
    }

    /// Changes one record on disk, then in memory; nothing in memory when the disk refuses. An unchanged file is not written.
    fn change(
        &self,
        id: CredentialId,
        change: impl FnOnce(&mut Records, usize) -> Result<(), Refusal>,
    ) -> Result<(), Refusal> {
        self.change_and(id, change, || ())
    }

    /// The same; `then` follows before another change of the records.
    fn change_and(
        &self,
        id: CredentialId,
        change: impl FnOnce(&mut Records, usize) -> Result<(), Refusal>,
        then: impl FnOnce(),
    ) -> Result<(), Refusal> {
        let mut records = self.records.lock();
        let position = records.credentials.iter().position(|record| record.credential == id);
        let position = position.ok_or(Code::CredentialNotFound)?;
        let mut changed = records.clone();
        change(&mut changed, position)?;
        if changed != *records {
            self.store(&changed, MAX_BYTES).map_err(|error| not_stored(&error))?;
            *records = changed;
        }
        then();
        Ok(())
    }

    fn store(&self, records: &Records, max_bytes: u64) -> Result<(), StoreError> {
        document::write(&self.folder, FILE, max_bytes, VERSION, records)
    }
}

impl Live {
    fn insert(&mut self, credential: Arc<Credential>) {
        let key = credential.public_key.fingerprint();
        let usable = credential.gate.end().is_none();
        let keep = self.by_key.get(&key).is_some_and(|known| known.gate.end().is_none() && !usable);
        if !keep {
            self.by_key.insert(key, Arc::clone(&credential));
        }
        self.by_id.insert(credential.id, credential);
    }
}

fn no_room() -> Refusal {
    Refusal::busy("credentials").hint("revoke credentials that nobody uses: ended ones make room")
}

fn not_stored(error: &StoreError) -> Refusal {
    log::error!("{error}");
    // A full disk is a limit like any other, and no bug of ours.
    let refusal = if error.is_full() { Refusal::busy("disk") } else { Code::Internal.into() };
    refusal.message(error.to_string())
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::ids::random;

    #[test]
    fn an_expiry_that_is_stored_costs_a_sweep_no_look_at_the_records() {
        let scratch = tempfile::tempdir().unwrap();
        let folder = Dir::create(&scratch.path().join("d")).unwrap();
        let past = jiff::Timestamp::from_second(1).unwrap();
        let mut records = Records::first([(Role::Caller, PublicKey(random()))], past);
        records.credentials[0].expires = Some(past);
        document::write(&folder, FILE, MAX_BYTES, VERSION, &records).unwrap();
        let credentials = Arc::new(Credentials::load(folder, &Limits::default()).unwrap());
        assert!(!credentials.sweep());
        assert!(credentials.list()[0].0.expired.is_some());
        let held = credentials.records.lock();
        let (done, swept) = crossbeam_channel::bounded(1);
        let sweeping = Arc::clone(&credentials);
        let thread = crate::threads::spawn("test", move || done.send(sweeping.sweep())).unwrap();
        assert_eq!(swept.recv_timeout(Duration::from_secs(10)), Ok(false));
        drop(held);
        thread.join().unwrap().unwrap();
    }

    #[test]
    fn a_file_that_is_full_takes_no_credential_and_has_room_for_every_revocation() {
        let scratch = tempfile::tempdir().unwrap();
        let folder = Dir::create(&scratch.path().join("d")).unwrap();
        let now = jiff::Timestamp::now();
        let mut records =
            Records::first([(Role::Operator, PublicKey(random())), (Role::Caller, PublicKey(random()))], now);
        let (operator, target) = (records.credentials[0].clone(), records.credentials[1].credential);
        // Between the ceiling for a new record and that of the file.
        let filler = Record { label: "x".repeat(5_300), ..records.credentials[1].clone() };
        records.credentials.extend((0..2_900).map(|_| Record {
            credential: CredentialId::random(),
            public_key: PublicKey(random()),
            default: false,
            ..filler.clone()
        }));
        document::write(&folder, FILE, MAX_BYTES, VERSION, &records).unwrap();
        let credentials = Credentials::load(folder.try_clone().unwrap(), &Limits::default()).unwrap();
        let asked = Enrolment {
            public_key: PublicKey(random()),
            label: "x".to_owned(),
            role: Role::Caller,
            scopes: ScopeList::Row,
            sessions: None,
            commands: None,
            expires: None,
            replaces: None,
        };
        let operator = credentials.find(operator.public_key.fingerprint()).unwrap();
        let authority = Authority::of_test(operator);
        let refused = credentials.enroll(authority.admit_delivery().unwrap(), &authority, asked).unwrap_err();
        assert_eq!((refused.code, refused.resource), (Code::Busy, Some("credentials")));
        credentials.revoke(authority.admit_delivery().unwrap(), target).unwrap();
        let stored: Records = document::read(&folder, FILE, MAX_BYTES, VERSION).unwrap();
        assert!(stored.credentials.iter().find(|record| record.credential == target).unwrap().revoked.is_some());
    }
}
