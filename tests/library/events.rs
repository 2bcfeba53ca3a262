//! Following what happens: row by row, and for as long as a program runs.

use std::collections::HashSet;
use std::sync::mpsc::{Receiver, sync_channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use usher::client::{Description, Event, Events, EventsError, Filter, Target, Update, Watch};

use super::super::support::daemon::Place;
use super::super::support::wait::{PATIENCE, until};
use super::{open, target, titled};

fn soon() -> Option<Instant> {
    Some(Instant::now() + PATIENCE)
}

/// The next one, which has to come.
fn next(events: &mut Events) -> Event {
    events.wait(soon()).unwrap().expect("more is to come")
}

fn updates() -> Filter {
    Filter::new().kind("session-updated")
}

/// A watch and what its listener hears.
fn heard(watch: &Watch) -> (Receiver<Event>, usher::client::Listening) {
    let (tell, told) = sync_channel(10_000);
    let listening = watch.listen(move |event| {
        let _nobody = tell.send(event.clone());
    });
    (told, listening)
}

fn recv(told: &Receiver<Event>) -> Event {
    told.recv_timeout(PATIENCE).unwrap()
}

/// Whether a daemon has a subscriber, as an operator sees it.
fn is_followed(place: &Place, count: u64) {
    until("the watch follows", || {
        let status = place.json(&["status", "--operator"]);
        let accounts = status["status"]["accounts"].as_array().unwrap();
        let streams = accounts.iter().find(|account| account["name"] == "streams").unwrap();
        (streams["used"] == count).then_some(())
    });
}

#[test]
fn events_come_in_order_with_their_fields_and_the_cursor_goes_with_them() {
    let place = Place::with_daemon(&[]);
    let mut events = Events::connect(&target(&place), &Filter::new()).unwrap();
    let begun = events.cursor().to_owned();
    let producer = open(&place, Description::new("w").label("a", "b"));
    let registered = next(&mut events);
    assert_eq!((registered.kind.as_str(), registered.session_id), ("session-registered", Some(producer.session_id())));
    assert_eq!(registered.field::<String>("title").as_deref(), Some("w"));
    assert_eq!(registered.field::<bool>("resumed"), Some(false));
    let json: serde_json::Value = serde_json::from_str(registered.json()).unwrap();
    assert_eq!((json["cursor"].as_str(), json["ts"].as_str()), (Some(events.cursor()), Some(registered.ts.as_str())));
    producer.update(Update::new().title("new")).unwrap();
    assert_eq!(next(&mut events).field::<Vec<String>>("changed").unwrap(), ["title"]);
    assert_eq!(events.wait(Some(Instant::now())).unwrap_err(), EventsError::Timeout);
    producer.stop();
    assert_eq!(next(&mut events).kind, "session-gone");
    let last = events.cursor().to_owned();

    // The same again, from where the first one began; an operator sees more.
    let kept = |filter: Filter| Events::connect(&target(&place), &filter.up_to_now()).unwrap();
    let again = kept(Filter::new().since(begun)).map(|event| event.unwrap().kind);
    // Its own connections are told to it too.
    let again: Vec<_> = again.filter(|kind| kind != "connection").collect();
    assert_eq!(again, ["session-registered", "session-updated", "session-gone"]);
    let mut all = kept(Filter::new().from_start().as_operator());
    let mut kinds = HashSet::new();
    while let Some(event) = all.wait(soon()).unwrap() {
        kinds.insert(event.kind);
    }
    assert!(kinds.contains("connection") && kinds.contains("session-gone"), "{kinds:?}");
    let mut none = kept(Filter::new().sessions(titled("no such")).from_start());
    assert!(none.wait(soon()).unwrap().is_none() && none.wait(soon()).unwrap().is_none());
    assert!(none.cursor() != last && none.cursor() != "start", "it has come to where the feed stood");
    assert!(none.next().is_none());
}

#[test]
fn what_cannot_be_followed_is_said_with_a_word_to_act_on() {
    let place = Place::empty();
    let connect = |filter: &Filter| Events::connect(&target(&place), filter).err().unwrap();
    assert_eq!(connect(&Filter::new()).code(), "not-running");
    assert!(place.daemons().is_empty());
    let place = Place::with_daemon(&["--limit", "streams=1"]);
    let connect = |filter: &Filter| Events::connect(&target(&place), filter).err().unwrap();
    let refused = connect(&Filter::new().kind("connexion"));
    assert!(refused.code() == "invalid-params" && refused.to_string().contains("session-gone"), "{refused}");
    assert_eq!(connect(&Filter::new().since("here")).code(), "invalid-params");
    let large = (0..10_000).fold(Filter::new(), |filter, _| filter.kind("session-gone"));
    assert_eq!(connect(&large).code(), "too-large");
    let _one = Events::connect(&target(&place), &Filter::new()).unwrap();
    assert_eq!(connect(&Filter::new()).code(), "busy");
}

#[test]
fn the_daemons_end_comes_last_and_then_why_nothing_more_does() {
    let mut place = Place::with_daemon(&[]);
    let mut events = Events::connect(&target(&place), &updates()).unwrap();
    place.signal_daemon(Signal::SIGTERM);
    let kinds: Vec<_> = [next(&mut events), next(&mut events)].map(|event| event.kind).into();
    assert_eq!(kinds, ["shutdown-requested", "shutdown-complete"]);
    let closing = EventsError::Closing { reason: "signal".to_owned() };
    assert_eq!(events.wait(soon()).unwrap_err(), closing);
    assert_eq!(events.wait(soon()).unwrap_err(), closing);
    assert!(events.next().is_some_and(|last| last.is_err()) && events.next().is_none());
    place.wait_daemon();
}

#[test]
fn an_events_connection_can_be_polled_with_other_things() {
    use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
    use std::os::fd::AsFd;
    let place = Place::with_daemon(&[]);
    let mut events = Events::connect(&target(&place), &Filter::new()).unwrap();
    let ready = |events: &Events, patience: u16| {
        poll(&mut [PollFd::new(events.as_fd(), PollFlags::POLLIN)], PollTimeout::from(patience)).unwrap() > 0
    };
    assert!(events.wait(Some(Instant::now())).is_err() && !ready(&events, 0));
    let _producer = open(&place, Description::new("w"));
    assert!(ready(&events, 30_000));
    assert_eq!(next(&mut events).kind, "session-registered");
}

#[test]
fn a_watch_tells_every_listener_in_order_and_none_after_its_guard() {
    let place = Place::with_daemon(&[]);
    let producer = open(&place, Description::new("w"));
    let watch = Watch::new(target(&place), updates());
    let (first, listening) = heard(&watch);
    let (second, _listening) = heard(&watch);
    watch.start().unwrap();
    watch.start().unwrap();
    is_followed(&place, 1);
    for number in 0..50 {
        producer.update(Update::new().title(format!("{number}"))).unwrap();
        // Each arrives before the next one, which would replace it.
        assert_eq!(recv(&second).field::<String>("title"), Some(format!("{number}")));
    }
    let titles: Vec<_> = (0..50).map(|_| recv(&first).field::<String>("title").unwrap()).collect();
    assert_eq!(titles, (0..50).map(|number| number.to_string()).collect::<Vec<_>>());
    drop(listening);
    producer.update(Update::new().title("last")).unwrap();
    assert_eq!(recv(&second).field::<String>("title").as_deref(), Some("last"));
    assert!(first.recv().is_err(), "its listener is gone with its guard");
    watch.stop();
    is_followed(&place, 0);
    assert!(watch.over().is_none());
}

#[test]
fn a_listener_that_panics_or_takes_its_time_harms_no_other_and_loses_nothing() {
    let place = Place::with_daemon(&[]);
    let producer = open(&place, Description::new("w"));
    let watch = Watch::new(target(&place), updates());
    let calls = Arc::new(Mutex::new(0));
    let counted = Arc::clone(&calls);
    let _panics = watch.listen(move |_| {
        *counted.lock().unwrap() += 1;
        std::panic::panic_any("on purpose");
    });
    let (go_on, gone_on) = sync_channel::<()>(0);
    let _blocks = watch.listen(move |_| {
        let _gone = gone_on.recv();
    });
    let (told, _listening) = heard(&watch);
    watch.start().unwrap();
    is_followed(&place, 1);
    // A snapshot is sent when the one before it is answered: some of them are enough.
    for number in 0..200 {
        producer.update(Update::new().title(format!("{number}"))).unwrap();
        until("it is there", || (super::caller(&place).list(&titled(&format!("{number}"))).count() == 1).then_some(()));
    }
    assert!(told.try_recv().is_err(), "the blocking one stands before it");
    drop(go_on);
    let titles: Vec<_> = (0..200).map(|_| recv(&told).field::<String>("title").unwrap()).collect();
    assert_eq!(titles, (0..200).map(|number| number.to_string()).collect::<Vec<_>>());
    assert_eq!(*calls.lock().unwrap(), 200);
}

#[test]
fn a_watch_comes_back_after_every_loss_and_tells_each_event_once_or_the_gap() {
    let mut place = Place::empty();
    let watch = Watch::new(target(&place), Filter::new().kind("session-registered").kind("session-updated"));
    let (told, _listening) = heard(&watch);
    // There is no daemon yet: all that the first one knows is later.
    watch.start().unwrap();
    place.start_daemon(&[]);
    let producer = open(&place, Description::new("w"));
    assert_eq!(recv(&told).kind, "session-registered");
    let mut seen = HashSet::new();
    for round in 0..3 {
        place.signal_daemon(Signal::SIGKILL);
        place.wait_daemon();
        place.start_daemon(&[]);
        producer.retry().unwrap();
        producer.update(Update::new().title(format!("{round}"))).unwrap();
        let gap = recv(&told);
        assert_eq!((gap.kind.as_str(), gap.field::<String>("reason").as_deref()), ("lagged", Some("restart")));
        loop {
            let event = recv(&told);
            assert!(seen.insert(event.cursor.clone()), "{} came twice", event.cursor);
            if event.field::<String>("title") == Some(format!("{round}")) {
                break;
            }
        }
    }
    producer.stop();
}

#[test]
fn a_watch_may_be_stopped_and_dropped_by_its_own_listener() {
    let place = Place::with_daemon(&[]);
    let slot: Arc<Mutex<Option<Watch>>> = Arc::default();
    let watch = Watch::new(target(&place), Filter::new().from_start());
    let own = Arc::clone(&slot);
    let (tell, told) = sync_channel(10);
    let _listening = watch.listen(move |event| {
        if let Some(watch) = own.lock().unwrap().take() {
            watch.stop();
            drop(watch);
            tell.send(event.kind.clone()).unwrap();
        }
    });
    watch.start().unwrap();
    *slot.lock().unwrap() = Some(watch);
    let _producer = open(&place, Description::new("w"));
    told.recv_timeout(PATIENCE).unwrap();
    is_followed(&place, 0);
}

#[test]
fn stopping_ends_at_once_what_waits_for_a_daemon_and_what_waits_for_events() {
    let place = Place::empty();
    let waits = Watch::new(target(&place), Filter::new());
    waits.start().unwrap();
    let begun = Instant::now();
    waits.stop();
    waits.stop();
    waits.start().unwrap();
    assert!(begun.elapsed() < Duration::from_secs(10) && place.daemons().is_empty());
    let place = Place::with_daemon(&[]);
    let reads = Watch::new(target(&place), Filter::new());
    reads.start().unwrap();
    is_followed(&place, 1);
    drop(reads);
    is_followed(&place, 0);
}

#[test]
fn a_watch_whose_key_is_revoked_or_may_not_follow_is_over_and_says_why() {
    let place = Place::with_daemon(&[]);
    let bundle = |name: &str, scope: &str| {
        let bundle = place.path().join(name);
        let out = bundle.to_str().unwrap();
        place.json(&["keys", "new", "--label", name, "--scope", scope, "--out", out]);
        Target::bundle(&bundle).unwrap()
    };
    let (follows, lists) = (bundle("follows", "events.subscribe"), bundle("lists", "session.list"));
    let watch = Watch::new(follows, Filter::new());
    watch.start().unwrap();
    is_followed(&place, 1);
    assert!(watch.over().is_none());
    place.json(&["keys", "revoke", "follows"]);
    let over = until("the watch is over", || watch.over());
    assert_eq!(over.unwrap_err().code(), "revoked");
    let watch = Watch::new(lists, Filter::new());
    watch.start().unwrap();
    let over = until("the watch is over", || watch.over());
    assert_eq!(over.unwrap_err().code(), "denied");
    let watch = Watch::new(target(&place), Filter::new().from_start().up_to_now());
    watch.start().unwrap();
    assert!(until("all is told", || watch.over()).is_ok());
}
