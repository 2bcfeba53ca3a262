//! Callers that wait for a session to appear.

use std::sync::Arc;
use std::time::Instant;

use serde::Serialize;

use crate::account::{Charge, Pool};
use crate::ids::ConnectionId;
use crate::route::directory::{Directory, Session};
use crate::route::outbound::Origin;
use crate::wire::codes::{Code, Refusal};
use crate::wire::methods::Method;
use crate::wire::rows::Row;

use super::busy;
use super::report::Wait;

struct Waiter {
    wait: Wait,
    _charge: Charge,
}

/// Those who wait.
#[derive(Default)]
pub struct Waiters(Vec<Waiter>);

#[derive(Serialize)]
struct Found {
    session: Row,
}

impl Waiters {
    /// Answers at once, or keeps the wait.
    pub fn add(&mut self, wait: Wait, streams: &Arc<Pool>, directory: &Directory) {
        let shares = &wait.peer.authority().credential().shares;
        match Charge::take(streams, &shares.streams, 1) {
            Ok(charge) if waits_on(&wait, directory) => self.0.push(Waiter { wait, _charge: charge }),
            Ok(_answered) => {}
            Err(full) => refuse(&wait, &busy(full)),
        }
    }

    /// Answers those whose session is there now: only `changed` can be new.
    pub fn look(&mut self, directory: &Directory, changed: &Session) {
        self.0.retain(|waiter| {
            let wait = &waiter.wait;
            let found = directory.select(&wait.selector, wait.peer.authority(), changed.order);
            !found.iter().any(|session| session.id == changed.id) || waits_on(wait, directory)
        });
    }

    /// Tells those whose deadline has passed.
    pub fn expire(&mut self, now: Instant) {
        self.0.retain(|Waiter { wait, .. }| {
            let due = wait.deadline <= now;
            if due {
                refuse(wait, &Refusal::from(Code::Timeout).message("no session matched before the deadline"));
            }
            !due
        });
    }

    /// The next deadline.
    pub fn next(&self) -> Option<Instant> {
        self.0.iter().map(|waiter| waiter.wait.deadline).min()
    }

    /// One no longer waits.
    pub fn cancel(&mut self, connection: ConnectionId, request: u64) {
        self.0.retain(|Waiter { wait, .. }| {
            let it = wait.peer.id() == connection && wait.request == request;
            if it {
                refuse(wait, &Code::Cancelled.into());
            }
            !it
        });
    }

    /// Nobody waits any more.
    pub fn end(&mut self, code: Code) {
        for Waiter { wait, .. } in self.0.drain(..) {
            refuse(&wait, &code.into());
        }
    }
}

/// Answers a wait if that can be done now; whether it has to go on.
fn waits_on(wait: &Wait, directory: &Directory) -> bool {
    match directory.resolve(&wait.selector, wait.peer.authority()) {
        Ok(session) => return !answer(wait, &session),
        Err(refusal) if refusal.code == Code::SessionNotFound => return true,
        Err(refusal) => refuse(wait, &refusal),
    }
    false
}

/// `false`: the session's producer is no longer let through, so that there is nothing to tell.
fn answer(wait: &Wait, session: &Session) -> bool {
    let producer = session.lane.producer().authority();
    let Ok(_permit_of_producer) = producer.admit_delivery() else { return false };
    match wait.peer.authority().admit(Method::SessionWait) {
        Ok(_permit) if wait.peer.settle(wait.request) => {
            let found = Found { session: session.row(wait.peer.authority()) };
            let text = wait.peer.answering(wait.request, &found, None, wait.receipt);
            let instead = Some((wait.request, Code::SessionNotFound.into()));
            let _gone = wait.peer.send_for(Origin { authority: Arc::clone(producer), instead }, text);
        }
        _ => {}
    }
    true
}

fn refuse(wait: &Wait, refusal: &Refusal) {
    if wait.peer.settle(wait.request) {
        let _gone = wait.peer.refuse(wait.request, refusal);
    }
}
