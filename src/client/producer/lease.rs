//! Who a session is, from its first connection to its last.
//!
//! Owns: the session's id and its reconnect key, and the one place where a registration is made of them. The key never
//! leaves this module; it dies with the producer.

use crate::auth::identity::Identity;
use crate::ids::{PublicKey, SessionId, Signature};
use crate::store::pem::Seed;
use crate::wire::rows::Register;
use crate::wire::transcript::{Hash, Statement};

/// Of one session.
pub(super) struct Lease {
    session: SessionId,
    reconnect: Identity,
}

/// What says in a registration whose session it is.
struct Claim {
    session_id: SessionId,
    #[cfg_attr(not(test), expect(dead_code, reason = "daemons take no lease yet, and refuse what they do not know"))]
    reconnect_key: PublicKey,
    #[cfg_attr(not(test), expect(dead_code, reason = "daemons take no lease yet, and refuse what they do not know"))]
    lease_signature: Option<Signature>,
}

impl Lease {
    /// With a key of its own. None: the system makes none.
    pub fn new(session: SessionId) -> Option<Self> {
        Some(Self { session, reconnect: Identity::from_seed(&Seed::random()).ok()? })
    }

    /// The session.
    pub fn session(&self) -> SessionId {
        self.session
    }

    /// Says in a registration whose it is, on the connection with this transcript. `is_back`: a daemon had the session
    /// before.
    pub fn put(&self, register: &mut Register, t3: &Hash, is_back: bool) {
        let Claim { session_id, .. } = self.claim(t3, is_back);
        register.session_id = Some(session_id);
    }

    fn claim(&self, t3: &Hash, is_back: bool) -> Claim {
        let statement = Statement::Lease { t3: *t3, session: self.session };
        Claim {
            session_id: self.session,
            reconnect_key: self.reconnect.public(),
            lease_signature: is_back.then(|| self.reconnect.sign(&statement)),
        }
    }
}

#[cfg(test)]
mod tests {
    use ring::signature::{ED25519, UnparsedPublicKey};

    use super::*;

    #[test]
    fn a_session_that_comes_back_is_signed_for_its_connection_alone() {
        let lease = Lease::new(SessionId([7; 16])).unwrap();
        let (first, back, other) =
            (lease.claim(&[1; 32], false), lease.claim(&[1; 32], true), lease.claim(&[2; 32], true));
        assert!(first.lease_signature.is_none());
        assert_eq!((first.session_id, first.reconnect_key), (back.session_id, back.reconnect_key));
        let signature = back.lease_signature.unwrap();
        let key = UnparsedPublicKey::new(&ED25519, back.reconnect_key.0);
        let signed = [&b"usher/1 lease\n"[..], &[1; 32], &[7; 16]].concat();
        assert!(key.verify(&signed, &signature.0).is_ok());
        assert_ne!(signature, other.lease_signature.unwrap());
    }
}
