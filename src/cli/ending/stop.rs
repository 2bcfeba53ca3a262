//! `usher stop`: ends the daemon, and waits until it is gone.

use std::process::ExitCode;
use std::time::Instant;

use serde::{Deserialize, Serialize};

use crate::ids::Generation;
use crate::wire::codes::Code;
use crate::wire::lines::Role;
use crate::wire::methods::Method;

use super::super::args::{Global, StopArgs};
use super::super::ask::{self, Asker};
use super::super::{Outcome, out, receipt};
use super::traces::Traces;
use super::{END, still_there};

#[derive(Serialize)]
struct Stop {
    force: bool,
}

#[derive(Deserialize)]
struct Stopped {
    /// Absent in protocol 0.
    #[serde(default)]
    sessions: u64,
}

#[derive(Serialize)]
struct Document {
    stopped: bool,
    generation: Generation,
    sessions: u64,
}

/// Asks, and waits for the end.
pub fn main(global: &Global, args: &StopArgs) -> Outcome {
    ask::operator_is_meant(global)?;
    let target = ask::target(global)?;
    let before = Traces::of(&target);
    let (mut asker, _any_protocol) = Asker::connect_any(&target, Role::Operator)?;
    let place = receipt::Place::take(args.receipt.as_deref())?;
    let reply = asker.ask_signed(Method::DaemonStop, &Stop { force: args.force });
    let reply = reply.map_err(|trouble| {
        let live = trouble.code() == Code::SessionsLive.word();
        if live { trouble.hint("close these programs, or tell them with usher stop --force") } else { trouble }
    })?;
    receipt::keep(place, reply.receipt.as_ref())?;
    let Stopped { sessions } = ask::read(&reply.result, Method::DaemonStop.name())?;
    let deadline = Instant::now() + END;
    if !asker.caller().wait_for_end(deadline) || !before.are_gone(deadline) {
        return Err(still_there(END).into());
    }
    if global.json {
        let generation = asker.caller().proved().generation;
        out::json(&Document { stopped: true, generation, sessions })?;
    } else {
        match sessions {
            0 => out::text("the daemon has stopped\n")?,
            1 => out::text("the daemon has stopped; 1 session was told\n")?,
            count => out::text(&format!("the daemon has stopped; {count} sessions were told\n"))?,
        }
    }
    Ok(ExitCode::SUCCESS)
}
