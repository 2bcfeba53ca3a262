//! The worker threads: one for each connection, a few parked ones for the next.
//!
//! Every thread is joined: those that have ended when the next connection comes, the others at the end. A connection that
//! has a session goes on in a fresh thread: its hello and its registration need more stack than all that follows.

use std::collections::HashMap;
use std::io;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::thread::JoinHandle;

use crossbeam_channel::{Receiver, Sender, bounded};
use parking_lot::Mutex;

use crate::connection::hub::Hub;
use crate::connection::slots::Slot;
use crate::connection::worker::{self, Entered};
use crate::threads;

/// Threads that wait for the next connection, so that a short command costs none.
const PARKED_MAX: usize = 4;

/// An accepted connection with its slot.
pub(super) struct Job {
    pub(super) socket: Arc<UnixStream>,
    pub(super) slot: Slot,
    pub(super) uid: u32,
}

/// Threads that run, and those that have ended and were not joined yet.
#[derive(Default)]
struct Threads {
    running: HashMap<u64, JoinHandle<()>>,
    next: u64,
}

#[derive(Default)]
struct Shared {
    parked: AtomicUsize,
    threads: Mutex<Threads>,
    ended: Mutex<Vec<u64>>,
}

impl Shared {
    /// A thread that is joined later. The lock is held until its handle is there: it may have ended by then.
    fn spawn(self: &Arc<Self>, name: &str, body: impl FnOnce() + Send + 'static) -> io::Result<()> {
        let mut threads = self.threads.lock();
        let (shared, number) = (Arc::clone(self), threads.next);
        let thread = threads::spawn(name, move || {
            body();
            shared.ended.lock().push(number);
        })?;
        threads.next += 1;
        threads.running.insert(number, thread);
        Ok(())
    }

    fn join_ended(&self) {
        for number in std::mem::take(&mut *self.ended.lock()) {
            let thread = self.threads.lock().running.remove(&number);
            if let Some(thread) = thread {
                let _panicked = thread.join();
            }
        }
    }

    /// Some may still make others.
    fn join_all(&self) {
        loop {
            let running = std::mem::take(&mut self.threads.lock().running);
            if running.is_empty() {
                return;
            }
            for thread in running.into_values() {
                let _panicked = thread.join();
            }
        }
    }
}

pub(super) struct Workers {
    hub: Arc<Hub>,
    shared: Arc<Shared>,
    /// Without room: a job is taken by a parked thread or not at all.
    jobs: (Sender<Job>, Receiver<Job>),
}

impl Workers {
    pub(super) fn new(hub: Arc<Hub>) -> Self {
        Self { hub, shared: Arc::default(), jobs: bounded(0) }
    }

    /// Hands a connection to a thread; without one the connection is dropped, which closes it.
    pub(super) fn serve(&mut self, job: Job) -> io::Result<()> {
        self.shared.join_ended();
        let job = match self.jobs.0.try_send(job) {
            Ok(()) => return Ok(()),
            Err(refused) => refused.into_inner(),
        };
        let (hub, shared, jobs) = (Arc::clone(&self.hub), Arc::clone(&self.shared), self.jobs.1.clone());
        self.shared.spawn("worker", move || run(&hub, &shared, &jobs, job))
    }

    /// Joins all of them; every connection has been cut by now.
    pub(super) fn join(self) {
        drop(self.jobs);
        self.shared.join_all();
    }
}

fn run(hub: &Arc<Hub>, shared: &Arc<Shared>, jobs: &Receiver<Job>, first: Job) {
    let mut job = first;
    loop {
        let Job { socket, slot, uid } = job;
        let entered = worker::enter(hub, &socket, slot, uid);
        // What was not let in is closed by this.
        drop(socket);
        if let Some(stays) = entered.and_then(Entered::serve) {
            go_on(shared, stays);
        }
        let parked = shared.parked.fetch_add(1, SeqCst);
        let next = if parked < PARKED_MAX { jobs.recv().ok() } else { None };
        shared.parked.fetch_sub(1, SeqCst);
        match next {
            Some(next) => job = next,
            None => return,
        }
    }
}

/// In a thread of its own; where none can be had, here after all.
fn go_on(shared: &Arc<Shared>, stays: Box<Entered>) {
    let handed = Arc::new(Mutex::new(Some(stays)));
    let taken = Arc::clone(&handed);
    let body = move || {
        let taken = taken.lock().take();
        taken.into_iter().for_each(Entered::stay);
    };
    if shared.spawn("session", body).is_err() {
        let kept = handed.lock().take();
        kept.into_iter().for_each(Entered::stay);
    }
}
