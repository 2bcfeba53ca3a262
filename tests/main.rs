//! The real programs, started in private directories.
//!
//! Names of tests are sentences. Nothing sleeps to wait for something: conditions are waited for, with a deadline.

mod files;
mod handshake;
mod interop;
mod project;
mod rendezvous;
mod revocation;
mod shell;
mod support;
