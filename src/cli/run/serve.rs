//! What the daemon asks of this session, and who does it: built-in commands here, the others in handlers.
//!
//! Owns: reading the daemon's requests. It waits for nobody but the connection's lock.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde::Deserialize;
use serde_json::json;
use serde_json::value::RawValue;

use crate::client::Sender;
use crate::wire::codes::Code;
use crate::wire::message;
use crate::wire::methods::{CANCEL, COMMAND};

use super::builtin;
use super::child::Child;
use super::handler::Task;
use super::handlers::{Handlers, Job};
use super::report::Report;

/// Answers for one run.
pub struct Server {
    report: Arc<Report>,
    child: Arc<Child>,
    handlers: Handlers,
    shells: BTreeMap<String, String>,
}

/// A request of the daemon, without its method.
pub struct Call {
    /// Which connection of this run.
    pub connection: u64,
    /// The daemon's id.
    pub id: u64,
    /// The daemon's own fields.
    pub params: Option<Box<RawValue>>,
    /// The caller's input.
    pub payload: Option<Vec<u8>>,
}

/// Of `command`: read leniently, a newer daemon may say more.
#[derive(Deserialize)]
struct Command {
    command: String,
    #[serde(default)]
    deadline_ms: Option<u64>,
}

#[derive(Deserialize)]
struct Cancel {
    id: u64,
}

impl Server {
    /// For this program.
    pub fn new(report: Arc<Report>, child: Arc<Child>, handlers: Handlers) -> Self {
        let shells = report.shells.iter().cloned().collect();
        Self { report, child, handlers, shells }
    }

    /// Answers, now or when a handler is done. A connection that is gone takes no answer.
    pub fn request(&self, to: &Sender, result_max: usize, method: &str, call: Call) {
        let id = call.id;
        if method != COMMAND {
            let _ = to.fail(id, Code::UnknownMethod, "usher run knows no such request");
            return;
        }
        let Ok(Command { command: name, deadline_ms }) = message::params(call.params.as_deref()) else {
            let _ = to.fail(id, Code::InvalidParams, "the parameters of the command are not as documented");
            return;
        };
        if let Some(shell) = self.shells.get(&name) {
            let deadline = deadline_ms.and_then(|ms| Instant::now().checked_add(Duration::from_millis(ms)));
            let input = call.payload.unwrap_or_else(|| b"null".to_vec());
            let (shell, session) = (shell.clone(), self.report.session);
            let task = Task { name, shell, input, deadline, result_max, session };
            self.handlers.start(Job { connection: call.connection, id, task, to: to.clone() });
            return;
        }
        let running = self.handlers.running();
        let _ = match builtin::answer(&name, call.payload.as_deref(), &self.report, &self.child, running) {
            Some(Ok(result)) => to.answer(id, &json!({}), Some(result.as_bytes())),
            Some(Err(message)) => to.fail(id, Code::CommandFailed, &message),
            None => to.fail(id, Code::CommandNotFound, "this session has no such command"),
        };
    }

    /// `$/cancel`; what else is told changes nothing: a daemon that closes will be waited for.
    pub fn notification(&self, connection: u64, method: &str, params: Option<&RawValue>) {
        if let (CANCEL, Ok(Cancel { id })) = (method, message::params(params)) {
            self.handlers.cancel(connection, id);
        }
    }

    /// A connection is over.
    pub fn lost(&self, connection: u64) {
        self.handlers.forget_waiting(connection);
    }
}
