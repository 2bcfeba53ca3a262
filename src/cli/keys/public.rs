//! Public keys as people have them: 43 base64url characters, or the PEM that `openssl pkey -pubout` writes.

use data_encoding::BASE64;

use crate::error::Failure;
use crate::ids::PublicKey;

use super::super::args::KeyArg;
use super::super::foreign;

/// The DER in front of an Ed25519 public key (RFC 8410, section 4).
const PREFIX: [u8; 12] = [0x30, 0x2a, 0x30, 0x05, 0x06, 0x03, 0x2b, 0x65, 0x70, 0x03, 0x21, 0x00];
const BEGIN: &str = "-----BEGIN PUBLIC KEY-----";
const END: &str = "-----END PUBLIC KEY-----";

/// A key takes a line or three; room to say what else it is.
const FILE_MAX_BYTES: u64 = 4096;

/// The key that was said or named.
pub fn public_key(key: &KeyArg) -> Result<PublicKey, Failure> {
    let text = match key {
        KeyArg::Text(text) => text.clone(),
        KeyArg::File(path) => String::from_utf8_lossy(&foreign::read(path, FILE_MAX_BYTES)?).into_owned(),
    };
    let wrong = "a public key is 43 base64url characters, or the PEM text of an Ed25519 one";
    parse(text.trim()).ok_or_else(|| Failure::usage(wrong))
}

fn parse(text: &str) -> Option<PublicKey> {
    let Some(body) = text.strip_prefix(BEGIN).and_then(|rest| rest.strip_suffix(END)) else {
        return text.parse().ok();
    };
    let der = BASE64.decode(body.trim().as_bytes()).ok()?;
    der.strip_prefix(&PREFIX).and_then(|raw| raw.try_into().ok()).map(PublicKey)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_public_key_is_read_from_its_text_and_from_pem() {
        // RFC 8410, section 10.1.
        let pem = "-----BEGIN PUBLIC KEY-----\n\
            MCowBQYDK2VwAyEAGb9ECWmEzf6FQbrBZ9w7lshQhqowtrbLDFw4rXAxZuE=\n\
            -----END PUBLIC KEY-----";
        let key = parse(pem).unwrap();
        assert_eq!(key.0[..3], [0x19, 0xbf, 0x44]);
        assert_eq!(parse(&key.to_string()), Some(key));
        for text in ["", "AAAA", "-----BEGIN PUBLIC KEY-----\nAAAA\n-----END PUBLIC KEY-----", &pem[..80]] {
            assert_eq!(parse(text), None, "{text}");
        }
    }
}
