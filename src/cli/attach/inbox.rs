//! Lines from the program.
//!
//! Owns: reading them within a bound, and what each does. Invariant: a line that is not understood changes nothing, and
//! the program is told which and why.

use std::io::{self, BufRead, ErrorKind};
use std::os::fd::AsFd;
use std::sync::Arc;

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use serde_json::value::RawValue;

use crate::client::{Producer, Update};
use crate::limits::{ATTACH_LINE_MAX_BYTES, Limits};
use crate::wire::{json, object};

use super::calls::{Answer, Calls, Worth};
use super::message::{self, Incoming, OfferParams, UpdateParams};
use super::outbox::Outbox;
use super::program::Program;

/// The longest id of a request of the program's own: its answer may wait to be read.
const ID_MAX_BYTES: usize = 1_024;

/// What the program says is for them.
pub struct Inbox {
    producer: Arc<Producer>,
    calls: Arc<Calls>,
    outbox: Arc<Outbox>,
    program: Program,
}

/// What is wrong with a line, and the command that it was about.
struct Wrong {
    what: String,
    id: Option<u64>,
}

impl From<String> for Wrong {
    fn from(what: String) -> Self {
        Self { what, id: None }
    }
}

impl Inbox {
    pub fn new(producer: &Arc<Producer>, calls: &Arc<Calls>, outbox: &Arc<Outbox>, program: Program) -> Self {
        Self { producer: Arc::clone(producer), calls: Arc::clone(calls), outbox: Arc::clone(outbox), program }
    }

    /// The reader's thread, until the program says nothing more.
    pub fn read(&self, from: &mut impl BufRead) {
        let mut line = Vec::new();
        while let Ok(Some(is_whole)) = next_line(from, &mut line) {
            let done = if is_whole {
                self.take(&line)
            } else {
                Err(format!("a line is longer than {ATTACH_LINE_MAX_BYTES} bytes and was passed over").into())
            };
            if let Err(Wrong { what, id }) = done {
                self.outbox.error(&what, id);
            }
            // The room of a large line is not kept for small ones.
            line.clear();
            line.shrink_to(64 * 1024);
        }
    }

    fn take(&self, line: &[u8]) -> Result<(), Wrong> {
        if line.trim_ascii().is_empty() {
            return Ok(());
        }
        let incoming: Incoming =
            object::read(line).map_err(|error| format!("a line is not a JSON-RPC message: {error}"))?;
        if incoming.jsonrpc.as_ref().is_some_and(|version| version != "2.0") {
            return Err("a line is not JSON-RPC 2.0".to_owned().into());
        }
        if incoming.id.as_ref().is_some_and(|id| id.get().len() > ID_MAX_BYTES) {
            return Err(format!("an id is longer than {ID_MAX_BYTES} bytes").into());
        }
        match incoming {
            Incoming { method: Some(method), id, params, result: None, error: None, .. } => {
                self.asked(&method, id.as_deref(), params.as_deref());
                Ok(())
            }
            Incoming { method: None, id: Some(id), params: None, result: Some(result), error: None, .. } => {
                let id = number(&id)?;
                self.answered(id, payload(&result))
            }
            Incoming { method: None, id: Some(id), params: None, result: None, error: Some(error), .. } => {
                self.answered(number(&id)?, Ok(Err(error.message)))
            }
            _ => Err("a line is neither an answer nor a notification".to_owned().into()),
        }
    }

    /// An answer, or why it is none: then its command fails.
    fn answered(&self, id: u64, answer: Result<Answer, String>) -> Result<(), Wrong> {
        let wrong = answer.as_ref().err().cloned();
        let worth = self.calls.answer(id, answer.unwrap_or_else(Err));
        let what = match (worth, wrong) {
            (Worth::Taken, None) => return Ok(()),
            (Worth::Taken, Some(wrong)) => wrong,
            (Worth::Over, _) => format!("command {id} is over: it was answered, cancelled, or its deadline passed"),
            (Worth::Never, _) => format!("there was no command {id}"),
        };
        Err(Wrong { what, id: Some(id) })
    }

    /// A notification, or a request, which is answered.
    fn asked(&self, method: &str, id: Option<&RawValue>, params: Option<&RawValue>) {
        let done = match method {
            "update" => self.update(params),
            _ => Err(format!("there is no method {method:?}")),
        };
        match (id, done) {
            (Some(id), done) => {
                let reply = message::reply(id, done.as_ref().map(drop).map_err(String::as_str));
                self.outbox.reply(reply, has_hung_up);
            }
            (None, Err(what)) => self.outbox.error(&format!("{method}: {what}"), None),
            (None, Ok(())) => {}
        }
    }

    fn update(&self, params: Option<&RawValue>) -> Result<(), String> {
        let params = params.map_or("{}", RawValue::get);
        let UpdateParams { title, labels, commands, snapshot } = object::read(params.as_bytes())?;
        let snapshot = snapshot.map(|snapshot| one_text(&snapshot, "snapshot")).transpose()?;
        let is_update = title.is_some() || labels.is_some() || commands.is_some();
        let mut update = Update::new();
        if let Some(title) = title {
            update = update.title(title);
        }
        if let Some(labels) = labels {
            update = update.labels(labels);
        }
        if let Some(commands) = commands {
            let offer = |command: &OfferParams| match command {
                OfferParams::Name(name) => self.program.offer(name, None),
                OfferParams::Described(offer) => self.program.offer(&offer.name, offer.description.as_deref()),
            };
            update = update.offers(commands.iter().map(offer).collect());
        }
        if is_update {
            self.producer.update(update).map_err(|error| error.to_string())?;
        }
        match snapshot {
            Some(snapshot) => self.producer.snapshot(snapshot).map_err(|error| error.to_string()),
            None => Ok(()),
        }
    }
}

/// Whether nobody can say anything more on standard input, whatever there is still to be read.
fn has_hung_up() -> bool {
    let input = io::stdin();
    let mut input = [PollFd::new(input.as_fd(), PollFlags::empty())];
    poll(&mut input, PollTimeout::ZERO).is_ok() && input[0].any().unwrap_or(false)
}

/// The next line into an empty buffer, without its LF. False: it was too long, and is gone. None: there is no more; what
/// stands behind the last LF is no line.
fn next_line(from: &mut impl BufRead, line: &mut Vec<u8>) -> io::Result<Option<bool>> {
    let mut is_whole = true;
    loop {
        let bytes = match from.fill_buf() {
            Ok([]) => return Ok(None),
            Ok(bytes) => bytes,
            Err(error) if error.kind() == ErrorKind::Interrupted => continue,
            Err(error) => return Err(error),
        };
        let end = bytes.iter().position(|&byte| byte == b'\n');
        let part = &bytes[..end.unwrap_or(bytes.len())];
        if is_whole && line.len() + part.len() <= ATTACH_LINE_MAX_BYTES {
            line.extend_from_slice(part);
        } else {
            is_whole = false;
            *line = Vec::new();
        }
        let used = part.len() + usize::from(end.is_some());
        from.consume(used);
        if end.is_some() {
            return Ok(Some(is_whole));
        }
    }
}

fn number(id: &RawValue) -> Result<u64, Wrong> {
    let why = || format!("{:.40} is not the id of a command", id.get());
    id.get().parse().map_err(|_| why().into())
}

/// A result as it goes to the caller, or why it cannot.
fn payload(result: &RawValue) -> Result<Answer, String> {
    let text = one_text(result, "result")?;
    let most = Limits::default().result_bytes;
    if text.len() as u64 > most {
        return Err(format!("the result is larger than {most} bytes"));
    }
    Ok(Ok(text))
}

fn one_text(payload: &RawValue, what: &str) -> Result<Vec<u8>, String> {
    let text = json::check(payload.get().as_bytes()).map_err(|why| format!("invalid-payload: the {what}: {why}"))?;
    Ok(json::one_line(text).into_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_read_within_their_bound_and_a_longer_one_is_passed_over() {
        let long = [vec![b'x'; ATTACH_LINE_MAX_BYTES + 1], b"\nfour\n".to_vec()].concat();
        let bytes = [b"one\n\nthree\r\n", long.as_slice(), b"never ended"].concat();
        let mut from = io::BufReader::with_capacity(1_000, bytes.as_slice());
        let mut next = || {
            let mut line = Vec::new();
            let whole = next_line(&mut from, &mut line).unwrap();
            (whole, String::from_utf8(line).unwrap())
        };
        for text in ["one", "", "three\r"] {
            assert_eq!(next(), (Some(true), text.to_owned()));
        }
        assert_eq!(next(), (Some(false), String::new()));
        assert_eq!(next(), (Some(true), "four".to_owned()));
        assert_eq!(next().0, None);
    }

    #[test]
    fn an_id_is_a_whole_number_as_it_was_given() {
        let id = |text: &str| number(&RawValue::from_string(text.to_owned()).unwrap()).ok();
        assert_eq!(id("7"), Some(7));
        for text in ["\"7\"", "7.0", "-1", "null", "1e3", "18446744073709551616"] {
            assert_eq!(id(text), None, "{text}");
        }
    }
}
