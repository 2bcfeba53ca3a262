//! `usher run`: a program on this terminal, with a session of its own for as long as it runs.
//!
//! Owns: the program ([`child`]), the signals on their way to it ([`watch`]), what is told of it ([`report`]), the
//! [`link`] to the daemon and the [`handlers`] of its commands. It must not know how the daemon works. Invariants: the
//! program starts at once, is never delayed or failed by the daemon, and its exit code is ours; nothing is printed
//! while it has the terminal.
//!
//! Threads: *main* waits for signals and for the program; *link* for the daemon; each running command has a *handler*
//! that waits for its shell. None of them waits for another, but main at the end, for [`FAREWELL`] at most.
//!
//! ```text
//!  terminal, kill(1) ── signals ──▶ main ──▶ child
//!                                    │ a child has ended        ▲ built-in `signal`
//!                                    ▼                          │
//!            sh -c CMD ◀──▶ handler ◀── start, cancel ── link ◀─┴─▶ daemon
//! ```

mod args;
mod builtin;
mod child;
mod handler;
mod handlers;
mod link;
mod output;
mod relay;
mod report;
mod serve;
mod spawn;
mod state;
mod terminal;
mod text;
mod watch;

use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::client::Target;
use crate::error::{Exit, Failure};
use crate::ids::SessionId;
use crate::sys::Signals;

pub use args::RunArgs;
use child::Child;
use handlers::Handlers;
use link::Link;
use report::Report;

/// What the end may take: the last words to the daemon and the last handlers.
const FAREWELL: Duration = Duration::from_millis(200);

/// Runs the program to its end; its exit code. `credential` is a bundle in place of the default keys.
pub fn main(args: RunArgs, credential: Option<&Path>) -> Result<ExitCode, Failure> {
    args.check()?;
    if relay::is_needed() {
        return relay::main();
    }
    let first = relay::First::find();
    let code = run(&args, credential);
    first.tell(code.as_ref().map_or_else(|failure| failure.exit as u8, |code| *code));
    code.map(ExitCode::from)
}

fn run(args: &RunArgs, credential: Option<&Path>) -> Result<u8, Failure> {
    let taken = watch::taken();
    // Before there is a second thread: each inherits this. What is started gets an empty mask again.
    taken.thread_block().map_err(no_signals)?;
    let signals = Signals::new(&taken).map_err(no_signals)?;

    let session = SessionId::random();
    let child = match Child::start(&args.command, session) {
        Ok(child) => Arc::new(child),
        Err(code) => return Ok(code),
    };
    let report = Arc::new(Report::new(args, session, child.pid().as_raw().unsigned_abs()));
    let handlers = Handlers::new(args.max_in_flight);
    // A credential that cannot be used is one more daemon that is not there.
    let target = Target::from_env(credential).ok();
    let link = target.and_then(|target| Link::start(target, report, Arc::clone(&child), handlers.clone()));

    let code = watch::until_end(&child, &signals, || handlers.wake());

    let deadline = Instant::now() + FAREWELL;
    if let Some(link) = link {
        link.wait_begun(deadline);
        handlers.end(deadline);
        link.end(deadline);
    }
    Ok(code)
}

fn no_signals(errno: nix::errno::Errno) -> Failure {
    Failure::new(Exit::Capacity, "busy", format!("signals cannot be taken: {}", errno.desc()))
}
