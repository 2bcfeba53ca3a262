//! JSON that applications say to each other: exactly one text, not too deep, otherwise as it is.
//!
//! Owns: where an input comes from, and the checked text. The check itself is [`crate::wire::json`]'s.

use serde_json::value::RawValue;

use crate::error::{Exit, Failure};
use crate::wire::codes::Code;
use crate::wire::{json, object};

use super::args::Input;
use super::foreign;

/// A text that was checked, on one line.
#[derive(Debug, Clone)]
pub struct Json(Box<RawValue>);

impl Json {
    /// Checks what somebody wrote.
    pub fn new(text: &[u8]) -> Result<Self, String> {
        let text = json::one_line(json::check(text)?);
        RawValue::from_string(text).map(Self).map_err(|error| object::complaint(&error))
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
}
