//! What a run tells about itself: title, place, process, terminal, commands, snapshot.
//!
//! Owns: making each of them fit what the daemon takes, whatever this machine's names and paths hold. Nothing here
//! fails: what cannot be found out is left away.

use std::collections::BTreeMap;
use std::env;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use serde_json::json;

use crate::cli::text::{clean, head};
use crate::client::{Description, Offer, Terminal};
use crate::ids::SessionId;
use crate::limits::{LABELS_MAX_BYTES, PATH_MAX_BYTES, TITLE_MAX_BYTES};
use crate::sys;

use super::args::RunArgs;
use super::terminal;

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
    cwd: String,
    repo_root: Option<String>,
    terminal: Option<Terminal>,
    labels: BTreeMap<String, String>,
    max_in_flight: u32,
}

impl Report {
    /// Looks around. The child is `pid`.
    pub fn new(args: &RunArgs, session: SessionId, pid: u32) -> Self {
        let cwd = env::current_dir().unwrap_or_else(|_| PathBuf::from("/"));
        let cwd = cwd.canonicalize().unwrap_or(cwd);
        Self {
            session,
            pid,
            started: sys::process_started(pid).unwrap_or_else(now_ms),
            command: command_line(&args.command),
            shells: args.on.clone(),
            title: title(args.title.as_deref(), &args.command),
            repo_root: repo_root(&cwd).map(path_text),
            cwd: path_text(&cwd),
            terminal: terminal::find(),
            labels: args.labels.iter().map(|(key, value)| (key.clone(), label_value(value))).collect(),
            max_in_flight: args.max_in_flight,
        }
    }

    /// All of it with these commands, for the library.
    pub fn description(&self, offers: Vec<Offer>) -> Description {
        let mut description = Description::new(&self.title)
            .session_id(self.session)
            .cwd(&self.cwd)
            .process(self.pid, self.started)
            .max_in_flight(self.max_in_flight)
            .snapshot(self.snapshot());
        if let Some(root) = &self.repo_root {
            description = description.repo_root(root);
        }
        if let Some(terminal) = &self.terminal {
            description = description.terminal(terminal.clone());
        }
        for (key, value) in &self.labels {
            description = description.label(key, value);
        }
        offers.into_iter().fold(description, Description::offer)
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

/// The title that was given, else the program's name with its arguments.
fn title(given: Option<&str>, command: &[OsString]) -> String {
    let words = command.iter().enumerate().map(|(place, word)| {
        let name = if place == 0 { Path::new(word).file_name() } else { None };
        name.unwrap_or(word).to_string_lossy().into_owned()
    });
    let text = given.map_or_else(|| words.collect::<Vec<_>>().join(" "), str::to_owned);
    let title = head(clean(&text).trim(), TITLE_MAX_BYTES).trim_end().to_owned();
    if title.is_empty() { "run".to_owned() } else { title }
}

fn path_text(path: impl AsRef<Path>) -> String {
    head(&clean(&path.as_ref().to_string_lossy()), PATH_MAX_BYTES).to_owned()
}

/// The nearest folder upwards that holds `.git`, a folder or, in a worktree, a file.
fn repo_root(cwd: &Path) -> Option<&Path> {
    cwd.ancestors().find(|folder| folder.join(".git").symlink_metadata().is_ok())
}

fn label_value(value: &str) -> String {
    head(&clean(value), LABELS_MAX_BYTES).to_owned()
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
            title: None,
            labels: [("k".into(), "v\n\u{202e}".into())].into(),
            on: vec![("reload".into(), "printf '\u{1b}'\n".repeat(100)), ("empty".into(), String::new())],
            max_in_flight: 4,
            command: vec![OsString::from_vec(bytes), "x".repeat(100_000).into(), "é".repeat(200).into()],
        }
    }

    #[test]
    fn whatever_is_run_the_daemon_takes_what_is_told() {
        let report = Report::new(&hostile(), SessionId([1; 16]), std::process::id());
        assert!(report.title.starts_with("na\u{fffd}me [31m xxx"), "{}", report.title);
        assert_eq!(report.title.len(), TITLE_MAX_BYTES);
        assert_eq!(report.labels["k"], "v  ");
        assert!(report.snapshot().len() < 2 * COMMAND_LINE_MAX_BYTES);
        let (report, child) = (Arc::new(report), Arc::new(Child::start(&["true".into()], SessionId([1; 16])).unwrap()));
        let offers = offers::all(&report, &child, &Bells::default());
        let target = Target::dir(Path::new("/nonexistent")).unwrap();
        assert!(Producer::new(target, report.description(offers)).is_ok());
    }

    #[test]
    fn a_title_is_the_programs_name_with_its_arguments_unless_one_is_given() {
        let command: Vec<OsString> = ["/usr/bin/vim", "/etc/hosts"].iter().map(Into::into).collect();
        assert_eq!(title(None, &command), "vim /etc/hosts");
        assert_eq!(title(Some("my\teditor"), &command), "my editor");
        assert_eq!(title(None, &["/".into()]), "/");
        assert_eq!(title(None, &["\u{1b}".into()]), "run");
        assert_eq!(title(None, &["é".repeat(200).into()]), "é".repeat(128));
    }

    #[test]
    fn the_repository_is_the_nearest_folder_with_git_in_it() {
        let here = Path::new(env!("CARGO_MANIFEST_DIR"));
        if here.join(".git").exists() {
            assert_eq!(repo_root(&here.join("src/cli")), Some(here));
        }
        assert_eq!(repo_root(Path::new("/proc")), None);
    }
}
