//! A bundle: a folder that holds all that one credential needs, and nothing else.
//!
//! Owns: the names in it and the shape of `bundle.json`. Invariant: a bundle is read through `store`, so a key that
//! others can read, a link or a file of somebody else is refused by name.

use serde::{Deserialize, Serialize};

use crate::ids::CredentialId;
use crate::store::{Dir, Kind, Problem, StoreError};
use crate::wire::lines::Role;
use crate::wire::object;

/// What is in the folder beside the keys.
pub const BUNDLE: &str = "bundle.json";
/// The credential's secret key.
pub const KEY: &str = "key.pem";
/// The daemon's public key.
pub const DAEMON_KEY: &str = "daemon.pub";
/// The version of the shape.
pub const VERSION: u32 = 1;

/// A path at its longest, escaped, and room.
const KIND: Kind = Kind { secret: false, max_bytes: 32 * 1024 };

/// `bundle.json`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Bundle {
    /// Of this shape.
    pub version: u32,
    /// The record.
    pub credential: CredentialId,
    /// What its key may be.
    pub role: Role,
    /// For people.
    pub label: String,
    /// Where the daemon listens.
    pub socket_folder: String,
}

impl Bundle {
    /// Reads the folder's `bundle.json`.
    pub fn read(folder: &Dir) -> Result<Self, StoreError> {
        let bytes = folder.read(BUNDLE, &KIND)?;
        let corrupt = |reason: &str| {
            StoreError::new(folder.path().join(BUNDLE), Problem::Corrupt(reason.to_owned()))
                .with_remedy("make another bundle with usher keys new")
        };
        let bundle: Self = object::read(bytes.trim_ascii_end()).map_err(|_| corrupt("it is no bundle of ours"))?;
        if bundle.version != VERSION {
            let problem = Problem::Newer { version: bundle.version.into() };
            return Err(StoreError::new(folder.path().join(BUNDLE), problem));
        }
        if !bundle.socket_folder.starts_with('/') {
            return Err(corrupt("its socket_folder is not an absolute path"));
        }
        Ok(bundle)
    }

    /// The text of the file.
    pub fn text(&self) -> Vec<u8> {
        // Our own type: strings and a number always serialise.
        let mut text = serde_json::to_vec(self).unwrap_or_default();
        text.push(b'\n');
        text
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn sample() -> Bundle {
        Bundle {
            version: VERSION,
            credential: CredentialId([7; 16]),
            role: Role::Caller,
            label: "sandbox".to_owned(),
            socket_folder: "/d/s".to_owned(),
        }
    }

    fn folder() -> (tempfile::TempDir, Dir) {
        let scratch = tempfile::tempdir().unwrap();
        std::fs::set_permissions(scratch.path(), std::fs::Permissions::from_mode(0o700)).unwrap();
        let dir = Dir::open(scratch.path()).unwrap();
        (scratch, dir)
    }

    #[test]
    fn a_bundle_reads_back_as_it_was_written() {
        let (_scratch, dir) = folder();
        dir.write(BUNDLE, &sample().text()).unwrap();
        assert_eq!(Bundle::read(&dir).unwrap(), sample());
    }

    #[test]
    fn a_bundle_of_another_shape_is_refused_by_name() {
        let (_scratch, dir) = folder();
        for text in ["[]", "{}", "{\"version\":1}", "not json"] {
            dir.write(BUNDLE, text.as_bytes()).unwrap();
            let line = Bundle::read(&dir).unwrap_err().to_string();
            assert!(line.contains("/bundle.json is corrupt"), "{line}");
        }
        dir.write(BUNDLE, &Bundle { version: 9, ..sample() }.text()).unwrap();
        assert_eq!(Bundle::read(&dir).unwrap_err().problem(), &Problem::Newer { version: 9 });
        dir.write(BUNDLE, &Bundle { socket_folder: "s".to_owned(), ..sample() }.text()).unwrap();
        assert!(Bundle::read(&dir).is_err());
    }
}
