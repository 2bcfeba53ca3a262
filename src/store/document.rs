//! JSON documents that are never silently misread.
//!
//! Owns: their form. The first line is `{"version":1,"sha256":"<43 base64url>"}` and LF, its digest that of all bytes
//! behind that LF; then one JSON object, indented, and a last LF. It must not know what the object means: unknown
//! fields are refused by the type that is read (`deny_unknown_fields`). Invariant: one flipped, lost or added byte is
//! an error, a newer version is left alone, and no error repeats a byte of the file.

use std::io::{self, Write};

use ring::digest::{Context, SHA256, digest};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::ids::base64url;

use super::dir::Dir;
use super::error::{Problem, StoreError};
use super::read::Kind;

/// The first line, as far as every version has it.
#[derive(Deserialize)]
struct Version {
    version: u64,
}

/// Reads a document of exactly this version; an older one needs a reader of its own, so it is never read as this one.
pub fn read<T: DeserializeOwned>(dir: &Dir, name: &str, max_bytes: u64, version: u32) -> Result<T, StoreError> {
    let bytes = dir.read(name, &Kind { secret: false, max_bytes })?;
    decode(&bytes, version).map_err(|problem| dir.error(name, problem))
}

/// Replaces a document. One that could not be read again under the same ceiling is not written. Its text is made twice,
/// for the digest and for the file, and never held as a whole: it is written often, by whichever thread, and grows.
pub fn write<T: Serialize>(dir: &Dir, name: &str, max_bytes: u64, version: u32, value: &T) -> Result<(), StoreError> {
    let mut measured = Measured { digest: Context::new(&SHA256), bytes: 0 };
    // The message of a failed encoding may quote the value.
    let no_form = |_| dir.error(name, Problem::Corrupt("its content has no JSON form".to_owned()));
    body(value, &mut measured).map_err(no_form)?;
    let first = header(version, measured.digest.finish().as_ref());
    let size = first.len() as u64 + measured.bytes;
    if size > max_bytes {
        return Err(dir.error(name, Problem::TooLarge { bytes: size, max_bytes }));
    }
    dir.write_with(name, |file| {
        file.write_all(first.as_bytes())?;
        body(value, file)
    })
}

/// Digest and size of what is written to it.
struct Measured {
    digest: Context,
    bytes: u64,
}

impl Write for Measured {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.digest.update(bytes);
        self.bytes += bytes.len() as u64;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// The first line, with the digest of the rest.
fn header(version: u32, digest: &[u8]) -> String {
    format!("{{\"version\":{version},\"sha256\":\"{}\"}}\n", base64url(digest))
}

/// The rest.
fn body<T: Serialize>(value: &T, out: &mut dyn Write) -> io::Result<()> {
    serde_json::to_writer_pretty(&mut *out, value)?;
    out.write_all(b"\n")
}

fn decode<T: DeserializeOwned>(bytes: &[u8], version: u32) -> Result<T, Problem> {
    let corrupt = |reason: &str| Problem::Corrupt(reason.to_owned());
    let Some(end) = bytes.iter().position(|byte| *byte == b'\n') else {
        return Err(corrupt("its first line does not end"));
    };
    let (first, body) = bytes.split_at(end + 1);
    // Before the digest: a newer version may compute it differently.
    let named: Version =
        serde_json::from_slice(first).map_err(|_| corrupt("its first line does not name a version"))?;
    if named.version > u64::from(version) {
        return Err(Problem::Newer { version: named.version });
    }
    // Compared as text, so there is one spelling of the first line.
    if first != header(version, digest(&SHA256, body).as_ref()).as_bytes() {
        return Err(corrupt("its first line does not match the rest"));
    }
    if body.first() != Some(&b'{') {
        // serde reads a struct from an array too.
        return Err(corrupt("it holds no JSON object"));
    }
    serde_json::from_slice(body).map_err(|error| {
        // The message of serde_json may quote the file; where it stopped does not.
        let (line, column) = (error.line(), error.column());
        Problem::Corrupt(format!("not what version {version} holds, at line {} column {column}", line + 1))
    })
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::super::scratch::Scratch;
    use super::*;

    #[derive(Debug, PartialEq, Serialize, Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Sample {
        label: String,
        numbers: Vec<u32>,
    }

    fn sample() -> Sample {
        Sample { label: "the-content".to_owned(), numbers: vec![1, 22, 333] }
    }

    fn with_header(body: &[u8]) -> Vec<u8> {
        [header(1, digest(&SHA256, body).as_ref()).as_bytes(), body].concat()
    }

    fn encoded() -> Vec<u8> {
        let scratch = Scratch::new();
        write(&scratch.dir(), "a.json", 4096, 1, &sample()).unwrap();
        fs::read(scratch.path().join("a.json")).unwrap()
    }

    fn put(scratch: &Scratch, body: &str) {
        scratch.file("a.json", &with_header(body.as_bytes()), 0o600);
    }

    fn problem(scratch: &Scratch) -> Problem {
        let error = read::<Sample>(&scratch.dir(), "a.json", 4096, 1).unwrap_err();
        let line = error.to_string();
        assert!(!line.contains("the-content") && !line.contains('\n'), "{line}");
        assert!(line.contains("/a.json "), "{line}");
        error.problem().clone()
    }

    #[test]
    fn a_document_reads_back_as_it_was_written() {
        let scratch = Scratch::new();
        write(&scratch.dir(), "a.json", 4096, 1, &sample()).unwrap();
        assert_eq!(read::<Sample>(&scratch.dir(), "a.json", 4096, 1).unwrap(), sample());
        let text = fs::read_to_string(scratch.path().join("a.json")).unwrap();
        let (first, body) = text.split_once('\n').unwrap();
        assert_eq!(first.len(), "{\"version\":1,\"sha256\":\"\"}".len() + 43);
        assert!(body.starts_with("{\n  \"label\"") && body.ends_with("}\n"), "{body}");
    }

    #[test]
    fn a_flip_of_any_bit_anywhere_is_refused() {
        let bytes = encoded();
        assert_eq!(decode::<Sample>(&bytes, 1), Ok(sample()));
        for position in 0..bytes.len() {
            for change in 1..=u8::MAX {
                let mut changed = bytes.clone();
                changed[position] ^= change;
                let refused = decode::<Sample>(&changed, 1);
                assert!(
                    matches!(refused, Err(Problem::Corrupt(_) | Problem::Newer { .. })),
                    "byte {position} ^ {change}: {refused:?}"
                );
            }
        }
    }

    #[test]
    fn a_document_cut_short_or_grown_anywhere_is_refused() {
        let bytes = encoded();
        for length in 0..bytes.len() {
            assert!(matches!(decode::<Sample>(&bytes[..length], 1), Err(Problem::Corrupt(_))), "{length} bytes");
        }
        for position in 0..=bytes.len() {
            for added in [b' ', b'\n', b'0', b'\0'] {
                let mut grown = bytes.clone();
                grown.insert(position, added);
                let refused = decode::<Sample>(&grown, 1);
                assert!(matches!(refused, Err(Problem::Corrupt(_) | Problem::Newer { .. })), "{position}: {refused:?}");
            }
        }
    }

    #[test]
    fn a_document_with_an_unknown_missing_or_repeated_field_is_refused_without_quoting_it() {
        let scratch = Scratch::new();
        for body in [
            "{\"label\":\"the-content\",\"numbers\":[],\"the-content\":1}\n",
            "{\"label\":\"the-content\"}\n",
            "{\"label\":\"the-content\",\"label\":\"the-content\",\"numbers\":[]}\n",
            "{\"label\":\"the-content\",\"numbers\":\"the-content\"}\n",
            "{\"label\":\"the-content\",\"numbers\":[]}\n{}\n",
        ] {
            put(&scratch, body);
            let Problem::Corrupt(reason) = problem(&scratch) else { panic!("{body}") };
            assert!(reason.starts_with("not what version 1 holds, at line "), "{reason}");
        }
    }

    #[test]
    fn an_array_is_not_taken_for_the_object() {
        let scratch = Scratch::new();
        put(&scratch, "[\"the-content\",[]]\n");
        assert_eq!(problem(&scratch), Problem::Corrupt("it holds no JSON object".to_owned()));
    }

    #[test]
    fn a_newer_version_is_refused_by_its_number_and_not_touched() {
        let scratch = Scratch::new();
        let bytes = b"{\"version\":7,\"digest\":\"of another kind\"}\nwhatever it is then\n";
        let path = scratch.file("a.json", bytes, 0o600);
        assert_eq!(problem(&scratch), Problem::Newer { version: 7 });
        assert_eq!(fs::read(path).unwrap(), bytes);
        assert_eq!(scratch.names(), ["a.json"]);
    }

    #[test]
    fn an_older_version_is_not_read_as_this_one() {
        let bytes = encoded();
        assert!(matches!(decode::<Sample>(&bytes, 2), Err(Problem::Corrupt(_))));
    }

    #[test]
    fn a_document_beyond_its_ceiling_is_neither_written_nor_read() {
        let scratch = Scratch::new();
        write(&scratch.dir(), "a.json", 4096, 1, &sample()).unwrap();
        let big = Sample { label: "x".repeat(5000), numbers: vec![] };
        let error = write(&scratch.dir(), "a.json", 4096, 1, &big).unwrap_err();
        assert!(matches!(error.problem(), Problem::TooLarge { max_bytes: 4096, .. }));
        assert_eq!(read::<Sample>(&scratch.dir(), "a.json", 4096, 1).unwrap(), sample());
        assert!(matches!(
            read::<Sample>(&scratch.dir(), "a.json", 10, 1).unwrap_err().problem(),
            Problem::TooLarge { max_bytes: 10, .. }
        ));
    }
}
