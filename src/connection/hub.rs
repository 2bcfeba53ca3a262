//! What every worker of a daemon shares. Set up once; nothing in it is replaced while the daemon lives.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};

use crossbeam_channel::Sender;
use parking_lot::Mutex;

use crate::account::Pool;
use crate::audit::{Audit, Fact};
use crate::auth::credential::Credential;
use crate::auth::credentials::Credentials;
use crate::auth::gate::End;
use crate::auth::identity::Identity;
use crate::ids::{ConnectionId, Generation};
use crate::limits::Limits;
use crate::registry::leases::Leases;
use crate::registry::report::{Report, Stop};
use crate::route::clock::Clock;
use crate::route::directory::Directory;
use crate::route::feed::{Audience, Feed};
use crate::route::flusher::Flusher;
use crate::route::lane::LaneBounds;
use crate::route::peer::Peer;
use crate::route::quiescence::Quiescence;
use crate::wire::events::{Event, GoneReason};

use super::outcomes::Outcomes;
use super::slots::Slots;

/// Bounds that connections charge, in total.
pub struct Totals {
    /// Connections of producers and callers.
    pub connections: Arc<Pool>,
    /// Connections of operators.
    pub operators: Arc<Pool>,
    /// Bytes of frames being read.
    pub inbound_bytes: Arc<Pool>,
    /// Bytes that peers have not read.
    pub outbound_bytes: Arc<Pool>,
    /// Sessions.
    pub sessions: Arc<Pool>,
    /// Bytes of snapshots.
    pub snapshots: Arc<Pool>,
    /// Waits and follows.
    pub streams: Arc<Pool>,
    /// Open approvals.
    pub approvals: Arc<Pool>,
    /// Bytes of their texts.
    pub approvals_bytes: Arc<Pool>,
}

/// A daemon, as its workers see it.
pub struct Hub {
    /// Its bounds.
    pub limits: Limits,
    /// This start.
    pub generation: Generation,
    /// Program and version.
    pub build: String,
    /// When it started.
    pub started: jiff::Timestamp,
    /// Its key.
    pub identity: Arc<Identity>,
    /// Everybody it knows.
    pub credentials: Credentials,
    /// What happened, for ever.
    pub audit: Arc<Audit>,
    /// What takes sessions back.
    pub leases: Arc<Leases>,
    /// What happened.
    pub feed: Arc<Feed>,
    /// Where sessions are.
    pub directory: Arc<Directory>,
    /// To the registry. Taken away at shutdown, so that the registry's thread ends.
    pub reports: Mutex<Option<Sender<Report>>>,
    /// The next deadline.
    pub clock: Arc<Clock>,
    /// Whether there is anything to stay for.
    pub quiescence: Arc<Quiescence>,
    /// For what sockets do not take.
    pub flusher: Arc<Flusher>,
    /// For lanes, and for counting what is pending.
    pub lanes: Arc<LaneBounds>,
    /// Who is connected.
    pub slots: Arc<Slots>,
    /// How connections ended, for the log.
    pub outcomes: Outcomes,
    /// Totals.
    pub totals: Totals,
    /// Ends the daemon.
    pub stop: Stop,
    /// Every authenticated connection, for shutdown.
    pub peers: Mutex<std::collections::HashMap<ConnectionId, Arc<Peer>>>,
    /// No new sessions.
    pub draining: Arc<AtomicBool>,
    /// No new work.
    pub closing: AtomicBool,
}

impl Hub {
    /// Tells the registry; `false` once it is gone. Waits while the registry is behind.
    pub fn report(&self, report: Report) -> bool {
        let reports = self.reports.lock().clone();
        reports.is_some_and(|reports| reports.send(report).is_ok())
    }

    /// What belongs to credentials that have ended goes with them.
    pub fn forget_ended(&self) {
        for id in self.credentials.take_ended() {
            let sessions = self.leases.forget(id);
            self.lanes.keyring.forget_sessions(&sessions);
            self.lanes.keyring.forget_caller(id);
            if let Some(credential) = self.credentials.get(id) {
                self.tell_ended(&credential);
            }
        }
    }

    /// Tells who follows, of each end once; the audit of the one that nobody asked for.
    fn tell_ended(&self, credential: &Credential) {
        let Some(end) = credential.gate.end() else { return };
        let (id, label) = (credential.id, credential.label.as_str());
        let reason = if end == End::Revoked { GoneReason::Revoked } else { GoneReason::Expired };
        let told = credential.told_end.swap(end as u8, SeqCst);
        if told == 0 {
            self.feed.publish(Audience::Credential(id), &Event::Unpaired { credential: id, label, reason });
            if end == End::Expired {
                self.audit.record(Fact::CredentialExpired { credential: id });
            }
        }
        if end == End::Revoked && told != end as u8 {
            self.feed.publish(Audience::Credential(id), &Event::CredentialRevoked { credential: id, label });
        }
    }

    /// Whether new work is refused.
    pub fn is_closing(&self) -> bool {
        self.closing.load(SeqCst)
    }
}
