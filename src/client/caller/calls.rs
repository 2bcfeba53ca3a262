//! Calls that are under way: who waits for which id.
//!
//! Owns: the table from ids to those that wait, and the thread that reads answers into it. Invariant: each call ends
//! once, by its answer, the end of the connection, or whoever asked; what nobody waits for any more is dropped.
//! Threads: the reader waits for the daemon and for nobody else; who asked waits for the reader.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

use crossbeam_channel::{Receiver as Channel, RecvTimeoutError, Sender as ChannelSender, TryRecvError, bounded};
use parking_lot::Mutex;
use serde_json::json;

use crate::client::connection::{Incoming, Receiver, Sender};
use crate::wire::methods::CANCEL;

use super::error::CallError;
use super::{Answer, News, Reply};

type Outcome = Result<Answer, CallError>;

/// The table. Taken with no other lock held but a connection's own.
#[derive(Default)]
pub(super) struct Calls(Mutex<Table>);

#[derive(Default)]
struct Table {
    open: BTreeMap<u64, ChannelSender<Outcome>>,
    is_over: bool,
}

impl Calls {
    /// A place for the answer to this id.
    pub fn expect(&self, id: u64, tell: ChannelSender<Outcome>) {
        let mut table = self.0.lock();
        if !table.is_over {
            table.open.insert(id, tell);
        }
    }

    /// Whether somebody waited for it until now.
    pub fn forget(&self, id: u64) -> bool {
        self.0.lock().open.remove(&id).is_some()
    }

    fn settle(&self, id: u64, outcome: Outcome) {
        let waiting = self.0.lock().open.remove(&id);
        if let Some(tell) = waiting {
            let _nobody = tell.try_send(outcome);
        }
    }

    /// The reader's thread, for as long as the connection lives.
    pub fn read(&self, mut receiver: Receiver, sender: &Sender, mut hear: impl FnMut(News)) {
        loop {
            match receiver.next(None) {
                Ok(Incoming::Answer { id, result, payload, receipt }) => {
                    self.settle(id, Ok(Answer { reply: Reply { result, payload, receipt: None }, signature: receipt }));
                }
                Ok(Incoming::Failure { id, error }) => self.settle(id, Err(CallError::Refused(Box::new(error)))),
                Ok(Incoming::Notification { method, params, payload }) => hear(News { method, params, payload }),
                Ok(Incoming::Request { id, .. }) => {
                    let _ = sender.fail(id, "unknown-method", "a caller answers nothing");
                }
                Err(_) => break,
            }
        }
        // What is asked from now on was never sent.
        sender.cut();
        let mut table = self.0.lock();
        table.is_over = true;
        // Without an answer, each hears that there will be none.
        table.open.clear();
    }
}

/// A call whose answer is not here yet. Dropped, it is cancelled: the daemon hears that nobody waits any more.
pub struct Pending {
    id: u64,
    outcome: Channel<Outcome>,
    calls: Arc<Calls>,
    sender: Sender,
}

impl Pending {
    /// The place, and who may fill it.
    pub(super) fn new(calls: &Arc<Calls>, sender: &Sender) -> (Self, ChannelSender<Outcome>) {
        let (tell, outcome) = bounded(1);
        (Self { id: 0, outcome, calls: Arc::clone(calls), sender: sender.clone() }, tell)
    }

    pub(super) fn is_sent_as(&mut self, id: u64) {
        self.id = id;
    }

    /// The request's id on its connection, for [`Caller::cancel`](super::Caller::cancel).
    #[must_use]
    pub fn id(&self) -> u64 {
        self.id
    }

    /// Waits for the answer until the deadline. Afterwards the call is over in any case.
    pub fn wait(self, deadline: Instant) -> Result<Reply, CallError> {
        self.answer(deadline).map(|answer| answer.reply)
    }

    /// The outcome if it is here already.
    pub fn poll(&self) -> Option<Result<Reply, CallError>> {
        match self.outcome.try_recv() {
            Ok(outcome) => Some(outcome.map(|answer| answer.reply)),
            Err(TryRecvError::Disconnected) => Some(Err(CallError::Lost { sent: true })),
            Err(TryRecvError::Empty) => None,
        }
    }

    pub(super) fn answer(self, deadline: Instant) -> Result<Answer, CallError> {
        match self.outcome.recv_deadline(deadline) {
            Ok(outcome) => outcome,
            Err(RecvTimeoutError::Disconnected) => Err(CallError::Lost { sent: true }),
            Err(RecvTimeoutError::Timeout) => Err(CallError::Timeout),
        }
    }
}

impl Drop for Pending {
    fn drop(&mut self) {
        if self.calls.forget(self.id) {
            let _ = self.sender.notify(CANCEL, &json!({ "id": self.id }));
        }
    }
}
