//! The shapes of lines (docs/attach.md).
//!
//! Owns: reading and writing them. What comes is read strictly: a key that is not known is a mistake of the program.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use crate::ids::SessionId;
use crate::wire::object;
use crate::wire::rows::CommandOffer;

/// What is told of a mistake; more of it is the program's own text, which it knows.
const TOLD_MAX_BYTES: usize = 512;

/// A notification to the program.
#[derive(Debug, Serialize)]
#[serde(tag = "method", content = "params")]
pub enum Notice<'a> {
    /// Nobody waits for this command any more.
    #[serde(rename = "$/cancel")]
    Cancel {
        /// Its id.
        id: u64,
    },
    /// Where the connection is.
    #[serde(rename = "connection")]
    Connection {
        /// A word.
        state: &'static str,
        /// The session's.
        session_id: SessionId,
        /// What led there.
        #[serde(skip_serializing_if = "Option::is_none")]
        reason: Option<&'a str>,
    },
    /// A line of the program was not taken.
    #[serde(rename = "error")]
    Error {
        /// Why.
        message: &'a str,
        /// The command that it was about.
        #[serde(skip_serializing_if = "Option::is_none")]
        id: Option<u64>,
    },
}

/// Parameters of `command`.
#[derive(Serialize)]
pub struct CommandParams<'a> {
    /// Its name.
    pub command: &'a str,
    /// What it was sent with.
    pub input: &'a RawValue,
    /// What is left until its caller stops waiting.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub deadline_ms: Option<u64>,
    /// Who sent it.
    pub caller: CallerParams<'a>,
    /// What makes a repeat known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub key: Option<&'a str>,
}

/// Who sent a command.
#[derive(Serialize)]
pub struct CallerParams<'a> {
    /// The id of its credential's record.
    pub credential: &'a str,
    /// For people.
    pub label: &'a str,
}

#[derive(Serialize)]
struct Line<T: Serialize> {
    jsonrpc: &'static str,
    #[serde(flatten)]
    rest: T,
}

#[derive(Serialize)]
struct Request<'a> {
    id: u64,
    method: &'static str,
    params: &'a CommandParams<'a>,
}

#[derive(Serialize)]
#[serde(untagged)]
enum Reply<'a> {
    Done { id: &'a RawValue, result: BTreeMap<(), ()> },
    Failed { id: &'a RawValue, error: Failed<'a> },
}

#[derive(Serialize)]
struct Failed<'a> {
    code: i32,
    message: &'a str,
}

fn line(rest: impl Serialize) -> Vec<u8> {
    // Our own types: they always serialise into memory.
    let mut text = serde_json::to_vec(&Line { jsonrpc: "2.0", rest }).unwrap_or_default();
    text.push(b'\n');
    text
}

/// The head of a text that may have as many bytes as a line of the program's: what waits to be read is bounded.
pub fn short(text: &str) -> &str {
    let end = (0..=TOLD_MAX_BYTES.min(text.len())).rev().find(|end| text.is_char_boundary(*end));
    &text[..end.unwrap_or(0)]
}

/// A notification's line.
pub fn notice(notice: &Notice<'_>) -> Vec<u8> {
    line(notice)
}

/// A command's line.
pub fn command(id: u64, params: &CommandParams<'_>) -> Vec<u8> {
    line(Request { id, method: "command", params })
}

/// The answer to a request of the program's own.
pub fn reply(id: &RawValue, outcome: Result<(), &str>) -> Vec<u8> {
    line(match outcome {
        Ok(()) => Reply::Done { id, result: BTreeMap::new() },
        Err(message) => Reply::Failed { id, error: Failed { code: -32_000, message: short(message) } },
    })
}

/// A line of the program.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Incoming {
    #[serde(default)]
    pub jsonrpc: Option<String>,
    #[serde(default)]
    pub id: Option<Box<RawValue>>,
    #[serde(default)]
    pub method: Option<String>,
    #[serde(default)]
    pub params: Option<Box<RawValue>>,
    /// `null` is a result too.
    #[serde(default, deserialize_with = "present")]
    pub result: Option<Box<RawValue>>,
    #[serde(default, deserialize_with = "object::some_object")]
    pub error: Option<Failure>,
}

fn present<'de, D: serde::Deserializer<'de>>(from: D) -> Result<Option<Box<RawValue>>, D::Error> {
    Box::<RawValue>::deserialize(from).map(Some)
}

/// Why a command failed. What else stands in it is the program's own.
#[derive(Deserialize)]
pub struct Failure {
    /// For the caller.
    pub message: String,
}

/// Parameters of `update`.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct UpdateParams {
    #[serde(default, deserialize_with = "object::some")]
    pub title: Option<String>,
    #[serde(default, deserialize_with = "object::some_unique_map")]
    pub labels: Option<BTreeMap<String, String>>,
    #[serde(default, deserialize_with = "object::some")]
    pub commands: Option<Vec<OfferParams>>,
    #[serde(default, deserialize_with = "present")]
    pub snapshot: Option<Box<RawValue>>,
}

/// A command: its name, or with a description.
#[derive(Deserialize)]
#[serde(untagged)]
pub enum OfferParams {
    Name(String),
    Described(CommandOffer),
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(bytes: Vec<u8>) -> String {
        String::from_utf8(bytes).unwrap()
    }

    #[test]
    fn what_is_written_is_one_line_each() {
        let input = RawValue::from_string("{\"a\":1.0e0}".into()).unwrap();
        let caller = CallerParams { credential: "c", label: "l" };
        let params = CommandParams { command: "reload", input: &input, deadline_ms: Some(5), caller, key: None };
        assert_eq!(
            text(command(7, &params)),
            concat!(
                r#"{"jsonrpc":"2.0","id":7,"method":"command","params":{"command":"reload","input":{"a":1.0e0},"#,
                r#""deadline_ms":5,"caller":{"credential":"c","label":"l"}}}"#,
                "\n"
            )
        );
        let id = RawValue::from_string("\"x\"".into()).unwrap();
        assert_eq!(text(reply(&id, Ok(()))), "{\"jsonrpc\":\"2.0\",\"id\":\"x\",\"result\":{}}\n");
        assert!(text(reply(&id, Err("no\n"))).contains(r#""error":{"code":-32000,"message":"no\n"}"#));
    }

    #[test]
    fn a_null_result_is_a_result_and_an_unknown_key_is_a_mistake() {
        let read = |text: &str| object::read::<Incoming>(text.as_bytes());
        assert_eq!(read(r#"{"id":1,"result":null}"#).unwrap().result.unwrap().get(), "null");
        assert!(read(r#"{"id":1}"#).unwrap().result.is_none());
        for wrong in
            ["[]", r#"{"id":1,"resut":1}"#, r#"{"id":1,"id":2,"result":1}"#, r#"{"id":1,"error":"no"}"#, "{} 1"]
        {
            assert!(read(wrong).is_err(), "{wrong}");
        }
    }
}
