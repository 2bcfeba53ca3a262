//! The thread that writes: takes facts from the queue, makes lines of them, and goes on after whatever the disk has
//! refused.
//!
//! Owns the file and the gap: facts that have no line, until a line says how many. A write that was refused gives the file
//! up; the next try opens it anew, finds where it really ends, and goes on there. While nothing is wrong and nothing comes,
//! it sleeps.

use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, RecvTimeoutError};
use jiff::Timestamp;

use crate::auth::identity::Identity;
use crate::store::{Dir, StoreError};

use super::chain::Head;
use super::fact::{After, Fact};
use super::file::{Behind, Found, Log, Unwritten};
use super::{Entry, Shared, head};

/// Facts in one write.
const BATCH: usize = 256;

/// From the first refusal to the next try, doubled until it is the longest.
const AGAIN: Duration = Duration::from_secs(1);
const AGAIN_MAX: Duration = Duration::from_secs(10);

/// Tries to open a file anew that somebody else changes again and again.
const ATTEMPTS: usize = 3;

/// Facts without a line.
#[derive(Clone, Copy)]
struct Gap {
    count: u64,
    since: Timestamp,
}

/// Lines that are written at once: where each ends, and its head.
#[derive(Default)]
struct Lines {
    text: Vec<u8>,
    ends: Vec<(usize, Head)>,
}

impl Lines {
    fn add(&mut self, head: &mut Head, at: Timestamp, fact: &Fact) {
        head.add(&mut self.text, at, fact);
        self.ends.push((self.text.len(), *head));
    }

    /// Takes the last one back.
    fn pop(&mut self) {
        self.ends.pop();
        self.text.truncate(self.ends.last().map_or(0, |(end, _)| *end));
    }
}

/// See the module.
pub struct Writer {
    dir: Dir,
    identity: Arc<Identity>,
    max_bytes: u64,
    shared: Arc<Shared>,
    /// None while it cannot be used.
    log: Option<Log>,
    /// Whether the file has nothing yet but the line that begins it.
    is_fresh: bool,
    /// The line that the file has to end at; none where nobody knows.
    known: Option<Head>,
    /// Where the file had to end and did not, until a line says so.
    differs: Option<Head>,
    /// Whether a file is to be begun, and has no line yet: the one before was full, or a first write was refused.
    is_beginning: bool,
    gap: Option<Gap>,
    again: Option<Instant>,
    pause: Duration,
    /// Whether the daemon has said that it ends.
    is_stopped: bool,
}

impl Writer {
    /// Opens the file, and tells how the daemon before this one ended.
    pub fn start(dir: Dir, identity: Arc<Identity>, max_bytes: u64, shared: Arc<Shared>) -> (Self, After) {
        let known = head::read(&dir, identity.public()).unwrap_or_else(|error| {
            log::warn!("where the audit ended is not known: {error}");
            None
        });
        if let Err(error) = head::remove(&dir) {
            log::warn!("{error}");
        }
        let mut writer = Self {
            dir,
            identity,
            max_bytes,
            shared,
            log: None,
            is_fresh: false,
            known,
            differs: None,
            is_beginning: false,
            gap: None,
            again: None,
            pause: AGAIN,
            is_stopped: false,
        };
        let after = match writer.open() {
            Some(Found { head: Head::NONE, .. }) if known.is_none() => After::First,
            Some(found) if found.is_stopped && found.behind == Behind::Nothing => After::Clean,
            _ if known.is_some() => After::Clean,
            _ => After::Crash,
        };
        (writer, after)
    }

    /// Writes until every sender is gone, and then what shows that this was a clean end.
    pub fn run(mut self, facts: &Receiver<Entry>) {
        loop {
            let first = match self.wake() {
                None => facts.recv().map_err(|_| RecvTimeoutError::Disconnected),
                Some(at) => facts.recv_deadline(at),
            };
            match first {
                Err(RecvTimeoutError::Disconnected) => break,
                Err(RecvTimeoutError::Timeout) => self.take([].into_iter()),
                Ok(first) => self.take(std::iter::once(first).chain(facts.try_iter().take(BATCH - 1))),
            }
        }
        self.again = None;
        self.take([].into_iter());
        self.end();
    }

    /// When to look again though nothing comes.
    fn wake(&self) -> Option<Instant> {
        let again = self.gap.map(|_| self.again.unwrap_or_else(|| Instant::now() + AGAIN));
        [again, self.shared.limiter.lock().next()].into_iter().flatten().min()
    }

    fn take(&mut self, entries: impl Iterator<Item = Entry>) {
        let facts = entries.filter_map(|entry| match entry {
            Entry::Fact(at, fact) => Some((at, fact)),
            Entry::Look => None,
        });
        let mut facts: Vec<_> = facts.collect();
        self.is_stopped |= facts.iter().any(|(_, fact)| matches!(fact, Fact::Stopped { .. }));
        let now = Timestamp::now();
        facts.extend(self.shared.limiter.lock().due(Instant::now()).into_iter().map(|fact| (now, fact)));
        self.write(&facts);
        if let Some((count, since)) = self.shared.take_dropped() {
            self.miss(count, since);
        }
        if self.gap.is_some() {
            self.write(&[]);
        }
    }

    /// Writes all of them, behind the line that tells of the gap, or counts them.
    pub fn write(&mut self, facts: &[(Timestamp, Fact)]) {
        let (mut left, mut opened) = (facts, 0);
        while !left.is_empty() || self.gap.is_some() {
            if self.log.is_none() {
                let is_due = self.again.is_none_or(|again| again <= Instant::now());
                if !is_due || opened == ATTEMPTS || self.open().is_none() {
                    break;
                }
                opened += 1;
            }
            let Some(log) = &mut self.log else { break };
            let gap = self.gap.map(|Gap { count, since }| (Timestamp::now(), Fact::Lost { count, since }));
            let room = self.max_bytes.saturating_sub(log.size());
            let (mut lines, mut head) = (Lines::default(), self.known.unwrap_or(Head::NONE));
            for (at, fact) in gap.iter().chain(left) {
                lines.add(&mut head, *at, fact);
                if lines.text.len() as u64 > room && (lines.ends.len() > 1 || !self.is_fresh) {
                    lines.pop();
                    break;
                }
            }
            if lines.ends.is_empty() {
                self.turn();
                continue;
            }
            let written = self.add(&lines);
            if written > 0 && gap.is_some() {
                self.gap = None;
            }
            left = &left[written.saturating_sub(usize::from(gap.is_some()))..];
        }
        for (at, _) in left {
            self.shared.lost.fetch_add(1, SeqCst);
            self.miss(1, *at);
        }
    }

    /// How many of the lines are in the file now. When not all are, the file was given up.
    fn add(&mut self, lines: &Lines) -> usize {
        let Some(log) = &mut self.log else { return 0 };
        let (kept, refused) = match log.add(&lines.text) {
            Ok(()) => (lines.text.len(), None),
            Err(Unwritten::Refused { kept, error }) => (kept, Some(error)),
            Err(Unwritten::Disturbed) => {
                log::warn!("the audit was moved, cut or written to by somebody else: it is opened anew");
                self.log = None;
                return 0;
            }
        };
        let written = lines.ends.iter().take_while(|(end, _)| *end <= kept).count();
        if let Some((_, head)) = written.checked_sub(1).and_then(|last| lines.ends.get(last)) {
            self.is_fresh = false;
            self.known = Some(*head);
            *self.shared.head.lock() = *head;
        }
        match refused {
            Some(error) => self.fail(&error),
            None => self.succeed(),
        }
        written
    }

    /// Opens the file, or makes it, and writes what it has to begin with: what it is, and what was found there.
    fn open(&mut self) -> Option<Found> {
        let (log, found) = match Log::open(&self.dir) {
            Ok(opened) => opened,
            Err(error) => {
                self.fail(&error);
                return None;
            }
        };
        self.log = Some(log);
        // Whoever moves it over the old copy leaves its last line in place, and takes away what stood before its first.
        let is_moved = found.is_new && !self.is_beginning;
        self.differs = self.differs.or(self.known.filter(|known| *known != found.head || is_moved));
        self.is_beginning = found.is_new;
        self.known = Some(found.head);
        let (now, mut lines, mut head) = (Timestamp::now(), Lines::default(), found.head);
        if matches!(found.behind, Behind::NoEnd | Behind::Torn { is_open: true, .. }) {
            lines.text.push(b'\n');
        }
        if found.is_new {
            let first = if head == Head::NONE { Fact::Begun {} } else { Fact::Continued {} };
            lines.add(&mut head, now, &first);
        }
        if let Behind::Torn { bytes, sha256, .. } = found.behind {
            log::warn!("the last {bytes} bytes of the audit are no line: a write was cut off");
            lines.add(&mut head, now, &Fact::Torn { bytes, sha256 });
        }
        if let Some(Head { seq, hash }) = self.differs {
            log::error!("the audit was cut, replaced or moved: it ends at line {}, its last was {seq}", found.head.seq);
            let fact = Fact::EndDiffers { known_seq: seq, known_hash: hash, found_seq: found.head.seq };
            lines.add(&mut head, now, &fact);
        }
        let written = if lines.text.is_empty() { 0 } else { self.add(&lines) };
        if self.log.is_none() || written < lines.ends.len() {
            return None;
        }
        *self.shared.head.lock() = head;
        self.differs = None;
        self.is_beginning = false;
        self.is_fresh = found.is_new;
        Some(found)
    }

    /// The file becomes the old copy, and another is begun.
    fn turn(&mut self) {
        let Some(log) = self.log.take() else { return };
        self.is_beginning = true;
        match log.turn() {
            Ok(()) => {
                self.open();
            }
            Err(error) => self.fail(&error),
        }
    }

    fn miss(&mut self, count: u64, since: Timestamp) {
        let gap = self.gap.get_or_insert(Gap { count: 0, since });
        gap.count += count;
        gap.since = gap.since.min(since);
    }

    fn fail(&mut self, error: &StoreError) {
        if self.shared.is_available.swap(false, SeqCst) || self.again.is_none() {
            log::error!("the audit is not written, facts are counted: {error}");
        }
        self.log = None;
        self.again = Some(Instant::now() + self.pause);
        self.pause = (self.pause * 2).min(AGAIN_MAX);
    }

    fn succeed(&mut self) {
        if self.again.take().is_some() {
            log::info!("the audit is written again");
        }
        self.pause = AGAIN;
        self.shared.is_available.store(true, SeqCst);
    }

    /// What is written is on the disk, and then its head is: of a clean end alone.
    fn end(self) {
        if !self.is_stopped {
            return;
        }
        let (Some(log), Some(known)) = (&self.log, self.known) else { return };
        if let Err(error) = log.sync().and_then(|()| head::write(&self.dir, known, &self.identity)) {
            log::error!("where the audit ends is not recorded: {error}");
        }
    }
}
