//! Starts the real programs in a private `USHER_DIR` and waits for conditions.

pub mod daemon;
pub mod peers;
pub mod process;
pub mod quiet;
pub mod signals;
pub mod system;
pub mod threads;
pub mod wait;
pub mod wire;
