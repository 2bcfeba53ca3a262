//! The other end of `usherd`: finds it, proves both sides, calls it, and starts it where there is none.
//!
//! Owns: where the daemon is and with which key ([`address`], [`bundle`]), the client's side of the handshake
//! ([`handshake`]), a connection in two halves ([`connection`]), one question and its answer ([`caller`]), and the
//! auto-start ([`start`]). It must not know verbs, tables or sessions. Invariant: nothing that arrives is believed
//! before the daemon has proved the key that is held here, and every wait has a deadline.
//!
//! ```text
//! Target ── connect ──▶ Connection ── split ──▶ Sender (many threads, one lock) · Receiver (one thread)
//!    │                      └─────────────────▶ Caller: call ──▶ Reply, receipt checked
//!    └───── connect_or_start ──▶ usherd --background ──▶ connect
//! ```

pub mod address;
pub mod bundle;
pub mod caller;
pub mod connection;
pub mod failure;
pub mod handshake;
mod inbound;
mod outbound;
mod start;
mod welcome;

pub use address::Target;
pub use caller::{CallError, Caller, Reply};
pub use connection::{Connection, Ended, Incoming, Receiver, Sender};
pub use failure::{ConnectFailure, SendError};
pub use handshake::{Hello, connect, health};
pub use start::connect_or_start;

/// What this program calls itself in a hello.
pub const BUILD: &str = concat!("usher/", env!("CARGO_PKG_VERSION"));
