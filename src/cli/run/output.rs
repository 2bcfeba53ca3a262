//! What a handler's output means: a result, or a failure's text.
//!
//! Owns: the conversion. It runs nothing.

use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;

use crate::cli::text::{clean_lines, head, tail};
use crate::limits::FAILURE_MAX_BYTES;
use crate::wire::json;
use nix::sys::signal::Signal;

/// The last bytes of a stream, in bounded memory.
#[derive(Debug, Default)]
pub struct Tail(Vec<u8>);

impl Tail {
    /// Takes more.
    pub fn push(&mut self, bytes: &[u8]) {
        self.0.extend_from_slice(bytes);
        let excess = self.0.len().saturating_sub(FAILURE_MAX_BYTES);
        self.0.drain(..excess);
    }
}

/// JSON as it stands; any other text as a JSON string, without the newline that ends it.
pub fn result(output: &[u8]) -> Vec<u8> {
    let trimmed = output.trim_ascii();
    if json::check(trimmed).is_ok() {
        return trimmed.to_vec();
    }
    let text = output.strip_suffix(b"\n").unwrap_or(output);
    let text = String::from_utf8_lossy(text);
    // A string always serialises.
    serde_json::to_vec(&text).unwrap_or_else(|_| b"null".to_vec())
}

/// What is told of a shell that did not succeed, with the last lines of its standard error.
pub fn failure(status: ExitStatus, errors: &Tail) -> String {
    with_errors(&ending(status), errors)
}

/// The same for any other reason.
pub fn with_errors(what: &str, errors: &Tail) -> String {
    let what = head(what, FAILURE_MAX_BYTES);
    let lines = clean_lines(&String::from_utf8_lossy(&errors.0));
    // A colon, a space.
    let lines = tail(lines.trim(), FAILURE_MAX_BYTES.saturating_sub(what.len() + 2));
    if lines.is_empty() { what.to_owned() } else { format!("{what}: {lines}") }
}

fn ending(status: ExitStatus) -> String {
    match (status.code(), status.signal()) {
        (Some(code), _) => format!("exit code {code}"),
        (None, Some(number)) => match Signal::try_from(number) {
            Ok(signal) => format!("ended by {signal}"),
            Err(_) => format!("ended by signal {number}"),
        },
        (None, None) => "ended in no known way".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(output: &[u8]) -> String {
        String::from_utf8(result(output)).unwrap()
    }

    #[test]
    fn one_json_text_is_the_result_as_it_stands() {
        for json in [r#"{"a": 1.0e0,  "a":2}"#, "[1,\n 2]", "null", "7", "\"x\"", "1e999"] {
            assert_eq!(text(format!(" {json}\n").as_bytes()), json);
        }
        let deep = format!("{}\"[[[\"{}", "[".repeat(128), "]".repeat(128));
        assert_eq!(text(deep.as_bytes()), deep);
    }

    #[test]
    fn any_other_text_is_a_json_string() {
        assert_eq!(text(b"done\n"), r#""done""#);
        assert_eq!(text(b"a\n\n"), r#""a\n""#);
        assert_eq!(text(b""), r#""""#);
        assert_eq!(text(b"{} {}"), r#""{} {}""#);
        assert_eq!(text(b"\xff\x1b"), "\"\u{fffd}\\u001b\"");
        let deep = format!("{}{}", "[".repeat(129), "]".repeat(129));
        assert_eq!(text(deep.as_bytes()), format!("\"{deep}\""));
    }

    #[test]
    fn a_failure_tells_the_code_and_the_last_lines_within_its_bound() {
        let mut errors = Tail::default();
        let failed = ExitStatus::from_raw(3 << 8);
        assert_eq!(failure(failed, &errors), "exit code 3");
        errors.push(b"first\nse\x1b[31mcond\n");
        assert_eq!(failure(failed, &errors), "exit code 3: first\nse [31mcond");
        errors.push(&b"\xf0\x9f\x98\x80\xff line\n".repeat(5_000));
        let message = failure(ExitStatus::from_raw(9), &errors);
        assert!(message.starts_with("ended by SIGKILL: ") && message.len() <= FAILURE_MAX_BYTES, "{message}");
        assert!(message.ends_with("\u{1f600}\u{fffd} line"));
        assert!(errors.0.len() <= FAILURE_MAX_BYTES);
    }
}
