//! The real programs, started in private directories.
//!
//! Names of tests are sentences. Nothing sleeps to wait for something: conditions are waited for, with a deadline.

#![expect(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a helper that fails is a test that fails")]

mod approvals;
mod asking;
mod attach;
mod audit;
mod bounds;
mod budgets;
mod cli;
mod ending;
mod events;
mod files;
mod handshake;
mod hostile;
mod interop;
mod kept;
mod keys;
mod kills;
mod leases;
mod library;
mod load;
mod operators;
mod project;
mod quiescence;
mod rendezvous;
mod restart;
mod revocation;
mod rotation;
mod run;
mod scale;
mod shapes;
mod shell;
mod support;
mod time;
mod upgrade;
