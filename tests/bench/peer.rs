//! A client of the protocol that does the least: no checks beyond those that the bytes need.

use std::os::unix::net::UnixStream;
use std::path::Path;

use data_encoding::BASE64URL_NOPAD;
use ring::aead::{AES_256_GCM, Aad, LessSafeKey, Nonce, UnboundKey};
use ring::agreement::{EphemeralPrivateKey, UnparsedPublicKey, X25519, agree_ephemeral};
use ring::digest::{SHA256, digest};
use ring::hkdf::{HKDF_SHA256, KeyType, Salt};
use ring::rand::{SecureRandom, SystemRandom};
use ring::signature::{ED25519, Ed25519KeyPair, KeyPair};

use super::frames::{Reader, write};

struct Seal(LessSafeKey, u64);

impl Seal {
    fn new(key: &[u8; 32]) -> Self {
        Self(LessSafeKey::new(UnboundKey::new(&AES_256_GCM, key).unwrap()), 0)
    }

    fn nonce(&mut self) -> Nonce {
        let mut nonce = [0; 12];
        nonce[4..].copy_from_slice(&self.1.to_be_bytes());
        self.1 += 1;
        Nonce::assume_unique_for_key(nonce)
    }
}

/// A default credential and the daemon that it belongs to.
pub struct Identity {
    role: &'static str,
    pair: Ed25519KeyPair,
    daemon: Vec<u8>,
}

impl Identity {
    pub fn read(folder: &Path, role: &'static str) -> Self {
        let keys = folder.join("keys");
        let pem = std::fs::read_to_string(keys.join(format!("{role}.pem"))).unwrap();
        let body: String = pem.lines().filter(|line| !line.starts_with('-')).collect();
        let der = data_encoding::BASE64.decode(body.as_bytes()).unwrap();
        let pair = Ed25519KeyPair::from_seed_unchecked(&der[der.len() - 32..]).unwrap();
        let daemon = std::fs::read_to_string(keys.join("daemon.pub")).unwrap();
        Self { role, pair, daemon: BASE64URL_NOPAD.decode(daemon.trim_end().as_bytes()).unwrap() }
    }
}

/// A connection behind its welcome.
pub struct Peer {
    socket: UnixStream,
    reader: Reader,
    seal: Seal,
    open: Seal,
    asked: u64,
}

fn field<'a>(line: &'a [u8], name: &str) -> &'a [u8] {
    let text = std::str::from_utf8(line).unwrap();
    let start = text.find(&format!("\"{name}\":\"")).unwrap() + name.len() + 4;
    text[start..].split('"').next().unwrap().as_bytes()
}

impl Peer {
    pub fn connect(folder: &Path, identity: &Identity) -> Self {
        let socket = UnixStream::connect(folder.join("s/usherd.sock")).unwrap();
        let random = SystemRandom::new();
        let ours = EphemeralPrivateKey::generate(&X25519, &random).unwrap();
        let mut nonce = [0; 32];
        random.fill(&mut nonce).unwrap();
        let text = |bytes: &[u8]| BASE64URL_NOPAD.encode(bytes);
        let first = format!(
            r#"{{"hello":{{"protocol":{{"min":1,"max":1}},"role":"{}","credential":"{}","nonce":"{}","ephemeral":"{}","client":"bench/1"}}}}"#,
            identity.role,
            text(digest(&SHA256, identity.pair.public_key().as_ref()).as_ref()),
            text(&nonce),
            text(ours.compute_public_key().unwrap().as_ref()),
        ) + "\n";
        assert!(write(&socket, first.as_bytes()));
        let mut reader = Reader::new(socket.try_clone().unwrap());
        let challenge = reader.line().expect("a challenge comes");
        let proof = reader.line().expect("the daemon's proof comes");
        let decode = |line: &[u8], name: &str| BASE64URL_NOPAD.decode(field(line, name)).unwrap();
        let mut transcript = [b"usher/1 transcript\n", first.as_bytes(), &challenge, b"\n"].concat();
        let hash = |bytes: &[u8]| digest(&SHA256, bytes);
        ring::signature::UnparsedPublicKey::new(&ED25519, &identity.daemon)
            .verify(&[b"usher/1 daemon proof\n", hash(&transcript).as_ref()].concat(), &decode(&proof, "proof"))
            .unwrap();
        transcript.extend_from_slice(&proof);
        transcript.push(b'\n');
        let signature = identity.pair.sign(&[b"usher/1 client proof\n", hash(&transcript).as_ref()].concat());
        let line = format!("{{\"proof\":\"{}\"}}\n", text(signature.as_ref()));
        assert!(write(&socket, line.as_bytes()));
        transcript.extend_from_slice(line.as_bytes());
        let t3 = hash(&transcript);
        let theirs = UnparsedPublicKey::new(&X25519, decode(&challenge, "ephemeral"));
        let (seal, open) = agree_ephemeral(ours, &theirs, |secret| {
            struct Length;
            impl KeyType for Length {
                fn len(&self) -> usize {
                    32
                }
            }
            let extracted = Salt::new(HKDF_SHA256, t3.as_ref()).extract(secret);
            let key = |info: &str| {
                let mut key = [0; 32];
                extracted.expand(&[info.as_bytes()], Length).unwrap().fill(&mut key).unwrap();
                Seal::new(&key)
            };
            (key("usher/1 client to daemon"), key("usher/1 daemon to client"))
        })
        .unwrap();
        let mut peer = Self { socket, reader, seal, open, asked: 0 };
        let welcome = peer.next().expect("a welcome comes").to_vec();
        assert!(welcome.starts_with(b"{\"jsonrpc\":\"2.0\",\"method\":\"welcome\""), "{}", lossy(&welcome));
        peer
    }

    /// Seals and writes what `header` and `payload` make.
    pub fn say(&mut self, header: &str, payload: Option<&[u8]>) {
        let mut frame = Vec::with_capacity(4 + header.len() + payload.map_or(0, <[u8]>::len) + 32);
        frame.extend_from_slice(&[0; 4]);
        frame.extend_from_slice(header.as_bytes());
        if let Some(payload) = payload {
            frame.push(b'\n');
            frame.extend_from_slice(payload);
        }
        let length = u32::try_from(frame.len() - 4 + 16).unwrap().to_be_bytes();
        frame[..4].copy_from_slice(&length);
        let nonce = self.seal.nonce();
        let tag = self.seal.0.seal_in_place_separate_tag(nonce, Aad::from(length), &mut frame[4..]).unwrap();
        frame.extend_from_slice(tag.as_ref());
        assert!(write(&self.socket, &frame), "the daemon is gone");
    }

    /// The next message; `None` at the end of the stream.
    pub fn next(&mut self) -> Option<&[u8]> {
        let (prefix, sealed) = self.reader.frame()?;
        let nonce = self.open.nonce();
        Some(self.open.0.open_in_place(nonce, Aad::from(prefix), sealed).expect("every frame opens"))
    }

    /// A request, whose answer comes later.
    pub fn ask(&mut self, method: &str, params: &str, payload: Option<&[u8]>) {
        self.asked += 1;
        let id = self.asked;
        let header = format!(r#"{{"jsonrpc":"2.0","id":{id},"method":"{method}","params":{params}}}"#);
        self.say(&header, payload);
    }

    /// A request; the header and the payload of its answer.
    pub fn call(&mut self, method: &str, params: &str, payload: Option<&[u8]>) -> (&[u8], &[u8]) {
        self.ask(method, params, payload);
        let answer = self.next().expect("an answer comes");
        let (header, payload) = split(answer);
        assert!(!header.windows(8).any(|part| part == b"\"error\":"), "{}", lossy(header));
        (header, payload)
    }
}

/// Header and payload.
pub fn split(message: &[u8]) -> (&[u8], &[u8]) {
    match message.iter().position(|&byte| byte == b'\n') {
        Some(end) => (&message[..end], &message[end + 1..]),
        None => (message, b""),
    }
}

/// What somebody said, for a person.
pub fn lossy(bytes: &[u8]) -> String {
    String::from_utf8_lossy(&bytes[..bytes.len().min(400)]).into_owned()
}
