//! `usher stop`, `drain` and `restart`: how a daemon is asked to end, and how it is seen to be gone.
//!
//! Invariant: no program is signalled; the daemon is asked, through protocol 0 where it speaks no other of ours.

pub mod drain;
pub mod restart;
pub mod stop;
mod traces;

use std::time::Duration;

use crate::error::{Exit, Failure};
use crate::wire::codes::Code;

/// Pending commands get 5 s, last frames 5 s, and the disk some.
const END: Duration = Duration::from_secs(15);

/// It has agreed to end, and has not in time.
fn still_there(waited: Duration) -> Failure {
    let message = format!("the daemon agreed to end but still runs after {} s", waited.as_secs());
    Failure::new(Exit::Timeout, Code::Timeout.word(), message).hint("usher paths log says more")
}
