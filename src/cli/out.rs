//! Standard output: data, and nothing else.
//!
//! Invariant: a reader that has gone away (`usher list | head -1`) is no failure; a disk that is full is one.

use std::io::{self, ErrorKind, IsTerminal, Write};

use serde::Serialize;

use crate::error::{Exit, Failure};

use super::trouble::Trouble;

/// Writes text as it stands.
pub fn text(text: &str) -> Result<(), Trouble> {
    bytes(text.as_bytes())
}

/// Writes a document on one line.
pub fn json(document: &impl Serialize) -> Result<(), Trouble> {
    let mut line = serde_json::to_vec(document)
        .map_err(|error| Failure::new(Exit::Bug, "internal", format!("no JSON form: {error}")))?;
    line.push(b'\n');
    bytes(&line)
}

/// Writes bytes as they stand.
pub fn bytes(bytes: &[u8]) -> Result<(), Trouble> {
    let mut out = io::stdout().lock();
    match out.write_all(bytes).and_then(|()| out.flush()) {
        Err(error) if error.kind() != ErrorKind::BrokenPipe => {
            Err(Failure::new(Exit::Negative, "output", format!("standard output cannot be written: {error}")).into())
        }
        _ => Ok(()),
    }
}

/// Writes a line for a person to standard error; nobody can be told when that fails.
pub fn note(line: &str) {
    let _ = writeln!(io::stderr().lock(), "{line}");
}

/// Whether a person looks at standard output.
pub fn is_terminal() -> bool {
    io::stdout().is_terminal()
}

/// Whether colour is of use there.
pub fn is_colourful() -> bool {
    let set = |name| std::env::var_os(name).is_some_and(|value| !value.is_empty());
    let dumb = std::env::var_os("TERM").is_none_or(|term| term == "dumb");
    is_terminal() && !set("NO_COLOR") && !dumb
}
