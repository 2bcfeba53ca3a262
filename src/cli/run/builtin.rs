//! The commands that every run has: `status` and `signal`.
//!
//! Owns: their input and their results. They are answered at once and take no place among the handlers.

use nix::sys::signal::Signal;
use serde::Deserialize;
use serde_json::json;

use super::child::Child;
use super::report::Report;

/// Names and descriptions.
pub const NAMES: [(&str, &str); 2] =
    [("status", "pid, command and running handlers"), ("signal", "send the program a signal: \"TERM\", \"HUP\" …")];

/// What may be sent: nothing that only makes sense from the program itself.
const SIGNALS: [Signal; 10] = [
    Signal::SIGTERM,
    Signal::SIGHUP,
    Signal::SIGINT,
    Signal::SIGQUIT,
    Signal::SIGUSR1,
    Signal::SIGUSR2,
    Signal::SIGKILL,
    Signal::SIGSTOP,
    Signal::SIGCONT,
    Signal::SIGWINCH,
];

#[derive(Deserialize)]
#[serde(untagged)]
enum Input {
    Plain(Named),
    Object { signal: Named },
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Named {
    Number(i32),
    Name(String),
}

/// What a built-in command answers: JSON text, or why not. None when there is none of that name.
pub fn answer(
    name: &str,
    input: Option<&[u8]>,
    report: &Report,
    child: &Child,
    handlers_running: usize,
) -> Option<Result<String, String>> {
    match name {
        "status" => Some(Ok(status(report, child, handlers_running))),
        "signal" => Some(signal(input.unwrap_or(b"null"), child)),
        _ => None,
    }
}

fn status(report: &Report, child: &Child, handlers_running: usize) -> String {
    json!({
        "pid": report.pid,
        "started": report.started,
        "running": child.is_running(),
        "command": report.command,
        "handlers_running": handlers_running,
    })
    .to_string()
}

fn signal(input: &[u8], child: &Child) -> Result<String, String> {
    let signal = wanted(input).ok_or_else(|| {
        let names = SIGNALS.map(short).join(" ");
        format!("the input is not one of the signals {names}, as \"TERM\" or {{\"signal\":\"TERM\"}}")
    })?;
    child.signal(signal).map_err(|_| "the program has ended".to_owned())?;
    Ok(json!({"sent": short(signal)}).to_string())
}

/// The signal that an input names.
fn wanted(input: &[u8]) -> Option<Signal> {
    let named = match serde_json::from_slice(input).ok()? {
        Input::Plain(named) | Input::Object { signal: named } => named,
    };
    SIGNALS.into_iter().find(|&signal| match &named {
        Named::Number(number) => *number == signal as i32,
        Named::Name(name) => {
            let name = name.to_ascii_uppercase();
            let name = name.strip_prefix("SIG").unwrap_or(&name);
            name == short(signal) || name.parse() == Ok(signal as i32)
        }
    })
}

/// Without `SIG`.
fn short(signal: Signal) -> &'static str {
    signal.as_str().trim_start_matches("SIG")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_signal_is_named_in_several_ways() {
        for input in [r#""TERM""#, r#""SIGTERM""#, r#""term""#, r#"{"signal":"TERM"}"#, "15", r#""15""#, " 15\n"] {
            assert_eq!(wanted(input.as_bytes()), Some(Signal::SIGTERM), "{input}");
        }
        assert_eq!(wanted(br#"{"signal":9}"#), Some(Signal::SIGKILL));
        assert_eq!(wanted(br#""WINCH""#), Some(Signal::SIGWINCH));
    }

    #[test]
    fn what_names_no_signal_that_may_be_sent_is_refused() {
        for input in ["null", "\"\"", "\"SEGV\"", "11", "0", "-15", "32", "15.0", "[15]", "{}", "\"TERM\" 1", "\"SIG\""]
        {
            assert_eq!(wanted(input.as_bytes()), None, "{input}");
        }
        assert_eq!(wanted(b"\xff"), None);
    }
}
