//! The lines, as they are or as a table, and those that come.
//!
//! While it follows it looks a few times a second: nobody has to be told that somebody reads.

use std::io::stdout;
use std::os::fd::AsFd;
use std::process::ExitCode;
use std::time::Duration;

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use serde_json::{Map, Value};

use crate::audit::{Reading, read_line};
use crate::store::Dir;
use crate::wire::text::escaped;

use super::super::args::{AuditArgs, Global, Since};
use super::super::trouble::Trouble;
use super::super::{Outcome, out};
use super::files;

/// Between two looks.
const LOOK: Duration = Duration::from_millis(250);

/// Characters of a cell that are shown.
const CELL_MAX_CHARS: usize = 400;

/// Prints what there is, and with `--follow` what comes.
pub fn main(global: &Global, args: &AuditArgs, dir: &Dir) -> Outcome {
    let mut printer = Printer { json: global.json, since: args.since, last: None, is_headed: false };
    let mut current = match files(dir) {
        Ok(files) => {
            if let Some(mut old) = files.old {
                printer.print(&mut old, true)?;
            }
            files.current
        }
        // It may be begun.
        Err(_) if args.follow => None,
        Err(trouble) => return Err(trouble),
    };
    loop {
        if let Some(file) = &mut current {
            // Asked before it is read: what it got until then is read, and nothing comes after.
            let is_turned = file.is_turned()?;
            let is_read = printer.print(file, is_turned || !args.follow)?;
            if !is_read || !args.follow {
                break;
            }
            if is_turned {
                current = Reading::current(dir)?;
                continue;
            }
        } else if !args.follow {
            break;
        } else {
            current = Reading::current(dir)?;
            if current.is_some() {
                continue;
            }
        }
        if !wait() {
            break;
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// Until the next look; `false` when the reader of standard output has gone.
fn wait() -> bool {
    let out = stdout();
    let mut fds = [PollFd::new(out.as_fd(), PollFlags::empty())];
    let timeout = PollTimeout::try_from(LOOK).unwrap_or(PollTimeout::ZERO);
    match poll(&mut fds, timeout) {
        Ok(0) => true,
        Ok(_) if fds[0].revents().is_some_and(|seen| seen.intersects(PollFlags::POLLERR | PollFlags::POLLNVAL)) => {
            false
        }
        // A terminal that hangs up, or a signal: no look is lost by a pause.
        _ => {
            std::thread::sleep(LOOK);
            true
        }
    }
}

struct Printer {
    json: bool,
    since: Option<Since>,
    last: Option<u64>,
    is_headed: bool,
}

impl Printer {
    /// Prints the whole lines that have come to a file, and keeps what is only begun for the next look. `is_done`: nothing
    /// comes any more. `false`: nobody reads.
    fn print(&mut self, file: &mut Reading, is_done: bool) -> Result<bool, Trouble> {
        let (mut lines, begun) = file.lines()?;
        if is_done && !begun.is_empty() {
            lines.push(begun);
        }
        let mut text = Vec::new();
        for line in &lines {
            self.line(line, &mut text);
        }
        stdout_takes(&text)
    }

    fn line(&mut self, bytes: &[u8], text: &mut Vec<u8>) {
        let Ok(line) = read_line(bytes) else {
            out::note(&format!("usher: {} bytes that are no line of an audit: usher audit --verify", bytes.len()));
            return;
        };
        if let Some(last) = self.last.filter(|last| line.seq > last + 1) {
            out::note(&format!("usher: lines seq {} to {} are not there any more", last + 1, line.seq - 1));
        }
        self.last = Some(line.seq);
        let is_wanted = match self.since {
            None => true,
            Some(Since::Seq(seq)) => line.seq >= seq,
            Some(Since::Time(time)) => line.ts.parse::<jiff::Timestamp>().is_ok_and(|ts| ts >= time),
        };
        if !is_wanted {
            return;
        }
        if self.json {
            text.extend_from_slice(bytes);
            text.push(b'\n');
            return;
        }
        if !std::mem::replace(&mut self.is_headed, true) {
            text.extend(row("TIME", "SEQ", "FACT", "WHO", "WHAT").into_bytes());
        }
        let (who, what) = told(bytes);
        // The file can be anybody's who could write to the folder.
        let (ts, fact) = (escaped(&line.ts, CELL_MAX_CHARS), escaped(&line.fact, CELL_MAX_CHARS));
        text.extend(row(&ts, &line.seq.to_string(), &fact, &who, &what).into_bytes());
    }
}

fn row(ts: &str, seq: &str, fact: &str, who: &str, what: &str) -> String {
    let line = format!("{ts:<24}  {seq:>7}  {fact:<19}  {who:<22}  {what}");
    format!("{}\n", line.trim_end())
}

/// Whose doing it was, and all else that the line tells.
fn told(line: &[u8]) -> (String, String) {
    let fields: Map<String, Value> = serde_json::from_slice(line).unwrap_or_default();
    let text = |value: &Value| value.as_str().map_or_else(|| value.to_string(), str::to_owned);
    let who = ["by", "credential"].into_iter().find(|name| fields.contains_key(*name));
    let is_said = |name: &str| matches!(name, "seq" | "ts" | "fact" | "prev" | "hash") || Some(name) == who;
    let what = fields.iter().filter(|(name, _)| !is_said(name));
    let what: Vec<_> = what.map(|(name, value)| format!("{name}={}", text(value))).collect();
    let who = who.and_then(|name| fields.get(name)).map_or_else(|| "-".to_owned(), text);
    (escaped(&who, CELL_MAX_CHARS), escaped(&what.join(" "), CELL_MAX_CHARS))
}

/// Writes; `false` when nobody reads any more.
fn stdout_takes(text: &[u8]) -> Result<bool, Trouble> {
    if text.is_empty() {
        return Ok(true);
    }
    out::bytes(text)?;
    let out = stdout();
    let mut fds = [PollFd::new(out.as_fd(), PollFlags::empty())];
    Ok(!poll(&mut fds, PollTimeout::ZERO).is_ok_and(|ready| ready > 0))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::base64url;
    use crate::wire::transcript::sha256;

    #[test]
    fn a_line_of_somebody_else_whose_hash_is_its_own_reaches_no_terminal() {
        let hostile = r"\u001b[2J\n\u202e";
        let body = format!(
            r#"{{"seq":1,"ts":"{hostile}","fact":"{hostile}","by":"{hostile}","x{hostile}":"{hostile}","prev":"{}""#,
            "A".repeat(43)
        );
        let hash = base64url(&sha256(&[b"usher/1 audit\n", body.as_bytes()]));
        let mut printer = Printer { json: false, since: None, last: None, is_headed: true };
        let mut text = Vec::new();
        printer.line(format!("{body},\"hash\":\"{hash}\"}}").as_bytes(), &mut text);
        let text = String::from_utf8(text).unwrap();
        assert_eq!(text.matches(r"\u{1b}[2J\n\u{202e}").count(), 5, "{text}");
        assert!(text.trim_end().chars().all(|c| !c.is_control() && c != '\u{202e}'), "{text:?}");
    }
}
