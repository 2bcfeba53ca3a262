//! The worker threads: one for each connection, a few parked ones for the next.
//!
//! Every thread is joined: those that have ended when the next connection comes, the others at the end.

use std::collections::HashMap;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::thread::JoinHandle;

use crossbeam_channel::{Receiver, Sender, bounded};
use parking_lot::Mutex;

use crate::connection::hub::Hub;
use crate::connection::slots::Slot;
use crate::connection::worker;
use crate::threads;

/// Threads that wait for the next connection, so that a short command costs none.
const PARKED_MAX: usize = 4;

/// An accepted connection with its slot.
pub(super) struct Job {
    pub(super) socket: Arc<UnixStream>,
    pub(super) slot: Slot,
    pub(super) uid: u32,
}

struct Shared {
    parked: AtomicUsize,
    ended: Mutex<Vec<u64>>,
}

pub(super) struct Workers {
    hub: Arc<Hub>,
    shared: Arc<Shared>,
    /// Without room: a job is taken by a parked thread or not at all.
    jobs: (Sender<Job>, Receiver<Job>),
    threads: HashMap<u64, JoinHandle<()>>,
    next: u64,
}

impl Workers {
    pub(super) fn new(hub: Arc<Hub>) -> Self {
        let shared = Arc::new(Shared { parked: AtomicUsize::new(0), ended: Mutex::default() });
        Self { hub, shared, jobs: bounded(0), threads: HashMap::new(), next: 0 }
    }

    /// Hands a connection to a thread; without one the connection is dropped, which closes it.
    pub(super) fn serve(&mut self, job: Job) -> std::io::Result<()> {
        self.join_ended();
        let job = match self.jobs.0.try_send(job) {
            Ok(()) => return Ok(()),
            Err(refused) => refused.into_inner(),
        };
        let (hub, shared, jobs) = (Arc::clone(&self.hub), Arc::clone(&self.shared), self.jobs.1.clone());
        let number = self.next;
        let thread = threads::spawn("worker", move || {
            run(&hub, &shared, &jobs, job);
            shared.ended.lock().push(number);
        })?;
        self.next += 1;
        self.threads.insert(number, thread);
        Ok(())
    }

    fn join_ended(&mut self) {
        for number in std::mem::take(&mut *self.shared.ended.lock()) {
            if let Some(thread) = self.threads.remove(&number) {
                let _panicked = thread.join();
            }
        }
    }

    /// Joins all of them; every connection has been cut by now.
    pub(super) fn join(self) {
        drop(self.jobs);
        for thread in self.threads.into_values() {
            let _panicked = thread.join();
        }
    }
}

fn run(hub: &Arc<Hub>, shared: &Shared, jobs: &Receiver<Job>, first: Job) {
    let mut job = first;
    loop {
        worker::serve(hub, job.socket, job.slot, job.uid);
        let parked = shared.parked.fetch_add(1, SeqCst);
        let next = if parked < PARKED_MAX { jobs.recv().ok() } else { None };
        shared.parked.fetch_sub(1, SeqCst);
        match next {
            Some(next) => job = next,
            None => return,
        }
    }
}
