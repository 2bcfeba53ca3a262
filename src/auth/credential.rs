//! A credential that the running daemon knows: its record's fixed parts, its gate, what it holds, its connections.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64};

use parking_lot::Mutex;

use crate::account::Pool;
use crate::ids::{ConnectionId, CredentialId, PublicKey};
use crate::limits::Limits;
use crate::wire::codes::{Code, Refusal};
use crate::wire::lines::Role;

use super::gate::{End, Gate};
use super::grant::Grant;
use super::record::Record;

/// A connection, as far as revocation needs it.
pub trait Cut: Send + Sync {
    /// Drops what was not sent and ends the connection, now. Never waits for the peer.
    fn cut(&self, code: Code);
}

/// What one credential holds of each total.
#[derive(Debug)]
pub struct Shares {
    /// Connections.
    pub connections: Arc<Pool>,
    /// Sessions.
    pub sessions: Arc<Pool>,
    /// Leases.
    pub leases: Arc<Pool>,
    /// Commands in queues.
    pub queued: Arc<Pool>,
    /// Their bytes.
    pub queued_bytes: Arc<Pool>,
    /// Bytes of frames being read.
    pub inbound_bytes: Arc<Pool>,
    /// Bytes that its peers have not read.
    pub outbound_bytes: Arc<Pool>,
    /// Bytes of snapshots.
    pub snapshots: Arc<Pool>,
    /// Keys of commands.
    pub keys: Arc<Pool>,
    /// Bytes of results that are kept for them.
    pub kept_results: Arc<Pool>,
    /// Waits and follows.
    pub streams: Arc<Pool>,
    /// Open approvals.
    pub approvals: Arc<Pool>,
    /// Bytes of their texts.
    pub approvals_bytes: Arc<Pool>,
    /// Commands of its callers at producers now.
    pub in_flight: AtomicU64,
    /// Requests that were refused.
    pub rejected: AtomicU64,
}

impl Shares {
    fn new(limits: &Limits, is_default: bool) -> Self {
        let share = |name, total| Pool::new(name, Limits::share(total, is_default));
        Self {
            connections: Pool::new(
                "credential-connections",
                Limits::share(limits.connections, is_default).min(limits.credential_connections),
            ),
            sessions: share("sessions", limits.sessions),
            leases: share("leases", limits.leases),
            queued: share("queued", limits.queued),
            queued_bytes: share("queued-bytes", limits.queued_bytes),
            inbound_bytes: share("inbound-bytes", limits.inbound_bytes),
            outbound_bytes: share("outbound-bytes", limits.outbound_bytes),
            snapshots: share("snapshots-total-bytes", limits.snapshots_total_bytes),
            keys: share("keys", limits.keys),
            kept_results: share("kept-results-bytes", limits.kept_results_bytes),
            streams: share("streams", limits.streams),
            approvals: share("approvals", limits.approvals),
            approvals_bytes: share("approvals-bytes", limits.approvals_bytes),
            in_flight: AtomicU64::new(0),
            rejected: AtomicU64::new(0),
        }
    }
}

/// A credential.
pub struct Credential {
    /// Its record's id.
    pub id: CredentialId,
    /// For people.
    pub label: String,
    /// What it may be.
    pub role: Role,
    /// Its key.
    pub public_key: PublicKey,
    /// What it may do.
    pub grant: Grant,
    /// What everything of it passes.
    pub gate: Gate,
    /// Whether its record says that it has expired.
    pub expiry_is_stored: AtomicBool,
    /// Which end of it was told to those who follow: 0 none, else the [`End`].
    pub told_end: AtomicU8,
    /// What it holds.
    pub shares: Shares,
    connections: Mutex<HashMap<ConnectionId, Arc<dyn Cut>>>,
}

impl std::fmt::Debug for Credential {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(out, "Credential({} {})", self.id, self.role.word())
    }
}

impl Credential {
    /// From its record, without connections; refused where the record's grant is not one.
    pub fn new(record: &Record, limits: &Limits) -> Result<Arc<Self>, Refusal> {
        let end = match (record.revoked, record.expired) {
            (Some(_), _) => Some(End::Revoked),
            (None, Some(_)) => Some(End::Expired),
            (None, None) => None,
        };
        Ok(Arc::new(Self {
            id: record.credential,
            label: record.label.clone(),
            role: record.role,
            public_key: record.public_key,
            grant: Grant::new(record.role, &record.scopes, record.sessions.as_ref(), record.commands.as_ref())?,
            gate: Gate::new(end, record.expires),
            expiry_is_stored: AtomicBool::new(record.expired.is_some()),
            told_end: AtomicU8::new(end.map_or(0, |end| end as u8)),
            shares: Shares::new(limits, record.default),
            connections: Mutex::new(HashMap::new()),
        }))
    }

    /// Registers a connection for cutting. Whoever registers looks at the gate again afterwards: an end that came
    /// before it did not see this connection.
    pub fn connect(&self, id: ConnectionId, connection: Arc<dyn Cut>) {
        self.connections.lock().insert(id, connection);
    }

    /// The connection has ended.
    pub fn disconnect(&self, id: ConnectionId) {
        self.connections.lock().remove(&id);
    }

    /// How many there are.
    pub fn connected(&self) -> usize {
        self.connections.lock().len()
    }

    /// Closes the gate, waits for what passed it, then ends every connection. The caller holds no permit of it.
    pub fn end(&self, end: End) -> usize {
        // Who meets the closed gate before it is cut ends by itself, and counts as well.
        let mut connections = self.connections.lock().clone();
        self.gate.close(end);
        connections.extend(self.connections.lock().iter().map(|(&id, late)| (id, Arc::clone(late))));
        for connection in connections.values() {
            connection.cut(end.code());
        }
        connections.len()
    }
}
