//! One JSON text, as applications say it to each other: exactly one, not too deep, otherwise as it is.
//!
//! Nothing is parsed into values, so no number is rounded, no key that stands twice is lost, and the order stays.

use serde::de::IgnoredAny;

use crate::limits::JSON_DEPTH_MAX;
use crate::wire::object;

/// Checks what somebody wrote: the text, or what is wrong with it.
pub fn check(bytes: &[u8]) -> Result<&str, String> {
    let text = std::str::from_utf8(bytes).map_err(|_| "it is not UTF-8".to_owned())?;
    if depth(text) > JSON_DEPTH_MAX {
        return Err(format!("it is nested deeper than {JSON_DEPTH_MAX}"));
    }
    serde_json::from_str::<IgnoredAny>(text).map_err(|error| object::complaint(&error))?;
    Ok(text)
}

/// A text that was checked, without the white space between its tokens: on one line.
pub fn one_line(text: &str) -> String {
    let mut place = Place::default();
    text.chars()
        .filter(|&c| {
            let is_inside = place.is_inside;
            place.pass(c);
            is_inside || !matches!(c, ' ' | '\t' | '\n' | '\r')
        })
        .collect()
}

/// The deepest nesting of brackets outside of strings. It means something for valid JSON only.
fn depth(text: &str) -> usize {
    let (mut now, mut deepest, mut place) = (0_usize, 0, Place::default());
    for byte in text.bytes() {
        if !place.is_inside {
            match byte {
                b'[' | b'{' => now += 1,
                b']' | b'}' => now = now.saturating_sub(1),
                _ => {}
            }
            deepest = deepest.max(now);
        }
        place.pass(char::from(byte));
    }
    deepest
}

/// Whether a character stands in a string.
#[derive(Default)]
struct Place {
    is_inside: bool,
    is_escaped: bool,
}

impl Place {
    fn pass(&mut self, c: char) {
        match c {
            _ if self.is_escaped => self.is_escaped = false,
            '\\' if self.is_inside => self.is_escaped = true,
            '"' => self.is_inside = !self.is_inside,
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_keeps_its_tokens_on_one_line() {
        let text = check(b" {\"a\" : [1.0e0, 12345678901234567890123,\n\"x \\\" y\"],\t\"a\":1e999} \n").unwrap();
        assert_eq!(one_line(text), "{\"a\":[1.0e0,12345678901234567890123,\"x \\\" y\"],\"a\":1e999}");
        assert_eq!(one_line("\"\\ud800 \\\\\" "), "\"\\ud800 \\\\\"");
    }

    #[test]
    fn what_is_not_one_json_text_is_refused() {
        for text in
            [&b""[..], b" ", b"{", b"{}{}", b"1 2", b"\xef\xbb\xbf1", b"\"\xff\"", b"\"\n\"", b"nul", b"01", b"NaN"]
        {
            assert!(check(text).is_err(), "{text:?}");
        }
        assert!(check(b"\"\\ud800\"").is_ok());
    }

    #[test]
    fn nesting_has_a_bound_and_brackets_in_strings_are_none() {
        let nested = |depth: usize| format!("{}{}", "[".repeat(depth), "]".repeat(depth));
        assert!(check(nested(JSON_DEPTH_MAX).as_bytes()).is_ok());
        assert!(check(nested(JSON_DEPTH_MAX + 1).as_bytes()).is_err());
        assert!(check(nested(100_000).as_bytes()).is_err());
        assert!(check(format!("\"{}\"", "[".repeat(1000)).as_bytes()).is_ok());
    }
}
