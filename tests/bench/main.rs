//! What passing through the daemon costs, as ratios against something that does the least, in the same run.
//!
//! Every figure is a pair of samples taken in turn (ours, baseline, ours, …), so that what else the machine does falls on
//! both. The baseline of a command is [`relay`]: the same two hops over Unix sockets between the same number of processes,
//! with blocking threads and direct writes, without JSON and without cryptography. docs/benchmark.md explains the rows.

#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stdout,
    clippy::print_stderr,
    clippy::disallowed_methods,
    reason = "a benchmark that cannot go on has nothing better to do than to say so"
)]

mod frames;
mod peer;
mod place;
mod plan;
mod relay;
mod report;
mod role;
mod stats;

use std::process::ExitCode;

/// The first argument of a process that was started by the benchmark itself.
const AS: &str = "--as";

fn main() -> ExitCode {
    let mut words: Vec<String> = std::env::args().skip(1).collect();
    // What cargo says to every benchmark.
    words.retain(|word| word != "--bench");
    if words.first().is_some_and(|word| word == AS) {
        role::run(&words[1..]);
        return ExitCode::SUCCESS;
    }
    match plan::Options::parse(&words) {
        Ok(options) => plan::run(&options),
        Err(mistake) => {
            eprintln!("{mistake}\n\n{}", plan::USAGE);
            ExitCode::from(2)
        }
    }
}
