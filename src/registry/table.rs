//! Who owns which session: pure, without clock, channel or socket.

use std::collections::HashMap;

use crate::ids::{ConnectionId, SessionId};
use crate::wire::codes::Code;

/// Sessions and their owners.
#[derive(Default)]
pub struct Table {
    owners: HashMap<SessionId, ConnectionId>,
    order: u64,
    draining: bool,
}

impl Table {
    /// A new session for a connection; its place in the order of registration.
    pub fn admit(&mut self, id: SessionId, connection: ConnectionId) -> Result<u64, Code> {
        if self.draining {
            return Err(Code::Draining);
        }
        if self.owners.values().any(|&owner| owner == connection) {
            return Err(Code::AlreadyRegistered);
        }
        if self.owners.contains_key(&id) {
            return Err(Code::SessionOwned);
        }
        self.owners.insert(id, connection);
        self.order += 1;
        Ok(self.order)
    }

    /// Whether this connection owns the session.
    pub fn owns(&self, id: SessionId, connection: ConnectionId) -> bool {
        self.owners.get(&id) == Some(&connection)
    }

    /// Ends a session, for its owner alone.
    pub fn remove(&mut self, id: SessionId, connection: ConnectionId) -> bool {
        self.owns(id, connection) && self.owners.remove(&id).is_some()
    }

    /// No new sessions from here on.
    pub fn drain(&mut self) {
        self.draining = true;
    }

    /// Draining, and the last session has ended.
    pub fn is_drained(&self) -> bool {
        self.draining && self.owners.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: SessionId = SessionId([1; 16]);
    const B: SessionId = SessionId([2; 16]);
    const ONE: ConnectionId = ConnectionId([1; 16]);
    const TWO: ConnectionId = ConnectionId([2; 16]);

    #[test]
    fn a_session_has_one_owner_and_an_owner_one_session() {
        let mut table = Table::default();
        assert_eq!(table.admit(A, ONE), Ok(1));
        assert_eq!(table.admit(A, TWO), Err(Code::SessionOwned));
        assert_eq!(table.admit(B, ONE), Err(Code::AlreadyRegistered));
        assert_eq!(table.admit(B, TWO), Ok(2));
    }

    #[test]
    fn only_the_owner_ends_a_session() {
        let mut table = Table::default();
        table.admit(A, ONE).unwrap();
        assert!(!table.remove(A, TWO));
        assert!(table.owns(A, ONE));
        assert!(table.remove(A, ONE));
        assert!(!table.remove(A, ONE));
    }

    #[test]
    fn a_draining_table_takes_nobody_and_is_drained_with_its_last_session() {
        let mut table = Table::default();
        table.admit(A, ONE).unwrap();
        table.drain();
        assert_eq!(table.admit(B, TWO), Err(Code::Draining));
        assert!(!table.is_drained());
        table.remove(A, ONE);
        assert!(table.is_drained());
    }
}
