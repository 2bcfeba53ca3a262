//! The file that is written: found, added to, turned.
//!
//! Owns: where a file goes on (its last line, and what stands behind that), whole lines only, the one old copy. Invariant:
//! no byte of a line that is whole is ever taken away; before each write the file is looked at, and one that somebody has
//! moved, cut or written to is opened anew.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom, Write};

use crate::ids::Digest;
use crate::store::{Dir, Identity, Problem, StoreError, fault};
use crate::wire::transcript::sha256;

use super::chain::{self, Head, LINE_MAX_BYTES};
use super::{FILE, OLD};

/// How far behind the last line a file may have bytes that are none: more than one write.
const END_MAX_BYTES: u64 = 256 * 1024;

/// A file of ours, open at its end.
pub struct Log {
    dir: Dir,
    file: File,
    size: u64,
    inode: Identity,
}

/// Where a file goes on.
#[derive(Debug, PartialEq, Eq)]
pub struct Found {
    /// Its last line; that of the old copy for a file that goes on from there.
    pub head: Head,
    /// Whether its last line says that a daemon has ended.
    pub is_stopped: bool,
    /// Whether it has no line yet.
    pub is_new: bool,
    /// What stands behind that line.
    pub behind: Behind,
}

/// What stands behind a last line.
#[derive(Debug, PartialEq, Eq)]
pub enum Behind {
    /// Nothing.
    Nothing,
    /// Nothing, not even its LF.
    NoEnd,
    /// Bytes that are no line.
    Torn {
        /// How many, without a last LF.
        bytes: u64,
        /// Their digest.
        sha256: Digest,
        /// Whether the LF is missing that ends them.
        is_open: bool,
    },
}

/// How a write ended that was not done.
pub enum Unwritten {
    /// The file is not as it was left: nothing was written.
    Disturbed,
    /// The system refused; so many bytes of it, whole lines, are there.
    Refused {
        /// What is there.
        kept: usize,
        /// Why no more.
        error: StoreError,
    },
}

impl Log {
    /// Opens the file, or makes it, and finds its end.
    pub fn open(dir: &Dir) -> Result<(Self, Found), StoreError> {
        let dir = dir.try_clone()?;
        let mut file = dir.extend(FILE)?;
        let found = match found(&dir, FILE, &mut file)? {
            Some(found) => found,
            None => of_old(&dir)?,
        };
        let path = dir.path().join(FILE);
        let size = file.metadata().map_err(|error| StoreError::io(&path, &error))?.len();
        let inode = dir.identity_of(FILE, &file)?;
        Ok((Self { dir, file, size, inode }, found))
    }

    /// Bytes in it.
    pub fn size(&self) -> u64 {
        self.size
    }

    /// Adds whole lines.
    pub fn add(&mut self, lines: &[u8]) -> Result<(), Unwritten> {
        if !self.is_as_left() {
            return Err(Unwritten::Disturbed);
        }
        let mut done = 0;
        while done < lines.len() {
            match self.file.write(&lines[done..]) {
                Ok(0) => return Err(self.repaired(&lines[..done], &io::ErrorKind::WriteZero.into())),
                Ok(count) => done += count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(self.repaired(&lines[..done], &error)),
            }
        }
        self.size += lines.len() as u64;
        fault::point(FILE, "written");
        Ok(())
    }

    /// Takes back what is there of a line. Where that is refused, it is torn, and whoever opens the file next says so.
    fn repaired(&mut self, written: &[u8], error: &io::Error) -> Unwritten {
        let error = StoreError::io(self.dir.path().join(FILE), error);
        let kept = written.iter().rposition(|byte| *byte == b'\n').map_or(0, |at| at + 1);
        if kept < written.len() {
            let _torn = self.file.set_len(self.size + kept as u64);
        }
        self.size += kept as u64;
        Unwritten::Refused { kept, error }
    }

    /// The name leads to this file still, and nobody else has changed its size.
    fn is_as_left(&self) -> bool {
        let is_named = self
            .dir
            .identity(FILE)
            .is_ok_and(|found| found.is_some_and(|found| found.dev == self.inode.dev && found.ino == self.inode.ino));
        is_named && self.file.metadata().is_ok_and(|meta| meta.len() == self.size)
    }

    /// Waits until all of it is on the disk.
    pub fn sync(&self) -> Result<(), StoreError> {
        self.file.sync_all().map_err(|error| StoreError::io(self.dir.path().join(FILE), &error))
    }

    /// It becomes the old copy, in place of the one before.
    pub fn turn(self) -> Result<(), StoreError> {
        self.sync()?;
        fault::point(FILE, "full");
        self.dir.rename(FILE, OLD)?;
        fault::point(FILE, "turned");
        Ok(())
    }
}

/// The end of the old copy, for a file that has no line yet.
fn of_old(dir: &Dir) -> Result<Found, StoreError> {
    let nothing = Found { head: Head::NONE, is_stopped: false, is_new: true, behind: Behind::Nothing };
    let mut file = match dir.open_growing(OLD) {
        Ok(file) => file,
        Err(error) if error.is_missing() => return Ok(nothing),
        Err(error) => return Err(error),
    };
    Ok(found(dir, OLD, &mut file)?.map_or(nothing, |found| Found { is_new: true, behind: Behind::Nothing, ..found }))
}

/// Where a file goes on; none where it has no line and is to get its first one. What has bytes and no line at its end is
/// none of ours, and is left as it is.
fn found(dir: &Dir, name: &str, file: &mut File) -> Result<Option<Found>, StoreError> {
    let path = || dir.path().join(name);
    let io = |error: io::Error| StoreError::io(path(), &error);
    let size = file.metadata().map_err(io)?.len();
    let from = size.saturating_sub(END_MAX_BYTES);
    file.seek(SeekFrom::Start(from)).map_err(io)?;
    let mut end = Vec::new();
    file.take(END_MAX_BYTES).read_to_end(&mut end).map_err(io)?;
    if end.is_empty() {
        return Ok(None);
    }
    if let Some(found) = last_line(&end) {
        return Ok(Some(found));
    }
    if name == FILE && from == 0 && is_first_torn(&end) {
        // The very first write was cut off: no line is lost with it.
        file.set_len(0).map_err(io)?;
        return Ok(None);
    }
    let reason = "no line of its end is one of an audit".to_owned();
    Err(StoreError::new(path(), Problem::Corrupt(reason)).with_remedy("move it away: a new one is begun then"))
}

fn last_line(end: &[u8]) -> Option<Found> {
    let mut behind = end.len();
    loop {
        // `behind` is where a line ends: before its LF, or where the file does.
        let from = end[..behind].iter().rposition(|byte| *byte == b'\n').map_or(0, |at| at + 1);
        if let Ok(line) = chain::read(&end[from..behind]) {
            let behind = match end.get(behind + 1..) {
                None => Behind::NoEnd,
                Some([]) => Behind::Nothing,
                Some(rest) => {
                    let torn = rest.strip_suffix(b"\n");
                    let (torn, is_open) = (torn.unwrap_or(rest), torn.is_none());
                    Behind::Torn { bytes: torn.len() as u64, sha256: Digest(sha256(&[torn])), is_open }
                }
            };
            return Some(Found { head: line.head(), is_stopped: line.fact == "stopped", is_new: false, behind });
        }
        behind = from.checked_sub(1)?;
    }
}

/// A part of a first line.
fn is_first_torn(bytes: &[u8]) -> bool {
    const START: &[u8] = b"{\"seq\":";
    let shared = bytes.len().min(START.len());
    bytes.len() < LINE_MAX_BYTES && !bytes.contains(&b'\n') && bytes[..shared] == START[..shared]
}

#[cfg(test)]
mod tests;
