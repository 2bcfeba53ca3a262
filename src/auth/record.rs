//! `credentials.json`: what is stored of a credential. Nothing secret is in it.

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::ids::{CredentialId, PublicKey};
use crate::limits::CREDENTIALS_MAX;
use crate::wire::lines::Role;
use crate::wire::object;
use crate::wire::selector::Selector;

/// The name of the file.
pub const FILE: &str = "credentials.json";
/// The version of its shape.
pub const VERSION: u32 = 1;
/// Its ceiling: every record there may be, at its largest usual size.
pub const MAX_BYTES: u64 = 16 * 1024 * 1024;
/// The ceiling for a new record: every record there may be has room left for its `expires`, `expired` and `revoked`, so that
/// whoever may enrol cannot keep a revocation off the disk.
pub const ENROL_MAX_BYTES: u64 = MAX_BYTES - 192 * CREDENTIALS_MAX as u64;

/// `"row"`, or names of methods.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ScopeList {
    /// All that the role has, as the running version knows it.
    Row,
    /// These.
    Named(Vec<String>),
}

impl Serialize for ScopeList {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Row => to.serialize_str("row"),
            Self::Named(names) => names.serialize(to),
        }
    }
}

impl<'de> Deserialize<'de> for ScopeList {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(untagged)]
        enum Text {
            Word(String),
            Names(Vec<String>),
        }
        match Text::deserialize(from)? {
            Text::Word(word) if word == "row" => Ok(Self::Row),
            Text::Word(_) => Err(serde::de::Error::custom("scopes takes \"row\" or a list of methods")),
            Text::Names(names) => Ok(Self::Named(names)),
        }
    }
}

/// One credential.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Record {
    /// Its id for life.
    pub credential: CredentialId,
    /// For people.
    pub label: String,
    /// What it may be.
    pub role: Role,
    /// Whether it is the one that the command line takes for its role.
    pub default: bool,
    /// Its key.
    pub public_key: PublicKey,
    /// What it may call.
    pub scopes: ScopeList,
    /// Which sessions exist for it.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "object::some_objects")]
    pub sessions: Option<Vec<Selector>>,
    /// Which commands it may send.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "object::some")]
    pub commands: Option<Vec<String>>,
    /// When it was made.
    pub issued: jiff::Timestamp,
    /// When it ends.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "object::some")]
    pub expires: Option<jiff::Timestamp>,
    /// When it was revoked.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "object::some")]
    pub revoked: Option<jiff::Timestamp>,
    /// When it was first seen expired: a clock set back revives nothing.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "object::some")]
    pub expired: Option<jiff::Timestamp>,
}

/// The whole file.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Records {
    /// In order of enrolment.
    #[serde(deserialize_with = "object::objects")]
    pub credentials: Vec<Record>,
}

impl Records {
    /// The four-key first start has one default record for each role.
    pub fn first(keys: impl IntoIterator<Item = (Role, PublicKey)>, now: jiff::Timestamp) -> Self {
        let credentials = keys.into_iter().map(|(role, public_key)| Record {
            credential: CredentialId::random(),
            label: role.word().to_owned(),
            role,
            default: true,
            public_key,
            scopes: ScopeList::Row,
            sessions: None,
            commands: None,
            issued: now,
            expires: None,
            revoked: None,
            expired: None,
        });
        Self { credentials: credentials.collect() }
    }
}
