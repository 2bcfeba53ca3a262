//! The lane of a session: its commands in order of arrival, at most `max_in_flight` at the producer.
//!
//! Every command that enters is settled exactly once: by the producer's answer, its deadline, its callers' cancellation or
//! end, or the session's end. A command that was settled without an answer holds its place for `settle_ms` more, so that a
//! hung handler cannot be flooded, and no longer, so that it cannot block. What becomes of a command under a key is said to
//! the keyring under the lane's lock, so a repeat finds it here or there. The lane's lock is held while the producer is
//! written to (which never blocks) and never while a caller is answered.

mod ending;
mod tell;
mod work;

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use crate::account::{Charge, Pool};
use crate::auth::gate::Permit;
use crate::ids::{ConnectionId, CredentialId, SessionId};
use crate::wire::codes::{Code, Delivery, Refusal};
use crate::wire::message;
use crate::wire::methods::{COMMAND, Method};

use super::budget::Budget;
use super::clock::Clock;
use super::keys::{Found, Kept, Key, Keyring, told_again};
use super::outbound::Origin;
use super::peer::{Peer, Place};
use super::pending::Pending;
use work::{CallerInfo, CommandParams, InFlight, Queued, Work};

pub use tell::again;
pub use work::{Answer, Call, Order};

#[derive(Default)]
struct State {
    issued: u64,
    in_flight: BTreeMap<u64, InFlight>,
    queue: VecDeque<Queued>,
    /// Commands under a key for which nobody waits any more; their answers would still tell something.
    forsaken: BTreeMap<u64, Work>,
    ended: Option<Code>,
}

impl State {
    /// The command under this key of this caller's credential.
    fn under(&mut self, caller: CredentialId, key: &Key) -> Option<&mut Work> {
        let queued = self.queue.iter_mut().map(|queued| &mut queued.work);
        let running = self.in_flight.values_mut().filter_map(|entry| entry.work.as_mut());
        queued.chain(running).find(|work| work.is_under(caller, key))
    }
}

/// What all lanes share.
pub struct LaneBounds {
    /// Commands queued for one session.
    pub queued_max: usize,
    /// Commands queued in all.
    pub queued: Arc<Pool>,
    /// Their bytes.
    pub queued_bytes: Arc<Pool>,
    /// How long a settled command holds its place.
    pub settle: Duration,
    /// The largest result.
    pub result_max: u64,
    /// Commands pending anywhere.
    pub pending: Arc<Pending>,
    /// Commands under keys.
    pub keyring: Keyring,
}

/// A session's lane.
pub struct Lane {
    session: SessionId,
    producer: Arc<Peer>,
    max_in_flight: usize,
    budget: Arc<Budget>,
    bounds: Arc<LaneBounds>,
    clock: Arc<Clock>,
    pending: AtomicU64,
    late: AtomicU64,
    state: Mutex<State>,
}

/// An answer to an id that this lane never issued.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NeverIssued;

/// What became of a command that came in.
enum Entered {
    /// It waits for its answer.
    Waits,
    /// It was answered before, under its key.
    Known(Arc<Kept>),
    /// It ran before under its key, and that is all there is to tell.
    Ended(Refusal),
}

impl Lane {
    /// The lane of a session that its producer has just registered. `issued` requests went to that connection before:
    /// ids count up on a connection, whatever sessions it had.
    pub fn new(
        session: SessionId,
        producer: Arc<Peer>,
        issued: u64,
        max_in_flight: u32,
        budget: Arc<Budget>,
        bounds: Arc<LaneBounds>,
        clock: Arc<Clock>,
    ) -> Arc<Self> {
        Arc::new(Self {
            session,
            producer,
            max_in_flight: max_in_flight as usize,
            budget,
            bounds,
            clock,
            pending: AtomicU64::new(0),
            late: AtomicU64::new(0),
            state: Mutex::new(State { issued, ..State::default() }),
        })
    }

    /// Requests that went to this connection so far.
    pub fn issued(&self) -> u64 {
        self.state.lock().issued
    }

    /// Whether the session has ended.
    pub fn has_ended(&self) -> bool {
        self.state.lock().ended.is_some()
    }

    /// The session's producer.
    pub fn producer(&self) -> &Arc<Peer> {
        &self.producer
    }

    /// What the session holds.
    pub fn budget(&self) -> &Budget {
        &self.budget
    }

    /// Commands queued or at the producer.
    pub fn pending(&self) -> u64 {
        self.pending.load(Relaxed)
    }

    /// When the one of them that has been here longest came in.
    pub fn oldest(&self) -> Option<Instant> {
        let state = self.state.lock();
        let queued = state.queue.iter().map(|queued| &queued.work);
        let running = state.in_flight.values().filter_map(|entry| entry.work.as_ref());
        queued.chain(running).map(|work| work.arrived).min()
    }

    /// Takes a command: starts it, queues it, joins it to the one that runs under its key, tells what became of that one, or
    /// refuses it. The caller's permit is held until one of these is done.
    pub fn submit(self: &Arc<Self>, permit: Permit<'_>, call: Call, order: Order<'_>) {
        let (caller, request, receipt, deadline) =
            (Arc::clone(&call.caller), call.request, call.receipt, call.deadline);
        if let Err(refusal) = caller.open(request, Place::Lane(Arc::clone(self))) {
            drop(permit);
            self.budget.reject();
            let _gone = caller.refuse(request, &refusal.delivery(Delivery::NotDelivered));
            return;
        }
        let entered = self.enter(&permit, call, order);
        match entered {
            Ok(Entered::Waits) => self.clock.alarm(deadline),
            Ok(Entered::Known(kept)) if caller.settle(request) => {
                again(&caller, request, receipt, self.session, &kept);
            }
            Ok(Entered::Ended(refusal)) if caller.settle(request) => {
                let _gone = caller.fail(request, &refusal);
            }
            Err(refusal) if caller.settle(request) => {
                drop(permit);
                self.budget.reject();
                let _gone = caller.refuse(request, &refusal.delivery(Delivery::NotDelivered));
            }
            _ => {}
        }
    }

    fn enter(&self, _permit: &Permit<'_>, call: Call, order: Order<'_>) -> Result<Entered, Refusal> {
        let mut state = self.state.lock();
        let Order { command, key, input } = order;
        let Some(key) = key else {
            return match state.ended {
                Some(code) => Err(code.into()),
                None => self.admit(&mut state, Work::new(command, None, call), input).map(|()| Entered::Waits),
            };
        };
        let credential = Arc::clone(call.caller.authority().credential());
        let owner = self.producer.authority().credential().id;
        match (self.bounds.keyring.find(self.session, credential.id, Some(owner), &key), state.ended) {
            (Found::Nothing, Some(code)) => Err(code.into()),
            // It is on its way out of here, or runs for whoever has the session now.
            (Found::Running, Some(code)) => Ok(Entered::Ended(Refusal::from(code).delivery(Delivery::Unknown))),
            (Found::Nothing, None) => {
                let ticket = self.bounds.keyring.begin(self.session, &credential, owner, &key)?;
                let work = Work::new(command, Some(ticket.clone()), call);
                self.admit(&mut state, work, input).inspect_err(|_| self.bounds.keyring.forget(&ticket))?;
                Ok(Entered::Waits)
            }
            (Found::Running, None) => {
                state.under(credential.id, &key).ok_or(Code::Internal)?.calls.push(call);
                Ok(Entered::Waits)
            }
            (Found::Known(kept), _) => Ok(Entered::Known(kept)),
            (Found::Conflict, _) => Err(Code::KeyConflict.into()),
            (found, _) => Ok(Entered::Ended(told_again(&found).unwrap_or_else(|| Code::Internal.into()))),
        }
    }

    /// A new command, to start or to be queued.
    fn admit(&self, state: &mut State, work: Work, input: Option<&[u8]>) -> Result<(), Refusal> {
        if state.in_flight.len() < self.max_in_flight && state.queue.is_empty() {
            return self.start(state, work, input).map_err(|_| Code::SessionLost.into());
        }
        if state.queue.len() >= self.bounds.queued_max {
            return Err(Refusal { resource: Some("session-queued"), ..Code::QueueFull.into() });
        }
        let shares = &work.origin.credential().shares;
        let bytes = input.map_or(0, <[u8]>::len) as u64;
        let full = |full: crate::account::Full| Refusal { resource: Some(full.resource()), ..Code::QueueFull.into() };
        let count = Charge::take(&self.bounds.queued, &shares.queued, 1).map_err(full)?;
        let held = Charge::take(&self.bounds.queued_bytes, &shares.queued_bytes, bytes).map_err(full)?;
        let place = self.budget.queue(bytes);
        state.queue.push_back(Queued {
            work,
            input: input.map(<[u8]>::to_vec),
            _charges: (count, held),
            _place: place,
        });
        self.count_in();
        Ok(())
    }

    /// Writes a command to the producer. Given back, it was not taken.
    fn start(&self, state: &mut State, work: Work, input: Option<&[u8]>) -> Result<(), Work> {
        let caller = work.origin.credential();
        let left = work.deadline().map_or(Duration::ZERO, |at| at.saturating_duration_since(Instant::now()));
        let params = CommandParams {
            command: &work.command,
            deadline_ms: millis(left),
            key: work.key.as_ref().map(|ticket| ticket.name().key.as_str()),
            caller: CallerInfo { credential: caller.id, label: &caller.label },
        };
        let id = state.issued + 1;
        let origin = Origin { authority: Arc::clone(&work.origin), instead: None };
        let Ok(sent) = self.producer.send_for(origin, message::request(id, COMMAND, &params, input)) else {
            return Err(work);
        };
        state.issued = id;
        caller.shares.in_flight.fetch_add(1, Relaxed);
        self.budget.start();
        state.in_flight.insert(id, InFlight { work: Some(work), sent, settle_at: None });
        self.count_in();
        Ok(())
    }

    /// Starts what fits. A queued command is admitted again: its caller or its session may have lost the right meanwhile.
    /// Returns those that may not start, to be told outside the lock.
    fn pump(&self, state: &mut State) -> Vec<(Work, Code)> {
        let mut refused = Vec::new();
        while state.ended.is_none() && state.in_flight.len() < self.max_in_flight {
            let Some(Queued { work, input, .. }) = state.queue.pop_front() else { break };
            let origin = Arc::clone(&work.origin);
            let started = match origin.admit(Method::SessionSend) {
                Ok(_permit) => self.start(state, work, input.as_deref()).map_err(|work| (work, Code::SessionLost)),
                Err(code) => Err((work, code)),
            };
            // Last, so that nobody sees none pending meanwhile.
            self.count_out();
            if let Err((work, code)) = started {
                self.forget(&work);
                refused.push((work, code));
            }
        }
        refused
    }

    /// The producer has answered. An id that has ended is dropped and counted; one that was never issued is an error.
    pub fn answered(&self, id: u64, answer: Answer<'_>) -> Result<(), NeverIssued> {
        let mut state = self.state.lock();
        if id == 0 || id > state.issued {
            return Err(NeverIssued);
        }
        // Behind its deadline an answer is late, whether or not the clock has told it yet.
        let now = Instant::now();
        let due = state.in_flight.get(&id).and_then(|entry| entry.work.as_ref()?.due());
        if due.is_some_and(|due| due <= now) {
            drop(state);
            self.withdraw(Code::Timeout, now, |call| call.deadline <= now);
            state = self.state.lock();
        }
        // What a displaced producer says counts for nothing, even while its commands are being taken out.
        let is_open = state.ended.is_none();
        let entry = if is_open { state.in_flight.remove(&id) } else { None };
        let forsaken = if is_open { state.forsaken.remove(&id) } else { None };
        let work = entry.and_then(|entry| entry.work);
        let verdict = tell::judge(answer, self.bounds.result_max);
        let answered = work.as_ref().or(forsaken.as_ref());
        let took_ms = answered.map_or(0, |work| millis(work.arrived.elapsed()));
        if let Some((ticket, origin)) = answered.and_then(|work| Some((work.key.as_ref()?, &work.origin))) {
            let producer = Arc::clone(self.producer.authority());
            self.bounds.keyring.settle(ticket, origin.credential(), producer, verdict.outcome(took_ms));
        }
        let refused = self.pump(&mut state);
        drop(state);
        match work {
            Some(work) => {
                self.leave(&work);
                tell::all(&work, self.session, self.producer.authority(), &verdict, took_ms);
            }
            None => {
                self.late.fetch_add(1, Relaxed);
            }
        }
        tell_refused(refused);
        Ok(())
    }

    /// The caller no longer waits: it said so (then it is told `cancelled`), or it is gone.
    pub fn cancel(&self, caller: ConnectionId, request: u64) {
        self.withdraw(Code::Cancelled, Instant::now(), |call| call.is(caller, request));
    }

    /// Ends what is past its deadline, frees places that were held long enough; when to look again.
    pub fn expire(&self, now: Instant) -> Option<Instant> {
        self.withdraw(Code::Timeout, now, |call| call.deadline <= now);
        let state = self.state.lock();
        let queued = state.queue.iter().filter_map(|queued| queued.work.due());
        let running = state.in_flight.values().filter_map(|entry| match &entry.work {
            Some(work) => work.due(),
            None => entry.settle_at,
        });
        queued.chain(running).min()
    }

    fn leave(&self, work: &Work) {
        self.count_out();
        work.origin.credential().shares.in_flight.fetch_sub(1, Relaxed);
        self.budget.settle();
    }

    fn count_in(&self) {
        self.pending.fetch_add(1, Relaxed);
        self.bounds.pending.add();
    }

    fn count_out(&self) {
        self.pending.fetch_sub(1, Relaxed);
        self.bounds.pending.sub();
    }
}

fn tell_refused(refused: Vec<(Work, Code)>) {
    for (work, code) in refused {
        work.fail(&code.into(), Delivery::NotDelivered);
    }
}

/// Whole milliseconds; durations here are minutes at most.
pub fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}
