//! How far a change to the credentials may reach: no further than whoever asks, and never so far that nobody is left who
//! could make the next one.
//!
//! Owns these rules and nothing that they are about.

use crate::wire::codes::{Code, Refusal};
use crate::wire::lines::Role;

use super::credential::Credential;
use super::gate::Authority;
use super::record::{Record, Records, ScopeList};

/// Refuses to give what one does not have: `credential.enroll` is for making callers and producers, and operators that may
/// do less. What a grant is narrowed to, what it makes is narrowed to as well.
pub(super) fn lies_within(by: &Authority, new: &Credential, expires: Option<jiff::Timestamp>) -> Result<(), Refusal> {
    let beyond = |what: &str| {
        Err(Refusal::from(Code::Denied).message(format!("the new grant reaches further than yours in its {what}")))
    };
    let has_all = by.scopes().and(new.grant.scopes()) == new.grant.scopes();
    // A row grows with the program: whoever was granted names has not what comes later.
    let has_row = by.credential().grant.is_row() || !new.grant.is_row();
    if new.role == Role::Operator && !(has_all && has_row) {
        return beyond("scopes");
    }
    by.credential().grant.holds(&new.grant).or_else(beyond)?;
    outlives_nobody(by, expires)
}

/// Refuses an end after one's own.
fn outlives_nobody(by: &Authority, expires: Option<jiff::Timestamp>) -> Result<(), Refusal> {
    match by.credential().gate.expires() {
        Some(own) if expires.is_none_or(|expires| expires.as_millisecond() > own.as_millisecond()) => {
            Err(Refusal::from(Code::Denied).message(format!("expires takes no later end than your own, {own}")))
        }
        _ => Ok(()),
    }
}

/// Refuses a change after which, at once or in time, nobody could make or revoke a credential any more: no key can be
/// enrolled without an operator.
pub(super) fn keeps_operators(before: &Records, after: &Records) -> Result<(), Refusal> {
    let any = |records: &Records, is: fn(&Record) -> bool| records.credentials.iter().any(is);
    if any(before, is_operator) && !any(after, is_operator) {
        return Err(Refusal::from(Code::LastOperator).hint("usher keys renew operator replaces it"));
    }
    let lasts = |record: &Record| is_operator(record) && record.expires.is_none() && is_unbounded(record);
    if any(before, lasts) && !any(after, lasts) {
        let message = "the last operator credential that may do everything and has no end has to stay";
        return Err(Refusal::from(Code::LastOperator).message(message).hint("make another one first"));
    }
    Ok(())
}

fn is_operator(record: &Record) -> bool {
    record.role == Role::Operator && record.revoked.is_none() && is_open(record)
}

/// One from which every other can be made.
fn is_unbounded(record: &Record) -> bool {
    matches!(record.scopes, ScopeList::Row) && record.sessions.is_none() && record.commands.is_none()
}

/// Whether it has not run out.
pub(super) fn is_open(record: &Record) -> bool {
    record.expired.is_none() && record.expires.is_none_or(|expires| expires > jiff::Timestamp::now())
}
