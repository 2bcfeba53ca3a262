//! Where the daemon is, and with which keys one speaks to it.
//!
//! Owns: the two kinds of address, the directory of [`Paths`] and a bundle. It must not know what a key is used for.
//! Invariant: a bundle is used alone, no other key is ever tried in its place; key files are read anew for each hello,
//! so a renewed key is taken without a restart.

use std::path::{Path, PathBuf};

use crate::auth::identity::Identity;
use crate::ids::{PublicKey, Signature};
use crate::store::paths::{KEYS, SOCKET, SOCKET_FOLDER};
use crate::store::{Dir, Kind, Paths, Problem, StoreError, pem};
use crate::wire::lines::Role;
use crate::wire::transcript::Statement;

use super::bundle::{self, Bundle};
use super::failure::{ConnectError, ConnectFailure};

/// 43 characters and LF; room to say what else it is.
const PUBLIC_KEY: Kind = Kind { secret: false, max_bytes: 4096 };

/// Where the daemon is and with what key.
#[derive(Debug, Clone)]
pub struct Target(Place);

#[derive(Debug, Clone)]
enum Place {
    Home {
        paths: Paths,
        /// In place of the role's own, for a key that is not in use yet.
        key: Option<String>,
    },
    Bundle {
        path: PathBuf,
        bundle: Bundle,
    },
}

/// What a hello needs, read a moment ago.
pub(super) struct Keys {
    /// The key that the daemon must prove.
    pub daemon: PublicKey,
    /// Where that was read.
    pub daemon_path: PathBuf,
    /// What signs for this side.
    pub identity: Identity,
}

impl Target {
    /// The directory with the default keys.
    pub(crate) fn home(paths: Paths) -> Self {
        Self(Place::Home { paths, key: None })
    }

    /// The directory with the default keys: `USHER_DIR` of the programs. It need not exist yet.
    pub fn dir(path: &Path) -> Result<Self, ConnectError> {
        Ok(Self::home(Paths::at(path).map_err(ConnectFailure::from)?))
    }

    /// A bundle's folder, as `usher keys new --out` makes it.
    pub fn bundle(path: &Path) -> Result<Self, ConnectError> {
        Ok(Self::open_bundle(path)?)
    }

    /// What the programs use too: the bundle that is named, else that of `USHER_CREDENTIAL`, else the directory
    /// `USHER_DIR`, else the one in the home directory.
    pub fn from_env(credential: Option<&Path>) -> Result<Self, ConnectError> {
        Ok(Self::find(credential)?)
    }

    pub(crate) fn open_bundle(path: &Path) -> Result<Self, ConnectFailure> {
        let path = std::path::absolute(path).map_err(|error| StoreError::io(path, &error))?;
        let bundle = Bundle::read(&Dir::open(&path).map_err(bundle_remedy)?)?;
        Ok(Self(Place::Bundle { path, bundle }))
    }

    /// The same directory with another file of its key folder in place of the role's key; a bundle stays as it is.
    #[must_use]
    pub(crate) fn with_key(&self, name: &str) -> Self {
        match &self.0 {
            Place::Home { paths, .. } => Self(Place::Home { paths: paths.clone(), key: Some(name.to_owned()) }),
            Place::Bundle { .. } => self.clone(),
        }
    }

    /// As [`Target::from_env`].
    pub(crate) fn find(credential: Option<&Path>) -> Result<Self, ConnectFailure> {
        let named = std::env::var_os("USHER_CREDENTIAL").filter(|value| !value.is_empty()).map(PathBuf::from);
        match credential.map(Path::to_owned).or(named) {
            Some(path) => Self::open_bundle(&path),
            None => Ok(Self::home(Paths::from_env()?)),
        }
    }

    /// The directory; none for a bundle, which knows only the socket.
    pub(crate) fn paths(&self) -> Option<&Paths> {
        match &self.0 {
            Place::Home { paths, .. } => Some(paths),
            Place::Bundle { .. } => None,
        }
    }

    /// The bundle, if it is one.
    pub(crate) fn as_bundle(&self) -> Option<&Bundle> {
        match &self.0 {
            Place::Home { .. } => None,
            Place::Bundle { bundle, .. } => Some(bundle),
        }
    }

    /// Where the daemon listens.
    pub(crate) fn socket_folder(&self) -> PathBuf {
        match &self.0 {
            Place::Home { paths, .. } => paths.socket_folder(),
            Place::Bundle { bundle, .. } => PathBuf::from(&bundle.socket_folder),
        }
    }

    /// The rendezvous.
    pub(crate) fn socket(&self) -> PathBuf {
        self.socket_folder().join(SOCKET)
    }

    /// The folder of the rendezvous. Where it is missing no daemon ever ran.
    pub(super) fn open_socket_folder(&self) -> Result<Dir, ConnectFailure> {
        let opened = match &self.0 {
            Place::Home { paths, .. } => Dir::open(paths.root()).and_then(|root| root.sub(SOCKET_FOLDER)),
            Place::Bundle { bundle, .. } => Dir::open(Path::new(&bundle.socket_folder)),
        };
        opened.map_err(missing_is_not_running)
    }

    /// The daemon's key, for whoever checks a receipt.
    pub(crate) fn daemon_key(&self) -> Result<PublicKey, ConnectFailure> {
        Ok(read_public_key(&self.open_keys()?, bundle::DAEMON_KEY)?)
    }

    /// Signs with the key that a hello in this role would use now.
    pub(crate) fn sign(&self, role: Role, statement: &Statement) -> Result<Signature, ConnectFailure> {
        Ok(self.keys(role)?.identity.sign(statement))
    }

    /// What a hello in this role needs.
    pub(super) fn keys(&self, role: Role) -> Result<Keys, ConnectFailure> {
        let name = match &self.0 {
            Place::Bundle { path, bundle } if bundle.role != role => {
                return Err(ConnectFailure::WrongRole { bundle: path.clone(), has: bundle.role, needs: role });
            }
            Place::Bundle { .. } => bundle::KEY.to_owned(),
            Place::Home { key: Some(name), .. } => name.clone(),
            Place::Home { key: None, .. } => format!("{}.pem", role.word()),
        };
        let folder = self.open_keys()?;
        let remedy = |error| if self.as_bundle().is_some() { bundle_remedy(error) } else { error };
        let daemon = read_public_key(&folder, bundle::DAEMON_KEY).map_err(remedy)?;
        let identity = Identity::from_seed(&pem::read(&folder, &name).map_err(remedy)?)
            .map_err(|reason| StoreError::new(folder.path().join(&name), Problem::Corrupt(reason.to_owned())))?;
        Ok(Keys { daemon, daemon_path: folder.path().join(bundle::DAEMON_KEY), identity })
    }

    /// The folder of key files.
    fn open_keys(&self) -> Result<Dir, ConnectFailure> {
        let paths = match &self.0 {
            Place::Bundle { path, .. } => return Ok(Dir::open(path).map_err(bundle_remedy)?),
            Place::Home { paths, .. } => paths,
        };
        let root = Dir::open(paths.root()).map_err(missing_is_not_running)?;
        match root.sub(KEYS) {
            Ok(keys) => Ok(keys),
            Err(error) if error.is_missing() => {
                if !listens(&root)? {
                    return Err(ConnectFailure::NotRunning);
                }
                // A daemon makes its keys before it listens: looked at again, now they are there, or it is no first start.
                Ok(root.sub(KEYS)?)
            }
            Err(error) => Err(error.into()),
        }
    }
}

fn listens(root: &Dir) -> Result<bool, StoreError> {
    match root.sub(SOCKET_FOLDER) {
        Ok(folder) => Ok(folder.identity(SOCKET)?.is_some()),
        Err(error) if error.is_missing() => Ok(false),
        Err(error) => Err(error),
    }
}

/// A public key's file: 43 characters and LF.
pub fn read_public_key(folder: &Dir, name: &str) -> Result<PublicKey, StoreError> {
    let bytes = folder.read(name, &PUBLIC_KEY)?;
    let text = bytes.strip_suffix(b"\n").unwrap_or(&bytes);
    std::str::from_utf8(text).ok().and_then(|text| text.parse().ok()).ok_or_else(|| {
        let reason = "it is not 43 base64url characters and LF".to_owned();
        StoreError::new(folder.path().join(name), Problem::Corrupt(reason))
    })
}

fn missing_is_not_running(error: StoreError) -> ConnectFailure {
    if error.is_missing() { ConnectFailure::NotRunning } else { error.into() }
}

fn bundle_remedy(error: StoreError) -> StoreError {
    let remedy = match error.problem() {
        Problem::Missing => "name a whole folder that usher keys new --out made",
        _ => return error,
    };
    error.with_remedy(remedy)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;
    use crate::ids::CredentialId;
    use crate::store::pem::Seed;

    fn bundle(role: Role) -> (tempfile::TempDir, PathBuf) {
        let scratch = tempfile::tempdir().unwrap();
        let path = scratch.path().join("bundle");
        let dir = Dir::create(&path).unwrap();
        pem::write(&dir, bundle::KEY, &Seed::random()).unwrap();
        dir.write(bundle::DAEMON_KEY, format!("{}\n", PublicKey([3; 32])).as_bytes()).unwrap();
        let content = Bundle {
            version: bundle::VERSION,
            credential: CredentialId([1; 16]),
            role,
            label: "a".to_owned(),
            socket_folder: scratch.path().join("s").to_str().unwrap().to_owned(),
        };
        dir.write(bundle::BUNDLE, &content.text()).unwrap();
        (scratch, path)
    }

    #[test]
    fn a_bundle_is_refused_for_a_verb_that_needs_another_role() {
        let (_scratch, path) = bundle(Role::Caller);
        let target = Target::bundle(&path).unwrap();
        assert!(target.keys(Role::Caller).is_ok_and(|keys| keys.daemon == PublicKey([3; 32])));
        let Err(ConnectFailure::WrongRole { has, needs, .. }) = target.keys(Role::Operator) else { panic!() };
        assert_eq!((has, needs), (Role::Caller, Role::Operator));
    }

    #[test]
    fn a_key_that_others_can_read_is_refused_by_name() {
        let (_scratch, path) = bundle(Role::Caller);
        std::fs::set_permissions(path.join(bundle::KEY), std::fs::Permissions::from_mode(0o644)).unwrap();
        let Err(ConnectFailure::Store(error)) = Target::bundle(&path).unwrap().keys(Role::Caller) else { panic!() };
        assert_eq!(error.path(), path.join(bundle::KEY));
    }

    #[test]
    fn where_no_daemon_ever_ran_nothing_is_running() {
        let (_scratch, path) = bundle(Role::Caller);
        let target = Target::bundle(&path).unwrap();
        assert!(matches!(target.open_socket_folder(), Err(ConnectFailure::NotRunning)));
    }
}
