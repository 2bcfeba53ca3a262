//! For whom an event exists.

use std::sync::Arc;

use crate::auth::gate::Authority;
use crate::auth::selection;
use crate::ids::{CredentialId, SessionId};
use crate::wire::lines::Role;
use crate::wire::rows::Facts;
use crate::wire::selector::Selector;

/// Who may hear of something.
#[derive(Clone)]
pub enum Audience {
    /// Everybody.
    Everybody,
    /// Whose grant selects the session, as it was then.
    Session(SessionId, Arc<Facts>),
    /// Operators who see everything, and the credential itself.
    Credential(CredentialId),
    /// Operators who see the session that it was asked from, and the credential that asked.
    Question(CredentialId, Option<(SessionId, Arc<Facts>)>),
}

impl Audience {
    /// Whether the peer is among them.
    pub fn includes(&self, authority: &Authority) -> bool {
        let credential = authority.credential();
        let is_operator = authority.role() == Role::Operator;
        match self {
            Self::Everybody => true,
            Self::Session(id, facts) => credential.grant.selects(*id, facts),
            Self::Credential(id) => credential.id == *id || is_operator && credential.grant.selects_all(),
            Self::Question(by, session) => {
                let selects = || match session {
                    Some((id, facts)) => credential.grant.selects(*id, facts),
                    None => credential.grant.selects_all(),
                };
                credential.id == *by || is_operator && selects()
            }
        }
    }

    /// Whether it is about a session that the selector matches.
    pub fn is_about(&self, selector: &Selector) -> bool {
        match self {
            Self::Session(id, facts) | Self::Question(_, Some((id, facts))) => selection::matches(selector, *id, facts),
            _ => false,
        }
    }

    /// What it keeps in memory.
    pub fn bytes(&self) -> usize {
        match self {
            Self::Session(_, facts) | Self::Question(_, Some((_, facts))) => facts.bytes(),
            _ => 0,
        }
    }
}
