//! `usher attach`: lines between a program and its session.

#![expect(clippy::unwrap_used, clippy::panic, reason = "a helper that fails is a test that fails")]

mod ending;
mod examples;
mod lines;

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, sync_channel};
use std::thread::JoinHandle;

use serde_json::{Value, json};

use super::support::daemon::{Place, Ran, finished};
use super::support::threads;
use super::support::wait::{PATIENCE, until};

/// A running `usher attach`, whose program is the test. Dropped, it is ended.
pub struct Attached {
    child: Option<Child>,
    stdin: Option<ChildStdin>,
    lines: Receiver<Value>,
    reader: Option<JoinHandle<()>>,
    id: String,
}

impl Attached {
    /// With a session that is open.
    fn open(place: &Place, args: &[&str]) -> Self {
        let mut attached = Self::of(place.usher().arg("attach").args(args));
        attached.id = attached.wait_for("open")["session_id"].as_str().unwrap().to_owned();
        attached
    }

    pub fn of(command: &mut Command) -> Self {
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let stdin = child.stdin.take();
        let stdout = BufReader::new(child.stdout.take().unwrap());
        // Room for all that a test gets: who does not ask reads all the same.
        let (tell, lines) = sync_channel(10_000);
        let reader = threads::spawn("lines", move || {
            for line in stdout.lines().map_while(Result::ok) {
                tell.send(serde_json::from_str(&line).unwrap()).unwrap();
            }
        });
        Self { child: Some(child), stdin, lines, reader: Some(reader), id: String::new() }
    }

    fn next(&self) -> Value {
        self.lines.recv_timeout(PATIENCE).unwrap()
    }

    /// Passes over lines until the connection is so; its parameters.
    pub fn wait_for(&self, state: &str) -> Value {
        loop {
            let mut line = self.next();
            if line["method"] == "connection" && line["params"]["state"] == state {
                return line["params"].take();
            }
        }
    }

    /// The next command; anything else is none.
    fn command(&self) -> Value {
        let line = self.next();
        assert_eq!(line["method"], "command", "{line}");
        line
    }

    /// The next error notification's text.
    fn error(&self) -> (String, Option<u64>) {
        let line = self.next();
        assert_eq!(line["method"], "error", "{line}");
        (line["params"]["message"].as_str().unwrap().to_owned(), line["params"]["id"].as_u64())
    }

    fn write(&mut self, line: &str) {
        self.stdin.as_mut().unwrap().write_all(format!("{line}\n").as_bytes()).unwrap();
    }

    fn say(&mut self, message: &Value) {
        self.write(&message.to_string());
    }

    fn pid(&self) -> u32 {
        self.child.as_ref().unwrap().id()
    }

    /// Starts `usher send` to this session.
    fn sending(&self, place: &Place, args: &[&str]) -> Child {
        let mut send = place.usher();
        send.args(["send", "--session", &self.id]).args(args);
        send.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
    }

    /// Sends a command, answers it so, and what the caller got.
    fn answered(&mut self, place: &Place, args: &[&str], answer: Value) -> (Value, Ran) {
        let sending = self.sending(place, args);
        let command = self.command();
        let mut answer = answer;
        answer["id"] = command["id"].clone();
        self.say(&answer);
        (command, finished(sending))
    }

    /// The session works.
    fn is_well(&mut self, place: &Place) {
        let (command, ran) = self.answered(place, &["ok", "[1]"], json!({"result": "fine"}));
        assert_eq!((&command["params"]["input"], ran.code, ran.stdout.as_str()), (&json!([1]), 0, "fine\n"));
    }

    /// Waits for its end.
    fn end(mut self) -> Ran {
        let ran = finished(self.child.take().unwrap());
        self.reader.take().unwrap().join().unwrap();
        ran
    }
}

impl Drop for Attached {
    fn drop(&mut self) {
        drop(self.stdin.take());
        if let Some(mut child) = self.child.take() {
            let _ended_already = child.kill();
            let _status = child.wait();
        }
    }
}

fn session(place: &Place, title: &str) -> Option<Value> {
    let list = place.json(&["list"]);
    list["sessions"].as_array().unwrap().iter().find(|row| row["title"] == title).cloned()
}

fn is_gone(place: &Place, title: &str) {
    until("the session is gone", || session(place, title).is_none().then_some(()));
}
