//! The link to the daemon: one thread that connects, registers, serves, and comes back after every loss.
//!
//! Owns: the connection of this run and its [`State`]. It must not know terminals, nor print: whatever becomes of the
//! daemon, the program goes on. Threads: the link waits for the daemon, for time and for the run's end; nobody waits for
//! the link, but main at the end for a bounded time.

use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver as Channel, RecvTimeoutError, Sender as ChannelSender, bounded};
use parking_lot::{Condvar, Mutex};

use crate::client::{self, ConnectFailure, Connection, Ended, Hello, Incoming, Sender, Target};
use crate::ids::{Generation, random};
use crate::limits::HEARTBEAT_MS;
use crate::threads;
use crate::wire::codes::{Code, ErrorObject};
use crate::wire::lines::Role;
use crate::wire::methods::Method;

use super::child::Child;
use super::handlers::Handlers;
use super::report::Report;
use super::serve::Server;
use super::state::{self, Event, State};

/// The daemon's reason when `usher stop` ends it.
const STOPPED: &str = "stop";
/// How long a daemon may take to say that it is well.
const HEALTH: Duration = Duration::from_secs(1);
/// How long a daemon may take to answer us: a heartbeat in vain is a lost connection.
const ANSWER: Duration = Duration::from_millis(3 * HEARTBEAT_MS);
const HEARTBEAT: Duration = Duration::from_millis(HEARTBEAT_MS);

/// Main's hold on the link.
pub struct Link {
    shared: Arc<Shared>,
    /// Dropped, it ends the link's pauses.
    end: ChannelSender<()>,
    thread: JoinHandle<()>,
}

#[derive(Default)]
struct Shared {
    now: Mutex<Now>,
    changed: Condvar,
}

/// What main has to know at the end.
#[derive(Default)]
struct Now {
    /// The first try is over, or goes on without us.
    is_begun: bool,
    /// The connection, while the daemon has the session.
    open: Option<Sender>,
    /// No connection is to be made or used any more.
    is_over: bool,
    /// The link does nothing any more.
    is_left: bool,
}

impl Link {
    /// Begins to connect. None where there is no thread to be had: the program runs without.
    pub fn start(target: Target, report: Arc<Report>, child: Arc<Child>, handlers: Handlers) -> Option<Self> {
        let shared = Arc::new(Shared::default());
        let (end, ended) = bounded(0);
        let server = Server::new(Arc::clone(&report), child, handlers);
        let worker = Worker { target, report, server, shared: Arc::clone(&shared), ended, connections: 0 };
        let thread = threads::spawn("link", move || worker.run()).ok()?;
        Some(Self { shared, end, thread })
    }

    /// Waits until the first try, with the start of a daemon, would go on without us.
    pub fn wait_begun(&self, deadline: Instant) {
        let mut now = self.shared.now.lock();
        while !now.is_begun && !self.shared.changed.wait_until(&mut now, deadline).timed_out() {}
    }

    /// Says goodbye and hears that it was taken, and leaves at the deadline in any case: then the end of the stream says it.
    pub fn end(self, deadline: Instant) {
        drop(self.end);
        let open = {
            let mut now = self.shared.now.lock();
            now.is_over = true;
            now.open.take()
        };
        let Some(sender) = open else { return };
        // By a thread: a daemon that does not read would hold us. The link hears the answer: whoever lists the sessions
        // after our end does not find this one.
        let goodbye = threads::spawn("goodbye", move || {
            let _ = sender.request(Method::SessionUnregister.name(), &serde_json::json!({}), None);
        });
        let Ok(goodbye) = goodbye else { return };
        let mut now = self.shared.now.lock();
        while !now.is_left && !self.shared.changed.wait_until(&mut now, deadline).timed_out() {}
        drop(now);
        if goodbye.is_finished() {
            let _ = goodbye.join();
        }
        if self.thread.is_finished() {
            let _ = self.thread.join();
        }
    }
}

struct Worker {
    target: Target,
    report: Arc<Report>,
    server: Server,
    shared: Arc<Shared>,
    ended: Channel<()>,
    connections: u64,
}

/// What is open, and which of our requests are not answered.
struct Session {
    connection: u64,
    generation: Generation,
    sender: Sender,
    receiver: client::Receiver,
    result_max: usize,
    /// The request that registers.
    register: Option<u64>,
    /// The last request of the link's own: one after it is the goodbye.
    asked: u64,
    /// When the daemon last said anything.
    heard: Instant,
    /// When we said last that we live.
    beaten: Instant,
}

impl Worker {
    fn run(mut self) {
        let mut state = State::Idle.next(Event::Begun);
        let mut session = None;
        loop {
            let event = match (state, &mut session) {
                (State::Stopped, _) => break,
                (State::Waiting { round, wait }, _) => {
                    self.wait(state::pause(round, wait, u32::from_ne_bytes(random())))
                }
                (State::Idle, _) => Event::Begun,
                (State::Connecting { .. } | State::Open, None) => match self.connect() {
                    Ok(opened) => {
                        session = Some(opened);
                        continue;
                    }
                    Err(event) => event,
                },
                (State::Connecting { .. } | State::Open, Some(session)) => self.serve(session),
            };
            state = state.next(event);
            if !matches!(state, State::Connecting { .. } | State::Open) {
                if let Some(session) = session.take() {
                    let reason = if event == Event::Ended { "the program ended" } else { "lost" };
                    self.leave(&session, reason);
                }
            }
        }
        self.settle(|now| now.is_left = true);
    }

    /// Tells main that the first try is over.
    fn settle(&self, change: impl FnOnce(&mut Now)) {
        let mut now = self.shared.now.lock();
        now.is_begun = true;
        change(&mut now);
        self.shared.changed.notify_all();
    }

    /// A connection with the registration under way.
    fn connect(&mut self) -> Result<Session, Event> {
        let hello = Hello::new(Role::Producer);
        let connected = client::connect_or_start(&self.target, &hello, || self.settle(|_| ()));
        self.settle(|_| ());
        let connection = connected.map_err(event_of)?;
        if self.shared.now.lock().is_over {
            return Err(Event::Ended);
        }
        self.connections += 1;
        self.register(connection)
    }

    fn register(&self, connection: Connection) -> Result<Session, Event> {
        let generation = connection.proved().generation;
        let result_max = usize::try_from(connection.welcome().limits.result_max_bytes).unwrap_or(usize::MAX);
        let (sender, receiver) = connection.split();
        let register = self.send_register(&sender)?;
        let now = Instant::now();
        let connection = self.connections;
        Ok(Session {
            connection,
            generation,
            sender,
            receiver,
            result_max,
            register: Some(register),
            asked: register,
            heard: now,
            beaten: now,
        })
    }

    fn send_register(&self, sender: &Sender) -> Result<u64, Event> {
        let (method, snapshot) = (Method::SessionRegister.name(), self.report.snapshot());
        sender.request(method, &self.report.register(), Some(&snapshot)).map_err(|_| Event::Lost)
    }

    /// Serves until something happens that changes the state.
    fn serve(&self, session: &mut Session) -> Event {
        loop {
            match session.receiver.next(Some(session.beaten + HEARTBEAT)) {
                Ok(incoming) => {
                    session.heard = Instant::now();
                    if let Some(event) = self.take(session, incoming) {
                        return event;
                    }
                }
                Err(Ended::Timeout) if session.heard.elapsed() > ANSWER => return Event::Lost,
                Err(Ended::Timeout) => {
                    session.beaten = Instant::now();
                    let heartbeat = Method::SessionHeartbeat.name();
                    match session.sender.request(heartbeat, &serde_json::json!({}), None) {
                        Ok(id) => session.asked = id,
                        Err(_) => return Event::Lost,
                    }
                }
                Err(Ended::Closing(reason)) if reason == STOPPED => return Event::Dismissed,
                Err(Ended::Closing(_) | Ended::Lost) => return Event::Lost,
            }
        }
    }

    fn take(&self, session: &mut Session, incoming: Incoming) -> Option<Event> {
        match incoming {
            Incoming::Answer { id, .. } if session.register == Some(id) => {
                session.register = None;
                self.opened(session)
            }
            Incoming::Failure { id, error } if session.register == Some(id) => {
                Some(Event::Refused(code_of(&error), Some(session.generation)))
            }
            Incoming::Answer { id, .. } | Incoming::Failure { id, .. } if id > session.asked => Some(Event::Ended),
            // A heartbeat that came too late, after a long sleep: the session is gone, the connection is not.
            Incoming::Failure { error, .. } if code_of(&error) == Code::NotRegistered && session.register.is_none() => {
                match self.send_register(&session.sender) {
                    Ok(id) => {
                        (session.register, session.asked) = (Some(id), id);
                        None
                    }
                    Err(event) => Some(event),
                }
            }
            Incoming::Answer { .. } | Incoming::Failure { .. } => None,
            Incoming::Request { id, method, params, payload } => {
                let call = super::serve::Call { connection: session.connection, id, params, payload };
                self.server.request(&session.sender, session.result_max, &method, call);
                None
            }
            Incoming::Notification { method, params } => {
                self.server.notification(session.connection, &method, params.as_deref());
                None
            }
        }
    }

    /// From now on the end of the run says goodbye by this connection.
    fn opened(&self, session: &Session) -> Option<Event> {
        let mut is_over = false;
        self.settle(|now| {
            is_over = now.is_over;
            now.open = Some(session.sender.clone());
        });
        Some(if is_over { Event::Ended } else { Event::Registered })
    }

    fn leave(&self, session: &Session, reason: &str) {
        self.shared.now.lock().open = None;
        self.server.lost(session.connection);
        session.sender.close(reason);
    }

    /// Sleeps, then asks who listens how it is.
    fn wait(&self, pause: Duration) -> Event {
        match self.ended.recv_timeout(pause) {
            Err(RecvTimeoutError::Timeout) => {}
            Ok(()) | Err(RecvTimeoutError::Disconnected) => return Event::Ended,
        }
        match client::health(&self.target, HEALTH) {
            Ok(generation) => Event::Healthy(generation),
            Err(ConnectFailure::NotRunning) => Event::Vanished,
            Err(_) => Event::Unwell,
        }
    }
}

/// The code of a refusal; one that is newer than we are is an internal matter of the daemon's.
fn code_of(error: &ErrorObject) -> Code {
    error.data.as_ref().and_then(|data| Code::from_word(&data.code)).unwrap_or(Code::Internal)
}

fn event_of(failure: ConnectFailure) -> Event {
    match failure {
        ConnectFailure::Incompatible { generation, .. } => Event::Incompatible(generation),
        ConnectFailure::Refused(code) => Event::Refused(code, None),
        ConnectFailure::Busy { .. } => Event::Refused(Code::Busy, None),
        ConnectFailure::WrongRole { .. } => Event::Refused(Code::Role, None),
        ConnectFailure::Store(_) | ConnectFailure::NotStarted { .. } | ConnectFailure::Impostor { .. } => {
            Event::Unusable
        }
        ConnectFailure::NotRunning | ConnectFailure::Hung { .. } | ConnectFailure::Lost => Event::Lost,
    }
}
