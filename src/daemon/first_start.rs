//! The first start's keys, and the daemon's own key at every start.

use crate::auth::identity::Identity;
use crate::auth::record::{FILE, MAX_BYTES, Records, VERSION};
use crate::ids::PublicKey;
use crate::store::first_start::{self, FirstStart};
use crate::store::pem::{self, Seed};
use crate::store::{Dir, Kind, Lock, Problem, StoreError, document, paths};
use crate::wire::lines::Role;

const DAEMON_KEY: &str = "daemon.pem";
const DAEMON_PUBLIC: &str = "daemon.pub";
/// 43 characters and LF.
const PUBLIC: Kind = Kind { secret: false, max_bytes: 64 };

/// Makes four independent keys and their records, unless they are there.
pub(super) fn make_keys(root: &Dir, lock: &Lock) -> Result<(), StoreError> {
    let found = first_start::publish(root, lock, |aside| {
        let keys = aside.create_sub(paths::KEYS)?;
        let daemon = make_key(&keys, DAEMON_KEY)?;
        keys.write(DAEMON_PUBLIC, format!("{daemon}\n").as_bytes())?;
        let mut publics = Vec::new();
        for role in Role::ALL {
            publics.push((role, make_key(&keys, &format!("{}.pem", role.word()))?));
        }
        document::write(aside, FILE, MAX_BYTES, VERSION, &Records::first(publics, jiff::Timestamp::now()))
    })?;
    if found != FirstStart::Present {
        log::info!("first start: made the keys of daemon, producer, caller and operator");
    }
    Ok(())
}

fn make_key(keys: &Dir, name: &str) -> Result<PublicKey, StoreError> {
    let seed = Seed::random();
    pem::write(keys, name, &seed)?;
    identity(keys, name, &seed).map(|identity| identity.public())
}

/// The daemon's key, which must be the one that clients are told to trust.
pub(super) fn load_daemon_key(root: &Dir) -> Result<Identity, StoreError> {
    let keys = root.sub(paths::KEYS)?;
    let identity = identity(&keys, DAEMON_KEY, &pem::read(&keys, DAEMON_KEY)?)?;
    let public = keys.read(DAEMON_PUBLIC, &PUBLIC)?;
    if public != format!("{}\n", identity.public()).as_bytes() {
        let problem = Problem::Corrupt("it is not the public half of daemon.pem".to_owned());
        return Err(StoreError::new(keys.path().join(DAEMON_PUBLIC), problem)
            .with_remedy("restore both files from one copy: clients trust this key"));
    }
    Ok(identity)
}

fn identity(keys: &Dir, name: &str, seed: &Seed) -> Result<Identity, StoreError> {
    Identity::from_seed(seed)
        .map_err(|reason| StoreError::new(keys.path().join(name), Problem::Corrupt(reason.to_owned())))
}
