//! The files of an audit, for whoever reads them while a daemon may write.

use std::fs::File;
use std::io::{Read, Seek, SeekFrom};

use crate::store::{Dir, Identity, Problem, StoreError};

use super::{FILE, OLD};

/// What is read at most: a file at its largest, and what a daemon with another bound may have left.
const MAX_BYTES: u64 = 64 * 1024 * 1024;

/// Tries to find both files while one becomes the other.
const ATTEMPTS: usize = 5;

/// A file that grows while it is read.
pub struct Reading {
    file: File,
    name: &'static str,
    identity: Identity,
    dir: Dir,
}

impl Reading {
    /// The current file; none where there is none.
    pub fn current(dir: &Dir) -> Result<Option<Self>, StoreError> {
        Self::open(dir, FILE)
    }

    fn open(dir: &Dir, name: &'static str) -> Result<Option<Self>, StoreError> {
        let file = match dir.open_growing(name) {
            Ok(file) => file,
            Err(error) if error.is_missing() => return Ok(None),
            Err(error) => return Err(error),
        };
        let identity = dir.identity_of(name, &file)?;
        Ok(Some(Self { file, name, identity, dir: dir.try_clone()? }))
    }

    /// Whether the name of the current file leads to another by now, or nowhere.
    pub fn is_turned(&self) -> Result<bool, StoreError> {
        Ok(self.dir.identity(FILE)? != Some(self.identity))
    }

    /// What has come since the last call. A file that was cut is read from its beginning.
    pub fn more(&mut self) -> Result<Vec<u8>, StoreError> {
        let path = || self.dir.path().join(self.name);
        let io = |error: std::io::Error| StoreError::io(path(), &error);
        let mut at = self.file.stream_position().map_err(io)?;
        let size = self.file.metadata().map_err(io)?.len();
        if size < at {
            at = self.file.seek(SeekFrom::Start(0)).map_err(io)?;
        }
        let count = size.saturating_sub(at);
        if count > MAX_BYTES {
            return Err(StoreError::new(path(), Problem::TooLarge { bytes: size, max_bytes: MAX_BYTES }));
        }
        let mut bytes = Vec::new();
        self.file.by_ref().take(count).read_to_end(&mut bytes).map_err(io)?;
        Ok(bytes)
    }

    /// The lines that have come since the last call, without their LFs, and what stands behind the last one: that is read
    /// again by the next call.
    pub fn lines(&mut self) -> Result<(Vec<Vec<u8>>, Vec<u8>), StoreError> {
        let bytes = self.more()?;
        let whole = bytes.iter().rposition(|byte| *byte == b'\n').map_or(0, |at| at + 1);
        let (lines, begun) = bytes.split_at(whole);
        let back = i64::try_from(begun.len()).unwrap_or(0);
        let sought = self.file.seek(SeekFrom::Current(-back));
        sought.map_err(|error| StoreError::io(self.dir.path().join(self.name), &error))?;
        let lines = lines.split_inclusive(|byte| *byte == b'\n').map(|line| line[..line.len() - 1].to_vec());
        Ok((lines.collect(), begun.to_vec()))
    }
}

/// Both files, as they were at one moment.
pub struct Files {
    /// The old copy.
    pub old: Option<Reading>,
    /// The current file.
    pub current: Option<Reading>,
}

impl Files {
    /// Opens them.
    pub fn open(dir: &Dir) -> Result<Self, StoreError> {
        for _ in 1..ATTEMPTS {
            let files = Self::open_once(dir)?;
            let still = dir.identity(FILE)?;
            if still == files.current.as_ref().map(|current| current.identity) {
                return Ok(files);
            }
        }
        Self::open_once(dir)
    }

    fn open_once(dir: &Dir) -> Result<Self, StoreError> {
        // The old one second: what was the current file until then is found there, which the look at its name tells.
        let current = Reading::open(dir, FILE)?;
        Ok(Self { old: Reading::open(dir, OLD)?, current })
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt;
    use std::sync::atomic::{AtomicBool, Ordering::SeqCst};

    use super::*;
    use crate::store::scratch::Scratch;

    /// Else who follows waits for ever for what comes to a file that was turned, and who verifies reads one file twice.
    #[test]
    fn a_file_that_is_turned_while_it_is_opened_is_known_as_the_one_that_was_opened() {
        let scratch = Scratch::new();
        let is_over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let turning = scope.spawn(|| {
                while !is_over.load(SeqCst) {
                    scratch.file(FILE, b"", 0o600);
                    std::fs::rename(scratch.path().join(FILE), scratch.path().join(OLD)).unwrap();
                }
            });
            let dir = scratch.dir();
            let opened = (0..20_000).filter_map(|_| Reading::current(&dir).ok().flatten());
            let is_another = |reading: &Reading| reading.identity.ino != reading.file.metadata().unwrap().ino();
            let others = opened.filter(is_another).count();
            is_over.store(true, SeqCst);
            turning.join().unwrap();
            assert_eq!(others, 0);
        });
    }
}
