//! A proved connection in two halves: a sender that threads share, a receiver that one of them owns.
//!
//! Owns: ids of both directions, the order of sealed frames, the last frame. It must not know methods. Invariant: a frame
//! goes out whole or ends the connection; what arrives is in order, opened, and a rule-breaking daemon is a lost one.
//! Threads: senders wait for each other at one lock and there for the kernel, at most [`WRITE`]; nobody waits for the
//! receiver.

use std::net::Shutdown;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::{Mutex, MutexGuard};
use serde::Serialize;
use serde_json::value::RawValue;

use crate::ids::{Generation, PublicKey};
use crate::limits::{FRAME_MAX_BYTES, FRAME_TAG_BYTES, HEADER_MAX_BYTES};
use crate::wire::codes::{Code, ErrorObject, Refusal};
use crate::wire::frame::{Opener, Sealer};
use crate::wire::message::{self, Header, Plaintext};
use crate::wire::methods::CLOSING;
use crate::wire::transcript::Hash;

use super::failure::SendError;
use super::inbound::{Inbound, Stop};
use super::outbound;
use super::welcome::{ClosingNote, Welcome};

/// The daemon takes a frame within this time, or does not run any more.
const WRITE: Duration = Duration::from_secs(10);

/// What it gets for the last frame.
const GOODBYE: Duration = Duration::from_secs(1);

/// What the handshake established.
#[derive(Debug, Clone)]
pub struct Proved {
    /// Its four lines, without their LF, for receipts.
    pub lines: [String; 4],
    /// The key that the daemon proved.
    pub daemon: PublicKey,
    /// Which start of it.
    pub generation: Generation,
    /// The hash of these lines, which is this connection's alone: what a signature names to be of no use on another.
    pub t3: Hash,
}

/// A connection that the daemon has welcomed.
pub struct Connection {
    sender: Sender,
    receiver: Receiver,
    welcome: Welcome,
    proved: Proved,
}

impl Connection {
    pub(super) fn new(sender: Sender, receiver: Receiver, welcome: Welcome, proved: Proved) -> Self {
        Self { sender, receiver, welcome, proved }
    }

    /// What the daemon said at its beginning.
    pub fn welcome(&self) -> &Welcome {
        &self.welcome
    }

    /// What the handshake established.
    pub fn proved(&self) -> &Proved {
        &self.proved
    }

    /// The two halves.
    pub fn split(self) -> (Sender, Receiver) {
        (self.sender, self.receiver)
    }

    pub(super) fn into_parts(self) -> (Sender, Receiver, Proved) {
        (self.sender, self.receiver, self.proved)
    }
}

struct Outgoing {
    stream: Arc<UnixStream>,
    sealer: Sealer,
    last_id: u64,
    closed: bool,
}

/// The writing half; clones share it.
#[derive(Clone)]
pub struct Sender {
    outgoing: Arc<Mutex<Outgoing>>,
    /// Beside the lock, so that whoever waits in it for the kernel can be ended.
    stream: Arc<UnixStream>,
}

impl Sender {
    pub(super) fn new(stream: UnixStream, sealer: Sealer) -> Self {
        let stream = Arc::new(stream);
        let outgoing = Outgoing { stream: Arc::clone(&stream), sealer, last_id: 0, closed: false };
        Self { outgoing: Arc::new(Mutex::new(outgoing)), stream }
    }

    /// Waits for the others that write, at most until the deadline.
    fn lock(&self, deadline: Instant) -> Result<MutexGuard<'_, Outgoing>, SendError> {
        self.outgoing.try_lock_until(deadline).ok_or(SendError::Lost)
    }

    fn send(&self, plaintext: Plaintext) -> Result<(), SendError> {
        let deadline = Instant::now() + WRITE;
        self.lock(deadline)?.send(plaintext, deadline)
    }

    /// Asks; the answer comes to the receiver under the id.
    pub fn request(&self, method: &str, params: &impl Serialize, payload: Option<&[u8]>) -> Result<u64, SendError> {
        self.request_seen(method, params, payload, Instant::now() + WRITE, |_, _| ())
    }

    /// As [`Sender::request`], out until the deadline. Before the first byte is, `see` gets the id and the plaintext: an
    /// answer may come before this returns. What cannot be sent is not seen, since its id is the next one's. `see` runs
    /// under the lock and must not take another that is held around calls of this half.
    pub(super) fn request_seen(
        &self,
        method: &str,
        params: &impl Serialize,
        payload: Option<&[u8]>,
        deadline: Instant,
        see: impl FnOnce(u64, &[u8]),
    ) -> Result<u64, SendError> {
        let mut outgoing = self.lock(deadline)?;
        let id = outgoing.last_id + 1;
        let plaintext = message::request(id, method, params, payload);
        outgoing.check(&plaintext)?;
        see(id, plaintext.text());
        outgoing.write(plaintext, deadline)?;
        outgoing.last_id = id;
        Ok(id)
    }

    /// Tells.
    pub fn notify(&self, method: &str, params: &impl Serialize) -> Result<(), SendError> {
        self.send(message::notification(method, params))
    }

    /// Answers a request of the daemon.
    pub fn answer(&self, id: u64, result: &impl Serialize, payload: Option<&[u8]>) -> Result<(), SendError> {
        self.send(message::answer(id, &message::result(result), None, payload))
    }

    /// Answers a request of the daemon with a failure; `word` is `data.code`, ours or one of the application's.
    pub fn fail(&self, id: u64, word: &str, message: &str) -> Result<(), SendError> {
        let mut error = Refusal::from(Code::CommandFailed).message(message).object();
        if let Some(data) = &mut error.data {
            word.clone_into(&mut data.code);
        }
        self.send(message::failure(id, &error))
    }

    /// Sends the last frame and shuts the stream; the receiver then ends. Further calls do nothing. A daemon that does
    /// not read is not waited for long.
    pub fn close(&self, reason: &str) {
        let deadline = Instant::now() + GOODBYE;
        let Ok(mut outgoing) = self.lock(deadline) else { return self.cut() };
        if !outgoing.closed {
            let _ = outgoing.send(message::notification(CLOSING, &serde_json::json!({ "reason": reason })), deadline);
            outgoing.end();
        }
    }

    /// Ends the stream at once, whoever is writing to it.
    pub fn cut(&self) {
        let _ = self.stream.shutdown(Shutdown::Both);
    }
}

impl AsFd for Sender {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }
}

impl Outgoing {
    fn send(&mut self, plaintext: Plaintext, deadline: Instant) -> Result<(), SendError> {
        self.check(&plaintext)?;
        self.write(plaintext, deadline)
    }

    /// Whether it can be sent; the connection is as it was.
    fn check(&self, plaintext: &Plaintext) -> Result<(), SendError> {
        if self.closed {
            return Err(SendError::Lost);
        }
        let text = plaintext.text();
        let header = text.iter().take(HEADER_MAX_BYTES + 1).position(|&byte| byte == b'\n').unwrap_or(text.len());
        if header > HEADER_MAX_BYTES || text.len() + FRAME_TAG_BYTES > FRAME_MAX_BYTES {
            return Err(SendError::TooLarge);
        }
        Ok(())
    }

    /// Sends what was checked, or ends the connection.
    fn write(&mut self, plaintext: Plaintext, deadline: Instant) -> Result<(), SendError> {
        let frame = self.sealer.seal(plaintext.into_frame()).ok();
        let written = frame.map(|frame| outbound::write_all(&self.stream, &frame, deadline));
        if !matches!(written, Some(Ok(()))) {
            self.end();
            return Err(SendError::Lost);
        }
        Ok(())
    }

    fn end(&mut self) {
        self.closed = true;
        let _ = self.stream.shutdown(Shutdown::Both);
    }
}

/// A message of the daemon.
#[derive(Debug)]
pub enum Incoming {
    /// Wants an answer.
    Request {
        /// The daemon's id.
        id: u64,
        /// What to do.
        method: String,
        /// With what.
        params: Option<Box<RawValue>>,
        /// The application's.
        payload: Option<Vec<u8>>,
    },
    /// Wants none.
    Notification {
        /// What is told.
        method: String,
        /// With what.
        params: Option<Box<RawValue>>,
        /// A list of the daemon's.
        payload: Option<Vec<u8>>,
    },
    /// A request of ours was done.
    Answer {
        /// Our id.
        id: u64,
        /// The daemon's own fields.
        result: Box<RawValue>,
        /// The application's, or a list.
        payload: Option<Vec<u8>>,
        /// The daemon's signature, when it was asked for.
        receipt: Option<String>,
    },
    /// A request of ours failed.
    Failure {
        /// Our id.
        id: u64,
        /// Why.
        error: ErrorObject,
    },
}

/// Why no message came.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Ended {
    /// The daemon said goodbye.
    Closing(String),
    /// The stream ended without it, or the daemon broke the rules.
    Lost,
    /// Nothing until the deadline; the connection is as it was.
    Timeout,
}

/// The reading half.
pub struct Receiver {
    inbound: Inbound,
    opener: Opener,
    last_id: u64,
    ended: Option<Ended>,
}

impl Receiver {
    pub(super) fn new(inbound: Inbound, opener: Opener) -> Self {
        Self { inbound, opener, last_id: 0, ended: None }
    }

    /// The next message, until the deadline, or for as long as the connection lives.
    pub fn next(&mut self, deadline: Option<Instant>) -> Result<Incoming, Ended> {
        if let Some(ended) = &self.ended {
            return Err(ended.clone());
        }
        let got = match self.inbound.frame(&mut self.opener, deadline) {
            Ok(plaintext) => read(plaintext, &mut self.last_id),
            Err(Stop::Timeout) => return Err(Ended::Timeout),
            Err(Stop::End | Stop::Broken) => Err(Ended::Lost),
        };
        if let Err(ended) = &got {
            self.ended = Some(ended.clone());
        }
        got
    }
}

/// Whether an answer to this may carry a payload is the asker's to judge; a request or notification is judged here.
fn read(plaintext: &[u8], last_id: &mut u64) -> Result<Incoming, Ended> {
    let message = message::read(plaintext).map_err(|why| {
        log::warn!("the daemon broke the protocol: {why}");
        Ended::Lost
    })?;
    let payload = message.payload.map(<[u8]>::to_vec);
    match message.header {
        Header::Request { id, method, params } => {
            // They may skip what was withdrawn before it left.
            if id <= *last_id {
                log::warn!("the daemon broke the protocol: request {id} after {last_id}");
                return Err(Ended::Lost);
            }
            *last_id = id;
            Ok(Incoming::Request { id, method: method.into_owned(), params: params.map(ToOwned::to_owned), payload })
        }
        Header::Notification { method, params } if method == CLOSING => {
            let note: ClosingNote = message::params(params).unwrap_or_default();
            Err(Ended::Closing(note.reason))
        }
        Header::Notification { method, params } => {
            Ok(Incoming::Notification { method: method.into_owned(), params: params.map(ToOwned::to_owned), payload })
        }
        Header::Answer { id, result, receipt } => Ok(Incoming::Answer {
            id,
            result: result.to_owned(),
            payload,
            receipt: receipt.map(std::borrow::Cow::into_owned),
        }),
        Header::Failure { .. } if payload.is_some() => Err(Ended::Lost),
        Header::Failure { id, error } => Ok(Incoming::Failure { id, error: *error }),
    }
}
