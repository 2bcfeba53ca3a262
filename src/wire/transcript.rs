//! What is signed and what keys come of it: pure functions from lines to T1, T2, T3, proofs and keys.
//!
//! Lines enter byte for byte as they were sent, with their LF. The labels never change.

use ring::digest::{Context, SHA256};
use ring::hkdf::{HKDF_SHA256, KeyType, Salt};
use ring::signature::{ED25519, UnparsedPublicKey};

use crate::ids::{ApprovalId, Digest, Generation, PublicKey, RotationId, SessionId, Signature};

const TRANSCRIPT: &[u8] = b"usher/1 transcript\n";
const DAEMON_PROOF: &[u8] = b"usher/1 daemon proof\n";
const CLIENT_PROOF: &[u8] = b"usher/1 client proof\n";
const INCOMPATIBLE: &[u8] = b"usher/1 incompatible\n";
const RECEIPT: &[u8] = b"usher/1 receipt\n";
const LEASE: &[u8] = b"usher/1 lease\n";
const STAGE: &[u8] = b"usher/1 stage\n";
const DECISION: &[u8] = b"usher/1 decision\n";
const AUDIT_HEAD: &[u8] = b"usher/1 audit head\n";
const TO_DAEMON: &[u8] = b"usher/1 client to daemon";
const TO_CLIENT: &[u8] = b"usher/1 daemon to client";

/// SHA-256 of everything so far.
pub type Hash = [u8; 32];

/// SHA-256 of some bytes.
pub fn sha256(parts: &[&[u8]]) -> Hash {
    let mut context = Context::new(&SHA256);
    for part in parts {
        context.update(part);
    }
    let mut hash = [0; 32];
    hash.copy_from_slice(context.finish().as_ref());
    hash
}

/// The lines that went over the wire, in order.
#[derive(Clone)]
pub struct Transcript {
    context: Context,
}

impl Transcript {
    /// Begins with line 1.
    pub fn new(first: &[u8]) -> Self {
        let mut context = Context::new(&SHA256);
        context.update(TRANSCRIPT);
        context.update(first);
        Self { context }
    }

    /// Appends a line as it was sent.
    pub fn add(&mut self, line: &[u8]) {
        self.context.update(line);
    }

    /// T1, T2 or T3, by how many lines are in.
    pub fn hash(&self) -> Hash {
        let mut hash = [0; 32];
        hash.copy_from_slice(self.context.clone().finish().as_ref());
        hash
    }
}

/// What a signature is about. Each has its own label, so none can stand for another.
#[derive(Debug, Clone, Copy)]
pub enum Statement {
    /// The daemon's key, over T1.
    DaemonProof(Hash),
    /// The client's key, over T2 (or over the transcript of an incompatible answer).
    ClientProof(Hash),
    /// The daemon's key, over line 1 and the incompatible line.
    Incompatible(Hash),
    /// The daemon's key, over T3, a request and its result.
    Receipt {
        /// T3 of the connection.
        t3: Hash,
        /// SHA-256 of the request's plaintext.
        request: Hash,
        /// SHA-256 of the result's text, LF and payload with it.
        result: Hash,
    },
    /// A session's reconnect key, over T3 of the connection that takes the session back.
    Lease {
        /// T3 of that connection.
        t3: Hash,
        /// The session.
        session: SessionId,
    },
    /// A session's reconnect key and the one that is to follow it, over what is staged.
    Stage {
        /// T3 of the owner's connection.
        t3: Hash,
        /// The session.
        session: SessionId,
        /// The rotation.
        rotation: RotationId,
        /// The key that is to follow.
        new_key: PublicKey,
    },
    /// A decider's key, over what it was shown.
    Decision {
        /// The daemon that asked.
        generation: Generation,
        /// The approval.
        approval: ApprovalId,
        /// SHA-256 of its text.
        text: Hash,
        /// Or rejected.
        is_approved: bool,
    },
    /// The daemon's key, over the last line of its audit.
    AuditHead {
        /// The line's number.
        seq: u64,
        /// Its hash.
        hash: Digest,
    },
}

impl Statement {
    /// The exact bytes that are signed.
    pub fn bytes(&self) -> Vec<u8> {
        match self {
            Self::DaemonProof(hash) => [DAEMON_PROOF, hash].concat(),
            Self::ClientProof(hash) => [CLIENT_PROOF, hash].concat(),
            Self::Incompatible(hash) => [INCOMPATIBLE, hash].concat(),
            Self::Receipt { t3, request, result } => [RECEIPT, t3, request, result].concat(),
            Self::Lease { t3, session } => [LEASE, t3, &session.0].concat(),
            Self::Stage { t3, session, rotation, new_key } => [STAGE, t3, &session.0, &rotation.0, &new_key.0].concat(),
            Self::Decision { generation, approval, text, is_approved } => {
                [DECISION, &generation.0, &approval.0, text, &[u8::from(*is_approved)]].concat()
            }
            Self::AuditHead { seq, hash } => [AUDIT_HEAD, &seq.to_be_bytes(), &hash.0].concat(),
        }
    }

    /// Whether the key signed exactly this.
    pub fn is_signed_by(&self, key: PublicKey, signature: &Signature) -> bool {
        UnparsedPublicKey::new(&ED25519, key.0).verify(&self.bytes(), &signature.0).is_ok()
    }
}

/// The two keys of a connection. No `Debug`: they are secrets.
pub struct Keys {
    /// The client seals with it.
    pub to_daemon: [u8; 32],
    /// The daemon seals with it.
    pub to_client: [u8; 32],
}

/// HKDF-SHA256 of the X25519 secret with T3 as salt.
pub fn keys(t3: &Hash, secret: &[u8]) -> Option<Keys> {
    struct Bytes32;
    impl KeyType for Bytes32 {
        fn len(&self) -> usize {
            32
        }
    }
    let extracted = Salt::new(HKDF_SHA256, t3).extract(secret);
    let expand = |info: &[u8]| {
        let mut key = [0; 32];
        extracted.expand(&[info], Bytes32).ok()?.fill(&mut key).ok()?;
        Some(key)
    };
    Some(Keys { to_daemon: expand(TO_DAEMON)?, to_client: expand(TO_CLIENT)? })
}
