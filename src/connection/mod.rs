//! One connection from its first byte to its last: a worker thread that reads, asks the gate and dispatches.
//!
//! Owns the socket's reading side and the order of things on one connection. Everything that others must see goes through
//! `route` and `registry`.

pub mod hub;
pub mod outcomes;
pub mod slots;
pub mod worker;

mod approvals;
mod caller;
mod dispatch;
mod events;
mod hello;
mod lease;
mod operator;
mod producer;
mod reader;
mod status;
