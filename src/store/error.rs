//! What can be wrong with a file of ours, as one line for a person.
//!
//! Owns: the sentence and the remedy. It must not know what a file is for. Invariant: the line names the path and never
//! holds a byte of the file; control characters in a path are escaped, so it stays one line.

use std::borrow::Cow;
use std::fmt::{self, Write as _};
use std::io;
#[cfg(test)]
use std::path::Path;
use std::path::PathBuf;

use nix::errno::Errno;

/// A file, folder or socket of ours that cannot be used.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoreError {
    path: PathBuf,
    problem: Problem,
    /// What to do, where it is not what [`Problem::remedy`] says.
    remedy: Option<Cow<'static, str>>,
}

/// What is wrong.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Problem {
    /// Nothing has that name.
    Missing,
    /// It is not what we make, or not only ours: the words follow the path in the line ("is a symbolic link").
    Unsafe(&'static str),
    /// A file of no bytes.
    Empty,
    /// A file beyond its own ceiling; nothing was read.
    TooLarge {
        /// Its size.
        bytes: u64,
        /// The ceiling.
        max_bytes: u64,
    },
    /// It was written to, or replaced, while it was read.
    Changed,
    /// Its bytes are not what we wrote; the reason holds none of them.
    Corrupt(String),
    /// A newer program wrote it; nothing was changed.
    Newer {
        /// The version that it names.
        version: u64,
    },
    /// The file system has no locks or no sockets.
    Unsupported(Errno),
    /// Another process holds the lock.
    Held {
        /// Which, where the system tells.
        by: Option<u32>,
    },
    /// The system refused.
    Io(Errno),
}

impl StoreError {
    /// A problem with a path, and the remedy that usually helps.
    pub fn new(path: impl Into<PathBuf>, problem: Problem) -> Self {
        Self { path: path.into(), problem, remedy: None }
    }

    /// What the system answered for a path.
    pub fn errno(path: impl Into<PathBuf>, errno: Errno) -> Self {
        Self::new(path, if errno == Errno::ENOENT { Problem::Missing } else { Problem::Io(errno) })
    }

    /// As [`StoreError::errno`], from an error of the standard library.
    pub fn io(path: impl Into<PathBuf>, error: &io::Error) -> Self {
        Self::errno(path, error.raw_os_error().map_or(Errno::EIO, Errno::from_raw))
    }

    /// The same with another remedy: lower case, an instruction, no full stop.
    #[must_use]
    pub fn with_remedy(mut self, remedy: impl Into<Cow<'static, str>>) -> Self {
        self.remedy = Some(remedy.into());
        self
    }

    /// What is wrong.
    pub fn problem(&self) -> &Problem {
        &self.problem
    }

    /// Nothing has that name.
    pub fn is_missing(&self) -> bool {
        self.problem == Problem::Missing
    }

    /// There is no room left for it.
    pub fn is_full(&self) -> bool {
        matches!(self.problem, Problem::Io(Errno::ENOSPC | Errno::EDQUOT))
    }

    /// With what.
    #[cfg(test)]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// What to do about it.
    pub fn remedy(&self) -> &str {
        self.remedy.as_deref().unwrap_or_else(|| self.problem.remedy())
    }
}

impl Problem {
    fn remedy(&self) -> &'static str {
        match self {
            Self::Missing => "restore it, or name another directory in USHER_DIR",
            Self::Unsafe(check) if *check == super::check::OTHERS_WRITE => {
                "check what others put there, then chmod go-w"
            }
            Self::Unsafe(check) if *check == super::check::OTHERS_READ => {
                "replace the key if it leaked, then chmod 600"
            }
            Self::Unsafe(check) if *check == super::check::FOREIGN => "name a directory of your own in USHER_DIR",
            Self::Unsafe(_) => "move it away or name another directory in USHER_DIR",
            Self::Empty | Self::Corrupt(_) | Self::TooLarge { .. } => {
                "restore it from a copy, or stop the daemon and run usher doctor"
            }
            Self::Changed => "try again",
            Self::Newer { .. } => "use the newer program that wrote it",
            Self::Unsupported(_) => "name a directory on a local file system in USHER_DIR",
            Self::Held { .. } => "wait for it, or stop it with usher stop",
            Self::Io(Errno::ENOSPC | Errno::EDQUOT) => "free some space there",
            Self::Io(Errno::EMFILE | Errno::ENFILE) => "raise the limit of open files",
            Self::Io(Errno::ENAMETOOLONG) => "name a directory with a shorter path in USHER_DIR",
            Self::Io(Errno::EIO) => "check the disk",
            Self::Io(_) => "name a directory that you can write to in USHER_DIR",
        }
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Missing => out.write_str("does not exist"),
            Self::Unsafe(what) => out.write_str(what),
            Self::Empty => out.write_str("is empty"),
            Self::TooLarge { bytes, max_bytes } => write!(out, "has {bytes} bytes, more than the {max_bytes} allowed"),
            Self::Changed => out.write_str("changed while it was used"),
            Self::Corrupt(reason) => write!(out, "is corrupt: {reason}"),
            Self::Newer { version } => write!(out, "has version {version}, newer than this program knows"),
            Self::Unsupported(errno) => {
                write!(out, "is on a file system without locks or sockets: {} ({errno:?})", errno.desc())
            }
            Self::Held { by: Some(pid) } => write!(out, "is locked by process {pid}"),
            Self::Held { by: None } => out.write_str("is locked by another process"),
            Self::Io(errno) => write!(out, "cannot be used: {} ({errno:?})", errno.desc()),
        }
    }
}

impl fmt::Display for StoreError {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        for char in self.path.to_string_lossy().chars() {
            if char.is_control() { write!(out, "{}", char.escape_default())? } else { out.write_char(char)? }
        }
        write!(out, " {}; {}", self.problem, self.remedy())
    }
}

impl std::error::Error for StoreError {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_line_names_the_file_the_errno_and_the_remedy() {
        let line = StoreError::errno("/d/usherd.lock", Errno::EACCES).to_string();
        assert_eq!(
            line,
            "/d/usherd.lock cannot be used: Permission denied (EACCES); name a directory that you can write to in USHER_DIR"
        );
        let line = StoreError::new("/d/usherd.lock", Problem::Unsupported(Errno::ENOLCK)).to_string();
        assert!(line.contains("/d/usherd.lock") && line.contains("ENOLCK") && line.contains("USHER_DIR"), "{line}");
    }

    #[test]
    fn a_path_with_control_characters_stays_one_line() {
        let line = StoreError::new("/d/a\nb\u{1b}[31m", Problem::Missing).to_string();
        assert!(line.starts_with("/d/a\\nb\\u{1b}[31m does not exist; "), "{line}");
    }

    #[test]
    fn what_is_not_there_is_missing_however_it_was_found_out() {
        assert!(StoreError::errno("/d", Errno::ENOENT).is_missing());
        assert!(StoreError::io("/d", &io::Error::from_raw_os_error(2)).is_missing());
        assert!(!StoreError::errno("/d", Errno::ENOTDIR).is_missing());
    }

    #[test]
    fn a_remedy_of_the_callers_own_takes_the_place_of_the_usual_one() {
        let line = StoreError::new("/d/policy.json", Problem::Empty).with_remedy("set it anew").to_string();
        assert_eq!(line, "/d/policy.json is empty; set it anew");
    }
}
