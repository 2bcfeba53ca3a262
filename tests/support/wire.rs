//! A client of the protocol made of ring and docs/protocol.md alone: what the library believes does not test the library.
//!
//! A hello can be spoken line by line and each line altered on its way ([`Hello`], [`Lines`], [`Stream`]); [`Peer`] is one
//! that was let in. Every read has a deadline, after which the test fails; the end of the stream is an answer like others.

use std::collections::VecDeque;
use std::io::{ErrorKind, Read, Write};
use std::net::Shutdown;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use data_encoding::{BASE64, BASE64URL_NOPAD};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use parking_lot::Mutex;
use ring::aead::{AES_256_GCM, Aad, LessSafeKey, Nonce, UnboundKey};
use ring::agreement::{EphemeralPrivateKey, UnparsedPublicKey, X25519, agree_ephemeral};
use ring::digest::{SHA256, digest};
use ring::hkdf::{HKDF_SHA256, KeyType, Salt};
use ring::rand::{SecureRandom, SystemRandom};
use ring::signature::{ED25519, Ed25519KeyPair, KeyPair};
use serde_json::{Value, json};

use super::daemon::Place;
use super::wait::PATIENCE;

/// How much of each direction a stream remembers.
const LOG_MAX_BYTES: usize = 64 * 1024;

/// 32 bytes: a key, a hash.
pub type Bytes32 = [u8; 32];

/// Canonical base64url.
pub fn base64(bytes: &[u8]) -> String {
    BASE64URL_NOPAD.encode(bytes)
}

/// 32 bytes of canonical base64url.
pub fn bytes32(text: &str) -> Option<Bytes32> {
    BASE64URL_NOPAD.decode(text.as_bytes()).ok()?.try_into().ok()
}

/// Random bytes.
pub fn random<const N: usize>() -> [u8; N] {
    let mut bytes = [0; N];
    SystemRandom::new().fill(&mut bytes).unwrap();
    bytes
}

/// SHA-256.
pub fn sha256(bytes: &[u8]) -> Bytes32 {
    digest(&SHA256, bytes).as_ref().try_into().unwrap()
}

/// An Ed25519 key.
#[derive(Clone)]
pub struct Key(Arc<Ed25519KeyPair>);

impl Key {
    /// From a PEM file.
    pub fn read(path: &Path) -> Self {
        let text = std::fs::read_to_string(path).unwrap();
        let body: String = text.lines().filter(|line| !line.starts_with("-----")).collect();
        let body = BASE64.decode(body.as_bytes()).unwrap();
        Self(Arc::new(Ed25519KeyPair::from_pkcs8_maybe_unchecked(&body).unwrap()))
    }

    /// That nobody knows.
    pub fn random() -> Self {
        Self(Arc::new(Ed25519KeyPair::from_seed_unchecked(&random::<32>()).unwrap()))
    }

    /// Its public half.
    pub fn public(&self) -> Bytes32 {
        self.0.public_key().as_ref().try_into().unwrap()
    }

    /// Its signature.
    pub fn sign(&self, parts: &[&[u8]]) -> String {
        base64(self.0.sign(&parts.concat()).as_ref())
    }

    /// A proof line: this key over a label and a transcript.
    pub fn proof(&self, label: &str, transcript: &Bytes32) -> Vec<u8> {
        let signature = self.0.sign(&[label.as_bytes(), transcript].concat());
        format!("{{\"proof\":\"{}\"}}\n", base64(signature.as_ref())).into_bytes()
    }
}

/// Who somebody is, or says he is, and whom he trusts.
#[derive(Clone)]
pub struct Identity {
    /// What it signs with.
    pub key: Arc<Key>,
    /// The fingerprint that its hello names.
    pub named: Bytes32,
    /// What it wants to be.
    pub role: String,
    /// What it narrows itself to.
    pub scopes: Option<Vec<String>>,
    /// The daemon key that it holds.
    pub daemon: Bytes32,
    /// Where it goes.
    pub socket: PathBuf,
}

impl Identity {
    /// A default credential.
    pub fn of(place: &Place, role: &str) -> Self {
        let keys = place.path().join("keys");
        let pinned = std::fs::read_to_string(keys.join("daemon.pub")).unwrap();
        let key = Key::read(&keys.join(format!("{role}.pem")));
        Self {
            named: sha256(&key.public()),
            key: Arc::new(key),
            role: role.to_owned(),
            scopes: None,
            daemon: bytes32(pinned.strip_suffix('\n').unwrap()).unwrap(),
            socket: place.socket(),
        }
    }

    /// The same place with another key, named truthfully.
    pub fn with_key(&self, key: Key) -> Self {
        Self { named: sha256(&key.public()), key: Arc::new(key), ..self.clone() }
    }

    /// The same key in another role.
    pub fn with_role(&self, role: &str) -> Self {
        Self { role: role.to_owned(), ..self.clone() }
    }

    /// Narrowed to these methods.
    pub fn with_scopes(&self, scopes: &[&str]) -> Self {
        Self { scopes: Some(scopes.iter().map(|&scope| scope.to_owned()).collect()), ..self.clone() }
    }
}

/// The lines of a handshake, with their LF, as one side knows them.
#[derive(Clone, Default)]
pub struct Lines {
    pub first: Vec<u8>,
    pub challenge: Vec<u8>,
    pub daemon_proof: Vec<u8>,
    pub client_proof: Vec<u8>,
}

impl Lines {
    fn transcript(lines: &[&[u8]]) -> Bytes32 {
        sha256(&[b"usher/1 transcript\n", lines.concat().as_slice()].concat())
    }

    /// What the daemon signs.
    pub fn t1(&self) -> Bytes32 {
        Self::transcript(&[&self.first, &self.challenge])
    }

    /// What the client signs.
    pub fn t2(&self) -> Bytes32 {
        Self::transcript(&[&self.first, &self.challenge, &self.daemon_proof])
    }

    /// What the keys are bound to.
    pub fn t3(&self) -> Bytes32 {
        Self::transcript(&[&self.first, &self.challenge, &self.daemon_proof, &self.client_proof])
    }

    /// The client's proof over what it has seen.
    pub fn sign(&mut self, key: &Key) {
        self.client_proof = key.proof("usher/1 client proof\n", &self.t2());
    }

    /// A client's look at the daemon's two lines.
    pub fn check_daemon(&self, pinned: &Bytes32) -> Result<(), String> {
        let body = |line: &[u8]| -> Result<Value, String> {
            let text = line.strip_suffix(b"\n").filter(|text| text.starts_with(b"{")).ok_or("not a line")?;
            serde_json::from_slice(text).map_err(|error| error.to_string())
        };
        let (challenge, proof) = (body(&self.challenge)?, body(&self.daemon_proof)?);
        let names = |value: &Value| value.as_object().map(|object| object.keys().cloned().collect::<Vec<_>>());
        if names(&challenge) != Some(vec!["challenge".to_owned()]) || names(&proof) != Some(vec!["proof".to_owned()]) {
            return Err("other keys than a challenge and a proof have".to_owned());
        }
        if challenge["challenge"]["daemon"].as_str().and_then(bytes32).as_ref() != Some(pinned) {
            return Err("another daemon".to_owned());
        }
        let signature = proof["proof"].as_str().and_then(|text| BASE64URL_NOPAD.decode(text.as_bytes()).ok());
        let signed = [b"usher/1 daemon proof\n", self.t1().as_slice()].concat();
        ring::signature::UnparsedPublicKey::new(&ED25519, pinned)
            .verify(&signed, &signature.ok_or("no base64url")?)
            .map_err(|_| "the daemon's key did not sign this".to_owned())
    }

    /// The X25519 key of a challenge line.
    pub fn daemon_ephemeral(&self) -> Option<Bytes32> {
        let challenge: Value = serde_json::from_slice(&self.challenge).ok()?;
        bytes32(challenge["challenge"]["ephemeral"].as_str()?)
    }

    /// The keys that come of these lines: what the client seals with, what it opens with.
    pub fn keys(&self, ours: EphemeralPrivateKey, theirs: &Bytes32) -> Option<(Seal, Seal)> {
        struct Length;
        impl KeyType for Length {
            fn len(&self) -> usize {
                32
            }
        }
        let t3 = self.t3();
        agree_ephemeral(ours, &UnparsedPublicKey::new(&X25519, theirs), |secret| {
            let extracted = Salt::new(HKDF_SHA256, &t3).extract(secret);
            let expand = |info: &str| {
                let mut key = [0; 32];
                extracted.expand(&[info.as_bytes()], Length).unwrap().fill(&mut key).unwrap();
                Seal::new(&key)
            };
            (expand("usher/1 client to daemon"), expand("usher/1 daemon to client"))
        })
        .ok()
    }
}

/// A hello that was begun: line 1 and the secret behind it.
pub struct Hello {
    pub ephemeral: EphemeralPrivateKey,
    pub lines: Lines,
}

impl Hello {
    /// Makes line 1.
    pub fn new(identity: &Identity) -> Self {
        let ephemeral = EphemeralPrivateKey::generate(&X25519, &SystemRandom::new()).unwrap();
        let mut hello = json!({
            "protocol": {"min": 1, "max": 1},
            "role": identity.role,
            "credential": base64(&identity.named),
            "nonce": base64(&random::<32>()),
            "ephemeral": base64(ephemeral.compute_public_key().unwrap().as_ref()),
            "client": "test/1",
        });
        if let Some(scopes) = &identity.scopes {
            hello["scopes"] = json!(scopes);
        }
        let first = format!("{}\n", json!({ "hello": hello })).into_bytes();
        Self { ephemeral, lines: Lines { first, ..Lines::default() } }
    }
}

/// Seals or opens the frames of one direction.
pub struct Seal {
    key: LessSafeKey,
    counter: u64,
}

impl Seal {
    fn new(key: &Bytes32) -> Self {
        Self { key: LessSafeKey::new(UnboundKey::new(&AES_256_GCM, key).unwrap()), counter: 0 }
    }

    fn nonce(&mut self) -> Nonce {
        let mut nonce = [0; 12];
        nonce[4..].copy_from_slice(&self.counter.to_be_bytes());
        self.counter += 1;
        Nonce::assume_unique_for_key(nonce)
    }

    /// The next frame.
    pub fn seal(&mut self, plaintext: &[u8]) -> Vec<u8> {
        let length = u32::try_from(plaintext.len() + 16).unwrap().to_be_bytes();
        let mut sealed = plaintext.to_vec();
        let nonce = self.nonce();
        self.key.seal_in_place_append_tag(nonce, Aad::from(length), &mut sealed).unwrap();
        [&length, sealed.as_slice()].concat()
    }

    /// The plaintext of the next frame, if it is that.
    pub fn open(&mut self, frame: &[u8]) -> Option<Vec<u8>> {
        let length: [u8; 4] = frame.get(..4)?.try_into().ok()?;
        let mut sealed = frame[4..].to_vec();
        let nonce = self.nonce();
        let plaintext = self.key.open_in_place(nonce, Aad::from(length), &mut sealed).ok()?;
        Some(plaintext.to_vec())
    }
}

/// A connection's bytes.
pub struct Stream {
    /// The socket itself.
    pub socket: Arc<UnixStream>,
    buffer: Vec<u8>,
    sent: Arc<Mutex<Vec<u8>>>,
    /// What came, the first 64 KiB.
    pub heard: Vec<u8>,
}

impl Stream {
    /// Connects.
    pub fn connect(socket: &Path) -> Self {
        Self::over(UnixStream::connect(socket).unwrap())
    }

    /// Over a socket that is connected already.
    pub fn over(socket: UnixStream) -> Self {
        socket.set_read_timeout(Some(PATIENCE)).unwrap();
        socket.set_write_timeout(Some(PATIENCE)).unwrap();
        Self { socket: Arc::new(socket), buffer: Vec::new(), sent: Arc::default(), heard: Vec::new() }
    }

    /// Writes; `false` once the daemon takes nothing any more.
    pub fn send(&self, bytes: &[u8]) -> bool {
        write(&self.socket, &self.sent, bytes)
    }

    /// What went, the first 64 KiB.
    pub fn sent(&self) -> Vec<u8> {
        self.sent.lock().clone()
    }

    /// Says that nothing more comes.
    pub fn half_close(&self) {
        let _gone = self.socket.shutdown(Shutdown::Write);
    }

    /// The next line with its LF; `None` when the stream ends before.
    pub fn line(&mut self) -> Option<Vec<u8>> {
        loop {
            if let Some(end) = self.buffer.iter().position(|&byte| byte == b'\n') {
                return Some(self.buffer.drain(..=end).collect());
            }
            self.fill()?;
        }
    }

    /// The next frame, sealed; `None` when the stream ends before.
    pub fn frame(&mut self) -> Option<Vec<u8>> {
        loop {
            if let Some(&length) = self.buffer.first_chunk::<4>() {
                let end = 4 + usize::try_from(u32::from_be_bytes(length)).unwrap();
                if self.buffer.len() >= end {
                    return Some(self.buffer.drain(..end).collect());
                }
            }
            self.fill()?;
        }
    }

    /// Everything that still comes, to the end.
    pub fn rest(&mut self) -> Vec<u8> {
        while self.fill().is_some() {}
        std::mem::take(&mut self.buffer)
    }

    fn fill(&mut self) -> Option<()> {
        let mut piece = [0; 64 * 1024];
        loop {
            match (&*self.socket).read(&mut piece) {
                Ok(0) => return None,
                Ok(count) => {
                    self.buffer.extend_from_slice(&piece[..count]);
                    let room = LOG_MAX_BYTES.saturating_sub(self.heard.len());
                    self.heard.extend_from_slice(&piece[..count.min(room)]);
                    return Some(());
                }
                Err(error) => match error.kind() {
                    ErrorKind::Interrupted => {}
                    ErrorKind::ConnectionReset | ErrorKind::BrokenPipe => return None,
                    _ => panic!("waited in vain for bytes of the daemon: {error}"),
                },
            }
        }
    }
}

fn write(mut socket: &UnixStream, log: &Mutex<Vec<u8>>, bytes: &[u8]) -> bool {
    let mut log = log.lock();
    let room = LOG_MAX_BYTES.saturating_sub(log.len());
    log.extend_from_slice(&bytes[..bytes.len().min(room)]);
    drop(log);
    match socket.write_all(bytes) {
        Ok(()) => true,
        Err(error) if matches!(error.kind(), ErrorKind::BrokenPipe | ErrorKind::ConnectionReset) => false,
        Err(error) => panic!("waited in vain for the daemon to read: {error}"),
    }
}

/// Whether the kernel has both directions of a connection shut, now: then no byte can be written to it.
pub fn is_shut(socket: &UnixStream) -> bool {
    let mut fds = [PollFd::new(socket.as_fd(), PollFlags::POLLIN)];
    poll(&mut fds, PollTimeout::ZERO).unwrap();
    fds[0].revents().is_some_and(|seen| seen.contains(PollFlags::POLLHUP))
}

/// A message, opened.
#[derive(Debug, Clone)]
pub struct Message {
    pub header: Value,
    pub payload: Option<Vec<u8>>,
}

impl Message {
    /// From the plaintext of a frame.
    pub fn read(plaintext: &[u8]) -> Self {
        let (header, payload) = match plaintext.iter().position(|&byte| byte == b'\n') {
            Some(end) => (&plaintext[..end], Some(plaintext[end + 1..].to_vec())),
            None => (plaintext, None),
        };
        Self { header: serde_json::from_slice(header).unwrap(), payload }
    }

    /// Of a request or a notification.
    pub fn method(&self) -> &str {
        self.header["method"].as_str().unwrap_or_default()
    }

    /// Of a request or an answer.
    pub fn id(&self) -> Option<u64> {
        self.header["id"].as_u64()
    }

    /// As an answer.
    pub fn answer(self) -> Answer {
        match self.header.get("error") {
            None => Ok(Done { result: self.header["result"].clone(), payload: self.payload }),
            Some(error) => Err(Failure {
                code: error["data"]["code"].as_str().unwrap_or_default().to_owned(),
                delivery: error["data"]["delivery"].as_str().map(str::to_owned),
                error: error.clone(),
            }),
        }
    }
}

/// What a request came to.
pub type Answer = Result<Done, Failure>;

/// A request was done.
#[derive(Debug, Clone)]
pub struct Done {
    pub result: Value,
    pub payload: Option<Vec<u8>>,
}

/// A request failed.
#[derive(Debug, Clone)]
pub struct Failure {
    /// `data.code`
    pub code: String,
    /// `data.delivery`
    pub delivery: Option<String>,
    /// All of it.
    pub error: Value,
}

impl Failure {
    /// Code and delivery, for comparing.
    pub fn told(&self) -> (&str, &str) {
        (&self.code, self.delivery.as_deref().unwrap_or("-"))
    }
}

/// The plaintext of a request.
pub fn request(id: u64, method: &str, params: &Value, payload: Option<&[u8]>) -> Vec<u8> {
    with_payload(&json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params}), payload)
}

/// A header and a payload.
pub fn with_payload(header: &Value, payload: Option<&[u8]>) -> Vec<u8> {
    let mut text = header.to_string().into_bytes();
    if let Some(payload) = payload {
        text.push(b'\n');
        text.extend_from_slice(payload);
    }
    text
}

/// The writing side of somebody who was let in; any thread may hold it.
pub struct Outgoing {
    socket: Arc<UnixStream>,
    sent: Arc<Mutex<Vec<u8>>>,
    seal: Seal,
    asked: u64,
}

impl Outgoing {
    /// Seals without sending.
    pub fn seal(&mut self, plaintext: &[u8]) -> Vec<u8> {
        self.seal.seal(plaintext)
    }

    /// Writes bytes as they are; `false` once the daemon takes nothing any more.
    pub fn raw(&self, bytes: &[u8]) -> bool {
        write(&self.socket, &self.sent, bytes)
    }

    /// Seals and sends any text.
    pub fn text(&mut self, plaintext: &[u8]) -> bool {
        let frame = self.seal(plaintext);
        self.raw(&frame)
    }

    /// Sends a request with the next id; `None` once the daemon takes nothing any more.
    pub fn request(&mut self, method: &str, params: &Value, payload: Option<&[u8]>) -> Option<u64> {
        self.asked += 1;
        self.text(&request(self.asked, method, params, payload)).then_some(self.asked)
    }
}

/// Why a hello did not let somebody in.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Refused {
    /// The sealed `refused`: its code.
    Sealed(String),
    /// The unsigned `busy`.
    Busy,
    /// The stream ended.
    Ended,
}

/// Somebody who was let in.
pub struct Peer {
    /// What the daemon said first.
    pub welcome: Value,
    /// The handshake.
    pub lines: Lines,
    /// The reading side.
    pub stream: Stream,
    open: Seal,
    outgoing: Arc<Mutex<Outgoing>>,
    aside: VecDeque<Message>,
}

impl Peer {
    /// Speaks a hello that succeeds.
    pub fn connect(identity: &Identity) -> Self {
        Self::hello(identity).unwrap_or_else(|refused| panic!("{} was not let in: {refused:?}", identity.role))
    }

    /// Speaks a hello.
    pub fn hello(identity: &Identity) -> Result<Self, Refused> {
        Self::hello_over(Stream::connect(&identity.socket), identity)
    }

    /// The same where there may be no daemon.
    pub fn try_hello(identity: &Identity) -> Result<Self, Refused> {
        let socket = UnixStream::connect(&identity.socket).map_err(|_| Refused::Ended)?;
        Self::hello_over(Stream::over(socket), identity)
    }

    /// Speaks a hello for protocol 0.
    pub fn connect_zero(identity: &Identity) -> Self {
        let Hello { ephemeral, mut lines } = Hello::new(identity);
        let line = String::from_utf8(lines.first).unwrap();
        lines.first = line.replace("{\"max\":1,\"min\":1}", "{\"max\":0,\"min\":0}").into_bytes();
        Self::speak(Stream::connect(&identity.socket), identity, Hello { ephemeral, lines }).unwrap()
    }

    fn hello_over(stream: Stream, identity: &Identity) -> Result<Self, Refused> {
        Self::speak(stream, identity, Hello::new(identity))
    }

    fn speak(mut stream: Stream, identity: &Identity, hello: Hello) -> Result<Self, Refused> {
        let Hello { ephemeral, mut lines } = hello;
        stream.send(&lines.first);
        lines.challenge = stream.line().ok_or(Refused::Ended)?;
        if lines.challenge.starts_with(b"{\"refused\"") {
            return Err(Refused::Busy);
        }
        lines.daemon_proof = stream.line().ok_or(Refused::Ended)?;
        lines.check_daemon(&identity.daemon).unwrap();
        lines.sign(&identity.key);
        stream.send(&lines.client_proof);
        let theirs = lines.daemon_ephemeral().unwrap();
        let keys = lines.keys(ephemeral, &theirs).unwrap();
        Self::enter(stream, lines, keys)
    }

    /// What the daemon says to a hello that it does not take: its first frame, or the line in place of a challenge.
    pub fn turned_away(identity: &Identity) -> Message {
        let mut stream = Stream::connect(&identity.socket);
        let Hello { ephemeral, mut lines } = Hello::new(identity);
        stream.send(&lines.first);
        lines.challenge = stream.line().unwrap();
        if lines.challenge.starts_with(b"{\"refused\"") {
            return Message::read(lines.challenge.trim_ascii_end());
        }
        lines.daemon_proof = stream.line().unwrap();
        lines.sign(&identity.key);
        stream.send(&lines.client_proof);
        let theirs = lines.daemon_ephemeral().unwrap();
        let (_, mut open) = lines.keys(ephemeral, &theirs).unwrap();
        Message::read(&open.open(&stream.frame().unwrap()).unwrap())
    }

    /// Reads the daemon's first frame.
    pub fn enter(mut stream: Stream, lines: Lines, (seal, mut open): (Seal, Seal)) -> Result<Self, Refused> {
        let frame = stream.frame().ok_or(Refused::Ended)?;
        let first = Message::read(&open.open(&frame).expect("the daemon's first frame opens"));
        if first.method() == "refused" {
            assert!(stream.rest().is_empty(), "something came behind a refusal");
            return Err(Refused::Sealed(first.header["params"]["code"].as_str().unwrap().to_owned()));
        }
        assert_eq!(first.method(), "welcome");
        let (socket, sent) = (Arc::clone(&stream.socket), Arc::clone(&stream.sent));
        let outgoing = Arc::new(Mutex::new(Outgoing { socket, sent, seal, asked: 0 }));
        let welcome = first.header["params"].clone();
        Ok(Self { welcome, lines, stream, open, outgoing, aside: VecDeque::new() })
    }

    /// Its writing side.
    pub fn outgoing(&self) -> Arc<Mutex<Outgoing>> {
        Arc::clone(&self.outgoing)
    }

    /// Sends a request; its id.
    pub fn request(&self, method: &str, params: &Value, payload: Option<&[u8]>) -> u64 {
        self.outgoing.lock().request(method, params, payload).expect("the connection is there")
    }

    /// Seals and sends any text; `false` once the daemon takes nothing any more.
    pub fn text(&self, plaintext: &[u8]) -> bool {
        self.outgoing.lock().text(plaintext)
    }

    /// The next message; `None` at the end of the stream.
    pub fn next(&mut self) -> Option<Message> {
        if let Some(message) = self.aside.pop_front() {
            return Some(message);
        }
        self.hear()
    }

    fn hear(&mut self) -> Option<Message> {
        let frame = self.stream.frame()?;
        Some(Message::read(&self.open.open(&frame).expect("every frame of the daemon opens")))
    }

    /// The answer to a request; what else comes is set aside.
    pub fn answer(&mut self, id: u64) -> Answer {
        self.try_answer(id).unwrap_or_else(|| panic!("the stream ended before request {id} was answered"))
    }

    /// The same; `None` when the stream ends before.
    pub fn try_answer(&mut self, id: u64) -> Option<Answer> {
        let is_it = |message: &Message| message.id() == Some(id) && message.method().is_empty();
        if let Some(position) = self.aside.iter().position(is_it) {
            return self.aside.remove(position).map(Message::answer);
        }
        loop {
            let message = self.hear()?;
            if is_it(&message) {
                return Some(message.answer());
            }
            self.aside.push_back(message);
        }
    }

    /// Asks and waits for the answer.
    pub fn call(&mut self, method: &str, params: &Value, payload: Option<&[u8]>) -> Answer {
        let id = self.request(method, params, payload);
        self.answer(id)
    }

    /// Whether nothing has come but what was asked for.
    pub fn has_nothing_aside(&self) -> bool {
        self.aside.is_empty()
    }

    /// Everything that still comes, to the end of the stream.
    pub fn all_that_comes(&mut self) -> Vec<Message> {
        std::iter::from_fn(|| self.next()).collect()
    }

    /// Hangs up without a word.
    pub fn hang_up(&self) {
        let _gone = self.stream.socket.shutdown(Shutdown::Both);
    }
}
