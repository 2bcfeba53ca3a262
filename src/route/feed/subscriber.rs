//! One who follows: where it is in the list, what it wants, and how it is told.

use std::fmt::Write;
use std::sync::Arc;

use parking_lot::Mutex;
use serde::Serialize;

use crate::account::Charge;
use crate::ids::{ConnectionId, Generation};
use crate::wire::events::{Event, Kind, Kinds, LagReason};
use crate::wire::message;
use crate::wire::methods::EVENTS;
use crate::wire::selector::Selector;

use super::super::peer::Peer;
use super::{Happened, State, text};

/// What a subscriber has not read and still gets more: below it nothing waits, above it the list is its queue.
const UNREAD_BYTES: u64 = 64 * 1024;

/// Bytes of one notification, unless a single event is larger.
const BATCH_BYTES: usize = 64 * 1024;

/// What somebody wants to hear.
pub struct Want {
    /// Of these kinds.
    pub kinds: Kinds,
    /// Of sessions that it matches.
    pub selector: Option<Selector>,
    /// Of a task.
    pub task_id: Option<String>,
}

impl Want {
    fn takes(&self, happened: &Happened) -> bool {
        self.kinds.has(happened.kind)
            && self.task_id.is_none()
            && self.selector.as_ref().is_none_or(|selector| happened.audience.is_about(selector))
            || happened.kind == Kind::ShutdownRequested
            || happened.kind == Kind::ShutdownComplete
    }
}

struct Progress {
    /// The number of the first event that it was not told.
    next: u64,
    /// A gap in front of that, which it has to be told.
    gap: Option<LagReason>,
    over: bool,
    /// Its place among the streams, given back when it is over.
    charge: Option<Charge>,
}

impl Progress {
    fn end(&mut self) {
        self.over = true;
        self.charge = None;
    }
}

/// What one look came to.
pub enum Told {
    /// Nothing is left.
    All,
    /// There is more, or there is no room for it now.
    Some,
    /// It is a subscriber no longer.
    Over,
}

/// One who follows.
pub struct Subscriber {
    peer: Arc<Peer>,
    /// The request that subscribed.
    pub subscription: u64,
    want: Want,
    until: Option<u64>,
    progress: Mutex<Progress>,
}

#[derive(Serialize)]
struct Head {
    subscription: u64,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    ended: bool,
}

impl Subscriber {
    pub fn new(
        peer: Arc<Peer>,
        subscription: u64,
        want: Want,
        next: u64,
        gap: Option<LagReason>,
        until: Option<u64>,
        charge: Charge,
    ) -> Self {
        let progress = Mutex::new(Progress { next, gap, over: false, charge: Some(charge) });
        Self { peer, subscription, want, until, progress }
    }

    pub fn connection(&self) -> ConnectionId {
        self.peer.id()
    }

    pub fn next(&self) -> u64 {
        self.progress.lock().next
    }

    /// Whether it has read enough to be told more.
    pub fn takes_more(&self) -> bool {
        self.peer.kept() < UNREAD_BYTES
    }

    /// Nothing is told to it any more.
    pub fn end(&self) {
        self.progress.lock().end();
    }

    fn hears(&self, happened: &Happened) -> bool {
        self.want.takes(happened) && happened.audience.includes(self.peer.authority())
    }

    /// Tells what the window, which begins with number `from`, has for it. `first` is kept, `head` is the latest.
    pub fn tell(&self, generation: Generation, from: u64, window: &[Arc<Happened>], first: u64, head: u64) -> Told {
        let mut progress = self.progress.lock();
        if progress.over {
            return Told::Over;
        }
        let last = self.until.map_or(head, |until| until.min(head));
        let mut batch = Batch::new(generation);
        if progress.next < first || progress.gap == Some(LagReason::Restart) {
            let missed = (progress.gap != Some(LagReason::Restart)).then(|| first - progress.next);
            let reason = progress.gap.unwrap_or(LagReason::Slow);
            progress.next = progress.next.max(first);
            batch.lagged(progress.next - 1, missed, reason);
        }
        // From here on what it misses it has not read.
        progress.gap = None;
        let skip = usize::try_from(progress.next.saturating_sub(from)).unwrap_or(usize::MAX);
        if progress.next >= from {
            for happened in window.iter().skip(skip) {
                if progress.next > last || batch.is_full() {
                    break;
                }
                if self.hears(happened) {
                    batch.add(progress.next, &happened.text);
                }
                progress.next += 1;
            }
        }
        let ended = self.until.is_some_and(|until| progress.next > until);
        if ended {
            // Whoever reads that it has ended may subscribe again at once.
            progress.end();
        }
        if let Some(list) = batch.list(ended) {
            let head = Head { subscription: self.subscription, ended };
            if self.peer.send(message::notification_with(EVENTS, &head, list.as_bytes())).is_err() {
                progress.end();
            }
        }
        match progress.over {
            true => Told::Over,
            false if progress.next > last => Told::All,
            false => Told::Some,
        }
    }

    /// Events that it would hear and was not told.
    pub fn untold(&self, state: &State) -> u64 {
        let progress = self.progress.lock();
        if progress.over {
            return 0;
        }
        let gone = state.first.saturating_sub(progress.next);
        let skip = usize::try_from(progress.next.saturating_sub(state.first)).unwrap_or(usize::MAX);
        gone + state.kept.iter().skip(skip).filter(|happened| self.hears(happened)).count() as u64
    }
}

/// A JSON array of events that grows.
struct Batch {
    /// The generation's part of every cursor.
    generation: String,
    list: String,
}

impl Batch {
    fn new(generation: Generation) -> Self {
        Self { generation: generation.to_string(), list: String::new() }
    }

    fn is_full(&self) -> bool {
        self.list.len() >= BATCH_BYTES
    }

    fn add(&mut self, seq: u64, text: &str) {
        self.list.push(if self.list.is_empty() { '[' } else { ',' });
        self.list.push_str("{\"cursor\":\"");
        self.list.push_str(&self.generation);
        // Writing to a string does not fail.
        let _infallible = write!(self.list, ":{seq}\"");
        self.list.push_str(text);
    }

    fn lagged(&mut self, seq: u64, missed: Option<u64>, reason: LagReason) {
        self.add(seq, &text(&Event::Lagged { missed, reason }));
    }

    /// The whole array; an empty one only where something has to be said all the same.
    fn list(mut self, even_if_empty: bool) -> Option<String> {
        match (self.list.is_empty(), even_if_empty) {
            (true, false) => return None,
            (true, true) => self.list.push('['),
            (false, _) => {}
        }
        self.list.push(']');
        Some(self.list)
    }
}
