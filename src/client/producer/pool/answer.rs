//! What comes of a command, and where it goes.
//!
//! Owns: judging what a handler returns. A result that cannot be sent is its failure, not the session's.

use std::panic::{AssertUnwindSafe, catch_unwind};

use serde_json::json;

use super::table::Job;
use crate::client::connection::Sender;
use crate::client::failure::SendError;
use crate::client::producer::ledger::Outcome;
use crate::limits::FAILURE_MAX_BYTES;
use crate::wire::json;

/// Where an answer goes.
#[derive(Clone)]
pub(in crate::client::producer) struct Address {
    /// Which connection of this producer, counted: ids begin anew with each.
    pub connection: u64,
    /// The daemon's id.
    pub id: u64,
    /// The connection.
    pub to: Sender,
}

/// Calls the handler.
pub(super) fn outcome(job: &Job) -> Outcome {
    let command = &job.command;
    let failed = |word, text: String| Outcome::Failed(word, text);
    match catch_unwind(AssertUnwindSafe(|| (job.doer.handler)(command))) {
        Ok(Ok(result)) if result.len() > command.result_max => {
            failed("invalid-result", format!("the result is larger than {} bytes", command.result_max))
        }
        Ok(Ok(result)) => match json::check(&result) {
            Ok(_) => Outcome::Done(result),
            Err(why) => failed("invalid-payload", format!("the result is not one JSON text: {why}")),
        },
        Ok(Err(message)) => failed("command-failed", head(message, FAILURE_MAX_BYTES)),
        Err(_) => {
            log::error!("the handler of the command {:?} panicked", command.name);
            failed("command-failed", "the handler panicked".to_owned())
        }
    }
}

/// At most so many bytes, cut between characters: the daemon cuts there too, and a header holds no more.
fn head(mut text: String, max: usize) -> String {
    let end = (0..=max.min(text.len())).rev().find(|end| text.is_char_boundary(*end)).unwrap_or(0);
    text.truncate(end);
    text
}

/// A connection that is gone takes no answer: its caller has heard so.
pub(super) fn answer(address: &Address, outcome: &Outcome) {
    let sent = match outcome {
        Outcome::Done(result) => address.to.answer(address.id, &json!({}), Some(result)),
        Outcome::Failed(word, message) => address.to.fail(address.id, word, message),
    };
    if sent == Err(SendError::TooLarge) {
        refuse(address, "invalid-result", "the result is too large for a message");
    }
}

/// The same with a failure.
pub(in crate::client::producer) fn refuse(address: &Address, word: &str, message: &str) {
    let _ = address.to.fail(address.id, word, message);
}
