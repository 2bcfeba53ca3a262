//! `usher drain`: no new sessions, and the end with the last one.

use std::process::ExitCode;
use std::time::Instant;

use serde::{Deserialize, Serialize};

use crate::error::{Exit, Failure};
use crate::ids::Generation;
use crate::wire::codes::Code;
use crate::wire::lines::Role;
use crate::wire::methods::Method;

use super::super::args::{DrainArgs, Global};
use super::super::ask::{self, Asker, Nothing};
use super::super::{Outcome, out, receipt, time};
use super::traces::Traces;

#[derive(Deserialize)]
struct Drained {
    /// Absent in protocol 0.
    sessions: Option<u64>,
}

#[derive(Serialize)]
struct Document {
    draining: bool,
    ended: bool,
    generation: Generation,
    #[serde(skip_serializing_if = "Option::is_none")]
    sessions: Option<u64>,
}

/// Asks; with `--wait` until it is gone.
pub fn main(global: &Global, args: &DrainArgs) -> Outcome {
    ask::operator_is_meant(global)?;
    let target = ask::target(global)?;
    let before = Traces::of(&target);
    let (mut asker, _any_protocol) = Asker::connect_any(&target, Role::Operator)?;
    let place = receipt::Place::take(args.receipt.as_deref())?;
    let method = Method::DaemonDrain;
    let reply = asker.ask_signed(method, &Nothing {})?;
    receipt::keep(place, reply.receipt.as_ref())?;
    let Drained { sessions } = ask::read(&reply.result, method.name())?;
    let generation = asker.caller().proved().generation;
    let mut ended = false;
    if let Some(timeout) = args.wait {
        let deadline = Instant::now() + timeout;
        // The connection may be lost without the daemon's end: what it leaves last tells.
        asker.caller().wait_for_end(deadline);
        ended = before.are_gone(deadline);
        if !ended {
            let message = format!("waited {}: the daemon still has sessions or questions", time::age(timeout));
            return Err(Failure::new(Exit::Timeout, Code::Timeout.word(), message)
                .hint("usher list and usher approvals show them; it goes on draining")
                .into());
        }
    }
    if global.json {
        out::json(&Document { draining: true, ended, generation, sessions })?;
    } else if ended {
        out::text("the daemon has ended\n")?;
    } else {
        out::text(&match sessions {
            Some(0) => "the daemon ends: it has no session\n".to_owned(),
            Some(1) => "draining: the daemon ends with its one session\n".to_owned(),
            Some(count) => format!("draining: the daemon ends with the last of its {count} sessions\n"),
            None => "draining: the daemon ends with its last session\n".to_owned(),
        })?;
    }
    Ok(ExitCode::SUCCESS)
}
