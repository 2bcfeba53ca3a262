//! Daemons and sessions that are killed at random moments while commands pass under keys: none takes effect twice, each ends
//! once, every session keeps its id, and nothing is left over.

use std::collections::HashMap;
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::thread::JoinHandle;

use nix::sys::signal::Signal;
use parking_lot::{Condvar, Mutex};
use serde_json::{Value, json};

use crate::support::daemon::Place;
use crate::support::peers::{Command, Lease, Operator, Reply, reply_to};
use crate::support::process::Process;
use crate::support::threads;
use crate::support::wait::until;
use crate::support::wire::{Answer, Identity, Peer};

const KILLS: usize = 200;
const SESSIONS: usize = 4;
const SENDERS: usize = 16;
/// Commands that every sender ends between two kills, so that no command meets two of them.
const BETWEEN: usize = 2;
/// Commands that a sender may begin for each kill: a session remembers no more than 1,024 keys.
const EACH: usize = 6;

/// Random moments, the same in each run: xorshift64.
struct Dice(u64);

impl Dice {
    fn below(&mut self, bound: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        usize::try_from(self.0 % bound as u64).unwrap()
    }
}

/// A program with a session. Its lease outlives it; what it knows of keys does not.
struct Program {
    lease: Lease,
    socket: Mutex<Option<Arc<UnixStream>>>,
    is_over: AtomicBool,
    /// How often each command took effect, by its key.
    effects: Arc<Mutex<HashMap<String, usize>>>,
}

impl Program {
    fn run(&self, identity: &Identity) {
        while !self.is_over.load(SeqCst) {
            // A new life: it remembers nothing.
            let mut known: HashMap<String, Vec<u8>> = HashMap::new();
            while self.connect(identity, &mut known) && !self.is_over.load(SeqCst) {}
        }
    }

    /// Serves one connection; whether the program lives on.
    fn connect(&self, identity: &Identity, known: &mut HashMap<String, Vec<u8>>) -> bool {
        let Ok(mut peer) = Peer::try_hello(identity) else {
            std::thread::yield_now();
            return true;
        };
        *self.socket.lock() = Some(Arc::clone(&peer.stream.socket));
        // Whoever ends it has seen the socket, or is seen here.
        if !self.is_over.load(SeqCst) {
            self.serve(&mut peer, known);
        }
        // Its own end, or the daemon's: after the one it has forgotten everything. No descriptor stays behind.
        self.socket.lock().take().is_some()
    }

    /// Until the connection ends.
    fn serve(&self, peer: &mut Peer, known: &mut HashMap<String, Vec<u8>>) {
        let mut params = self.lease.registration();
        params["lease_signature"] = json!(self.lease.signature(peer));
        params["max_in_flight"] = json!(4);
        let Some(id) = peer.outgoing().lock().request("session.register", &params, None) else { return };
        match peer.try_answer(id) {
            Some(Ok(done)) => assert_eq!(done.result["session_id"], json!(self.lease.id())),
            // The daemon has not seen yet that the last connection is gone, or went itself.
            Some(Err(refused)) => panic!("a session was not given back: {refused:?}"),
            None => return,
        }
        while let Some(message) = peer.next() {
            if message.method() != "command" {
                continue;
            }
            let command = Command::of(&message);
            let key = message.header["params"]["key"].as_str().unwrap().to_owned();
            let result = known.entry(key.clone()).or_insert_with(|| {
                *self.effects.lock().entry(key.clone()).or_default() += 1;
                format!("\"did {key}\"").into_bytes()
            });
            reply_to(&peer.outgoing(), command.id, Reply::Result(Some(result.clone())));
        }
    }

    /// Ends its life at once, as kill -9 does.
    fn kill(&self) {
        if let Some(socket) = self.socket.lock().take() {
            let _gone_already = socket.shutdown(Shutdown::Both);
        }
    }
}

/// How a command ended for whoever sent it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum End {
    Done,
    /// It may have taken effect; a repeat is told the same.
    Unknown,
}

/// How many kills there were, for those who wait for the next.
#[derive(Default)]
struct Rounds {
    /// `None` once it is over.
    count: Mutex<Option<usize>>,
    changed: Condvar,
}

impl Rounds {
    fn set(&self, count: Option<usize>) {
        *self.count.lock() = count;
        self.changed.notify_all();
    }

    /// Waits until so many commands may have begun; `false` once it is over.
    fn may_begin(&self, number: usize) -> bool {
        let mut count = self.count.lock();
        while count.is_some_and(|count| number >= (count + 1) * EACH) {
            self.changed.wait(&mut count);
        }
        count.is_some()
    }
}

struct Sender {
    ends: Vec<(String, End)>,
    done: Arc<AtomicUsize>,
    rounds: Arc<Rounds>,
}

impl Sender {
    fn run(mut self, name: usize, identity: &Identity, sessions: &[String]) -> Vec<(String, End)> {
        let mut peer = None;
        for number in 0.. {
            if !self.rounds.may_begin(number) {
                break;
            }
            let key = format!("{name}-{number}");
            let end = send(&mut peer, identity, &sessions[(name + number) % sessions.len()], &key);
            self.ends.push((key, end));
            self.done.fetch_add(1, SeqCst);
        }
        self.ends
    }
}

/// Sends a command under its key until its end is known.
fn send(peer: &mut Option<Peer>, identity: &Identity, session: &str, key: &str) -> End {
    let params = json!({"selector": {"session": session}, "command": "echo", "key": key, "deadline_ms": 20_000});
    let mut unknown = 0;
    loop {
        let Some(there) = peer else {
            *peer = Peer::try_hello(identity).ok();
            std::thread::yield_now();
            continue;
        };
        let asked = there.outgoing().lock().request("session.send", &params, None);
        let answer: Option<Answer> = asked.and_then(|id| there.try_answer(id));
        match answer {
            // The daemon is gone.
            None => *peer = None,
            Some(Ok(done)) => {
                assert_eq!(done.payload, Some(format!("\"did {key}\"").into_bytes()));
                return End::Done;
            }
            Some(Err(failure)) => match failure.told() {
                ("recovering" | "session-not-found", "not-delivered") => std::thread::yield_now(),
                ("session-lost" | "superseded" | "shutting-down", "not-delivered") => {}
                // Told again, it is the end: the daemon never sends it again.
                ("session-lost" | "superseded", "unknown") if unknown == 0 => unknown += 1,
                ("session-lost" | "superseded", "unknown") => return End::Unknown,
                other => panic!("{key} ended as {other:?}: {}", failure.error),
            },
        }
    }
}

#[test]
fn no_command_under_a_key_takes_effect_twice_whatever_is_killed_and_each_ends_once() {
    let mut place = Place::with_daemon(&[]);
    let effects: Arc<Mutex<HashMap<String, usize>>> = Arc::default();
    let programs: Vec<Arc<Program>> = (0..SESSIONS)
        .map(|_| {
            let (lease, effects) = (Lease::random(), Arc::clone(&effects));
            Arc::new(Program { lease, socket: Mutex::default(), is_over: AtomicBool::new(false), effects })
        })
        .collect();
    let (producer, caller) = (Identity::of(&place, "producer"), Identity::of(&place, "caller"));
    let running: Vec<JoinHandle<()>> = programs
        .iter()
        .map(|program| {
            let (program, identity) = (Arc::clone(program), producer.clone());
            threads::spawn("program", move || program.run(&identity))
        })
        .collect();
    let ids: Vec<String> = programs.iter().map(|program| program.lease.id()).collect();
    let rounds = Arc::new(Rounds::default());
    rounds.set(Some(0));
    let mut counters = Vec::new();
    let senders: Vec<JoinHandle<Vec<(String, End)>>> = (0..SENDERS)
        .map(|name| {
            let (identity, ids) = (caller.clone(), ids.clone());
            let sender = Sender { ends: Vec::new(), done: Arc::default(), rounds: Arc::clone(&rounds) };
            counters.push(Arc::clone(&sender.done));
            threads::spawn("sender", move || sender.run(name, &identity, &ids))
        })
        .collect();

    let mut dice = Dice(0x5eed);
    for round in 1..=KILLS {
        // What was under way at the last kill ends before the next. Only then may more begin: who had no more to begin has
        // now.
        let before: Vec<usize> = counters.iter().map(|counter| counter.load(SeqCst)).collect();
        rounds.set(Some(round));
        until("every sender goes on", || {
            counters.iter().zip(&before).all(|(now, then)| now.load(SeqCst) >= then + BETWEEN).then_some(())
        });
        for _ in 0..dice.below(2_000) {
            std::thread::yield_now();
        }
        if dice.below(2) == 0 {
            programs[dice.below(SESSIONS)].kill();
        } else {
            place.signal_daemon(Signal::SIGKILL);
            assert_eq!(place.wait_daemon(), 137);
            place.start_daemon(&[]);
        }
    }
    rounds.set(None);
    let ends: Vec<_> = senders.into_iter().flat_map(|sender| sender.join().unwrap()).collect();

    let mut operator = Operator::connect(&place);
    let rows = until("every session is back", || {
        let rows = operator.done("session.list", &json!({})).payload.unwrap();
        let rows: Vec<Value> = serde_json::from_slice(&rows).unwrap();
        (rows.len() >= SESSIONS).then_some(rows)
    });
    assert_eq!(rows.len(), SESSIONS, "{rows:?}");
    assert!(rows.iter().all(|row| ids.contains(&row["session_id"].as_str().unwrap().to_owned())), "under its id");
    for program in &programs {
        program.is_over.store(true, SeqCst);
        program.kill();
    }
    running.into_iter().for_each(|thread| thread.join().unwrap());

    let effects = effects.lock();
    let twice: Vec<_> = effects.iter().filter(|(_, count)| **count > 1).collect();
    assert!(twice.is_empty(), "took effect more than once: {twice:?}");
    for (key, end) in &ends {
        assert!(*end != End::Done || effects.contains_key(key), "{key} was told as done and never was");
    }
    let known = ends.iter().filter(|(_, end)| *end == End::Done).count();
    assert!(known > KILLS * BETWEEN, "{known} of {} commands were done", ends.len());
    until("everything is given back", || {
        let status = operator.status();
        let held =
            |name: &str| status["accounts"].as_array().unwrap().iter().any(|a| a["name"] == name && a["used"] != 0);
        let left = ["connections", "sessions", "queued", "queued-bytes", "inbound-bytes", "outbound-bytes"]
            .into_iter()
            .any(held);
        (!left && status["pending"] == 0).then_some(())
    });
    let process = Process(place.pid());
    until("threads are gone", || (process.threads() <= 12).then_some(()));
    until("descriptors are closed", || (process.descriptors() <= 23).then_some(()));
}
