//! Commands that end without an answer: withdrawn, because nobody waits any more, or with their session.

use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::Ordering::Relaxed;
use std::time::Instant;

use crate::wire::codes::{Code, Delivery, Refusal};
use crate::wire::message;
use crate::wire::methods::CANCEL;

use super::work::{Call, CancelParams, Queued, Work};
use super::{Lane, State, tell_refused};

impl Lane {
    /// Settles the chosen calls without an answer of the producer. A command for which nobody waits any more is withdrawn,
    /// and the next ones start.
    pub(super) fn withdraw(&self, code: Code, now: Instant, chosen: impl Fn(&Call) -> bool) {
        let mut state = self.state.lock();
        let mut told = Vec::new();
        let mut kept = VecDeque::with_capacity(state.queue.len());
        for mut queued in state.queue.drain(..) {
            let out = queued.work.withdraw(&chosen);
            let is_over = queued.work.calls.is_empty();
            // While others wait it may still go.
            let delivery = if is_over { Delivery::NotDelivered } else { Delivery::Unknown };
            told.extend(out.into_iter().map(|call| (call, delivery)));
            if is_over {
                self.forget(&queued.work);
                self.count_out();
            } else {
                kept.push_back(queued);
            }
        }
        state.queue = kept;
        let settle_at = now + self.bounds.settle;
        let State { in_flight, forsaken, .. } = &mut *state;
        for (&id, entry) in in_flight {
            let Some(work) = &mut entry.work else { continue };
            let out = work.withdraw(&chosen);
            let Some(work) = entry.work.take_if(|work| work.calls.is_empty()) else {
                told.extend(out.into_iter().map(|call| (call, Delivery::Unknown)));
                continue;
            };
            self.leave(&work);
            let delivery = if self.producer.withdraw(&entry.sent) {
                // The producer never saw it: its place is free at once.
                entry.settle_at = Some(now);
                self.forget(&work);
                Delivery::NotDelivered
            } else {
                entry.settle_at = Some(settle_at);
                let _gone = self.producer.send(message::notification(CANCEL, &CancelParams { id }));
                self.clock.alarm(settle_at);
                self.forsake(forsaken, id, work, code);
                Delivery::Unknown
            };
            told.extend(out.into_iter().map(|call| (call, delivery)));
        }
        state.in_flight.retain(|_, entry| entry.settle_at.is_none_or(|at| at > now));
        let refused = self.pump(&mut state);
        drop(state);
        for (call, delivery) in told {
            call.fail(&Refusal::from(code).delivery(delivery));
        }
        tell_refused(refused);
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
        let mut told = Vec::new();
        for Queued { work, .. } in std::mem::take(&mut state.queue) {
            self.forget(&work);
            self.count_out();
            told.push((work, Delivery::NotDelivered));
        }
        for entry in std::mem::take(&mut state.in_flight).into_values() {
            let Some(work) = entry.work else { continue };
            self.leave(&work);
            if self.producer.withdraw(&entry.sent) {
                self.forget(&work);
                told.push((work, Delivery::NotDelivered));
            } else {
                if let Some(ticket) = &work.key {
                    self.bounds.keyring.unknown(ticket, code);
                }
                told.push((work, Delivery::Unknown));
            }
        }
        state.forsaken.clear();
        drop(state);
        let late = self.late.swap(0, Relaxed);
        if late > 0 {
            log::info!("session {}: {late} answers came after their commands had ended", self.session);
        }
        for (work, delivery) in told {
            work.fail(&code.into(), delivery);
        }
    }

    /// It has certainly not run.
    pub(super) fn forget(&self, work: &Work) {
        if let Some(ticket) = &work.key {
            self.bounds.keyring.forget(ticket);
        }
    }

    /// Nobody waits any more for what the producer has: it is never sent again, and a late answer tells what became of it.
    fn forsake(&self, forsaken: &mut BTreeMap<u64, Work>, id: u64, work: Work, code: Code) {
        let keyring = &self.bounds.keyring;
        let Some(ticket) = &work.key else { return };
        keyring.unknown(ticket, code);
        if forsaken.len() >= keyring.session_max() {
            forsaken.retain(|_, work| work.key.as_ref().is_some_and(|ticket| keyring.is_open(ticket)));
        }
        forsaken.insert(id, work);
    }
}
