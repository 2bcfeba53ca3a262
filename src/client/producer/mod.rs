//! A session of this program: registered, served, and brought back after every loss of the daemon.
//!
//! Owns: what a program sees of it ([`Producer`]), what it tells ([`description`]), its commands ([`command`], [`pool`],
//! [`ledger`]), who it is ([`lease`]), and the way to the daemon ([`core`], [`link`], [`state`]). It must not know what
//! commands do. Invariant: one object lives through every daemon, with its queue, budgets, latest snapshot and ledger;
//! stopped, it says and answers nothing more.
//!
//! ```text
//!  start, retry, update, snapshot, stop ──▶ core ◀── link (one thread) ◀──▶ daemon
//!                                            │          │ command, $/cancel
//!                      listeners ◀───────────┘          ▼
//!                                                     pool ──▶ handlers (at most max_in_flight threads) ──▶ daemon
//! ```

mod cancel;
mod command;
mod core;
mod description;
mod follow;
mod lease;
mod ledger;
mod link;
mod pool;
pub(super) mod state;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};
use serde_json::json;

use crate::ids::SessionId;
use crate::threads;
use crate::wire::methods::Method;

use super::address::Target;

pub use cancel::Why;
pub use command::{Asker, Command, Offer};
pub use description::{Description, Invalid, StartDaemon, Update};
pub use follow::{Change, ConnectionState, Following};

use core::{Core, Dirty, Now};
use description::check_snapshot;
use follow::Listeners;
use lease::Lease;
use pool::Pool;
use state::{Event, State};

/// How long a daemon gets for the last word of a session.
const GOODBYE: Duration = Duration::from_secs(1);

/// A session of this program. Dropped, it is stopped.
///
/// One object lives through every loss of the daemon: it waits for the next one, or starts it, and registers again under
/// the same id, with what was told last. Everything can be called from any thread, in any order.
///
/// ```no_run
/// use std::time::Duration;
/// use usher::client::{ConnectionState, Description, Offer, Producer, Target};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let build = Offer::new("build", |command| {
///     while command.wait_cancelled(Duration::from_millis(100)).is_none() {
///         // … a part of the work, and then the next
///     }
///     Err("cancelled".to_owned())
/// });
/// let producer = Producer::new(Target::from_env(None)?, Description::new("builder").offer(build))?;
/// let _following = producer.follow(|change| eprintln!("{:?} {:?}", change.state, change.reason));
/// producer.start()?;
/// # Ok(())
/// # }
/// ```
pub struct Producer {
    core: Arc<Core>,
    links: Mutex<Vec<JoinHandle<()>>>,
    /// It was said by [`Producer::stop_by`] how long the end may take.
    is_left: AtomicBool,
}

impl Producer {
    /// A session that nobody hears of before [`start`](Self::start). What the daemon would refuse of the description is
    /// refused here.
    pub fn new(target: Target, description: Description) -> Result<Self, Invalid> {
        description.check()?;
        let no_key = || Invalid("the system makes no key".to_owned());
        let core = Core {
            target,
            lease: Lease::new(description.session).ok_or_else(no_key)?,
            pool: Pool::new(description.max_in_flight),
            listeners: Arc::new(Listeners::default()),
            now: Mutex::new(Now {
                state: State::Idle,
                description,
                link: core::Link::default(),
                wire: None,
                connections: 0,
            }),
            changed: Condvar::new(),
        };
        Ok(Self { core: Arc::new(core), links: Mutex::default(), is_left: AtomicBool::new(false) })
    }

    /// The session's id, the same on every connection.
    #[must_use]
    pub fn session_id(&self) -> SessionId {
        self.core.lease.session()
    }

    /// Begins to connect, and returns. Once begun, or stopped, it does nothing. The error is that there is no thread.
    pub fn start(&self) -> std::io::Result<()> {
        self.go(Event::Started)
    }

    /// Tries now what is waited for, also with a key that was refused. Does nothing where a try is under way, the session
    /// is open, or was stopped.
    pub fn retry(&self) -> std::io::Result<()> {
        self.go(Event::Retried)
    }

    fn go(&self, event: Event) -> std::io::Result<()> {
        let mut links = self.links.lock();
        let needs_link = {
            let mut now = self.core.now.lock();
            self.core.note(&mut now, event, None);
            let needs_link = matches!(now.state, State::Connecting { .. }) && !now.link.is_running;
            now.link.is_running |= needs_link;
            needs_link
        };
        if needs_link {
            links.drain(..).for_each(|link| drop(link.join()));
            let core = Arc::clone(&self.core);
            match threads::spawn("usher-link", move || link::run(&core)) {
                Ok(link) => links.push(link),
                Err(error) => {
                    let mut now = self.core.now.lock();
                    now.link.is_running = false;
                    // As if it had not been asked; somebody else may have stopped it meanwhile.
                    if matches!(now.state, State::Connecting { .. }) {
                        now.state = State::Idle;
                    }
                    return Err(error);
                }
            }
        }
        drop(links);
        self.core.listeners.tell();
        Ok(())
    }

    /// Where the connection is.
    #[must_use]
    pub fn state(&self) -> ConnectionState {
        self.core.now.lock().state.into()
    }

    /// Waits until the connection is there; false: it was not until the deadline.
    pub fn wait_for(&self, state: ConnectionState, deadline: Instant) -> bool {
        self.core.wait_until(deadline, |now| ConnectionState::from(now.state) == state)
    }

    /// Calls `listener` at every change of the connection, until what is returned is dropped. It is called by a thread of
    /// the library, or by the one that starts or stops, and must not wait.
    pub fn follow(&self, listener: impl Fn(&Change) + Send + Sync + 'static) -> Following {
        self.core.listeners.add(Arc::new(listener))
    }

    /// Changes what the session tells. What the daemon would refuse is refused here and changes nothing; what it refuses
    /// all the same, for its grant or a lowered limit, a [`Change`] tells.
    pub fn update(&self, update: Update) -> Result<(), Invalid> {
        let Update { title, labels, offers } = update;
        let dirty =
            Dirty { title: title.is_some(), labels: labels.is_some(), commands: offers.is_some(), snapshot: false };
        let mut now = self.core.now.lock();
        // It was checked when it came, and may be large.
        let snapshot = now.description.snapshot.take();
        let mut other = now.description.clone();
        other.title = title.unwrap_or(other.title);
        other.labels = labels.unwrap_or(other.labels);
        other.offers = offers.unwrap_or(other.offers);
        let checked = other.check();
        if checked.is_ok() {
            std::mem::swap(&mut now.description, &mut other);
        }
        now.description.snapshot = snapshot;
        drop(now);
        // Not under the lock: what a handler held may ask the producer.
        drop(other);
        checked?;
        self.core.tell(dirty);
        Ok(())
    }

    /// Replaces the session's state: one JSON text of at most 4 MiB. Of many the latest counts; those between are not
    /// sent when the daemon has not taken the one before.
    pub fn snapshot(&self, json: Vec<u8>) -> Result<(), Invalid> {
        check_snapshot(&json)?;
        self.core.now.lock().description.snapshot = Some(json);
        self.core.tell(Dirty { snapshot: true, ..Dirty::default() });
        Ok(())
    }

    /// Ends the session for good. No result is sent from now on; what runs is told by [`Command::cancelled`] and waited
    /// for, as are the library's threads. Stopping twice is stopping once. From within a handler or listener of its own it
    /// does all this but wait: others may wait for that one.
    pub fn stop(&self) {
        self.end(Instant::now() + GOODBYE);
        if self.core.is_own_thread() {
            return;
        }
        let links = std::mem::take(&mut *self.links.lock());
        links.into_iter().for_each(|link| drop(link.join()));
        self.core.pool.join(None);
    }

    /// Commands whose handlers have not ended.
    pub(crate) fn running(&self) -> usize {
        self.core.pool.running()
    }

    /// As [`Producer::stop`], waiting for nothing beyond the deadline; threads that are left have nothing more to say.
    pub fn stop_by(&self, deadline: Instant) {
        self.is_left.store(true, Ordering::Relaxed);
        self.end(deadline);
        if self.core.is_own_thread() {
            return;
        }
        let links = std::mem::take(&mut *self.links.lock());
        links.into_iter().filter(JoinHandle::is_finished).for_each(|link| drop(link.join()));
        self.core.pool.join(Some(deadline));
    }

    /// Says goodbye and hears that it was taken, so that whoever lists the sessions afterwards does not find this one.
    /// The end of the connection says it in any case.
    fn end(&self, deadline: Instant) {
        let core = &self.core;
        let (open, is_registered) = {
            let mut now = core.now.lock();
            if now.state == State::Stopped {
                return;
            }
            core.note(&mut now, Event::Stopped, None);
            let wire = now.wire.as_ref();
            (wire.map(|wire| wire.sender.clone()), wire.is_some_and(|wire| wire.is_registered))
        };
        core.pool.stop();
        core.listeners.tell();
        let Some(sender) = open else { return };
        if is_registered {
            let unregister = Method::SessionUnregister.name();
            let _ = sender.request_seen(unregister, &json!({}), None, deadline, |id, _| {
                if let Some(wire) = &mut core.now.lock().wire {
                    wire.goodbye = Some(id);
                }
            });
        }
        if !core.wait_until(deadline, |now| now.wire.is_none()) {
            sender.cut();
        }
    }

    /// Waits until the first try, with the start of a daemon, would go on without us.
    pub(crate) fn wait_begun(&self, deadline: Instant) {
        self.core.wait_until(deadline, |now| now.link.is_begun);
    }
}

impl Drop for Producer {
    fn drop(&mut self) {
        if !self.is_left.load(Ordering::Relaxed) {
            self.stop();
        }
    }
}
