//! Accepts connections: looks at the peer's uid before any byte, finds a slot, hands it to a worker. Binds the socket
//! again when its path vanishes.

use std::io::{self, Read, Write};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::thread::JoinHandle;

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::unistd::geteuid;

use crate::audit::Fact;
use crate::connection::hub::Hub;
use crate::connection::slots::{NoSlot, Slot};
use crate::error::{Exit, Failure};
use crate::store::socket::Listener;
use crate::store::{Dir, Lock, paths};
use crate::sys;
use crate::wire::lines;

use super::workers::{Job, Workers};

/// How long the acceptor pauses when the system has no descriptor for the next connection.
const PAUSE_MS: u16 = 100;

/// Connections that are taken between two looks at the end: whoever connects without end must not keep the daemon from it.
const BATCH: usize = 64;

/// Said in front of the end.
const LEAVE: &[u8] = b"l";

/// How often a socket that has vanished is bound again when that failed: nobody tells when the path is free.
const AGAIN_MS: u16 = 500;

/// The accepting thread and its end.
pub(super) struct Acceptor {
    thread: JoinHandle<(Listener, Workers)>,
    end: UnixStream,
}

struct Accepting {
    hub: Arc<Hub>,
    root: Dir,
    folder: Dir,
    listener: Listener,
    watch: sys::Watch,
    /// The socket has vanished, and nothing that is watched will tell when it can be bound again.
    is_lost: bool,
    end: UnixStream,
    workers: Workers,
    lock: Arc<Lock>,
}

impl Acceptor {
    pub(super) fn start(
        hub: Arc<Hub>,
        root: Dir,
        folder: Dir,
        listener: Listener,
        lock: Arc<Lock>,
    ) -> Result<Self, Failure> {
        let (end, theirs) = UnixStream::pair()
            .map_err(|error| Failure::new(Exit::Unavailable, "start", format!("no socket pair: {error}")))?;
        let watch = folder.watch();
        let workers = Workers::new(Arc::clone(&hub));
        let accepting = Accepting { hub, root, folder, listener, watch, is_lost: false, end: theirs, workers, lock };
        let thread = crate::threads::spawn("acceptor", move || accepting.run()).map_err(|error| {
            Failure::new(Exit::Unavailable, "start", format!("no thread for the acceptor: {error}"))
        })?;
        Ok(Self { thread, end })
    }

    /// Stops accepting; the listener stays for its unlinking, the workers for their joining.
    pub(super) fn end(self) -> Option<(Listener, Workers)> {
        drop(self.end);
        self.thread.join().ok()
    }

    /// The same, but nobody is turned away: who comes from now on finds no socket, and who has come is accepted.
    pub(super) fn leave(self) -> Option<(Listener, Workers)> {
        let _ended_already = (&self.end).write_all(LEAVE);
        self.end()
    }
}

impl Accepting {
    fn run(mut self) -> (Listener, Workers) {
        loop {
            match self.wait() {
                Woken::End => {
                    if (&self.end).read(&mut [0]).is_ok_and(|count| count > 0) {
                        self.listener.unlink();
                        self.accept_waiting();
                    }
                    return (self.listener, self.workers);
                }
                Woken::Folder => self.bind_again(),
                Woken::Listener => {
                    self.accept_some();
                }
            }
        }
    }

    fn wait(&self) -> Woken {
        let mut fds = vec![
            PollFd::new(self.end.as_fd(), PollFlags::POLLIN),
            PollFd::new(self.listener.as_fd(), PollFlags::POLLIN),
        ];
        fds.extend(self.watch.fd().map(|fd| PollFd::new(fd, PollFlags::POLLIN)));
        let timeout = match self.watch.poll_timeout() {
            _ if self.is_lost => PollTimeout::from(AGAIN_MS),
            Some(timeout) => PollTimeout::try_from(timeout).unwrap_or(PollTimeout::MAX),
            None => PollTimeout::NONE,
        };
        let ready = poll(&mut fds, timeout);
        let is_ready = |index: usize| fds.get(index).is_some_and(|fd| fd.any().unwrap_or(false));
        match ready {
            Ok(_) if is_ready(0) => Woken::End,
            Ok(_) if is_ready(1) => Woken::Listener,
            _ => Woken::Folder,
        }
    }

    /// All that have connected before the socket went.
    fn accept_waiting(&mut self) {
        while self.accept_some() {}
    }

    /// Whether there may be more.
    fn accept_some(&mut self) -> bool {
        for _ in 0..BATCH {
            match self.listener.accept() {
                Ok(socket) => self.take(socket),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return false,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => {
                    self.hub.outcomes.tell("not accepted", || format!("a connection was not accepted: {error}"));
                    self.pause();
                    return false;
                }
            }
        }
        true
    }

    fn take(&mut self, socket: UnixStream) {
        let uid = match sys::peer_uid(&socket) {
            Ok(uid) if uid == geteuid().as_raw() => uid,
            Ok(uid) => {
                self.hub
                    .outcomes
                    .tell("another user", || format!("connection of uid {uid}: another user, closed unread"));
                self.hub.audit.record(Fact::Refused { code: "another user", credential: None, uid: Some(uid) });
                return;
            }
            // Could not tell: refused.
            Err(error) => {
                self.hub
                    .outcomes
                    .tell("unknown user", || format!("connection closed unread, its user is unknown: {error}"));
                self.hub.audit.record(Fact::Refused { code: "unknown user", credential: None, uid: None });
                return;
            }
        };
        let Some((socket, slot)) = self.enter(socket) else { return };
        let told = Arc::clone(&socket);
        if let Err(error) = self.workers.serve(Job { socket, slot, uid }) {
            let _gone = (&*told).write_all(&lines::busy("threads"));
            self.hub.outcomes.tell("no thread", || format!("connection of uid {uid}: no thread: {error}"));
        }
    }

    fn enter(&self, socket: UnixStream) -> Option<(Arc<UnixStream>, Slot)> {
        let socket = Arc::new(socket);
        match self.hub.slots.enter(&socket) {
            Ok(slot) => Some((socket, slot)),
            Err(NoSlot::Full) => {
                // A few bytes into an empty buffer: never waits.
                let _gone = (&*socket).write_all(&lines::busy("connections"));
                self.hub.outcomes.tell("busy", || "connection refused: no slot".to_owned());
                None
            }
            // Closed without a word, as those are that had come in time and not finished their hello.
            Err(NoSlot::Closed) => None,
        }
    }

    /// Without descriptors `accept` fails at once, again and again: wait a little, unless it is the end.
    fn pause(&self) {
        let mut end = [PollFd::new(self.end.as_fd(), PollFlags::POLLIN)];
        let _either = poll(&mut end, PAUSE_MS);
    }

    fn bind_again(&mut self) {
        self.watch.drain();
        self.is_lost = !self.listener.is_ours_still();
        if !self.is_lost {
            return;
        }
        let bound = match self.root.create_sub(paths::SOCKET_FOLDER) {
            Ok(folder) => Listener::bind(&folder, &self.lock).map(|listener| (folder, listener)),
            Err(error) => Err(error),
        };
        match bound {
            Ok((folder, listener)) => {
                log::warn!("the socket had vanished: bound again");
                self.watch = folder.watch();
                self.folder = folder;
                self.listener = listener;
                // It may have vanished before it was watched.
                self.is_lost = !self.listener.is_ours_still();
            }
            Err(error) => {
                self.hub.outcomes.tell("not bound again", || format!("the socket has vanished: {error}"));
                self.pause();
            }
        }
    }
}

enum Woken {
    End,
    Listener,
    Folder,
}
