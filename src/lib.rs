//! Usher: one private daemon on a developer's machine, through which scripts and agents drive the programs that are
//! already open, with a key that can be taken back.
//!
//! ```text
//!  usher send ──▶ connection (worker: hello ▸ read ▸ open ▸ gate.admit ▸ dispatch)
//!                      │                                    │
//!                      │ Report                             │ lane ▸ outbound { admit ▸ seal ▸ send }
//!                      ▼                                    ▼
//!                 registry (one thread) ── publishes ──▶ directory ──▶ the session's program
//! ```
//!
//! Modules are layers; each uses only itself and those before it (a test reads the `use` lines):
//!
//! | module | what it owns |
//! | --- | --- |
//! | `version` `limits` `ids` `error` `account` `threads` `sys` | which build this is, bounds, names, exits, what is held, threads, what differs between systems |
//! | `store` | the one way to any file of ours |
//! | `wire` | the bytes between peers, and no policy |
//! | `auth` | who a peer is and what it may do: credentials, the gate, the handshake |
//! | `audit` | what happened to keys, connections and sessions: lines that nobody alters unseen |
//! | `route` | the ways to peers: outbound, lanes, the directory |
//! | `registry` | the one owner of sessions |
//! | `connection` | one connection from its first byte to its last |
//! | `daemon` | `usherd`: set-up, threads, shutdown |
//! | [`client`] | the other end, and the library: connect, prove, call, be a session, start a daemon |
//! | `cli` | `usher` |
//!
//! docs/architecture.md tells the same story at length, docs/protocol.md holds every byte.

mod account;
mod audit;
mod auth;
mod cli;
pub mod client;
mod connection;
mod daemon;
mod error;
mod ids;
mod limits;
mod registry;
mod route;
mod store;
mod sys;
mod threads;
mod version;
mod wire;

use std::process::ExitCode;

/// The program `usher`.
pub fn usher_main() -> ExitCode {
    cli::main()
}

/// The program `usherd`.
pub fn usherd_main() -> ExitCode {
    daemon::main()
}
