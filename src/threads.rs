//! The one place where threads are made: named, able to fail, and joined by whoever keeps the handle.

use std::io;
use std::thread::{Builder, JoinHandle};

/// Bytes of stack for every thread: enough for a handshake's curve operations in a debug build.
const STACK_BYTES: usize = 512 * 1024;

/// Starts a named thread. A failure (EAGAIN at a limit) is the caller's to answer; nothing panics.
#[expect(clippy::disallowed_methods, reason = "this is the one place")]
pub(crate) fn spawn<T: Send + 'static>(
    name: &str,
    body: impl FnOnce() -> T + Send + 'static,
) -> io::Result<JoinHandle<T>> {
    Builder::new().name(name.to_owned()).stack_size(STACK_BYTES).spawn(body)
}
