//! How a request says which session it means (docs/protocol.md, "Selectors"). Shape and checks; matching is
//! [`crate::auth`]'s, which grants by selectors as well.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::limits::{LABELS_MAX_BYTES, PATH_MAX_BYTES, SESSION_PREFIX_MIN, TITLE_MAX_BYTES};
use crate::wire::codes::Refusal;
use crate::wire::object;
use crate::wire::rows;

/// All that is given must match; nothing given matches every session.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Selector {
    /// A whole id or a prefix.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "object::some")]
    pub session: Option<String>,
    /// Exactly this working directory.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "object::some")]
    pub cwd: Option<String>,
    /// The nearest root that contains this path.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "object::some")]
    pub repo: Option<String>,
    /// Roots above this do not count.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "object::some")]
    pub boundary: Option<String>,
    /// All of these stand on the session.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "object::some_unique_map")]
    pub labels: Option<BTreeMap<String, String>>,
    /// Exactly this title.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "object::some")]
    pub title: Option<String>,
}

impl Selector {
    /// Refuses what could never match, so that a mistake is not told as "no session".
    pub fn check(&self) -> Result<(), Refusal> {
        if let Some(session) = &self.session {
            if !is_beginning(session) {
                return Err(Refusal::invalid(format!(
                    "selector.session takes a session id or at least {SESSION_PREFIX_MIN} characters of its beginning"
                )));
            }
        }
        for (name, path) in [("cwd", &self.cwd), ("repo", &self.repo), ("boundary", &self.boundary)] {
            if path.as_ref().is_some_and(|path| !path.starts_with('/') || path.len() > PATH_MAX_BYTES) {
                return Err(Refusal::invalid(format!("selector.{name} takes an absolute path")));
            }
        }
        if self.boundary.is_some() && self.repo.is_none() {
            return Err(Refusal::invalid("selector.boundary goes with selector.repo"));
        }
        if self.title.as_ref().is_some_and(|title| title.len() > TITLE_MAX_BYTES) {
            return Err(Refusal::too_large("title", TITLE_MAX_BYTES as u64));
        }
        if self.labels.as_ref().is_some_and(|labels| rows::labels_bytes(labels) > LABELS_MAX_BYTES) {
            return Err(Refusal::too_large("labels", LABELS_MAX_BYTES as u64));
        }
        Ok(())
    }
}

/// Whether text is an id or long enough a beginning of one.
pub fn is_beginning(text: &str) -> bool {
    let alphabet = text.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_');
    alphabet && (SESSION_PREFIX_MIN..=22).contains(&text.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_selector_that_could_never_match_is_refused() {
        let refused = |selector: Selector| assert!(selector.check().is_err(), "{selector:?}");
        refused(Selector { session: Some("abc".into()), ..Selector::default() });
        refused(Selector { session: Some("a/b/c".into()), ..Selector::default() });
        refused(Selector { cwd: Some("relative".into()), ..Selector::default() });
        refused(Selector { boundary: Some("/x".into()), ..Selector::default() });
        refused(Selector { title: Some("x".repeat(257)), ..Selector::default() });
        assert!(Selector::default().check().is_ok());
    }
}
