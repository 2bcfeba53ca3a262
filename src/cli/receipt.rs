//! Receipts on disk: a place is taken before anything is asked, so that no answer is lost for want of one.
//!
//! Invariant: a file that is left holds a whole receipt, also where a signal ends the program while it waits. Threads: one
//! waits for signals as long as there is a place; it is made first, so that no other thread takes them.

use std::fs::{File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use nix::sys::signal::{SigSet, Signal, raise};
use parking_lot::Mutex;

use crate::error::{Exit, Failure};
use crate::wire::receipt::Receipt;
use crate::wire::text::escaped;
use crate::{sys, threads};

use super::trouble::Trouble;

/// What ends a program that waits.
const ENDS: [Signal; 4] = [Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP, Signal::SIGQUIT];

/// A file that is empty so far; dropped, it goes. To be taken before there are threads, a connection's too: a signal that
/// another thread gets leaves the file there.
pub struct Place {
    file: File,
    /// Where it is, until it is kept or gone.
    path: Arc<Mutex<Option<PathBuf>>>,
}

impl Place {
    /// A new file, if one was asked for.
    pub fn take(path: Option<&Path>) -> Result<Option<Self>, Failure> {
        let Some(path) = path else { return Ok(None) };
        let file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path).map_err(|error| {
            Failure::usage(format!("{} cannot be made: {error}", shown(path)))
                .hint("--receipt takes a file that does not exist yet")
        })?;
        let place = Self { file, path: Arc::new(Mutex::new(Some(path.to_owned()))) };
        place.watch()?;
        Ok(Some(place))
    }

    /// A signal ends the program as it would, but for the file.
    fn watch(&self) -> Result<(), Failure> {
        let mut set = SigSet::empty();
        // What is ignored is blocked neither: then it would not be.
        ENDS.into_iter().filter(|signal| !sys::ignores(*signal)).for_each(|signal| set.add(signal));
        let path = Arc::clone(&self.path);
        let wait = move || {
            while let Ok(signal) = set.wait() {
                remove(&path);
                let _ = set.thread_unblock();
                let _ = raise(signal);
            }
        };
        let failed = |why: String| Failure::new(Exit::Capacity, "busy", why);
        set.thread_block().map_err(|error| failed(format!("signals cannot be blocked: {error}")))?;
        threads::spawn("usher-signals", wait).map_err(|_| failed("the system has no thread to spare".to_owned()))?;
        Ok(())
    }

    /// Writes the receipt and keeps the file.
    fn keep(mut self, receipt: &Receipt) -> Result<(), Trouble> {
        // Under the lock: a signal waits until the file is whole.
        let mut path = self.path.lock();
        let shown = path.as_deref().map(shown).unwrap_or_default();
        let failed = |error: std::io::Error| {
            let message = format!("done, but the receipt could not be written to {shown}: {error}");
            Failure::new(Exit::Negative, "output", message)
        };
        let mut text = serde_json::to_vec(receipt).map_err(|error| failed(error.into()))?;
        text.push(b'\n');
        self.file.write_all(&text).and_then(|()| self.file.sync_all()).map_err(failed)?;
        *path = None;
        Ok(())
    }
}

fn remove(path: &Mutex<Option<PathBuf>>) {
    if let Some(path) = path.lock().take() {
        let _ = std::fs::remove_file(path);
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        remove(&self.path);
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
