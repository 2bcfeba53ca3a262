//! JSON that applications say to each other: exactly one text, not too deep, otherwise as it is.
//!
//! Owns: the check in both directions. Numbers, the order of keys and keys that stand twice are the applications': nothing
//! is parsed into values, so nothing is rounded or lost.

use serde_json::value::RawValue;

use crate::error::{Exit, Failure};
use crate::limits::JSON_DEPTH_MAX;
use crate::wire::codes::Code;
use crate::wire::object;

use super::args::Input;
use super::foreign;

/// A text that was checked, on one line.
#[derive(Debug, Clone)]
pub struct Json(Box<RawValue>);

impl Json {
    /// Checks what somebody wrote.
    pub fn new(text: &[u8]) -> Result<Self, String> {
        let raw: Box<RawValue> = serde_json::from_slice(text).map_err(|error| object::complaint(&error))?;
        if depth(raw.get()) > JSON_DEPTH_MAX {
            return Err(format!("it is nested deeper than {JSON_DEPTH_MAX}"));
        }
        RawValue::from_string(one_line(raw.get())).map(Self).map_err(|error| object::complaint(&error))
    }

    /// The text.
    pub fn get(&self) -> &str {
        self.0.get()
    }

    /// The same, to stand in a document.
    pub fn raw(&self) -> &RawValue {
        &self.0
    }

    /// What it says if it is a string.
    pub fn as_text(&self) -> Option<String> {
        serde_json::from_str(self.get()).ok()
    }
}

/// What was said or named on the command line.
pub fn input(input: &Input, max_bytes: u64) -> Result<Json, Failure> {
    let (what, bytes) = match input {
        Input::Text(text) => {
            let json = serde_json::to_string(text).unwrap_or_default();
            ("the text", json.into_bytes())
        }
        Input::Json(text) => ("the input", text.clone().into_bytes()),
        Input::Stdin => ("standard input", foreign::read_stdin(max_bytes)?),
        Input::File(path) => ("the file", foreign::read(path, max_bytes)?),
    };
    let json = Json::new(&bytes).map_err(|why| {
        Failure::new(Exit::Usage, Code::InvalidPayload.word(), format!("{what} is not one JSON text: {why}"))
            .hint("--text TEXT sends plain text")
    })?;
    if json.get().len() as u64 > max_bytes {
        let message = format!("{what} holds more than {max_bytes} bytes");
        return Err(Failure::new(Exit::Usage, Code::TooLarge.word(), message));
    }
    Ok(json)
}

/// How deep valid JSON is nested.
fn depth(text: &str) -> usize {
    let (mut depth, mut deepest) = (0_usize, 0);
    for byte in outside_strings(text) {
        match byte {
            b'[' | b'{' => depth += 1,
            b']' | b'}' => depth = depth.saturating_sub(1),
            _ => {}
        }
        deepest = deepest.max(depth);
    }
    deepest
}

/// Valid JSON without the white space between its tokens.
fn one_line(text: &str) -> String {
    let mut inside = false;
    let mut escaped = false;
    text.chars()
        .filter(|&c| {
            let keep = inside || !matches!(c, ' ' | '\t' | '\n' | '\r');
            match c {
                _ if escaped => escaped = false,
                '\\' => escaped = true,
                '"' => inside = !inside,
                _ => {}
            }
            keep
        })
        .collect()
}

fn outside_strings(text: &str) -> impl Iterator<Item = u8> {
    let mut inside = false;
    let mut escaped = false;
    text.bytes().filter(move |&byte| {
        let was_inside = inside;
        match byte {
            _ if escaped => escaped = false,
            b'\\' => escaped = true,
            b'"' => inside = !inside,
            _ => {}
        }
        !was_inside
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_payload_is_one_text_and_keeps_its_tokens() {
        let json = Json::new(b" {\"a\" : [1.0e0, 12345678901234567890123,\n\"x \\\" y\"],\t\"a\":1e999} \n").unwrap();
        assert_eq!(json.get(), "{\"a\":[1.0e0,12345678901234567890123,\"x \\\" y\"],\"a\":1e999}");
        assert_eq!(Json::new(b"\"\\ud800\"").unwrap().get(), "\"\\ud800\"");
        assert_eq!(Json::new(b"\"a\\nb\"").unwrap().as_text().unwrap(), "a\nb");
        assert_eq!(Json::new(b"1").unwrap().as_text(), None);
    }

    #[test]
    fn what_is_not_one_json_text_is_refused() {
        for text in
            [&b""[..], b" ", b"{", b"{}{}", b"1 2", b"\xef\xbb\xbf1", b"\"\xff\"", b"\"\n\"", b"nul", b"01", b"NaN"]
        {
            assert!(Json::new(text).is_err(), "{text:?}");
        }
    }

    #[test]
    fn nesting_has_a_bound_and_brackets_in_strings_are_none() {
        let nested = |depth: usize| format!("{}{}", "[".repeat(depth), "]".repeat(depth));
        assert!(Json::new(nested(JSON_DEPTH_MAX).as_bytes()).is_ok());
        assert!(Json::new(nested(JSON_DEPTH_MAX + 1).as_bytes()).is_err());
        assert!(Json::new(nested(100_000).as_bytes()).is_err());
        assert!(Json::new(format!("\"{}\"", "[".repeat(1000)).as_bytes()).is_ok());
    }
}
