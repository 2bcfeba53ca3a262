//! `usher restart`: the installed daemon in place of the one that runs, for a new build of the same protocol.
//!
//! Invariant: nothing is ended before the installed program has been seen to run. Sessions wait for the new daemon
//! because the old one says that it was stopped, and come back under their leases.

use std::process::ExitCode;
use std::thread::sleep;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use crate::client::{Hello, check_installed, connect_or_start};
use crate::error::{Exit, Failure};
use crate::ids::Generation;
use crate::wire::codes::Code;
use crate::wire::lines::Role;
use crate::wire::methods::Method;

use super::super::args::{Global, RestartArgs};
use super::super::ask::{self, Asker, Nothing};
use super::super::trouble::Trouble;
use super::super::{Outcome, out};
use super::traces::Traces;
use super::{END, still_there};

/// Between two looks at what is pending, and at which sessions are back.
const PAUSE: Duration = Duration::from_millis(50);

#[derive(Deserialize)]
struct Status {
    build: String,
    sessions: u64,
    pending: u64,
    oldest_pending_ms: Option<u64>,
}

#[derive(Serialize)]
struct Stop {
    force: bool,
}

#[derive(Serialize)]
struct Document<'a> {
    restarted: bool,
    generation: Generation,
    before: &'a str,
    build: &'a str,
    sessions_before: u64,
    sessions: u64,
}

/// Ends one, starts the other, waits for the sessions.
pub fn main(global: &Global, args: &RestartArgs) -> Outcome {
    ask::operator_is_meant(global)?;
    let target = ask::target(global)?;
    if target.as_bundle().is_some() {
        let message = "a bundle knows no program of a daemon to start";
        return Err(Failure::usage(message).hint("usher restart takes the operator's own key").into());
    }
    check_installed()?;
    let before = Traces::of(&target);
    let mut asker = Asker::connect_as(&target, Role::Operator)?;
    let old = settled(&mut asker, Instant::now() + args.timeout)?;
    asker.ask_signed(Method::DaemonStop, &Stop { force: true })?;
    let deadline = Instant::now() + END;
    if !asker.caller().wait_for_end(deadline) || !before.are_gone(deadline) {
        return Err(still_there(END).into());
    }
    let connection = connect_or_start(&target, &Hello::new(Role::Operator), None, || ())?;
    let mut asker = Asker::over(connection)?;
    let new = back(&mut asker, old.sessions, Instant::now() + args.timeout)?;
    let generation = asker.caller().proved().generation;
    if global.json {
        let (before, build) = (old.build.as_str(), new.build.as_str());
        let (sessions_before, sessions) = (old.sessions, new.sessions);
        out::json(&Document { restarted: true, generation, before, build, sessions_before, sessions })?;
    } else {
        let sessions = match (old.sessions, new.sessions) {
            (0, _) => String::new(),
            (all, now) if now >= all => format!("; its sessions are back: {all}"),
            (all, now) => format!("; {now} of {all} sessions are back so far"),
        };
        out::text(&format!("{} runs in place of {}{sessions}\n", new.build, old.build))?;
    }
    if new.sessions < old.sessions {
        let missing = old.sessions - new.sessions;
        let message = format!("{missing} of {} sessions have not come back in time", old.sessions);
        return Err(Failure::new(Exit::Timeout, Code::Timeout.word(), message)
            .hint("they try again by themselves; usher list shows who is there")
            .into());
    }
    Ok(ExitCode::SUCCESS)
}

fn status(asker: &mut Asker) -> Result<Status, Trouble> {
    let reply = asker.ask(Method::DaemonStatus, &Nothing {})?;
    ask::read(&reply.result, Method::DaemonStatus.name())
}

/// Waits until no command is pending of those that were when this began. Where they come without a gap, those that have
/// come since are left to the daemon, which lets them end before it does.
fn settled(asker: &mut Asker, deadline: Instant) -> Result<Status, Trouble> {
    let began = Instant::now();
    loop {
        let waited = began.elapsed();
        let now = status(asker)?;
        let has_come_since = |age| Duration::from_millis(age) < waited;
        if now.pending == 0 || now.oldest_pending_ms.is_some_and(has_come_since) {
            return Ok(now);
        }
        if Instant::now() >= deadline {
            let message = format!("commands are pending: {}; nothing was changed", now.pending);
            return Err(Failure::new(Exit::Timeout, Code::Timeout.word(), message)
                .hint("wait longer with --timeout, or end the daemon with usher stop --force")
                .into());
        }
        sleep(PAUSE);
    }
}

/// Waits until as many sessions are there as before, or until the deadline.
fn back(asker: &mut Asker, sessions: u64, deadline: Instant) -> Result<Status, Trouble> {
    loop {
        let now = status(asker)?;
        if now.sessions >= sessions || Instant::now() >= deadline {
            return Ok(now);
        }
        sleep(PAUSE);
    }
}
