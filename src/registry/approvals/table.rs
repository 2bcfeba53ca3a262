//! Which questions are open and what came of the others: pure, without clock, channel or socket.

use std::collections::VecDeque;
use std::time::Instant;

use crate::ids::ApprovalId;
use crate::limits::DECIDED_MAX;
use crate::wire::approvals::Outcome;

/// A question that nobody has decided. `Q` is what its owner knows of it.
pub struct Open<Q> {
    /// Its id.
    pub id: ApprovalId,
    /// When it was asked.
    pub asked: jiff::Timestamp,
    /// Until when it can be decided, as it is shown.
    pub expires: jiff::Timestamp,
    /// The same for a clock that nobody sets.
    pub due: Instant,
    /// What else is known.
    pub question: Q,
}

/// A question that has ended. `V` is what is remembered of who may see it.
pub struct Ended<V> {
    /// When it was asked.
    pub asked: jiff::Timestamp,
    /// Until when it could have been decided.
    pub expires: jiff::Timestamp,
    /// What came of it.
    pub outcome: Outcome,
    /// Who may see it.
    pub seen_by: V,
}

/// All of them, each with its place in the order in which they were asked.
pub struct Table<Q, V> {
    open: Vec<(u64, Open<Q>)>,
    ended: VecDeque<(u64, Ended<V>)>,
    order: u64,
}

impl<Q, V> Default for Table<Q, V> {
    fn default() -> Self {
        Self { open: Vec::new(), ended: VecDeque::new(), order: 0 }
    }
}

impl<Q, V> Table<Q, V> {
    /// One more.
    pub fn add(&mut self, open: Open<Q>) {
        self.order += 1;
        self.open.push((self.order, open));
    }

    /// The open ones, in order.
    pub fn open(&self) -> impl Iterator<Item = (u64, &Open<Q>)> {
        self.open.iter().map(|(order, open)| (*order, open))
    }

    /// Those that have ended and are remembered, in the order in which they ended.
    pub fn ended(&self) -> impl Iterator<Item = (u64, &Ended<V>)> {
        self.ended.iter().map(|(order, ended)| (*order, ended))
    }

    /// An open one.
    pub fn find(&self, id: ApprovalId) -> Option<&Open<Q>> {
        self.open.iter().map(|(_, open)| open).find(|open| open.id == id)
    }

    /// What came of one that has ended.
    pub fn outcome(&self, id: ApprovalId) -> Option<&Ended<V>> {
        self.ended.iter().map(|(_, ended)| ended).find(|ended| ended.outcome.approval_id == id)
    }

    /// Ends an open one, once; of the oldest that have ended nothing is remembered.
    pub fn end(&mut self, outcome: &Outcome, seen_by: impl FnOnce(&Q) -> V) -> Option<Open<Q>> {
        let place = self.open.iter().position(|(_, open)| open.id == outcome.approval_id)?;
        let (order, open) = self.open.remove(place);
        if self.ended.len() == DECIDED_MAX {
            self.ended.pop_front();
        }
        let (asked, expires, outcome) = (open.asked, open.expires, outcome.clone());
        self.ended.push_back((order, Ended { asked, expires, outcome, seen_by: seen_by(&open.question) }));
        Some(open)
    }

    /// Those whose time is over, by either clock.
    pub fn due(&self, now: Instant, wall: jiff::Timestamp) -> Vec<ApprovalId> {
        self.open().filter(|(_, open)| open.due <= now || open.expires <= wall).map(|(_, open)| open.id).collect()
    }

    /// When the next one's time is over.
    pub fn next(&self) -> Option<Instant> {
        self.open().map(|(_, open)| open.due).min()
    }

    /// Whether nobody asks anything.
    pub fn is_empty(&self) -> bool {
        self.open.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::wire::approvals::Decision;

    fn open(number: u64, due: Instant) -> Open<u64> {
        let mut id = [0; 16];
        id[..8].copy_from_slice(&number.to_be_bytes());
        let asked = jiff::Timestamp::from_second(1_000).unwrap();
        let expires = jiff::Timestamp::from_second(2_000).unwrap();
        Open { id: ApprovalId(id), asked, expires, due, question: number }
    }

    fn outcome(approval_id: ApprovalId) -> Outcome {
        let decided = jiff::Timestamp::from_second(1_500).unwrap();
        Outcome { approval_id, decision: Decision::Approved, decided, by: None, reason: None, signature: None }
    }

    #[test]
    fn a_question_ends_once_and_its_outcome_is_remembered() {
        let (mut table, now) = (Table::<u64, u64>::default(), Instant::now());
        let question = open(1, now);
        let id = question.id;
        table.add(question);
        assert!(table.find(id).is_some() && table.outcome(id).is_none());
        assert_eq!(table.end(&outcome(id), |number| number + 1).map(|open| open.question), Some(1));
        assert!(table.end(&outcome(id), |number| *number).is_none());
        assert!(table.find(id).is_none() && table.is_empty());
        assert_eq!(table.outcome(id).map(|ended| ended.seen_by), Some(2));
    }

    #[test]
    fn its_time_is_over_by_either_clock() {
        let (mut table, now) = (Table::<u64, u64>::default(), Instant::now());
        let later = now + Duration::from_secs(60);
        let wall = |second| jiff::Timestamp::from_second(second).unwrap();
        table.add(open(1, later));
        assert!(table.due(now, wall(1_999)).is_empty());
        assert_eq!(table.due(now, wall(2_000)).len(), 1, "the wall clock says so");
        assert_eq!(table.due(later, wall(0)).len(), 1, "the wall clock was set back");
        assert_eq!(table.next(), Some(later));
    }

    #[test]
    fn only_the_latest_that_have_ended_are_remembered() {
        let (mut table, now) = (Table::<u64, u64>::default(), Instant::now());
        let ids: Vec<_> = (0..=DECIDED_MAX as u64).map(|number| open(number, now).id).collect();
        for (number, id) in (0_u64..).zip(&ids) {
            table.add(open(number, now));
            table.end(&outcome(*id), |number| *number);
        }
        assert!(table.outcome(ids[0]).is_none());
        assert!(table.outcome(ids[1]).is_some());
        assert_eq!(table.ended().count(), DECIDED_MAX);
    }
}
