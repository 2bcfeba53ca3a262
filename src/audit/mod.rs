//! The audit record: one line for each thing that matters to security, each bound to the one before it.
//!
//! Owns `audit.ndjson`, its old copy and `audit-head.json` (docs/audit.md). One thread writes ([`writer`]); whoever has
//! something to tell calls [`Audit::record`], which never waits and never fails: what the queue or the disk does not take is
//! counted, and a line says so as soon as one can be written. Nobody waits for the writer but the daemon at its end. What the
//! lines are and how they are checked ([`chain`], [`check`]) is pure, and the command line uses it too. Lock order: `to`,
//! then `limiter`; both are leaves.

mod chain;
pub mod check;
mod fact;
mod file;
pub mod head;
mod limit;
mod read;
mod writer;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering::SeqCst};
use std::thread::JoinHandle;
use std::time::Instant;

use crossbeam_channel::{Sender, TrySendError, bounded};
use jiff::Timestamp;
use parking_lot::Mutex;

use crate::auth::identity::Identity;
use crate::store::{Dir, paths};
use crate::threads;

pub use chain::{Head, read as read_line};
pub use fact::{After, Fact, sized};
pub use read::{Files, Reading};

use limit::{Limiter, Verdict};
use writer::Writer;

/// The name of the file.
pub const FILE: &str = paths::AUDIT;
/// The name of its old copy.
pub const OLD: &str = "audit.ndjson.1";

/// Facts that wait for the writer: a burst of everything at once while the disk is slow.
const QUEUE: usize = 1_024;
/// No instant, for [`Shared::dropped_since`].
const NEVER: i64 = i64::MAX;

/// What the writer is told.
enum Entry {
    /// A fact, and when it was one.
    Fact(Timestamp, Fact),
    /// Something was left out for the first time: there is a count to be told later.
    Look,
}

/// What the writer and everybody else look at.
struct Shared {
    limiter: Mutex<Limiter>,
    head: Mutex<Head>,
    /// Whether the last that was to be written is.
    is_available: AtomicBool,
    /// Facts without a line since the start.
    lost: AtomicU64,
    /// Of them, those that the queue had no room for and the writer has not heard of yet, and since when (ms).
    dropped: AtomicU64,
    dropped_since: AtomicI64,
}

/// How the audit stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct State {
    /// The last line that was written.
    pub head: Head,
    /// Facts without a line since the start.
    pub lost: u64,
    /// Whether the last that was to be written is.
    pub available: bool,
}

/// The audit of a running daemon.
pub struct Audit {
    shared: Arc<Shared>,
    /// Taken away at the end, so that the writer's thread ends.
    to: Mutex<Option<Sender<Entry>>>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl Audit {
    /// Goes on with the audit in a folder, or begins one. Its first fact, made of how the daemon before this one ended, has
    /// its line when this returns. Whatever is wrong with the files is logged and counted, and stops nobody.
    pub fn start(dir: Dir, identity: Arc<Identity>, max_bytes: u64, first: impl FnOnce(After) -> Fact) -> Self {
        let shared = Arc::new(Shared {
            limiter: Mutex::default(),
            head: Mutex::new(Head::NONE),
            is_available: AtomicBool::new(false),
            lost: AtomicU64::new(0),
            dropped: AtomicU64::new(0),
            dropped_since: AtomicI64::new(NEVER),
        });
        let (to, facts) = bounded(QUEUE);
        let (mut writer, after) = Writer::start(dir, identity, max_bytes, Arc::clone(&shared));
        writer.write(&[(Timestamp::now(), first(after))]);
        let thread = threads::spawn("audit", move || writer.run(&facts));
        if let Err(error) = &thread {
            log::error!("the audit is not written: no thread for it: {error}");
            shared.is_available.store(false, SeqCst);
        }
        Self { shared, to: Mutex::new(Some(to)), thread: Mutex::new(thread.ok()) }
    }

    /// Tells a fact. Never waits and never fails.
    pub fn record(&self, fact: Fact) {
        let at = Timestamp::now();
        let to = self.to.lock();
        // What comes behind the daemon's last line is said by it.
        let Some(to) = to.as_ref() else { return };
        let verdict = fact
            .rate()
            .map_or(Verdict::Told, |(kind, rate)| self.shared.limiter.lock().admit(kind, rate, Instant::now(), at));
        let entry = match verdict {
            Verdict::Told => Entry::Fact(at, fact),
            Verdict::FirstCounted => Entry::Look,
            Verdict::Counted => return,
        };
        if let Err(TrySendError::Full(Entry::Fact(..)) | TrySendError::Disconnected(Entry::Fact(..))) =
            to.try_send(entry)
        {
            self.shared.drop_one(at);
        }
    }

    /// How it stands now.
    pub fn state(&self) -> State {
        let head = *self.shared.head.lock();
        let (lost, available) = (self.shared.lost.load(SeqCst), self.shared.is_available.load(SeqCst));
        State { head, lost, available }
    }

    /// Writes the last line and records it as the head. Waits for the disk; nothing is taken afterwards.
    pub fn end(&self, reason: &'static str, undelivered: u64) {
        let to = self.to.lock().take();
        if let Some(to) = to {
            let at = Timestamp::now();
            let counts = self.shared.limiter.lock().rest();
            for fact in counts.into_iter().chain([Fact::Stopped { reason, undelivered }]) {
                let _writer_gone = to.send(Entry::Fact(at, fact));
            }
        }
        let thread = self.thread.lock().take();
        if let Some(thread) = thread {
            let _panicked = thread.join();
        }
    }
}

impl Shared {
    fn drop_one(&self, at: Timestamp) {
        self.lost.fetch_add(1, SeqCst);
        self.dropped_since.fetch_min(at.as_millisecond(), SeqCst);
        self.dropped.fetch_add(1, SeqCst);
    }

    /// What was dropped since somebody asked, and since when.
    fn take_dropped(&self) -> Option<(u64, Timestamp)> {
        let count = self.dropped.swap(0, SeqCst);
        let since = self.dropped_since.swap(NEVER, SeqCst);
        let since = Timestamp::from_millisecond(since).ok().filter(|_| since != NEVER);
        (count > 0).then(|| (count, since.unwrap_or_else(Timestamp::now)))
    }
}

#[cfg(test)]
mod tests;
