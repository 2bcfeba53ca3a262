//! `leases.json`: what is stored of leases. Nothing secret is in it.

use serde::{Deserialize, Serialize};

use crate::ids::{CredentialId, PublicKey, RotationId, SessionId};
use crate::wire::object;

/// The name of the file.
pub const FILE: &str = "leases.json";
/// The version of its shape.
pub const VERSION: u32 = 1;
/// Its ceiling: every lease there may be, with a rotation, takes less than half of it.
pub const MAX_BYTES: u64 = 4 * 1024 * 1024;

/// A rotation that was begun.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Staged {
    /// Its id.
    pub rotation_id: RotationId,
    /// The key that is to follow.
    pub new_key: PublicKey,
}

/// One lease.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Stored {
    /// Whose session.
    pub session: SessionId,
    /// The record that may take it back.
    pub credential: CredentialId,
    /// With this key,
    pub key: PublicKey,
    /// or with this one.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "object::some_object")]
    pub staged: Option<Staged>,
    /// The last rotation that came to its end.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "object::some")]
    pub rotated: Option<RotationId>,
    /// When the session ended; none while it is in use.
    pub ended: Option<jiff::Timestamp>,
}

/// The whole file.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Document {
    /// In order of their ids.
    #[serde(deserialize_with = "object::objects")]
    pub leases: Vec<Stored>,
}
