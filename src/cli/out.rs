//! Standard output: data, and nothing else.
//!
//! Invariant: a reader that has gone away (`usher list | head -1`) is no failure; a disk that is full is one.

use std::io::{self, ErrorKind, IsTerminal, Write};
use std::os::fd::AsFd;

use crossbeam_channel::{Receiver, bounded};
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use serde::Serialize;

use crate::error::{Exit, Failure};
use crate::threads;

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

/// Ends when nobody can read standard output any more, for what would go on writing. Nothing comes through it.
pub fn reader_gone() -> Result<Receiver<()>, Trouble> {
    let (end, ended) = bounded(0);
    let watch = move || {
        let out = io::stdout();
        // With nothing asked for, only what always comes is told: an error or a hang-up.
        while let Ok(0) | Err(Errno::EINTR) =
            poll(&mut [PollFd::new(out.as_fd(), PollFlags::empty())], PollTimeout::NONE)
        {}
        drop::<crossbeam_channel::Sender<()>>(end);
    };
    threads::spawn("usher-out", watch).map_err(|_| crate::client::ConnectFailure::NoThread)?;
    Ok(ended)
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
