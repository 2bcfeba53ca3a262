//! Somebody who speaks with the daemon, and notes the shape of all that is said.

use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;

use serde_json::{Value, json};

use super::super::support::wire::{Answer, Done, Failure, Identity, Lines, Message, Peer, with_payload};
use super::shape::{Book, UNKNOWN};

/// Payloads that applications say to each other: the daemon knows nothing of their shape.
const OPAQUE: &[&str] = &["session.register", "session.update", "session.get", "session.send", "command"];

/// What several note, and the requests that were taken, for those who look at them once more.
#[derive(Default)]
pub struct Notes {
    pub book: Book,
    pub taken: Vec<(&'static str, String, Value)>,
}

pub struct Talk {
    pub peer: Peer,
    role: &'static str,
    notes: Rc<RefCell<Notes>>,
    asked: HashMap<u64, (String, Value)>,
    aside: Vec<Message>,
}

/// Notes lines of a handshake.
pub fn note_lines(notes: &RefCell<Notes>, lines: &Lines) {
    for (line, what) in [
        (&lines.first, "client: line hello"),
        (&lines.challenge, "daemon: line challenge"),
        (&lines.daemon_proof, "daemon: line proof"),
        (&lines.client_proof, "client: line proof"),
    ] {
        note_line(notes, what, line);
    }
}

pub fn note_line(notes: &RefCell<Notes>, what: &str, line: &[u8]) {
    notes.borrow_mut().book.note(what, &serde_json::from_slice(line).unwrap());
}

fn payload_of(method: &str, payload: &[u8]) -> Value {
    if OPAQUE.contains(&method) { json!(UNKNOWN) } else { serde_json::from_slice(payload).unwrap() }
}

impl Talk {
    pub fn connect(notes: &Rc<RefCell<Notes>>, role: &'static str, identity: &Identity) -> Self {
        Self::over(notes, role, Peer::connect(identity))
    }

    /// In protocol 0.
    pub fn connect_zero(notes: &Rc<RefCell<Notes>>, identity: &Identity) -> Self {
        Self::over(notes, "operator", Peer::connect_zero(identity))
    }

    fn over(notes: &Rc<RefCell<Notes>>, role: &'static str, peer: Peer) -> Self {
        note_lines(notes, &peer.lines);
        notes.borrow_mut().book.note("daemon: notification welcome", &json!({"params": peer.welcome}));
        Self { peer, role, notes: Rc::clone(notes), asked: HashMap::new(), aside: Vec::new() }
    }

    /// Asks; whoever asks waits for the answer by its id.
    pub fn ask(&mut self, method: &str, params: &Value, payload: Option<&[u8]>) -> u64 {
        let id = self.peer.request(method, params, payload);
        let mut request = json!({"params": params});
        if let Some(payload) = payload {
            request["payload"] = payload_of(method, payload);
        }
        self.asked.insert(id, (method.to_owned(), request));
        id
    }

    /// Reads until that is answered.
    pub fn answer(&mut self, id: u64) -> Answer {
        let is_it = |message: &Message| message.method().is_empty() && message.id() == Some(id);
        if let Some(at) = self.aside.iter().position(is_it) {
            return self.aside.remove(at).answer();
        }
        loop {
            let message = self
                .peer
                .next()
                .unwrap_or_else(|| panic!("{} was cut before {:?} was answered", self.role, self.asked[&id]));
            self.note(&message);
            if is_it(&message) {
                return message.answer();
            }
            self.aside.push(message);
        }
    }

    /// Asks for what is done.
    pub fn done(&mut self, method: &str, params: Value) -> Done {
        self.done_with(method, params, None)
    }

    pub fn done_with(&mut self, method: &str, params: Value, payload: Option<&[u8]>) -> Done {
        let id = self.ask(method, &params, payload);
        self.answer(id).unwrap_or_else(|failure| panic!("{method}: {failure:?}\n{params}"))
    }

    /// Asks for what is refused.
    pub fn refused(&mut self, method: &str, params: Value, code: &str) -> Failure {
        let id = self.ask(method, &params, None);
        let failure = self.answer(id).expect_err(method);
        assert_eq!(failure.code, code, "{method} {params}: {failure:?}");
        failure
    }

    /// The next request or notification of the daemon of this name.
    pub fn next(&mut self, name: &str) -> Message {
        if let Some(at) = self.aside.iter().position(|message| message.method() == name) {
            return self.aside.remove(at);
        }
        loop {
            let message = self.peer.next().unwrap_or_else(|| panic!("{} was cut before {name} came", self.role));
            self.note(&message);
            if message.method() == name {
                return message;
            }
            self.aside.push(message);
        }
    }

    /// Whatever comes until the end of the stream.
    pub fn rest(&mut self) {
        while let Some(message) = self.peer.next() {
            self.note(&message);
        }
    }

    /// Answers a request of the daemon.
    pub fn reply(&mut self, to: &Message, reply: Value, payload: Option<&[u8]>) {
        let mut header = json!({"jsonrpc": "2.0", "id": to.id().unwrap()});
        header.as_object_mut().unwrap().extend(reply.as_object().unwrap().clone());
        let mut noted = reply;
        if let Some(payload) = payload {
            noted["payload"] = payload_of(to.method(), payload);
        }
        let what = if noted.get("error").is_some() { "error" } else { "answer" };
        self.notes.borrow_mut().book.note(&format!("client: {what} {}", to.method()), &noted);
        assert!(self.peer.text(&with_payload(&header, payload)));
    }

    /// Says something that nobody answers.
    pub fn say(&mut self, method: &str, params: Value) {
        self.notes.borrow_mut().book.note(&format!("client: notification {method}"), &json!({"params": params}));
        assert!(self.peer.text(&with_payload(&json!({"jsonrpc": "2.0", "method": method, "params": params}), None)));
    }

    fn note(&mut self, message: &Message) {
        let header = &message.header;
        let mut noted = json!({});
        let mut notes = self.notes.borrow_mut();
        let method = message.method();
        if !method.is_empty() {
            let kind = if message.id().is_some() { "request" } else { "notification" };
            noted["params"] = header["params"].clone();
            if method == "events" {
                let events: Vec<Value> = serde_json::from_slice(message.payload.as_ref().unwrap()).unwrap();
                for event in events {
                    notes.book.note(&format!("daemon: event {}", event["kind"].as_str().unwrap()), &event);
                }
            } else if let Some(payload) = &message.payload {
                noted["payload"] = payload_of(method, payload);
            }
            return notes.book.note(&format!("daemon: {kind} {method}"), &noted);
        }
        let (method, request) = self.asked.get(&message.id().unwrap()).unwrap();
        if let Some(error) = header.get("error") {
            return notes.book.note("daemon: error", error);
        }
        for name in ["result", "receipt"] {
            if let Some(value) = header.get(name) {
                noted[name] = value.clone();
            }
        }
        if let Some(payload) = &message.payload {
            noted["payload"] = payload_of(method, payload);
        }
        notes.book.note(&format!("daemon: answer {method}"), &noted);
        // Noted when it was taken: what is refused may have any shape.
        notes.book.note(&format!("client: request {method}"), request);
        notes.taken.push((self.role, method.clone(), request["params"].clone()));
    }
}
