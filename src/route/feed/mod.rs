//! What happened: the one place that every event passes, in order, kept for replay and told to those who follow.
//!
//! Whoever makes something so publishes it before anybody hears of it ([`Feed::publish`]): a lock, a place at the end of a
//! bounded list, a bell. One thread tells subscribers. Each has a place in the list and no queue of its own, so one that
//! does not read costs what its socket holds, is overtaken by the end of the list, and hears how much it missed when it
//! reads again. Lock order: the list, then a subscriber, then outbound; a publisher holds the first and nothing else.

mod audience;
mod subscriber;

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};

use crate::account::Charge;
use crate::ids::{ConnectionId, Generation};
use crate::limits::{EVENTS_MAX, EVENTS_MAX_BYTES};
use crate::wire::codes::Refusal;
use crate::wire::events::{Cursor, Event, Kind, LagReason};

use super::bell::Bell;
use super::peer::Peer;

pub use audience::Audience;
pub use subscriber::Want;

use subscriber::{Subscriber, Told};

/// Events that one look takes from the list: what a publisher waits for at most.
const WINDOW: usize = 256;

/// From the first event that is news to telling it. What happens together is told together, and who caused it has its answer
/// before a hundred subscribers wake and want the processors.
const LINGER: Duration = Duration::from_millis(1);

/// What an event costs beside its text.
const EVENT_BYTES: usize = 128;

/// An event that happened.
struct Happened {
    kind: Kind,
    audience: Audience,
    /// From `,"ts"` on: its cursor stands in front when it is told.
    text: Box<str>,
}

impl Happened {
    fn bytes(&self) -> usize {
        EVENT_BYTES + self.text.len() + self.audience.bytes()
    }
}

struct State {
    kept: VecDeque<Arc<Happened>>,
    kept_bytes: usize,
    /// The number of the first that is kept, or of the next one where nothing is.
    first: u64,
    subscribers: Vec<Arc<Subscriber>>,
    /// The last event has happened.
    said_last: bool,
    ended: bool,
}

impl State {
    /// The number of the latest event.
    fn head(&self) -> u64 {
        self.first + self.kept.len() as u64 - 1
    }

    fn window(&self, from: u64) -> Vec<Arc<Happened>> {
        let skip = usize::try_from(from.saturating_sub(self.first)).unwrap_or(usize::MAX);
        self.kept.iter().skip(skip).take(WINDOW).map(Arc::clone).collect()
    }
}

/// The members of an event behind its cursor, and the brace.
fn text(event: &Event<'_>) -> Box<str> {
    let ts = jiff::Timestamp::now();
    // Our own types: they always serialise.
    let body = serde_json::to_string(event).unwrap_or_default();
    format!(",\"ts\":\"{ts:.3}\",{}", body.get(1..).unwrap_or("}")).into_boxed_str()
}

/// Where a subscriber begins.
#[derive(Debug, PartialEq, Eq)]
pub struct Start {
    /// The number of the first event that it wants.
    next: u64,
    /// Told first, where something is missing in front of it.
    gap: Option<LagReason>,
}

/// The feed of one start of a daemon.
pub struct Feed {
    generation: Generation,
    state: Mutex<State>,
    bell: Arc<Bell>,
    told: Condvar,
}

impl Feed {
    /// Without an event. The bell is rung for its thread by others too: by the flusher, when somebody has read.
    pub fn new(generation: Generation, bell: Arc<Bell>) -> Self {
        let kept = VecDeque::new();
        let state = State { kept, kept_bytes: 0, first: 1, subscribers: Vec::new(), said_last: false, ended: false };
        Self { generation, state: Mutex::new(state), bell, told: Condvar::new() }
    }

    /// Something happened. Never waits for a subscriber, never fails. Behind the daemon's end nothing happens any more.
    pub fn publish(&self, audience: Audience, event: &Event<'_>) {
        let happened = Arc::new(Happened { kind: event.kind(), audience, text: text(event) });
        let mut state = self.state.lock();
        if state.said_last {
            return;
        }
        state.said_last = event.kind() == Kind::ShutdownComplete;
        state.kept_bytes += happened.bytes();
        state.kept.push_back(happened);
        while state.kept.len() > EVENTS_MAX || state.kept_bytes > EVENTS_MAX_BYTES {
            let Some(oldest) = state.kept.pop_front() else { break };
            state.kept_bytes -= oldest.bytes();
            state.first += 1;
        }
        let is_followed = !state.subscribers.is_empty();
        drop(state);
        if is_followed {
            self.bell.ring();
        }
    }

    /// Where the feed stands.
    pub fn head(&self) -> Cursor {
        Cursor { generation: self.generation, seq: self.state.lock().head() }
    }

    /// Behind a cursor, from the start (of what is kept), or from `head` on.
    pub fn start(&self, since: Option<&str>, head: Cursor) -> Result<Start, Refusal> {
        let first = self.state.lock().first;
        let Some(since) = since else { return Ok(Start { next: head.seq + 1, gap: None }) };
        if since == "start" {
            return Ok(Start { next: first, gap: None });
        }
        let cursor: Cursor = since.parse().map_err(|error| Refusal::invalid(format!("since: {error}, or start")))?;
        if cursor.generation != self.generation {
            return Ok(Start { next: first, gap: Some(LagReason::Restart) });
        }
        if cursor.seq > head.seq {
            return Err(Refusal::invalid("since lies ahead of what has happened"));
        }
        let is_gone = cursor.seq + 1 < first;
        Ok(Start { next: cursor.seq + 1, gap: is_gone.then_some(LagReason::Age) })
    }

    /// Tells a peer from there on; with `until`, no further than that.
    pub fn follow(
        &self,
        peer: Arc<Peer>,
        subscription: u64,
        want: Want,
        start: Start,
        until: Option<Cursor>,
        charge: Charge,
    ) {
        let until = until.map(|cursor| cursor.seq);
        let subscriber = Subscriber::new(peer, subscription, want, start.next, start.gap, until, charge);
        self.state.lock().subscribers.push(Arc::new(subscriber));
        self.bell.ring();
    }

    /// Ends a subscription; nothing of it is sent any more. False: there is none.
    pub fn unsubscribe(&self, connection: ConnectionId, subscription: u64) -> bool {
        let is_it = |one: &Subscriber| one.connection() == connection && one.subscription == subscription;
        self.take(is_it)
    }

    /// A connection has ended.
    pub fn forget(&self, connection: ConnectionId) {
        self.take(|one| one.connection() == connection);
    }

    fn take(&self, is_it: impl Fn(&Subscriber) -> bool) -> bool {
        let mut taken = Vec::new();
        self.state.lock().subscribers.retain(|one| {
            let it = is_it(one);
            if it {
                taken.push(Arc::clone(one));
            }
            !it
        });
        taken.iter().for_each(|one| one.end());
        !taken.is_empty()
    }

    /// Tells subscribers, until the feed is ended.
    pub fn run(&self) {
        loop {
            self.bell.wait();
            std::thread::sleep(LINGER);
            while self.tell() {}
            let state = self.state.lock();
            self.told.notify_all();
            if state.ended {
                return;
            }
        }
    }

    /// One window for everybody who can take it. False: nobody wants more, or can take it now.
    fn tell(&self) -> bool {
        let subscribers = self.state.lock().subscribers.clone();
        let ready: Vec<_> = subscribers.into_iter().filter(|one| one.takes_more()).collect();
        let Some(from) = ready.iter().map(|one| one.next()).min() else { return false };
        let (first, head, window) = {
            let state = self.state.lock();
            (state.first, state.head(), state.window(from))
        };
        let mut more = false;
        for one in ready {
            match one.tell(self.generation, from.max(first), &window, first, head) {
                Told::All => {}
                Told::Some => more = true,
                Told::Over => {
                    self.state.lock().subscribers.retain(|other| !Arc::ptr_eq(other, &one));
                }
            }
        }
        more
    }

    /// Waits until everybody was told everything, or until the deadline; how many events were not told to somebody who
    /// would have seen them.
    pub fn wait_told(&self, deadline: Instant) -> u64 {
        let mut state = self.state.lock();
        loop {
            let untold: u64 = state.subscribers.iter().map(|one| one.untold(&state)).sum();
            if untold == 0 || self.told.wait_until(&mut state, deadline).timed_out() {
                return untold;
            }
        }
    }

    /// Ends [`Feed::run`].
    pub fn end(&self) {
        self.state.lock().ended = true;
        self.bell.ring();
    }
}

#[cfg(test)]
mod tests;
