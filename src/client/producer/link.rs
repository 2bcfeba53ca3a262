//! The link to the daemon: one thread that connects, registers, serves, and comes back after every loss.
//!
//! Owns: the connection's reading half. It must not know what commands do. Threads: the link waits for the daemon and for
//! time; whoever stops the producer waits for the link, and can end its connection, not its hello, which has a deadline.

use std::sync::Arc;
use std::time::{Duration, Instant};

use serde::Deserialize;
use serde_json::json;
use serde_json::value::RawValue;

use crate::client::connection::{Connection, Ended, Incoming, Receiver, Sender};
use crate::client::failure::{ConnectFailure, SendError};
use crate::client::handshake::{Hello, connect, health};
use crate::client::start::connect_or_start;
use crate::error::Failure;
use crate::ids::{Generation, random};
use crate::limits::HEARTBEAT_MS;
use crate::wire::codes::{Code, ErrorObject};
use crate::wire::lines::Role;
use crate::wire::message;
use crate::wire::methods::{CANCEL, COMMAND, Method};
use crate::wire::transcript::Hash;

use super::command::Command;
use super::core::{Core, Wire};
use super::description::StartDaemon;
use super::pool::{Address, refuse};
use super::state::{self, Event, State, Wait};

/// The daemon's reason when `usher stop` ends it.
const STOPPED: &str = "stop";
/// How long a daemon may take to say that it is well.
const HEALTH: Duration = Duration::from_secs(1);
/// How long a daemon may take to answer us: a heartbeat in vain is a lost connection.
const ANSWER: Duration = Duration::from_millis(3 * HEARTBEAT_MS);
const HEARTBEAT: Duration = Duration::from_millis(HEARTBEAT_MS);
/// Our own requests go out within this time, or the daemon does not run any more.
const WRITE: Duration = Duration::from_secs(10);

/// What happened, and in what words it is told.
type Told = (Event, Option<String>);

/// Runs until the producer is stopped, or its key is not wanted.
pub(super) fn run(core: &Arc<Core>) {
    let mut session: Option<Session> = None;
    core.now.lock().link.thread = Some(std::thread::current().id());
    loop {
        let state = {
            let mut now = core.now.lock();
            if matches!(now.state, State::Idle | State::Revoked | State::Stopped) && session.is_none() {
                // With the lock held: who asks for a link afterwards makes another.
                now.link.is_running = false;
                now.link.is_begun = true;
                core.changed.notify_all();
                return;
            }
            now.state
        };
        let told = match (state, &mut session) {
            (State::Connecting { .. } | State::Open, Some(session)) => session.serve(core),
            (State::Connecting { .. } | State::Open, None) => match open(core) {
                Ok(opened) => {
                    session = Some(opened);
                    continue;
                }
                Err(told) => Some(told),
            },
            (_, Some(_)) => None,
            (State::Waiting { round, wait }, None) => pause(core, round, wait),
            (State::Idle | State::Revoked | State::Stopped, None) => None,
        };
        if let Some((event, reason)) = told {
            core.apply(event, reason);
        }
        if !matches!(core.now.lock().state, State::Connecting { .. } | State::Open) {
            if let Some(session) = session.take() {
                session.leave(core);
            }
        }
    }
}

/// A connection with the registration under way.
fn open(core: &Core) -> Result<Session, Told> {
    let hello = Hello::new(Role::Producer);
    let begun = || {
        core.now.lock().link.is_begun = true;
        core.changed.notify_all();
    };
    let start = core.now.lock().description.start.clone();
    let connected = match &start {
        StartDaemon::Never => connect(&core.target, &hello),
        StartDaemon::Installed => connect_or_start(&core.target, &hello, None, begun),
        StartDaemon::Program(program) => connect_or_start(&core.target, &hello, Some(program), begun),
    };
    begun();
    Session::begin(core, connected.map_err(told)?)
}

/// Sleeps, then asks who listens how it is. Nothing to tell: somebody would not wait.
fn pause(core: &Core, round: u32, wait: Wait) -> Option<Told> {
    let until = Instant::now() + state::pause(round, wait, u32::from_ne_bytes(random()));
    if core.wait_until(until, |now| !matches!(now.state, State::Waiting { .. })) {
        return None;
    }
    let event = match health(&core.target, HEALTH) {
        Ok(generation) => Event::Healthy(generation),
        Err(ConnectFailure::NotRunning) => Event::Vanished,
        Err(_) => Event::Unwell,
    };
    Some((event, None))
}

/// What is open.
struct Session {
    connection: u64,
    generation: Generation,
    t3: Hash,
    sender: Sender,
    receiver: Receiver,
    result_max: usize,
    /// What this side may use.
    scopes: Vec<String>,
    /// When the daemon last said anything.
    heard: Instant,
    /// When we said last that we live.
    beaten: Instant,
}

impl Session {
    fn begin(core: &Core, connection: Connection) -> Result<Self, Told> {
        let result_max = usize::try_from(connection.welcome().limits.result_max_bytes).unwrap_or(usize::MAX);
        let (generation, t3) = (connection.proved().generation, connection.proved().t3);
        let scopes = connection.welcome().scopes.clone();
        let (sender, receiver) = connection.split();
        let number = {
            let mut now = core.now.lock();
            if !matches!(now.state, State::Connecting { .. }) {
                drop(now);
                sender.close("the session has ended");
                return Err((Event::Stopped, None));
            }
            now.connections += 1;
            now.wire = Some(Wire::new(sender.clone()));
            now.connections
        };
        let now = Instant::now();
        let session =
            Self { connection: number, generation, t3, sender, receiver, result_max, scopes, heard: now, beaten: now };
        match session.register(core) {
            Ok(()) => Ok(session),
            Err(told) => {
                session.leave(core);
                Err(told)
            }
        }
    }

    fn register(&self, core: &Core) -> Result<(), Told> {
        let claim = core.lease.claim(&self.t3, &self.scopes);
        let (register, snapshot) = {
            let mut now = core.now.lock();
            if let Some(wire) = &mut now.wire {
                wire.is_registered = false;
                wire.is_clean();
            }
            (now.description.register(claim), now.description.snapshot.clone())
        };
        let (method, deadline) = (Method::SessionRegister.name(), Instant::now() + WRITE);
        let sent = self.sender.request_seen(method, &register, snapshot.as_deref(), deadline, |id, _| {
            if let Some(wire) = &mut core.now.lock().wire {
                wire.register = Some(id);
            }
        });
        match sent {
            Ok(_) => Ok(()),
            Err(SendError::Lost) => Err(lost()),
            Err(SendError::TooLarge) => {
                Err((Event::Refused(Code::TooLarge, Some(self.generation)), Some(Code::TooLarge.word().to_owned())))
            }
        }
    }

    /// Serves until something happens that changes the state.
    fn serve(&mut self, core: &Core) -> Option<Told> {
        loop {
            match self.receiver.next(Some(self.beaten + HEARTBEAT)) {
                Ok(incoming) => {
                    self.heard = Instant::now();
                    if let Some(told) = self.take(core, incoming) {
                        return Some(told);
                    }
                }
                Err(Ended::Timeout) if self.heard.elapsed() > ANSWER => return Some(lost()),
                Err(Ended::Timeout) => {
                    self.beaten = Instant::now();
                    let heartbeat = Method::SessionHeartbeat.name();
                    if self.sender.request(heartbeat, &json!({}), None).is_err() {
                        return Some(lost());
                    }
                }
                Err(Ended::Closing(reason)) if reason == STOPPED => return Some((Event::Dismissed, Some(reason))),
                Err(Ended::Closing(reason)) => return Some((Event::Lost, Some(reason))),
                Err(Ended::Lost) => return Some(lost()),
            }
        }
    }

    fn take(&mut self, core: &Core, incoming: Incoming) -> Option<Told> {
        match incoming {
            Incoming::Request { id, method, params, payload } => {
                self.request(core, id, &method, params.as_deref(), payload);
                None
            }
            Incoming::Notification { method, params, .. } => {
                #[derive(Deserialize)]
                struct Cancel {
                    id: u64,
                }
                // What else is told changes nothing: a daemon that closes will be waited for.
                if let (CANCEL, Ok(Cancel { id })) = (method.as_str(), message::params(params.as_deref())) {
                    core.pool.cancel(self.connection, id);
                }
                None
            }
            Incoming::Answer { id, .. } => self.answered(core, id, None),
            Incoming::Failure { id, error } => self.answered(core, id, Some(&error)),
        }
    }

    fn answered(&mut self, core: &Core, id: u64, error: Option<&ErrorObject>) -> Option<Told> {
        let code = error.map(code_of);
        let mut now = core.now.lock();
        let wire = now.wire.as_mut()?;
        if wire.goodbye == Some(id) {
            return Some((Event::Stopped, None));
        }
        if wire.register == Some(id) {
            wire.register = None;
            if let Some(code) = code {
                return Some((Event::Refused(code, Some(self.generation)), Some(code.word().to_owned())));
            }
            wire.is_registered = true;
            // Who stopped it before will say no goodbye; who does from here on will, and waits for the answer.
            let is_stopped = now.state == State::Stopped;
            drop(now);
            core.apply(Event::Registered, None);
            core.flush();
            return is_stopped.then_some((Event::Stopped, None));
        }
        let is_registering = wire.register.is_some();
        let is_update = wire.is_updated(id);
        drop(now);
        // A word that came too late, after a long sleep: the session is gone, the connection is not.
        if code == Some(Code::NotRegistered) && !is_registering {
            return self.register(core).err();
        }
        if let Some(error) = error.filter(|_| is_update) {
            core.refused(&error.message);
        }
        if is_update {
            core.flush();
        }
        None
    }

    fn request(&self, core: &Core, id: u64, method: &str, params: Option<&RawValue>, payload: Option<Vec<u8>>) {
        let address = Address { connection: self.connection, id, to: self.sender.clone() };
        if method != COMMAND {
            return refuse(&address, Code::UnknownMethod.word(), "this session knows no such request");
        }
        let Some(command) = Command::read(params, payload, self.result_max) else {
            let sentence = "the parameters of the command are not as documented";
            return refuse(&address, Code::InvalidParams.word(), sentence);
        };
        let doer = core.now.lock().description.find(command.name()).map(|offer| offer.doer.clone());
        match doer {
            Some(doer) => core.pool.take(address, command, &doer),
            None => refuse(&address, Code::CommandNotFound.word(), Code::CommandNotFound.sentence()),
        }
    }

    fn leave(self, core: &Core) {
        {
            let mut now = core.now.lock();
            now.wire = None;
            core.changed.notify_all();
        }
        core.pool.lose(self.connection);
        self.sender.close("the session has ended");
    }
}

fn lost() -> Told {
    (Event::Lost, Some(Code::ConnectionLost.word().to_owned()))
}

/// The code of a refusal; one that is newer than we are is an internal matter of the daemon's.
fn code_of(error: &ErrorObject) -> Code {
    error.data.as_ref().and_then(|data| Code::from_word(&data.code)).unwrap_or(Code::Internal)
}

fn told(failure: ConnectFailure) -> Told {
    let event = match &failure {
        ConnectFailure::Incompatible { generation, .. } => Event::Incompatible(*generation),
        ConnectFailure::Refused(code) => Event::Refused(*code, None),
        ConnectFailure::Busy { .. } => Event::Refused(Code::Busy, None),
        ConnectFailure::WrongRole { .. } => Event::Refused(Code::Role, None),
        ConnectFailure::Store(_) | ConnectFailure::NotStarted { .. } | ConnectFailure::Impostor { .. } => {
            Event::Unusable
        }
        ConnectFailure::NotRunning | ConnectFailure::Hung { .. } | ConnectFailure::Lost | ConnectFailure::NoThread => {
            Event::Lost
        }
    };
    let Failure { code, message, .. } = failure.into();
    (event, Some(format!("{code}: {message}")))
}
