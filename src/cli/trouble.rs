//! What went wrong, for a person or as one JSON object, and the exit code that says so.
//!
//! Owns: how failures of every layer are told. Invariant: what a peer said is escaped; the exit code of a refusal is the
//! one in docs/protocol.md, also where a newer daemon says a word that is not known here.

use std::borrow::Cow;
use std::fmt::Write as _;

use serde::Serialize;

use crate::client::{CallError, ConnectFailure};
use crate::error::{Exit, Failure};
use crate::store::StoreError;
use crate::wire::approvals::Outcome;
use crate::wire::codes::{Candidate, Code, Delivery, ErrorObject};
use crate::wire::text::{escaped, escaped_lines};

use super::out;

/// Sessions that are named in an error.
const SESSIONS_SHOWN: usize = 20;

/// A failure with all that is known of it.
#[derive(Debug)]
pub struct Trouble(Box<Told>);

#[derive(Debug, Serialize)]
struct Told {
    #[serde(skip)]
    exit: Exit,
    code: Cow<'static, str>,
    message: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    hint: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    retryable: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    delivery: Option<Delivery>,
    #[serde(skip_serializing_if = "Option::is_none")]
    resource: Option<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    candidates: Vec<Candidate>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    sessions: Vec<Candidate>,
    #[serde(skip_serializing_if = "Option::is_none")]
    outcome: Option<Box<Outcome>>,
}

impl Trouble {
    /// What this program exits with.
    pub fn exit(&self) -> Exit {
        self.0.exit
    }

    /// The word for it.
    pub fn code(&self) -> &str {
        &self.0.code
    }

    /// The same with what became of the command.
    #[must_use]
    pub fn delivery(mut self, delivery: Delivery) -> Self {
        self.0.delivery = Some(delivery);
        self
    }

    /// The same with advice, in place of what it had.
    #[must_use]
    pub fn hint(mut self, hint: impl Into<String>) -> Self {
        self.0.hint = Some(hint.into());
        self
    }

    /// The refusal of a daemon.
    pub fn refused(error: ErrorObject) -> Self {
        let (word, data) = match error.data {
            Some(data) => (data.code.clone(), Some(data)),
            None => ("internal".to_owned(), None),
        };
        let code = Code::from_word(&word);
        let retryable = data.as_ref().map(|data| data.retryable);
        let exit = code.map_or(if retryable == Some(true) { Exit::Unavailable } else { Exit::Negative }, Code::exit);
        let mut told = Told {
            exit,
            code: code.map_or(Cow::Owned(escaped(&word, 64)), |code| Cow::Borrowed(code.word())),
            message: error.message,
            ..Told::from(Failure::new(exit, "", ""))
        };
        if let Some(data) = data {
            told.hint = data.hint;
            told.retryable = retryable;
            told.delivery = data.delivery;
            told.resource = data.resource;
            told.candidates = data.candidates;
            told.sessions = data.sessions;
            told.outcome = data.outcome;
        }
        Self(Box::new(told))
    }

    /// Tells it on standard error.
    pub fn tell(&self, json: bool) {
        if json {
            #[derive(Serialize)]
            struct Document<'a> {
                error: &'a Told,
            }
            // Our own types: they always have a JSON form.
            out::note(&serde_json::to_string(&Document { error: &self.0 }).unwrap_or_default());
        } else {
            out::note(&self.lines());
        }
    }

    /// For a person.
    fn lines(&self) -> String {
        let told = &self.0;
        let mut lines = format!("usher: {}", escaped_lines(&told.message));
        lines.push_str(match told.delivery {
            Some(Delivery::Unknown) => " (the command may have run)",
            // Where it is in doubt; a refusal speaks for itself, and what was delivered the session answered.
            Some(Delivery::NotDelivered) if matches!(told.exit, Exit::Unavailable | Exit::Timeout) => {
                " (the command did not reach the session)"
            }
            Some(Delivery::NotDelivered | Delivery::Delivered) | None => "",
        });
        let sessions = if told.candidates.is_empty() { &told.sessions } else { &told.candidates };
        for session in sessions.iter().take(SESSIONS_SHOWN) {
            let (title, cwd) = (escaped(&session.title, 60), escaped(&session.cwd, 200));
            let _ = write!(lines, "\n  {}  {title}  {cwd}", session.session_id);
        }
        if sessions.len() > SESSIONS_SHOWN {
            let _ = write!(lines, "\n  and {} more", sessions.len() - SESSIONS_SHOWN);
        }
        if let Some(hint) = &told.hint {
            let _ = write!(lines, "\n  {}", escaped_lines(hint));
        }
        lines
    }
}

impl From<Failure> for Told {
    fn from(failure: Failure) -> Self {
        Self {
            exit: failure.exit,
            code: Cow::Borrowed(failure.code),
            message: failure.message,
            hint: failure.hint,
            retryable: None,
            delivery: None,
            resource: None,
            candidates: Vec::new(),
            sessions: Vec::new(),
            outcome: None,
        }
    }
}

impl From<Failure> for Trouble {
    fn from(failure: Failure) -> Self {
        Self(Box::new(failure.into()))
    }
}

impl From<StoreError> for Trouble {
    fn from(error: StoreError) -> Self {
        Failure::from(error).into()
    }
}

impl From<ConnectFailure> for Trouble {
    fn from(failure: ConnectFailure) -> Self {
        let resource = match &failure {
            ConnectFailure::Busy { resource } => Some(escaped(resource, 64)),
            _ => None,
        };
        let mut told = Told::from(Failure::from(failure));
        told.resource = resource;
        Self(Box::new(told))
    }
}

/// What a call without an answer was about.
pub fn call(what: &str, error: CallError) -> Trouble {
    let failure = match error {
        CallError::Refused(error) => return Trouble::refused(*error),
        CallError::Lost { .. } => {
            let code = Code::ConnectionLost;
            Failure::new(code.exit(), code.word(), format!("the connection was lost during {what}"))
        }
        CallError::Timeout => {
            Failure::new(Exit::Timeout, Code::Timeout.word(), format!("the daemon did not answer {what} in time"))
        }
        CallError::TooLarge => Failure::new(Exit::Usage, Code::TooLarge.word(), format!("{what} is too large to send")),
        CallError::InvalidPayload(why) => {
            Failure::new(Exit::Usage, Code::InvalidPayload.word(), format!("the input is not one JSON text: {why}"))
        }
        CallError::Misread => return super::ask::misread(what),
        CallError::BadReceipt(why) => Failure::new(
            Exit::Negative,
            "bad-receipt",
            format!("{what} was answered, but not with a receipt that holds: {why}"),
        ),
    };
    failure.into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::SessionId;
    use crate::wire::codes::Refusal;

    #[test]
    fn a_refusal_is_told_with_its_sessions_and_without_control_characters() {
        let sessions =
            vec![Candidate { session_id: SessionId([1; 16]), title: "a\u{1b}[31m".into(), cwd: "/x".into() }];
        let refusal = Refusal { sessions, ..Code::Ambiguous.into() }.hint("choose one");
        let trouble = Trouble::refused(refusal.object());
        assert_eq!(trouble.exit(), Exit::Ambiguous);
        let lines = trouble.lines();
        assert!(
            lines.starts_with("usher: several sessions match\n  AQEB") && lines.ends_with("\n  choose one"),
            "{lines}"
        );
        assert!(!lines.contains('\u{1b}'), "{lines}");
        let json = serde_json::to_value(&*trouble.0).unwrap();
        assert_eq!(json["code"], "ambiguous");
        assert_eq!(json["candidates"][0]["cwd"], "/x");
        assert!(json.get("sessions").is_none() && json.get("exit").is_none());
    }

    #[test]
    fn a_word_of_a_newer_daemon_is_kept_and_has_an_exit_code() {
        let mut object = Refusal::from(Code::Internal).object();
        object.data.as_mut().unwrap().code = "newer-than-us".to_owned();
        let trouble = Trouble::refused(object);
        assert_eq!((trouble.exit(), trouble.code()), (Exit::Negative, "newer-than-us"));
    }
}
