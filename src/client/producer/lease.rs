//! Who a session is, from its first connection to its last.
//!
//! Owns: the session's id and its reconnect key, and the one place where both are claimed. The key never leaves this
//! module; it dies with the producer.

use crate::auth::identity::Identity;
use crate::ids::{PublicKey, SessionId, Signature};
use crate::store::pem::Seed;
use crate::wire::methods::Method;
use crate::wire::transcript::{Hash, Statement};

/// Of one session.
pub(super) struct Lease {
    session: SessionId,
    reconnect: Identity,
}

/// What says in a registration whose session it is.
#[derive(Debug, Clone, Copy)]
pub(super) struct Claim {
    pub session_id: Option<SessionId>,
    pub reconnect_key: PublicKey,
    pub lease_signature: Option<Signature>,
}

impl Claim {
    /// For a registration that is only checked and never sent.
    pub const NONE: Self = Self { session_id: None, reconnect_key: PublicKey([0; 32]), lease_signature: None };
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

    /// Claims it on the connection with this transcript. It is always signed for where the scopes let it: a daemon may
    /// have taken a registration whose answer never came.
    pub fn claim(&self, t3: &Hash, scopes: &[String]) -> Claim {
        let may = |method: Method| scopes.iter().any(|scope| scope == method.name());
        let has_leases = may(Method::SessionStageKey) && may(Method::SessionConfirmKey);
        let statement = Statement::Lease { t3: *t3, session: self.session };
        Claim {
            session_id: Some(self.session),
            reconnect_key: self.reconnect.public(),
            lease_signature: has_leases.then(|| self.reconnect.sign(&statement)),
        }
    }
}

#[cfg(test)]
mod tests {
    use ring::signature::{ED25519, UnparsedPublicKey};

    use super::*;

    #[test]
    fn a_session_is_signed_for_its_connection_alone_and_only_where_the_scopes_let_it() {
        let lease = Lease::new(SessionId([7; 16])).unwrap();
        let scopes = [Method::SessionStageKey, Method::SessionConfirmKey].map(|method| method.name().to_owned());
        let (one, other) = (lease.claim(&[1; 32], &scopes), lease.claim(&[2; 32], &scopes));
        assert!(lease.claim(&[1; 32], &scopes[..1]).lease_signature.is_none());
        assert_eq!((one.session_id, one.reconnect_key), (other.session_id, other.reconnect_key));
        let signature = one.lease_signature.unwrap();
        let key = UnparsedPublicKey::new(&ED25519, one.reconnect_key.0);
        let signed = [&b"usher/1 lease\n"[..], &[1; 32], &[7; 16]].concat();
        assert!(key.verify(&signed, &signature.0).is_ok());
        assert_ne!(signature, other.lease_signature.unwrap());
    }
}
