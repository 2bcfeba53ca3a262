//! One question, one answer.
//!
//! Owns: waiting for the answer to an id, what a dead connection means for it, and receipts. Invariant: a receipt that is
//! returned was verified against the proved daemon key, this request and this result.

use std::time::Instant;

use serde::Serialize;
use serde_json::value::RawValue;

use crate::ids::Signature;
use crate::wire::codes::{Delivery, ErrorObject};
use crate::wire::methods::CANCEL;
use crate::wire::receipt::Receipt;

use super::connection::{Connection, Ended, Incoming, Proved, Receiver, Sender};
use super::failure::SendError;

/// A blocking caller; dropped, it says goodbye.
pub struct Caller {
    sender: Sender,
    receiver: Receiver,
    proved: Proved,
}

/// What came of a call.
#[derive(Debug)]
pub struct Reply {
    /// The daemon's own fields.
    pub result: Box<RawValue>,
    /// The application's, or a list. Not checked.
    pub payload: Option<Vec<u8>>,
    /// With [`Caller::call_signed`].
    pub receipt: Option<Receipt>,
}

/// Why nothing came of a call.
#[derive(Debug, Clone, PartialEq)]
pub enum CallError {
    /// The daemon refused it or it failed.
    Refused(Box<ErrorObject>),
    /// The connection is over. `sent`: the whole question was out, so it may have been done.
    Lost {
        /// Whether the last byte of the question was out.
        sent: bool,
    },
    /// No answer until the deadline; the daemon was told that nobody waits any more.
    Timeout,
    /// The question is larger than a message may be; nothing was sent.
    TooLarge,
    /// The answer came without a receipt that holds.
    BadReceipt(String),
}

impl CallError {
    /// What became of a command whose call ended so.
    pub fn delivery(&self) -> Delivery {
        match self {
            Self::Refused(error) => error.data.as_ref().and_then(|data| data.delivery).unwrap_or(Delivery::Unknown),
            Self::Lost { sent: false } | Self::TooLarge => Delivery::NotDelivered,
            Self::Lost { sent: true } | Self::Timeout | Self::BadReceipt(_) => Delivery::Unknown,
        }
    }
}

#[derive(Serialize)]
struct Signed<'a, P: Serialize> {
    #[serde(flatten)]
    params: &'a P,
    receipt: bool,
}

impl Caller {
    /// Over a connection.
    pub fn new(connection: Connection) -> Self {
        let (sender, receiver, proved) = connection.into_parts();
        Self { sender, receiver, proved }
    }

    /// What the handshake established.
    pub fn proved(&self) -> &Proved {
        &self.proved
    }

    /// Asks and waits for the answer until the deadline.
    pub fn call(
        &mut self,
        method: &str,
        params: &impl Serialize,
        payload: Option<&[u8]>,
        deadline: Instant,
    ) -> Result<Reply, CallError> {
        let id = self.sender.request(method, params, payload).map_err(not_sent)?;
        self.answer(id, deadline).map(|(reply, _)| reply)
    }

    /// As [`Caller::call`] with an answer that the daemon signs.
    pub fn call_signed(
        &mut self,
        method: &str,
        params: &impl Serialize,
        deadline: Instant,
    ) -> Result<Reply, CallError> {
        let mut request = Vec::new();
        let params = Signed { params, receipt: true };
        let sent = self.sender.request_seen(method, &params, None, |text| request = text.to_vec());
        let (reply, signature) = self.answer(sent.map_err(not_sent)?, deadline)?;
        let receipt = self.receipt(request, &reply, signature).map_err(CallError::BadReceipt)?;
        Ok(Reply { receipt: Some(receipt), ..reply })
    }

    /// Waits for the daemon to end this connection. False: it did not until the deadline.
    pub fn wait_for_end(&mut self, deadline: Instant) -> bool {
        loop {
            match self.receiver.next(Some(deadline)) {
                Ok(_) => {}
                Err(Ended::Timeout) => return false,
                Err(Ended::Closing(_) | Ended::Lost) => return true,
            }
        }
    }

    fn answer(&mut self, id: u64, deadline: Instant) -> Result<(Reply, Option<String>), CallError> {
        loop {
            match self.receiver.next(Some(deadline)) {
                Ok(Incoming::Answer { id: of, result, payload, receipt }) if of == id => {
                    return Ok((Reply { result, payload, receipt: None }, receipt));
                }
                Ok(Incoming::Failure { id: of, error }) if of == id => return Err(CallError::Refused(Box::new(error))),
                // A late answer to a call that timed out, or news that nobody here asked for.
                Ok(_) => {}
                Err(Ended::Timeout) => {
                    let _ = self.sender.notify(CANCEL, &serde_json::json!({ "id": id }));
                    return Err(CallError::Timeout);
                }
                Err(Ended::Closing(_) | Ended::Lost) => return Err(CallError::Lost { sent: true }),
            }
        }
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
    }
}

fn not_sent(error: SendError) -> CallError {
    match error {
        SendError::Lost => CallError::Lost { sent: false },
        SendError::TooLarge => CallError::TooLarge,
    }
}
