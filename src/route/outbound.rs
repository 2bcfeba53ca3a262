//! What is written to one peer: look at the gate, seal, send without blocking; what the socket does not take is kept
//! within bounds and flushed later.
//!
//! Owns the sealing key and the order of frames. A frame is sealed once and sent in order or never; a peer that does not
//! read is cut at its bound. Nothing here waits.

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
use crate::wire::frame::Sealer;
use crate::wire::message::Plaintext;

/// Where a frame is that was accepted for sending.
#[derive(Debug, Clone)]
pub enum Sent {
    /// Its last byte is in the kernel's buffer.
    Kernel,
    /// It is kept; the flag is set when its last byte has reached the kernel.
    Kept(Arc<AtomicBool>),
}

impl Sent {
    /// Whether the last byte has reached the kernel.
    pub fn reached_kernel(&self) -> bool {
        match self {
            Self::Kernel => true,
            Self::Kept(flag) => flag.load(Relaxed),
        }
    }
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

struct Rest {
    frame: Vec<u8>,
    from: usize,
    sent: Arc<AtomicBool>,
    charge: Charge,
}

struct State {
    sealer: Sealer,
    rest: VecDeque<Rest>,
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
        let state = Mutex::new(State { sealer, rest: VecDeque::new(), ended: false });
        Self { socket, state, kept_bytes: AtomicU64::new(0), peer_max, total, share }
    }

    /// Seals and sends. After an error nothing more is ever sent to this peer. `make_room` is asked once when the total is
    /// full; it must not wait for a lock of another peer.
    pub fn send(
        &self,
        authority: &Authority,
        plaintext: Plaintext,
        make_room: impl FnOnce() -> bool,
    ) -> Result<Accepted, Unsent> {
        let mut state = self.state.lock();
        let accepted = match authority.admit_delivery() {
            Ok(permit) => self.transmit(permit, &mut state, plaintext, make_room),
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
        make_room: impl FnOnce() -> bool,
    ) -> Option<Accepted> {
        if state.ended {
            return None;
        }
        let begins = state.rest.is_empty();
        let frame = state.sealer.seal(plaintext.into_frame()).ok()?;
        let from = if begins { self.push(&frame, 0).ok()? } else { 0 };
        if from == frame.len() {
            return Some(Accepted::Sent);
        }
        let charge = self.room((frame.len() - from) as u64, make_room)?;
        let sent = Arc::new(AtomicBool::new(false));
        state.rest.push_back(Rest { frame, from, sent: Arc::clone(&sent), charge });
        Some(Accepted::Kept { sent, begins })
    }

    fn room(&self, bytes: u64, make_room: impl FnOnce() -> bool) -> Option<Charge> {
        if self.kept_bytes.load(Relaxed) + bytes > self.peer_max {
            return None;
        }
        let take = || Charge::take(&self.total, &self.share, bytes);
        let charge = match take() {
            Err(Full::Total(_)) if make_room() => take(),
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

    /// Sends what is kept, as far as the socket and the gate let it.
    pub fn flush(&self, authority: &Authority) -> Flushed {
        let mut state = self.state.lock();
        let Ok(_permit) = authority.admit_delivery() else {
            self.end(&mut state);
            return Flushed::Empty;
        };
        while let Some(first) = state.rest.front_mut() {
            let Ok(from) = self.push(&first.frame, first.from) else {
                self.end(&mut state);
                return Flushed::Empty;
            };
            first.from = from;
            if from < first.frame.len() {
                return Flushed::Rest;
            }
            first.sent.store(true, Relaxed);
            self.kept_bytes.fetch_sub(first.charge.amount(), Relaxed);
            state.rest.pop_front();
        }
        Flushed::Empty
    }

    /// Bytes that are kept, without a lock.
    pub fn kept(&self) -> u64 {
        self.kept_bytes.load(Relaxed)
    }

    /// Frames that never left.
    pub fn undelivered(&self) -> usize {
        self.state.lock().rest.len()
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
