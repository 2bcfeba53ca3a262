//! Secret key files: PKCS#8 version 1 of Ed25519 as PEM (RFC 5958, RFC 8410, RFC 7468), readable by `openssl pkey`.
//!
//! Owns: that one form. It must not know whose key it is. Invariant: exactly one text stands for a seed; whatever else
//! is refused without repeating a byte of it.

use data_encoding::BASE64_NOPAD;

use crate::ids;

use super::dir::Dir;
use super::error::{Problem, StoreError};
use super::read::Kind;

/// The DER in front of the seed: a sequence of version 0, the algorithm 1.3.101.112, and an octet string in an octet
/// string.
const PREFIX: [u8; 16] =
    [0x30, 0x2e, 0x02, 0x01, 0x00, 0x30, 0x05, 0x06, 0x03, 0x2b, 0x65, 0x70, 0x04, 0x22, 0x04, 0x20];

const BEGIN: &str = "-----BEGIN PRIVATE KEY-----\n";
const END: &str = "\n-----END PRIVATE KEY-----\n";

/// How key files are judged: 119 bytes are expected, and a page leaves room to say what else it is.
pub const KEY: Kind = Kind { secret: true, max_bytes: 4096 };

/// An Ed25519 private key. It has no `Debug` and no copies.
pub struct Seed([u8; 32]);

impl Seed {
    /// A new one from the system's generator.
    pub fn random() -> Self {
        Self(ids::random())
    }

    /// The bytes, for whoever signs.
    pub fn bytes(&self) -> &[u8; 32] {
        &self.0
    }
}

impl From<[u8; 32]> for Seed {
    fn from(bytes: [u8; 32]) -> Self {
        Self(bytes)
    }
}

/// Reads a key file.
pub fn read(dir: &Dir, name: &str) -> Result<Seed, StoreError> {
    let bytes = dir.read(name, &KEY)?;
    decode(&bytes).map_err(|reason| dir.error(name, Problem::Corrupt(reason.to_owned())))
}

/// Replaces a key file.
pub fn write(dir: &Dir, name: &str, seed: &Seed) -> Result<(), StoreError> {
    dir.write(name, encode(seed).as_bytes())
}

/// The text of a seed: 48 bytes of DER are 64 columns, one line, and need no padding.
pub fn encode(seed: &Seed) -> String {
    let mut der = [0; 48];
    der[..16].copy_from_slice(&PREFIX);
    der[16..].copy_from_slice(&seed.0);
    format!("{BEGIN}{}{END}", BASE64_NOPAD.encode(&der))
}

/// The seed in a text that [`encode`] or `openssl genpkey -algorithm ed25519` wrote.
pub fn decode(bytes: &[u8]) -> Result<Seed, &'static str> {
    if bytes.starts_with(b"-----BEGIN ENCRYPTED PRIVATE KEY-----") {
        return Err("the key is encrypted with a passphrase, which is not supported");
    }
    if bytes.starts_with(b"-----BEGIN OPENSSH PRIVATE KEY-----") {
        return Err("an OpenSSH key, not PKCS#8");
    }
    let body = bytes
        .strip_prefix(BEGIN.as_bytes())
        .and_then(|rest| rest.strip_suffix(END.as_bytes()))
        .ok_or("no PEM private key of one block")?;
    // Checked before the decoding, which needs room for exactly this.
    if body.len() != 64 {
        return Err("not an Ed25519 key of PKCS#8 version 1");
    }
    let mut der = [0; 48];
    BASE64_NOPAD.decode_mut(body, &mut der).map_err(|_| "the PEM block is not base64")?;
    let (prefix, seed) = der.split_at(16);
    if prefix != PREFIX {
        return Err("not an Ed25519 key of PKCS#8 version 1");
    }
    seed.try_into().map(Seed).map_err(|_| "not an Ed25519 key of PKCS#8 version 1")
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::super::scratch::Scratch;
    use super::*;

    /// RFC 8410, section 10.3.
    const RFC_8410: &str = "-----BEGIN PRIVATE KEY-----\n\
        MC4CAQAwBQYDK2VwBCIEINTuctv5E1hK1bbY8fdp+K06/nwoy/HU++CXqI9EdVhC\n\
        -----END PRIVATE KEY-----\n";

    fn reason(text: &str) -> &'static str {
        decode(text.as_bytes()).err().unwrap()
    }

    #[test]
    fn the_key_of_rfc_8410_reads_and_writes_as_printed_there() {
        let seed = decode(RFC_8410.as_bytes()).ok().unwrap();
        assert_eq!(seed.bytes()[..4], [0xd4, 0xee, 0x72, 0xdb]);
        assert_eq!(seed.bytes()[31], 0x42);
        assert_eq!(encode(&seed), RFC_8410);
        assert_eq!(RFC_8410.len(), 119);
    }

    #[test]
    fn a_change_of_any_byte_gives_another_key_or_none() {
        let seed = decode(RFC_8410.as_bytes()).ok().unwrap();
        for position in 0..RFC_8410.len() {
            for change in 1..=u8::MAX {
                let mut text = RFC_8410.as_bytes().to_vec();
                text[position] ^= change;
                if let Ok(other) = decode(&text) {
                    assert_ne!(other.bytes(), seed.bytes(), "byte {position} ^ {change}");
                    assert_eq!(encode(&other).as_bytes(), text, "one spelling");
                }
            }
        }
    }

    #[test]
    fn other_keys_and_other_spellings_are_refused() {
        assert_eq!(reason(""), "no PEM private key of one block");
        assert_eq!(reason(&RFC_8410.replace('\n', "\r\n")), "no PEM private key of one block");
        assert_eq!(reason(&format!("{RFC_8410}{RFC_8410}")), "not an Ed25519 key of PKCS#8 version 1");
        assert_eq!(reason(&RFC_8410.replace("MC4CAQAw", "MC4CAQEw")), "not an Ed25519 key of PKCS#8 version 1");
        assert_eq!(reason(&RFC_8410.replace("K2Vw", "K2Vu")), "not an Ed25519 key of PKCS#8 version 1");
        assert_eq!(reason(&RFC_8410.replace("MC4C", "MC!C")), "the PEM block is not base64");
        assert!(reason("-----BEGIN ENCRYPTED PRIVATE KEY-----\n").contains("passphrase"));
        assert!(reason("-----BEGIN OPENSSH PRIVATE KEY-----\n").contains("OpenSSH"));
    }

    #[test]
    fn a_key_file_is_a_secret_and_its_refusal_names_it_without_its_bytes() {
        let scratch = Scratch::new();
        let seed = Seed::random();
        write(&scratch.dir(), "daemon.pem", &seed).unwrap();
        assert_eq!(read(&scratch.dir(), "daemon.pem").ok().unwrap().bytes(), seed.bytes());
        scratch.file("daemon.pem", RFC_8410.as_bytes(), 0o644);
        let error = read(&scratch.dir(), "daemon.pem").err().unwrap();
        assert_eq!(error.problem(), &Problem::Unsafe("can be read by others"));
        scratch.file("daemon.pem", RFC_8410.to_lowercase().as_bytes(), 0o600);
        let line = read(&scratch.dir(), "daemon.pem").err().unwrap().to_string();
        assert!(line.contains("/daemon.pem is corrupt: ") && !line.contains("mc4caqaw"), "{line}");
    }

    #[test]
    fn openssl_reads_our_keys_and_we_read_its() {
        let scratch = Scratch::new();
        write(&scratch.dir(), "a.pem", &decode(RFC_8410.as_bytes()).ok().unwrap()).unwrap();
        let openssl = |arguments: &[&str]| Command::new("openssl").args(arguments).current_dir(scratch.path()).output();
        let Ok(public) = openssl(&["pkey", "-in", "a.pem", "-pubout"]) else {
            println!("SKIPPED: no openssl to compare with");
            return;
        };
        // RFC 8410, section 10.1: the public key of the private one above.
        let text = String::from_utf8(public.stdout).unwrap();
        assert!(text.contains("MCowBQYDK2VwAyEAGb9ECWmEzf6FQbrBZ9w7lshQhqowtrbLDFw4rXAxZuE="), "{text}");
        assert!(openssl(&["genpkey", "-algorithm", "ed25519", "-out", "b.pem"]).unwrap().status.success());
        let mode = std::os::unix::fs::PermissionsExt::from_mode(0o600);
        std::fs::set_permissions(scratch.path().join("b.pem"), mode).unwrap();
        assert!(read(&scratch.dir(), "b.pem").is_ok());
    }
}
