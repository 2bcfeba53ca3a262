//! Records of credentials: all of them, and the one that somebody means.

use std::fmt::Write as _;
use std::process::ExitCode;

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use crate::error::{Exit, Failure};
use crate::ids::{CredentialId, Fingerprint};
use crate::wire::codes::Code;
use crate::wire::lines::Role;
use crate::wire::methods::Method;
use crate::wire::selector::Selector;
use crate::wire::text::escaped;

use super::super::ask::{self, Asker};
use super::super::table::{self, Column};
use super::super::trouble::Trouble;
use super::super::{Outcome, out};
use super::Operator;

/// Characters of an id that name it, at least.
const PREFIX_MIN: usize = 4;

/// A record; read leniently, a newer daemon may say more.
#[derive(Debug, Clone, Deserialize)]
pub struct Record {
    pub credential: CredentialId,
    pub label: String,
    pub role: Role,
    pub default: bool,
    pub fingerprint: Fingerprint,
    pub scopes: crate::auth::record::ScopeList,
    #[serde(default)]
    pub sessions: Option<Vec<Selector>>,
    #[serde(default)]
    pub commands: Option<Vec<String>>,
    pub issued: jiff::Timestamp,
    #[serde(default)]
    pub expires: Option<jiff::Timestamp>,
    #[serde(default)]
    pub revoked: Option<jiff::Timestamp>,
    #[serde(default)]
    pub expired: Option<jiff::Timestamp>,
    pub state: String,
    pub connections: u64,
}

const COLUMNS: &[Column] = &[
    Column::new("CREDENTIAL", 22),
    Column::new("LABEL", 32),
    Column::new("ROLE", 8),
    Column::new("STATE", 8),
    Column::new("DEFAULT", 7),
    Column::new("MAY", 48),
    Column::new("EXPIRES", 20),
    Column::number("CONNECTIONS"),
];

type Both = (Box<RawValue>, Record);

fn all(asker: &mut Asker) -> Result<Vec<Both>, Trouble> {
    let rows = asker.pages(Method::CredentialList, &ask::Nothing {})?;
    let read = |row: Box<RawValue>| ask::read(&row, Method::CredentialList.name()).map(|record| (row, record));
    rows.into_iter().map(read).collect()
}

/// Shows those in use, or all there ever were.
pub fn list(operator: &mut Operator<'_>, ended: bool) -> Outcome {
    let mut records = all(&mut operator.asker)?;
    records.retain(|(_, record)| ended || record.is_active());
    if operator.global.json {
        #[derive(Serialize)]
        struct Document {
            credentials: Vec<Box<RawValue>>,
        }
        out::json(&Document { credentials: records.into_iter().map(|(row, _)| row).collect() })?;
    } else {
        let cells: Vec<_> = records.iter().map(|(_, record)| cells(record)).collect();
        let width = std::env::var("COLUMNS").ok().and_then(|columns| columns.parse().ok());
        out::text(&table::text(COLUMNS, &cells, width))?;
    }
    Ok(ExitCode::SUCCESS)
}

fn cells(record: &Record) -> Vec<String> {
    vec![
        record.credential.to_string(),
        record.label.clone(),
        record.role.word().to_owned(),
        record.state.clone(),
        if record.default { "yes".to_owned() } else { String::new() },
        record.may(),
        record.expires.map(|expires| format!("{expires:.0}")).unwrap_or_default(),
        record.connections.to_string(),
    ]
}

/// Shows one.
pub fn show(operator: &mut Operator<'_>, who: &str) -> Outcome {
    let records = all(&mut operator.asker)?;
    let found = choose(records.iter().map(|(_, record)| record), who)?.credential;
    let Some((row, record)) = records.iter().find(|(_, record)| record.credential == found) else {
        return Err(ask::misread(Method::CredentialList.name()));
    };
    if operator.global.json {
        out::json(row)?;
        return Ok(ExitCode::SUCCESS);
    }
    let mut text = String::new();
    let mut line = |name: &str, value: String| {
        let _ = writeln!(text, "{name:<13}{}", escaped(&value, 4096));
    };
    line("credential", record.credential.to_string());
    line("label", record.label.clone());
    line("role", format!("{}{}", record.role.word(), if record.default { ", the default" } else { "" }));
    line("state", record.state.clone());
    line("fingerprint", record.fingerprint.to_string());
    line("may", record.may());
    for selector in record.sessions.iter().flatten() {
        line("session", serde_json::to_string(selector).unwrap_or_default());
    }
    for command in record.commands.iter().flatten() {
        line("command", command.clone());
    }
    line("issued", format!("{:.0}", record.issued));
    for (name, when) in [("expires", record.expires), ("revoked", record.revoked), ("expired", record.expired)] {
        if let Some(when) = when {
            line(name, format!("{when:.0}"));
        }
    }
    line("connections", record.connections.to_string());
    out::text(&text)?;
    Ok(ExitCode::SUCCESS)
}

/// The one that is meant: by its id, a role's default, its label, or the beginning of its id.
pub fn find(asker: &mut Asker, who: &str) -> Result<Record, Trouble> {
    let records = all(asker)?;
    Ok(choose(records.iter().map(|(_, record)| record), who)?.clone())
}

/// The default of a role.
pub fn default(asker: &mut Asker, role: Role) -> Result<Record, Trouble> {
    find(asker, role.word())
}

/// The credential of a key that is in use.
pub fn of_key(asker: &mut Asker, key: Fingerprint) -> Result<Option<CredentialId>, Trouble> {
    let records = all(asker)?;
    let found = records.iter().find(|(_, record)| record.fingerprint == key && record.is_active());
    Ok(found.map(|(_, record)| record.credential))
}

fn choose<'a>(records: impl Iterator<Item = &'a Record>, who: &str) -> Result<&'a Record, Failure> {
    let records: Vec<_> = records.collect();
    if let Some(record) = records.iter().find(|record| record.credential.to_string() == who) {
        return Ok(record);
    }
    if let Some(role) = Role::from_word(who) {
        if let Some(record) = records.iter().find(|record| record.default && record.role == role) {
            return Ok(record);
        }
    }
    let labelled: Vec<_> = records.iter().copied().filter(|record| record.label == who).collect();
    let begun = |record: &&Record| who.len() >= PREFIX_MIN && record.credential.to_string().starts_with(who);
    let named = if labelled.is_empty() { records.iter().copied().filter(begun).collect() } else { labelled };
    // A label may be used again once its credential has ended.
    let active: Vec<_> = named.iter().copied().filter(|record| record.is_active()).collect();
    match if active.is_empty() { named } else { active }.as_slice() {
        [one] => Ok(one),
        [] => {
            let code = Code::CredentialNotFound;
            let message = format!("no credential is called {:?}", escaped(who, 64));
            Err(Failure::new(code.exit(), code.word(), message).hint("usher keys list --all shows them"))
        }
        several => {
            let ids: Vec<_> = several.iter().map(|record| record.credential.to_string()).collect();
            let message = format!("several credentials are called {:?}: {}", escaped(who, 64), ids.join(" "));
            Err(Failure::new(Exit::Ambiguous, Code::Ambiguous.word(), message).hint("name one by its id"))
        }
    }
}

impl Record {
    fn is_active(&self) -> bool {
        self.state == "active"
    }

    fn may(&self) -> String {
        match &self.scopes {
            crate::auth::record::ScopeList::Row => "all of its role".to_owned(),
            crate::auth::record::ScopeList::Named(names) => names.join(" "),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(id: u8, label: &str, default: bool, state: &str) -> Record {
        Record {
            credential: CredentialId([id; 16]),
            label: label.to_owned(),
            role: Role::Caller,
            default,
            fingerprint: Fingerprint([0; 32]),
            scopes: crate::auth::record::ScopeList::Row,
            sessions: None,
            commands: None,
            issued: jiff::Timestamp::UNIX_EPOCH,
            expires: None,
            revoked: None,
            expired: None,
            state: state.to_owned(),
            connections: 0,
        }
    }

    #[test]
    fn a_credential_is_meant_by_id_role_label_or_prefix() {
        let records = [
            record(1, "caller", true, "active"),
            record(2, "sandbox", false, "revoked"),
            record(3, "sandbox", false, "active"),
            record(4, "twice", false, "active"),
            record(5, "twice", false, "active"),
            record(6, "caller", false, "active"),
        ];
        let id = |who: &str| choose(records.iter(), who).map(|record| record.credential.0[0]);
        assert_eq!(id("caller"), Ok(1));
        assert_eq!(id("sandbox"), Ok(3));
        assert_eq!(id(&records[1].credential.to_string()), Ok(2));
        assert_eq!(id(&records[1].credential.to_string()[..6]), Ok(2));
        assert_eq!(id("twice").unwrap_err().exit, Exit::Ambiguous);
        assert_eq!(id("AgI").unwrap_err().exit, Exit::NotFound);
        assert_eq!(id("operator").unwrap_err().exit, Exit::NotFound);
    }
}
