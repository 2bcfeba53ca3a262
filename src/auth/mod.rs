//! Who a peer is and what it may do: keys, credentials, grants, the gate, the handshake.
//!
//! Owns the answer to "may it?". Knows no sockets and no sessions beyond what a selector reads. A checked fact is a value
//! that cannot be made otherwise: [`hello::Verified`] comes of a signature, [`gate::Permit`] of a look at the gate.

pub mod credential;
pub mod credentials;
pub mod gate;
pub mod grant;
pub mod hello;
pub mod identity;
mod reach;
pub mod record;
pub mod selection;

#[cfg(test)]
mod vectors;
