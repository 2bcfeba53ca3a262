//! Why there is no connection, and what a person is told about it.
//!
//! Owns: the sentences. Invariant: what an unproved peer said is only ever a hint; nothing of it is repeated unescaped.

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use crate::error::{Exit, Failure};
use crate::ids::Generation;
use crate::store::StoreError;
use crate::wire::codes::Code;
use crate::wire::lines::{Range, Role};
use crate::wire::text::escaped;

/// Characters of a peer's words that are shown.
const SHOWN_CHARS: usize = 80;

/// Why there is no connection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ConnectFailure {
    /// Nobody listens, or no daemon ever ran here.
    NotRunning,
    /// No place; the daemon's word, which may be unsigned.
    Busy {
        /// What is exhausted.
        resource: String,
    },
    /// No answer in time: stopped or overwhelmed, not dead.
    Hung {
        /// Whose end it is, to be shown and never acted on.
        pid: Option<u32>,
        /// How long it was waited for.
        waited: Duration,
    },
    /// Who listens is not the daemon of the key that is held here.
    Impostor {
        /// Where it listens.
        socket: PathBuf,
        /// The key that it did not prove.
        key: PathBuf,
    },
    /// No common protocol, by the daemon's signed word.
    Incompatible {
        /// What this side offered.
        ours: Range,
        /// What the daemon speaks.
        theirs: Range,
        /// Its program and version.
        build: String,
        /// Its start.
        generation: Generation,
    },
    /// The daemon does not let this key in.
    Refused(Code),
    /// The stream ended in the middle of the hello.
    Lost,
    /// A bundle cannot be used for that.
    WrongRole {
        /// Its folder.
        bundle: PathBuf,
        /// What it is.
        has: Role,
        /// What is needed.
        needs: Role,
    },
    /// A file of ours cannot be used.
    Store(StoreError),
    /// There is no thread to be had.
    NoThread,
    /// A daemon could not be started.
    NotStarted {
        /// Its last word, or what is wrong.
        reason: String,
    },
}

impl From<StoreError> for ConnectFailure {
    fn from(error: StoreError) -> Self {
        Self::Store(error)
    }
}

impl From<StoreError> for Failure {
    fn from(error: StoreError) -> Self {
        Self::new(Exit::Unavailable, "store", what(&error)).hint(error.remedy())
    }
}

/// The line of a store error without its remedy, which becomes the hint.
fn what(error: &StoreError) -> String {
    let line = error.to_string();
    line.strip_suffix(error.remedy()).and_then(|rest| rest.strip_suffix("; ")).unwrap_or(&line).to_owned()
}

impl From<ConnectFailure> for Failure {
    fn from(failure: ConnectFailure) -> Self {
        match failure {
            ConnectFailure::NotRunning => Self::new(Exit::Unavailable, "not-running", "no daemon is running")
                .hint("usher run starts one, usherd runs it in the foreground"),
            ConnectFailure::Busy { resource } => {
                let resource = escaped(&resource, SHOWN_CHARS);
                Self::new(Code::Busy.exit(), Code::Busy.word(), format!("the daemon has no free place ({resource})"))
                    .hint("try again in a moment")
            }
            ConnectFailure::Hung { pid, waited } => hung(pid, waited),
            ConnectFailure::Impostor { socket, key } => {
                let (socket, key) = (shown(&socket), shown(&key));
                let message = format!("the daemon on {socket} is not the one whose key is in {key}");
                Self::new(Exit::Unavailable, "impostor", message)
                    .hint("no proof, command or input went to it; find out what listens there")
            }
            ConnectFailure::Incompatible { ours, theirs, build, .. } => {
                let (ours, theirs, build) = (range(ours), range(theirs), escaped(&build, SHOWN_CHARS));
                let message =
                    format!("the running daemon is {build} and speaks {theirs}; this is {} with {ours}", super::BUILD);
                Self::new(Exit::Incompatible, "incompatible", message)
                    .hint("use the usher that belongs to it, or end it with usher stop once nobody needs it")
            }
            ConnectFailure::Refused(code @ (Code::Revoked | Code::Expired | Code::Unauthenticated)) => {
                Self::new(code.exit(), code.word(), code.sentence())
                    .hint("an operator makes another key: usher keys renew ROLE for a default one, else usher keys new")
            }
            ConnectFailure::Refused(code) => Self::new(code.exit(), code.word(), code.sentence()),
            ConnectFailure::Lost => Self::new(
                Code::ConnectionLost.exit(),
                Code::ConnectionLost.word(),
                "the daemon closed the connection before it answered",
            )
            .hint("try again; usher status says whether one is running"),
            ConnectFailure::WrongRole { bundle, has, needs } => {
                let (has, needs) = (has.word(), needs.word());
                let message = format!("the credential in {} has the role {has}; this needs {needs}", shown(&bundle));
                Self::new(Exit::Denied, "role", message)
                    .hint("unset USHER_CREDENTIAL or name another bundle with --credential")
            }
            ConnectFailure::Store(error) => error.into(),
            ConnectFailure::NoThread => {
                Self::new(Exit::Capacity, Code::Busy.word(), "the system has no thread to spare")
                    .hint("try again later")
            }
            ConnectFailure::NotStarted { reason } => {
                Self::new(Exit::Unavailable, "not-started", format!("the daemon did not start: {reason}"))
            }
        }
    }
}

fn hung(pid: Option<u32>, waited: Duration) -> Failure {
    let who = pid.map(|pid| format!(" (process {pid})")).unwrap_or_default();
    let seconds = waited.as_secs_f32();
    let message = format!("a daemon{who} listens but did not answer within {seconds:.1} s");
    Failure::new(Exit::Unavailable, "hung", message).hint("it may be stopped or overloaded; look at that process")
}

fn shown(path: &std::path::Path) -> String {
    escaped(&path.to_string_lossy(), 4096)
}

/// Why there is no connection, for users of the library: a sentence to show, and a word to act on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConnectError(Failure);

impl ConnectError {
    /// `not-running`, `impostor`, `incompatible`, `revoked` …: what `usher --json` tells as `code`.
    #[must_use]
    pub fn code(&self) -> &'static str {
        self.0.code
    }
}

impl From<ConnectFailure> for ConnectError {
    fn from(failure: ConnectFailure) -> Self {
        Self(failure.into())
    }
}

impl fmt::Display for ConnectError {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(out)
    }
}

impl std::error::Error for ConnectError {}

/// `protocol 1` or `protocols 1 to 3`.
pub fn range(range: Range) -> String {
    if range.min == range.max {
        format!("protocol {}", range.min)
    } else {
        format!("protocols {} to {}", range.min, range.max)
    }
}

/// Why a message was not sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SendError {
    /// The connection is over. The daemon never had the whole of this message.
    Lost,
    /// Header or payload are over their limit; the connection is as it was.
    TooLarge,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_incompatible_daemon_is_told_with_both_ranges_and_both_builds() {
        let failure = Failure::from(ConnectFailure::Incompatible {
            ours: Range { min: 1, max: 1 },
            theirs: Range { min: 2, max: 4 },
            build: "usherd/9.9.9\u{1b}[31m".to_owned(),
            generation: Generation([0; 16]),
        });
        let line = failure.to_string();
        assert_eq!(failure.exit, Exit::Incompatible);
        for part in ["usherd/9.9.9", "protocols 2 to 4", "protocol 1", crate::client::BUILD, "usher stop"] {
            assert!(line.contains(part), "{line}");
        }
        assert!(!line.contains('\u{1b}'), "{line}");
    }

    #[test]
    fn an_impostor_is_told_with_the_socket_and_the_key_it_lacks() {
        let line =
            Failure::from(ConnectFailure::Impostor { socket: "/d/s/x".into(), key: "/d/keys/daemon.pub".into() })
                .to_string();
        assert!(line.starts_with("the daemon on /d/s/x is not the one whose key is in /d/keys/daemon.pub;"), "{line}");
    }

    #[test]
    fn a_store_error_keeps_its_words_and_gives_its_remedy_as_the_hint() {
        let error = StoreError::new("/d/keys", crate::store::Problem::Missing);
        let line = error.to_string();
        assert_eq!(Failure::from(error).to_string(), line);
    }
}
