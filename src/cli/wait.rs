//! `usher wait`: until exactly one session matches; for the daemon too, which it never starts.

use std::process::ExitCode;
use std::thread::sleep;
use std::time::{Duration, Instant};

use serde::Serialize;

use crate::client::CallError;
use crate::error::{Exit, Failure};
use crate::limits::{DEADLINE_MAX_MS, HELLO_CLIENT_MS};
use crate::wire::codes::{Code, ErrorObject};
use crate::wire::methods::Method;
use crate::wire::rows::Row;
use crate::wire::selector::Selector;

use super::args::{Global, WaitArgs};
use super::ask::{self, Asker, Missed};
use super::get::One;
use super::trouble::Trouble;
use super::{Outcome, out, select, time, trouble};

/// The pauses between two looks for a daemon.
const PAUSE: Duration = Duration::from_millis(100);
const PAUSE_MAX: Duration = Duration::from_secs(1);

/// For a hello.
const HELLO: Duration = Duration::from_millis(HELLO_CLIENT_MS);

/// For the daemon's own answer after the deadline.
const SLACK: Duration = Duration::from_secs(2);

#[derive(Serialize)]
struct Wait<'a> {
    selector: &'a Selector,
    deadline_ms: u64,
}

/// Waits, and prints the session's id.
pub fn main(global: &Global, args: &WaitArgs) -> Outcome {
    let selector = select::request(&args.selector)?;
    let target = ask::target(global)?;
    let role = ask::role_for(&target, Method::SessionWait);
    let deadline = Instant::now() + args.timeout;
    let mut pause = PAUSE;
    let mut missing = "no daemon is running";
    loop {
        let patience = deadline.saturating_duration_since(Instant::now()).clamp(PAUSE, HELLO);
        match Asker::connect_within(&target, role, patience) {
            Ok(mut asker) => {
                missing = "no session matches";
                pause = PAUSE;
                if let Some(one) = wait(&mut asker, &selector, deadline)? {
                    return told(global, &one);
                }
            }
            Err(Missed::NotRunning) => {}
            Err(Missed::Trouble(trouble)) => return Err(trouble),
        }
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            let message = format!("waited {} s: {missing}", args.timeout.as_secs_f32());
            return Err(Failure::new(Exit::Timeout, Code::Timeout.word(), message).into());
        }
        sleep(pause.min(left));
        pause = (pause * 2).min(PAUSE_MAX);
    }
}

/// The session; none when this connection can tell no more.
fn wait(asker: &mut Asker, selector: &Selector, deadline: Instant) -> Result<Option<One>, Trouble> {
    let name = Method::SessionWait.name();
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Ok(None);
        }
        let deadline_ms = time::millis(left).clamp(1, DEADLINE_MAX_MS);
        let patience = Duration::from_millis(deadline_ms) + SLACK;
        match asker.ask_within(Method::SessionWait, &Wait { selector, deadline_ms }, None, patience) {
            Ok(reply) => return ask::read(&reply.result, name).map(Some),
            // The daemon's deadline is shorter than ours can be.
            Err(CallError::Refused(error)) if is(&error, Code::Timeout) => {}
            // The daemon is gone, or going: another may come.
            Err(CallError::Lost { .. }) => return Ok(None),
            Err(CallError::Refused(error)) if is(&error, Code::ShuttingDown) => return Ok(None),
            Err(error) => return Err(trouble::call(name, error)),
        }
    }
}

fn is(error: &ErrorObject, code: Code) -> bool {
    error.data.as_ref().is_some_and(|data| data.code == code.word())
}

fn told(global: &Global, one: &One) -> Outcome {
    if global.json {
        #[derive(Serialize)]
        struct Document<'a> {
            session: &'a serde_json::value::RawValue,
        }
        out::json(&Document { session: &one.session })?;
    } else {
        let row: Row = ask::read(&one.session, Method::SessionWait.name())?;
        out::text(&format!("{}\n", row.session_id))?;
    }
    Ok(ExitCode::SUCCESS)
}
