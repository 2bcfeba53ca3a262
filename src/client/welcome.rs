//! What the daemon says first on a sealed connection: `welcome` or `refused`.
//!
//! Owns: their shapes on this side. They are read leniently, a newer daemon of the same protocol may say more.

use serde::Deserialize;

use crate::wire::lines::Role;
use crate::wire::object;

/// `welcome`, as far as this side acts on it.
#[derive(Debug, Clone, Deserialize)]
pub struct Welcome {
    /// What is spoken.
    pub protocol: u16,
    /// What this side is.
    pub role: Role,
    /// What this side may use.
    pub scopes: Vec<String>,
    /// The daemon's bounds.
    #[serde(deserialize_with = "object::object")]
    pub limits: PeerLimits,
}

/// The daemon's bounds, as far as this side keeps to them by itself.
#[derive(Debug, Clone, Copy, Deserialize)]
pub struct PeerLimits {
    /// A command's result.
    pub result_max_bytes: u64,
}

/// `refused`.
#[derive(Debug, Deserialize)]
pub(super) struct RefusedNote {
    /// Why.
    pub code: String,
    /// With `busy`.
    #[serde(default)]
    pub resource: Option<String>,
}

/// `closing`.
#[derive(Debug, Default, Deserialize)]
pub(super) struct ClosingNote {
    /// Why.
    #[serde(default)]
    pub reason: String,
}
