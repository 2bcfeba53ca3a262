//! What a session holds: commands that wait, commands that run, keys that are known. Pure, but for the threads' handles.
//!
//! Owns: the accounts. Invariant: what is taken in is given back once, when a command is done or never will be.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::thread::{self, JoinHandle, ThreadId};

use super::answer::Address;
use crate::client::producer::cancel::Cancel;
use crate::client::producer::command::{Command, Doer};
use crate::client::producer::ledger::{Ledger, Ticket};

#[derive(Default)]
pub(super) struct Table {
    pub waiting: VecDeque<Job>,
    pub running: BTreeMap<u64, Running>,
    /// Of what waits and runs.
    pub bytes: usize,
    pub ledger: Ledger<Address>,
    pub threads: BTreeMap<u64, JoinHandle<()>>,
    /// Threads that have nothing to do.
    pub idle: usize,
    /// Threads that have left, to be joined by the next that comes.
    pub left: Vec<JoinHandle<()>>,
    pub last: u64,
    pub is_stopped: bool,
}

/// A command, and what does it.
pub(super) struct Job {
    pub address: Address,
    pub command: Command,
    pub doer: Doer,
    pub ticket: Option<Ticket>,
}

/// A command that a thread is at.
pub(super) struct Running {
    /// None: nobody waits for it any more.
    pub address: Option<Address>,
    pub cancel: Arc<Cancel>,
    pub ticket: Option<Ticket>,
    pub bytes: usize,
    pub thread: ThreadId,
}

impl Table {
    pub fn held(&self) -> usize {
        self.waiting.len() + self.running.len() + self.ledger.waiters()
    }

    /// To be done by the calling thread.
    pub fn begin(&mut self, job: Job) -> (u64, Job) {
        self.last += 1;
        let bytes = input_bytes(&job.command);
        self.bytes += bytes;
        let (address, cancel) = (Some(job.address.clone()), Arc::clone(&job.command.cancel));
        let thread = thread::current().id();
        self.running.insert(self.last, Running { address, cancel, ticket: job.ticket, bytes, thread });
        (self.last, job)
    }

    /// Who sent what waits at this place does not wait for it any more; where others do, it stays for them.
    pub fn leave(&mut self, place: usize) -> Option<Address> {
        let job = self.waiting.get_mut(place)?;
        if let Some(other) = job.ticket.and_then(|ticket| self.ledger.withdraw(ticket)) {
            return Some(std::mem::replace(&mut job.address, other));
        }
        let job = self.waiting.remove(place)?;
        self.bytes -= input_bytes(&job.command);
        Some(job.address)
    }
}

pub(super) fn input_bytes(command: &Command) -> usize {
    command.input.as_ref().map_or(0, Vec::len)
}
