//! `usher run`: a program on this terminal, with a session of its own for as long as it runs.
//!
//! Owns: the program ([`child`]), the signals on their way to it ([`watch`]), what is told of it ([`report`]) and its
//! commands ([`offers`]). The way to the daemon is the library's. It must not know how the daemon works. Invariants: the
//! program starts at once, is never delayed or failed by the daemon, and its exit code is ours; nothing is printed
//! while it has the terminal.
//!
//! Threads: *main* waits for signals and for the program; the library's for the daemon; each running command has one of
//! them that waits for its shell. None of them waits for another, but main at the end, for [`FAREWELL`] at most.
//!
//! ```text
//!  terminal, kill(1) ── signals ──▶ main ──▶ child
//!                                    │ a child has ended        ▲ built-in `signal`
//!                                    ▼                          │
//!            sh -c CMD ◀──▶ handler ◀──── offers ──── Producer ◀┴─▶ daemon
//! ```

mod args;
mod bells;
mod builtin;
mod child;
mod handler;
mod offers;
mod output;
mod relay;
mod report;
mod spawn;
mod watch;

use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::client::{Producer, Target};
use crate::error::{Exit, Failure};
use crate::ids::SessionId;
use crate::sys::Signals;

pub use args::RunArgs;
use bells::Bells;
use child::Child;
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
    let report = Report::new(args, session, child.pid().as_raw().unsigned_abs());
    let report = Arc::new(report);
    let bells = Bells::default();
    let description = report.description(offers::all(&report, &child, &bells));
    // A credential that cannot be used is one more daemon that is not there.
    let producer = Target::find(credential).ok().and_then(|target| Producer::new(target, description).ok());
    let producer = producer.filter(|producer| producer.start().is_ok());

    let code = watch::until_end(&child, &signals, || bells.ring());

    let deadline = Instant::now() + FAREWELL;
    if let Some(producer) = producer {
        producer.wait_begun(deadline);
        producer.stop_by(deadline);
    }
    Ok(code)
}

fn no_signals(errno: nix::errno::Errno) -> Failure {
    Failure::new(Exit::Capacity, "busy", format!("signals cannot be taken: {}", errno.desc()))
}
