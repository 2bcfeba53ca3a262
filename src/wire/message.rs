//! JSON-RPC 2.0 inside a frame: a header on one line, then perhaps LF and a payload that is never parsed here.

use std::borrow::Cow;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use crate::limits::HEADER_MAX_BYTES;
use crate::wire::codes::{ErrorObject, Refusal};
use crate::wire::frame;
use crate::wire::object;

/// A message as it was opened. Nothing in it is copied.
#[derive(Debug)]
pub struct Message<'a> {
    /// The header.
    pub header: Header<'a>,
    /// The bytes behind the first LF, never empty.
    pub payload: Option<&'a [u8]>,
}

/// What a header says.
#[derive(Debug)]
pub enum Header<'a> {
    /// Wants an answer.
    Request {
        /// Its id, counted by the sender.
        id: u64,
        /// What to do.
        method: Cow<'a, str>,
        /// With what.
        params: Option<&'a RawValue>,
    },
    /// Wants none.
    Notification {
        /// What is told.
        method: Cow<'a, str>,
        /// With what.
        params: Option<&'a RawValue>,
    },
    /// A request of ours was done.
    Answer {
        /// The request.
        id: u64,
        /// The daemon's or producer's own fields.
        result: &'a RawValue,
        /// The daemon's signature, when it was asked for.
        receipt: Option<Cow<'a, str>>,
    },
    /// A request of ours failed.
    Failure {
        /// The request.
        id: u64,
        /// Why.
        error: Box<ErrorObject>,
    },
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawHeader<'a> {
    #[serde(borrow)]
    jsonrpc: Cow<'a, str>,
    #[serde(default, deserialize_with = "object::some")]
    id: Option<u64>,
    #[serde(default, borrow, deserialize_with = "object::some")]
    method: Option<Cow<'a, str>>,
    #[serde(default, borrow, deserialize_with = "object::some")]
    params: Option<&'a RawValue>,
    #[serde(default, borrow, deserialize_with = "object::some")]
    result: Option<&'a RawValue>,
    #[serde(default, borrow, deserialize_with = "object::some")]
    receipt: Option<Cow<'a, str>>,
    #[serde(default, borrow, deserialize_with = "object::some")]
    error: Option<&'a RawValue>,
}

const NO_MESSAGE: &str = "a header is not a JSON-RPC message";

/// Reads a plaintext. Every error ends the connection: a peer that keeps the rules never causes one.
// Its frame is large, and gone again before anything is done about the message.
#[inline(never)]
pub fn read(plaintext: &[u8]) -> Result<Message<'_>, &'static str> {
    let (header, payload) = match plaintext.iter().position(|&byte| byte == b'\n') {
        Some(end) => (&plaintext[..end], Some(&plaintext[end + 1..])),
        None => (plaintext, None),
    };
    if header.len() > HEADER_MAX_BYTES {
        return Err("a header is longer than its limit");
    }
    if header.first() != Some(&b'{') || header.last() != Some(&b'}') {
        return Err("a header is not exactly one object");
    }
    if payload.is_some_and(<[u8]>::is_empty) {
        return Err("a payload is announced and empty");
    }
    let raw: RawHeader<'_> = serde_json::from_slice(header).map_err(|_| NO_MESSAGE)?;
    if raw.jsonrpc != "2.0" {
        return Err("a header is not JSON-RPC 2.0");
    }
    let header = match raw {
        RawHeader { id: Some(id), method: Some(method), params, result: None, receipt: None, error: None, .. } => {
            Header::Request { id, method, params }
        }
        RawHeader { id: None, method: Some(method), params, result: None, receipt: None, error: None, .. } => {
            Header::Notification { method, params }
        }
        RawHeader { id: Some(id), method: None, params: None, result: Some(result), receipt, error: None, .. }
            if result.get().starts_with('{') =>
        {
            Header::Answer { id, result, receipt }
        }
        RawHeader {
            id: Some(id), method: None, params: None, result: None, receipt: None, error: Some(error), ..
        } => Header::Failure { id, error: why(error)? },
        _ => return Err("a header is neither request, notification nor answer"),
    };
    Ok(Message { header, payload })
}

#[inline(never)]
fn why(error: &RawValue) -> Result<Box<ErrorObject>, &'static str> {
    object::read(error.get().as_bytes()).map(Box::new).map_err(|_| NO_MESSAGE)
}

/// Parameters of a known shape; what is wrong with them is told to the peer.
pub fn params<T: DeserializeOwned>(params: Option<&RawValue>) -> Result<T, Refusal> {
    object::read(params.map_or("{}", RawValue::get).as_bytes()).map_err(Refusal::invalid)
}

#[derive(Serialize)]
struct CallHeader<'a, P: Serialize> {
    jsonrpc: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    id: Option<u64>,
    method: &'a str,
    params: P,
}

#[derive(Serialize)]
struct AnswerHeader<'a> {
    jsonrpc: &'static str,
    id: u64,
    result: &'a RawValue,
    #[serde(skip_serializing_if = "Option::is_none")]
    receipt: Option<&'a str>,
}

#[derive(Serialize)]
struct FailureHeader<'a> {
    jsonrpc: &'static str,
    id: u64,
    error: &'a ErrorObject,
}

/// A plaintext with its place in a frame, ready to be sealed.
pub struct Plaintext(Vec<u8>);

impl Plaintext {
    /// A header of ours and a payload.
    fn new(header: &impl Serialize, payload: Option<&[u8]>) -> Self {
        let mut bytes = frame::begin(256 + payload.map_or(0, <[u8]>::len));
        // Our own types: they always serialise into memory.
        let _infallible = serde_json::to_writer(&mut bytes, header);
        if let Some(payload) = payload {
            bytes.push(b'\n');
            bytes.extend_from_slice(payload);
        }
        Self(bytes)
    }

    /// The text itself, as a receipt hashes it.
    pub fn text(&self) -> &[u8] {
        &self.0[crate::limits::FRAME_LENGTH_BYTES..]
    }

    /// From what [`frame::Sealer::take_back`] gives.
    pub fn from_frame(frame: Vec<u8>) -> Self {
        Self(frame)
    }

    /// Bytes of memory that it takes.
    pub fn capacity(&self) -> usize {
        self.0.capacity()
    }

    /// The bytes that [`frame::Sealer::seal`] takes.
    pub fn into_frame(self) -> Vec<u8> {
        self.0
    }
}

/// A request.
pub fn request(id: u64, method: &str, params: &impl Serialize, payload: Option<&[u8]>) -> Plaintext {
    Plaintext::new(&CallHeader { jsonrpc: "2.0", id: Some(id), method, params }, payload)
}

/// A notification.
pub fn notification(method: &str, params: &impl Serialize) -> Plaintext {
    Plaintext::new(&CallHeader { jsonrpc: "2.0", id: None, method, params }, None)
}

/// A notification with a payload of ours.
pub fn notification_with(method: &str, params: &impl Serialize, payload: &[u8]) -> Plaintext {
    Plaintext::new(&CallHeader { jsonrpc: "2.0", id: None, method, params }, Some(payload))
}

/// An answer; `result` is the text that a receipt is about.
pub fn answer(id: u64, result: &RawValue, receipt: Option<&str>, payload: Option<&[u8]>) -> Plaintext {
    Plaintext::new(&AnswerHeader { jsonrpc: "2.0", id, result, receipt }, payload)
}

/// A failure.
pub fn failure(id: u64, error: &ErrorObject) -> Plaintext {
    Plaintext::new(&FailureHeader { jsonrpc: "2.0", id, error }, None)
}

/// A result's text from a value of ours.
pub fn result(value: &impl Serialize) -> Box<RawValue> {
    serde_json::value::to_raw_value(value).unwrap_or_else(|_| RawValue::NULL.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_reads_back_with_its_payload_untouched() {
        let sent = request(7, "session.send", &serde_json::json!({"a": 1}), Some(b"{\"x\": 1.0e0,\n\"x\":2}"));
        let message = read(sent.text()).unwrap();
        assert!(matches!(&message.header, Header::Request { id: 7, method, .. } if method == "session.send"));
        assert_eq!(message.payload, Some(&b"{\"x\": 1.0e0,\n\"x\":2}"[..]));
    }

    #[test]
    fn what_is_not_one_message_is_refused() {
        let deep = format!("{{\"jsonrpc\":\"2.0\",\"method\":\"x\",\"params\":{}}}", "[".repeat(10_000));
        for text in [
            "",
            "\n",
            "[]",
            "[{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"x\"}]",
            " {\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"x\"}",
            "\u{feff}{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"x\"}",
            "{\"jsonrpc\":\"1.0\",\"id\":1,\"method\":\"x\"}",
            "{\"jsonrpc\":\"2.0\",\"id\":1}",
            "{\"jsonrpc\":\"2.0\",\"id\":null,\"method\":\"x\"}",
            "{\"jsonrpc\":\"2.0\",\"id\":-1,\"method\":\"x\"}",
            "{\"jsonrpc\":\"2.0\",\"id\":1.5,\"method\":\"x\"}",
            "{\"jsonrpc\":\"2.0\",\"id\":1e999,\"method\":\"x\"}",
            "{\"jsonrpc\":\"2.0\",\"id\":1,\"id\":1,\"method\":\"x\"}",
            "{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"x\",\"more\":1}",
            "{\"jsonrpc\":\"2.0\",\"id\":1,\"result\":[]}",
            "{\"jsonrpc\":\"2.0\",\"id\":1,\"result\":null}",
            "{\"jsonrpc\":\"2.0\",\"id\":1,\"result\":{},\"error\":{\"code\":1,\"message\":\"\"}}",
            "{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"x\"}\n",
            "{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"x\"}\r\n1",
            "{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"x\"} ",
            "{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"\\ud800\"}",
            "{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"x\"}{}",
            &deep,
        ] {
            assert!(read(text.as_bytes()).is_err(), "{:.80}", text);
        }
        assert!(read(b"{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"\xff\"}").is_err());
        assert!(read(b"{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"a\0\"}").is_err());
    }

    #[test]
    fn parameters_of_another_shape_are_told_where() {
        #[derive(Debug, Deserialize)]
        #[serde(deny_unknown_fields)]
        struct Empty {}
        let raw = RawValue::from_string("{\"more\":1}".to_owned()).unwrap();
        assert!(params::<Empty>(Some(&raw)).unwrap_err().message.unwrap().contains("more"));
        let array = RawValue::from_string("[]".to_owned()).unwrap();
        assert!(params::<Empty>(Some(&array)).is_err());
        assert!(params::<Empty>(None).is_ok());
    }
}
