//! Following for as long as a program runs: one thread that reads, comes back after every loss, and calls listeners.
//!
//! Owns: the listeners, the thread, and where in the feed it is. Invariant: a listener hears each event once and in order, from
//! its own beginning on; a gap, across a restart of the daemon too, is an event. Threads: the watch waits for the daemon, for
//! time, and for listeners, one after another; whoever stops it waits for the watch, unless it is the watch itself.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::{Arc, Weak};
use std::thread::{JoinHandle, ThreadId, current};
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};

use crate::client::address::Target;
use crate::client::connection::Sender;
use crate::client::failure::{ConnectError, ConnectFailure};
use crate::client::handshake::{Hello, connect, health};
use crate::client::producer::state::{Wait, pause};
use crate::ids::random;
use crate::threads;
use crate::wire::codes::Code;

use super::{Event, Events, EventsError, Filter, role};

/// How long a daemon may take to say that it is well.
const HEALTH: Duration = Duration::from_secs(1);

/// Follows what happens, through every loss of the daemon, on a thread of its own. Dropped, it is stopped.
///
/// Make it, add listeners, start it. It never starts a daemon. While a listener runs nothing is read, and what happens
/// meanwhile is kept by the daemon, within its bounds.
///
/// ```no_run
/// use usher::client::{Filter, Target, Watch};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let watch = Watch::new(Target::from_env(None)?, Filter::new().kind("session-gone"));
/// let listening = watch.listen(|event| println!("{}", event.json()));
/// watch.start()?;
/// // … the program
/// drop(listening); // hears no more
/// watch.stop();
/// # Ok(())
/// # }
/// ```
pub struct Watch {
    shared: Arc<Shared>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

struct Shared {
    target: Target,
    now: Mutex<Now>,
    changed: Condvar,
}

/// Held for a moment only, and never around a listener.
struct Now {
    filter: Filter,
    listeners: Vec<Arc<Listener>>,
    /// Ends the connection that is read.
    connection: Option<Sender>,
    is_stopped: bool,
    /// The watch, while it runs.
    runs: Option<Runs>,
    over: Option<Result<(), EventsError>>,
}

/// The thread's own part of [`Now`]: which one it is, once it says so.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Runs {
    Begins,
    As(ThreadId),
}

type Hear = dyn FnMut(&Event) + Send;

struct Listener {
    hear: Mutex<Box<Hear>>,
    is_heard: AtomicBool,
}

impl Watch {
    /// Without a listener and not yet started.
    #[must_use]
    pub fn new(target: Target, filter: Filter) -> Self {
        let now = Now { filter, listeners: Vec::new(), connection: None, is_stopped: false, runs: None, over: None };
        let shared = Arc::new(Shared { target, now: Mutex::new(now), changed: Condvar::new() });
        Self { shared, thread: Mutex::new(None) }
    }

    /// Calls this for each event that comes from now on, on the watch's thread, until what is returned is dropped. One that
    /// panics is logged and called again for the next event.
    pub fn listen(&self, listener: impl FnMut(&Event) + Send + 'static) -> Listening {
        let listener = Arc::new(Listener { hear: Mutex::new(Box::new(listener)), is_heard: AtomicBool::new(true) });
        self.shared.now.lock().listeners.push(Arc::clone(&listener));
        Listening { shared: Arc::downgrade(&self.shared), listener }
    }

    /// Begins to follow; later calls do nothing. Fails only where there is no thread to be had.
    pub fn start(&self) -> Result<(), ConnectError> {
        let mut thread = self.thread.lock();
        let mut now = self.shared.now.lock();
        if thread.is_some() || now.is_stopped {
            return Ok(());
        }
        let shared = Arc::clone(&self.shared);
        let spawned = threads::spawn("usher-events", move || shared.run());
        *thread = Some(spawned.map_err(|_| ConnectFailure::NoThread)?);
        now.runs = Some(Runs::Begins);
        Ok(())
    }

    /// Why nothing comes any more: the daemon does not let the key in or does not tell it, or, without an error, all that the
    /// filter wanted was told ([`Filter::up_to_now`]). None while it follows, or waits for a daemon.
    #[must_use]
    pub fn over(&self) -> Option<Result<(), EventsError>> {
        self.shared.now.lock().over.clone()
    }

    /// Ends it for good: when this returns no listener is called any more. A listener that stops its own watch is the last
    /// one that is called.
    pub fn stop(&self) {
        let mut now = self.shared.now.lock();
        now.is_stopped = true;
        if let Some(connection) = &now.connection {
            connection.cut();
        }
        self.shared.changed.notify_all();
        if now.runs == Some(Runs::As(current().id())) {
            return;
        }
        while now.runs.is_some() {
            self.shared.changed.wait(&mut now);
        }
        drop(now);
        let ended = self.thread.lock().take();
        if let Some(thread) = ended {
            let _panicked = thread.join();
        }
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.stop();
    }
}

/// Dropped, its listener hears no more; a call that is under way ends by itself.
#[must_use]
pub struct Listening {
    shared: Weak<Shared>,
    listener: Arc<Listener>,
}

impl Drop for Listening {
    fn drop(&mut self) {
        self.listener.is_heard.store(false, SeqCst);
        if let Some(shared) = self.shared.upgrade() {
            shared.now.lock().listeners.retain(|other| !Arc::ptr_eq(other, &self.listener));
        }
    }
}

/// What an attempt came to.
enum Came {
    /// Nothing more is to come.
    Over(Result<(), EventsError>),
    /// Try again when somebody says that he is well.
    Again(Wait),
    /// Somebody has said so.
    Stopped,
}

/// Says that the thread runs no more, however it ends.
struct Running<'a>(&'a Shared);

impl Drop for Running<'_> {
    fn drop(&mut self) {
        self.0.now.lock().runs = None;
        self.0.changed.notify_all();
    }
}

impl Shared {
    fn run(&self) {
        let _running = Running(self);
        self.now.lock().runs = Some(Runs::As(current().id()));
        let mut round = 0;
        loop {
            match self.follow(&mut round) {
                Came::Over(why) => {
                    if let Err(error) = &why {
                        log::warn!("events are followed no more: {error}");
                    }
                    self.now.lock().over = Some(why);
                    return;
                }
                Came::Again(wait) if self.pause(&mut round, wait) => {}
                Came::Again(_) | Came::Stopped => return,
            }
        }
    }

    /// Connects and tells for as long as that connection lives.
    fn follow(&self, round: &mut u32) -> Came {
        let filter = self.now.lock().filter.clone();
        let connection = match connect(&self.target, &Hello::new(role(&self.target, &filter))) {
            Ok(connection) => connection,
            Err(failure) => {
                self.sees(&failure);
                return failed(failure);
            }
        };
        let mut events = match Events::over(connection, &filter) {
            Ok(events) => events,
            Err(EventsError::Refused(error)) if !error.data.as_ref().is_some_and(|data| data.retryable) => {
                return Came::Over(Err(EventsError::Refused(error)));
            }
            Err(_) => return Came::Again(Wait::Any),
        };
        {
            let mut now = self.now.lock();
            if now.is_stopped {
                return Came::Stopped;
            }
            now.connection = Some(events.sender().clone());
        }
        *round = 0;
        let why = self.tell(&mut events);
        let mut now = self.now.lock();
        now.connection = None;
        now.filter.since = Some(events.cursor().to_owned());
        match why {
            _ if now.is_stopped => Came::Stopped,
            None => Came::Over(Ok(())),
            Some(error) => {
                log::debug!("events are followed again from {}: {error}", events.cursor());
                Came::Again(Wait::Any)
            }
        }
    }

    /// Why no more came; none where all was told.
    fn tell(&self, events: &mut Events) -> Option<EventsError> {
        loop {
            let event = match events.wait(None) {
                Ok(event) => event?,
                Err(error) => return Some(error),
            };
            let listeners = self.now.lock().listeners.clone();
            for listener in listeners {
                if self.now.lock().is_stopped {
                    return Some(EventsError::Lost);
                }
                listener.call(&event);
            }
        }
    }

    /// Waits until somebody is well. False: stopped.
    fn pause(&self, round: &mut u32, wait: Wait) -> bool {
        loop {
            *round = round.saturating_add(1);
            let until = Instant::now() + pause(*round, wait, u32::from_ne_bytes(random()));
            let mut now = self.now.lock();
            while !now.is_stopped && !self.changed.wait_until(&mut now, until).timed_out() {}
            if now.is_stopped {
                return false;
            }
            drop(now);
            match (health(&self.target, HEALTH), wait) {
                (Ok(generation), Wait::OtherThan(refused)) if generation == refused => {}
                (Ok(_), _) => return true,
                (Err(failure), _) => self.sees(&failure),
            }
        }
    }

    /// Where nobody runs, all that the next daemon knows is later than the watch's own beginning.
    fn sees(&self, failure: &ConnectFailure) {
        if *failure == ConnectFailure::NotRunning {
            self.now.lock().filter.since.get_or_insert_with(|| "start".to_owned());
        }
    }
}

impl Listener {
    fn call(&self, event: &Event) {
        if !self.is_heard.load(SeqCst) {
            return;
        }
        if catch_unwind(AssertUnwindSafe(|| (self.hear.lock())(event))).is_err() {
            log::error!("a listener panicked at event {}", event.cursor);
        }
    }
}

/// Whether another attempt is of use, and when.
fn failed(failure: ConnectFailure) -> Came {
    match failure {
        ConnectFailure::Refused(Code::Busy)
        | ConnectFailure::Busy { .. }
        | ConnectFailure::NotRunning
        | ConnectFailure::Hung { .. }
        | ConnectFailure::Lost
        | ConnectFailure::NoThread
        | ConnectFailure::NotStarted { .. } => Came::Again(Wait::Any),
        ConnectFailure::Incompatible { generation, .. } => Came::Again(Wait::OtherThan(generation)),
        ConnectFailure::Store(_) | ConnectFailure::Impostor { .. } => Came::Again(Wait::Costly),
        ConnectFailure::Refused(_) | ConnectFailure::WrongRole { .. } => {
            Came::Over(Err(EventsError::Connect(failure.into())))
        }
    }
}
