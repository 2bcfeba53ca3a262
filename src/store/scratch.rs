//! A private folder for one unit test, removed with it.

use std::fs::{self, DirBuilder, Permissions};
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::ids;

use super::Dir;

/// Where a child of this test binary finds the folder of the test that started it.
const CHILD: &str = "USHER_TEST_SCRATCH";

/// The folder.
pub struct Scratch(PathBuf);

impl Scratch {
    /// A new empty folder of ours, 0700.
    pub fn new() -> Self {
        let path = std::env::temp_dir().join(format!("usher-test-{}", ids::base64url(&ids::random::<9>())));
        DirBuilder::new().mode(0o700).create(&path).unwrap();
        Self(path)
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.0
    }

    /// A verified handle on it.
    pub fn dir(&self) -> Dir {
        Dir::open(&self.0).unwrap()
    }

    /// A file in it with exactly this mode.
    #[expect(clippy::disallowed_methods, reason = "a test makes what the store would never make")]
    pub fn file(&self, name: &str, bytes: &[u8], mode: u32) -> PathBuf {
        let path = self.0.join(name);
        fs::write(&path, bytes).unwrap();
        fs::set_permissions(&path, Permissions::from_mode(mode)).unwrap();
        path
    }

    /// The names in it, sorted.
    pub fn names(&self) -> Vec<String> {
        let mut names: Vec<_> =
            fs::read_dir(&self.0).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }

    /// The folder of the parent, in a process that [`Scratch::run`] started.
    pub fn of_parent() -> Option<PathBuf> {
        std::env::var_os(CHILD).map(PathBuf::from)
    }

    /// Runs one test of this binary, by its path, in a process of its own, after `setup` in a shell: for what belongs
    /// to a whole process. False, and said, where that user cannot run this binary.
    pub fn run(&self, test: &str, setup: &str, uid: Option<u32>) -> bool {
        let (_crate, test) = test.split_once("::").unwrap();
        let mut child = Command::new("/bin/sh");
        child.args(["-c", &format!("{setup}; exec \"$@\"\n"), "sh"]);
        child.arg(std::env::current_exe().unwrap()).args(["--exact", test, "--nocapture"]).env(CHILD, &self.0);
        if let Some(uid) = uid {
            child.uid(uid).gid(uid);
        }
        let output = child.output().unwrap();
        if output.status.code() == Some(126) {
            println!("SKIPPED: user {uid:?} may not run this test binary");
            return false;
        }
        let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        assert!(output.status.success() && out.contains("1 passed"), "{setup}, {uid:?}: {out}{err}");
        true
    }

    /// Gives a path to another user; says so where only root could, and then there is nothing to check.
    pub fn give_away(path: &Path) -> bool {
        let root = nix::unistd::geteuid().is_root();
        if root {
            std::os::unix::fs::lchown(path, Some(65_534), None).unwrap();
        } else {
            println!("SKIPPED: a file of another user can only be made by root ({})", path.display());
        }
        root
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}
