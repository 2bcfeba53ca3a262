//! The program as a handler of commands: each is a line to it, and an answer from it.
//!
//! Owns: what of a command is told, and how long its answer is waited for.

use std::sync::Arc;
use std::time::{Duration, Instant};

use serde_json::value::RawValue;

use crate::client::{Command, Offer, Why};
use crate::wire::json;

use super::calls::Calls;
use super::message::{self, CallerParams, CommandParams};
use super::outbox::Outbox;

/// The daemon tells the caller that the deadline passed, and then us; where it is gone, nobody does.
const GRACE: Duration = Duration::from_secs(1);

/// Shared by all commands.
#[derive(Clone)]
pub struct Program {
    calls: Arc<Calls>,
    outbox: Arc<Outbox>,
}

impl Program {
    pub fn new(calls: &Arc<Calls>, outbox: &Arc<Outbox>) -> Self {
        Self { calls: Arc::clone(calls), outbox: Arc::clone(outbox) }
    }

    /// A command of this name, which the program does.
    pub fn offer(&self, name: &str, description: Option<&str>) -> Offer {
        let program = self.clone();
        let offer = Offer::new(name, move |command| program.ask(command));
        match description {
            Some(text) => offer.description(text),
            None => offer,
        }
    }

    fn ask(&self, command: &Command) -> Result<Vec<u8>, String> {
        let wrong = |why: String| format!("invalid-payload: the input is not one JSON text: {why}");
        let input = json::one_line(json::check(command.input().unwrap_or(b"null")).map_err(wrong)?);
        let input = RawValue::from_string(input).map_err(|error| wrong(error.to_string()))?;
        let (id, call) = self.calls.open();
        let wakes = Arc::clone(&call);
        command.on_cancel(move || wakes.wake());
        self.outbox.command(id, line(id, command, &input));
        let until = command.deadline().and_then(|deadline| deadline.checked_add(GRACE));
        let answer = call.wait(until, || command.cancelled() <= Some(Why::Deadline));
        self.calls.close(id);
        if answer.is_some() {
            self.outbox.settle(id);
        }
        answer.unwrap_or_else(|| {
            self.outbox.cancel(id);
            Err(match command.cancelled() {
                Some(Why::Stopped) => "the program ended",
                Some(Why::Cancelled) => "cancelled",
                Some(Why::Deadline) | None => "the deadline passed",
            }
            .to_owned())
        })
    }
}

fn line(id: u64, command: &Command, input: &RawValue) -> Vec<u8> {
    let left = command.deadline().map(|deadline| deadline.saturating_duration_since(Instant::now()));
    let caller = CallerParams { credential: &command.caller().credential, label: &command.caller().label };
    message::command(
        id,
        &CommandParams {
            command: command.name(),
            input,
            deadline_ms: left.map(|left| u64::try_from(left.as_millis()).unwrap_or(u64::MAX)),
            caller,
            key: command.key(),
        },
    )
}
