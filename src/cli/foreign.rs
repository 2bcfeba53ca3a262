//! Files that a person names on the command line: inputs, receipts, keys. Not ours, so not judged, only bounded.

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

use crate::error::{Exit, Failure};
use crate::wire::text::escaped;

/// All of a file, if it has no more than so many bytes.
pub fn read(path: &Path, max_bytes: u64) -> Result<Vec<u8>, Failure> {
    let shown = escaped(&path.to_string_lossy(), 4096);
    let cannot = |error: io::Error| Failure::usage(format!("{shown} cannot be read: {error}"));
    let bytes = bounded(File::open(path).map_err(cannot)?, max_bytes).map_err(cannot)?;
    bytes.ok_or_else(|| too_large(&shown, max_bytes))
}

/// All of standard input, under the same bound.
pub fn read_stdin(max_bytes: u64) -> Result<Vec<u8>, Failure> {
    let bytes = bounded(io::stdin().lock(), max_bytes)
        .map_err(|error| Failure::usage(format!("standard input cannot be read: {error}")))?;
    bytes.ok_or_else(|| too_large("standard input", max_bytes))
}

fn bounded(from: impl Read, max_bytes: u64) -> io::Result<Option<Vec<u8>>> {
    let mut bytes = Vec::new();
    let count = from.take(max_bytes + 1).read_to_end(&mut bytes)?;
    Ok((count as u64 <= max_bytes).then_some(bytes))
}

fn too_large(what: &str, max_bytes: u64) -> Failure {
    Failure::new(Exit::Usage, "too-large", format!("{what} holds more than {max_bytes} bytes"))
}
