//! `usher`: the command line.
//!
//! Owns: what was said ([`args`], [`help`]), what is done for each verb (a file each), and how it is told ([`out`],
//! [`table`], [`trouble`]). It must not know bytes of the protocol. Invariant: data goes to standard output, all else to
//! standard error; with `--json` standard output is empty or one valid document; the exit code says what happened.
//!
//! ```text
//! arguments ── args::parse ──▶ Said ──▶ verb ── ask::Asker ──▶ client ──▶ daemon
//!                                        └──▶ out (data) · Trouble ──▶ standard error, exit code
//! ```

mod approvals;
mod args;
mod ask;
mod attach;
mod audit;
mod ending;
mod events;
mod foreign;
mod get;
mod help;
mod keys;
mod list;
mod out;
mod paths;
mod payload;
mod receipt;
mod rpc;
pub mod run;
mod select;
mod send;
mod session;
mod status;
mod table;
mod terminal;
mod text;
mod time;
mod trouble;
mod verify;
mod wait;

use std::ffi::OsString;
use std::process::ExitCode;

use args::{Global, Said, Verb};
use trouble::Trouble;

/// What a verb ends with.
type Outcome = Result<ExitCode, Trouble>;

/// Runs the program with its arguments.
pub fn main() -> ExitCode {
    let words: Vec<OsString> = std::env::args_os().skip(1).collect();
    let json = args::wants_json(&words);
    let outcome = args::parse(words).map_err(Trouble::from).and_then(|said| match said {
        Said::Help(topic) => out::text(help::text(topic)).map(|()| ExitCode::SUCCESS),
        Said::Version => out::text(&format!("{}\n", help::VERSION)).map(|()| ExitCode::SUCCESS),
        Said::Do(global, verb) => act(&global, *verb),
    });
    outcome.unwrap_or_else(|trouble| {
        trouble.tell(json);
        ExitCode::from(trouble.exit() as u8)
    })
}

fn act(global: &Global, verb: Verb) -> Outcome {
    match verb {
        Verb::List(selector) => list::main(global, &selector),
        Verb::Get(selector) => get::main(global, &selector),
        Verb::Send(args) => send::main(global, &args),
        Verb::Wait(args) => wait::main(global, &args),
        Verb::Ask(args) => approvals::ask::main(global, &args),
        Verb::Approvals(args) => approvals::list::main(global, &args),
        Verb::Decide(decision, args) => approvals::decide::main(global, decision, &args),
        Verb::Events(args) => events::main(global, &args),
        Verb::Status => status::main(global),
        Verb::Health => status::health(global),
        Verb::Paths(name) => paths::main(global, name.as_deref()),
        Verb::Stop(args) => ending::stop::main(global, &args),
        Verb::Drain(args) => ending::drain::main(global, &args),
        Verb::Restart(args) => ending::restart::main(global, &args),
        Verb::Rpc(args) => rpc::main(global, &args),
        Verb::Keys(args) => keys::main(global, args),
        Verb::Verify(args) => verify::main(global, &args),
        Verb::Audit(args) => audit::main(global, &args),
        Verb::Attach(args) => attach::main(global, &args),
        Verb::Run(args) => run::main(args, global.credential.as_deref()).map_err(Trouble::from),
    }
}
