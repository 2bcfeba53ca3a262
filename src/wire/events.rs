//! Shapes of events (docs/protocol.md, "Events"): one table of kinds, cursors, what each kind tells.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::value::RawValue;

use crate::ids::{ApprovalId, ConnectionId, CredentialId, Generation, SessionId};
use crate::wire::approvals::Decision;
use crate::wire::codes::Refusal;
use crate::wire::lines::Role;
use crate::wire::text::escaped;

macro_rules! kinds {
    ($($variant:ident $word:literal;)+) => {
        /// What kind of thing happened.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        pub enum Kind {
            $(#[doc = $word] $variant,)+
        }

        impl Kind {
            /// All of them, in the order of the manual.
            pub const ALL: &'static [Self] = &[$(Self::$variant,)+];

            /// The word on the wire.
            pub fn word(self) -> &'static str {
                match self { $(Self::$variant => $word,)+ }
            }
        }
    };
}

kinds! {
    Connection "connection";
    SessionRegistered "session-registered";
    SessionUpdated "session-updated";
    SessionGone "session-gone";
    RuntimesDetected "runtimes-detected";
    Paired "paired";
    Unpaired "unpaired";
    CredentialRevoked "credential-revoked";
    AwaitingApproval "awaiting-approval";
    ApprovalDecided "approval-decided";
    StaleApprovalDecision "stale-approval-decision";
    ShutdownRequested "shutdown-requested";
    ShutdownComplete "shutdown-complete";
    Lagged "lagged";
}

/// A set of kinds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Kinds(u32);

const _: () = assert!(Kind::ALL.len() <= 32);

impl Kinds {
    /// Every kind.
    pub const ALL: Self = Self(u32::MAX);

    /// From their words; none of them may be unknown.
    pub fn named(words: &[String]) -> Result<Self, Refusal> {
        let mut set = Self(0);
        for word in words {
            let known = Kind::ALL.iter().find(|kind| kind.word() == word);
            let Some(&kind) = known else {
                let all: Vec<_> = Kind::ALL.iter().map(|kind| kind.word()).collect();
                let message = format!("\"{}\" is no kind; there are {}", escaped(word, 64), all.join(" "));
                return Err(Refusal::invalid(message));
            };
            set.0 |= 1 << kind as u32;
        }
        Ok(set)
    }

    /// Whether the kind is in it.
    pub fn has(self, kind: Kind) -> bool {
        self.0 & (1 << kind as u32) != 0
    }
}

/// A place in the feed of one start of a daemon: behind its `seq`th event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Cursor {
    /// The start.
    pub generation: Generation,
    /// The event, counted from 1; 0 is in front of all.
    pub seq: u64,
}

impl fmt::Display for Cursor {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{}:{}", self.generation, self.seq)
    }
}

impl FromStr for Cursor {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        const NO_CURSOR: &str = "a cursor is 22 characters, a colon and a number";
        let (generation, seq) = text.split_once(':').ok_or(NO_CURSOR)?;
        let plain = !seq.is_empty() && seq.bytes().all(|byte| byte.is_ascii_digit());
        let seq = if plain { seq.parse().map_err(|_| NO_CURSOR)? } else { return Err(NO_CURSOR) };
        Ok(Self { generation: generation.parse().map_err(|_| NO_CURSOR)?, seq })
    }
}

impl Serialize for Cursor {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Cursor {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        std::borrow::Cow::<'de, str>::deserialize(from)?.parse().map_err(serde::de::Error::custom)
    }
}

/// What a connection has become.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum ConnectionState {
    /// Let in.
    Open,
    /// Over.
    Closed,
    /// Ended by a revocation or an expiry.
    Revoked,
}

/// Why a session is gone.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum GoneReason {
    /// Its producer said so.
    Unregistered,
    /// Its connection ended.
    Lost,
    /// It was not heard for too long.
    Silent,
    /// Its credential was revoked.
    Revoked,
    /// Its credential expired.
    Expired,
}

/// Why events are missing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum LagReason {
    /// The subscriber did not read.
    Slow,
    /// They are older than what is kept.
    Age,
    /// They are of another start of the daemon.
    Restart,
}

/// Somebody with a record.
#[derive(Debug, Clone, Copy, Serialize)]
pub struct Who<'a> {
    /// The record.
    pub credential: CredentialId,
    /// Its label.
    pub label: &'a str,
}

/// What happened, as it is told. Written by the daemon; read leniently elsewhere.
#[derive(Debug, Serialize)]
#[serde(tag = "kind", rename_all = "kebab-case")]
pub enum Event<'a> {
    /// A peer came or went.
    Connection { peer: ConnectionId, credential: CredentialId, label: &'a str, role: Role, state: ConnectionState },
    /// A session is there, or has changed hands.
    SessionRegistered {
        session_id: SessionId,
        title: &'a str,
        cwd: &'a str,
        #[serde(skip_serializing_if = "Option::is_none")]
        repo_root: Option<&'a str>,
        pid: u32,
        credential: CredentialId,
        resumed: bool,
    },
    /// It reports something else than before.
    SessionUpdated { session_id: SessionId, title: &'a str, changed: &'a [&'static str] },
    /// It has ended.
    SessionGone { session_id: SessionId, title: &'a str, reason: GoneReason },
    /// It can run these, as it reports them.
    RuntimesDetected { session_id: SessionId, runtimes: &'a [Box<RawValue>] },
    /// A credential was enrolled.
    Paired { credential: CredentialId, label: &'a str, role: Role, by: CredentialId },
    /// A credential has ended.
    Unpaired { credential: CredentialId, label: &'a str, reason: GoneReason },
    /// By an operator.
    CredentialRevoked { credential: CredentialId, label: &'a str },
    /// Somebody asks.
    AwaitingApproval {
        approval_id: ApprovalId,
        summary: &'a str,
        label: &'a str,
        credential: CredentialId,
        #[serde(skip_serializing_if = "Option::is_none")]
        session_id: Option<SessionId>,
        expires: jiff::Timestamp,
    },
    /// A question has ended.
    ApprovalDecided {
        approval_id: ApprovalId,
        decision: Decision,
        #[serde(skip_serializing_if = "Option::is_none")]
        by: Option<Who<'a>>,
        #[serde(skip_serializing_if = "Option::is_none")]
        reason: Option<&'a str>,
    },
    /// Somebody decided what had ended.
    StaleApprovalDecision { approval_id: ApprovalId, decision: Decision, reason: &'static str, by: Who<'a> },
    /// The daemon begins to end.
    ShutdownRequested { reason: &'static str },
    /// It has ended.
    ShutdownComplete { reason: &'static str, undelivered: u64 },
    /// A gap.
    Lagged {
        #[serde(skip_serializing_if = "Option::is_none")]
        missed: Option<u64>,
        reason: LagReason,
    },
}

impl Event<'_> {
    /// Its kind.
    pub fn kind(&self) -> Kind {
        match self {
            Self::Connection { .. } => Kind::Connection,
            Self::SessionRegistered { .. } => Kind::SessionRegistered,
            Self::SessionUpdated { .. } => Kind::SessionUpdated,
            Self::SessionGone { .. } => Kind::SessionGone,
            Self::RuntimesDetected { .. } => Kind::RuntimesDetected,
            Self::Paired { .. } => Kind::Paired,
            Self::Unpaired { .. } => Kind::Unpaired,
            Self::CredentialRevoked { .. } => Kind::CredentialRevoked,
            Self::AwaitingApproval { .. } => Kind::AwaitingApproval,
            Self::ApprovalDecided { .. } => Kind::ApprovalDecided,
            Self::StaleApprovalDecision { .. } => Kind::StaleApprovalDecision,
            Self::ShutdownRequested { .. } => Kind::ShutdownRequested,
            Self::ShutdownComplete { .. } => Kind::ShutdownComplete,
            Self::Lagged { .. } => Kind::Lagged,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_manual_has_every_kind() {
        for page in [include_str!("../../docs/protocol.md"), include_str!("../../docs/events.md")] {
            for kind in Kind::ALL {
                assert!(page.contains(&format!("| `{}` |", kind.word())), "{}", kind.word());
            }
        }
    }

    #[test]
    fn the_word_of_a_kind_is_the_one_that_is_written() {
        let event = Event::StaleApprovalDecision {
            approval_id: ApprovalId([1; 16]),
            decision: Decision::Approved,
            reason: "already-decided",
            by: Who { credential: CredentialId([2; 16]), label: "me" },
        };
        let text = serde_json::to_string(&event).unwrap();
        assert!(text.starts_with(r#"{"kind":"stale-approval-decision","approval_id":"AQEB"#), "{text}");
        assert_eq!(event.kind().word(), "stale-approval-decision");
    }

    #[test]
    fn a_cursor_reads_back_and_nothing_else_is_one() {
        let cursor = Cursor { generation: Generation([7; 16]), seq: 42 };
        assert_eq!(cursor.to_string().parse(), Ok(cursor));
        let generation = Generation([7; 16]);
        for text in
            ["", "1", ":1", "x:1", &format!("{generation}:"), &format!("{generation}:+1"), &format!("{generation}:x")]
        {
            assert!(text.parse::<Cursor>().is_err(), "{text}");
        }
    }

    #[test]
    fn an_unknown_kind_is_refused_and_the_known_ones_are_named() {
        let refused = Kinds::named(&["connexion".to_owned()]).unwrap_err();
        assert!(refused.message.unwrap().contains("session-registered"));
        let set = Kinds::named(&["lagged".to_owned()]).unwrap();
        assert!(set.has(Kind::Lagged) && !set.has(Kind::Connection));
    }
}
