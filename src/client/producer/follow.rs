//! Telling a program where its connection is.
//!
//! Owns: the listeners, and the order in which they hear. Invariant: every listener hears every later change, in order, on one
//! thread at a time, with no lock of ours held; one that panics is logged, and the others go on.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Weak};
use std::thread::{self, ThreadId};

use parking_lot::Mutex;

/// Where a producer's connection is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ConnectionState {
    /// Nothing was tried.
    Idle,
    /// Hello and registration are under way.
    Connecting,
    /// The daemon has the session.
    Open,
    /// A daemon is waited for.
    Waiting,
    /// The daemon does not let the key in; nothing is tried until [`retry`](super::Producer::retry).
    Revoked,
    /// For good.
    Stopped,
}

/// A change of the connection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Change {
    /// Where it is now. The same as before when the daemon refused an update.
    pub state: ConnectionState,
    /// What led there: a word or a sentence, for people and logs.
    pub reason: Option<String>,
}

type Listener = Arc<dyn Fn(&Change) + Send + Sync>;

#[derive(Default)]
pub(super) struct Listeners(Mutex<Told>);

#[derive(Default)]
struct Told {
    listeners: Vec<(u64, Listener)>,
    last: u64,
    /// Each with the last listener that hears it: who comes later knows it already.
    changes: VecDeque<(Change, u64)>,
    /// Which thread is telling.
    teller: Option<ThreadId>,
}

impl Listeners {
    pub fn add(self: &Arc<Self>, listener: Listener) -> Following {
        let mut told = self.0.lock();
        told.last += 1;
        let id = told.last;
        told.listeners.push((id, listener));
        Following { listeners: Arc::downgrade(self), id }
    }

    /// Puts a change in its place in the order; called where the state changes.
    pub fn note(&self, change: Change) {
        let mut told = self.0.lock();
        let last = told.last;
        told.changes.push_back((change, last));
    }

    /// Tells what was noted, unless another thread is at it and will.
    pub fn tell(&self) {
        loop {
            let (change, listeners) = {
                let mut told = self.0.lock();
                if told.teller.is_some() {
                    return;
                }
                let Some((change, last)) = told.changes.pop_front() else { return };
                told.teller = Some(thread::current().id());
                let hear = told.listeners.iter().filter(|(id, _)| *id <= last);
                (change, hear.cloned().collect::<Vec<_>>())
            };
            for (_, listener) in &listeners {
                if catch_unwind(AssertUnwindSafe(|| listener(&change))).is_err() {
                    log::error!("a listener panicked at {change:?}");
                }
            }
            // Not under the lock: what a listener held may follow too.
            drop(listeners);
            self.0.lock().teller = None;
        }
    }

    /// The thread that is telling.
    pub fn teller(&self) -> Option<ThreadId> {
        self.0.lock().teller
    }
}

/// Dropped, nothing is told any more.
#[must_use]
pub struct Following {
    listeners: Weak<Listeners>,
    id: u64,
}

impl Drop for Following {
    fn drop(&mut self) {
        let Some(listeners) = self.listeners.upgrade() else { return };
        let mut told = listeners.0.lock();
        let place = told.listeners.iter().position(|(id, _)| *id == self.id);
        let listener = place.map(|place| told.listeners.remove(place));
        // Not under the lock: what it held may follow too.
        drop(told);
        drop(listener);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn change(reason: &str) -> Change {
        Change { state: ConnectionState::Open, reason: Some(reason.to_owned()) }
    }

    #[test]
    fn a_listener_that_panics_harms_no_other_and_a_dropped_one_hears_nothing() {
        let (listeners, heard) = (Arc::new(Listeners::default()), Arc::new(Mutex::new(Vec::new())));
        let hears = Arc::clone(&heard);
        let _bad = listeners.add(Arc::new(|_: &Change| panic!("on purpose")));
        let good = listeners.add(Arc::new(move |change: &Change| hears.lock().push(change.clone())));
        listeners.note(change("one"));
        listeners.note(change("two"));
        listeners.tell();
        assert_eq!(*heard.lock(), [change("one"), change("two")]);
        drop(good);
        listeners.note(change("three"));
        listeners.tell();
        assert_eq!(heard.lock().len(), 2);
    }

    #[test]
    fn what_a_listener_brings_about_is_told_after_what_it_hears() {
        let (listeners, heard) = (Arc::new(Listeners::default()), Arc::new(Mutex::new(Vec::new())));
        let (again, hears) = (Arc::clone(&listeners), Arc::clone(&heard));
        let _following = listeners.add(Arc::new(move |now: &Change| {
            if *now == change("one") {
                again.note(change("two"));
                again.tell();
            }
            hears.lock().push(now.clone());
        }));
        listeners.note(change("one"));
        listeners.tell();
        assert_eq!(*heard.lock(), [change("one"), change("two")]);
    }
}
