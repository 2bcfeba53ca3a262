//! An Ed25519 key of ours: the one thing that signs.

use ring::signature::{Ed25519KeyPair, KeyPair};

use crate::ids::{PublicKey, Signature};
use crate::store::pem::Seed;
use crate::wire::transcript::Statement;

/// A secret key. No `Debug`, no `Clone`; it never leaves this module.
pub struct Identity {
    pair: Ed25519KeyPair,
    public: PublicKey,
}

impl Identity {
    /// From the 32 bytes of a key file.
    pub fn from_seed(seed: &Seed) -> Result<Self, &'static str> {
        let pair = Ed25519KeyPair::from_seed_unchecked(seed.bytes()).map_err(|_| "the key is not an Ed25519 seed")?;
        let mut public = [0; 32];
        public.copy_from_slice(pair.public_key().as_ref());
        Ok(Self { pair, public: PublicKey(public) })
    }

    /// The raw public key.
    pub fn public(&self) -> PublicKey {
        self.public
    }

    /// Signs exactly this statement.
    pub fn sign(&self, statement: &Statement) -> Signature {
        let signed = self.pair.sign(&statement.bytes());
        let mut bytes = [0; 64];
        bytes.copy_from_slice(signed.as_ref());
        Signature(bytes)
    }
}
