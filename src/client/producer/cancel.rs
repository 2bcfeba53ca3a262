//! Telling a handler that it is no longer waited for.
//!
//! Owns: why, who is to hear it, and waiting for it. Invariant: what wakes a handler never runs under a lock of ours.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Instant;

use parking_lot::{Condvar, Mutex};

/// Why a command is no longer waited for. The later, the stronger.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Why {
    /// Its deadline passed.
    Deadline,
    /// Its caller said so, or is gone.
    Cancelled,
    /// The producer was stopped.
    Stopped,
}

type Listener = Box<dyn FnMut() + Send>;

/// Shared by a command and whoever may end it.
#[derive(Default)]
pub(super) struct Cancel {
    told: Mutex<Told>,
    changed: Condvar,
}

#[derive(Default)]
struct Told {
    why: Option<Why>,
    is_over: bool,
    listeners: Vec<Listener>,
}

impl Cancel {
    /// Says it, unless something stronger was said.
    pub fn tell(&self, why: Why) {
        let (before, listeners) = {
            let mut told = self.told.lock();
            if told.why >= Some(why) {
                return;
            }
            self.changed.notify_all();
            (told.why.replace(why), std::mem::take(&mut told.listeners))
        };
        listeners.into_iter().for_each(|listener| self.listen(listener, before));
    }

    /// What was said.
    pub fn why(&self) -> Option<Why> {
        self.told.lock().why
    }

    /// Calls this each time that something stronger is said, and now if something was.
    pub fn on_change(&self, listener: Listener) {
        self.listen(listener, None);
    }

    /// Keeps a listener once it has heard all there is.
    fn listen(&self, mut listener: Listener, mut heard: Option<Why>) {
        loop {
            let mut told = self.told.lock();
            if told.is_over {
                return;
            }
            if told.why == heard {
                return told.listeners.push(listener);
            }
            heard = told.why;
            drop(told);
            call(&mut listener);
        }
    }

    /// Waits until something is said.
    pub fn wait_until(&self, deadline: Option<Instant>) -> Option<Why> {
        let mut told = self.told.lock();
        while told.why.is_none() {
            match deadline {
                Some(deadline) if self.changed.wait_until(&mut told, deadline).timed_out() => break,
                Some(_) => {}
                None => self.changed.wait(&mut told),
            }
        }
        told.why
    }

    /// The command is over: nobody is told any more.
    pub fn forget(&self) {
        let mut told = self.told.lock();
        told.is_over = true;
        let listeners = std::mem::take(&mut told.listeners);
        drop(told);
        drop(listeners);
    }
}

fn call(listener: &mut Listener) {
    if catch_unwind(AssertUnwindSafe(listener)).is_err() {
        log::error!("a listener of a cancelled command panicked");
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    #[test]
    fn a_listener_hears_each_stronger_reason_once_and_a_late_one_hears_it_too() {
        let (cancel, heard) = (Cancel::default(), Arc::new(AtomicUsize::new(0)));
        let listener = || {
            let heard = Arc::clone(&heard);
            Box::new(move || {
                heard.fetch_add(1, Ordering::SeqCst);
            })
        };
        cancel.on_change(listener());
        cancel.tell(Why::Cancelled);
        cancel.tell(Why::Cancelled);
        cancel.tell(Why::Deadline);
        assert_eq!((cancel.why(), heard.load(Ordering::SeqCst)), (Some(Why::Cancelled), 1));
        cancel.on_change(listener());
        assert_eq!(heard.load(Ordering::SeqCst), 2);
        cancel.tell(Why::Stopped);
        assert_eq!((cancel.wait_until(None), heard.load(Ordering::SeqCst)), (Some(Why::Stopped), 4));
    }

    #[test]
    fn a_listener_may_ask_why_and_may_panic() {
        let cancel = Arc::new(Cancel::default());
        let (asks, seen) = (Arc::clone(&cancel), Arc::new(Mutex::new(None)));
        let saw = Arc::clone(&seen);
        cancel.on_change(Box::new(|| panic!("on purpose")));
        cancel.on_change(Box::new(move || *saw.lock() = asks.why()));
        cancel.tell(Why::Cancelled);
        assert_eq!(*seen.lock(), Some(Why::Cancelled));
        cancel.forget();
    }
}
