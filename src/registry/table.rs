//! Who owns which session: pure, without clock, channel or socket.

use std::collections::HashMap;

use crate::ids::{ConnectionId, SessionId};
use crate::wire::codes::Code;

/// Sessions and their owners.
#[derive(Default)]
pub struct Table {
    owners: HashMap<SessionId, (ConnectionId, u64)>,
    order: u64,
    draining: bool,
}

impl Table {
    /// Whether a connection may have a session, and whether another one has it so far. Nothing is changed.
    pub fn judge(&self, id: SessionId, connection: ConnectionId, may_displace: bool) -> Result<bool, Code> {
        if self.draining {
            return Err(Code::Draining);
        }
        if self.owners.values().any(|&(owner, _)| owner == connection) {
            return Err(Code::AlreadyRegistered);
        }
        match self.owners.contains_key(&id) {
            true if !may_displace => Err(Code::SessionOwned),
            has_owner => Ok(has_owner),
        }
    }

    /// The connection owns the session from here on, whoever did. Its place in the order of registration: a session that
    /// changes hands keeps its own, so that it stands once in every list.
    pub fn own(&mut self, id: SessionId, connection: ConnectionId) -> u64 {
        let order = match self.owners.get(&id) {
            Some(&(_, order)) => order,
            None => {
                self.order += 1;
                self.order
            }
        };
        self.owners.insert(id, (connection, order));
        order
    }

    /// Whether this connection owns the session.
    pub fn owns(&self, id: SessionId, connection: ConnectionId) -> bool {
        self.owners.get(&id).is_some_and(|&(owner, _)| owner == connection)
    }

    /// Ends a session, for its owner alone.
    pub fn remove(&mut self, id: SessionId, connection: ConnectionId) -> bool {
        self.owns(id, connection) && self.owners.remove(&id).is_some()
    }

    /// No new sessions from here on.
    pub fn drain(&mut self) {
        self.draining = true;
    }

    /// Whether nobody new is taken.
    pub fn is_draining(&self) -> bool {
        self.draining
    }

    /// Whether nobody has a session.
    pub fn is_empty(&self) -> bool {
        self.owners.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: SessionId = SessionId([1; 16]);
    const B: SessionId = SessionId([2; 16]);
    const ONE: ConnectionId = ConnectionId([1; 16]);
    const TWO: ConnectionId = ConnectionId([2; 16]);

    fn admit(table: &mut Table, id: SessionId, connection: ConnectionId, may_displace: bool) -> Result<u64, Code> {
        table.judge(id, connection, may_displace).map(|_| table.own(id, connection))
    }

    #[test]
    fn a_session_has_one_owner_and_an_owner_one_session() {
        let mut table = Table::default();
        assert_eq!(admit(&mut table, A, ONE, false), Ok(1));
        assert_eq!(admit(&mut table, A, TWO, false), Err(Code::SessionOwned));
        assert_eq!(admit(&mut table, B, ONE, false), Err(Code::AlreadyRegistered));
        assert_eq!(admit(&mut table, B, TWO, false), Ok(2));
    }

    #[test]
    fn whoever_has_proved_it_displaces_the_owner_and_the_session_keeps_its_place() {
        let mut table = Table::default();
        admit(&mut table, A, ONE, false).unwrap();
        assert_eq!(table.judge(A, TWO, true), Ok(true));
        assert!(table.owns(A, ONE), "judging changes nothing");
        assert_eq!(table.own(A, TWO), 1);
        assert!(table.owns(A, TWO) && !table.owns(A, ONE));
        assert!(!table.remove(A, ONE), "what the old one says counts for nothing");
        assert_eq!(admit(&mut table, A, TWO, true), Err(Code::AlreadyRegistered), "on the same connection");
        assert_eq!(admit(&mut table, B, ONE, false), Ok(2), "the old one may register anew");
    }

    #[test]
    fn only_the_owner_ends_a_session() {
        let mut table = Table::default();
        admit(&mut table, A, ONE, false).unwrap();
        assert!(!table.remove(A, TWO));
        assert!(table.owns(A, ONE));
        assert!(table.remove(A, ONE));
        assert!(!table.remove(A, ONE));
    }

    #[test]
    fn a_draining_table_takes_nobody_and_is_empty_behind_its_last_session() {
        let mut table = Table::default();
        admit(&mut table, A, ONE, false).unwrap();
        table.drain();
        assert_eq!(admit(&mut table, B, TWO, false), Err(Code::Draining));
        assert!(table.is_draining() && !table.is_empty());
        table.remove(A, ONE);
        assert!(table.is_empty());
    }
}
