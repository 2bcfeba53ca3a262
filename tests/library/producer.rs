//! A session of a program: what becomes of it and of its commands.

use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use usher::client::{
    CallError, ConnectionState, Delivery, Description, Offer, Producer, StartDaemon, Target, Update, Why,
};

use super::super::support::daemon::Place;
use super::super::support::threads;
use super::super::support::wait::{PATIENCE, until};
use super::{LONG, caller, open, target, titled, wait_for};

fn echo() -> Offer {
    Offer::new("echo", |command| Ok(command.input().unwrap_or(b"null").to_vec()))
}

/// A command that runs until the daemon or the producer says that nobody waits, and tells why; and what tells that it has
/// begun. The deadline alone does not end it: its answer would race with the daemon's.
fn hanging() -> (Offer, Receiver<Why>, Receiver<()>) {
    let (begin, begun): (SyncSender<()>, _) = sync_channel(100);
    let (tell, told) = sync_channel(100);
    let offer = Offer::new("hang", move |command| {
        begin.send(()).unwrap();
        let (wake, woken) = sync_channel(10);
        command.on_cancel(move || wake.send(()).unwrap());
        woken.recv_timeout(PATIENCE).unwrap();
        tell.send(command.cancelled().unwrap()).unwrap();
        Ok(br#""late""#.to_vec())
    });
    (offer, told, begun)
}

#[test]
fn a_program_is_a_session_and_its_handlers_get_every_byte() {
    let place = Place::with_daemon(&[]);
    let who = Offer::new("who", |command| {
        assert!(command.deadline().unwrap() > Instant::now());
        Ok(format!("{:?}", command.caller().label).into_bytes())
    });
    let description = Description::new("w").label("k", "v").offer(echo().description("as it came")).offer(who.quick());
    let producer = open(&place, description.snapshot(br#"{"n": 1.0e0}"#.to_vec()));
    let caller = caller(&place);
    let (session, snapshot) = caller.get(&titled("w")).unwrap();
    assert_eq!((session.session_id, session.pid), (producer.session_id(), std::process::id()));
    assert_eq!(session.commands[0].description.as_deref(), Some("as it came"));
    assert_eq!(snapshot.unwrap(), br#"{"n": 1.0e0}"#);
    for input in [&br#"{"a": 1.0e0,"a":2}"#[..], b" [1,\n2] "] {
        assert_eq!(caller.send(&titled("w"), "echo", Some(input), LONG).unwrap().result.unwrap(), input);
    }
    assert_eq!(caller.send(&titled("w"), "echo", None, LONG).unwrap().result.unwrap(), b"null");
    assert_eq!(caller.send(&titled("w"), "who", None, LONG).unwrap().result.unwrap(), b"\"caller\"");
    assert_eq!(caller.send(&titled("w"), "other", None, LONG).unwrap_err().code(), "command-not-found");
}

#[test]
fn a_handler_that_panics_fails_its_command_and_nothing_else() {
    let place = Place::with_daemon(&[]);
    let panics = Offer::new("panics", |_| panic!("on purpose"));
    let _producer = open(&place, Description::new("w").offer(panics).offer(echo()));
    let caller = caller(&place);
    let error = caller.send(&titled("w"), "panics", None, LONG).unwrap_err();
    assert_eq!((error.code(), error.delivery()), ("command-failed", Delivery::Delivered));
    assert_eq!(caller.send(&titled("w"), "echo", Some(b"1"), LONG).unwrap().result.unwrap(), b"1");
}

#[test]
fn a_session_comes_back_to_the_next_daemon_as_it_was_last() {
    let mut place = Place::with_daemon(&[]);
    let producer = open(&place, Description::new("old").offer(echo()).snapshot(b"1".to_vec()));
    let changes = Arc::new(Mutex::new(Vec::new()));
    let heard = Arc::clone(&changes);
    let _following = producer.follow(move |change| heard.lock().unwrap().push(change.state));
    place.signal_daemon(Signal::SIGKILL);
    place.wait_daemon();
    wait_for(&producer, ConnectionState::Waiting);
    let other = Offer::new("other", |_| Ok(b"2".to_vec()));
    producer.update(Update::new().title("new").offers(vec![other])).unwrap();
    producer.snapshot(b"2".to_vec()).unwrap();
    assert!(producer.update(Update::new().title("")).is_err() && producer.snapshot(b"{".to_vec()).is_err());
    producer.retry().unwrap();
    wait_for(&producer, ConnectionState::Open);
    let caller = caller(&place);
    let (session, snapshot) = caller.get(&titled("new")).unwrap();
    assert_eq!((session.session_id, snapshot.unwrap().as_slice()), (producer.session_id(), &b"2"[..]));
    assert_eq!(caller.send(&titled("new"), "other", None, LONG).unwrap().result.unwrap(), b"2");
    producer.stop();
    let seen = changes.lock().unwrap().clone();
    assert_eq!(seen.first(), Some(&ConnectionState::Waiting), "{seen:?}");
    assert_eq!(seen.last(), Some(&ConnectionState::Stopped), "{seen:?}");
}

#[test]
fn of_many_snapshots_the_last_one_arrives_and_updates_are_seen_at_once() {
    let place = Place::with_daemon(&[]);
    let producer = open(&place, Description::new("w").offer(echo()));
    for number in 0..500 {
        producer.snapshot(format!("{number}").into_bytes()).unwrap();
    }
    producer.update(Update::new().labels([("k".to_owned(), "v".to_owned())].into())).unwrap();
    let caller = caller(&place);
    until("the last snapshot and the label are there", || {
        let (session, snapshot) = caller.get(&titled("w")).unwrap();
        (snapshot.as_deref() == Some(b"499") && session.labels.get("k").is_some_and(|label| label == "v")).then_some(())
    });
}

#[test]
fn an_update_that_the_daemon_alone_refuses_is_told_and_the_session_stays() {
    let place = Place::with_daemon(&["--limit", "snapshot-bytes=10"]);
    let producer = open(&place, Description::new("w").snapshot(b"1".to_vec()));
    let (tell, told) = sync_channel(10);
    let _following = producer.follow(move |change| tell.send(change.clone()).unwrap());
    producer.snapshot(br#""longer than ten bytes""#.to_vec()).unwrap();
    let change = told.recv_timeout(PATIENCE).unwrap();
    assert_eq!(change.state, ConnectionState::Open);
    assert!(change.reason.as_deref().is_some_and(|reason| reason.contains("snapshot")), "{change:?}");
    assert_eq!(caller(&place).get(&titled("w")).unwrap().1.unwrap(), b"1");
    producer.snapshot(b"3".to_vec()).unwrap();
    until("the next one is taken", || (caller(&place).get(&titled("w")).unwrap().1.unwrap() == b"3").then_some(()));
}

#[test]
fn a_command_hears_that_its_deadline_passed_or_its_caller_does_not_wait() {
    let place = Place::with_daemon(&[]);
    let (offer, told, begun) = hanging();
    let _producer = open(&place, Description::new("w").offer(offer).max_in_flight(2));
    let caller = caller(&place);
    let error = caller.send(&titled("w"), "hang", None, Duration::from_millis(100)).unwrap_err();
    assert_eq!((error.code(), error.delivery()), ("timeout", Delivery::Unknown));
    assert_eq!(told.recv_timeout(PATIENCE).unwrap(), Why::Cancelled);
    begun.recv_timeout(PATIENCE).unwrap();
    let params = serde_json::json!({"selector": {"title": "w"}, "command": "hang"});
    let pending = caller.start("session.send", &params, None).unwrap();
    begun.recv_timeout(PATIENCE).unwrap();
    drop(pending);
    assert_eq!(told.recv_timeout(PATIENCE).unwrap(), Why::Cancelled);
    let pending = caller.start("session.send", &params, None).unwrap();
    begun.recv_timeout(PATIENCE).unwrap();
    caller.cancel(pending.id());
    let Err(CallError::Refused(error)) = pending.wait(Instant::now() + PATIENCE) else { panic!() };
    assert_eq!(error.data.unwrap().code, "cancelled");
}

#[test]
fn a_handler_sees_its_own_deadline() {
    let place = Place::with_daemon(&[]);
    let (tell, told) = sync_channel(1);
    let late = Offer::new("late", move |command| {
        let begun = Instant::now();
        tell.send((command.wait_cancelled(LONG), command.deadline().unwrap() > begun)).unwrap();
        Err("late".to_owned())
    });
    let _producer = open(&place, Description::new("w").offer(late));
    // Long enough to get there on a machine that has other things to do.
    assert!(caller(&place).send(&titled("w"), "late", None, Duration::from_secs(2)).is_err());
    let (why, is_ahead) = told.recv_timeout(PATIENCE).unwrap();
    assert!(why.is_some() && is_ahead);
}

#[test]
fn more_commands_than_a_session_holds_are_refused_and_harm_nothing() {
    let place = Place::with_daemon(&[]);
    let (offer, told, begun) = hanging();
    let _producer = open(&place, Description::new("w").offer(offer).max_in_flight(64));
    let caller = caller(&place);
    let params = serde_json::json!({"selector": {"title": "w"}, "command": "hang"});
    let held: Vec<_> = (0..32).map(|_| caller.start("session.send", &params, None).unwrap()).collect();
    held.iter().for_each(|_| begun.recv_timeout(PATIENCE).unwrap());
    let error = caller.send(&titled("w"), "hang", None, LONG).unwrap_err();
    assert!(error.code() == "command-failed" && error.to_string().contains("as many commands"), "{error}");
    drop(held);
    (0..32).for_each(|_| assert_eq!(told.recv_timeout(PATIENCE).unwrap(), Why::Cancelled));
}

#[test]
fn a_stop_fences_late_results_and_leaves_no_thread() {
    let place = Place::with_daemon(&[]);
    let (offer, told, begun) = hanging();
    let held = Arc::new(());
    let kept = Arc::clone(&held);
    let keeps = Offer::new("keeps", move |_| Ok(format!("{}", Arc::strong_count(&kept)).into_bytes()));
    let producer = open(&place, Description::new("w").offer(offer).offer(keeps).max_in_flight(4));
    let caller = caller(&place);
    caller.send(&titled("w"), "keeps", None, LONG).unwrap();
    let params = serde_json::json!({"selector": {"title": "w"}, "command": "hang"});
    let pending = caller.start("session.send", &params, None).unwrap();
    begun.recv_timeout(PATIENCE).unwrap();
    producer.stop();
    assert_eq!(told.try_recv(), Ok(Why::Stopped), "the stop waited for the handler");
    assert!(caller.list(&titled("w")).next().is_none(), "who lists afterwards does not find it");
    assert_eq!(pending.wait(Instant::now() + PATIENCE).unwrap_err().code(), "session-lost");
    producer.stop();
    producer.start().unwrap();
    producer.retry().unwrap();
    assert_eq!(producer.state(), ConnectionState::Stopped);
    producer.snapshot(b"1".to_vec()).unwrap();
    drop(producer);
    assert_eq!(Arc::strong_count(&held), 1, "a thread holds the handlers still");
}

#[cfg(target_os = "linux")]
#[test]
fn the_library_changes_nothing_of_its_program_and_names_its_threads() {
    let process = || {
        let status = std::fs::read_to_string("/proc/thread-self/status").unwrap();
        let lines = status
            .lines()
            .filter(|line| ["SigBlk", "SigIgn", "SigCgt", "Umask"].iter().any(|name| line.starts_with(name)));
        (
            lines.map(str::to_owned).collect::<Vec<_>>(),
            std::env::vars_os().collect::<Vec<_>>(),
            std::env::current_dir().unwrap(),
        )
    };
    let before = process();
    let place = Place::empty();
    let producer = open(&place, Description::new("w").offer(echo()));
    assert_eq!(caller(&place).send(&titled("w"), "echo", Some(b"1"), LONG).unwrap().result.unwrap(), b"1");
    let names = std::fs::read_dir("/proc/self/task").unwrap().flatten();
    let names: Vec<_> = names.filter_map(|task| std::fs::read_to_string(task.path().join("comm")).ok()).collect();
    for name in ["usher-link\n", "usher-handler\n"] {
        assert!(names.iter().any(|running| running == name), "{name} is not among {names:?}");
    }
    producer.stop();
    assert_eq!(process(), before);
}

#[test]
fn a_handler_may_stop_its_own_producer() {
    let place = Place::with_daemon(&[]);
    let slot: Arc<Mutex<Option<Arc<Producer>>>> = Arc::default();
    let own = Arc::clone(&slot);
    let quit = Offer::new("quit", move |_| {
        let producer = own.lock().unwrap().take().unwrap();
        producer.stop();
        Ok(b"null".to_vec())
    });
    let producer = Arc::new(open(&place, Description::new("w").offer(quit)));
    *slot.lock().unwrap() = Some(Arc::clone(&producer));
    let error = caller(&place).send(&titled("w"), "quit", None, LONG).unwrap_err();
    assert_eq!(error.code(), "session-lost");
    assert_eq!(producer.state(), ConnectionState::Stopped);
}

/// A place where a handler finds its own producer, and the producer once it is there.
type Slot = Arc<Mutex<Option<Arc<Producer>>>>;

fn own(slot: &Slot) -> Arc<Producer> {
    Arc::clone(slot.lock().unwrap().as_ref().unwrap())
}

/// Waits for this; a producer that hangs is left behind, since dropping it would hang as well.
fn hears<T>(told: &Receiver<T>, what: &str, producer: &Arc<Producer>) -> T {
    told.recv_timeout(PATIENCE).unwrap_or_else(|_| {
        Box::leak(Box::new(Arc::clone(producer)));
        panic!("{what}");
    })
}

#[test]
fn a_quick_handler_may_stop_its_own_producer_also_where_others_had_threads() {
    let place = Place::with_daemon(&[]);
    let slot = Slot::default();
    let (mine, (tell, told)) = (Arc::clone(&slot), sync_channel(1));
    let quit = Offer::new("quit", move |_| {
        own(&mine).stop();
        tell.send(()).unwrap();
        Ok(b"null".to_vec())
    });
    let producer = Arc::new(open(&place, Description::new("w").offer(echo()).offer(quit.quick())));
    *slot.lock().unwrap() = Some(Arc::clone(&producer));
    caller(&place).send(&titled("w"), "echo", Some(b"1"), LONG).unwrap();
    let error = caller(&place).send(&titled("w"), "quit", None, Duration::from_secs(10)).unwrap_err();
    hears(&told, "the stop waits for the handler that called it", &producer);
    assert_eq!(error.code(), "session-lost");
    slot.lock().unwrap().take();
    producer.stop();
}

#[test]
fn handlers_that_stop_their_producer_at_once_do_not_wait_for_each_other() {
    let place = Place::with_daemon(&[]);
    let slot = Slot::default();
    let (tell, told) = sync_channel(2);
    let (runs, running) = sync_channel(1);
    let (begin, begun) = sync_channel(1);
    let begun = Mutex::new(begun);
    let (mine, tells) = (Arc::clone(&slot), tell.clone());
    let slow = Offer::new("slow", move |_| {
        runs.send(()).unwrap();
        begun.lock().unwrap().recv_timeout(PATIENCE).unwrap();
        own(&mine).stop();
        tells.send(()).unwrap();
        Ok(b"null".to_vec())
    });
    let mine = Arc::clone(&slot);
    let quick = Offer::new("quick", move |_| {
        begin.send(()).unwrap();
        own(&mine).stop();
        tell.send(()).unwrap();
        Ok(b"null".to_vec())
    });
    let description = Description::new("w").offer(slow).offer(quick.quick()).max_in_flight(2);
    let producer = Arc::new(open(&place, description));
    *slot.lock().unwrap() = Some(Arc::clone(&producer));
    let caller = caller(&place);
    let of = |command: &str| serde_json::json!({"selector": {"title": "w"}, "command": command});
    let _slow = caller.start("session.send", &of("slow"), None).unwrap();
    running.recv_timeout(PATIENCE).unwrap();
    let _quick = caller.start("session.send", &of("quick"), None).unwrap();
    (0..2).for_each(|_| hears(&told, "they wait for each other", &producer));
    slot.lock().unwrap().take();
    producer.stop();
}

#[test]
fn a_session_that_is_stopped_as_soon_as_it_is_open_is_not_listed_afterwards() {
    let place = Place::with_daemon(&[]);
    let caller = caller(&place);
    for round in 0..100 {
        open(&place, Description::new("w")).stop();
        assert!(caller.list(&titled("w")).next().is_none(), "round {round}");
    }
}

#[test]
fn a_listener_may_stop_the_producer_that_somebody_stops() {
    let place = Place::with_daemon(&[]);
    let producer = Arc::new(open(&place, Description::new("w").offer(echo())));
    let (mine, (tell, told)) = (Arc::downgrade(&producer), sync_channel(10));
    let _following = producer.follow(move |_| mine.upgrade().unwrap().stop());
    let stops = Arc::clone(&producer);
    let stopping = threads::spawn("stops", move || {
        stops.stop();
        tell.send(()).unwrap();
    });
    hears(&told, "the stop and its listener wait for each other", &producer);
    stopping.join().unwrap();
    assert!(caller(&place).list(&titled("w")).next().is_none(), "who lists afterwards does not find it");
}

#[test]
fn what_a_handler_or_listener_held_may_ask_the_producer_when_it_is_dropped() {
    struct Asks(std::sync::Weak<Producer>, SyncSender<ConnectionState>);
    impl Drop for Asks {
        fn drop(&mut self) {
            if let Some(producer) = self.0.upgrade() {
                drop(producer.follow(|_| ()));
                self.1.send(producer.state()).unwrap();
            }
        }
    }
    let place = Place::with_daemon(&[]);
    let producer = Arc::new(open(&place, Description::new("w").offer(echo())));
    let (tell, told) = sync_channel(10);
    let asks = || Asks(Arc::downgrade(&producer), tell.clone());
    let offer = |name: &str, held: Asks| {
        let handler = move |_: &usher::client::Command| Err(format!("{:?}", held.0.strong_count()));
        Offer::new(name, handler)
    };
    let (first, refused, held) = (offer("a", asks()), offer("not a name", asks()), asks());
    let following = producer.follow(move |_| assert!(held.0.strong_count() > 0));
    let does = Arc::clone(&producer);
    let doing = threads::spawn("does", move || {
        does.update(Update::new().offers(vec![first])).unwrap();
        does.update(Update::new().offers(vec![refused])).unwrap_err();
        does.update(Update::new().offers(vec![echo()])).unwrap();
        drop(following);
    });
    for what in ["a refused update", "a replaced handler", "a listener that is gone"] {
        assert_eq!(hears(&told, what, &producer), ConnectionState::Open);
    }
    doing.join().unwrap();
}

#[test]
fn a_producer_starts_a_daemon_unless_that_is_switched_off() {
    let place = Place::empty();
    let never = Description::new("never").cwd("/").start_daemon(StartDaemon::Never);
    let never = Producer::new(target(&place), never).unwrap();
    never.start().unwrap();
    wait_for(&never, ConnectionState::Waiting);
    assert!(place.daemons().is_empty());
    let _starts = open(&place, Description::new("starts"));
    never.retry().unwrap();
    wait_for(&never, ConnectionState::Open);
    assert_eq!(place.daemons().len(), 1);
}

#[test]
fn a_daemon_that_was_stopped_is_not_started_again_until_somebody_asks() {
    let place = Place::empty();
    let producer = open(&place, Description::new("w"));
    let daemon = place.daemons();
    place.json(&["stop", "--force"]);
    wait_for(&producer, ConnectionState::Waiting);
    until("the daemon is gone", || place.daemons().is_empty().then_some(()));
    // Longer than the first pause: it has looked, and nothing tells that.
    std::thread::sleep(Duration::from_millis(1_500));
    assert!(place.daemons().is_empty() && producer.state() == ConnectionState::Waiting);
    producer.retry().unwrap();
    wait_for(&producer, ConnectionState::Open);
    assert!(place.daemons().iter().all(|pid| !daemon.contains(pid)));
}

#[test]
fn a_key_that_is_revoked_is_not_shown_again_until_somebody_says_so() {
    let place = Place::with_daemon(&[]);
    let bundle = place.path().join("bundle");
    let out = bundle.to_str().unwrap();
    let made = place.json(&["keys", "new", "--role", "producer", "--row", "--label", "x", "--out", out]);
    let producer = Producer::new(Target::bundle(&bundle).unwrap(), Description::new("w").cwd("/")).unwrap();
    producer.start().unwrap();
    wait_for(&producer, ConnectionState::Open);
    let (tell, told) = sync_channel(10);
    let _following = producer.follow(move |change| tell.send(change.clone()).unwrap());
    place.json(&["keys", "revoke", made["credential"].as_str().unwrap()]);
    let revoked =
        until("the producer hears of it", || told.try_iter().find(|change| change.state == ConnectionState::Revoked));
    assert!(revoked.reason.as_deref().is_some_and(|reason| reason.contains("revoked")), "{revoked:?}");
    for _ in 0..3 {
        producer.retry().unwrap();
        wait_for(&producer, ConnectionState::Revoked);
    }
    producer.stop();
    assert_eq!(producer.state(), ConnectionState::Stopped);
}

#[test]
fn starts_stops_and_retries_in_any_order_end_with_one_session_or_none() {
    let place = Place::with_daemon(&[]);
    for _ in 0..10 {
        let producer = Producer::new(target(&place), Description::new("w").cwd("/").offer(echo())).unwrap();
        std::thread::scope(|scope| {
            for number in 0..6 {
                let producer = &producer;
                scope.spawn(move || match number {
                    0..3 => producer.start().unwrap(),
                    _ => producer.retry().unwrap(),
                });
            }
        });
        wait_for(&producer, ConnectionState::Open);
        assert_eq!(caller(&place).list(&titled("w")).count(), 1);
        std::thread::scope(|scope| {
            for number in 0..4 {
                let producer = &producer;
                scope.spawn(move || if number == 0 { producer.retry().unwrap() } else { producer.stop() });
            }
        });
        until("the session is gone", || (caller(&place).list(&titled("w")).count() == 0).then_some(()));
    }
}
