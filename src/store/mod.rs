//! The one way to any file of ours.
//!
//! Owns: where the files are ([`paths`]), how a folder or file is opened, judged, read, replaced, locked and removed
//! ([`dir`], [`check`], [`read`], [`mod@write`], [`remove`], [`lock`]), the two forms of text that must not be misread
//! ([`document`], [`pem`]), where a test may end it ([`fault`]), the rendezvous ([`socket`]) and the first start ([`first_start`]). It must not know what
//! the files mean. Invariant: every access is relative to a folder handle that was verified when it was opened; nothing
//! is followed, trusted, overwritten or chmod-ed before it is known to be ours.
//!
//! ```text
//! Paths ── root ──▶ Dir::open / create ──▶ read · write · append · remove · set_aside      verified folder handle
//!                        │                      └▶ document (header, digest, JSON) · pem (seeds)
//!                        ├──▶ lock · lock_wait ──▶ Lock ──▶ Listener::bind, first_start::publish
//!                        └──▶ sub("s") ──▶ socket::connect
//! ```

mod check;
mod dir;
pub mod document;
mod error;
pub mod fault;
pub mod first_start;
mod lock;
pub mod paths;
pub mod pem;
mod read;
mod remove;
#[cfg(test)]
pub(crate) mod scratch;
pub mod socket;
mod write;

pub use check::Identity;
pub use dir::Dir;
pub use error::{Problem, StoreError};
pub use lock::Lock;
pub use paths::Paths;
pub use read::Kind;
