//! What a credential may do, made from its stored or asked-for text by checking it.

use crate::ids::SessionId;
use crate::limits::GRANT_LIST_MAX;
use crate::wire::codes::Refusal;
use crate::wire::lines::Role;
use crate::wire::methods::{Method, Scopes};
use crate::wire::rows::{Facts, is_name};
use crate::wire::selector::Selector;

use super::record::ScopeList;
use super::selection;

/// A checked grant.
#[derive(Debug, Clone)]
pub struct Grant {
    scopes: Scopes,
    is_row: bool,
    sessions: Option<Vec<Selector>>,
    commands: Option<Vec<String>>,
}

impl Grant {
    /// Checks what is to be granted. A scope of another role would never be of use: it is refused, not ignored.
    pub fn new(
        role: Role,
        scopes: &ScopeList,
        sessions: Option<&Vec<Selector>>,
        commands: Option<&Vec<String>>,
    ) -> Result<Self, Refusal> {
        let is_row = matches!(scopes, ScopeList::Row);
        let scopes = match scopes {
            ScopeList::Row => Scopes::row(role),
            ScopeList::Named(names) if names.len() > GRANT_LIST_MAX => {
                return Err(Refusal::invalid(format!("a grant lists at most {GRANT_LIST_MAX} scopes")));
            }
            ScopeList::Named(names) => {
                let mut set = Scopes::default();
                for name in names {
                    let method = Method::from_name(name).filter(|method| method.is_for(role));
                    let Some(method) = method else {
                        let known = Scopes::row(role).names().join(" ");
                        return Err(Refusal::invalid(format!("a {} has the scopes {known}", role.word())));
                    };
                    set = set.with(method);
                }
                set
            }
        };
        if sessions.is_some_and(|list| list.len() > GRANT_LIST_MAX)
            || commands.is_some_and(|list| list.len() > GRANT_LIST_MAX)
        {
            return Err(Refusal::invalid(format!("a grant lists at most {GRANT_LIST_MAX} sessions and commands")));
        }
        for selector in sessions.into_iter().flatten() {
            selector.check()?;
        }
        if commands.into_iter().flatten().any(|command| !is_name(command, false)) {
            return Err(Refusal::invalid("a command's name takes 1 to 64 of A-Z a-z 0-9 . _ -"));
        }
        Ok(Self { scopes, is_row, sessions: sessions.cloned(), commands: commands.cloned() })
    }

    /// The methods.
    pub fn scopes(&self) -> Scopes {
        self.scopes
    }

    /// Whether they were granted as the role's row.
    pub fn is_row(&self) -> bool {
        self.is_row
    }

    /// Whether the session exists for its holder.
    pub fn selects(&self, id: SessionId, facts: &Facts) -> bool {
        match &self.sessions {
            None => true,
            Some(selectors) => selectors.iter().any(|selector| selection::grants(selector, id, facts)),
        }
    }

    /// Refuses what this one does not reach: sessions, then commands.
    pub fn holds(&self, other: &Self) -> Result<(), &'static str> {
        let is_within = |narrow| self.sessions.iter().flatten().any(|wide| selection::is_within(narrow, wide));
        if self.sessions.is_some() && !other.sessions.as_ref().is_some_and(|narrow| narrow.iter().all(is_within)) {
            return Err("sessions");
        }
        if !other.commands.as_ref().map_or(self.commands.is_none(), |names| names.iter().all(|name| self.allows(name)))
        {
            return Err("commands");
        }
        Ok(())
    }

    /// Whether it sees every session there is.
    pub fn selects_all(&self) -> bool {
        self.sessions.is_none()
    }

    /// Whether the command may be sent.
    pub fn allows(&self, command: &str) -> bool {
        self.commands.as_ref().is_none_or(|names| names.iter().any(|name| name == command))
    }
}
