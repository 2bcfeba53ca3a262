//! What `daemon.status` tells. For a narrowed grant only what it may see.

use std::cmp::Reverse;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};

use serde::Serialize;

use crate::account::Usage;
use crate::audit::State;
use crate::auth::credential::Credential;
use crate::ids::{CredentialId, Generation, SessionId};
use crate::limits::HOLDERS_MAX;
use crate::route::budget::Held;
use crate::route::directory::Session;
use crate::route::lane::millis;
use crate::wire::lines::{Range, Role};
use crate::wire::selector::Selector;

use super::dispatch::Conversation;

/// Of protocol 0, frozen.
#[derive(Serialize)]
pub(super) struct ZeroStatus {
    generation: Generation,
    build: String,
    protocol: Range,
    sessions: usize,
    draining: bool,
}

/// Of the current protocol.
#[derive(Serialize)]
pub(super) struct FullStatus {
    generation: Generation,
    build: String,
    protocol: Range,
    pid: u32,
    started: jiff::Timestamp,
    draining: bool,
    sessions: usize,
    pending: u64,
    /// Absent when none is pending.
    #[serde(skip_serializing_if = "Option::is_none")]
    oldest_pending_ms: Option<u64>,
    approvals: u64,
    connections: Connections,
    /// Not for who sees a part only.
    #[serde(skip_serializing_if = "Option::is_none")]
    audit: Option<AuditState>,
    accounts: Vec<Account>,
    credentials: Vec<Holder>,
    /// Holders beyond those listed.
    more_credentials: usize,
    budgets: Vec<SessionBudget>,
    /// Sessions beyond those listed.
    more_budgets: usize,
}

#[derive(Serialize)]
struct AuditState {
    state: &'static str,
    seq: u64,
    lost: u64,
}

#[derive(Serialize)]
struct SessionBudget {
    session_id: SessionId,
    credential: CredentialId,
    in_flight: u64,
    queued: u64,
    queued_bytes: u64,
    rejected: u64,
}

#[derive(Serialize)]
struct Connections {
    open: usize,
    unfinished_hellos: usize,
}

#[derive(Serialize)]
struct Account {
    name: &'static str,
    used: u64,
    peak: u64,
    limit: u64,
    refused: u64,
}

#[derive(Serialize)]
struct Holder {
    credential: CredentialId,
    label: String,
    role: &'static str,
    connections: usize,
    sessions: u64,
    in_flight: u64,
    queued: u64,
    queued_bytes: u64,
    outbound_bytes: u64,
    rejected: u64,
}

impl ZeroStatus {
    pub(super) fn of(on: &Conversation) -> Self {
        Self {
            generation: on.hub.generation,
            build: on.hub.build.clone(),
            protocol: Range::OURS,
            sessions: on.hub.directory.select(&Selector::default(), on.peer.authority(), 0).len(),
            draining: on.hub.draining.load(SeqCst),
        }
    }
}

impl FullStatus {
    pub(super) fn of(on: &Conversation) -> Self {
        let hub = &on.hub;
        let own = on.peer.authority().credential();
        let all = on.sees_all();
        let sessions = hub.directory.select(&Selector::default(), on.peer.authority(), 0);
        let (open, unfinished_hellos) = if all { hub.slots.count() } else { (own.connected(), 0) };
        let totals = &hub.totals;
        let [keys, kept_results] = hub.lanes.keyring.totals();
        let pools = [
            &totals.connections,
            &totals.operators,
            &totals.sessions,
            hub.leases.total(),
            &hub.lanes.queued,
            &hub.lanes.queued_bytes,
            &totals.inbound_bytes,
            &totals.outbound_bytes,
            &totals.snapshots,
            &totals.streams,
            &totals.approvals,
            &totals.approvals_bytes,
            keys,
            kept_results,
        ];
        let is_operator = on.peer.authority().role() == Role::Operator;
        let mut holders = if all && is_operator {
            let mut holders = hub.credentials.all();
            holders.retain(|credential| credential.connected() > 0 || credential.shares.rejected.load(Relaxed) > 0);
            holders
        } else {
            vec![std::sync::Arc::clone(own)]
        };
        let busy_first = |of: &Credential| (Reverse(of.connected()), of.role.word(), of.label.clone(), of.id);
        holders.sort_by_cached_key(|credential| busy_first(credential));
        let more_credentials = holders.len().saturating_sub(HOLDERS_MAX);
        holders.truncate(HOLDERS_MAX);
        let mut budgets: Vec<_> = sessions.iter().map(|session| SessionBudget::of(session)).collect();
        budgets.sort_by_key(|budget| Reverse((budget.in_flight + budget.queued, budget.rejected)));
        let more_budgets = budgets.len().saturating_sub(HOLDERS_MAX);
        budgets.truncate(HOLDERS_MAX);
        let oldest = sessions.iter().filter_map(|session| session.lane.oldest()).min();
        Self {
            generation: hub.generation,
            build: hub.build.clone(),
            protocol: Range::OURS,
            pid: std::process::id(),
            started: hub.started,
            draining: hub.draining.load(SeqCst),
            sessions: sessions.len(),
            pending: sessions.iter().map(|session| session.lane.pending()).sum(),
            oldest_pending_ms: oldest.map(|arrived| millis(arrived.elapsed())),
            approvals: if all && is_operator { &totals.approvals } else { &own.shares.approvals }.used(),
            connections: Connections { open, unfinished_hellos },
            audit: all.then(|| hub.audit.state().into()),
            accounts: pools.iter().filter(|_| all).map(|pool| pool.usage().into()).collect(),
            credentials: holders.iter().map(|credential| Holder::of(credential)).collect(),
            more_credentials,
            budgets,
            more_budgets,
        }
    }
}

impl From<State> for AuditState {
    fn from(state: State) -> Self {
        let State { head, lost, available } = state;
        Self { state: if available { "available" } else { "unavailable" }, seq: head.seq, lost }
    }
}

impl From<Usage> for Account {
    fn from(usage: Usage) -> Self {
        let Usage { name, used, peak, limit, refused } = usage;
        Self { name, used, peak, limit, refused }
    }
}

impl SessionBudget {
    fn of(session: &Session) -> Self {
        let Held { in_flight, queued, queued_bytes, rejected } = session.lane.budget().held();
        let credential = session.lane.producer().authority().credential().id;
        Self { session_id: session.id, credential, in_flight, queued, queued_bytes, rejected }
    }
}

impl Holder {
    fn of(credential: &Credential) -> Self {
        let shares = &credential.shares;
        Self {
            credential: credential.id,
            label: credential.label.clone(),
            role: credential.role.word(),
            connections: credential.connected(),
            sessions: shares.sessions.used(),
            in_flight: shares.in_flight.load(Relaxed),
            queued: shares.queued.used(),
            queued_bytes: shares.queued_bytes.used(),
            outbound_bytes: shares.outbound_bytes.used(),
            rejected: shares.rejected.load(Relaxed),
        }
    }
}
