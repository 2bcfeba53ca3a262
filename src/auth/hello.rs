//! The daemon's side of the handshake, without a socket: lines in, lines out, and at the end a verdict and keys.
//!
//! A [`Verified`] exists only when the peer's key signed this transcript.

use std::sync::Arc;

use ring::agreement::{EphemeralPrivateKey, UnparsedPublicKey, X25519, agree_ephemeral};
use ring::rand::SystemRandom;

use crate::ids::{Generation, Nonce, PublicKey};
use crate::wire::codes::Code;
use crate::wire::lines::{self, Challenge, Hello, Incompatible, Range, Role};
use crate::wire::methods::{Method, Scopes};
use crate::wire::transcript::{Hash, Keys, Statement, Transcript, keys};

use super::credential::Credential;
use super::gate::Authority;
use super::identity::Identity;

/// A peer that has proved itself. Private fields: nothing else makes one.
#[derive(Debug)]
pub struct Verified {
    credential: Arc<Credential>,
    hello: Hello,
}

impl Verified {
    /// The credential whose key signed.
    pub fn credential(&self) -> &Arc<Credential> {
        &self.credential
    }

    /// What the peer may do on this connection, if it may do anything at all.
    pub fn authorize(self) -> Result<Authority, Code> {
        if let Some(end) = self.credential.gate.end() {
            return Err(end.code());
        }
        if self.hello.role != self.credential.role {
            return Err(Code::Role);
        }
        let granted = self.credential.grant.scopes();
        let scopes = match &self.hello.scopes {
            None => granted,
            Some(names) => {
                let asked = names.iter().filter_map(|name| Method::from_name(name));
                granted.and(asked.fold(Scopes::default(), Scopes::with))
            }
        };
        Ok(Authority::new(self.credential, scopes))
    }
}

/// Which protocol a hello gets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Choice {
    /// This one.
    Protocol(u16),
    /// None.
    Incompatible,
}

/// The highest common protocol, or the frozen one for operators.
pub fn choose(hello: &Hello) -> Choice {
    if hello.protocol == Range::ZERO && hello.role == Role::Operator {
        return Choice::Protocol(0);
    }
    hello.protocol.common(Range::OURS).map_or(Choice::Incompatible, Choice::Protocol)
}

/// A challenge that waits for the client's proof.
pub struct Challenged {
    transcript: Transcript,
    ephemeral: EphemeralPrivateKey,
    hello: Hello,
}

/// The end of a handshake: the keys hold whether or not the peer is let in, so that a refusal is sealed too.
pub struct Finished {
    /// For the frames.
    pub keys: Keys,
    /// For receipts.
    pub t3: Hash,
    /// The peer, or that its proof is not its key's.
    pub peer: Result<Verified, Code>,
}

/// Answers line 1 with the challenge and the daemon's proof. `None`: there is no randomness or the key is unusable.
pub fn challenge(
    first: &[u8],
    hello: Hello,
    protocol: u16,
    generation: Generation,
    daemon: &Identity,
) -> Option<(Vec<u8>, Challenged)> {
    let ephemeral = EphemeralPrivateKey::generate(&X25519, &SystemRandom::new()).ok()?;
    let public = ephemeral.compute_public_key().ok()?;
    let challenge = lines::challenge(&Challenge {
        protocol,
        generation,
        daemon: daemon.public(),
        nonce: Nonce::random(),
        ephemeral: PublicKey(public.as_ref().try_into().ok()?),
    });
    let mut transcript = Transcript::new(first);
    transcript.add(&challenge);
    let proof = lines::proof(daemon.sign(&Statement::DaemonProof(transcript.hash())));
    transcript.add(&proof);
    Some(([challenge, proof].concat(), Challenged { transcript, ephemeral, hello }))
}

impl Challenged {
    /// Checks the client's proof line against the key of the credential that its hello named, if there is one.
    /// `None` where no keys can be agreed.
    pub fn finish(mut self, line: &[u8], credential: Option<Arc<Credential>>) -> Result<Option<Finished>, String> {
        let proof = lines::read_proof(line)?;
        let statement = Statement::ClientProof(self.transcript.hash());
        self.transcript.add(line);
        let t3 = self.transcript.hash();
        let peer = UnparsedPublicKey::new(&X25519, self.hello.ephemeral.0);
        // ring refuses the all-zero secret.
        let Ok(Some(keys)) = agree_ephemeral(self.ephemeral, &peer, |secret| keys(&t3, secret)) else {
            return Ok(None);
        };
        let peer = match credential {
            Some(credential) if statement.is_signed_by(credential.public_key, &proof) => {
                Ok(Verified { credential, hello: self.hello })
            }
            _ => Err(Code::Unauthenticated),
        };
        Ok(Some(Finished { keys, t3, peer }))
    }
}

/// The signed answer to a hello without a common protocol, and the statement that the client may sign in turn.
pub fn incompatible(first: &[u8], build: &str, generation: Generation, daemon: &Identity) -> (Vec<u8>, Statement) {
    let line = lines::incompatible(&Incompatible {
        protocol: Range::OURS,
        build: build.to_owned(),
        generation,
        daemon: daemon.public(),
        nonce: Nonce::random(),
    });
    let mut transcript = Transcript::new(first);
    transcript.add(&line);
    let proof = lines::proof(daemon.sign(&Statement::Incompatible(transcript.hash())));
    transcript.add(&proof);
    ([line, proof].concat(), Statement::ClientProof(transcript.hash()))
}
