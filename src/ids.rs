//! Names made of random or hashed bytes, and their text.
//!
//! Owns base64url without padding, the one text form of bytes on the wire. Each kind of name is a type of its own, so
//! a session can never be passed where a credential is meant.

use std::fmt;
use std::str::FromStr;

use data_encoding::BASE64URL_NOPAD;
use ring::rand::{SecureRandom, SystemRandom};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// The bytes as base64url without padding (RFC 4648, section 5).
pub fn base64url(bytes: &[u8]) -> String {
    BASE64URL_NOPAD.encode(bytes)
}

/// Exactly `N` bytes from base64url text; non-canonical text (set bits behind the last byte) is refused.
pub fn from_base64url<const N: usize>(text: &str) -> Option<[u8; N]> {
    let mut bytes = [0; N];
    if BASE64URL_NOPAD.decode_len(text.len()) != Ok(N) {
        return None;
    }
    BASE64URL_NOPAD.decode_mut(text.as_bytes(), &mut bytes).ok()?;
    Some(bytes)
}

/// `N` bytes from the system's generator.
///
/// # Panics
/// Where the system has no randomness there is nothing safe left to do.
#[expect(
    clippy::panic,
    reason = "without randomness no key, nonce or id is safe; the kernel's generator does not fail"
)]
pub fn random<const N: usize>() -> [u8; N] {
    let mut bytes = [0; N];
    if SystemRandom::new().fill(&mut bytes).is_err() {
        panic!("the system has no random bytes");
    }
    bytes
}

/// Bytes that do not have the shape of the name that was asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NotAName;

macro_rules! name_type {
    ($(#[$doc:meta])* $name:ident, $bytes:literal) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(pub [u8; $bytes]);

        impl fmt::Display for $name {
            fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
                out.write_str(&base64url(&self.0))
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(out, "{}({self})", stringify!($name))
            }
        }

        impl FromStr for $name {
            type Err = NotAName;

            fn from_str(text: &str) -> Result<Self, NotAName> {
                from_base64url(text).map(Self).ok_or(NotAName)
            }
        }

        impl Serialize for $name {
            fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
                to.collect_str(self)
            }
        }

        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
                let text = std::borrow::Cow::<'de, str>::deserialize(from)?;
                text.parse().map_err(|NotAName| {
                    serde::de::Error::custom(concat!("expected ", $bytes, " bytes in base64url without padding"))
                })
            }
        }
    };
}

name_type!(
    /// One start of a daemon: 16 random bytes.
    Generation, 16
);
name_type!(
    /// One authenticated connection: 16 random bytes.
    ConnectionId, 16
);
name_type!(
    /// A credential's record; stays while its key changes.
    CredentialId, 16
);
name_type!(
    /// A registered program; chosen by it, 16 random bytes.
    SessionId, 16
);
name_type!(
    /// One rotation of a session's reconnect key; drawn by the producer.
    RotationId, 16
);
name_type!(
    /// One question to a person: 16 random bytes.
    ApprovalId, 16
);
name_type!(
    /// SHA-256 of a raw Ed25519 public key.
    Fingerprint, 32
);
name_type!(
    /// A raw public key: Ed25519 where it signs, X25519 where it agrees.
    PublicKey, 32
);
name_type!(
    /// 32 random bytes that make a hello unlike every other.
    Nonce, 32
);
name_type!(
    /// A SHA-256 in the audit: of a line, of a text that is not told, of bytes that were torn.
    Digest, 32
);
name_type!(
    /// An Ed25519 signature.
    Signature, 64
);

impl Generation {
    /// A new random generation.
    pub fn random() -> Self {
        Self(random())
    }
}

impl ConnectionId {
    /// A new random connection id.
    pub fn random() -> Self {
        Self(random())
    }
}

impl CredentialId {
    /// A new random credential id, of which no command line takes the text for an option.
    pub fn random() -> Self {
        Self(random_without_dash())
    }
}

impl SessionId {
    /// A new random session id, of which no command line takes the text for an option.
    pub fn random() -> Self {
        Self(random_without_dash())
    }
}

impl ApprovalId {
    /// A new random approval id, of which no command line takes the text for an option.
    pub fn random() -> Self {
        Self(random_without_dash())
    }
}

/// 16 random bytes whose base64url does not begin with `-`: one draw in 64 is thrown away.
fn random_without_dash() -> [u8; 16] {
    loop {
        let bytes = random();
        if !base64url(&bytes).starts_with('-') {
            return bytes;
        }
    }
}

impl Nonce {
    /// A new random nonce.
    pub fn random() -> Self {
        Self(random())
    }
}

impl PublicKey {
    /// SHA-256 of the raw key.
    pub fn fingerprint(&self) -> Fingerprint {
        let digest = ring::digest::digest(&ring::digest::SHA256, &self.0);
        let mut bytes = [0; 32];
        bytes.copy_from_slice(digest.as_ref());
        Fingerprint(bytes)
    }
}

/// The y coordinates of the points whose order divides 8, in every encoding (RFC 8032, section 5.1.2; the sign is not
/// looked at). A signature under such a key can be made without a secret.
const SMALL_ORDER: [&[u8; 64]; 7] = [
    b"0000000000000000000000000000000000000000000000000000000000000000",
    b"0100000000000000000000000000000000000000000000000000000000000000",
    b"26e8958fc2b227b045c3f489f2ef98f0d5dfac05d3c63339b13802886d53fc05",
    b"c7176a703d4dd84fba3c0b760d10670f2a2053fa2c39ccc64ec7fd7792ac037a",
    b"ecffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f",
    b"edffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f",
    b"eeffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f",
];

impl PublicKey {
    /// Whether the point is one of the few that are no key.
    pub fn has_small_order(&self) -> bool {
        let mut y = self.0;
        y[31] &= 0x7f;
        let text = data_encoding::HEXLOWER.encode(&y);
        SMALL_ORDER.iter().any(|point| text.as_bytes() == *point)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_reads_back_as_it_was_written() {
        let session = SessionId::random();
        assert_eq!(session.to_string().len(), 22);
        assert_eq!(session.to_string().parse(), Ok(session));
    }

    #[test]
    fn a_name_of_another_length_or_alphabet_is_refused() {
        for text in
            ["", "AAAAAAAAAAAAAAAAAAAAA", "AAAAAAAAAAAAAAAAAAAAAAA", "AAAAAAAAAAAAAAAAAAAA==", "AAAAAAAAAAAAAAAAAAAA+/"]
        {
            assert_eq!(text.parse::<SessionId>(), Err(NotAName), "{text}");
        }
    }

    #[test]
    fn an_id_of_ours_never_looks_like_an_option() {
        for _ in 0..2_000 {
            assert!(!CredentialId::random().to_string().starts_with('-'));
            assert!(!SessionId::random().to_string().starts_with('-'));
        }
    }

    #[test]
    fn a_point_of_small_order_is_no_key() {
        assert!(PublicKey([0; 32]).has_small_order());
        let mut minus_one = [0xff; 32];
        minus_one[0] = 0xec;
        assert!(PublicKey(minus_one).has_small_order(), "with either sign");
        assert!(!PublicKey([1; 32]).has_small_order());
    }

    #[test]
    fn text_with_bits_behind_the_last_byte_is_refused() {
        assert!("AAAAAAAAAAAAAAAAAAAAAA".parse::<SessionId>().is_ok());
        assert!("AAAAAAAAAAAAAAAAAAAAAB".parse::<SessionId>().is_err());
    }
}
