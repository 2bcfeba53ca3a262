//! What is written to one peer: look at the gate, seal, send without blocking; what the socket does not take is kept
//! within bounds and flushed later.
//!
//! Owns the sealing key and the order of frames. What is kept is sealed only when its turn comes, so that until then it
//! can be withdrawn; a sealed frame is sent whole or the connection ends. What is kept is admitted again when its turn
//! comes, for the peer and for whoever it comes from ([`Origin`]). A peer that does not read is cut at its bound. Nothing
//! here waits.

use std::collections::VecDeque;
use std::io;
use std::net::Shutdown;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

use nix::errno::Errno;
use nix::sys::socket::{MsgFlags, send};
use parking_lot::Mutex;

use crate::account::{Charge, Full, Pool};
use crate::auth::gate::{Authority, Permit};
use crate::wire::codes::Refusal;
use crate::wire::frame::Sealer;
use crate::wire::message::{self, Plaintext};

/// Where a message is that was accepted for sending.
#[derive(Debug, Clone)]
pub enum Sent {
    /// Its last byte is in the kernel's buffer.
    Kernel,
    /// It is kept; the flag is set when its last byte has reached the kernel.
    Kept(Arc<AtomicBool>),
}

/// Whether more may follow.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Place {
    /// It may.
    Next,
    /// Nothing is accepted behind it.
    Last,
}

/// From whom a message is, where it is not the daemon's own. Until its last byte is written, this gate is asked as well:
/// what a revoked credential said goes nowhere.
pub struct Origin {
    /// Whose gate.
    pub authority: Arc<Authority>,
    /// What the peer's request has come to when its answer is dropped; nothing, where it is no answer.
    pub instead: Option<(u64, Refusal)>,
}

/// Nothing was sent and nothing will be: the peer is gone, cut, or no longer let through.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Unsent;

/// What a flush left.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Flushed {
    /// Nothing.
    Empty,
    /// Something: the socket is full.
    Rest,
}

/// What keeping a message costs beside its bytes: the entry itself, its flag, and what an allocator adds.
const KEEPING_BYTES: u64 = 160;

/// A message whose turn has not come, or has come in part.
struct Rest {
    text: Text,
    origin: Option<Origin>,
    sent: Arc<AtomicBool>,
    charge: Charge,
}

enum Text {
    Plain(Plaintext),
    /// Begun: some of it has left.
    Sealed {
        frame: Vec<u8>,
        from: usize,
    },
}

struct State {
    sealer: Sealer,
    rest: VecDeque<Rest>,
    /// The last message is in; what is kept still goes.
    said_last: bool,
    ended: bool,
}

/// One peer's outgoing side.
pub struct Outbound {
    socket: Arc<UnixStream>,
    state: Mutex<State>,
    kept_bytes: AtomicU64,
    peer_max: u64,
    total: Arc<Pool>,
    share: Arc<Pool>,
}

/// What happened to a frame that was to be sent.
pub enum Accepted {
    /// The kernel has it.
    Sent,
    /// It is kept behind others, or is the first to be kept (`begins`): then somebody must flush.
    Kept {
        /// Set at its last byte.
        sent: Arc<AtomicBool>,
        /// Whether nothing was kept before.
        begins: bool,
    },
}

impl Outbound {
    /// Over a socket whose keys are agreed.
    pub fn new(socket: Arc<UnixStream>, sealer: Sealer, peer_max: u64, total: Arc<Pool>, share: Arc<Pool>) -> Self {
        let state = Mutex::new(State { sealer, rest: VecDeque::new(), said_last: false, ended: false });
        Self { socket, state, kept_bytes: AtomicU64::new(0), peer_max, total, share }
    }

    /// Seals and sends. After an error nothing more is ever sent to this peer. Whoever sends for an origin holds a permit of
    /// it. `make_room` is asked once when the total is full; it must not wait for a lock of another peer.
    pub fn send(
        &self,
        authority: &Authority,
        plaintext: Plaintext,
        origin: Option<Origin>,
        place: Place,
        make_room: impl FnOnce() -> bool,
    ) -> Result<Accepted, Unsent> {
        let mut state = self.state.lock();
        if state.said_last {
            return Err(Unsent);
        }
        state.said_last = place == Place::Last;
        let accepted = match authority.admit_delivery() {
            Ok(permit) => self.transmit(permit, &mut state, plaintext, origin, make_room),
            Err(_) => None,
        };
        accepted.ok_or_else(|| {
            self.end(&mut state);
            Unsent
        })
    }

    /// The permit is held until the kernel or the rest has the frame. `None`: the peer must go.
    fn transmit(
        &self,
        _permit: Permit<'_>,
        state: &mut State,
        plaintext: Plaintext,
        origin: Option<Origin>,
        make_room: impl FnOnce() -> bool,
    ) -> Option<Accepted> {
        if state.ended {
            return None;
        }
        if !state.rest.is_empty() {
            return self.keep(state, Text::Plain(plaintext), origin, false, make_room);
        }
        let frame = state.sealer.seal(plaintext.into_frame()).ok()?;
        let from = self.push(&frame, 0).ok()?;
        if from == frame.len() {
            return Some(Accepted::Sent);
        }
        let text = Self::unsent(state, frame, from)?;
        self.keep(state, text, origin, true, make_room)
    }

    /// What is to be kept of a frame that was sealed and not sent whole. One that has not begun can still be dropped, so it
    /// is no frame yet.
    fn unsent(state: &mut State, frame: Vec<u8>, from: usize) -> Option<Text> {
        if from > 0 {
            return Some(Text::Sealed { frame, from });
        }
        state.sealer.take_back(frame).ok().map(|frame| Text::Plain(Plaintext::from_frame(frame)))
    }

    fn keep(
        &self,
        state: &mut State,
        text: Text,
        origin: Option<Origin>,
        begins: bool,
        make_room: impl FnOnce() -> bool,
    ) -> Option<Accepted> {
        let held = match &text {
            Text::Plain(plaintext) => plaintext.capacity(),
            Text::Sealed { frame, .. } => frame.capacity(),
        };
        let charge = self.room(held as u64 + KEEPING_BYTES, make_room)?;
        let sent = Arc::new(AtomicBool::new(false));
        state.rest.push_back(Rest { text, origin, sent: Arc::clone(&sent), charge });
        Some(Accepted::Kept { sent, begins })
    }

    fn room(&self, bytes: u64, make_room: impl FnOnce() -> bool) -> Option<Charge> {
        if self.kept_bytes.load(Relaxed) + bytes > self.peer_max {
            return None;
        }
        let take = || Charge::take(&self.total, &self.share, bytes);
        // The share of a default credential is the whole total, and is found full first.
        let is_total = self.share.usage().limit == self.total.usage().limit;
        let charge = match take() {
            Err(full) if (is_total || matches!(full, Full::Total(_))) && make_room() => take(),
            other => other,
        };
        let charge = charge.ok()?;
        self.kept_bytes.fetch_add(bytes, Relaxed);
        Some(charge)
    }

    /// Sends what the socket takes of a frame, from `from` on; how far it came.
    fn push(&self, frame: &[u8], mut from: usize) -> io::Result<usize> {
        while from < frame.len() {
            match send(self.socket.as_raw_fd(), &frame[from..], MsgFlags::MSG_DONTWAIT) {
                Ok(0) | Err(Errno::EAGAIN) => break,
                Ok(count) => from += count,
                Err(Errno::EINTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(from)
    }

    /// Sends what is kept, as far as the socket and the gates let it.
    pub fn flush(&self, authority: &Authority) -> Flushed {
        let mut state = self.state.lock();
        let flushed = match authority.admit_delivery() {
            Ok(permit) => self.flush_rest(&permit, &mut state),
            Err(_) => None,
        };
        flushed.unwrap_or_else(|| {
            self.end(&mut state);
            Flushed::Empty
        })
    }

    /// `None`: the peer must go.
    fn flush_rest(&self, _permit: &Permit<'_>, state: &mut State) -> Option<Flushed> {
        while let Some(Rest { text, origin, sent, charge }) = state.rest.pop_front() {
            let passing = origin.as_ref().map(|origin| origin.authority.admit_delivery());
            let is_barred = matches!(passing, Some(Err(_)));
            let (frame, from) = match text {
                // Part of it is written: only with the connection does the rest of it not arrive.
                Text::Sealed { .. } if is_barred => return None,
                Text::Plain(_) if is_barred => {
                    drop(passing);
                    self.replace(state, origin.and_then(|origin| origin.instead), charge);
                    continue;
                }
                Text::Sealed { frame, from } => (frame, from),
                Text::Plain(plaintext) => (state.sealer.seal(plaintext.into_frame()).ok()?, 0),
            };
            let from = self.push(&frame, from).ok()?;
            drop(passing);
            if from < frame.len() {
                let text = Self::unsent(state, frame, from)?;
                state.rest.push_front(Rest { text, origin, sent, charge });
                return Some(Flushed::Rest);
            }
            sent.store(true, Relaxed);
            self.kept_bytes.fetch_sub(charge.amount(), Relaxed);
        }
        Some(Flushed::Empty)
    }

    /// What goes in the place of a message that is dropped.
    fn replace(&self, state: &mut State, instead: Option<(u64, Refusal)>, charge: Charge) {
        match instead {
            Some((request, refusal)) => {
                let text = Text::Plain(message::failure(request, &refusal.object()));
                state.rest.push_front(Rest { text, origin: None, sent: Arc::new(AtomicBool::new(false)), charge });
            }
            None => {
                self.kept_bytes.fetch_sub(charge.amount(), Relaxed);
            }
        }
    }

    /// Takes a message back. True: its last byte has not reached the kernel and never will.
    pub fn withdraw(&self, sent: &Sent) -> bool {
        let Sent::Kept(flag) = sent else { return false };
        let mut state = self.state.lock();
        if flag.load(Relaxed) {
            return false;
        }
        match state.rest.iter().position(|rest| Arc::ptr_eq(&rest.sent, flag)) {
            // Begun, it will be whole.
            Some(place) if matches!(state.rest[place].text, Text::Sealed { .. }) => false,
            Some(place) => {
                let withdrawn = state.rest.remove(place);
                let bytes = withdrawn.map_or(0, |rest| rest.charge.amount());
                self.kept_bytes.fetch_sub(bytes, Relaxed);
                true
            }
            // Dropped, by itself or with everything else.
            None => true,
        }
    }

    /// Bytes that are kept, without a lock.
    pub fn kept(&self) -> u64 {
        self.kept_bytes.load(Relaxed)
    }

    /// Frames that never left.
    pub fn undelivered(&self) -> usize {
        self.state.lock().rest.len()
    }

    /// Whether it has ended.
    pub fn has_ended(&self) -> bool {
        self.state.lock().ended
    }

    /// Ends it: what is kept is dropped, and both directions of the socket are shut, so that its reader wakes.
    pub fn cut(&self) {
        self.end(&mut self.state.lock());
    }

    /// The same where the lock is free; for a thread that holds another peer's.
    pub fn try_cut(&self) -> bool {
        match self.state.try_lock() {
            Some(mut state) => {
                self.end(&mut state);
                true
            }
            None => false,
        }
    }

    fn end(&self, state: &mut State) {
        state.ended = true;
        state.rest.clear();
        self.kept_bytes.store(0, Relaxed);
        // It fails only when it is shut already.
        let _shut = self.socket.shutdown(Shutdown::Both);
    }
}

impl AsFd for Outbound {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

#[cfg(test)]
mod tests;
