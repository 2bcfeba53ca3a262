use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicUsize, Ordering};

use crossbeam_channel::{Receiver as Channel, Sender as ChannelSender, bounded};

use super::super::Offer;
use super::*;
use crate::client::connection::{Incoming, Receiver, Sender};
use crate::client::inbound::Inbound;
use crate::wire::frame::{Opener, Sealer};

/// Longer than anything here takes.
const PATIENCE: Duration = Duration::from_secs(20);

/// A connection whose other end is the test's.
struct Line {
    number: u64,
    sender: Sender,
    receiver: Receiver,
}

impl Line {
    fn new(number: u64) -> Self {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let sender = Sender::new(ours, Sealer::new(&[1; 32]).unwrap());
        Self { number, sender, receiver: Receiver::new(Inbound::new(theirs), Opener::new(&[1; 32]).unwrap()) }
    }

    fn send(&self, pool: &Pool, id: u64, offer: &Offer, key: Option<&str>, input: &[u8]) {
        self.send_as(pool, id, offer, key, input, "c");
    }

    fn send_as(&self, pool: &Pool, id: u64, offer: &Offer, key: Option<&str>, input: &[u8], credential: &str) {
        let asker = super::super::Asker { credential: credential.to_owned(), label: String::new() };
        let command = Command {
            name: offer.name.clone(),
            input: Some(input.to_vec()),
            asker,
            key: key.map(str::to_owned),
            deadline: None,
            result_max: 1_000,
            cancel: Arc::default(),
        };
        pool.take(Address { connection: self.number, id, to: self.sender.clone() }, command, &offer.doer);
    }

    /// The next answer: its id, and the result or the word and the text of the failure.
    fn answer(&mut self) -> (u64, Result<String, (String, String)>) {
        match self.receiver.next(Some(Instant::now() + PATIENCE)).unwrap() {
            Incoming::Answer { id, payload, .. } => (id, Ok(String::from_utf8(payload.unwrap()).unwrap())),
            Incoming::Failure { id, error } => (id, Err((error.data.unwrap().code, error.message))),
            other => panic!("{other:?}"),
        }
    }

    fn word(&mut self) -> (u64, String) {
        let (id, outcome) = self.answer();
        (id, outcome.unwrap_or_else(|(word, _)| word))
    }

    fn is_silent(&mut self) {
        assert!(self.receiver.next(Some(Instant::now() + Duration::from_millis(30))).is_err());
    }
}

/// A handler that begins, says so, and ends when it is let or cancelled.
struct Gate {
    offer: Offer,
    begun: Channel<()>,
    let_go: ChannelSender<()>,
    count: Arc<AtomicUsize>,
}

impl Gate {
    fn new() -> Self {
        let (begin, begun) = bounded(100);
        let (let_go, gone) = bounded::<()>(100);
        let count = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&count);
        let offer = Offer::new("gate", move |command| {
            counted.fetch_add(1, Ordering::SeqCst);
            begin.send(()).unwrap();
            loop {
                if gone.recv_timeout(Duration::from_millis(2)).is_ok() {
                    return Ok(command.input().unwrap().to_vec());
                }
                if let Some(why) = command.cancelled() {
                    return Err(format!("{why:?}"));
                }
            }
        });
        Self { offer, begun, let_go, count }
    }

    fn wait_begun(&self) {
        self.begun.recv_timeout(PATIENCE).unwrap();
    }

    fn open(&self) {
        self.let_go.send(()).unwrap();
    }
}

fn echo() -> Offer {
    Offer::new("echo", |command| Ok(command.input().unwrap().to_vec()))
}

fn failing(result: Result<&'static [u8], &'static str>) -> Offer {
    Offer::new("failing", move |_| result.map(<[u8]>::to_vec).map_err(str::to_owned))
}

#[test]
fn what_a_handler_returns_is_sent_and_what_cannot_be_is_its_failure() {
    let (pool, mut line) = (Pool::new(1), Line::new(1));
    line.send(&pool, 1, &echo(), None, b"{\"a\": 1}");
    assert_eq!(line.answer(), (1, Ok("{\"a\": 1}".to_owned())));
    line.send(&pool, 2, &failing(Err("no")), None, b"1");
    assert_eq!(line.answer(), (2, Err(("command-failed".to_owned(), "no".to_owned()))));
    for (id, result, word) in
        [(3, &b""[..], "invalid-payload"), (4, b"{} {}", "invalid-payload"), (5, &[b' '; 1_001], "invalid-result")]
    {
        line.send(&pool, id, &failing(Ok(result)), None, b"1");
        assert_eq!(line.word(), (id, word.to_owned()));
    }
    line.send(&pool, 6, &Offer::new("panics", |_| panic!("on purpose")), None, b"1");
    assert_eq!(line.answer(), (6, Err(("command-failed".to_owned(), "the handler panicked".to_owned()))));
    line.send(&pool, 7, &Offer::new("panics", |_| panic!("on purpose")).quick(), None, b"1");
    assert_eq!(line.word(), (7, "command-failed".to_owned()));
    line.send(&pool, 8, &echo(), None, b"1");
    assert_eq!(line.word(), (8, "1".to_owned()));
    pool.stop();
    pool.join(None);
}

#[test]
fn no_more_run_at_once_than_were_allowed_and_the_rest_waits_in_order() {
    let (pool, mut line, gate) = (Pool::new(2), Line::new(1), Gate::new());
    for id in 1..=4 {
        line.send(&pool, id, &gate.offer, None, b"1");
    }
    gate.wait_begun();
    gate.wait_begun();
    assert!(gate.begun.recv_timeout(Duration::from_millis(50)).is_err());
    (0..4).for_each(|_| gate.open());
    let mut ids: Vec<_> = (0..4).map(|_| line.word().0).collect();
    ids.sort_unstable();
    assert_eq!(ids, [1, 2, 3, 4]);
    pool.stop();
    pool.join(None);
    assert!(pool.0.table.lock().left.is_empty());

    let pool = Pool::new(1);
    (5..=20).for_each(|id| line.send(&pool, id, &echo(), None, b"1"));
    (5..=20).for_each(|id| assert_eq!(line.word(), (id, "1".to_owned())));
    pool.stop();
    pool.join(None);
}

#[test]
fn what_is_held_has_a_bound_also_for_what_runs_for_a_lost_connection() {
    let (pool, mut line, gate) = (Pool::new(1), Line::new(1), Gate::new());
    for id in 1..=HELD_MAX as u64 {
        line.send(&pool, id, &gate.offer, None, b"1");
    }
    line.send(&pool, 100, &gate.offer, None, b"1");
    assert_eq!(line.word(), (100, "queue-full".to_owned()));
    gate.wait_begun();
    pool.lose(1);
    assert_eq!(pool.0.table.lock().held(), 1, "what runs keeps its place");
    let mut next = Line::new(2);
    for id in 1..=HELD_MAX as u64 {
        next.send(&pool, id, &echo(), None, b"2");
    }
    assert_eq!(next.word(), (HELD_MAX as u64, "queue-full".to_owned()));
    gate.open();
    assert_eq!(next.word(), (1, "2".to_owned()));
    line.is_silent();
    (2..HELD_MAX as u64).for_each(|id| assert_eq!(next.word().0, id));
    assert_eq!((gate.count.load(Ordering::SeqCst), pool.0.table.lock().bytes), (1, 0));
    pool.stop();
    pool.join(None);
}

#[test]
fn a_cancelled_command_is_told_or_never_begins() {
    let (pool, mut line, gate) = (Pool::new(1), Line::new(1), Gate::new());
    line.send(&pool, 1, &gate.offer, None, b"1");
    line.send(&pool, 2, &gate.offer, None, b"1");
    gate.wait_begun();
    pool.cancel(1, 2);
    assert_eq!(line.word(), (2, "cancelled".to_owned()));
    pool.cancel(2, 1);
    pool.cancel(1, 9);
    pool.cancel(1, 1);
    assert_eq!(line.answer(), (1, Err(("command-failed".to_owned(), "Cancelled".to_owned()))));
    assert_eq!(gate.count.load(Ordering::SeqCst), 1);
    pool.stop();
    pool.join(None);
}

#[test]
fn after_the_stop_nothing_is_answered_and_what_runs_was_told() {
    let (pool, mut line, gate) = (Pool::new(1), Line::new(1), Gate::new());
    line.send(&pool, 1, &gate.offer, None, b"1");
    line.send(&pool, 2, &gate.offer, None, b"1");
    gate.wait_begun();
    pool.stop();
    pool.stop();
    line.send(&pool, 3, &echo(), None, b"1");
    pool.join(None);
    pool.join(None);
    line.is_silent();
    assert_eq!(gate.count.load(Ordering::SeqCst), 1);
}

#[test]
fn a_repeat_of_a_keyed_command_is_not_done_again_on_another_connection_either() {
    let (pool, mut line, gate) = (Pool::new(1), Line::new(1), Gate::new());
    line.send(&pool, 1, &gate.offer, Some("k"), b"7");
    gate.wait_begun();
    pool.lose(1);
    let mut next = Line::new(2);
    next.send(&pool, 1, &gate.offer, Some("k"), b"7");
    next.send(&pool, 2, &gate.offer, Some("k"), b"8");
    assert_eq!(next.word(), (2, "key-conflict".to_owned()));
    gate.open();
    assert_eq!(next.word(), (1, "7".to_owned()), "it waits with the first");
    next.send(&pool, 3, &gate.offer, Some("k"), b"7");
    assert_eq!(next.word(), (3, "7".to_owned()), "and gets what came of it");
    line.is_silent();
    assert_eq!(gate.count.load(Ordering::SeqCst), 1);
    next.send_as(&pool, 4, &echo(), Some("k"), b"9", "another");
    assert_eq!(next.word(), (4, "9".to_owned()));
    pool.stop();
    pool.join(None);
}

#[test]
fn who_cancels_one_of_two_equal_commands_cancels_it_for_itself_alone() {
    let (pool, mut line, gate) = (Pool::new(1), Line::new(1), Gate::new());
    line.send(&pool, 1, &gate.offer, Some("k"), b"7");
    line.send(&pool, 2, &gate.offer, Some("k"), b"7");
    line.send(&pool, 3, &gate.offer, Some("k"), b"7");
    gate.wait_begun();
    for id in [1, 3] {
        pool.cancel(1, id);
        assert_eq!(line.word(), (id, "cancelled".to_owned()));
    }
    gate.open();
    assert_eq!(line.word(), (2, "7".to_owned()));

    line.send(&pool, 4, &gate.offer, None, b"1");
    gate.wait_begun();
    line.send(&pool, 5, &gate.offer, Some("waits"), b"8");
    line.send(&pool, 6, &gate.offer, Some("waits"), b"8");
    pool.cancel(1, 5);
    assert_eq!(line.word(), (5, "cancelled".to_owned()));
    gate.open();
    gate.open();
    assert_eq!((line.word(), line.word()), ((4, "1".to_owned()), (6, "8".to_owned())));
    assert_eq!(gate.count.load(Ordering::SeqCst), 3);
    pool.stop();
    pool.join(None);
}

#[test]
fn a_command_that_was_refused_for_room_is_new_when_it_comes_again() {
    let (pool, mut line, gate) = (Pool::new(1), Line::new(1), Gate::new());
    for id in 1..=HELD_MAX as u64 {
        line.send(&pool, id, &gate.offer, None, b"1");
    }
    line.send(&pool, 40, &gate.offer, Some("k"), b"7");
    assert_eq!(line.word(), (40, "queue-full".to_owned()));
    (0..HELD_MAX).for_each(|_| gate.open());
    (0..HELD_MAX).for_each(|_| drop(line.word()));
    line.send(&pool, 41, &echo(), Some("k"), b"7");
    assert_eq!(line.word(), (41, "7".to_owned()));
    pool.stop();
    pool.join(None);
}
