//! Taking a file away.
//!
//! Owns: removal, setting aside, and clearing what an interrupted first start left. Invariant: what is removed is the
//! inode that was looked at, and setting aside never costs a byte of any file.

use std::ffi::OsStr;
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use jiff::Timestamp;
use nix::errno::Errno;
use nix::fcntl::{OFlag, openat};
use nix::sys::stat::{Mode, fstat};
use nix::unistd::{UnlinkatFlags, unlinkat};

use crate::{ids, sys};

use super::check::{self, FileKind, Identity};
use super::dir::Dir;
use super::error::{Problem, StoreError};

/// What was removed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Removed {
    /// Which inode.
    pub identity: Identity,
    /// How large it was.
    pub bytes: u64,
}

impl Dir {
    /// Removes a regular file of ours, however broken, and says what it was. [`Problem::Changed`] when the name led to
    /// another file than the one that was looked at.
    pub fn remove(&self, name: &str) -> Result<Removed, StoreError> {
        self.judge_name(name)?;
        let flags = OFlag::O_RDONLY | OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK | OFlag::O_NOCTTY | OFlag::O_CLOEXEC;
        // Held open, so that its number cannot pass to another file.
        let held = openat(self, name, flags, Mode::empty()).map_err(|errno| {
            self.error(name, check::why_not_opened(self.as_fd(), Path::new(name), FileKind::File, errno))
        })?;
        let before = fstat(&held).map_err(|errno| self.errno(name, errno))?;
        let identity = Identity::of(&before);
        if identity.kind != FileKind::File {
            return Err(self.error(name, Problem::Unsafe(check::NOT_A_FILE)));
        }
        check::owned(&before).map_err(|problem| self.error(name, problem))?;
        if self.identity(name)? != Some(identity) {
            return Err(self.error(name, Problem::Changed));
        }
        unlinkat(self, name, UnlinkatFlags::NoRemoveDir).map_err(|errno| self.errno(name, errno))?;
        // One name fewer proves that it was this file's.
        let after = fstat(&held).map_err(|errno| self.errno(name, errno))?;
        if after.st_nlink >= before.st_nlink {
            return Err(self.error(name, Problem::Changed));
        }
        self.sync()?;
        Ok(Removed { identity, bytes: u64::try_from(before.st_size).unwrap_or(0) })
    }

    /// Renames to `<name>.corrupt-<time>-<random>`, which exists nowhere yet, and returns that name.
    pub fn set_aside(&self, name: &str) -> Result<String, StoreError> {
        self.judge_name(name)?;
        let now = Timestamp::now().strftime("%Y%m%dT%H%M%SZ");
        let aside = format!("{name}.corrupt-{now}-{}", ids::base64url(&ids::random::<6>()));
        let from = (self.as_fd(), OsStr::new(name));
        sys::rename_new(from, (self.as_fd(), OsStr::new(&aside))).map_err(|errno| self.errno(name, errno))?;
        self.sync()?;
        Ok(aside)
    }

    /// Removes a folder of ours with everything in it, no link followed; one that is missing is gone already. Deeper
    /// than `levels` folders it is none that we made, and stays.
    pub(super) fn clear(&self, name: &str, levels: usize) -> Result<(), StoreError> {
        let sub = match self.sub(name) {
            Err(error) if error.is_missing() => return Ok(()),
            sub => sub?,
        };
        for entry in sub.names()? {
            match sub.identity(&entry)? {
                Some(found) if found.kind == FileKind::Directory && levels > 1 => sub.clear(&entry, levels - 1)?,
                Some(found) if found.kind == FileKind::Directory => {
                    return Err(sub.error(&entry, Problem::Unsafe(check::NOT_A_FILE)));
                }
                Some(_) => {
                    unlinkat(&sub, entry.as_str(), UnlinkatFlags::NoRemoveDir)
                        .map_err(|errno| sub.errno(&entry, errno))?;
                }
                None => {}
            }
        }
        self.remove_empty(name)
    }

    /// Removes an empty folder.
    pub(super) fn remove_empty(&self, name: &str) -> Result<(), StoreError> {
        self.judge_name(name)?;
        unlinkat(self, name, UnlinkatFlags::RemoveDir).map_err(|errno| self.errno(name, errno))?;
        self.sync()
    }

    /// The names in this folder; one that is not UTF-8 is none of ours, and an error.
    pub fn names(&self) -> Result<Vec<String>, StoreError> {
        let here = |errno: Errno| StoreError::errno(self.path(), errno);
        // A handle of its own, since the position in the list belongs to it.
        let flags = OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
        let list = openat(self, ".", flags, Mode::empty()).and_then(nix::dir::Dir::from_fd).map_err(here)?;
        let mut names = Vec::new();
        for entry in list {
            let entry = entry.map_err(here)?;
            match entry.file_name().to_str() {
                Ok("." | "..") => {}
                Ok(name) => names.push(name.to_owned()),
                Err(_) => {
                    let path = self.path().join(OsStr::from_bytes(entry.file_name().to_bytes()));
                    return Err(StoreError::new(path, Problem::Unsafe(check::NOT_A_NAME)));
                }
            }
        }
        names.sort();
        Ok(names)
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::{MetadataExt, symlink};

    use super::super::scratch::Scratch;
    use super::*;

    #[test]
    fn removing_says_which_file_it_was() {
        let scratch = Scratch::new();
        let inode = fs::metadata(scratch.file("a", b"12345", 0o666)).unwrap().ino();
        let removed = scratch.dir().remove("a").unwrap();
        assert_eq!((removed.identity.ino, removed.identity.kind, removed.bytes), (inode, FileKind::File, 5));
        assert!(scratch.names().is_empty());
        assert!(scratch.dir().remove("a").unwrap_err().is_missing());
    }

    #[test]
    fn what_is_no_file_of_ours_is_not_removed() {
        let scratch = Scratch::new();
        fs::create_dir(scratch.path().join("folder")).unwrap();
        symlink("folder", scratch.path().join("link")).unwrap();
        nix::unistd::mkfifo(&scratch.path().join("fifo"), Mode::S_IRWXU).unwrap();
        let names = scratch.names();
        for (name, what) in [("folder", check::NOT_A_FILE), ("link", check::LINK), ("fifo", check::NOT_A_FILE)] {
            assert_eq!(scratch.dir().remove(name).unwrap_err().problem(), &Problem::Unsafe(what), "{name}");
        }
        assert_eq!(scratch.names(), names);
        let theirs = scratch.file("theirs", b"x", 0o666);
        if Scratch::give_away(&theirs) {
            assert_eq!(scratch.dir().remove("theirs").unwrap_err().problem(), &Problem::Unsafe(check::FOREIGN));
            assert!(theirs.exists());
        }
    }

    #[test]
    fn setting_aside_keeps_every_byte_each_time() {
        let scratch = Scratch::new();
        let mut kept = Vec::new();
        for bytes in [b"one", b"two"] {
            scratch.file("leases.json", bytes, 0o600);
            let name = scratch.dir().set_aside("leases.json").unwrap();
            assert!(name.starts_with("leases.json.corrupt-2") && name.contains("Z-"), "{name}");
            assert_eq!(fs::read(scratch.path().join(&name)).unwrap(), bytes);
            kept.push(name);
        }
        kept.sort();
        assert_eq!(scratch.names(), kept);
        assert!(scratch.dir().set_aside("leases.json").unwrap_err().is_missing());
    }

    #[test]
    fn clearing_follows_no_link_and_stops_at_its_depth() {
        let scratch = Scratch::new();
        let kept = scratch.file("kept", b"x", 0o600);
        let dir = scratch.dir();
        let inner = dir.create_sub("new").unwrap().create_sub("keys").unwrap();
        inner.write("a", b"x").unwrap();
        symlink(scratch.path(), scratch.path().join("new/keys/link")).unwrap();
        dir.clear("new", 2).unwrap();
        assert_eq!(scratch.names(), ["kept"]);
        assert!(kept.exists());
        dir.clear("new", 2).unwrap();

        dir.create_sub("new").unwrap().create_sub("keys").unwrap().create_sub("deep").unwrap();
        assert_eq!(dir.clear("new", 2).unwrap_err().path(), scratch.path().join("new/keys/deep"));
        assert!(scratch.path().join("new/keys/deep").exists());
    }
}
