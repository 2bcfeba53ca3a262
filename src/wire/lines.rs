//! The lines of the handshake (docs/protocol.md, "Hello"). Their shapes never change.
//!
//! Each type is one line. Reading checks everything that can be checked without knowing anybody.

use serde::{Deserialize, Deserializer, Serialize};

use crate::ids::{Fingerprint, Generation, Nonce, PublicKey, Signature};
use crate::limits::{PROTOCOL_MAX, PROTOCOL_MIN};
use crate::wire::object;

/// What a peer is on a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// Owns a session.
    Producer,
    /// Lists, sends, waits.
    Caller,
    /// Manages credentials, drains, stops.
    Operator,
}

impl Role {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Producer, Self::Caller, Self::Operator];

    /// The word on the wire.
    pub fn word(self) -> &'static str {
        match self {
            Self::Producer => "producer",
            Self::Caller => "caller",
            Self::Operator => "operator",
        }
    }

    /// The role of a word.
    pub fn from_word(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|role| role.word() == word)
    }
}

/// As a text alone: serde reads `{"caller":null}` as the same.
impl<'de> Deserialize<'de> for Role {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let word = std::borrow::Cow::<'de, str>::deserialize(from)?;
        Self::from_word(&word).ok_or_else(|| serde::de::Error::custom("expected producer, caller or operator"))
    }
}

/// A range of protocols, both ends included.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Range {
    /// The lowest.
    pub min: u16,
    /// The highest.
    pub max: u16,
}

impl Range {
    /// What this program speaks.
    pub const OURS: Self = Self { min: PROTOCOL_MIN, max: PROTOCOL_MAX };
    /// What chooses protocol 0.
    pub const ZERO: Self = Self { min: 0, max: 0 };

    /// The highest protocol of both.
    pub fn common(self, other: Self) -> Option<u16> {
        let highest = self.max.min(other.max);
        (highest >= self.min.max(other.min)).then_some(highest)
    }
}

/// The content of line 1 of a hello.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Hello {
    /// What the client speaks.
    #[serde(deserialize_with = "object::object")]
    pub protocol: Range,
    /// What it wants to be.
    pub role: Role,
    /// Its key's fingerprint.
    pub credential: Fingerprint,
    /// Its randomness.
    pub nonce: Nonce,
    /// Its X25519 key.
    pub ephemeral: PublicKey,
    /// What it narrows its scopes to.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "object::some")]
    pub scopes: Option<Vec<String>>,
    /// Program and version.
    pub client: String,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct HelloLine {
    #[serde(deserialize_with = "object::object")]
    hello: Hello,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct HealthLine {
    health: u8,
}

/// A connection's first line.
#[derive(Debug)]
pub enum First {
    /// `{"health":1}`
    Health,
    /// A hello.
    Hello(Box<Hello>),
}

/// The daemon's challenge.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Challenge {
    /// The protocol to speak.
    pub protocol: u16,
    /// The daemon's start.
    pub generation: Generation,
    /// Its key.
    pub daemon: PublicKey,
    /// Its randomness.
    pub nonce: Nonce,
    /// Its X25519 key.
    pub ephemeral: PublicKey,
}

/// No common protocol.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Incompatible {
    /// What the daemon speaks.
    #[serde(deserialize_with = "object::object")]
    pub protocol: Range,
    /// Its program and version.
    pub build: String,
    /// Its start.
    pub generation: Generation,
    /// Its key.
    pub daemon: PublicKey,
    /// Its randomness.
    pub nonce: Nonce,
}

/// The unsigned refusal for want of a place.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Refused {
    /// `busy`
    pub code: String,
    /// What is exhausted.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "object::some")]
    pub resource: Option<String>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct ChallengeLine {
    #[serde(deserialize_with = "object::object")]
    challenge: Challenge,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct IncompatibleLine {
    #[serde(deserialize_with = "object::object")]
    incompatible: Incompatible,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct RefusedLine {
    #[serde(deserialize_with = "object::object")]
    refused: Refused,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct ProofLine {
    proof: Signature,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct HealthAnswer {
    ok: bool,
    generation: Generation,
}

/// What the daemon says first.
#[derive(Debug)]
pub enum Answer {
    /// The handshake goes on.
    Challenge(Challenge),
    /// No common protocol; a proof line follows.
    Incompatible(Incompatible),
    /// No place.
    Refused(Refused),
}

/// The line without its LF.
fn body(line: &[u8]) -> Result<&[u8], String> {
    line.strip_suffix(b"\n").ok_or_else(|| "a line ends with LF".to_owned())
}

fn line<T: Serialize>(content: &T) -> Vec<u8> {
    // Our own types: strings, integers and fixed bytes always serialise.
    let mut line = serde_json::to_vec(content).unwrap_or_default();
    line.push(b'\n');
    line
}

/// Reads a connection's first line, with its LF.
pub fn read_first(line: &[u8]) -> Result<First, String> {
    let body = body(line)?;
    if body.starts_with(b"{\"health\"") {
        let HealthLine { health } = object::read(body)?;
        return if health == 1 { Ok(First::Health) } else { Err("health takes 1".to_owned()) };
    }
    let HelloLine { hello } = object::read(body)?;
    if hello.protocol.min > hello.protocol.max {
        return Err("protocol.min is above protocol.max".to_owned());
    }
    let printable = hello.client.bytes().all(|byte| (b' '..=b'~').contains(&byte));
    if hello.client.is_empty() || hello.client.len() > 64 || !printable {
        return Err("client takes 1 to 64 printable ASCII characters".to_owned());
    }
    Ok(First::Hello(Box::new(hello)))
}

/// Reads the daemon's first line, with its LF.
pub fn read_answer(line: &[u8]) -> Result<Answer, String> {
    let body = body(line)?;
    if body.starts_with(b"{\"incompatible\"") {
        return object::read::<IncompatibleLine>(body).map(|line| Answer::Incompatible(line.incompatible));
    }
    if body.starts_with(b"{\"refused\"") {
        return object::read::<RefusedLine>(body).map(|line| Answer::Refused(line.refused));
    }
    object::read::<ChallengeLine>(body).map(|line| Answer::Challenge(line.challenge))
}

/// Reads a proof line, with its LF.
pub fn read_proof(line: &[u8]) -> Result<Signature, String> {
    object::read::<ProofLine>(body(line)?).map(|line| line.proof)
}

/// Reads the answer to a health line.
pub fn read_health(line: &[u8]) -> Result<Generation, String> {
    let answer: HealthAnswer = object::read(body(line)?)?;
    if answer.ok { Ok(answer.generation) } else { Err("the daemon is not well".to_owned()) }
}

/// `{"hello":…}` LF
pub fn hello(hello: &Hello) -> Vec<u8> {
    line(&HelloLine { hello: hello.clone() })
}

/// `{"health":1}` LF
pub fn health() -> Vec<u8> {
    b"{\"health\":1}\n".to_vec()
}

/// `{"ok":true,"generation":…}` LF
pub fn health_answer(generation: Generation) -> Vec<u8> {
    line(&HealthAnswer { ok: true, generation })
}

/// `{"challenge":…}` LF
pub fn challenge(challenge: &Challenge) -> Vec<u8> {
    line(&ChallengeLine { challenge: challenge.clone() })
}

/// `{"incompatible":…}` LF
pub fn incompatible(incompatible: &Incompatible) -> Vec<u8> {
    line(&IncompatibleLine { incompatible: incompatible.clone() })
}

/// `{"proof":…}` LF
pub fn proof(signature: Signature) -> Vec<u8> {
    line(&ProofLine { proof: signature })
}

/// `{"refused":{"code":"busy","resource":…}}` LF
pub fn busy(resource: &str) -> Vec<u8> {
    line(&RefusedLine { refused: Refused { code: "busy".to_owned(), resource: Some(resource.to_owned()) } })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> Hello {
        Hello {
            protocol: Range::OURS,
            role: Role::Caller,
            credential: Fingerprint([1; 32]),
            nonce: Nonce([2; 32]),
            ephemeral: PublicKey([3; 32]),
            scopes: None,
            client: "usher/0.1.0".to_owned(),
        }
    }

    #[test]
    fn a_first_line_reads_back() {
        assert!(matches!(read_first(&health()), Ok(First::Health)));
        assert!(matches!(read_first(&hello(&sample())), Ok(First::Hello(_))));
    }

    #[test]
    fn a_line_with_anything_around_or_beside_its_object_is_refused() {
        for text in [
            "{\"health\":1}",
            "{\"health\":1}\r\n",
            " {\"health\":1}\n",
            "{\"health\":1} \n",
            "{\"health\":2}\n",
            "{\"health\":1,\"x\":1}\n",
            "{\"health\":1,\"health\":1}\n",
            "\u{feff}{\"health\":1}\n",
            "[{\"health\":1}]\n",
            "{\"hello\":[]}\n",
            "{}\n",
            "\n",
        ] {
            assert!(read_first(text.as_bytes()).is_err(), "{text:?}");
        }
    }

    #[test]
    fn a_hello_with_a_reversed_range_or_a_hostile_name_is_refused() {
        let mut reversed = sample();
        reversed.protocol = Range { min: 2, max: 1 };
        assert!(read_first(&hello(&reversed)).is_err());
        for name in ["", "a\u{1b}[0m", &"x".repeat(65)] {
            let mut named = sample();
            named.client = name.to_owned();
            assert!(read_first(&hello(&named)).is_err(), "{name:?}");
        }
    }

    #[test]
    fn a_role_is_a_text() {
        let line = String::from_utf8(hello(&sample())).unwrap();
        let as_object = line.replace("\"role\":\"caller\"", "\"role\":{\"caller\":null}");
        assert_ne!(line, as_object);
        assert!(read_first(as_object.as_bytes()).is_err());
    }

    #[test]
    fn the_highest_common_protocol_is_taken() {
        let range = |min, max| Range { min, max };
        assert_eq!(range(1, 3).common(range(2, 5)), Some(3));
        assert_eq!(range(1, 1).common(range(2, 5)), None);
        assert_eq!(range(2, 5).common(range(1, 2)), Some(2));
    }
}
