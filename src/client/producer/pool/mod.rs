//! The commands of a session: which wait, which run, who is to hear what came of them.
//!
//! Owns: the threads of handlers, and the budgets. Invariants: never more than `max_in_flight` run at once and never more
//! than [`HELD_MAX`] are held, also when their connection was lost: what runs keeps its place until it is done. An answer
//! goes to the connection that its command came by, or nowhere; after [`Pool::stop`] nowhere. A repeat of a keyed command
//! is never done twice. Threads: a handler waits for its connection's lock to answer; nobody waits for a handler but
//! [`Pool::join`]. No handler, listener or connection is called while the table is locked.

mod answer;
mod table;

use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};

use crate::limits::{HELD_MAX, HELD_MAX_BYTES};
use crate::threads;

use super::cancel::Why;
use super::command::{Command, Doer};
use super::ledger::{self, Outcome, Seen, Ticket};

pub(super) use answer::{Address, refuse};

use answer::{answer, outcome};
use table::{Job, Table, input_bytes};

/// A thread with nothing to do for so long leaves.
const IDLE: Duration = Duration::from_secs(1);

/// The table, shared by the link, the producer and the handlers.
#[derive(Clone)]
pub(super) struct Pool(Arc<Shared>);

struct Shared {
    max: usize,
    table: Mutex<Table>,
    /// A command waits.
    work: Condvar,
    /// Nothing runs any more.
    settled: Condvar,
}

impl Pool {
    /// For at most so many at once.
    pub fn new(max: u32) -> Self {
        let max = usize::try_from(max).unwrap_or(1);
        let table = Mutex::default();
        Self(Arc::new(Shared { max, table, work: Condvar::new(), settled: Condvar::new() }))
    }

    /// Takes a command: does it, lets it wait, or refuses it.
    pub fn take(&self, address: Address, command: Command, doer: &Doer) {
        let mut table = self.0.table.lock();
        if table.is_stopped {
            return;
        }
        let ticket = match self.see(&mut table, &address, &command) {
            Ok(ticket) => ticket,
            Err(outcome) => {
                drop(table);
                return outcome.map_or((), |outcome| answer(&address, &outcome));
            }
        };
        let bytes = input_bytes(&command);
        if table.held() >= HELD_MAX || table.bytes + bytes > HELD_MAX_BYTES {
            ticket.map(|ticket| table.ledger.withdraw(ticket));
            drop(table);
            return refuse(&address, "queue-full", "queue-full: the session has as many commands as it holds");
        }
        let job = Job { address, command, doer: doer.clone(), ticket };
        if doer.is_quick {
            let (key, job) = table.begin(job);
            drop(table);
            self.work(key, &job);
            return;
        }
        table.bytes += bytes;
        table.waiting.push_back(job);
        let refused = self.call_a_thread(&mut table);
        drop(table);
        if let Some(address) = refused {
            refuse(&address, "busy", "no handler can be started now");
        }
    }

    /// Looks a keyed command up. Err: it is not to be done, and this is to be answered now, or nothing.
    fn see(
        &self,
        table: &mut Table,
        address: &Address,
        command: &Command,
    ) -> Result<Option<Ticket>, Option<Arc<Outcome>>> {
        let Some(key) = &command.key else { return Ok(None) };
        let failed = |word, text: &str| Err(Some(Arc::new(Outcome::Failed(word, text.to_owned()))));
        if table.held() >= HELD_MAX && table.ledger.is_running(&command.asker.credential, key) {
            return failed("queue-full", "queue-full: the session has as many commands as it holds");
        }
        let digest = ledger::digest(&command.name, command.input.as_deref());
        match table.ledger.see(Instant::now(), &command.asker.credential, key, digest, address.clone()) {
            Seen::New(ticket) => Ok(Some(ticket)),
            Seen::Joined => Err(None),
            Seen::Known(outcome) => Err(Some(outcome)),
            Seen::NotKept => {
                failed("result-not-kept", "result-not-kept: the command was done; its result was too large to be kept")
            }
            Seen::Conflict => failed("key-conflict", "key-conflict: the key belongs to another command or input"),
            Seen::Full => failed("queue-full", "queue-full: the session remembers as many keys as it can"),
        }
    }

    /// Wakes a thread for what was put last, or starts one. The address of what nobody will do comes back.
    fn call_a_thread(&self, table: &mut Table) -> Option<Address> {
        if table.idle >= table.waiting.len() {
            self.0.work.notify_one();
            return None;
        }
        if table.threads.len() >= self.0.max {
            return None;
        }
        let left = std::mem::take(&mut table.left);
        left.into_iter().for_each(|thread| drop(thread.join()));
        table.last += 1;
        let number = table.last;
        let pool = self.clone();
        match threads::spawn("usher-handler", move || pool.serve(number)) {
            Ok(thread) => drop(table.threads.insert(number, thread)),
            // Those that are there will come to it.
            Err(_) if !table.threads.is_empty() => {}
            Err(_) => {
                let job = table.waiting.pop_back()?;
                table.bytes -= input_bytes(&job.command);
                job.ticket.map(|ticket| table.ledger.withdraw(ticket));
                return Some(job.address);
            }
        }
        None
    }

    /// A handler's thread.
    fn serve(&self, number: u64) {
        while let Some((key, job)) = self.next(number) {
            self.work(key, &job);
        }
    }

    fn next(&self, number: u64) -> Option<(u64, Job)> {
        let mut table = self.0.table.lock();
        loop {
            if let Some(job) = table.waiting.pop_front() {
                table.bytes -= input_bytes(&job.command);
                return Some(table.begin(job));
            }
            table.idle += 1;
            let is_tired = !table.is_stopped && self.0.work.wait_for(&mut table, IDLE).timed_out();
            table.idle -= 1;
            if table.is_stopped || (is_tired && table.waiting.is_empty()) {
                let own = table.threads.remove(&number);
                table.left.extend(own);
                return None;
            }
        }
    }

    /// Does one command and tells who waits for it.
    fn work(&self, key: u64, job: &Job) {
        let outcome = Arc::new(outcome(job));
        job.command.cancel.forget();
        let (own, others) = {
            let mut table = self.0.table.lock();
            // The place is free before the answer is out: the daemon sends the next command at once.
            let running = table.running.remove(&key);
            table.bytes -= running.as_ref().map_or(0, |running| running.bytes);
            let others = job.ticket.map(|ticket| table.ledger.settle(ticket, &outcome)).unwrap_or_default();
            if table.running.is_empty() {
                self.0.settled.notify_all();
            }
            if table.is_stopped { (None, Vec::new()) } else { (running.and_then(|running| running.address), others) }
        };
        for address in own.iter().chain(&others) {
            answer(address, &outcome);
        }
    }

    /// The caller of a command does not wait any more.
    pub fn cancel(&self, connection: u64, id: u64) {
        let is_it = |address: &Address| (address.connection, address.id) == (connection, id);
        let mut table = self.0.table.lock();
        let mut gone = table.ledger.take_waiters(is_it);
        if let Some(place) = table.waiting.iter().position(|job| is_it(&job.address)) {
            gone.extend(table.leave(place));
        }
        let mut to_cancel = None;
        let Table { running, ledger, .. } = &mut *table;
        let found = running.values_mut().find(|running| running.address.as_ref().is_some_and(is_it));
        if let Some(running) = found {
            // Others wait for the same: it goes on for them.
            if running.ticket.is_some_and(|ticket| ledger.has_waiters(ticket)) {
                gone.extend(running.address.take());
            } else {
                to_cancel = Some(Arc::clone(&running.cancel));
            }
        }
        drop(table);
        if let Some(cancel) = to_cancel {
            cancel.tell(Why::Cancelled);
        }
        gone.iter().for_each(|address| refuse(address, "cancelled", "cancelled"));
    }

    /// A connection was lost: what of it has not begun never will, and nobody hears what comes of the rest, which may
    /// have done half its work and goes on.
    pub fn lose(&self, connection: u64) {
        let mut table = self.0.table.lock();
        table.ledger.take_waiters(|address| address.connection == connection);
        while let Some(place) = table.waiting.iter().position(|job| job.address.connection == connection) {
            log::info!("command {:?} was dropped with its connection", table.waiting[place].command.name);
            table.leave(place);
        }
        for running in table.running.values_mut() {
            running.address.take_if(|address| address.connection == connection);
        }
    }

    /// Commands whose outcome is not known yet.
    pub fn running(&self) -> usize {
        self.0.table.lock().running.len()
    }

    /// From now on nothing begins and nothing is answered; what runs is told so.
    pub fn stop(&self) {
        let mut table = self.0.table.lock();
        table.is_stopped = true;
        table.waiting.clear();
        self.0.work.notify_all();
        let running: Vec<_> = table.running.values().map(|running| Arc::clone(&running.cancel)).collect();
        drop(table);
        running.iter().for_each(|cancel| cancel.tell(Why::Stopped));
    }

    /// Whether the calling thread does a command.
    pub fn is_own(&self) -> bool {
        let own = thread::current().id();
        self.0.table.lock().running.values().any(|running| running.thread == own)
    }

    /// After [`Pool::stop`]: waits until nothing runs, at most until the deadline, and joins the threads that can be.
    pub fn join(&self, deadline: Option<Instant>) {
        let threads = {
            let mut table = self.0.table.lock();
            let mut threads = std::mem::take(&mut table.left);
            threads.extend(std::mem::take(&mut table.threads).into_values());
            while !threads.is_empty() && !table.running.is_empty() {
                match deadline {
                    Some(deadline) if self.0.settled.wait_until(&mut table, deadline).timed_out() => break,
                    Some(_) => {}
                    None => self.0.settled.wait(&mut table),
                }
            }
            threads
        };
        for thread in threads.into_iter().filter(|thread| deadline.is_none() || thread.is_finished()) {
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests;
