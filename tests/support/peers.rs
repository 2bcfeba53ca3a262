//! Producers, callers and operators for tests, over [`super::wire`].

use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::thread::JoinHandle;

use parking_lot::Mutex;
use serde_json::{Value, json};

use super::daemon::Place;
use super::threads;
use super::wait::until;
use super::wire::{Answer, Done, Identity, Key, Message, Outgoing, Peer, base64, random, with_payload};

/// A command as it reached a producer: an effect.
#[derive(Debug, Clone)]
pub struct Command {
    /// The daemon's request.
    pub id: u64,
    /// Its name.
    pub name: String,
    /// Its key.
    pub key: Option<String>,
    /// The credential of whoever sent it.
    pub caller: String,
    /// Its input.
    pub input: Option<Vec<u8>>,
}

/// What a producer hears.
pub enum Heard<'a> {
    /// A command, to be answered.
    Command(&'a Command),
    /// The answer to a request of its own.
    Answer,
}

/// What a producer answers.
pub enum Reply {
    /// A result.
    Result(Option<Vec<u8>>),
    /// A failure.
    Failure(String),
    /// Nothing, for now.
    Nothing,
}

#[derive(Default)]
struct Seen {
    commands: Mutex<Vec<Command>>,
    cancelled: Mutex<Vec<u64>>,
}

/// A session with a thread that answers its commands:
/// `echo` with its input, `count` with nothing, `fail` with a failure, `big` with 1 MiB, `hold` not at all.
pub struct Producer {
    /// The session's id.
    pub session: String,
    outgoing: Arc<Mutex<Outgoing>>,
    socket: Arc<UnixStream>,
    seen: Arc<Seen>,
    thread: Option<JoinHandle<()>>,
}

/// The result of `big`.
pub fn big() -> Vec<u8> {
    let mut text = vec![b'x'; 1024 * 1024];
    text[0] = b'"';
    text[1024 * 1024 - 1] = b'"';
    text
}

/// Parameters of a registration.
pub fn registration(title: &str, max_in_flight: u32) -> Value {
    let commands: Vec<_> = ["echo", "count", "fail", "big", "hold"].map(|name| json!({ "name": name })).into();
    json!({
        "title": title, "cwd": "/tmp", "pid": std::process::id(), "started": 1, "commands": commands,
        "max_in_flight": max_in_flight, "reconnect_key": base64(&Key::random().public()),
    })
}

/// A session with the key that takes it back.
pub struct Lease {
    /// The session's id.
    pub session: [u8; 16],
    /// Its reconnect key.
    pub key: Key,
}

impl Lease {
    /// Of a new session.
    pub fn random() -> Self {
        let mut session = random::<16>();
        // No command line takes its text for an option.
        session[0] &= 0x7f;
        Self { session, key: Key::random() }
    }

    /// The id as text.
    pub fn id(&self) -> String {
        base64(&self.session)
    }

    /// The key's word that the session belongs to this connection.
    pub fn signature(&self, peer: &Peer) -> String {
        self.key.sign(&[b"usher/1 lease\n", &peer.lines.t3(), &self.session])
    }

    /// Parameters of its first registration.
    pub fn registration(&self) -> Value {
        let mut params = registration("leased", 1);
        params["session_id"] = json!(self.id());
        params["reconnect_key"] = json!(base64(&self.key.public()));
        params
    }

    /// Registers it for the first time.
    pub fn register(&self, peer: &mut Peer) -> Answer {
        peer.call("session.register", &self.registration(), None)
    }

    /// Takes it back.
    pub fn take_back(&self, peer: &mut Peer) -> Answer {
        let mut params = self.registration();
        params["lease_signature"] = json!(self.signature(peer));
        peer.call("session.register", &params, None)
    }

    /// Parameters that stage another key.
    pub fn staging(&self, peer: &Peer, rotation: &[u8; 16], new: &Key) -> Value {
        let said: [&[u8]; 5] = [b"usher/1 stage\n", &peer.lines.t3(), &self.session, rotation, &new.public()];
        json!({
            "rotation_id": base64(rotation), "new_key": base64(&new.public()),
            "signatures": {"old": self.key.sign(&said), "new": new.sign(&said)},
        })
    }
}

/// Answers a request of the daemon.
pub fn reply_to(outgoing: &Mutex<Outgoing>, id: u64, reply: Reply) -> bool {
    let mut header = json!({"jsonrpc": "2.0", "id": id});
    let payload = match reply {
        Reply::Result(payload) => {
            header["result"] = json!({});
            payload
        }
        Reply::Failure(message) => {
            header["error"] = json!({"code": -32000, "message": message});
            None
        }
        Reply::Nothing => return true,
    };
    outgoing.lock().text(&with_payload(&header, payload.as_deref()))
}

fn usual(command: &Command) -> Reply {
    match command.name.as_str() {
        "echo" => Reply::Result(command.input.clone()),
        "count" => Reply::Result(None),
        "fail" => Reply::Failure("as asked".to_owned()),
        "big" => Reply::Result(Some(big())),
        _ => Reply::Nothing,
    }
}

impl Producer {
    /// Of the default credential, one command at a time.
    pub fn start(place: &Place, title: &str) -> Self {
        Self::with(&Identity::of(place, "producer"), &registration(title, 1))
    }

    /// Of any credential and registration, with the usual answers.
    pub fn with(identity: &Identity, registration: &Value) -> Self {
        let seen = Arc::new(Seen::default());
        let record = Arc::clone(&seen);
        Self::answering(identity, registration, seen, move |heard| match heard {
            Heard::Command(command) => {
                record.commands.lock().push(command.clone());
                usual(command)
            }
            Heard::Answer => Reply::Nothing,
        })
    }

    /// With answers of the test's own.
    pub fn custom(
        identity: &Identity,
        registration: &Value,
        answer: impl FnMut(Heard<'_>) -> Reply + Send + 'static,
    ) -> Self {
        Self::answering(identity, registration, Arc::default(), answer)
    }

    fn answering(
        identity: &Identity,
        registration: &Value,
        seen: Arc<Seen>,
        mut answer: impl FnMut(Heard<'_>) -> Reply + Send + 'static,
    ) -> Self {
        let mut peer = Peer::connect(identity);
        let registered = peer.call("session.register", registration, None).unwrap().result;
        let session = registered["session_id"].as_str().unwrap().to_owned();
        let (outgoing, socket, told) = (peer.outgoing(), Arc::clone(&peer.stream.socket), Arc::clone(&seen));
        // It may idle for as long as its test takes, and ends with its socket.
        socket.set_read_timeout(None).unwrap();
        let thread = threads::spawn("producer", move || {
            while let Some(message) = peer.next() {
                match message.method() {
                    "command" => {
                        let command = Command::of(&message);
                        let reply = answer(Heard::Command(&command));
                        reply_to(&peer.outgoing(), command.id, reply);
                    }
                    "$/cancel" => {
                        told.cancelled.lock().push(message.header["params"]["id"].as_u64().unwrap());
                    }
                    "" => drop(answer(Heard::Answer)),
                    _ => {}
                }
            }
        });
        Self { session, outgoing, socket, seen, thread: Some(thread) }
    }

    /// How many commands of a name have reached it.
    pub fn effects(&self, name: &str) -> usize {
        self.seen.commands.lock().iter().filter(|command| command.name == name).count()
    }

    /// Waits for the `n`th command of a name and returns it.
    pub fn nth(&self, name: &str, n: usize) -> Command {
        until(&format!("command {name} number {n} reaches its session"), || {
            self.seen.commands.lock().iter().filter(|command| command.name == name).nth(n - 1).cloned()
        })
    }

    /// The ids for which `$/cancel` came.
    pub fn cancelled(&self) -> Vec<u64> {
        self.seen.cancelled.lock().clone()
    }

    /// Answers what was held.
    pub fn release(&self, id: u64, reply: Reply) -> bool {
        reply_to(&self.outgoing, id, reply)
    }

    /// Its writing side.
    pub fn outgoing(&self) -> &Mutex<Outgoing> {
        &self.outgoing
    }

    /// Its socket.
    pub fn socket(&self) -> &Arc<UnixStream> {
        &self.socket
    }

    /// Is gone without a word, as after `kill -9`.
    pub fn kill(&mut self) {
        let _gone = self.socket.shutdown(Shutdown::Both);
        if let Some(thread) = self.thread.take() {
            thread.join().unwrap();
        }
    }

    /// Waits until the daemon has ended its connection.
    pub fn ended(&mut self) {
        if let Some(thread) = self.thread.take() {
            thread.join().unwrap();
        }
    }
}

impl Drop for Producer {
    fn drop(&mut self) {
        let _gone = self.socket.shutdown(Shutdown::Both);
        if let Some(thread) = self.thread.take() {
            let _panicked = thread.join();
        }
    }
}

impl Command {
    /// From the daemon's request.
    pub fn of(message: &Message) -> Self {
        let params = &message.header["params"];
        Self {
            id: message.id().unwrap(),
            name: params["command"].as_str().unwrap().to_owned(),
            key: params.get("key").map(|key| key.as_str().unwrap().to_owned()),
            caller: params["caller"]["credential"].as_str().unwrap().to_owned(),
            input: message.payload.clone(),
        }
    }
}

/// Parameters of a `session.send`.
pub fn sending(session: &str, command: &str) -> Value {
    json!({"selector": {"session": session}, "command": command})
}

/// Somebody who sends commands.
pub struct Caller(pub Peer);

impl Caller {
    /// Of the default credential.
    pub fn connect(place: &Place) -> Self {
        Self(Peer::connect(&Identity::of(place, "caller")))
    }

    /// Sends a command; its request.
    pub fn start(&self, session: &str, command: &str, input: Option<&[u8]>) -> u64 {
        self.0.request("session.send", &sending(session, command), input)
    }

    /// The same with a deadline.
    pub fn start_within(&self, session: &str, command: &str, input: Option<&[u8]>, deadline_ms: u64) -> u64 {
        let mut params = sending(session, command);
        params["deadline_ms"] = json!(deadline_ms);
        self.0.request("session.send", &params, input)
    }

    /// The same under a key.
    pub fn start_keyed(&self, session: &str, command: &str, input: Option<&[u8]>, key: &str, deadline_ms: u64) -> u64 {
        let mut params = sending(session, command);
        params["deadline_ms"] = json!(deadline_ms);
        params["key"] = json!(key);
        self.0.request("session.send", &params, input)
    }

    /// Sends a command under a key and waits for its end.
    pub fn send_keyed(&mut self, session: &str, command: &str, input: Option<&[u8]>, key: &str) -> Answer {
        let id = self.start_keyed(session, command, input, key, 15_000);
        self.0.answer(id)
    }

    /// Sends a command and waits for its end.
    pub fn send(&mut self, session: &str, command: &str, input: Option<&[u8]>) -> Answer {
        let id = self.start(session, command, input);
        self.0.answer(id)
    }

    /// Waits for the end of a command.
    pub fn answer(&mut self, id: u64) -> Answer {
        self.0.answer(id)
    }

    /// A command through the same lane and socket as all before it: when it is answered, they have arrived or never will.
    pub fn fence(&mut self, session: &str) {
        let done = self.send(session, "echo", Some(b"\"fence\"")).unwrap();
        assert_eq!(done.payload.as_deref(), Some(&b"\"fence\""[..]));
    }
}

/// Somebody who manages.
pub struct Operator(pub Peer);

/// A credential that a test has made.
#[derive(Clone)]
pub struct Enrolled {
    /// Its record.
    pub id: String,
    /// Whoever holds it.
    pub identity: Identity,
}

impl Operator {
    /// Of the default credential.
    pub fn connect(place: &Place) -> Self {
        Self(Peer::connect(&Identity::of(place, "operator")))
    }

    /// Asks and waits for what must succeed.
    pub fn done(&mut self, method: &str, params: &Value) -> Done {
        self.0.call(method, params, None).unwrap_or_else(|failure| panic!("{method}: {failure:?}"))
    }

    /// Makes a credential; `more` goes beside key, label and role.
    pub fn enroll(&mut self, place: &Place, role: &str, more: &Value) -> Enrolled {
        let key = Key::random();
        let mut params = json!({"public_key": base64(&key.public()), "label": "test", "role": role, "scopes": "row"});
        for (name, value) in more.as_object().into_iter().flatten() {
            params[name] = value.clone();
        }
        let done = self.done("credential.enroll", &params);
        let id = done.result["credential"].as_str().unwrap().to_owned();
        Enrolled { id, identity: Identity::of(place, role).with_key(key) }
    }

    /// Revokes a credential.
    pub fn revoke(&mut self, id: &str) -> Answer {
        self.0.call("credential.revoke", &json!({ "credential": id }), None)
    }

    /// `daemon.status`
    pub fn status(&mut self) -> Value {
        self.done("daemon.status", &json!({})).result
    }

    /// What is held of a bound.
    pub fn used(&mut self, account: &str) -> u64 {
        let status = self.status();
        let accounts = status["accounts"].as_array().unwrap().clone();
        let found = accounts.iter().find(|found| found["name"] == account);
        found.unwrap_or_else(|| panic!("no account {account}: {status}"))["used"].as_u64().unwrap()
    }

    /// The ids of all credentials of a role, in order of enrolment.
    pub fn credentials(&mut self, role: &str) -> Vec<String> {
        let list = self.done("credential.list", &json!({})).payload.unwrap();
        let list: Vec<Value> = serde_json::from_slice(&list).unwrap();
        let of_role = list.iter().filter(|record| record["role"] == role);
        of_role.map(|record| record["credential"].as_str().unwrap().to_owned()).collect()
    }
}
