//! The one place where tests make threads that outlive a scope.

use std::thread::JoinHandle;

/// A named thread.
pub fn spawn<T: Send + 'static>(name: &str, body: impl FnOnce() -> T + Send + 'static) -> JoinHandle<T> {
    #[expect(clippy::disallowed_methods, reason = "the one place where tests make threads")]
    std::thread::Builder::new().name(name.to_owned()).spawn(body).unwrap()
}
