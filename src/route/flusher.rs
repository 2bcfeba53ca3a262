//! Writes what sockets did not take at once. Its thread lives only while somebody has a rest.
//!
//! Workers hand it peers; it waits for their sockets with poll and flushes. It holds no lock while it waits.

use std::io::{self, Read, Write};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Instant;

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use parking_lot::{Condvar, Mutex};

use crate::threads;

use super::bell::Bell;
use super::outbound::Flushed;
use super::peer::Peer;

struct State {
    /// Handed over and not yet seen by the thread.
    new: Vec<Arc<Peer>>,
    /// Whom the thread flushes now; kept for finding the largest holder.
    held: Vec<Arc<Peer>>,
    running: bool,
    thread: Option<JoinHandle<()>>,
}

/// The one flusher of a daemon.
pub struct Flusher {
    state: Mutex<State>,
    idle: Condvar,
    wake: UnixStream,
    woken: UnixStream,
    /// Rung when somebody has read all that was kept for it.
    emptied: Arc<Bell>,
}

impl Flusher {
    /// Without a thread yet.
    pub fn new(emptied: Arc<Bell>) -> io::Result<Arc<Self>> {
        let (wake, woken) = UnixStream::pair()?;
        wake.set_nonblocking(true)?;
        woken.set_nonblocking(true)?;
        let state = State { new: Vec::new(), held: Vec::new(), running: false, thread: None };
        Ok(Arc::new(Self { state: Mutex::new(state), idle: Condvar::new(), wake, woken, emptied }))
    }

    /// Takes over a peer that has begun to keep something. Where no thread can be had the peer is cut.
    pub fn take(self: &Arc<Self>, peer: Arc<Peer>) {
        let mut state = self.state.lock();
        if !state.running {
            if let Some(ended) = state.thread.take() {
                // It has left its loop already: `running` is cleared as its last act under this lock.
                let _panicked = ended.join();
            }
            let flusher = Arc::clone(self);
            match threads::spawn("flush", move || flusher.run()) {
                Ok(thread) => {
                    state.thread = Some(thread);
                    state.running = true;
                }
                Err(error) => {
                    drop(state);
                    log::warn!("no thread to flush a slow peer: {error}");
                    peer.cut_now();
                    return;
                }
            }
        }
        state.new.push(peer);
        drop(state);
        self.wake();
    }

    /// Cuts the peer that keeps the most, if it keeps more than `asking` and can be had without waiting.
    pub fn cut_largest(&self, asking: &Peer) -> bool {
        let state = self.state.lock();
        let largest = state.held.iter().chain(&state.new).filter(|peer| peer.kept() > asking.kept());
        let largest = largest.max_by_key(|peer| peer.kept()).cloned();
        drop(state);
        largest.is_some_and(|peer| {
            let is_cut = peer.try_cut();
            if is_cut {
                log::warn!("connection {} does not read and holds the most: cut", peer.id());
            }
            is_cut
        })
    }

    /// Waits until nobody has a rest, or until the deadline.
    pub fn wait_idle(&self, deadline: Instant) {
        let mut state = self.state.lock();
        while state.running {
            if self.idle.wait_until(&mut state, deadline).timed_out() {
                return;
            }
        }
    }

    /// Joins the thread; every peer has ended by now.
    pub fn join(&self) {
        self.wake();
        let thread = self.state.lock().thread.take();
        if let Some(thread) = thread {
            let _panicked = thread.join();
        }
    }

    fn wake(&self) {
        // A full pipe wakes as well.
        let _woken = (&self.wake).write(&[0]);
    }

    fn run(&self) {
        loop {
            let peers = {
                let mut state = self.state.lock();
                let new = std::mem::take(&mut state.new);
                state.held.extend(new);
                if state.held.is_empty() {
                    state.running = false;
                    self.idle.notify_all();
                    return;
                }
                state.held.clone()
            };
            let mut ready: Vec<PollFd<'_>> =
                peers.iter().map(|peer| PollFd::new(peer.as_fd(), PollFlags::POLLOUT)).collect();
            ready.push(PollFd::new(self.woken.as_fd(), PollFlags::POLLIN));
            if poll(&mut ready, PollTimeout::NONE).is_err() {
                continue;
            }
            let mut drained = [0; 64];
            while (&self.woken).read(&mut drained).is_ok_and(|count| count > 0) {}
            let done: Vec<_> = peers
                .iter()
                .zip(&ready)
                .filter(|(_, fd)| fd.any().unwrap_or(true))
                .filter(|(peer, _)| peer.flush() == Flushed::Empty)
                .map(|(peer, _)| peer.id())
                .collect();
            self.state.lock().held.retain(|peer| !done.contains(&peer.id()));
            if !done.is_empty() {
                self.emptied.ring();
            }
        }
    }
}
