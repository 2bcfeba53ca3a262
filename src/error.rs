//! How a program of ours ends: an exit code and one line for a person.
//!
//! Peers get a code and a fixed sentence instead (`wire::codes`); a module with failures of its own has its own type
//! and converts at its border.

use std::fmt;

/// What a program's exit code says (docs/protocol.md, "Exit codes"). A contract: scripts act on these.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Exit {
    /// Done, approved.
    Done = 0,
    /// A negative answer: rejected, a command failed.
    Negative = 1,
    /// The command line or an input was wrong.
    Usage = 2,
    /// No daemon, or the connection was lost.
    Unavailable = 3,
    /// A deadline passed.
    Timeout = 4,
    /// Refused for want of a grant.
    Denied = 5,
    /// No such session, credential or command.
    NotFound = 6,
    /// Several match.
    Ambiguous = 7,
    /// The daemon speaks no common protocol.
    Incompatible = 8,
    /// Already decided, or in the way of something that lives.
    Conflict = 9,
    /// Refused for capacity.
    Capacity = 10,
    /// A bug of ours.
    Bug = 70,
}

/// Why a program stops: lower case, no full stop, names the object and the remedy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failure {
    /// The exit code.
    pub exit: Exit,
    /// A short code for `--json`, one word with hyphens.
    pub code: &'static str,
    /// What happened and to what.
    pub message: String,
    /// What to do about it, if there is something.
    pub hint: Option<String>,
}

impl Failure {
    /// A failure without a hint.
    pub fn new(exit: Exit, code: &'static str, message: impl Into<String>) -> Self {
        Self { exit, code, message: message.into(), hint: None }
    }

    /// The same with what to do about it.
    #[must_use]
    pub fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }

    /// A mistake on the command line.
    pub fn usage(message: impl Into<String>) -> Self {
        Self::new(Exit::Usage, "usage", message)
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(&self.message)?;
        match &self.hint {
            Some(hint) => write!(out, "; {hint}"),
            None => Ok(()),
        }
    }
}
