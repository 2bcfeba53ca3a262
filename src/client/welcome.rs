//! What the daemon says first on a sealed connection: `welcome` or `refused`.
//!
//! Owns: their shapes on this side. They are read leniently, a newer daemon of the same protocol may say more.

use serde::Deserialize;

use crate::ids::ConnectionId;
use crate::wire::lines::Role;
use crate::wire::object;

/// `welcome`.
#[derive(Debug, Clone, Deserialize)]
pub struct Welcome {
    /// This connection, as logs name it.
    pub connection: ConnectionId,
    /// What is spoken.
    pub protocol: u16,
    /// What this side is.
    pub role: Role,
    /// Methods that may be called.
    pub scopes: Vec<String>,
    /// The credential's end.
    #[serde(default)]
    pub expires: Option<jiff::Timestamp>,
    /// The daemon's bounds.
    #[serde(deserialize_with = "object::object")]
    pub limits: PeerLimits,
    /// The daemon's program and version.
    pub build: String,
}

/// The daemon's bounds, as far as a client needs them.
#[derive(Debug, Clone, Copy, Deserialize)]
pub struct PeerLimits {
    /// N of a sealed frame.
    pub frame_max_bytes: u64,
    /// A command's input.
    pub input_max_bytes: u64,
    /// A command's result.
    pub result_max_bytes: u64,
    /// A snapshot.
    pub snapshot_max_bytes: u64,
    /// A command's deadline when none is named.
    pub deadline_default_ms: u64,
    /// The longest deadline.
    pub deadline_max_ms: u64,
    /// How often a producer says that it lives.
    pub heartbeat_ms: u64,
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
