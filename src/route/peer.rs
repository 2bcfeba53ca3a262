//! An authenticated connection, as every other thread sees it.
//!
//! Owns what may be written to it and which of its requests are still open. A request is answered once: whoever takes it
//! out of `open` answers.

use std::collections::HashMap;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use parking_lot::Mutex;
use serde::Serialize;
use serde_json::value::RawValue;

use crate::auth::credential::Cut;
use crate::auth::gate::Authority;
use crate::auth::identity::Identity;
use crate::ids::ConnectionId;
use crate::limits::OPEN_REQUESTS_MAX;
use crate::wire::codes::{Code, Refusal};
use crate::wire::message::{self, Plaintext};
use crate::wire::methods;
use crate::wire::transcript::{Hash, Statement, sha256};

use super::flusher::Flusher;
use super::lane::Lane;
use super::outbound::{self, Accepted, Flushed, Origin, Outbound, Sent, Unsent};

/// Where an open request waits.
#[derive(Clone)]
pub enum Place {
    /// In a session's lane.
    Lane(Arc<Lane>),
    /// At the registry, for a session to appear.
    Registry,
}

/// One connection.
pub struct Peer {
    id: ConnectionId,
    authority: Arc<Authority>,
    outbound: Outbound,
    open: Mutex<HashMap<u64, Place>>,
    t3: Hash,
    daemon: Arc<Identity>,
    flusher: Arc<Flusher>,
}

#[derive(Serialize)]
struct Closing<'a> {
    reason: &'a str,
}

impl Peer {
    /// From a finished handshake.
    pub fn new(
        id: ConnectionId,
        authority: Authority,
        outbound: Outbound,
        t3: Hash,
        daemon: Arc<Identity>,
        flusher: Arc<Flusher>,
    ) -> Arc<Self> {
        let authority = Arc::new(authority);
        Arc::new(Self { id, authority, outbound, open: Mutex::new(HashMap::new()), t3, daemon, flusher })
    }

    /// Its id.
    pub fn id(&self) -> ConnectionId {
        self.id
    }

    /// T3 of its handshake, which what it signs is bound to.
    pub fn t3(&self) -> &Hash {
        &self.t3
    }

    /// What it may do.
    pub fn authority(&self) -> &Arc<Authority> {
        &self.authority
    }

    /// Sends a message. An error means that it never will be.
    pub fn send(self: &Arc<Self>, plaintext: Plaintext) -> Result<Sent, Unsent> {
        self.transmit(plaintext, None, outbound::Place::Next)
    }

    /// The same for somebody else, whose permit is held.
    pub fn send_for(self: &Arc<Self>, origin: Origin, plaintext: Plaintext) -> Result<Sent, Unsent> {
        self.transmit(plaintext, Some(origin), outbound::Place::Next)
    }

    fn transmit(
        self: &Arc<Self>,
        plaintext: Plaintext,
        origin: Option<Origin>,
        place: outbound::Place,
    ) -> Result<Sent, Unsent> {
        let make_room = || self.flusher.cut_largest(self);
        match self.outbound.send(&self.authority, plaintext, origin, place, make_room)? {
            Accepted::Sent => Ok(Sent::Kernel),
            Accepted::Kept { sent, begins } => {
                if begins {
                    self.flusher.take(Arc::clone(self));
                }
                Ok(Sent::Kept(sent))
            }
        }
    }

    /// Takes a message back. True: its last byte has not reached the kernel and never will.
    pub fn withdraw(&self, sent: &Sent) -> bool {
        self.outbound.withdraw(sent)
    }

    /// Answers a request; signs a receipt where one was asked for.
    pub fn answer(
        self: &Arc<Self>,
        id: u64,
        result: &impl Serialize,
        payload: Option<&[u8]>,
        receipt: Option<Hash>,
    ) -> Result<Sent, Unsent> {
        self.send(self.answering(id, result, payload, receipt))
    }

    /// The text of an answer.
    pub fn answering(
        &self,
        id: u64,
        result: &impl Serialize,
        payload: Option<&[u8]>,
        receipt: Option<Hash>,
    ) -> Plaintext {
        let result = message::result(result);
        let receipt = receipt.map(|request| self.receipt(request, &result, payload));
        message::answer(id, &result, receipt.as_deref(), payload)
    }

    #[inline(never)]
    fn receipt(&self, request: Hash, result: &RawValue, payload: Option<&[u8]>) -> String {
        let result = match payload {
            Some(payload) => sha256(&[result.get().as_bytes(), b"\n", payload]),
            None => sha256(&[result.get().as_bytes()]),
        };
        self.daemon.sign(&Statement::Receipt { t3: self.t3, request, result }).to_string()
    }

    /// Refuses a request: it was not taken.
    pub fn refuse(self: &Arc<Self>, id: u64, refusal: &Refusal) -> Result<Sent, Unsent> {
        self.authority.credential().shares.rejected.fetch_add(1, Relaxed);
        self.fail(id, refusal)
    }

    /// Tells that a request was taken and failed.
    pub fn fail(self: &Arc<Self>, id: u64, refusal: &Refusal) -> Result<Sent, Unsent> {
        self.send(message::failure(id, &refusal.object()))
    }

    /// Notes where a request waits; refused at the bound.
    pub fn open(&self, id: u64, place: Place) -> Result<(), Refusal> {
        let mut open = self.open.lock();
        if open.len() >= OPEN_REQUESTS_MAX {
            return Err(Refusal::busy("open-requests"));
        }
        open.insert(id, place);
        Ok(())
    }

    /// Takes a request out; `false` when somebody else has answered it.
    pub fn settle(&self, id: u64) -> bool {
        self.open.lock().remove(&id).is_some()
    }

    /// Where a request waits.
    pub fn place(&self, id: u64) -> Option<Place> {
        self.open.lock().get(&id).cloned()
    }

    /// Every open request, at the connection's end.
    pub fn places(&self) -> Vec<(u64, Place)> {
        self.open.lock().iter().map(|(&id, place)| (id, place.clone())).collect()
    }

    /// Says why, then ends.
    pub fn close(self: &Arc<Self>, reason: &str) {
        self.say_closing(reason);
        self.cut_now();
    }

    /// Says why, as the last message; the connection ends when it is cut.
    pub fn say_closing(self: &Arc<Self>, reason: &str) {
        let text = message::notification(methods::CLOSING, &Closing { reason });
        let _gone = self.transmit(text, None, outbound::Place::Last);
    }

    /// Ends without a word.
    pub fn cut_now(&self) {
        self.outbound.cut();
    }

    /// The same, unless another thread is writing to it.
    pub fn try_cut(&self) -> bool {
        self.outbound.try_cut()
    }

    /// Whether it was cut.
    pub fn has_ended(&self) -> bool {
        self.outbound.has_ended()
    }

    /// Bytes it has not read.
    pub fn kept(&self) -> u64 {
        self.outbound.kept()
    }

    /// Messages it has not read.
    pub fn undelivered(&self) -> usize {
        self.outbound.undelivered()
    }

    /// Sends what is kept, as far as that goes.
    pub fn flush(&self) -> Flushed {
        self.outbound.flush(&self.authority)
    }
}

impl Cut for Peer {
    fn cut(&self, _code: Code) {
        self.cut_now();
    }
}

impl AsFd for Peer {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.outbound.as_fd()
    }
}
