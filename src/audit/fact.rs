//! What can stand in the audit: a closed list. A new fact is a variant here and a call of [`Audit::record`](super::Audit::record).
//!
//! Invariant: no field holds text that a peer has sent. What peers choose is told by size and digest, or by an id of
//! fixed length; words are ours.

use jiff::Timestamp;
use serde::Serialize;

use crate::ids::{
    ApprovalId, ConnectionId, CredentialId, Digest, Fingerprint, Generation, PublicKey, SessionId, Signature,
};

use crate::wire::events::GoneReason;

use super::limit::{Kind, Rate};

/// How the daemon before this one ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum After {
    /// There was none that left an audit.
    First,
    /// It said that it ended.
    Clean,
    /// It did not.
    Crash,
}

/// One thing that happened. Serialised: `fact` first, then its fields in this order.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(tag = "fact", rename_all = "kebab-case")]
pub enum Fact {
    /// The first line of all.
    Begun {},
    /// The first line of a file that goes on where the old copy ends.
    Continued {},
    /// The bytes between the last line and this one are no line: a write was cut off.
    Torn { bytes: u64, sha256: Digest },
    /// The file did not end where the daemon knew that it ended.
    EndDiffers { known_seq: u64, known_hash: Digest, found_seq: u64 },
    /// So many facts have no line, since the queue was full or the disk refused.
    Lost { count: u64, since: Timestamp },
    /// So many facts of a kind have no line, since there were too many.
    LeftOut {
        of: &'static str,
        #[serde(skip_serializing_if = "Option::is_none")]
        credential: Option<CredentialId>,
        #[serde(skip_serializing_if = "Option::is_none")]
        code: Option<&'static str>,
        count: u64,
        since: Timestamp,
    },

    /// A daemon serves.
    Started { build: &'static str, generation: Generation, after: After },
    /// It has ended, and every connection and session that was open with it.
    Stopped { reason: &'static str, undelivered: u64 },
    /// An operator asked for the end after the last session.
    DrainAsked { by: CredentialId },
    /// An operator asked for the end.
    StopAsked { by: CredentialId, force: bool },

    /// A peer was let in.
    Connected { connection: ConnectionId, credential: CredentialId, role: &'static str, protocol: u16, uid: u32 },
    /// A connection ended before a peer was let in.
    Refused {
        code: &'static str,
        #[serde(skip_serializing_if = "Option::is_none")]
        credential: Option<CredentialId>,
        #[serde(skip_serializing_if = "Option::is_none")]
        uid: Option<u32>,
    },
    /// A peer's connection has ended.
    Disconnected { connection: ConnectionId, credential: CredentialId, reason: &'static str },
    /// A peer asked for what it may not do.
    Denied { connection: ConnectionId, credential: CredentialId, method: &'static str, code: &'static str },

    /// A key has a credential.
    CredentialEnrolled { credential: CredentialId, fingerprint: Fingerprint, role: &'static str, by: CredentialId },
    /// Nothing of a credential takes effect any more; when the disk refused, until this daemon ends.
    CredentialRevoked { credential: CredentialId, durable: bool, by: CredentialId },
    /// A credential has a new end, or none.
    CredentialRenewed {
        credential: CredentialId,
        #[serde(skip_serializing_if = "Option::is_none")]
        expires: Option<Timestamp>,
        by: CredentialId,
    },
    /// A credential was seen expired for the first time.
    CredentialExpired { credential: CredentialId },

    /// A question to a person stands; the digest is that of the text which is signed.
    ApprovalRequested {
        approval: ApprovalId,
        credential: CredentialId,
        connection: ConnectionId,
        text_bytes: u64,
        text_sha256: Digest,
    },
    /// It has its answer: somebody's, with the key that signed it and the signature, or none.
    ApprovalDecided {
        approval: ApprovalId,
        credential: CredentialId,
        decision: &'static str,
        #[serde(skip_serializing_if = "Option::is_none")]
        by: Option<CredentialId>,
        #[serde(skip_serializing_if = "Option::is_none")]
        public_key: Option<PublicKey>,
        #[serde(skip_serializing_if = "Option::is_none")]
        signature: Option<Signature>,
    },
    /// Somebody decided what had its answer already: it counts for nothing.
    ApprovalStale { approval: ApprovalId, decision: &'static str, by: CredentialId },

    /// A session is there.
    SessionRegistered {
        session: SessionId,
        credential: CredentialId,
        connection: ConnectionId,
        title_bytes: u64,
        title_sha256: Digest,
    },
    /// A session is there again, under its lease.
    SessionResumed {
        session: SessionId,
        credential: CredentialId,
        connection: ConnectionId,
        title_bytes: u64,
        title_sha256: Digest,
    },
    /// Another key may take a session back as well.
    SessionKeyStaged { session: SessionId, credential: CredentialId, connection: ConnectionId },
    /// The key that could take it back before can no more.
    SessionKeyConfirmed { session: SessionId, credential: CredentialId, connection: ConnectionId },
    /// A session is not there any more.
    SessionGone { session: SessionId, credential: CredentialId, connection: ConnectionId, reason: GoneReason },
}

impl Fact {
    /// What a peer can cause as often as it likes has a rate, for each kind of it and each credential: nobody rolls the
    /// history out of the files.
    pub(super) fn rate(&self) -> Option<(Kind, Rate)> {
        let of = |fact, credential, rate| Some((Kind { fact, credential, code: None }, rate));
        match self {
            Self::Connected { credential, .. } => of("connected", Some(*credential), Rate::CONNECTION),
            Self::Disconnected { credential, .. } => of("disconnected", Some(*credential), Rate::CONNECTION),
            Self::Refused { code, .. } => {
                Some((Kind { fact: "refused", credential: None, code: Some(code) }, Rate::REFUSAL))
            }
            Self::Denied { credential, .. } => of("denied", Some(*credential), Rate::REFUSAL),
            Self::ApprovalRequested { credential, .. } => of("approval-requested", Some(*credential), Rate::OPERATOR),
            // As many as were requested, and what a person has decided is never left out.
            Self::ApprovalDecided { by: None, credential, .. } => {
                of("approval-decided", Some(*credential), Rate::OPERATOR)
            }
            Self::ApprovalStale { by, .. } => of("approval-stale", Some(*by), Rate::OPERATOR),
            Self::SessionRegistered { credential, .. } => of("session-registered", Some(*credential), Rate::SESSION),
            Self::SessionResumed { credential, .. } => of("session-resumed", Some(*credential), Rate::SESSION),
            Self::SessionKeyStaged { credential, .. } => of("session-key-staged", Some(*credential), Rate::SESSION),
            Self::SessionKeyConfirmed { credential, .. } => {
                of("session-key-confirmed", Some(*credential), Rate::SESSION)
            }
            Self::SessionGone { credential, .. } => of("session-gone", Some(*credential), Rate::SESSION),
            Self::CredentialEnrolled { by, .. } => of("credential-enrolled", Some(*by), Rate::OPERATOR),
            Self::CredentialRevoked { by, .. } => of("credential-revoked", Some(*by), Rate::OPERATOR),
            Self::CredentialRenewed { by, .. } => of("credential-renewed", Some(*by), Rate::OPERATOR),
            Self::DrainAsked { by } => of("drain-asked", Some(*by), Rate::OPERATOR),
            Self::Begun {}
            | Self::Continued {}
            | Self::Torn { .. }
            | Self::EndDiffers { .. }
            | Self::Lost { .. }
            | Self::LeftOut { .. }
            | Self::Started { .. }
            | Self::Stopped { .. }
            | Self::ApprovalDecided { by: Some(_), .. }
            | Self::StopAsked { .. }
            | Self::CredentialExpired { .. } => None,
        }
    }
}

/// What is told in place of a text: its size and digest.
pub fn sized(text: &str) -> (u64, Digest) {
    (text.len() as u64, Digest(crate::wire::transcript::sha256(&[text.as_bytes()])))
}
