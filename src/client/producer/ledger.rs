//! Which keyed commands were done already (docs/protocol.md, "command"), so that a repeat does nothing twice. Pure: the
//! time comes from outside.
//!
//! Owns: what is known of each key of each credential, for as long as it is promised. Invariants: a key has one command
//! and one outcome; what is remembered has a bound, and at it newcomers are refused, nothing that is known is forgotten.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::limits::{KEPT_RESULTS_MAX_BYTES, KEY_KEPT_MS, KEYS_KEPT_MAX};
use crate::wire::transcript::{Hash, sha256};

/// How long a key is known, from its first command on.
const KEPT: Duration = Duration::from_millis(KEY_KEPT_MS);

/// What came of a command.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Outcome {
    /// One JSON text.
    Done(Vec<u8>),
    /// A word and a sentence.
    Failed(&'static str, String),
}

impl Outcome {
    fn bytes(&self) -> usize {
        match self {
            Self::Done(result) => result.len(),
            Self::Failed(_, message) => message.len(),
        }
    }
}

/// A key's first command, until it is settled.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Ticket(u64);

/// What a keyed command is.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Seen {
    /// New: it is to be done, and settled.
    New(Ticket),
    /// A repeat of one that is under way: who asked waits with it.
    Joined,
    /// A repeat: this came of it.
    Known(Arc<Outcome>),
    /// A repeat of one whose outcome was too large to be kept.
    NotKept,
    /// The key belongs to another command or input.
    Conflict,
    /// No more keys can be remembered now.
    Full,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Name {
    credential: String,
    key: String,
}

struct Entry<W> {
    name: Name,
    digest: Hash,
    begun: Instant,
    state: State<W>,
}

enum State<W> {
    Running(Vec<W>),
    Done(Arc<Outcome>),
    TooLarge,
}

/// `W` is who waits.
pub(super) struct Ledger<W> {
    /// In the order in which they began.
    entries: BTreeMap<Ticket, Entry<W>>,
    tickets: HashMap<Name, Ticket>,
    last: u64,
    bytes: usize,
}

impl<W> Default for Ledger<W> {
    fn default() -> Self {
        Self { entries: BTreeMap::new(), tickets: HashMap::new(), last: 0, bytes: 0 }
    }
}

/// What makes a repeat the same.
pub(super) fn digest(command: &str, input: Option<&[u8]>) -> Hash {
    sha256(&[command.as_bytes(), b"\n", input.unwrap_or_default()])
}

impl<W> Ledger<W> {
    /// A keyed command comes. `waiter` is kept with one that is joined.
    pub fn see(&mut self, now: Instant, credential: &str, key: &str, digest: Hash, waiter: W) -> Seen {
        self.expire(now);
        let name = Name { credential: credential.to_owned(), key: key.to_owned() };
        if let Some(entry) = self.tickets.get(&name).and_then(|ticket| self.entries.get_mut(ticket)) {
            return match &mut entry.state {
                _ if entry.digest != digest => Seen::Conflict,
                State::Running(waiters) => {
                    waiters.push(waiter);
                    Seen::Joined
                }
                State::Done(outcome) => Seen::Known(Arc::clone(outcome)),
                State::TooLarge => Seen::NotKept,
            };
        }
        if self.entries.len() >= KEYS_KEPT_MAX {
            return Seen::Full;
        }
        self.last += 1;
        let ticket = Ticket(self.last);
        self.tickets.insert(name.clone(), ticket);
        self.entries.insert(ticket, Entry { name, digest, begun: now, state: State::Running(Vec::new()) });
        Seen::New(ticket)
    }

    /// Whether a command of this key is under way.
    pub fn is_running(&self, credential: &str, key: &str) -> bool {
        let name = Name { credential: credential.to_owned(), key: key.to_owned() };
        let entry = self.tickets.get(&name).and_then(|ticket| self.entries.get(ticket));
        entry.is_some_and(|entry| matches!(entry.state, State::Running(_)))
    }

    /// A command is done; who waited with it.
    pub fn settle(&mut self, ticket: Ticket, outcome: &Arc<Outcome>) -> Vec<W> {
        let fits = self.bytes + outcome.bytes() <= KEPT_RESULTS_MAX_BYTES;
        let Some(entry) = self.entries.get_mut(&ticket) else { return Vec::new() };
        let settled = if fits { State::Done(Arc::clone(outcome)) } else { State::TooLarge };
        match std::mem::replace(&mut entry.state, settled) {
            State::Running(waiters) => {
                if fits {
                    self.bytes += outcome.bytes();
                }
                waiters
            }
            was => {
                entry.state = was;
                Vec::new()
            }
        }
    }

    /// A command never began; who waits for it. Without any it is as if it had not come.
    pub fn withdraw(&mut self, ticket: Ticket) -> Option<W> {
        let entry = self.entries.get_mut(&ticket)?;
        if let State::Running(waiters) = &mut entry.state {
            if !waiters.is_empty() {
                return Some(waiters.remove(0));
            }
        }
        self.remove(ticket);
        None
    }

    /// Whether somebody waits with a command beside who sent it.
    pub fn has_waiters(&self, ticket: Ticket) -> bool {
        let state = self.entries.get(&ticket).map(|entry| &entry.state);
        matches!(state, Some(State::Running(waiters)) if !waiters.is_empty())
    }

    /// How many wait with others' commands.
    pub fn waiters(&self) -> usize {
        let of = |entry: &Entry<W>| if let State::Running(waiters) = &entry.state { waiters.len() } else { 0 };
        self.entries.values().map(of).sum()
    }

    /// Takes out those that wait no more.
    pub fn take_waiters(&mut self, is_gone: impl Fn(&W) -> bool) -> Vec<W> {
        let mut gone = Vec::new();
        for entry in self.entries.values_mut() {
            if let State::Running(waiters) = &mut entry.state {
                let (out, rest) = std::mem::take(waiters).into_iter().partition(&is_gone);
                *waiters = rest;
                let out: Vec<W> = out;
                gone.extend(out);
            }
        }
        gone
    }

    fn expire(&mut self, now: Instant) {
        let old = self.entries.iter().take_while(|(_, entry)| now.saturating_duration_since(entry.begun) >= KEPT);
        let old = old.filter(|(_, entry)| !matches!(entry.state, State::Running(_)));
        let old: Vec<_> = old.map(|(ticket, _)| *ticket).collect();
        old.into_iter().for_each(|ticket| self.remove(ticket));
    }

    fn remove(&mut self, ticket: Ticket) {
        let Some(entry) = self.entries.remove(&ticket) else { return };
        self.tickets.remove(&entry.name);
        if let State::Done(outcome) = entry.state {
            self.bytes -= outcome.bytes();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Test {
        ledger: Ledger<u32>,
        now: Instant,
    }

    impl Test {
        fn new() -> Self {
            Self { ledger: Ledger::default(), now: Instant::now() }
        }

        fn see(&mut self, key: &str, input: &[u8], waiter: u32) -> Seen {
            self.ledger.see(self.now, "c", key, digest("reload", Some(input)), waiter)
        }

        fn new_one(&mut self, key: &str) -> Ticket {
            match self.see(key, b"1", 0) {
                Seen::New(ticket) => ticket,
                other => panic!("{other:?}"),
            }
        }
    }

    fn done(bytes: usize) -> Arc<Outcome> {
        Arc::new(Outcome::Done(vec![b' '; bytes]))
    }

    #[test]
    fn a_repeat_gets_the_first_outcome_a_failure_too() {
        let mut test = Test::new();
        for outcome in [done(3), Arc::new(Outcome::Failed("command-failed", "no".into()))] {
            let key = format!("{outcome:?}");
            let ticket = test.new_one(&key);
            assert!(test.ledger.settle(ticket, &outcome).is_empty());
            assert_eq!(test.see(&key, b"1", 1), Seen::Known(outcome));
        }
    }

    #[test]
    fn a_repeat_of_one_that_is_under_way_waits_with_it() {
        let mut test = Test::new();
        let ticket = test.new_one("k");
        assert!(!test.ledger.has_waiters(ticket));
        assert_eq!((test.see("k", b"1", 1), test.see("k", b"1", 2)), (Seen::Joined, Seen::Joined));
        assert!(test.ledger.has_waiters(ticket) && test.ledger.waiters() == 2);
        assert_eq!(test.ledger.take_waiters(|waiter| *waiter == 1), [1]);
        assert_eq!(test.ledger.settle(ticket, &done(1)), [2]);
        assert_eq!(test.ledger.settle(ticket, &done(9)), [] as [u32; 0]);
        assert_eq!(test.see("k", b"1", 3), Seen::Known(done(1)));
    }

    #[test]
    fn the_same_key_with_another_input_or_command_is_a_conflict_but_not_of_another_credential() {
        let mut test = Test::new();
        let ticket = test.new_one("k");
        assert_eq!(test.see("k", b"2", 1), Seen::Conflict);
        test.ledger.settle(ticket, &done(1));
        assert_eq!(test.see("k", b"2", 1), Seen::Conflict);
        assert_eq!(test.ledger.see(test.now, "c", "k", digest("other", Some(b"1")), 1), Seen::Conflict);
        assert!(matches!(test.ledger.see(test.now, "d", "k", digest("other", None), 1), Seen::New(_)));
    }

    #[test]
    fn a_key_is_known_for_ten_minutes_and_longer_while_its_command_runs() {
        let mut test = Test::new();
        let (settled, running) = (test.new_one("settled"), test.new_one("running"));
        test.ledger.settle(settled, &done(5));
        test.now += KEPT - Duration::from_millis(1);
        assert_eq!(test.see("settled", b"1", 1), Seen::Known(done(5)));
        test.now += Duration::from_millis(1);
        assert!(matches!(test.see("settled", b"2", 1), Seen::New(_)));
        assert_eq!(test.see("running", b"1", 1), Seen::Joined);
        test.ledger.settle(running, &done(1));
        assert!(matches!(test.see("running", b"1", 1), Seen::New(_)));
        assert_eq!(test.ledger.bytes, 0);
    }

    #[test]
    fn at_the_bound_on_keys_newcomers_are_refused_and_nothing_is_forgotten() {
        let mut test = Test::new();
        for number in 0..KEYS_KEPT_MAX {
            let ticket = test.new_one(&number.to_string());
            test.ledger.settle(ticket, &done(1));
        }
        assert_eq!(test.see("one more", b"1", 1), Seen::Full);
        assert_eq!(test.see("0", b"1", 1), Seen::Known(done(1)));
        test.now += KEPT;
        test.new_one("one more");
    }

    #[test]
    fn an_outcome_that_does_not_fit_is_not_kept_and_its_repeat_hears_so() {
        let mut test = Test::new();
        let (large, larger, small) = (test.new_one("a"), test.new_one("b"), test.new_one("c"));
        test.ledger.settle(large, &done(KEPT_RESULTS_MAX_BYTES - 10));
        assert_eq!(test.see("b", b"1", 7), Seen::Joined);
        assert_eq!(test.ledger.settle(larger, &done(11)), [7], "who waits gets it all the same");
        test.ledger.settle(small, &done(10));
        assert_eq!(test.see("b", b"1", 1), Seen::NotKept);
        assert_eq!(test.see("c", b"1", 1), Seen::Known(done(10)));
        test.now += KEPT;
        test.new_one("a");
        assert_eq!(test.ledger.bytes, 0);
    }

    #[test]
    fn one_that_never_began_is_handed_to_who_waits_or_forgotten() {
        let mut test = Test::new();
        let ticket = test.new_one("k");
        test.see("k", b"1", 1);
        test.see("k", b"1", 2);
        assert_eq!(test.ledger.withdraw(ticket), Some(1));
        assert_eq!(test.ledger.withdraw(ticket), Some(2));
        assert_eq!(test.ledger.withdraw(ticket), None);
        assert_eq!(test.ledger.withdraw(ticket), None);
        assert!(matches!(test.see("k", b"other", 3), Seen::New(_)));
    }
}
