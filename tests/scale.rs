//! Many at once and many in a row: everybody is served, what is held stays within its bounds, and nothing is left.

use std::collections::HashSet;
use std::io::Write;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::support::peers::{Caller, Operator, Producer, Reply, registration, reply_to};
use crate::support::quiet::Quiet;
use crate::support::threads;
use crate::support::wait::until;
use crate::support::wire::{Identity, Peer, Refused};

const SESSIONS: usize = 1_024;
const CONNECTIONS: usize = 1_280;
/// Of those connections, kept for operators.
const OPERATORS: usize = 8;

/// Every session in the list, page by page.
fn listed(caller: &mut Peer) -> Vec<Value> {
    let (mut rows, mut params) = (Vec::new(), json!({}));
    loop {
        let done = caller.call("session.list", &params, None).unwrap();
        rows.extend(serde_json::from_slice::<Vec<Value>>(&done.payload.unwrap()).unwrap());
        match done.result.get("next") {
            Some(next) => params = json!({ "page": next }),
            None => return rows,
        }
    }
}

/// Several at a time: two threads would leave the daemon idle between two handshakes.
fn connect_all(identity: &Identity, count: usize) -> Vec<Peer> {
    let connecting: Vec<_> = (0..4)
        .map(|part| {
            let identity = identity.clone();
            threads::spawn("connect", move || {
                (part..count).step_by(4).map(|_| Peer::connect(&identity)).collect::<Vec<_>>()
            })
        })
        .collect();
    connecting.into_iter().flat_map(|thread| thread.join().unwrap()).collect()
}

#[test]
fn a_thousand_and_more_sessions_and_connections_are_served_at_once_and_the_next_one_is_told_that_it_is_busy() {
    let mut quiet = Quiet::new(&[]);
    let (producer, caller) = (Identity::of(&quiet.place, "producer"), Identity::of(&quiet.place, "caller"));
    let mut producers = connect_all(&producer, SESSIONS);
    let ids: HashSet<String> = producers
        .iter_mut()
        .enumerate()
        .map(|(number, peer)| {
            let done = peer.call("session.register", &registration(&format!("window {number}"), 1), None).unwrap();
            done.result["session_id"].as_str().unwrap().to_owned()
        })
        .collect();
    assert_eq!(ids.len(), SESSIONS);
    let mut callers = connect_all(&caller, CONNECTIONS - OPERATORS - SESSIONS);
    let refused = Peer::hello(&caller).err();
    assert!(matches!(&refused, Some(Refused::Sealed(code)) if code == "busy"), "{refused:?}");
    Operator::connect(&quiet.place).status();

    let rows = listed(&mut callers[0]);
    let found: HashSet<_> = rows.iter().map(|row| row["session_id"].as_str().unwrap().to_owned()).collect();
    assert_eq!((rows.len(), &found), (SESSIONS, &ids));
    for (number, peer) in producers.iter_mut().enumerate().step_by(97) {
        let sending = json!({"selector": {"title": format!("window {number}")}, "command": "echo"});
        let asker = &mut callers[number % 7];
        let id = asker.request("session.send", &sending, Some(b"1"));
        let asked = std::iter::from_fn(|| peer.next()).find(|message| message.method() == "command").unwrap();
        reply_to(&peer.outgoing(), asked.id().unwrap(), Reply::Result(asked.payload));
        assert_eq!(asker.answer(id).unwrap().payload.as_deref(), Some(&b"1"[..]));
    }
    assert_eq!(quiet.operator.used("sessions"), SESSIONS as u64);
    let more = producers[0].call("session.register", &registration("again", 1), None).unwrap_err();
    assert_eq!(more.code, "already-registered");
    drop((producers, callers));
    quiet.is_as_before();
}

#[test]
fn a_daemon_with_idle_sessions_hardly_wakes() {
    let mut quiet = Quiet::new(&[]);
    let producers: Vec<_> = (0..50).map(|number| Producer::start(&quiet.place, &format!("idle {number}"))).collect();
    quiet.operator.status();
    let wakes = || -> u64 {
        let tasks = std::fs::read_dir(format!("/proc/{}/task", quiet.process.0)).unwrap();
        let status = tasks.filter_map(|task| std::fs::read_to_string(task.unwrap().path().join("status")).ok());
        let counted = |status: String| -> Option<u64> {
            status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"))?.trim().parse().ok()
        };
        status.filter_map(counted).sum()
    };
    let (before, ticks, begun) = (wakes(), quiet.process.ticks(), Instant::now());
    // What does not happen can only be seen by waiting.
    std::thread::sleep(Duration::from_secs(3));
    let (woken, worked, seconds) = (wakes() - before, quiet.process.ticks() - ticks, begun.elapsed().as_secs_f64());
    assert!(
        (woken as f64) < 5.0 * seconds,
        "{woken} wake-ups in {seconds:.1} s with {} idle sessions",
        producers.len()
    );
    assert!(worked <= 5, "{worked} hundredths of a second of work in {seconds:.1} s");
    drop(producers);
    quiet.is_as_before();
}

/// Commands through one session from several callers, each with several open: how many were answered as they should be.
fn pour(quiet: &Quiet, producer: &Producer, callers: usize, each: usize) {
    const OPEN: usize = 8;
    let pouring: Vec<_> = (0..callers)
        .map(|number| {
            let (mut caller, session) = (Caller::connect(&quiet.place), producer.session.clone());
            threads::spawn("pour", move || {
                let mut open = std::collections::VecDeque::new();
                for turn in 0..each {
                    if open.len() == OPEN {
                        let (id, text): (u64, String) = open.pop_front().unwrap();
                        assert_eq!(caller.answer(id).unwrap().payload, Some(text.into_bytes()));
                    }
                    let text = format!("\"{number}/{turn}\"");
                    open.push_back((caller.start(&session, "echo", Some(text.as_bytes())), text));
                }
                for (id, text) in open {
                    assert_eq!(caller.answer(id).unwrap().payload, Some(text.into_bytes()));
                }
            })
        })
        .collect();
    for thread in pouring {
        thread.join().unwrap();
    }
}

/// Pours in rounds and looks at memory, descriptors and the log after each.
fn stays_flat(rounds: usize, each: usize) {
    let mut quiet = Quiet::new(&[]);
    let identity = Identity::of(&quiet.place, "producer");
    // Answers without keeping what it has seen.
    let producer = Producer::custom(&identity, &registration("well", 16), |heard| match heard {
        crate::support::peers::Heard::Command(command) => Reply::Result(command.input.clone()),
        crate::support::peers::Heard::Answer => Reply::Nothing,
    });
    pour(&quiet, &producer, 8, each);
    let (resident, descriptors) = (quiet.process.resident_kib(), quiet.process.descriptors());
    let log = quiet.place.log_text().len();
    for round in 1..rounds {
        pour(&quiet, &producer, 8, each);
        let grown = quiet.process.resident_kib().saturating_sub(resident);
        assert!(grown < 2 * 1024, "{grown} KiB more after {round} more rounds of {} commands", 8 * each);
        until("every descriptor is closed again", || (quiet.process.descriptors() <= descriptors).then_some(()));
    }
    let said = quiet.place.log_text().len() - log;
    assert!(said < 64 * 1024, "the log grew by {said} bytes with {} commands", (rounds - 1) * 8 * each);
    let audit = std::fs::metadata(quiet.place.path().join("audit.ndjson")).unwrap().len();
    assert!(audit < 256 * 1024, "commands have no line, and the audit has {audit} bytes");
    let last = quiet.process.resident_kib();
    let text =
        format!("{} commands: {resident} KiB resident, then {last} KiB; {said} bytes of log\n", rounds * 8 * each);
    std::io::stdout().write_all(text.as_bytes()).unwrap();
    drop(producer);
    quiet.is_as_before();
}

#[test]
fn memory_descriptors_and_log_stay_flat_while_commands_pass() {
    stays_flat(4, 1_000);
}

#[test]
#[ignore = "minutes long: make soak"]
fn soak_memory_descriptors_and_log_stay_flat_over_a_million_commands() {
    stays_flat(25, 5_000);
}
