//! Receipts on disk: a place is taken before anything is asked, so that no answer is lost for want of one.

use std::fs::{File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use crate::error::{Exit, Failure};
use crate::wire::receipt::Receipt;
use crate::wire::text::escaped;

use super::trouble::Trouble;

/// A file that is empty so far; dropped, it goes.
pub struct Place {
    file: File,
    path: PathBuf,
    kept: bool,
}

impl Place {
    /// A new file, if one was asked for.
    pub fn take(path: Option<&Path>) -> Result<Option<Self>, Failure> {
        let Some(path) = path else { return Ok(None) };
        let file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path);
        match file {
            Ok(file) => Ok(Some(Self { file, path: path.to_owned(), kept: false })),
            Err(error) => Err(Failure::usage(format!("{} cannot be made: {error}", shown(path)))
                .hint("--receipt takes a file that does not exist yet")),
        }
    }

    /// Writes the receipt and keeps the file.
    fn keep(mut self, receipt: &Receipt) -> Result<(), Trouble> {
        let failed = |error: std::io::Error| {
            let message = format!("done, but the receipt could not be written to {}: {error}", shown(&self.path));
            Failure::new(Exit::Negative, "output", message)
        };
        let mut text = serde_json::to_vec(receipt).map_err(|error| failed(error.into()))?;
        text.push(b'\n');
        self.file.write_all(&text).and_then(|()| self.file.sync_all()).map_err(failed)?;
        self.kept = true;
        Ok(())
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        if !self.kept {
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

/// Keeps a receipt where a place was taken for it.
pub fn keep(place: Option<Place>, receipt: Option<&Receipt>) -> Result<(), Trouble> {
    match (place, receipt) {
        (Some(place), Some(receipt)) => place.keep(receipt),
        _ => Ok(()),
    }
}

fn shown(path: &Path) -> String {
    escaped(&path.to_string_lossy(), 4096)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_receipt_never_overwrites_and_leaves_nothing_when_there_is_none() {
        let scratch = tempfile::tempdir().unwrap();
        let path = scratch.path().join("receipt");
        drop(Place::take(Some(&path)).unwrap());
        assert!(!path.exists());
        File::create(&path).unwrap();
        assert!(Place::take(Some(&path)).is_err());
        assert!(path.exists());
        assert!(Place::take(None).unwrap().is_none());
    }
}
