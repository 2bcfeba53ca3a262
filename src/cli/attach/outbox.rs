//! Lines to the program.
//!
//! Owns: their order and their bound. Invariants: a command that is over before its line was begun is not told at all, so
//! at most as many wait here as the session holds; of what else is told, what the program does not read is not
//! kept beyond [`NOTES_MAX`] lines. The writer waits for the program; only who answers the program's own requests
//! waits for the writer.

use std::collections::VecDeque;
use std::io::Write;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};

use super::message::{self, Notice};

/// Lines that are no commands and wait to be written.
const NOTES_MAX: usize = 64;

/// How often it is looked whether a program that does not read is there.
const LOOK: Duration = Duration::from_millis(500);

#[derive(Default)]
pub struct Outbox {
    queue: Mutex<Queue>,
    /// There is a line, or none will come.
    work: Condvar,
    /// A line is gone.
    gone: Condvar,
}

#[derive(Default)]
struct Queue {
    lines: VecDeque<Line>,
    notes: usize,
    is_writing: bool,
    /// The program was gone while an answer waited for it.
    is_deaf: bool,
    /// Nothing is written any more.
    is_over: bool,
}

struct Line {
    kind: Kind,
    text: Vec<u8>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Command(u64),
    Connection,
    Note,
}

impl Queue {
    /// Takes back the line of a command that was not begun.
    fn withdraw(&mut self, id: u64) -> bool {
        let place = self.lines.iter().position(|line| line.kind == Kind::Command(id));
        place.and_then(|place| self.lines.remove(place)).is_some()
    }
}

impl Outbox {
    /// A command. The session holds so many of them, and no more.
    pub fn command(&self, id: u64, text: Vec<u8>) {
        self.push(&mut self.queue.lock(), Kind::Command(id), text);
    }

    /// A command was answered, by who has not even read it: then it is not told any more.
    pub fn settle(&self, id: u64) {
        self.queue.lock().withdraw(id);
    }

    /// A command is given up: it is not told, or told to be cancelled.
    pub fn cancel(&self, id: u64) {
        let mut queue = self.queue.lock();
        if !queue.withdraw(id) {
            self.note(&mut queue, message::notice(&Notice::Cancel { id }));
        }
    }

    /// Where the connection is. Of what the program does not read the oldest goes.
    pub fn connection(&self, notice: &Notice<'_>) {
        let mut queue = self.queue.lock();
        if queue.notes >= NOTES_MAX {
            if let Some(oldest) = queue.lines.iter().position(|line| line.kind == Kind::Connection) {
                queue.lines.remove(oldest);
                queue.notes -= 1;
            }
        }
        if queue.notes < NOTES_MAX {
            self.push(&mut queue, Kind::Connection, message::notice(notice));
        }
    }

    /// What the program did wrong, with the command that it was about. Not kept where it does not read.
    pub fn error(&self, what: &str, id: Option<u64>) {
        self.note(&mut self.queue.lock(), message::notice(&Notice::Error { message: message::short(what), id }));
    }

    /// An answer to a request of the program's own. Waits for the program to read what was told before, but not for one
    /// that is gone: what else it has said is then heard to its end.
    pub fn reply(&self, text: Vec<u8>, is_gone: impl Fn() -> bool) {
        let mut queue = self.queue.lock();
        while queue.notes >= NOTES_MAX && !queue.is_over && !queue.is_deaf {
            if self.gone.wait_for(&mut queue, LOOK).timed_out() {
                queue.is_deaf = is_gone();
            }
        }
        self.note(&mut queue, text);
    }

    fn note(&self, queue: &mut Queue, text: Vec<u8>) {
        if queue.notes < NOTES_MAX {
            self.push(queue, Kind::Note, text);
        }
    }

    fn push(&self, queue: &mut Queue, kind: Kind, text: Vec<u8>) {
        if queue.is_over {
            return;
        }
        queue.notes += usize::from(!matches!(kind, Kind::Command(_)));
        queue.lines.push_back(Line { kind, text });
        self.work.notify_one();
    }

    /// The writer's thread: writes a line at a time until that fails or nothing more will come.
    pub fn write(&self, to: &mut impl Write) {
        let mut queue = self.queue.lock();
        while !queue.is_over {
            let Some(line) = queue.lines.pop_front() else {
                self.work.wait(&mut queue);
                continue;
            };
            queue.notes -= usize::from(!matches!(line.kind, Kind::Command(_)));
            queue.is_writing = true;
            drop(queue);
            let written = to.write_all(&line.text).and_then(|()| to.flush());
            queue = self.queue.lock();
            queue.is_writing = false;
            queue.is_over |= written.is_err();
            self.gone.notify_all();
        }
        queue.lines.clear();
    }

    /// Waits until all is written, at most until the deadline; then nothing more is.
    pub fn finish(&self, deadline: Instant) {
        let mut queue = self.queue.lock();
        while (queue.is_writing || !queue.lines.is_empty()) && !queue.is_over {
            if self.gone.wait_until(&mut queue, deadline).timed_out() {
                break;
            }
        }
        queue.is_over = true;
        self.work.notify_all();
        self.gone.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::SessionId;

    fn written(outbox: &Outbox) -> String {
        let mut bytes = Vec::new();
        std::thread::scope(|scope| {
            scope.spawn(|| outbox.finish(Instant::now() + Duration::from_secs(20)));
            outbox.write(&mut bytes);
        });
        String::from_utf8(bytes).unwrap()
    }

    fn connection(reason: &str) -> Notice<'_> {
        Notice::Connection { state: "waiting", session_id: SessionId([1; 16]), reason: Some(reason) }
    }

    #[test]
    fn lines_go_out_in_order_and_a_command_that_was_given_up_in_time_does_not() {
        let outbox = Outbox::default();
        outbox.command(1, b"one\n".to_vec());
        outbox.command(2, b"two\n".to_vec());
        outbox.cancel(1);
        outbox.cancel(7);
        outbox.reply(b"reply\n".to_vec(), || false);
        let text = written(&outbox);
        assert_eq!(text, "two\n{\"jsonrpc\":\"2.0\",\"method\":\"$/cancel\",\"params\":{\"id\":7}}\nreply\n");
        outbox.command(3, b"late\n".to_vec());
        assert!(outbox.queue.lock().lines.is_empty());
    }

    #[test]
    fn a_program_that_does_not_read_is_told_the_last_of_its_connection_and_costs_no_more_than_the_bound() {
        let outbox = Outbox::default();
        for number in 0..1_000 {
            outbox.connection(&connection(&number.to_string()));
            outbox.error("wrong", Some(number));
            outbox.cancel(number);
        }
        assert_eq!(outbox.queue.lock().lines.len(), NOTES_MAX);
        assert!(written(&outbox).contains("\"999\""));
    }

    #[test]
    fn what_cannot_be_written_ends_it() {
        struct Broken;
        impl Write for Broken {
            fn write(&mut self, _: &[u8]) -> std::io::Result<usize> {
                Err(std::io::ErrorKind::BrokenPipe.into())
            }
            fn flush(&mut self) -> std::io::Result<()> {
                Ok(())
            }
        }
        let outbox = Outbox::default();
        outbox.command(1, b"one\n".to_vec());
        outbox.write(&mut Broken);
        outbox.reply(b"nobody waits\n".to_vec(), || false);
    }
}
