//! `audit-head.json`: the last line that a daemon wrote before it ended, signed by its key. While one runs there is none,
//! so that after a crash nothing old is taken for the head.

use serde::{Deserialize, Serialize};

use crate::auth::identity::Identity;
use crate::ids::{Digest, PublicKey, Signature};
use crate::store::{Dir, Problem, StoreError, document};
use crate::wire::transcript::Statement;

use super::chain::Head;

/// The name of the file.
pub const FILE: &str = "audit-head.json";
const VERSION: u32 = 1;
const MAX_BYTES: u64 = 4_096;

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Recorded {
    seq: u64,
    hash: Digest,
    /// The daemon's key, over both.
    signature: Signature,
}

fn statement(head: Head) -> Statement {
    Statement::AuditHead { seq: head.seq, hash: head.hash }
}

/// Records it.
pub fn write(dir: &Dir, head: Head, by: &Identity) -> Result<(), StoreError> {
    let recorded = Recorded { seq: head.seq, hash: head.hash, signature: by.sign(&statement(head)) };
    document::write(dir, FILE, MAX_BYTES, VERSION, &recorded)
}

/// What was recorded; none where nothing is. Refused unless the daemon's key has signed it.
pub fn read(dir: &Dir, daemon: PublicKey) -> Result<Option<Head>, StoreError> {
    let Recorded { seq, hash, signature } = match document::read(dir, FILE, MAX_BYTES, VERSION) {
        Ok(recorded) => recorded,
        Err(error) if error.is_missing() => return Ok(None),
        Err(error) => return Err(error),
    };
    let head = Head { seq, hash };
    if !statement(head).is_signed_by(daemon, &signature) {
        let reason = "the key of this daemon has not signed it".to_owned();
        return Err(StoreError::new(dir.path().join(FILE), Problem::Corrupt(reason)));
    }
    Ok(Some(head))
}

/// Takes it away, if it is there.
pub fn remove(dir: &Dir) -> Result<(), StoreError> {
    match dir.remove(FILE) {
        Err(error) if !error.is_missing() => Err(error),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::pem::Seed;

    #[test]
    fn a_head_is_read_back_and_is_the_daemons_own() {
        let scratch = tempfile::tempdir().unwrap();
        let dir = Dir::open(scratch.path()).unwrap();
        let daemon = Identity::from_seed(&Seed::random()).unwrap();
        assert_eq!(read(&dir, daemon.public()), Ok(None));
        let head = Head { seq: 7, hash: Digest([3; 32]) };
        write(&dir, head, &daemon).unwrap();
        assert_eq!(read(&dir, daemon.public()), Ok(Some(head)));
        let other = Identity::from_seed(&Seed::random()).unwrap();
        assert!(matches!(read(&dir, other.public()).unwrap_err().problem(), Problem::Corrupt(_)));
        remove(&dir).unwrap();
        remove(&dir).unwrap();
        assert_eq!(read(&dir, daemon.public()), Ok(None));
    }
}
