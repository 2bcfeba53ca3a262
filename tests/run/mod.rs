//! `usher run`: the program on its terminal, its commands, and what becomes of it when the daemon goes.

#![expect(
    clippy::unwrap_used,
    clippy::panic,
    clippy::print_stdout,
    clippy::disallowed_methods,
    reason = "a helper that fails is a test that fails"
)]

mod commands;
mod link;
mod program;
pub(super) mod terminal;

use std::path::Path;
use std::process::{Child, Command, Stdio};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;

use super::support::daemon::{Place, Ran, finished};
use super::support::wait::until;

/// A running `usher run` with its session. Dropped, the program and it are ended.
struct Window {
    run: Option<Child>,
    row: Value,
}

impl Window {
    /// Runs `sleep` under the title until it is ended, with these options.
    fn open(place: &Place, title: &str, options: &[&str]) -> Self {
        let mut command = place.usher();
        command.args(["run", "--title", title]).args(options).args(["--", "sleep", "600"]);
        Self::of(place, title, &mut command)
    }

    /// Waits for the session of a command that is a run.
    fn of(place: &Place, title: &str, command: &mut Command) -> Self {
        let run = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let row = until("the session is listed", || session(place, title));
        Self { run: Some(run), row }
    }

    fn id(&self) -> &str {
        self.row["session_id"].as_str().unwrap()
    }

    /// Of `usher run`.
    fn pid(&self) -> u32 {
        self.run.as_ref().unwrap().id()
    }

    /// Of the program.
    fn program(&self) -> u32 {
        u32::try_from(self.row["pid"].as_u64().unwrap()).unwrap()
    }

    /// Waits for its end.
    fn end(mut self) -> Ran {
        finished(self.run.take().unwrap())
    }

    fn send(&self, place: &Place, args: &[&str]) -> Ran {
        place.run(&[&["--json", "send", "--session", self.id()], args].concat())
    }

    /// The result of a command that has to succeed.
    fn result(&self, place: &Place, args: &[&str]) -> Value {
        let ran = self.send(place, args);
        assert_eq!((ran.code, ran.stderr.as_str()), (0, ""), "{args:?}: {ran:?}");
        let mut document: Value = serde_json::from_str(&ran.stdout).unwrap();
        document["result"].take()
    }
}

impl Drop for Window {
    fn drop(&mut self) {
        if let Some(mut run) = self.run.take() {
            if run.try_wait().unwrap().is_none() {
                signal(self.program(), Signal::SIGKILL);
            }
            let _status = run.wait();
        }
    }
}

fn sessions(place: &Place) -> Vec<Value> {
    place.json(&["list"])["sessions"].as_array().unwrap().clone()
}

fn session(place: &Place, title: &str) -> Option<Value> {
    sessions(place).into_iter().find(|row| row["title"] == title)
}

fn signal(pid: u32, signal: Signal) {
    let _ended_already = kill(Pid::from_raw(i32::try_from(pid).unwrap()), signal);
}

/// State of a process, as one letter; none when there is no such process.
fn state(pid: u32) -> Option<char> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    stat.rsplit_once(") ")?.1.chars().next()
}

/// The children of a process with their states.
fn children(pid: u32) -> Vec<(u32, char)> {
    let parent_of = |pid: u32| -> Option<u32> {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        stat.rsplit_once(") ")?.1.split(' ').nth(1)?.parse().ok()
    };
    let names = std::fs::read_dir("/proc").unwrap().flatten().map(|entry| entry.file_name());
    let pids = names.filter_map(|name| name.to_str()?.parse::<u32>().ok());
    pids.filter(|child| parent_of(*child) == Some(pid)).filter_map(|child| Some((child, state(child)?))).collect()
}

fn descriptors(pid: u32) -> usize {
    std::fs::read_dir(format!("/proc/{pid}/fd")).unwrap().count()
}

/// What a program has written into a file once it ends with LF.
fn line_in(file: &Path) -> Option<String> {
    std::fs::read_to_string(file).ok()?.strip_suffix('\n').map(str::to_owned)
}
