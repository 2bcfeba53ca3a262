//! The ways to peers: what is written to one, what waits for one, and where each session is.
//!
//! Owns the hot path: caller's worker → lane → producer's outbound, and back the same way, with no thread between. Any
//! thread may write to any peer; nobody waits for a reader. Lock order: lane, then a peer's open requests, then outbound.

pub mod bell;
pub mod budget;
pub mod clock;
pub mod directory;
pub mod feed;
pub mod flusher;
pub mod keys;
pub mod lane;
pub mod outbound;
pub mod peer;
pub mod pending;
pub mod quiescence;
