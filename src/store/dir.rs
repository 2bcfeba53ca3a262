//! A folder of ours, held open.
//!
//! Owns: opening and making folders, and what concerns names in them. It must not know what is in the files. Invariant:
//! a `Dir` exists only for a folder that was opened without following a link at its end, belongs to the effective user
//! and cannot be written to by others; everything else goes relative to its handle. No folder is ever chmod-ed, except
//! one that this process made a moment ago.

use std::ffi::OsStr;
use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use nix::errno::Errno;
use nix::fcntl::{AT_FDCWD, AtFlags, OFlag, open, openat, renameat};
use nix::sys::stat::{FchmodatFlags, Mode, fchmod, fchmodat, fstat, fstatat, mkdirat};
use nix::unistd::fsync;

use crate::sys;

use super::check::{self, FileKind, Identity};
use super::error::{Problem, StoreError};

/// A verified folder.
#[derive(Debug)]
pub struct Dir {
    fd: OwnedFd,
    path: PathBuf,
}

impl Dir {
    /// Opens a folder that must be there and ours alone.
    pub fn open(path: &Path) -> Result<Self, StoreError> {
        let path = plain(path);
        Self::open_at(AT_FDCWD, &path.clone(), path)
    }

    /// Opens a folder, making it and whatever is missing above it with mode 0700. Folders above that exist are left as
    /// they are and not judged.
    pub fn create(path: &Path) -> Result<Self, StoreError> {
        match Self::open(path) {
            Err(error) if error.is_missing() => {}
            done => return done,
        }
        make_missing(&plain(path))?;
        Self::open(path)
    }

    /// Opens a folder in this one.
    pub fn sub(&self, name: &str) -> Result<Self, StoreError> {
        self.judge_name(name)?;
        Self::open_at(self.as_fd(), Path::new(name), self.path.join(name))
    }

    /// Opens a folder in this one, making it with mode 0700 if it is missing.
    pub fn create_sub(&self, name: &str) -> Result<Self, StoreError> {
        self.judge_name(name)?;
        make(self.as_fd(), OsStr::new(name), &self.path.join(name))?;
        self.sub(name)
    }

    fn open_at(base: BorrowedFd<'_>, name: &Path, path: PathBuf) -> Result<Self, StoreError> {
        let flags = OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
        let opened = openat(base, name, flags, Mode::empty())
            .map_err(|errno| check::why_not_opened(base, name, FileKind::Directory, errno))
            .and_then(|fd| {
                check::directory(&fstat(&fd).map_err(Problem::Io)?)?;
                Ok(fd)
            });
        match opened {
            Ok(fd) => Ok(Self { fd, path }),
            Err(problem) => Err(StoreError::new(path, problem)),
        }
    }

    /// Where it was opened.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// A second handle on the same folder.
    pub fn try_clone(&self) -> Result<Self, StoreError> {
        let fd = self.fd.try_clone().map_err(|error| StoreError::io(&self.path, &error))?;
        Ok(Self { fd, path: self.path.clone() })
    }

    /// Tells of names that come and go in it.
    pub fn watch(&self) -> sys::Watch {
        sys::Watch::new(self.as_fd(), &self.path)
    }

    /// What has this name, no link followed; none if nothing has.
    pub fn identity(&self, name: &str) -> Result<Option<Identity>, StoreError> {
        self.judge_name(name)?;
        match fstatat(self, name, AtFlags::AT_SYMLINK_NOFOLLOW) {
            Ok(stat) => Ok(Some(Identity::of(&stat))),
            Err(Errno::ENOENT) => Ok(None),
            Err(errno) => Err(self.errno(name, errno)),
        }
    }

    /// The inode of a file that was opened here, whatever its name leads to by now.
    pub fn identity_of(&self, name: &str, file: &File) -> Result<Identity, StoreError> {
        fstat(file).map(|stat| Identity::of(&stat)).map_err(|errno| self.errno(name, errno))
    }

    /// Renames in this folder, durably; what has the new name is replaced.
    pub fn rename(&self, from: &str, to: &str) -> Result<(), StoreError> {
        self.judge_name(from)?;
        self.judge_name(to)?;
        renameat(self, from, self, to).map_err(|errno| self.errno(from, errno))?;
        self.sync()
    }

    /// Moves into another folder under a name that must be free there, durably.
    pub fn move_new(&self, name: &str, into: &Self, new_name: &str) -> Result<(), StoreError> {
        self.judge_name(name)?;
        into.judge_name(new_name)?;
        sys::rename_new((self.as_fd(), OsStr::new(name)), (into.as_fd(), OsStr::new(new_name))).map_err(|errno| {
            if errno == Errno::EEXIST { into.errno(new_name, errno) } else { self.errno(name, errno) }
        })?;
        // The new name first: a crash in between may show two names, never none.
        into.sync()?;
        self.sync()
    }

    /// Waits until the names in this folder are on the disk.
    pub fn sync(&self) -> Result<(), StoreError> {
        sync(self.as_fd(), &self.path)
    }

    /// Refuses what is not one plain component.
    pub(super) fn judge_name(&self, name: &str) -> Result<(), StoreError> {
        check::name(name).map_err(|problem| self.error(name, problem))
    }

    /// A problem with a name in this folder.
    pub(super) fn error(&self, name: &str, problem: Problem) -> StoreError {
        StoreError::new(self.path.join(name), problem)
    }

    /// What the system answered for a name in this folder.
    pub(super) fn errno(&self, name: &str, errno: Errno) -> StoreError {
        StoreError::errno(self.path.join(name), errno)
    }
}

impl AsFd for Dir {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// Without trailing slashes and dots: `O_NOFOLLOW` would follow `link/`.
fn plain(path: &Path) -> PathBuf {
    path.components().collect()
}

/// Some file systems cannot sync a folder (`EINVAL`); there the rename is as durable as it gets.
fn sync(fd: BorrowedFd<'_>, path: &Path) -> Result<(), StoreError> {
    match fsync(fd) {
        Ok(()) | Err(Errno::EINVAL) => Ok(()),
        Err(errno) => Err(StoreError::errno(path, errno)),
    }
}

/// Makes a folder and those above it, and returns a handle that is good for making names in it.
fn make_missing(path: &Path) -> Result<OwnedFd, StoreError> {
    let flags = OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
    match open(path, flags, Mode::empty()) {
        Ok(fd) => return Ok(fd),
        Err(Errno::ENOENT) => {}
        Err(errno) => return Err(StoreError::errno(path, errno)),
    }
    let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else {
        return Err(StoreError::new(path, Problem::Missing));
    };
    let parent = make_missing(if parent.as_os_str().is_empty() { Path::new(".") } else { parent })?;
    make(parent.as_fd(), name, path)?;
    openat(&parent, name, flags, Mode::empty()).map_err(|errno| StoreError::errno(path, errno))
}

/// Makes one folder with mode 0700 whatever the umask is; one that exists is left as it is.
fn make(parent: BorrowedFd<'_>, name: &OsStr, path: &Path) -> Result<(), StoreError> {
    match mkdirat(parent, name, Mode::S_IRWXU) {
        Ok(()) => {}
        Err(Errno::EEXIST) => return Ok(()),
        Err(errno) => return Err(StoreError::errno(path, errno)),
    }
    restore_mode(parent, name).map_err(|problem| StoreError::new(path, problem))?;
    sync(parent, path)
}

/// Gives the folder that we just made the bits that a umask took from its owner.
fn restore_mode(parent: BorrowedFd<'_>, name: &OsStr) -> Result<(), Problem> {
    let stat = fstatat(parent, name, AtFlags::AT_SYMLINK_NOFOLLOW).map_err(Problem::Io)?;
    check::directory(&stat)?;
    if Mode::from_bits_truncate(stat.st_mode).contains(Mode::S_IRWXU) {
        return Ok(());
    }
    let flags = OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
    match openat(parent, name, flags, Mode::empty()) {
        Ok(fd) => {
            check::directory(&fstat(&fd).map_err(Problem::Io)?)?;
            fchmod(&fd, Mode::S_IRWXU)
        }
        // It cannot even be opened to be held; it was looked at just above, and no link is followed.
        Err(Errno::EACCES) => fchmodat(parent, name, Mode::S_IRWXU, FchmodatFlags::NoFollowSymlink),
        Err(errno) => Err(errno),
    }
    .map_err(Problem::Io)
}

#[cfg(test)]
mod tests;
