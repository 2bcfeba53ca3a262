//! Who may be connected at all. A connection holds a slot from `accept` to the end of its thread.
//!
//! Strangers hold at most `unfinished-hellos`; when these are full, or all connections are, the oldest that has not said
//! a word goes. So who says a hello gets in while others only sit there.

use std::collections::BTreeMap;
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::Instant;

use parking_lot::{Condvar, Mutex};

use crate::limits::Limits;

struct Unfinished {
    socket: Arc<UnixStream>,
    spoke: bool,
}

#[derive(Default)]
struct State {
    next: u64,
    connected: usize,
    closed: bool,
    unfinished: BTreeMap<u64, Unfinished>,
}

/// All slots.
pub struct Slots {
    connections_max: usize,
    unfinished_max: usize,
    state: Mutex<State>,
    /// The last connection has ended.
    empty: Condvar,
}

/// Why a connection gets no slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NoSlot {
    /// There is none, and nobody silent to send away.
    Full,
    /// Nobody enters any more.
    Closed,
}

/// One connection's place; given back when dropped.
pub struct Slot {
    slots: Arc<Slots>,
    number: u64,
}

impl Slots {
    /// All free.
    pub fn new(limits: &Limits) -> Arc<Self> {
        let size = |limit: u64| usize::try_from(limit).unwrap_or(usize::MAX);
        Arc::new(Self {
            connections_max: size(limits.connections),
            unfinished_max: size(limits.unfinished_hellos),
            state: Mutex::new(State::default()),
            empty: Condvar::new(),
        })
    }

    /// A slot for a new connection.
    pub fn enter(self: &Arc<Self>, socket: &Arc<UnixStream>) -> Result<Slot, NoSlot> {
        let mut state = self.state.lock();
        if state.closed {
            return Err(NoSlot::Closed);
        }
        if state.unfinished.len() >= self.unfinished_max || state.connected >= self.connections_max {
            let silent = state.unfinished.iter().find(|(_, one)| !one.spoke).map(|(&number, _)| number);
            let silent = silent.ok_or(NoSlot::Full)?;
            if let Some(sent_away) = state.unfinished.remove(&silent) {
                // Its thread wakes, finds the end of the stream, and finishes.
                let _shut_already = sent_away.socket.shutdown(Shutdown::Both);
                state.connected -= 1;
            }
        }
        let number = state.next;
        state.next += 1;
        state.connected += 1;
        state.unfinished.insert(number, Unfinished { socket: Arc::clone(socket), spoke: false });
        Ok(Slot { slots: Arc::clone(self), number })
    }

    /// Nobody enters any more, and every unfinished hello ends.
    pub fn close(&self) {
        let mut state = self.state.lock();
        state.closed = true;
        for one in state.unfinished.values() {
            let _shut_already = one.socket.shutdown(Shutdown::Both);
        }
    }

    /// Waits until nobody is connected, or until the deadline.
    pub fn wait_empty(&self, deadline: Instant) {
        let mut state = self.state.lock();
        while state.connected > 0 && !self.empty.wait_until(&mut state, deadline).timed_out() {}
    }

    fn gone(&self, state: &mut State) {
        state.connected -= 1;
        if state.connected == 0 {
            self.empty.notify_all();
        }
    }

    /// Connections now, and how many of them have not finished their hello.
    pub fn count(&self) -> (usize, usize) {
        let state = self.state.lock();
        (state.connected, state.unfinished.len())
    }
}

impl Slot {
    /// Its first line is here.
    pub fn spoke(&self) {
        if let Some(one) = self.slots.state.lock().unfinished.get_mut(&self.number) {
            one.spoke = true;
        }
    }

    /// Its hello is finished. `false`: it was sent away before. From here on it counts as connected until it is dropped.
    pub fn finished(self) -> Option<Finished> {
        let there = self.slots.state.lock().unfinished.remove(&self.number).is_some();
        let finished = there.then(|| Finished { slots: Arc::clone(&self.slots) });
        drop(self);
        finished
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        let mut state = self.slots.state.lock();
        if state.unfinished.remove(&self.number).is_some() {
            self.slots.gone(&mut state);
        }
    }
}

/// The place of an authenticated connection; given back when dropped.
pub struct Finished {
    slots: Arc<Slots>,
}

impl Drop for Finished {
    fn drop(&mut self) {
        self.slots.gone(&mut self.slots.state.lock());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn slots(connections: u64, unfinished: u64) -> Arc<Slots> {
        Slots::new(&Limits { connections, unfinished_hellos: unfinished, ..Limits::default() })
    }

    fn socket() -> Arc<UnixStream> {
        Arc::new(UnixStream::pair().unwrap().0)
    }

    #[test]
    fn the_oldest_that_has_not_spoken_goes_for_a_newcomer() {
        let slots = slots(10, 2);
        let first = slots.enter(&socket()).ok().unwrap();
        first.spoke();
        let second = slots.enter(&socket()).ok().unwrap();
        let third = slots.enter(&socket()).ok().unwrap();
        assert_eq!(slots.count(), (2, 2));
        assert!(second.finished().is_none(), "it was sent away");
        assert!(first.finished().is_some());
        drop(third);
        assert_eq!(slots.count(), (0, 0));
    }

    #[test]
    fn when_everybody_speaks_the_newcomer_is_refused() {
        let slots = slots(10, 2);
        let (first, second) = (slots.enter(&socket()).ok().unwrap(), slots.enter(&socket()).ok().unwrap());
        first.spoke();
        second.spoke();
        assert_eq!(slots.enter(&socket()).err(), Some(NoSlot::Full));
        assert_eq!(slots.count(), (2, 2));
    }

    #[test]
    fn connected_peers_are_never_sent_away() {
        let slots = slots(1, 5);
        let connected = slots.enter(&socket()).ok().unwrap().finished().unwrap();
        assert_eq!(slots.enter(&socket()).err(), Some(NoSlot::Full));
        drop(connected);
        assert!(slots.enter(&socket()).is_ok());
        slots.close();
        assert_eq!(slots.enter(&socket()).err(), Some(NoSlot::Closed));
    }
}
