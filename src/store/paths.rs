//! Where our files are.
//!
//! Owns: the one function that computes the directory for both programs, and the names in it. It opens none of them.
//! Invariant: the same user on the same host gets the same absolute path from a shell, cron and ssh; `TMPDIR` and
//! `XDG_*` are not asked.

use std::env;
use std::ffi::OsString;
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

use nix::unistd::{User, geteuid, gethostname};

use super::error::{Problem, StoreError};

/// The folder of the rendezvous, alone so that it can be mounted into a container.
pub const SOCKET_FOLDER: &str = "s";
/// The rendezvous in it.
pub const SOCKET: &str = "usherd.sock";
/// Held for life by the daemon.
pub const LOCK: &str = "usherd.lock";
/// The folder of key files.
pub const KEYS: &str = "keys";
/// Records, grants, revocations.
pub const CREDENTIALS: &str = "credentials.json";
/// What was done to keys, connections and sessions, hash-chained.
pub const AUDIT: &str = "audit.ndjson";
/// Standard error of an auto-started daemon.
pub const LOG: &str = "usherd.log";

/// Name of an entry, its components, and what it is, in the order in which `usher paths` prints them.
const ENTRIES: [(&str, &[&str], &str); 7] = [
    ("socket_folder", &[SOCKET_FOLDER], "folder of the rendezvous"),
    ("socket", &[SOCKET_FOLDER, SOCKET], "rendezvous"),
    ("lock", &[LOCK], "held by the daemon for life"),
    ("keys", &[KEYS], "keys of the daemon and of the default credentials"),
    ("credentials", &[CREDENTIALS], "records, grants, revocations"),
    ("audit", &[AUDIT], "what was done to keys, connections and sessions"),
    ("log", &[LOG], "standard error of an auto-started daemon"),
];

/// Bytes of a machine id that are looked at; it has 33.
const MACHINE_ID_MAX_BYTES: u64 = 4096;

/// The directory, absolute.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Paths {
    root: PathBuf,
}

impl Paths {
    /// From `USHER_DIR`, else from the home directory and the host.
    pub fn from_env() -> Result<Self, StoreError> {
        Self::resolve(env::var_os("USHER_DIR"), env::var_os("HOME"))
    }

    /// The directory that is named.
    pub fn at(dir: &Path) -> Result<Self, StoreError> {
        Self::resolve(Some(dir.into()), None)
    }

    fn resolve(usher_dir: Option<OsString>, home: Option<OsString>) -> Result<Self, StoreError> {
        let given = usher_dir.filter(|dir| !dir.is_empty()).map(PathBuf::from);
        let root = match given {
            // Against the working directory, once; `..` stays, since a link may stand before it.
            Some(dir) => std::path::absolute(&dir).map_err(|error| StoreError::io(dir, &error))?,
            None => home_folder(home)?.join(".local/state/usher").join(host()),
        };
        // Without trailing slashes, which would make the kernel follow a link.
        Ok(Self { root: root.components().collect() })
    }

    /// The directory itself.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// The folder of the rendezvous.
    pub fn socket_folder(&self) -> PathBuf {
        self.root.join(SOCKET_FOLDER)
    }

    /// The folder of key files.
    pub fn keys(&self) -> PathBuf {
        self.root.join(KEYS)
    }

    /// Standard error of an auto-started daemon.
    pub fn log(&self) -> PathBuf {
        self.root.join(LOG)
    }

    /// All of them: name, path, what it is.
    pub fn list(&self) -> Vec<(&'static str, PathBuf, &'static str)> {
        let root = ("root", self.root.clone(), "USHER_DIR");
        let below = ENTRIES.iter().map(|(name, path, what)| {
            (*name, path.iter().fold(self.root.clone(), |folder, component| folder.join(component)), *what)
        });
        std::iter::once(root).chain(below).collect()
    }
}

/// `HOME` if it is one, else what the user database says.
fn home_folder(home: Option<OsString>) -> Result<PathBuf, StoreError> {
    let named = home.map(PathBuf::from).filter(|home| home.is_absolute());
    let home = named.or_else(|| {
        let user = User::from_uid(geteuid()).ok().flatten()?;
        Some(user.dir).filter(|dir| dir.is_absolute())
    });
    home.ok_or_else(|| {
        StoreError::new("~/.local/state/usher", Problem::Missing)
            .with_remedy("this user has no home directory: name a directory in USHER_DIR")
    })
}

/// Eight hex digits for this host, so that hosts that share a home share nothing else.
fn host() -> String {
    let id = ["/etc/machine-id", "/var/lib/dbus/machine-id"].into_iter().find_map(|path| machine_id(Path::new(path)));
    host_digits(&id.unwrap_or_else(|| gethostname().unwrap_or_default().into_encoded_bytes()))
}

/// The trimmed content; none where the file is missing, empty, or says that the host has no id yet.
fn machine_id(path: &Path) -> Option<Vec<u8>> {
    let mut bytes = Vec::new();
    File::open(path).ok()?.take(MACHINE_ID_MAX_BYTES).read_to_end(&mut bytes).ok()?;
    let id = bytes.trim_ascii();
    (!id.is_empty() && id != b"uninitialized").then(|| id.to_vec())
}

fn host_digits(id: &[u8]) -> String {
    data_encoding::HEXLOWER.encode(&ring::digest::digest(&ring::digest::SHA256, id).as_ref()[..4])
}

#[cfg(test)]
mod tests {
    use super::super::scratch::Scratch;
    use super::*;

    fn root(usher_dir: Option<&str>, home: Option<&str>) -> PathBuf {
        Paths::resolve(usher_dir.map(OsString::from), home.map(OsString::from)).unwrap().root
    }

    #[test]
    fn usher_dir_is_taken_as_it_stands() {
        assert_eq!(root(Some("/d/x/../y"), Some("/home/a")), Path::new("/d/x/../y"));
        assert_eq!(root(Some("/d/link//"), None).as_os_str(), "/d/link");
        assert_eq!(root(Some("/d/link/."), None).as_os_str(), "/d/link");
        assert_eq!(root(Some("here"), None), env::current_dir().unwrap().join("here"));
    }

    #[test]
    fn without_usher_dir_it_is_below_the_home_directory_and_of_this_host() {
        let expected = Path::new("/home/a/.local/state/usher").join(host());
        assert_eq!(root(None, Some("/home/a")), expected);
        assert_eq!(root(Some(""), Some("/home/a")), expected);
    }

    #[test]
    fn a_home_that_is_none_gives_way_to_the_user_database() {
        let Some(user) = User::from_uid(geteuid()).unwrap() else {
            println!("SKIPPED: this user is in no user database");
            return;
        };
        for home in [None, Some(""), Some("relative")] {
            assert!(root(None, home).starts_with(&user.dir), "{home:?}");
        }
    }

    #[test]
    fn the_host_is_eight_hex_digits_of_the_digest_of_its_id() {
        assert_eq!(host_digits(b"abc"), "ba7816bf");
        assert_eq!(host().len(), 8);
        let scratch = Scratch::new();
        let id = |bytes: &[u8]| machine_id(&scratch.file("machine-id", bytes, 0o644));
        assert_eq!(id(b" abc\n"), Some(b"abc".to_vec()));
        assert_eq!(id(b"\n"), None);
        assert_eq!(id(b"uninitialized\n"), None);
        assert_eq!(machine_id(&scratch.path().join("none")), None);
    }

    #[test]
    fn the_list_holds_every_path_once_and_agrees_with_the_functions() {
        let paths = Paths { root: PathBuf::from("/d") };
        let list = paths.list();
        let path = |name| list.iter().find(|entry| entry.0 == name).unwrap().1.clone();
        assert_eq!(path("root"), paths.root());
        assert_eq!(path("socket_folder"), paths.socket_folder());
        assert_eq!(path("socket"), Path::new("/d/s/usherd.sock"));
        assert_eq!(path("keys"), paths.keys());
        assert_eq!(path("credentials"), Path::new("/d/credentials.json"));
        assert_eq!(path("log"), paths.log());
        let mut all: Vec<_> = list.iter().map(|entry| &entry.1).collect();
        all.sort();
        all.dedup();
        assert_eq!(all.len(), list.len());
    }
}
