//! One verb's connection: with the least key that suffices, never starting a daemon, never waiting without end.
//!
//! Owns: which role a verb takes, what stands in an operator's way inside a session, and what an incompatible daemon is
//! asked through protocol 0.

use std::time::{Duration, Instant};

use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::value::RawValue;
use serde_json::{Map, Value};

use crate::client::{CallError, Caller, ConnectFailure, Connection, Hello, Reply, Target, connect};
use crate::error::{Exit, Failure};
use crate::limits::HELLO_CLIENT_MS;
use crate::wire::lines::{Range, Role};
use crate::wire::methods::Method;
use crate::wire::object;

use super::args::Global;
use super::trouble::{self, Trouble};

/// For an answer that needs nobody but the daemon.
pub const PATIENCE: Duration = Duration::from_secs(10);

/// For an incompatible daemon's word on how many sessions hold it: the verb has to end within a second.
const ASIDE: Duration = Duration::from_millis(400);

/// A connection for one verb.
pub struct Asker {
    caller: Caller,
}

/// What a verb got instead of a connection.
pub enum Missed {
    /// There is no daemon.
    NotRunning,
    /// Anything else.
    Trouble(Trouble),
}

impl From<Missed> for Trouble {
    fn from(missed: Missed) -> Self {
        match missed {
            Missed::NotRunning => ConnectFailure::NotRunning.into(),
            Missed::Trouble(trouble) => trouble,
        }
    }
}

/// Where the daemon of this invocation is.
pub fn target(global: &Global) -> Result<Target, Trouble> {
    Ok(Target::find(global.credential.as_deref())?)
}

/// The role for a method: a bundle's own if it has the method, else a caller.
pub fn role_for(target: &Target, method: Method) -> Role {
    target.as_bundle().map(|bundle| bundle.role).filter(|role| method.is_for(*role)).unwrap_or(Role::Caller)
}

/// Refuses an operator's verb inside a session, unless a person says that it is meant.
pub fn operator_is_meant(global: &Global) -> Result<(), Failure> {
    let inside = std::env::var_os("USHER_SESSION").is_some_and(|value| !value.is_empty());
    if !inside || global.operator {
        return Ok(());
    }
    let message = "this runs inside a session (USHER_SESSION is set), where the operator's key is not used by accident";
    Err(Failure::new(Exit::Denied, "operator-not-meant", message).hint("say --operator if it is meant"))
}

impl Asker {
    /// Connects in the role that suffices for the method.
    pub fn connect(target: &Target, method: Method) -> Result<Self, Missed> {
        Self::connect_as(target, role_for(target, method))
    }

    /// Connects in a role.
    pub fn connect_as(target: &Target, role: Role) -> Result<Self, Missed> {
        Self::connect_within(target, role, Hello::new(role).patience)
    }

    /// As [`Asker::connect_as`], with less patience.
    pub fn connect_within(target: &Target, role: Role, patience: Duration) -> Result<Self, Missed> {
        let connection = connection(target, &Hello { patience, ..Hello::new(role) })?;
        Self::over(connection).map_err(|failure| Missed::Trouble(failure.into()))
    }

    /// Connects in a role, and where the daemon speaks no protocol of ours, as an operator through protocol 0 (true).
    pub fn connect_any(target: &Target, role: Role) -> Result<(Self, bool), Trouble> {
        match Self::connect_as(target, role) {
            Ok(asker) => Ok((asker, false)),
            Err(Missed::Trouble(trouble)) if trouble.exit() == Exit::Incompatible => {
                let zero = Self::connect_zero(target, Duration::from_millis(HELLO_CLIENT_MS));
                zero.map(|asker| (asker, true)).map_err(|_| trouble)
            }
            Err(missed) => Err(missed.into()),
        }
    }

    /// Connects through protocol 0, which every daemon speaks with operators.
    fn connect_zero(target: &Target, patience: Duration) -> Result<Self, ConnectFailure> {
        let hello = Hello { protocol: Range::ZERO, patience, ..Hello::new(Role::Operator) };
        connect(target, &hello).and_then(Self::over)
    }

    /// Over a connection that is there.
    pub fn over(connection: Connection) -> Result<Self, ConnectFailure> {
        Ok(Self { caller: Caller::over(connection)? })
    }

    /// The client under it.
    pub fn caller(&self) -> &Caller {
        &self.caller
    }

    /// A question without a payload.
    pub fn ask(&mut self, method: Method, params: &impl Serialize) -> Result<Reply, Trouble> {
        self.ask_within(method, params, None, PATIENCE).map_err(|error| trouble::call(method.name(), error))
    }

    /// A question and how long its answer may take.
    pub fn ask_within(
        &mut self,
        method: Method,
        params: &impl Serialize,
        payload: Option<&[u8]>,
        patience: Duration,
    ) -> Result<Reply, CallError> {
        self.caller.call(method.name(), params, payload, Instant::now() + patience)
    }

    /// A question whose answer is signed.
    pub fn ask_signed(&mut self, method: Method, params: &impl Serialize) -> Result<Reply, Trouble> {
        self.caller
            .call_signed(method.name(), params, None, Instant::now() + PATIENCE)
            .map_err(|error| trouble::call(method.name(), error))
    }

    /// All pages of a list.
    pub fn pages(&mut self, method: Method, params: &impl Serialize) -> Result<Vec<Box<RawValue>>, Trouble> {
        let params = match serde_json::to_value(params) {
            Ok(Value::Object(params)) => params,
            _ => Map::new(),
        };
        let pages = self.caller.pages(method.name(), params, PATIENCE);
        pages.map(|item| item.map_err(|error| trouble::call(method.name(), error))).collect()
    }
}

/// A connection. A daemon that went away in the middle of the hello is looked for once more.
pub fn connection(target: &Target, hello: &Hello) -> Result<Connection, Missed> {
    let connection = match connect(target, hello) {
        Err(ConnectFailure::Lost) => connect(target, hello),
        done => done,
    };
    connection.map_err(|failure| match failure {
        ConnectFailure::NotRunning => Missed::NotRunning,
        failure => Missed::Trouble(explained(target, failure)),
    })
}

/// A result of a known shape.
pub fn read<T: DeserializeOwned>(result: &RawValue, method: &str) -> Result<T, Trouble> {
    object::read(result.get().as_bytes()).map_err(|_| misread(method))
}

/// An answer that is not as documented.
pub fn misread(method: &str) -> Trouble {
    let message = format!("the daemon's answer to {method} is not as documented");
    Failure::new(Exit::Bug, "internal", message).hint("usher status names both builds; please report it").into()
}

/// An incompatible daemon is told with how many sessions hold it, where it can be asked.
pub fn explained(target: &Target, failure: ConnectFailure) -> Trouble {
    let incompatible = matches!(failure, ConnectFailure::Incompatible { .. });
    let trouble = Trouble::from(failure);
    if !incompatible {
        return trouble;
    }
    #[derive(serde::Deserialize)]
    struct Status {
        sessions: u64,
    }
    let sessions = Asker::connect_zero(target, ASIDE).ok().and_then(|mut asker| {
        let reply = asker.ask_within(Method::DaemonStatus, &Nothing {}, None, ASIDE).ok()?;
        read::<Status>(&reply.result, Method::DaemonStatus.name()).ok().map(|status| status.sessions)
    });
    match sessions {
        None => trouble,
        Some(0) => trouble.hint("no session holds it: usher stop ends it, and the next usher run starts yours"),
        Some(1) => trouble.hint("1 session holds it: close that program, or end the daemon with usher stop --force"),
        Some(count) => {
            trouble.hint(format!("{count} sessions hold it: close them, or end the daemon with usher stop --force"))
        }
    }
}

/// No parameters.
#[derive(Serialize)]
pub struct Nothing {}
