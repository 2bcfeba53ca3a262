//! One line and the next: the text of a fact, its hash, and what a line must be to follow another. Pure.
//!
//! ```text
//! {"seq":17,"ts":"2026-11-30T22:00:00.000Z","fact":"…",…,"prev":"<43>","hash":"<43>"}
//! └──────────────────────── body ────────────────────────┘
//! hash = SHA-256("usher/1 audit\n" ‖ body)
//! ```

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::ids::Digest;
use crate::wire::transcript::sha256;

use super::fact::Fact;

const LABEL: &[u8] = b"usher/1 audit\n";
/// Between the body of a line and its hash, and behind it.
const HASH: &[u8] = b",\"hash\":\"";
const END: &[u8] = b"\"}";
/// Behind the body.
const TAIL_BYTES: usize = HASH.len() + 43 + END.len();

/// A line at its largest; what is longer is none.
pub const LINE_MAX_BYTES: usize = 2_048;

/// The last line: its number and hash.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Head {
    /// From 1 on.
    pub seq: u64,
    /// Of the line.
    pub hash: Digest,
}

impl Head {
    /// Before the first line.
    pub const NONE: Self = Self { seq: 0, hash: Digest([0; 32]) };

    /// Adds the line of a fact, with its LF, and is then the head of what stands there.
    pub fn add(&mut self, text: &mut Vec<u8>, at: Timestamp, fact: &Fact) {
        let seq = self.seq + 1;
        // Our own type: it always has a JSON form, `{"fact":"…"` and its fields.
        let fact = serde_json::to_string(fact).unwrap_or_default();
        let fact = fact.trim_start_matches('{').trim_end_matches('}');
        let body = format!("{{\"seq\":{seq},\"ts\":\"{at:.3}\",{fact},\"prev\":\"{}\"", self.hash);
        let hash = hash_of(body.as_bytes());
        *self = Self { seq, hash };
        text.extend_from_slice(body.as_bytes());
        text.extend_from_slice(HASH);
        text.extend_from_slice(hash.to_string().as_bytes());
        text.extend_from_slice(END);
        text.push(b'\n');
    }
}

/// A line whose hash is its own.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Line {
    /// Its number.
    pub seq: u64,
    /// The hash of the line before.
    pub prev: Digest,
    /// Its own.
    pub hash: Digest,
    /// When.
    pub ts: String,
    /// What.
    pub fact: String,
    /// Of torn bytes: how many.
    pub bytes: Option<u64>,
    /// Of torn bytes: their digest.
    pub sha256: Option<Digest>,
}

/// Why bytes are no line of ours.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Flaw {
    /// They have not the shape of one.
    NoLine,
    /// The hash is that of other bytes.
    WrongHash,
}

impl Flaw {
    /// For people.
    pub fn words(self) -> &'static str {
        match self {
            Self::NoLine => "it is no line of an audit",
            Self::WrongHash => "its hash is that of other bytes",
        }
    }
}

/// What is read of a line; other fields belong to its fact.
#[derive(Deserialize)]
struct Fields {
    seq: u64,
    ts: String,
    fact: String,
    prev: Digest,
    hash: Digest,
    #[serde(default)]
    bytes: Option<u64>,
    #[serde(default)]
    sha256: Option<Digest>,
}

/// Reads a line, without its LF.
pub fn read(line: &[u8]) -> Result<Line, Flaw> {
    let body = line.len().checked_sub(TAIL_BYTES).ok_or(Flaw::NoLine)?;
    let (body, tail) = line.split_at(body);
    let shaped = line.len() <= LINE_MAX_BYTES && line.starts_with(b"{\"seq\":") && tail.starts_with(HASH);
    if !shaped || !tail.ends_with(END) {
        return Err(Flaw::NoLine);
    }
    let Fields { seq, ts, fact, prev, hash, bytes, sha256 } = serde_json::from_slice(line).map_err(|_| Flaw::NoLine)?;
    if hash_of(body) != hash {
        return Err(Flaw::WrongHash);
    }
    Ok(Line { seq, prev, hash, ts, fact, bytes, sha256 })
}

impl Line {
    /// What stands at its end.
    pub fn head(&self) -> Head {
        Head { seq: self.seq, hash: self.hash }
    }

    /// Whether it stands right behind a line.
    pub fn follows(&self, head: Head) -> bool {
        self.prev == head.hash && Some(self.seq) == head.seq.checked_add(1)
    }
}

fn hash_of(body: &[u8]) -> Digest {
    Digest(sha256(&[LABEL, body]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_read_back_and_has_these_very_bytes() {
        let (mut head, mut text) = (Head::NONE, Vec::new());
        head.add(&mut text, Timestamp::from_second(1_764_540_000).unwrap(), &Fact::Begun {});
        let said = String::from_utf8(text.clone()).unwrap();
        let body = format!(r#"{{"seq":1,"ts":"2025-11-30T22:00:00.000Z","fact":"begun","prev":"{}""#, "A".repeat(43));
        let digest = ring::digest::digest(&ring::digest::SHA256, format!("usher/1 audit\n{body}").as_bytes());
        assert_eq!(said, format!("{body},\"hash\":\"{}\"}}\n", crate::ids::base64url(digest.as_ref())));
        let line = read(said.trim_end().as_bytes()).unwrap();
        assert_eq!((line.head(), line.fact.as_str()), (head, "begun"));
        assert!(line.follows(Head::NONE) && !line.follows(head));

        head.add(&mut text, Timestamp::UNIX_EPOCH, &Fact::Torn { bytes: 7, sha256: Digest([1; 32]) });
        let second = read(text.split(|byte| *byte == b'\n').nth(1).unwrap()).unwrap();
        assert_eq!((second.bytes, second.sha256), (Some(7), Some(Digest([1; 32]))));
        assert!(second.follows(line.head()));
    }

    #[test]
    fn a_line_with_any_other_byte_is_none() {
        let mut text = Vec::new();
        Head::NONE.clone().add(&mut text, Timestamp::UNIX_EPOCH, &Fact::Begun {});
        text.pop();
        for at in 0..text.len() {
            for change in 1..=u8::MAX {
                let mut other = text.clone();
                other[at] ^= change;
                assert!(read(&other).is_err(), "byte {at} ^ {change}");
            }
        }
        assert_eq!(read(&text[..text.len() - 1]), Err(Flaw::NoLine));
        assert_eq!(read(b""), Err(Flaw::NoLine));
    }
}
