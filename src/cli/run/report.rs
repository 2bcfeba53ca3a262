//! What a run tells about itself: its program, commands, snapshot.
//!
//! Owns: making each of them fit what the daemon takes, whatever the program is called. Nothing here fails.

use std::ffi::OsString;
use std::path::Path;
use std::time::SystemTime;

use serde_json::json;

use crate::cli::session::Named;
use crate::cli::text::head;
use crate::client::{Description, Offer};
use crate::ids::SessionId;
use crate::sys;

use super::args::RunArgs;

/// Bytes of the command line that are told in snapshot and `status`.
const COMMAND_LINE_MAX_BYTES: usize = 16 * 1024;

/// All of it, gathered once the child runs.
#[derive(Debug, Clone)]
pub struct Report {
    /// Drawn before the child started: it has it in its environment.
    pub session: SessionId,
    /// The child's.
    pub pid: u32,
    /// When the child started, in ms since 1970.
    pub started: u64,
    /// The command line as text.
    pub command: Vec<String>,
    /// Commands and what `sh -c` gets for each.
    pub shells: Vec<(String, String)>,
    title: String,
    named: Named,
}

impl Report {
    /// Looks around. The child is `pid`.
    pub fn new(args: &RunArgs, session: SessionId, pid: u32) -> Self {
        Self {
            session,
            pid,
            started: sys::process_started(pid).unwrap_or_else(now_ms),
            command: command_line(&args.command),
            shells: args.on.clone(),
            title: title(&args.command),
            named: args.named.clone(),
        }
    }

    /// All of it with these commands, for the library.
    pub fn description(&self, offers: Vec<Offer>) -> Description {
        let described = self.named.describe(&self.title);
        let described = described.session_id(self.session).process(self.pid, self.started).snapshot(self.snapshot());
        offers.into_iter().fold(described, Description::offer)
    }

    /// The session's snapshot, as JSON text.
    fn snapshot(&self) -> Vec<u8> {
        json!({"command": self.command, "pid": self.pid, "state": "running"}).to_string().into_bytes()
    }
}

fn now_ms() -> u64 {
    let since = SystemTime::UNIX_EPOCH.elapsed().unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or_default()
}

/// The program's name with its arguments.
fn title(command: &[OsString]) -> String {
    let words = command.iter().enumerate().map(|(place, word)| {
        let name = if place == 0 { Path::new(word).file_name() } else { None };
        name.unwrap_or(word).to_string_lossy().into_owned()
    });
    words.collect::<Vec<_>>().join(" ")
}

/// The words as text; those beyond the bound are left away, and that is shown.
fn command_line(command: &[OsString]) -> Vec<String> {
    let mut room = COMMAND_LINE_MAX_BYTES;
    let mut words = Vec::new();
    for word in command {
        let word = word.to_string_lossy();
        if word.len() > room {
            words.push(format!("{}…", head(&word, room)));
            break;
        }
        room -= word.len();
        words.push(word.into_owned());
    }
    words
}

#[cfg(test)]
mod tests {
    use std::os::unix::ffi::OsStringExt;
    use std::sync::Arc;

    use super::super::bells::Bells;
    use super::super::child::Child;
    use super::super::offers;
    use super::*;
    use crate::client::{Producer, Target};

    fn hostile() -> RunArgs {
        let bytes = b"/bin/na\xffme\x1b[31m".to_vec();
        RunArgs {
            named: Named { labels: [("k".into(), "v\n\u{202e}".into())].into(), ..Named::default() },
            on: vec![("reload".into(), "printf '\u{1b}'\n".repeat(100)), ("empty".into(), String::new())],
            command: vec![OsString::from_vec(bytes), "x".repeat(100_000).into(), "é".repeat(200).into()],
        }
    }

    #[test]
    fn whatever_is_run_the_daemon_takes_what_is_told() {
        let report = Arc::new(Report::new(&hostile(), SessionId([1; 16]), std::process::id()));
        assert!(report.title.starts_with("na\u{fffd}me\u{1b}[31m xxx"), "{:.80}", report.title);
        assert!(report.snapshot().len() < 2 * COMMAND_LINE_MAX_BYTES);
        let child = Arc::new(Child::start(&["true".into()], SessionId([1; 16])).unwrap());
        let offers = offers::all(&report, &child, &Bells::default());
        let target = Target::dir(Path::new("/nonexistent")).unwrap();
        assert_eq!(Producer::new(target, report.description(offers)).err(), None);
    }

    #[test]
    fn a_title_is_the_programs_name_with_its_arguments() {
        let command: Vec<OsString> = ["/usr/bin/vim", "/etc/hosts"].iter().map(Into::into).collect();
        assert_eq!(title(&command), "vim /etc/hosts");
        assert_eq!(title(&["/".into()]), "/");
    }
}
