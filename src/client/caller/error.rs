//! Why nothing came of a call.

use std::error::Error;
use std::fmt;

use crate::client::failure::SendError;
use crate::wire::codes::{Code, Delivery, ErrorObject};

/// Why nothing came of a call.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
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
    /// The input is not exactly one JSON text; nothing was sent.
    InvalidPayload(String),
    /// The answer came without a receipt that holds.
    BadReceipt(String),
    /// The answer is not as documented.
    Misread,
}

impl CallError {
    /// What became of a command whose call ended so.
    #[must_use]
    pub fn delivery(&self) -> Delivery {
        match self {
            Self::Refused(error) => error.data.as_ref().and_then(|data| data.delivery).unwrap_or(Delivery::Unknown),
            Self::Lost { sent: false } | Self::TooLarge | Self::InvalidPayload(_) => Delivery::NotDelivered,
            Self::Lost { sent: true } | Self::Timeout | Self::BadReceipt(_) => Delivery::Unknown,
            Self::Misread => Delivery::Delivered,
        }
    }

    /// The word to act on: `data.code` of the daemon's error, or what stands for it on this side (docs/protocol.md,
    /// "Errors").
    #[must_use]
    pub fn code(&self) -> &str {
        let code = match self {
            Self::Refused(error) => return error.data.as_ref().map_or("internal", |data| &data.code),
            Self::BadReceipt(_) => return "bad-receipt",
            Self::Lost { .. } => Code::ConnectionLost,
            Self::Timeout => Code::Timeout,
            Self::TooLarge => Code::TooLarge,
            Self::InvalidPayload(_) => Code::InvalidPayload,
            Self::Misread => Code::Internal,
        };
        code.word()
    }
}

impl fmt::Display for CallError {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Refused(error) => out.write_str(&error.message),
            Self::Lost { .. } => out.write_str("the connection was lost"),
            Self::Timeout => out.write_str("the daemon did not answer in time"),
            Self::TooLarge => out.write_str("that is larger than a message may be"),
            Self::InvalidPayload(why) => write!(out, "the input is not one JSON text: {why}"),
            Self::BadReceipt(why) => write!(out, "the answer has no receipt that holds: {why}"),
            Self::Misread => out.write_str("the daemon's answer is not as documented"),
        }
    }
}

impl Error for CallError {}

impl From<SendError> for CallError {
    fn from(error: SendError) -> Self {
        match error {
            SendError::Lost => Self::Lost { sent: false },
            SendError::TooLarge => Self::TooLarge,
        }
    }
}
