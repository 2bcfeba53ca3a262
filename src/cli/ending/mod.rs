//! `usher stop`, `drain` and `restart`: how a daemon is asked to end, and how it is seen to be gone.
//!
//! Invariant: no program is signalled; the daemon is asked, through protocol 0 where it speaks no other of ours.

pub mod drain;
pub mod restart;
pub mod stop;
mod traces;

use std::time::Duration;

use crate::client::Target;
use crate::error::{Exit, Failure};
use crate::limits::HELLO_CLIENT_MS;
use crate::wire::codes::Code;
use crate::wire::lines::Role;

use super::ask::{Asker, Missed};
use super::trouble::Trouble;

/// Pending commands get 5 s, last frames 5 s, and the disk some.
const END: Duration = Duration::from_secs(15);

/// In our protocol, else in 0 (true).
fn connect(target: &Target) -> Result<(Asker, bool), Trouble> {
    match Asker::connect_as(target, Role::Operator) {
        Ok(asker) => Ok((asker, false)),
        Err(Missed::Trouble(trouble)) if trouble.exit() == Exit::Incompatible => {
            let zero = Asker::connect_zero(target, Duration::from_millis(HELLO_CLIENT_MS));
            zero.map(|asker| (asker, true)).map_err(|_| trouble)
        }
        Err(missed) => Err(missed.into()),
    }
}

/// Protocol 0 has no receipts.
fn no_receipt() -> Failure {
    let message = "that daemon speaks no protocol of ours but 0, which has no receipts";
    Failure::new(Exit::Incompatible, "incompatible", message).hint("leave --receipt out")
}

/// It has agreed to end, and has not in time.
fn still_there(waited: Duration) -> Failure {
    let message = format!("the daemon agreed to end but still runs after {} s", waited.as_secs());
    Failure::new(Exit::Timeout, Code::Timeout.word(), message).hint("usher paths log says more")
}
