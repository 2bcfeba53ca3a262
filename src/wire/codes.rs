//! Why a peer is refused: one table of codes, each with its fixed sentence, and the error object made of it.

use serde::{Deserialize, Deserializer, Serialize};
use serde_json::value::RawValue;

use crate::error::Exit;
use crate::ids::{RotationId, SessionId};
use crate::wire::approvals::Outcome;
use crate::wire::object;

macro_rules! codes {
    ($($variant:ident $text:literal $exit:ident $retryable:literal $sentence:literal;)+) => {
        /// What stands in `data.code` (docs/protocol.md, "Errors").
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        pub enum Code {
            $(#[doc = $sentence] $variant,)+
        }

        impl Code {
            /// All of them, in the order of the manual.
            pub const ALL: &'static [Self] = &[$(Self::$variant,)+];

            /// The word on the wire.
            pub fn word(self) -> &'static str {
                match self { $(Self::$variant => $text,)+ }
            }

            /// What a command line exits with.
            pub fn exit(self) -> Exit {
                match self { $(Self::$variant => Exit::$exit,)+ }
            }

            /// Whether the same request may succeed later, unchanged.
            pub fn retryable(self) -> bool {
                match self { $(Self::$variant => $retryable,)+ }
            }

            /// The fixed sentence.
            pub fn sentence(self) -> &'static str {
                match self { $(Self::$variant => $sentence,)+ }
            }
        }
    };
}

codes! {
    InvalidParams "invalid-params" Usage false "the parameters are not as documented";
    UnknownMethod "unknown-method" Usage false "there is no such method for this role";
    TooLarge "too-large" Usage false "that is larger than its limit";
    InvalidPayload "invalid-payload" Usage false "the payload is not one JSON text";
    Denied "denied" Denied false "this credential was not granted that";
    Unauthenticated "unauthenticated" Denied false "the daemon does not know this key";
    Revoked "revoked" Denied false "this credential was revoked";
    Expired "expired" Denied false "this credential has expired";
    Role "role" Denied false "this credential has another role";
    SessionNotFound "session-not-found" NotFound false "no session matches";
    Ambiguous "ambiguous" Ambiguous false "several sessions match";
    CommandNotFound "command-not-found" NotFound false "the session has no such command";
    CommandFailed "command-failed" Negative false "the command failed";
    InvalidResult "invalid-result" Negative false "the session's answer was not usable";
    KeyConflict "key-conflict" Conflict false "that key stands for another command";
    ResultNotKept "result-not-kept" Negative false "that command was done, and its result was not kept";
    Recovering "recovering" Unavailable true "the daemon has just started, and sessions are coming back";
    SessionLost "session-lost" Unavailable true "the session went away while the command was pending";
    Superseded "superseded" Unavailable true "the session's producer has come back by another connection";
    Timeout "timeout" Timeout true "the deadline passed";
    Cancelled "cancelled" Negative false "the request was cancelled";
    SessionOwned "session-owned" Conflict false "that session id is somebody else's";
    AlreadyRegistered "already-registered" Conflict false "this connection has a session already";
    NotRegistered "not-registered" Conflict true "this connection has no session";
    RotationPending "rotation-pending" Conflict false "another rotation of that key is pending";
    RotationNotFound "rotation-not-found" NotFound false "no such rotation is pending";
    CredentialNotFound "credential-not-found" NotFound false "there is no such credential";
    ApprovalNotFound "approval-not-found" NotFound false "there is no such approval";
    AlreadyDecided "already-decided" Conflict false "that approval has ended";
    LastOperator "last-operator" Conflict false "the last operator credential cannot be revoked";
    AlreadyEnrolled "already-enrolled" Conflict false "that key has a record that is not revoked";
    SessionsLive "sessions-live" Conflict false "sessions are registered";
    Busy "busy" Capacity true "a limit is reached";
    QueueFull "queue-full" Capacity true "the queue is full";
    Draining "draining" Unavailable true "the daemon takes no new sessions";
    ShuttingDown "shutting-down" Unavailable true "the daemon is ending";
    ConnectionLost "connection-lost" Unavailable true "the connection was lost";
    Internal "internal" Bug false "this is a bug of usherd";
}

impl Code {
    /// The code of a word.
    pub fn from_word(word: &str) -> Option<Self> {
        Self::ALL.iter().copied().find(|code| code.word() == word)
    }

    fn number(self) -> i32 {
        match self {
            Self::UnknownMethod => -32_601,
            Self::InvalidParams => -32_602,
            _ => -32_000,
        }
    }
}

/// What became of a command that failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Delivery {
    /// Its last byte never reached the producer's kernel buffer.
    NotDelivered,
    /// The producer answered.
    Delivered,
    /// It may or may not have run.
    Unknown,
}

/// One session among several, as an error lists it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Candidate {
    /// Its id.
    pub session_id: SessionId,
    /// Its title.
    pub title: String,
    /// Where it runs.
    pub cwd: String,
}

/// A refusal or failure, as it is told to a peer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refusal {
    /// What to act on.
    pub code: Code,
    /// In place of the fixed sentence, where it can say more.
    pub message: Option<String>,
    /// What to do, for people.
    pub hint: Option<String>,
    /// What was exhausted.
    pub resource: Option<&'static str>,
    /// Sessions to choose from, or in the way.
    pub sessions: Vec<Candidate>,
    /// The rotation that is in the way.
    pub rotation_id: Option<RotationId>,
    /// What became of the command.
    pub delivery: Option<Delivery>,
    /// What an approval has come to.
    pub outcome: Option<Box<Outcome>>,
}

impl From<Code> for Refusal {
    fn from(code: Code) -> Self {
        Self {
            code,
            message: None,
            hint: None,
            resource: None,
            sessions: Vec::new(),
            rotation_id: None,
            delivery: None,
            outcome: None,
        }
    }
}

impl Refusal {
    /// Parameters that are not as documented, and where.
    pub fn invalid(message: impl Into<String>) -> Self {
        Self { message: Some(message.into()), ..Code::InvalidParams.into() }
    }

    /// A limit that is reached.
    pub fn busy(resource: &'static str) -> Self {
        Self {
            resource: Some(resource),
            message: Some(format!("the limit on {resource} is reached")),
            ..Code::Busy.into()
        }
    }

    /// A field or payload over its limit.
    pub fn too_large(resource: &'static str, max: u64) -> Self {
        Self {
            resource: Some(resource),
            message: Some(format!("{resource} is larger than {max} bytes")),
            ..Code::TooLarge.into()
        }
    }

    /// The same with what became of the command.
    #[must_use]
    pub fn delivery(mut self, delivery: Delivery) -> Self {
        self.delivery = Some(delivery);
        self
    }

    /// The same with another sentence.
    #[must_use]
    pub fn message(mut self, message: impl Into<String>) -> Self {
        self.message = Some(message.into());
        self
    }

    /// The same with advice.
    #[must_use]
    pub fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }

    /// The error object of JSON-RPC.
    pub fn object(&self) -> ErrorObject {
        let (candidates, sessions) = match self.code {
            Code::Ambiguous => (self.sessions.clone(), Vec::new()),
            _ => (Vec::new(), self.sessions.clone()),
        };
        ErrorObject {
            code: self.code.number(),
            message: self.message.clone().unwrap_or_else(|| self.code.sentence().to_owned()),
            data: Some(ErrorData {
                code: self.code.word().to_owned(),
                hint: self.hint.clone(),
                retryable: self.code.retryable(),
                delivery: self.delivery,
                resource: self.resource.map(str::to_owned),
                rotation_id: self.rotation_id,
                outcome: self.outcome.clone(),
                candidates,
                sessions,
            }),
        }
    }
}

/// `error` of a JSON-RPC answer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ErrorObject {
    /// JSON-RPC's number.
    pub code: i32,
    /// A sentence.
    pub message: String,
    /// Ours.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "known_data")]
    pub data: Option<ErrorData>,
}

/// Whatever else stands in `data` is not ours to judge.
fn known_data<'de, D: Deserializer<'de>>(from: D) -> Result<Option<ErrorData>, D::Error> {
    let text = <&RawValue>::deserialize(from)?;
    Ok(object::read(text.get().as_bytes()).ok())
}

/// `error.data`. Read leniently: it is observability, and a newer peer may say more.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ErrorData {
    /// What to act on.
    pub code: String,
    /// What to do.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hint: Option<String>,
    /// Whether to try again unchanged.
    #[serde(default)]
    pub retryable: bool,
    /// What became of the command.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub delivery: Option<Delivery>,
    /// What was exhausted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resource: Option<String>,
    /// With `rotation-pending`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rotation_id: Option<RotationId>,
    /// With `already-decided`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub outcome: Option<Box<Outcome>>,
    /// With `ambiguous`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub candidates: Vec<Candidate>,
    /// With `sessions-live`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub sessions: Vec<Candidate>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_code_stands_in_the_manual_with_its_exit_code() {
        let manual = include_str!("../../docs/protocol.md").split("| data.code | means | exit |").nth(1).unwrap();
        for code in Code::ALL {
            let row = manual.lines().find(|line| {
                line.starts_with('|')
                    && line.split('|').nth(1).is_some_and(|cell| cell.contains(&format!("`{}`", code.word())))
            });
            let row = row.unwrap_or_else(|| panic!("{} is missing in docs/protocol.md", code.word()));
            let exit = row.trim_end_matches('|').rsplit('|').next().unwrap().trim();
            assert_eq!(exit, (code.exit() as u8).to_string(), "{row}");
            assert_eq!(Code::from_word(code.word()), Some(*code));
        }
    }

    #[test]
    fn ambiguous_lists_candidates_and_a_busy_daemon_lists_sessions() {
        let one = Candidate { session_id: SessionId([1; 16]), title: "t".into(), cwd: "/".into() };
        let of = |code: Code| Refusal { sessions: vec![one.clone()], ..code.into() }.object().data.unwrap();
        assert_eq!(of(Code::Ambiguous).candidates, vec![one.clone()]);
        assert_eq!(of(Code::SessionsLive).sessions, vec![one.clone()]);
    }
}
