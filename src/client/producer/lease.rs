//! Who a session is, from its first connection to its last.
//!
//! Owns: the session's id and its reconnect key, and the one place where a registration is made of them. The key never
//! leaves this module; it dies with the producer.

use crate::auth::identity::Identity;
use crate::ids::SessionId;
use crate::store::pem::Seed;
use crate::wire::rows::Register;
use crate::wire::transcript::Hash;

/// Of one session.
pub(super) struct Lease {
    session: SessionId,
    #[expect(dead_code, reason = "daemons of this protocol take no lease yet, and refuse what they do not know")]
    reconnect: Identity,
}

impl Lease {
    /// With a key of its own. None: the system has no randomness.
    pub fn new(session: SessionId) -> Option<Self> {
        Some(Self { session, reconnect: Identity::from_seed(&Seed::random()).ok()? })
    }

    /// The session.
    pub fn session(&self) -> SessionId {
        self.session
    }

    /// Says in a registration whose it is, on the connection with this transcript.
    pub fn claim(&self, register: &mut Register, _t3: &Hash) {
        register.session_id = Some(self.session);
    }
}
