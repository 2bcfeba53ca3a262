//! What a producer's threads share: where the connection is, what the session tells, what is asked on the connection.
//!
//! Owns: the [`State`] and every change of it, and updates on their way to the daemon. Invariants: an update is sent when
//! the one before it is answered, so that only the latest of many is; a registration tells everything, so a connection
//! begins with nothing left to update. Lock order: a connection's own, then `now`; nothing is sent with `now` locked.

use std::sync::Arc;
use std::thread::{self, ThreadId};
use std::time::Instant;

use parking_lot::{Condvar, Mutex};

use crate::client::address::Target;
use crate::client::connection::Sender;
use crate::client::failure::SendError;
use crate::limits::HEARTBEAT_MS;
use crate::wire::methods::Method;
use crate::wire::rows;

use super::description::{Description, commands};
use super::follow::{Change, ConnectionState, Listeners};
use super::lease::Lease;
use super::pool::Pool;
use super::state::{Event, State};

pub(super) struct Core {
    pub target: Target,
    pub lease: Lease,
    pub pool: Pool,
    pub listeners: Arc<Listeners>,
    pub now: Mutex<Now>,
    /// Signalled at every change that somebody may wait for.
    pub changed: Condvar,
}

pub(super) struct Now {
    pub state: State,
    pub description: Description,
    pub link: Link,
    pub wire: Option<Wire>,
    /// Counts connections.
    pub connections: u64,
}

/// The thread that connects.
#[derive(Default)]
pub(super) struct Link {
    pub is_running: bool,
    /// The first try is over, or goes on without us.
    pub is_begun: bool,
    /// The last that there was.
    pub thread: Option<ThreadId>,
}

/// A connection, and what was asked on it and is not answered.
pub(super) struct Wire {
    pub sender: Sender,
    pub is_registered: bool,
    pub register: Option<u64>,
    pub goodbye: Option<u64>,
    update: Updating,
    dirty: Dirty,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Updating {
    No,
    Sending,
    Sent(u64),
}

/// What the daemon was not told yet.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Dirty {
    pub title: bool,
    pub labels: bool,
    pub commands: bool,
    pub snapshot: bool,
}

impl Wire {
    pub fn new(sender: Sender) -> Self {
        let (update, dirty) = (Updating::No, Dirty::default());
        Self { sender, is_registered: false, register: None, goodbye: None, update, dirty }
    }

    /// Everything was told.
    pub fn is_clean(&mut self) {
        (self.update, self.dirty) = (Updating::No, Dirty::default());
    }

    /// Whether this is the answer to the update that is under way. From now on none is.
    pub fn is_updated(&mut self, id: u64) -> bool {
        let is_it = self.update == Updating::Sent(id);
        if is_it {
            self.update = Updating::No;
        }
        is_it
    }
}

impl From<State> for ConnectionState {
    fn from(state: State) -> Self {
        match state {
            State::Idle => Self::Idle,
            State::Connecting { .. } => Self::Connecting,
            State::Open => Self::Open,
            State::Waiting { .. } => Self::Waiting,
            State::Revoked => Self::Revoked,
            State::Stopped => Self::Stopped,
        }
    }
}

impl Core {
    /// Something happened. Whoever listens hears it before this returns, or from another thread that is telling already.
    pub fn apply(&self, event: Event, reason: Option<String>) {
        self.note(&mut self.now.lock(), event, reason);
        self.listeners.tell();
    }

    /// The same with the lock held; [`Listeners::tell`] is to follow without it.
    pub fn note(&self, now: &mut Now, event: Event, reason: Option<String>) {
        let before = ConnectionState::from(now.state);
        now.state = now.state.next(event);
        let state = ConnectionState::from(now.state);
        if state != before {
            log::debug!("{before:?} to {state:?}: {reason:?}");
            self.listeners.note(Change { state, reason });
        }
        self.changed.notify_all();
    }

    /// Whether the calling thread is the link, in a handler, or in a listener: then it cannot wait for these, and they may
    /// wait for it.
    pub fn is_own_thread(&self) -> bool {
        let own = Some(thread::current().id());
        let link = self.now.lock().link.thread;
        link == own || self.listeners.teller() == own || self.pool.is_own()
    }

    /// Waits until this holds of the connection; false: it did not until the deadline.
    pub fn wait_until(&self, deadline: Instant, holds: impl Fn(&Now) -> bool) -> bool {
        let mut now = self.now.lock();
        while !holds(&now) {
            if self.changed.wait_until(&mut now, deadline).timed_out() {
                return holds(&now);
            }
        }
        true
    }

    /// The session changed: the daemon hears it, now or as soon as it can.
    pub fn tell(&self, what: Dirty) {
        if let Some(wire) = &mut self.now.lock().wire {
            let dirty = &mut wire.dirty;
            dirty.title |= what.title;
            dirty.labels |= what.labels;
            dirty.commands |= what.commands;
            dirty.snapshot |= what.snapshot;
        }
        self.flush();
    }

    /// Sends what is not told yet, unless an update is under way.
    pub fn flush(&self) {
        loop {
            let Some((connection, sender, update, snapshot)) = self.next_update() else { return };
            let method = Method::SessionUpdate.name();
            let deadline = Instant::now() + std::time::Duration::from_millis(HEARTBEAT_MS);
            let sent = sender.request_seen(method, &update, snapshot.as_deref(), deadline, |id, _| {
                self.updating(connection, Updating::Sent(id));
            });
            match sent {
                Ok(_) | Err(SendError::Lost) => return,
                Err(SendError::TooLarge) => {
                    self.updating(connection, Updating::No);
                    self.refused("the update is too large for a message");
                }
            }
        }
    }

    fn next_update(&self) -> Option<(u64, Sender, rows::Update, Option<Vec<u8>>)> {
        let mut now = self.now.lock();
        let Now { wire, description, connections, .. } = &mut *now;
        let wire = wire.as_mut().filter(|wire| wire.is_registered && wire.update == Updating::No)?;
        let dirty = std::mem::take(&mut wire.dirty);
        if dirty == Dirty::default() {
            return None;
        }
        wire.update = Updating::Sending;
        let update = rows::Update {
            title: dirty.title.then(|| description.title.clone()),
            labels: dirty.labels.then(|| description.labels.clone()),
            commands: dirty.commands.then(|| commands(&description.offers)),
            snapshot: dirty.snapshot,
            ..rows::Update::default()
        };
        let snapshot = description.snapshot.clone().filter(|_| dirty.snapshot);
        Some((*connections, wire.sender.clone(), update, snapshot))
    }

    fn updating(&self, connection: u64, update: Updating) {
        let mut now = self.now.lock();
        // Another connection knows nothing of it.
        if now.connections == connection {
            if let Some(wire) = &mut now.wire {
                wire.update = update;
            }
        }
    }

    /// The daemon would not have an update; the session stays as it is there.
    pub fn refused(&self, why: &str) {
        log::warn!("an update was refused: {why}");
        let state = self.now.lock().state.into();
        self.listeners.note(Change { state, reason: Some(format!("an update was refused: {why}")) });
        self.listeners.tell();
    }
}
