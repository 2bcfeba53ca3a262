//! The bytes between peers: handshake lines, transcripts, sealed frames, messages, codes.
//!
//! Owns every shape of docs/protocol.md and no policy: nothing here knows credentials, sessions or sockets' owners.
//! Lengths are compared before a buffer exists; each parser runs once per message.

pub mod approvals;
pub mod codes;
pub mod events;
pub mod frame;
pub mod json;
pub mod lines;
pub mod message;
pub mod methods;
pub mod object;
pub mod receipt;
pub mod rows;
pub mod selector;
pub mod text;
pub mod transcript;
