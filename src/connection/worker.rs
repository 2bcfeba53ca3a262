//! One connection, from `accept` to its end. It reads like a story: hello, register, look again, then read, open, admit,
//! dispatch until it is over. Every exit passes the same last lines.

use std::os::unix::net::UnixStream;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde::Serialize;

use crate::account::Charge;
use crate::audit::Fact;
use crate::ids::{ConnectionId, Fingerprint};
use crate::limits::{DEADLINE_DEFAULT_MS, DEADLINE_MAX_MS, FRAME_MAX_BYTES, HEARTBEAT_MS};
use crate::registry::report::Report;
use crate::route::feed::Audience;
use crate::route::peer::{Peer, Place};
use crate::wire::events::{ConnectionState, Event};
use crate::wire::frame::Opener;
use crate::wire::message;
use crate::wire::methods::WELCOME;

use super::dispatch::{Conversation, Over};
use super::hello::{self, Admitted};
use super::hub::Hub;
use super::reader::{Budget, Ended, Reader};
use super::slots::{Finished, Slot};

/// The reason of a connection that ended by a panic.
const A_BUG: &str = "a bug of usherd";

/// How a connection ended.
struct Outcome {
    reason: &'static str,
    fingerprint: Option<Fingerprint>,
}

/// A connection that was let in and welcomed.
pub struct Entered {
    /// First: its session ends, then its connection, then what is held for it goes.
    conversation: Conversation,
    registered: Registered,
    reader: Reader,
    opener: Opener,
    fingerprint: Fingerprint,
    uid: u32,
    _place: Finished,
    _charge: Charge,
}

/// Speaks the hello of a connection. `None`: it has ended, and the log was told how. A panic ends this connection only.
pub fn enter(hub: &Arc<Hub>, socket: &Arc<UnixStream>, slot: Slot, uid: u32) -> Option<Box<Entered>> {
    let entered = catch_unwind(AssertUnwindSafe(|| hello_and_welcome(hub, socket, slot, uid)));
    match entered.unwrap_or(Err(Outcome { reason: A_BUG, fingerprint: None })) {
        Ok(entered) => Some(entered),
        Err(outcome) => {
            tell(hub, uid, &outcome);
            refused(hub, uid, &outcome);
            None
        }
    }
}

fn tell(hub: &Hub, uid: u32, outcome: &Outcome) {
    if outcome.reason == hello::HEALTH {
        return;
    }
    hub.outcomes.tell(outcome.reason, || {
        let key = outcome.fingerprint.map_or_else(|| "-".to_owned(), |key| key.to_string());
        format!("connection of uid {uid}, key {key}: {}", outcome.reason)
    });
}

/// Of the key that a stranger names nothing is told: it can be any text.
fn refused(hub: &Hub, uid: u32, outcome: &Outcome) {
    if outcome.reason == hello::HEALTH {
        return;
    }
    let credential = outcome.fingerprint.and_then(|key| hub.credentials.find(key)).map(|credential| credential.id);
    hub.audit.record(Fact::Refused { code: outcome.reason, credential, uid: Some(uid) });
}

fn hello_and_welcome(hub: &Arc<Hub>, socket: &Arc<UnixStream>, slot: Slot, uid: u32) -> Result<Box<Entered>, Outcome> {
    let mut reader = Reader::new(Arc::clone(socket));
    let admitted = hello::receive(hub, socket, &mut reader, slot);
    let admitted = admitted.map_err(|not_in| Outcome { reason: not_in.reason, fingerprint: not_in.fingerprint })?;
    let Admitted { peer, opener, protocol, fingerprint, place, charge } = admitted;
    let outcome = |reason| Err(Outcome { reason, fingerprint: Some(fingerprint) });

    // Registered first, looked at again afterwards: a revocation either sees this connection or is seen by it.
    let mut registered = Registered::new(hub, peer);
    let peer = Arc::clone(&registered.peer);
    if peer.authority().admit_delivery().is_err() {
        return outcome("revoked during its hello");
    }
    if hub.is_closing() {
        return outcome("daemon is ending");
    }
    registered.opened();
    if peer.send(message::notification(WELCOME, &welcome(hub, &peer, protocol))).is_err() {
        return outcome("gone before its welcome");
    }
    let (connection, credential) = (peer.id(), peer.authority().credential().id);
    let role = peer.authority().role().word();
    hub.audit.record(Fact::Connected { connection, credential, role, protocol, uid });
    let conversation = Conversation::new(hub, &peer, protocol);
    Ok(Box::new(Entered { conversation, registered, reader, opener, fingerprint, uid, _place: place, _charge: charge }))
}

impl Entered {
    /// Serves it to its end, or until it has a session: from then on it stays for long, mostly idle, and goes on in a thread
    /// of its own. This one has needed far more stack, for a hello and a registration, than anything later does.
    pub fn serve(mut self: Box<Self>) -> Option<Box<Self>> {
        match self.serve_until(|conversation| conversation.owned.is_some()) {
            None => Some(self),
            Some(reason) => {
                self.tell(reason);
                None
            }
        }
    }

    /// Serves it to its end.
    pub fn stay(mut self: Box<Self>) {
        if let Some(reason) = self.serve_until(|_| false) {
            self.tell(reason);
        }
    }

    fn tell(&self, reason: &'static str) {
        let Registered { hub, peer, .. } = &self.registered;
        tell(hub, self.uid, &Outcome { reason, fingerprint: Some(self.fingerprint) });
        let (connection, credential) = (peer.id(), peer.authority().credential().id);
        hub.audit.record(Fact::Disconnected { connection, credential, reason });
    }

    /// Why it has ended; `None`: it has not, and what was asked for is so.
    fn serve_until(&mut self, is_so: impl Fn(&Conversation) -> bool) -> Option<&'static str> {
        catch_unwind(AssertUnwindSafe(|| self.story(is_so))).unwrap_or(Some(A_BUG))
    }

    fn story(&mut self, is_so: impl Fn(&Conversation) -> bool) -> Option<&'static str> {
        let (hub, peer) = (&self.registered.hub, &self.registered.peer);
        let shares = &peer.authority().credential().shares;
        let budget = Budget { total: Arc::clone(&hub.totals.inbound_bytes), share: Arc::clone(&shares.inbound_bytes) };
        let within = Duration::from_millis(hub.limits.frame_ms);
        while !is_so(&self.conversation) {
            let plaintext = match self.reader.frame(&mut self.opener, within, &budget) {
                Ok(plaintext) => plaintext,
                Err(Ended::Eof) => return Some("lost"),
                Err(ended) => {
                    peer.close(ended.word());
                    return Some(ended.word());
                }
            };
            let reason = match self.conversation.hear(plaintext) {
                Ok(()) => continue,
                Err(Over::Closed) => "closed by peer",
                Err(Over::Broken(rule)) => rule,
            };
            peer.close(reason);
            return Some(reason);
        }
        None
    }
}

/// A connection's entry in its credential and in the hub; taken out when the connection ends, with all that waits for it.
struct Registered {
    hub: Arc<Hub>,
    peer: Arc<Peer>,
    /// Whether its beginning was told, so that its end is.
    is_told: bool,
}

impl Registered {
    fn new(hub: &Arc<Hub>, peer: Arc<Peer>) -> Self {
        hub.quiescence.connected();
        hub.peers.lock().insert(peer.id(), Arc::clone(&peer));
        let connection: Arc<Peer> = Arc::clone(&peer);
        peer.authority().credential().connect(peer.id(), connection);
        if peer.authority().credential().gate.can_expire() {
            // The sweep goes on by itself while somebody connected can expire.
            hub.clock.alarm(Instant::now());
        }
        Self { hub: Arc::clone(hub), peer, is_told: false }
    }

    /// Tells who follows that it is there.
    fn opened(&mut self) {
        self.is_told = true;
        self.tell(ConnectionState::Open);
    }

    fn tell(&self, state: ConnectionState) {
        let credential = self.peer.authority().credential();
        let connection = Event::Connection {
            peer: self.peer.id(),
            credential: credential.id,
            label: &credential.label,
            role: credential.role,
            state,
        };
        self.hub.feed.publish(Audience::Credential(credential.id), &connection);
    }
}

impl Drop for Registered {
    fn drop(&mut self) {
        self.peer.cut_now();
        let id = self.peer.id();
        for (request, place) in self.peer.places() {
            match place {
                Place::Lane(lane) => lane.cancel(id, request),
                Place::Registry => {
                    self.hub.report(Report::Cancel { connection: id, request });
                }
            }
        }
        self.hub.feed.forget(id);
        self.peer.authority().credential().disconnect(id);
        self.hub.peers.lock().remove(&id);
        self.hub.quiescence.disconnected();
        if self.is_told {
            let is_revoked = self.peer.authority().credential().gate.end().is_some();
            self.tell(if is_revoked { ConnectionState::Revoked } else { ConnectionState::Closed });
        }
    }
}

#[derive(Serialize)]
struct Welcome {
    connection: ConnectionId,
    protocol: u16,
    role: &'static str,
    scopes: Vec<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    expires: Option<jiff::Timestamp>,
    limits: WelcomeLimits,
    build: String,
}

#[derive(Serialize)]
struct WelcomeLimits {
    frame_max_bytes: u64,
    input_max_bytes: u64,
    result_max_bytes: u64,
    snapshot_max_bytes: u64,
    deadline_default_ms: u64,
    deadline_max_ms: u64,
    heartbeat_ms: u64,
}

fn welcome(hub: &Hub, peer: &Peer, protocol: u16) -> Welcome {
    let authority = peer.authority();
    Welcome {
        connection: peer.id(),
        protocol,
        role: authority.role().word(),
        scopes: authority.scopes().names(),
        expires: authority.credential().gate.expires(),
        limits: WelcomeLimits {
            frame_max_bytes: FRAME_MAX_BYTES as u64,
            input_max_bytes: hub.limits.input_bytes,
            result_max_bytes: hub.limits.result_bytes,
            snapshot_max_bytes: hub.limits.snapshot_bytes,
            deadline_default_ms: DEADLINE_DEFAULT_MS,
            deadline_max_ms: DEADLINE_MAX_MS,
            heartbeat_ms: HEARTBEAT_MS,
        },
        build: hub.build.clone(),
    }
}
