//! The lane of a session: its commands in order of arrival, at most `max_in_flight` at the producer.
//!
//! Every command that enters is settled exactly once: by the producer's answer, its deadline, its caller's cancellation or
//! end, or the session's end. A command that was settled without an answer holds its place for `settle_ms` more, so that a
//! hung handler cannot be flooded, and no longer, so that it cannot block. The lane's lock is held while the producer is
//! written to (which never blocks) and never while a caller is answered.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use serde::Serialize;

use crate::account::{Charge, Pool};
use crate::auth::gate::Permit;
use crate::ids::{ConnectionId, CredentialId, SessionId};
use crate::wire::codes::{Code, Delivery, Refusal};
use crate::wire::message;
use crate::wire::methods::{CANCEL, COMMAND, Method};
use crate::wire::transcript::Hash;

use super::clock::Clock;
use super::outbound::{Origin, Sent};
use super::peer::{Peer, Place};
use super::pending::Pending;

/// A command that somebody waits for.
pub struct Call {
    /// Who.
    pub caller: Arc<Peer>,
    /// Its request.
    pub request: u64,
    /// Digest of the request where a receipt is asked for.
    pub receipt: Option<Hash>,
    /// The command's name.
    pub command: String,
    /// When it came.
    pub arrived: Instant,
    /// When it is told as timed out.
    pub deadline: Instant,
}

struct Queued {
    call: Call,
    input: Option<Vec<u8>>,
    _charges: (Charge, Charge),
}

struct InFlight {
    /// `None` once it is settled: only the place is still held, until `settle_at`.
    call: Option<Call>,
    sent: Sent,
    settle_at: Option<Instant>,
}

#[derive(Default)]
struct State {
    issued: u64,
    in_flight: BTreeMap<u64, InFlight>,
    queue: VecDeque<Queued>,
    ended: Option<Code>,
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
}

/// A session's lane.
pub struct Lane {
    session: SessionId,
    producer: Arc<Peer>,
    max_in_flight: usize,
    bounds: Arc<LaneBounds>,
    clock: Arc<Clock>,
    pending: AtomicU64,
    late: AtomicU64,
    state: Mutex<State>,
}

/// How a producer answered.
pub enum Outcome<'a> {
    /// With a result.
    Done(Option<&'a [u8]>),
    /// With an error.
    Failed(String),
}

/// An answer to an id that this lane never issued.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NeverIssued;

#[derive(Serialize)]
struct CommandParams<'a> {
    command: &'a str,
    deadline_ms: u64,
    caller: CallerInfo<'a>,
}

#[derive(Serialize)]
struct CallerInfo<'a> {
    credential: CredentialId,
    label: &'a str,
}

#[derive(Serialize)]
struct CancelParams {
    id: u64,
}

#[derive(Serialize)]
struct SendResult {
    session_id: SessionId,
    took_ms: u64,
}

impl Lane {
    /// The lane of a session that its producer has just registered. `issued` requests went to that connection before:
    /// ids count up on a connection, whatever sessions it had.
    pub fn new(
        session: SessionId,
        producer: Arc<Peer>,
        issued: u64,
        max_in_flight: u32,
        bounds: Arc<LaneBounds>,
        clock: Arc<Clock>,
    ) -> Arc<Self> {
        Arc::new(Self {
            session,
            producer,
            max_in_flight: max_in_flight as usize,
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

    /// Commands queued or at the producer.
    pub fn pending(&self) -> u64 {
        self.pending.load(Relaxed)
    }

    /// Takes a command: starts it, queues it or refuses it. The caller's permit is held until one of these is done.
    pub fn submit(self: &Arc<Self>, permit: Permit<'_>, call: Call, input: Option<&[u8]>) {
        let (caller, request) = (Arc::clone(&call.caller), call.request);
        if let Err(refusal) = caller.open(request, Place::Lane(Arc::clone(self))) {
            drop(permit);
            let _gone = caller.refuse(request, &refusal.delivery(Delivery::NotDelivered));
            return;
        }
        let deadline = call.deadline;
        let refused = self.enter(&permit, call, input);
        drop(permit);
        match refused {
            Ok(()) => self.clock.alarm(deadline),
            Err(refusal) if caller.settle(request) => {
                let _gone = caller.refuse(request, &refusal.delivery(Delivery::NotDelivered));
            }
            Err(_) => {}
        }
    }

    fn enter(&self, _permit: &Permit<'_>, call: Call, input: Option<&[u8]>) -> Result<(), Refusal> {
        let mut state = self.state.lock();
        if let Some(code) = state.ended {
            return Err(code.into());
        }
        if state.in_flight.len() < self.max_in_flight && state.queue.is_empty() {
            return self.start(&mut state, call, input);
        }
        if state.queue.len() >= self.bounds.queued_max {
            return Err(Refusal { resource: Some("session-queued"), ..Code::QueueFull.into() });
        }
        let shares = &call.caller.authority().credential().shares;
        let bytes = input.map_or(0, <[u8]>::len) as u64;
        let full = |full: crate::account::Full| Refusal { resource: Some(full.resource()), ..Code::QueueFull.into() };
        let count = Charge::take(&self.bounds.queued, &shares.queued, 1).map_err(full)?;
        let held = Charge::take(&self.bounds.queued_bytes, &shares.queued_bytes, bytes).map_err(full)?;
        state.queue.push_back(Queued { call, input: input.map(<[u8]>::to_vec), _charges: (count, held) });
        self.count_in();
        Ok(())
    }

    /// Writes a command to the producer. An error is the caller's answer; nothing was taken.
    fn start(&self, state: &mut State, call: Call, input: Option<&[u8]>) -> Result<(), Refusal> {
        let caller = call.caller.authority().credential();
        let params = CommandParams {
            command: &call.command,
            deadline_ms: millis(call.deadline.saturating_duration_since(Instant::now())),
            caller: CallerInfo { credential: caller.id, label: &caller.label },
        };
        let id = state.issued + 1;
        let origin = Origin { authority: Arc::clone(call.caller.authority()), instead: None };
        let Ok(sent) = self.producer.send_for(origin, message::request(id, COMMAND, &params, input)) else {
            return Err(Code::SessionLost.into());
        };
        state.issued = id;
        caller.shares.in_flight.fetch_add(1, Relaxed);
        state.in_flight.insert(id, InFlight { call: Some(call), sent, settle_at: None });
        self.count_in();
        Ok(())
    }

    /// Starts what fits. A queued command is admitted again: its caller or its session may have lost the right meanwhile.
    /// Returns those that may not start, to be told outside the lock.
    fn pump(&self, state: &mut State) -> Vec<(Call, Refusal)> {
        let mut refused = Vec::new();
        while state.ended.is_none() && state.in_flight.len() < self.max_in_flight {
            let Some(Queued { call, input, .. }) = state.queue.pop_front() else { break };
            let caller = Arc::clone(&call.caller);
            let (request, receipt) = (call.request, call.receipt);
            let (command, arrived, deadline) = (call.command.clone(), call.arrived, call.deadline);
            let started = match caller.authority().admit(Method::SessionSend) {
                Ok(_permit) => self.start(state, call, input.as_deref()),
                Err(code) => Err(code.into()),
            };
            // Last, so that nobody sees none pending meanwhile.
            self.count_out();
            if let Err(refusal) = started {
                refused.push((Call { caller, request, receipt, command, arrived, deadline }, refusal));
            }
        }
        refused
    }

    /// The producer has answered. An id that has ended is dropped and counted; one that was never issued is an error.
    pub fn answered(&self, id: u64, outcome: Outcome<'_>) -> Result<(), NeverIssued> {
        let mut state = self.state.lock();
        if id == 0 || id > state.issued {
            return Err(NeverIssued);
        }
        // What a displaced producer says counts for nothing, even while its commands are being taken out.
        let entry = if state.ended.is_none() { state.in_flight.remove(&id) } else { None };
        let Some(entry) = entry else {
            self.late.fetch_add(1, Relaxed);
            return Ok(());
        };
        let refused = self.pump(&mut state);
        drop(state);
        match entry.call {
            Some(call) => {
                self.leave(&call);
                self.tell(call, outcome);
            }
            None => {
                self.late.fetch_add(1, Relaxed);
            }
        }
        fail_all(refused, Delivery::NotDelivered);
        Ok(())
    }

    fn tell(&self, call: Call, outcome: Outcome<'_>) {
        if !call.caller.settle(call.request) {
            return;
        }
        let delivered =
            |refusal: Refusal| message::failure(call.request, &refusal.delivery(Delivery::Delivered).object());
        let text = match outcome {
            Outcome::Done(payload) if payload.map_or(0, <[u8]>::len) as u64 <= self.bounds.result_max => {
                let result = SendResult { session_id: self.session, took_ms: millis(call.arrived.elapsed()) };
                call.caller.answering(call.request, &result, payload, call.receipt)
            }
            Outcome::Done(_) => delivered(
                Refusal { resource: Some("result"), ..Code::InvalidResult.into() }
                    .message(format!("the session's result is larger than {} bytes", self.bounds.result_max)),
            ),
            Outcome::Failed(message) => delivered(Refusal::from(Code::CommandFailed).message(message)),
        };
        let lost = Refusal::from(Code::SessionLost).delivery(Delivery::Delivered);
        let origin = Origin { authority: Arc::clone(self.producer.authority()), instead: Some((call.request, lost)) };
        let _gone = call.caller.send_for(origin, text);
    }

    /// The caller no longer waits: it said so (then it is told `cancelled`), or it is gone.
    pub fn cancel(&self, caller: ConnectionId, request: u64) {
        let is_it = |call: &Call| call.caller.id() == caller && call.request == request;
        self.withdraw(Code::Cancelled, Instant::now(), is_it);
    }

    /// Ends what is past its deadline, frees places that were held long enough; when to look again.
    pub fn expire(&self, now: Instant) -> Option<Instant> {
        self.withdraw(Code::Timeout, now, |call| call.deadline <= now);
        let state = self.state.lock();
        let queued = state.queue.iter().map(|queued| queued.call.deadline);
        let running = state.in_flight.values().filter_map(|entry| match &entry.call {
            Some(call) => Some(call.deadline),
            None => entry.settle_at,
        });
        queued.chain(running).min()
    }

    /// Settles the chosen commands without an answer of the producer and lets the next ones start.
    fn withdraw(&self, code: Code, now: Instant, chosen: impl Fn(&Call) -> bool) {
        let mut state = self.state.lock();
        let mut told = Vec::new();
        let (out, kept): (VecDeque<_>, VecDeque<_>) =
            state.queue.drain(..).partition(|queued: &Queued| chosen(&queued.call));
        state.queue = kept;
        for queued in out {
            self.count_out();
            told.push((queued.call, Delivery::NotDelivered));
        }
        let settle_at = now + self.bounds.settle;
        for (&id, entry) in &mut state.in_flight {
            let Some(call) = entry.call.take_if(|call| chosen(call)) else { continue };
            self.leave(&call);
            if self.producer.withdraw(&entry.sent) {
                // The producer never saw it: its place is free at once.
                entry.settle_at = Some(now);
                told.push((call, Delivery::NotDelivered));
            } else {
                entry.settle_at = Some(settle_at);
                let _gone = self.producer.send(message::notification(CANCEL, &CancelParams { id }));
                self.clock.alarm(settle_at);
                told.push((call, Delivery::Unknown));
            }
        }
        state.in_flight.retain(|_, entry| entry.settle_at.is_none_or(|at| at > now));
        let refused = self.pump(&mut state);
        drop(state);
        for (call, delivery) in told {
            if call.caller.settle(call.request) {
                let _gone = call.caller.fail(call.request, &Refusal::from(code).delivery(delivery));
            }
        }
        fail_all(refused, Delivery::NotDelivered);
    }

    /// The session goes to another connection of its producer, which is then cut: nothing enters any more and no answer
    /// counts, before the worker of the old one notices that anything has happened.
    pub fn displace(&self) {
        self.state.lock().ended.get_or_insert(Code::Superseded);
        self.producer.cut_now();
        self.end(Code::Superseded);
    }

    /// The session has ended: everything pending ends once, and nothing enters any more. Of several reasons the first
    /// counts.
    pub fn end(&self, code: Code) {
        let mut state = self.state.lock();
        let code = *state.ended.get_or_insert(code);
        let queue = std::mem::take(&mut state.queue);
        let in_flight = std::mem::take(&mut state.in_flight);
        drop(state);
        let late = self.late.swap(0, Relaxed);
        if late > 0 {
            log::info!("session {}: {late} answers came after their commands had ended", self.session);
        }
        for queued in queue {
            self.count_out();
            fail_all(vec![(queued.call, code.into())], Delivery::NotDelivered);
        }
        for entry in in_flight.into_values() {
            let Some(call) = entry.call else { continue };
            self.leave(&call);
            let unseen = self.producer.withdraw(&entry.sent);
            let delivery = if unseen { Delivery::NotDelivered } else { Delivery::Unknown };
            fail_all(vec![(call, code.into())], delivery);
        }
    }

    fn leave(&self, call: &Call) {
        self.count_out();
        call.caller.authority().credential().shares.in_flight.fetch_sub(1, Relaxed);
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

fn fail_all(calls: Vec<(Call, Refusal)>, delivery: Delivery) {
    for (call, refusal) in calls {
        if call.caller.settle(call.request) {
            let _gone = call.caller.fail(call.request, &refusal.delivery(delivery));
        }
    }
}

/// Whole milliseconds; durations here are minutes at most.
pub fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}
