//! Questions to the daemon, and their answers.
//!
//! Owns: a connection that many threads ask over, waiting for answers, what a dead connection means for them, and
//! receipts. It must not know how a verb tells what came. Invariant: a receipt that is returned was verified against the
//! proved daemon key, this request and this result. Threads: one reads; those that ask wait for it, each to its deadline.

mod calls;
mod error;
mod pages;
mod sessions;

use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver as Channel, RecvTimeoutError, bounded};
use serde::Serialize;
use serde_json::json;
use serde_json::value::RawValue;

use crate::ids::Signature;
use crate::threads;
use crate::wire::json;
use crate::wire::lines::Role;
use crate::wire::methods::CANCEL;
use crate::wire::receipt::Receipt;

use super::address::Target;
use super::connection::{Connection, Proved, Sender};
use super::failure::{ConnectError, ConnectFailure};
use super::handshake::{Hello, connect};

pub use calls::Pending;
pub use error::CallError;
pub use pages::Pages;
pub use sessions::{Sent, Sessions};

use calls::Calls;

/// A question of ours that nobody reads for so long was never sent.
const WRITE: Duration = Duration::from_secs(10);

/// A caller's connection, which threads share. Dropped, it says goodbye.
///
/// ```no_run
/// use std::time::Duration;
/// use usher::client::{Caller, Selector, Target};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let caller = Caller::connect(&Target::from_env(None)?)?;
/// for session in caller.list(&Selector::default()) {
///     let session = session?;
///     println!("{} {}", session.session_id, session.title);
/// }
/// let board = Selector { title: Some("board".into()), ..Selector::default() };
/// let sent = caller.send(&board, "reload", Some(br#"{"rev":"HEAD"}"#), Duration::from_secs(15))?;
/// assert!(sent.result.is_some());
/// # Ok(())
/// # }
/// ```
pub struct Caller {
    sender: Sender,
    calls: Arc<Calls>,
    /// Tells nothing, but ends with the reader.
    ended: Channel<()>,
    reader: Option<JoinHandle<()>>,
    proved: Proved,
}

/// What came of a call.
#[derive(Debug)]
pub struct Reply {
    /// The daemon's own fields, an object.
    pub result: Box<RawValue>,
    /// The application's bytes, or a list of the daemon's. An application's were checked by nobody.
    pub payload: Option<Vec<u8>>,
    /// With a signed call.
    pub(crate) receipt: Option<Receipt>,
}

/// What the daemon tells unasked.
pub(crate) struct News {
    /// What is told.
    pub method: String,
    /// With what.
    pub params: Option<Box<RawValue>>,
    /// A list of the daemon's.
    pub payload: Option<Vec<u8>>,
}

/// A reply with the signature that was asked for, not yet checked.
struct Answer {
    reply: Reply,
    signature: Option<String>,
}

#[derive(Serialize)]
struct Signed<'a, P: Serialize> {
    #[serde(flatten)]
    params: &'a P,
    receipt: bool,
}

impl Caller {
    /// Connects as a caller: with the target's key for callers, or its bundle's. Starts no daemon.
    pub fn connect(target: &Target) -> Result<Self, ConnectError> {
        Ok(connect(target, &Hello::new(Role::Caller)).and_then(Self::over)?)
    }

    /// Over a connection.
    pub(crate) fn over(connection: Connection) -> Result<Self, ConnectFailure> {
        Self::hearing(connection, |_| ())
    }

    /// The same; `hear` gets what the daemon tells unasked, in the thread that reads: while it waits, nothing is read.
    pub(crate) fn hearing(
        connection: Connection,
        hear: impl FnMut(News) + Send + 'static,
    ) -> Result<Self, ConnectFailure> {
        let (sender, receiver, proved) = connection.into_parts();
        let calls = Arc::new(Calls::default());
        let (end, ended) = bounded(0);
        let reader = {
            let (calls, sender) = (Arc::clone(&calls), sender.clone());
            let read = move || {
                calls.read(receiver, &sender, hear);
                drop::<crossbeam_channel::Sender<()>>(end);
            };
            threads::spawn("usher-caller", read).map_err(|_| ConnectFailure::NoThread)?
        };
        Ok(Self { sender, calls, ended, reader: Some(reader), proved })
    }

    /// What the handshake established.
    pub(crate) fn proved(&self) -> &Proved {
        &self.proved
    }

    /// Asks; the answer is waited for later, or never: dropping what is returned cancels the call. A payload is one JSON
    /// text, for those methods that have one (docs/protocol.md, "Methods").
    pub fn start(&self, method: &str, params: &impl Serialize, payload: Option<&[u8]>) -> Result<Pending, CallError> {
        if let Some(payload) = payload {
            json::check(payload).map_err(CallError::InvalidPayload)?;
        }
        self.start_seen(method, params, payload, |_| ())
    }

    fn start_seen(
        &self,
        method: &str,
        params: &impl Serialize,
        payload: Option<&[u8]>,
        see: impl FnOnce(&[u8]),
    ) -> Result<Pending, CallError> {
        let (mut pending, tell) = Pending::new(&self.calls, &self.sender);
        let mut expected = 0;
        let sent = self.sender.request_seen(method, params, payload, Instant::now() + WRITE, |id, text| {
            expected = id;
            self.calls.expect(id, tell);
            see(text);
        });
        match sent {
            Ok(id) => {
                pending.is_sent_as(id);
                Ok(pending)
            }
            Err(error) => {
                self.calls.forget(expected);
                Err(error.into())
            }
        }
    }

    /// Asks and waits for the answer until the deadline.
    pub fn call(
        &self,
        method: &str,
        params: &impl Serialize,
        payload: Option<&[u8]>,
        deadline: Instant,
    ) -> Result<Reply, CallError> {
        self.start(method, params, payload)?.wait(deadline)
    }

    /// The daemon hears that nobody waits for a request any more; who waits for it hears `cancelled`, unless its answer
    /// is under way already.
    pub fn cancel(&self, id: u64) {
        let _ = self.sender.notify(CANCEL, &json!({ "id": id }));
    }

    /// As [`Caller::call`] with an answer that the daemon signs.
    pub(crate) fn call_signed(
        &self,
        method: &str,
        params: &impl Serialize,
        payload: Option<&[u8]>,
        deadline: Instant,
    ) -> Result<Reply, CallError> {
        let mut request = Vec::new();
        let params = Signed { params, receipt: true };
        let pending = self.start_seen(method, &params, payload, |text| request = text.to_vec())?;
        let Answer { reply, signature } = pending.answer(deadline)?;
        let receipt = self.receipt(request, &reply, signature).map_err(CallError::BadReceipt)?;
        Ok(Reply { receipt: Some(receipt), ..reply })
    }

    /// Waits for the daemon to end this connection. False: it did not until the deadline.
    pub fn wait_for_end(&self, deadline: Instant) -> bool {
        self.ended.recv_deadline(deadline) == Err(RecvTimeoutError::Disconnected)
    }

    fn receipt(&self, request: Vec<u8>, reply: &Reply, signature: Option<String>) -> Result<Receipt, String> {
        let signature = signature.ok_or("the daemon answered without the receipt that it was asked for")?;
        let signature: Signature = signature.parse().map_err(|_| "the receipt is not a signature")?;
        let mut result = reply.result.get().to_owned();
        if let Some(payload) = &reply.payload {
            result.push('\n');
            result.push_str(std::str::from_utf8(payload).map_err(|_| "the result is not text")?);
        }
        let request = String::from_utf8(request).map_err(|_| "the request is not text")?;
        let receipt = Receipt { version: 1, lines: self.proved.lines.clone(), request, result, receipt: signature };
        receipt.verify(self.proved.daemon)?;
        Ok(receipt)
    }
}

impl Drop for Caller {
    fn drop(&mut self) {
        self.sender.close("done");
        if let Some(reader) = self.reader.take() {
            let _ = reader.join();
        }
    }
}
