//! `usher stop`: ends the daemon, and waits until it is gone.
//!
//! Invariant: no program is signalled; the daemon is asked, through protocol 0 where it speaks no other of ours.

use std::process::ExitCode;
use std::thread::sleep;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use crate::client::Target;
use crate::error::{Exit, Failure};
use crate::ids::Generation;
use crate::limits::HELLO_CLIENT_MS;
use crate::store::paths::LOCK;
use crate::store::{Dir, paths::SOCKET};
use crate::sys;
use crate::wire::codes::Code;
use crate::wire::lines::Role;
use crate::wire::methods::Method;

use super::args::{Global, StopArgs};
use super::ask::{self, Asker, Missed, PATIENCE};
use super::trouble::{self, Trouble};
use super::{Outcome, out, receipt};

/// Pending commands get 5 s, last frames 5 s, and the disk some.
const END: Duration = Duration::from_secs(15);

/// The pauses between two looks at what the daemon leaves last.
const PAUSE: Duration = Duration::from_millis(5);
const PAUSE_MAX: Duration = Duration::from_millis(100);

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
    let (mut asker, zero) = connect(&target)?;
    let place = receipt::Place::take(args.receipt.as_deref())?;
    if zero && place.is_some() {
        let message = "that daemon speaks no protocol of ours but 0, which has no receipts";
        return Err(Failure::new(Exit::Incompatible, "incompatible", message).hint("leave --receipt out").into());
    }
    let params = Stop { force: args.force };
    let reply = if zero {
        let called = asker.ask_within(Method::DaemonStop, &params, None, PATIENCE);
        called.map_err(|error| trouble::call(Method::DaemonStop.name(), error))
    } else {
        asker.ask_signed(Method::DaemonStop, &params)
    };
    let reply = reply.map_err(|trouble| {
        let live = trouble.code() == Code::SessionsLive.word();
        if live { trouble.hint("close these programs, or tell them with usher stop --force") } else { trouble }
    })?;
    receipt::keep(place, reply.receipt.as_ref())?;
    let Stopped { sessions } = ask::read(&reply.result, Method::DaemonStop.name())?;
    let deadline = Instant::now() + END;
    if !asker.caller().wait_for_end(deadline) || !before.are_gone(deadline) {
        let message = format!("the daemon agreed to stop but still runs after {} s", END.as_secs());
        return Err(Failure::new(Exit::Timeout, Code::Timeout.word(), message)
            .hint("usher paths log says more")
            .into());
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

/// In our protocol, else in 0 (true).
fn connect(target: &Target) -> Result<(Asker, bool), Trouble> {
    match Asker::connect_as(target, Role::Operator) {
        Ok(asker) => Ok((asker, false)),
        Err(Missed::Trouble(trouble)) if trouble.exit() == Exit::Incompatible => {
            let zero = Asker::connect_zero(target, Duration::from_millis(HELLO_CLIENT_MS));
            zero.map(|asker| (asker, true)).map_err(|_| trouble)
        }
        Err(missed) => Err(missed.into()),
    }
}

/// What shows that a daemon is there: its socket, and who holds the lock where the system tells. Looked at only, since
/// taking the lock would stand in the way of a daemon that starts.
struct Traces {
    root: Option<Dir>,
    folder: Option<Dir>,
    socket: Option<crate::store::Identity>,
    holder: Option<u32>,
}

impl Traces {
    fn of(target: &Target) -> Self {
        let root = target.paths().and_then(|paths| Dir::open(paths.root()).ok());
        let folder = Dir::open(&target.socket_folder()).ok();
        let mut traces = Self { root, folder, socket: None, holder: None };
        (traces.socket, traces.holder) = (traces.socket(), traces.holder());
        traces
    }

    fn socket(&self) -> Option<crate::store::Identity> {
        self.folder.as_ref()?.identity(SOCKET).ok()?
    }

    fn holder(&self) -> Option<u32> {
        let lock = self.root.as_ref()?.identity(LOCK).ok()??;
        sys::lock_holder(lock.dev, lock.ino)
    }

    /// Waits until neither is what it was.
    fn are_gone(&self, deadline: Instant) -> bool {
        let mut pause = PAUSE;
        loop {
            let socket = self.socket.is_some() && self.socket() == self.socket;
            let lock = self.holder.is_some() && self.holder() == self.holder;
            if !socket && !lock {
                return true;
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return false;
            }
            sleep(pause.min(left));
            pause = (pause * 2).min(PAUSE_MAX);
        }
    }
}
