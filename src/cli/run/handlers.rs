//! All handlers of a run: how many at once, who waits, who is to stop.
//!
//! Owns: their threads. Invariants: never more than `max_in_flight` at once, also when a connection was lost and its
//! commands still run; beyond as many again that wait, a command is refused. A handler's answer goes to the connection
//! that its command came by, or nowhere. Threads: a handler waits for its connection's lock to answer; nobody waits for
//! a handler, but [`Handlers::end`] for a bounded time. Nothing is sent, and no connection's lock taken, while
//! the table is locked.

use std::collections::{BTreeMap, VecDeque};
use std::io::{self, Write};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Instant;

use parking_lot::{Condvar, Mutex};

use crate::client::{SendError, Sender};
use crate::threads;
use crate::wire::codes::Code;

use super::handler::{self, Failed, Order, Orders, Task};

/// A command, and where its answer goes.
pub struct Job {
    /// Which connection of this run, counted: ids begin anew with each.
    pub connection: u64,
    /// The daemon's id.
    pub id: u64,
    /// What to do.
    pub task: Task,
    /// Where the answer goes.
    pub to: Sender,
}

/// The table, shared by the link, main and the handlers themselves.
#[derive(Clone)]
pub struct Handlers(Arc<Shared>);

struct Shared {
    max: usize,
    table: Mutex<Table>,
    /// Signalled when nothing runs any more.
    idle: Condvar,
}

#[derive(Default)]
struct Table {
    running: BTreeMap<u64, Running>,
    waiting: VecDeque<Box<Job>>,
    /// Threads that have done their work, to be joined by the next that comes.
    done: Vec<JoinHandle<()>>,
    last: u64,
    closed: bool,
}

struct Running {
    connection: u64,
    id: u64,
    orders: Arc<Orders>,
    bell: UnixStream,
    thread: Option<JoinHandle<()>>,
}

impl Handlers {
    /// At most `max` at once.
    pub fn new(max: u32) -> Self {
        let max = usize::try_from(max).unwrap_or(1);
        Self(Arc::new(Shared { max, table: Mutex::default(), idle: Condvar::new() }))
    }

    /// How many run.
    pub fn running(&self) -> usize {
        self.0.table.lock().running.len()
    }

    /// Starts a command, or lets it wait, or refuses it.
    pub fn start(&self, job: Job) {
        let job = Box::new(job);
        let mut table = self.0.table.lock();
        let refused = if table.closed {
            Some((job, Code::Cancelled, "the program ended"))
        } else if table.running.len() < self.0.max {
            table.join_finished();
            let refused = self.spawn(&mut table, job).err();
            refused.map(|job| (job, Code::Busy, "no handler can be started now"))
        } else if table.waiting.len() < self.0.max {
            table.waiting.push_back(job);
            None
        } else {
            Some((job, Code::Busy, "as many commands as were offered are running"))
        };
        drop(table);
        if let Some((job, code, message)) = refused {
            let _ = job.to.fail(job.id, code, message);
        }
    }

    /// The caller of a command does not wait any more.
    pub fn cancel(&self, connection: u64, id: u64) {
        let mut table = self.0.table.lock();
        for running in table.running.values().filter(|running| (running.connection, running.id) == (connection, id)) {
            running.order(Order::Cancel);
        }
        let place = table.waiting.iter().position(|job| (job.connection, job.id) == (connection, id));
        let waiting = place.and_then(|place| table.waiting.remove(place));
        drop(table);
        if let Some(job) = waiting {
            let _ = job.to.fail(job.id, Code::Cancelled, "cancelled");
        }
    }

    /// A connection was lost: what of it has not begun never will; what runs may have done half its work and goes on.
    pub fn forget_waiting(&self, connection: u64) {
        self.0.table.lock().waiting.retain(|job| job.connection != connection);
    }

    /// A child of this process may have ended.
    pub fn wake(&self) {
        self.0.table.lock().running.values().for_each(Running::ring);
    }

    /// The run is over: everything is killed, and waited for until the deadline.
    pub fn end(&self, deadline: Instant) {
        let mut table = self.0.table.lock();
        table.closed = true;
        table.waiting.clear();
        table.running.values().for_each(|running| running.order(Order::Quit));
        while !table.running.is_empty() && !self.0.idle.wait_until(&mut table, deadline).timed_out() {}
        table.join_finished();
    }

    /// With the table locked, so that the handler finds itself in it. What cannot be started comes back.
    fn spawn(&self, table: &mut Table, job: Box<Job>) -> Result<(), Box<Job>> {
        let Ok((bell, ear)) = bell() else { return Err(job) };
        let orders = Arc::new(Orders::default());
        table.last += 1;
        let key = table.last;
        let running =
            Running { connection: job.connection, id: job.id, orders: Arc::clone(&orders), bell, thread: None };
        // Through a cell, since a thread that cannot be made drops what it was to do.
        let cell = Arc::new(Mutex::new(Some(job)));
        let (handlers, taken) = (self.clone(), Arc::clone(&cell));
        let body = move || {
            let job = taken.lock().take();
            if let Some(job) = job {
                handlers.work(key, *job, &ear, &orders);
            }
        };
        match threads::spawn("handler", body) {
            Ok(thread) => {
                table.running.insert(key, Running { thread: Some(thread), ..running });
                Ok(())
            }
            Err(_) => cell.lock().take().map_or(Ok(()), Err),
        }
    }

    /// A handler's thread: its command, its answer, its leave.
    fn work(&self, key: u64, job: Job, ear: &UnixStream, orders: &Orders) {
        let Job { id, task, to, .. } = job;
        let outcome = handler::run(task, ear, orders);
        {
            // The place is free before the answer is out: the daemon sends the next command at once.
            let mut table = self.0.table.lock();
            let thread = table.running.remove(&key).and_then(|running| running.thread);
            table.done.extend(thread);
            if let Some(job) = table.waiting.pop_front() {
                if let Err(job) = self.spawn(&mut table, job) {
                    drop(table);
                    let _ = job.to.fail(job.id, Code::Busy, "no handler can be started now");
                }
            } else if table.running.is_empty() {
                self.0.idle.notify_all();
            }
        }
        // At the end of the run the session goes, and its callers hear that; an answer would only race with it.
        if orders.get() != Order::Quit {
            answer(&to, id, outcome);
        }
    }
}

/// A connection that is gone takes no answer: its caller has heard so.
fn answer(to: &Sender, id: u64, outcome: Result<Vec<u8>, Failed>) {
    let sent = match outcome {
        Ok(result) => to.answer(id, &serde_json::json!({}), Some(&result)),
        Err(failed) => to.fail(id, failed.code, &failed.message),
    };
    if sent == Err(SendError::TooLarge) {
        let _ = to.fail(id, Code::InvalidResult, "the result is too large for a message");
    }
}

impl Table {
    /// Those that still send their answer are left: nobody waits for them.
    fn join_finished(&mut self) {
        let (finished, rest) = std::mem::take(&mut self.done).into_iter().partition(JoinHandle::is_finished);
        self.done = rest;
        let finished: Vec<JoinHandle<()>> = finished;
        finished.into_iter().for_each(|thread| drop(thread.join()));
    }
}

impl Running {
    fn order(&self, order: Order) {
        self.orders.give(order);
        self.ring();
    }

    /// A bell that is full rings already.
    fn ring(&self) {
        let _ = (&self.bell).write(&[0]);
    }
}

/// Both ends never wait.
fn bell() -> io::Result<(UnixStream, UnixStream)> {
    let (bell, ear) = UnixStream::pair()?;
    bell.set_nonblocking(true)?;
    ear.set_nonblocking(true)?;
    Ok((bell, ear))
}
