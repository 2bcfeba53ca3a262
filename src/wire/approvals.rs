//! Shapes of approvals (docs/protocol.md, "Approvals"): what is asked, what deciders are shown and sign, what comes of it.

use serde::{Deserialize, Deserializer, Serialize};

use crate::ids::{ApprovalId, CredentialId, PublicKey, SessionId, Signature};
use crate::limits::{PATH_MAX_BYTES, SUMMARY_MAX_BYTES, TTL_DEFAULT_MS, TTL_MAX_MS};
use crate::wire::codes::Refusal;
use crate::wire::object;
use crate::wire::rows::Terminal;
use crate::wire::text::is_plain;

/// How a question ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Decision {
    /// By an operator.
    Approved,
    /// By an operator.
    Rejected,
    /// By the clock.
    Expired,
    /// Nobody decides it any more.
    Cancelled,
}

impl Decision {
    /// The word on the wire.
    pub fn word(self) -> &'static str {
        match self {
            Self::Approved => "approved",
            Self::Rejected => "rejected",
            Self::Expired => "expired",
            Self::Cancelled => "cancelled",
        }
    }
}

/// As a text alone: serde reads `{"approved":null}` as the same.
impl<'de> Deserialize<'de> for Decision {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let text = std::borrow::Cow::<'de, str>::deserialize(from)?;
        let all = [Self::Approved, Self::Rejected, Self::Expired, Self::Cancelled];
        let known = all.into_iter().find(|decision| decision.word() == text);
        known.ok_or_else(|| serde::de::Error::custom("expected approved, rejected, expired or cancelled"))
    }
}

/// Parameters of `approval.request`.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Request {
    /// What is asked, one line.
    pub summary: String,
    /// How long it stands.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "object::some")]
    pub ttl_ms: Option<u64>,
    /// The session that the asker says it runs in.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "object::some")]
    pub session_id: Option<SessionId>,
    /// Where it runs, as it says.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "object::some")]
    pub cwd: Option<String>,
    /// Its terminal, as it says.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "object::some_object")]
    pub terminal: Option<Terminal>,
    /// Its process, as it says.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "object::some")]
    pub pid: Option<u32>,
    /// Whether the answer is to be signed.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub receipt: bool,
}

impl Request {
    /// Refuses what is not as documented.
    pub fn check(&self) -> Result<(), Refusal> {
        line("summary", &self.summary)?;
        if !(1..=TTL_MAX_MS).contains(&self.ttl_ms()) {
            return Err(Refusal::invalid(format!("ttl_ms takes 1 to {TTL_MAX_MS}")));
        }
        if let Some(cwd) = &self.cwd {
            if !cwd.starts_with('/') || cwd.len() > PATH_MAX_BYTES || !is_plain(cwd) {
                return Err(Refusal::invalid("cwd takes an absolute path without control characters"));
            }
        }
        if let Some(terminal) = &self.terminal {
            terminal.check()?;
        }
        if self.pid.is_some_and(|pid| pid == 0 || i32::try_from(pid).is_err()) {
            return Err(Refusal::invalid("pid is not a process id"));
        }
        Ok(())
    }

    /// How long it stands.
    pub fn ttl_ms(&self) -> u64 {
        self.ttl_ms.unwrap_or(TTL_DEFAULT_MS)
    }
}

/// A line for a person: a summary, a reason.
pub fn line(name: &'static str, text: &str) -> Result<(), Refusal> {
    if text.is_empty() || text.len() > SUMMARY_MAX_BYTES || !is_plain(text) {
        return Err(Refusal::invalid(format!(
            "{name} takes 1 to {SUMMARY_MAX_BYTES} bytes without control characters"
        )));
    }
    Ok(())
}

/// What deciders are shown, and the text of which they sign. The daemon alone writes it.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Shown {
    /// What is asked.
    pub summary: String,
    /// What to read before deciding.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub detail: Option<String>,
    /// By whom.
    #[serde(deserialize_with = "object::object")]
    pub asker: Asker,
    /// When.
    pub asked: jiff::Timestamp,
    /// Until when it can be decided.
    pub expires: jiff::Timestamp,
}

/// Who asks: its record, then what it says of itself.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Asker {
    /// The record.
    pub credential: CredentialId,
    /// Its label.
    pub label: String,
    /// The session that it says it runs in, as the daemon knows it.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "object::some_object")]
    pub session: Option<AskerSession>,
    /// As it says.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "object::some_object")]
    pub terminal: Option<Terminal>,
    /// As it says.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cwd: Option<String>,
    /// As it says.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pid: Option<u32>,
}

/// A session, as an approval shows it.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct AskerSession {
    /// Its id.
    pub session_id: SessionId,
    /// Its title when it was asked.
    pub title: String,
}

/// Who decided.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct By {
    /// The record.
    pub credential: CredentialId,
    /// Its label.
    pub label: String,
    /// What the decision is signed with.
    pub public_key: PublicKey,
}

/// What became of a question: the result of `approval.request`, and of an error that comes too late.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Outcome {
    /// The approval.
    pub approval_id: ApprovalId,
    /// What.
    pub decision: Decision,
    /// When.
    pub decided: jiff::Timestamp,
    /// By whom, where somebody decided.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "object::some_object")]
    pub by: Option<By>,
    /// Why, where that is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// The decider's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub signature: Option<Signature>,
}

/// A row of `approval.list`.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Row {
    /// The approval.
    pub approval_id: ApprovalId,
    /// `open`, or what was decided.
    pub state: String,
    /// When it was asked.
    pub asked: jiff::Timestamp,
    /// Until when it can be decided.
    pub expires: jiff::Timestamp,
    /// What to show and to sign, while it is open.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub text: Option<String>,
    /// What became of it.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "object::some_object")]
    pub outcome: Option<Outcome>,
}

/// Parameters of `approval.decide`.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Decide {
    /// Which.
    pub approval_id: ApprovalId,
    /// `approved` or `rejected`.
    pub decision: Decision,
    /// Of the decider's key.
    pub signature: Signature,
    /// For the asker.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "object::some")]
    pub reason: Option<String>,
    /// Whether the answer is to be signed.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub receipt: bool,
}

/// `approval.pending`.
#[derive(Debug, Serialize, Deserialize)]
pub struct Pending {
    /// The request that asked.
    pub request: u64,
    /// What it became.
    pub approval_id: ApprovalId,
    /// Until when it can be decided.
    pub expires: jiff::Timestamp,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(text: &str) -> Result<(), String> {
        let request: Request = object::read(text.as_bytes())?;
        request.check().map_err(|refusal| refusal.object().message)
    }

    #[test]
    fn a_question_has_one_line_and_bounds() {
        assert_eq!(request(r#"{"summary":"apply?"}"#), Ok(()));
        for text in [
            r#"{"summary":""}"#,
            r#"{"summary":"a\nb"}"#,
            r#"{"summary":"a","ttl_ms":0}"#,
            r#"{"summary":"a","ttl_ms":86400001}"#,
            r#"{"summary":"a","cwd":"here"}"#,
            r#"{"summary":"a","pid":0}"#,
            r#"{"summary":"a","terminal":{"tty":"\u001b[2J"}}"#,
            r#"{"summary":"a","more":1}"#,
        ] {
            assert!(request(text).is_err(), "{text}");
        }
        let long = "x".repeat(SUMMARY_MAX_BYTES + 1);
        assert!(request(&format!(r#"{{"summary":"{long}"}}"#)).is_err());
    }

    #[test]
    fn a_decision_is_a_text_alone() {
        assert_eq!(serde_json::from_str::<Decision>("\"approved\"").unwrap(), Decision::Approved);
        for text in ["{\"approved\":null}", "\"Approved\"", "\"open\"", "1"] {
            assert!(serde_json::from_str::<Decision>(text).is_err(), "{text}");
        }
    }
}
