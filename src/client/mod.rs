//! A program's way to `usherd`: be a session that others drive ([`Producer`]), drive sessions ([`Caller`]), follow what
//! happens ([`Events`], [`Watch`]).
//!
//! A [`Target`] says where the daemon is and with which key it is spoken to. Nothing that arrives is believed before the
//! daemon has proved the key that is held here, and every wait has a deadline.
//!
//! ```no_run
//! use usher::client::{Command, Description, Offer, Producer, Target};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let reload = Offer::new("reload", |command: &Command| {
//!     println!("asked by {} with {:?}", command.caller().label, command.input());
//!     Ok(br#"{"reloaded":true}"#.to_vec())
//! });
//! let board = Description::new("board").label("kind", "tui").offer(reload).snapshot(br#"{"page":1}"#.to_vec());
//! let producer = Producer::new(Target::from_env(None)?, board)?;
//! producer.start()?; // returns at once; the session comes, and comes back after every loss of the daemon
//! producer.snapshot(br#"{"page":2}"#.to_vec())?;
//! producer.stop();
//! # Ok(())
//! # }
//! ```
//!
//! What the library does in a program: it has threads of its own (`usher-…`), which are joined when a producer is stopped
//! or a caller dropped. It prints nothing, logs through the crate `log`, raises no SIGPIPE, and changes neither signals,
//! umask, environment nor any other thing of the process; it reads `USHER_DIR`, `HOME`, `USHER_CREDENTIAL` in
//! [`Target::from_env`] and hands `HOME` and `USHER_LOG` on to a daemon that it starts.
//!
//! docs/library.md tells more, docs/protocol.md has every byte.

#[cfg(doctest)]
#[doc = include_str!("../../docs/library.md")]
struct Page;

// Owns: where the daemon is and with which key (`address`, `bundle`), the client's side of the handshake, a connection in
// two halves (`connection`), questions and answers (`caller`), what happens (`events`), a session (`producer`), and the auto-start (`start`). It
// must not know verbs or tables.
//
//     Target ── connect ──▶ Connection ── split ──▶ Sender (many threads, one lock) · Receiver (one thread)
//        │                      ├─────────────────▶ Caller: start ──▶ Pending ──▶ Reply
//        │                      ├─────────────────▶ Events: wait ──▶ Event · Watch: a thread that reads them
//        │                      └─────────────────▶ Producer: link ──▶ pool ──▶ handlers
//        └───── connect_or_start ──▶ usherd --background ──▶ connect

mod address;
pub(crate) mod bundle;
mod caller;
mod connection;
mod events;
pub(crate) mod failure;
mod handshake;
mod inbound;
mod outbound;
mod producer;
mod start;
mod welcome;

pub use address::Target;
pub use caller::{CallError, Caller, Pages, Pending, Reply, Sent, Sessions};
pub(crate) use connection::Connection;
pub use events::{Event, Events, EventsError, Filter, Listening, Watch};
pub use failure::ConnectError;
pub(crate) use failure::ConnectFailure;
pub(crate) use handshake::{Hello, connect, health};
pub use producer::{
    Asker, Change, Command, ConnectionState, Description, Following, Invalid, Offer, Producer, StartDaemon, Update, Why,
};
pub(crate) use start::{check_installed, connect_or_start};

use crate::version::version;

pub use crate::ids::SessionId;
pub use crate::wire::codes::{Candidate, Delivery, ErrorData, ErrorObject};
pub use crate::wire::rows::{CommandOffer, Row as Session, State as SessionState, Terminal};
pub use crate::wire::selector::Selector;

/// What this program calls itself in a hello.
pub(crate) const BUILD: &str = concat!("usher/", version!());
