//! Who is told what, in which order, and what is said of a gap.

use std::io::Read;
use std::os::unix::net::UnixStream;

use serde_json::Value;

use super::*;
use crate::account::Pool;
use crate::auth::credential::Credential;
use crate::auth::gate::{Authority, End};
use crate::auth::identity::Identity;
use crate::auth::record::Records;
use crate::ids::{ApprovalId, CredentialId, PublicKey, SessionId, random};
use crate::limits::Limits;
use crate::route::flusher::Flusher;
use crate::route::outbound::Outbound;
use crate::store::pem::Seed;
use crate::wire::events::{ConnectionState, GoneReason, Kinds};
use crate::wire::frame::{Opener, Sealer};
use crate::wire::lines::Role;
use crate::wire::object;
use crate::wire::rows::{Facts, Register};
use crate::wire::selector::Selector;

const KEY: [u8; 32] = [7; 32];
const PATIENCE: Duration = Duration::from_secs(30);

/// A feed, what it needs, and nobody in its thread: tests call [`Feed::tell`] themselves.
struct Field {
    feed: Feed,
    flusher: Arc<Flusher>,
    streams: Arc<Pool>,
}

impl Field {
    fn new() -> Self {
        let bell = Arc::new(Bell::default());
        let flusher = Flusher::new(Arc::clone(&bell)).unwrap();
        Self { feed: Feed::new(Generation([1; 16]), bell), flusher, streams: Pool::new("streams", 128) }
    }

    fn reader(&self, role: Role, sessions: Option<Vec<Selector>>) -> Reader {
        let mut record = Records::first([(role, PublicKey(random()))], jiff::Timestamp::now()).credentials.remove(0);
        record.sessions = sessions;
        let authority = Authority::of_test(Credential::new(&record, &Limits::default()).unwrap());
        let (socket, reader) = UnixStream::pair().unwrap();
        reader.set_nonblocking(true).unwrap();
        let max = 20 * 1024 * 1024;
        let (pool, share) = (Pool::new("total", max), Pool::new("share", max));
        let outbound = Outbound::new(Arc::new(socket), Sealer::new(&KEY).unwrap(), max, pool, share);
        let daemon = Arc::new(Identity::from_seed(&Seed::random()).unwrap());
        let peer = Peer::new(ConnectionId::random(), authority, outbound, [0; 32], daemon, Arc::clone(&self.flusher));
        Reader { peer, socket: reader, opener: Opener::new(&KEY).unwrap(), rest: Vec::new() }
    }

    fn operator(&self) -> Reader {
        self.reader(Role::Operator, None)
    }

    fn subscribe(&self, reader: &Reader, subscription: u64, since: Option<&str>, want: Want) {
        let start = self.feed.start(since, self.feed.head()).unwrap();
        self.follow(reader, subscription, want, start, None);
    }

    fn follow(&self, reader: &Reader, subscription: u64, want: Want, start: Start, until: Option<Cursor>) {
        let charge = Charge::take(&self.streams, &Pool::new("share", 128), 1).unwrap();
        self.feed.follow(Arc::clone(&reader.peer), subscription, want, start, until, charge);
    }

    /// `n` updates of a session with nothing particular.
    fn updates(&self, n: u64) {
        let facts = facts("board", "/board");
        (0..n).for_each(|_| self.update(SessionId([3; 16]), &facts));
    }

    fn update(&self, session_id: SessionId, facts: &Arc<Facts>) {
        let updated = Event::SessionUpdated { session_id, title: &facts.title, changed: &["snapshot"] };
        self.feed.publish(Audience::Session(session_id, Arc::clone(facts)), &updated);
    }

    fn tell(&self) {
        while self.feed.tell() {}
    }
}

impl Drop for Field {
    fn drop(&mut self) {
        // Readers are gone by now, so nobody has a rest for long.
        self.flusher.join();
    }
}

fn everything() -> Want {
    Want { kinds: Kinds::ALL, selector: None, task_id: None }
}

fn of_kinds(kinds: &[Kind]) -> Want {
    let words: Vec<_> = kinds.iter().map(|kind| kind.word().to_owned()).collect();
    Want { kinds: Kinds::named(&words).unwrap(), ..everything() }
}

fn titled(title: &str) -> Selector {
    Selector { title: Some(title.to_owned()), ..Selector::default() }
}

fn facts(title: &str, cwd: &str) -> Arc<Facts> {
    let key = PublicKey([1; 32]);
    let text = format!(
        r#"{{"title":"{title}","cwd":"{cwd}","pid":1,"started":1,"labels":{{}},"commands":[],"reconnect_key":"{key}"}}"#
    );
    Arc::new(Facts::new(object::read::<Register>(text.as_bytes()).unwrap()).unwrap())
}

/// The other end of a subscriber.
struct Reader {
    peer: Arc<Peer>,
    socket: UnixStream,
    opener: Opener,
    rest: Vec<u8>,
}

/// What one notification said.
struct Heard {
    head: Value,
    events: Vec<Value>,
}

impl Reader {
    /// All notifications that are whole by now.
    fn read(&mut self) -> Vec<Heard> {
        let _would_block = self.socket.read_to_end(&mut self.rest);
        let mut heard = Vec::new();
        while let Some((length, body)) = self.rest.split_first_chunk::<4>() {
            let length = u32::from_be_bytes(*length) as usize;
            let Some(body) = body.get(..length) else { break };
            let mut frame = body.to_vec();
            let plaintext = self.opener.open(&mut frame).unwrap();
            let end = plaintext.iter().position(|&byte| byte == b'\n').unwrap();
            heard.push(Heard {
                head: serde_json::from_slice::<Value>(&plaintext[..end]).unwrap()["params"].clone(),
                events: serde_json::from_slice(&plaintext[end + 1..]).unwrap(),
            });
            self.rest.drain(..4 + length);
        }
        heard
    }

    fn events(&mut self) -> Vec<Value> {
        self.read().into_iter().flat_map(|heard| heard.events).collect()
    }

    /// Reads until the event with this number is there.
    fn events_to(&mut self, field: &Field, last: u64) -> Vec<Value> {
        let (deadline, mut events) = (Instant::now() + PATIENCE, Vec::new());
        while events.last().map(seq) != Some(last) {
            assert!(Instant::now() < deadline, "event {last} never came: {:?}", events.last());
            field.tell();
            events.extend(self.events());
        }
        events
    }
}

fn seq(event: &Value) -> u64 {
    event["cursor"].as_str().unwrap().rsplit_once(':').unwrap().1.parse().unwrap()
}

fn seqs(events: &[Value]) -> Vec<u64> {
    events.iter().map(seq).collect()
}

fn kinds(events: &[Value]) -> Vec<&str> {
    events.iter().map(|event| event["kind"].as_str().unwrap()).collect()
}

#[test]
fn each_event_is_told_once_in_order_with_its_cursor_in_front() {
    let field = Field::new();
    let mut reader = field.operator();
    field.updates(3);
    field.subscribe(&reader, 5, None, everything());
    field.tell();
    assert!(reader.read().is_empty(), "what was before is not told, and nothing needs no notification");
    field.updates(700);
    field.tell();
    field.updates(1);
    field.tell();
    let heard = reader.read();
    assert!(heard.len() > 3, "a window of {WINDOW} is one notification");
    assert!(heard.iter().all(|heard| heard.head == serde_json::json!({"subscription": 5})));
    let events: Vec<_> = heard.into_iter().flat_map(|heard| heard.events).collect();
    assert_eq!(seqs(&events), (4..=704).collect::<Vec<_>>());
    assert_eq!(events[0]["cursor"], format!("{}:4", Generation([1; 16])));
    let keys: Vec<_> = events[0].as_object().unwrap().keys().map(String::as_str).collect();
    assert_eq!(keys.len(), 6, "{keys:?}");
}

#[test]
fn a_window_ends_at_its_bytes_and_a_larger_event_stands_alone() {
    let field = Field::new();
    let mut reader = field.operator();
    field.subscribe(&reader, 1, None, everything());
    let facts = facts("board", "/board");
    for size in [10, 70_000, 10, 30_000, 30_000, 30_000] {
        let runtimes = [serde_json::value::to_raw_value(&"x".repeat(size)).unwrap()];
        let detected = Event::RuntimesDetected { session_id: SessionId([3; 16]), runtimes: &runtimes };
        field.feed.publish(Audience::Session(SessionId([3; 16]), Arc::clone(&facts)), &detected);
    }
    let deadline = Instant::now() + PATIENCE;
    let mut heard = Vec::new();
    while heard.iter().map(|heard: &Heard| heard.events.len()).sum::<usize>() < 6 {
        assert!(Instant::now() < deadline);
        field.tell();
        heard.extend(reader.read());
    }
    // Each ends with the event that fills it.
    assert_eq!(heard.iter().map(|heard| heard.events.len()).collect::<Vec<_>>(), [2, 4]);
}

#[test]
fn from_a_cursor_and_from_the_start_what_is_kept_is_told_again() {
    let field = Field::new();
    field.updates(10);
    let (mut start, mut behind, mut head) = (field.operator(), field.operator(), field.operator());
    let cursor = |seq| Cursor { generation: Generation([1; 16]), seq }.to_string();
    field.subscribe(&start, 1, Some("start"), everything());
    field.subscribe(&behind, 1, Some(&cursor(4)), everything());
    field.subscribe(&head, 1, Some(&cursor(10)), everything());
    field.updates(1);
    field.tell();
    assert_eq!(seqs(&start.events()), (1..=11).collect::<Vec<_>>());
    assert_eq!(seqs(&behind.events()), (5..=11).collect::<Vec<_>>());
    assert_eq!(seqs(&head.events()), [11]);
}

#[test]
fn a_cursor_that_is_none_or_lies_ahead_is_refused() {
    let field = Field::new();
    field.updates(10);
    let ahead = Cursor { generation: Generation([1; 16]), seq: 11 }.to_string();
    for since in ["", "Start", "1", ":", &ahead] {
        assert!(field.feed.start(Some(since), field.feed.head()).is_err(), "{since:?}");
    }
}

#[test]
fn what_is_too_old_is_told_as_a_gap_with_its_number_and_the_rest_without_one() {
    let field = Field::new();
    field.updates(EVENTS_MAX as u64 + 900);
    let mut reader = field.operator();
    let since = Cursor { generation: Generation([1; 16]), seq: 400 }.to_string();
    field.subscribe(&reader, 1, Some(&since), everything());
    let events = reader.events_to(&field, EVENTS_MAX as u64 + 900);
    assert_eq!((&events[0]["kind"], &events[0]["reason"]), (&"lagged".into(), &"age".into()));
    // 401 to 900 are gone, and the gap's cursor is that of the last of them.
    assert_eq!((&events[0]["missed"], seq(&events[0])), (&500.into(), 900));
    assert_eq!(seqs(&events[1..]), (901..=EVENTS_MAX as u64 + 900).collect::<Vec<_>>());
}

#[test]
fn a_cursor_of_another_start_is_a_gap_of_unknown_size_in_front_of_all_there_is() {
    let field = Field::new();
    let mut reader = field.operator();
    let since = Cursor { generation: Generation([9; 16]), seq: 400 }.to_string();
    field.subscribe(&reader, 1, Some(&since), of_kinds(&[Kind::Paired]));
    field.tell();
    let events = reader.events();
    assert_eq!((kinds(&events), &events[0]["reason"], seq(&events[0])), (vec!["lagged"], &"restart".into(), 0));
    assert!(events[0].get("missed").is_none());
    field.updates(1);
    field.tell();
    assert!(reader.events().is_empty(), "it is told once");
}

#[test]
fn who_does_not_read_is_overtaken_while_others_are_told_and_hears_exactly_how_much_it_missed() {
    let field = Field::new();
    let (mut slow, mut quick) = (field.operator(), field.operator());
    field.subscribe(&slow, 1, None, everything());
    field.subscribe(&quick, 1, None, everything());
    let mut seen = Vec::new();
    for _ in 0..40 {
        field.updates(256);
        field.tell();
        let last = field.feed.head().seq;
        seen.extend(seqs(&quick.events_to(&field, last)));
        assert!(slow.peer.kept() <= 192 * 1024, "a slow one is queued for: {}", slow.peer.kept());
    }
    let total = field.feed.head().seq;
    assert_eq!(seen, (1..=total).collect::<Vec<_>>());
    let events = slow.events_to(&field, total);
    let (mut next, mut missed) = (1, 0);
    for event in &events {
        if event["kind"] == "lagged" {
            assert_eq!(event["reason"], "slow");
            let gone = event["missed"].as_u64().unwrap();
            assert_eq!(seq(event), next + gone - 1);
            (next, missed) = (next + gone, missed + gone);
        } else {
            assert_eq!(seq(event), next);
            next += 1;
        }
    }
    assert!(missed > 0);
    let told = events.iter().filter(|event| event["kind"] != "lagged").count() as u64;
    assert_eq!(missed + told, total);
}

#[test]
fn a_subscriber_hears_of_what_exists_for_it_alone() {
    let field = Field::new();
    let (mine, other) = (facts("mine", "/a"), facts("other", "/b"));
    let mut narrow_caller = field.reader(Role::Caller, Some(vec![titled("mine")]));
    let mut caller = field.reader(Role::Caller, None);
    let mut narrow_operator = field.reader(Role::Operator, Some(vec![titled("mine")]));
    let mut operator = field.operator();
    let readers = [&narrow_caller, &caller, &narrow_operator, &operator];
    readers.iter().for_each(|reader| field.subscribe(reader, 1, None, everything()));
    let caller_id = narrow_caller.peer.authority().credential().id;
    let stranger = CredentialId([5; 16]);
    let (mine_id, other_id) = (SessionId([3; 16]), SessionId([4; 16]));

    field.update(mine_id, &mine); // 1
    field.update(other_id, &other); // 2
    for id in [caller_id, stranger] {
        // 3 and 4
        let revoked = Event::CredentialRevoked { credential: id, label: "x" };
        field.feed.publish(Audience::Credential(id), &revoked);
    }
    let asked = [
        (caller_id, None),
        (stranger, None),
        (stranger, Some((mine_id, Arc::clone(&mine)))),
        (stranger, Some((other_id, Arc::clone(&other)))),
    ];
    for (by, session) in asked {
        // 5 to 8
        let decided = Event::ApprovalDecided {
            approval_id: ApprovalId([6; 16]),
            decision: crate::wire::approvals::Decision::Expired,
            by: None,
            reason: None,
        };
        field.feed.publish(Audience::Question(by, session), &decided);
    }
    field.feed.publish(Audience::Everybody, &Event::ShutdownRequested { reason: "stop" }); // 9
    field.tell();
    assert_eq!(seqs(&narrow_caller.events()), [1, 3, 5, 9]);
    assert_eq!(seqs(&caller.events()), [1, 2, 9]);
    assert_eq!(seqs(&narrow_operator.events()), [1, 7, 9]);
    assert_eq!(seqs(&operator.events()), (1..=9).collect::<Vec<_>>());
}

#[test]
fn kinds_and_selectors_choose_and_the_end_is_told_to_everybody() {
    let field = Field::new();
    let (board, other) = (facts("board", "/work/site"), facts("other", "/work"));
    let by = |selector| Want { selector: Some(selector), ..everything() };
    let inside = Selector { repo: Some("/work/site/src".to_owned()), ..Selector::default() };
    let wants = [
        of_kinds(&[Kind::SessionGone]),
        by(titled("board")),
        by(inside),
        Want { task_id: Some("t1".to_owned()), ..everything() },
        Want { kinds: Kinds::named(&[]).unwrap(), ..everything() },
    ];
    let mut readers: Vec<_> = wants
        .into_iter()
        .map(|want| {
            let reader = field.operator();
            field.subscribe(&reader, 1, None, want);
            reader
        })
        .collect();
    field.update(SessionId([3; 16]), &board); // 1
    field.update(SessionId([4; 16]), &other); // 2
    let gone = Event::SessionGone { session_id: SessionId([4; 16]), title: "other", reason: GoneReason::Lost };
    field.feed.publish(Audience::Session(SessionId([4; 16]), other), &gone); // 3
    let credential = CredentialId([5; 16]);
    let opened = Event::Connection {
        peer: ConnectionId([5; 16]),
        credential,
        label: "x",
        role: Role::Caller,
        state: ConnectionState::Open,
    };
    field.feed.publish(Audience::Credential(credential), &opened); // 4
    field.feed.publish(Audience::Everybody, &Event::ShutdownRequested { reason: "stop" }); // 5
    field.feed.publish(Audience::Everybody, &Event::ShutdownComplete { reason: "stop", undelivered: 0 }); // 6
    field.tell();
    let heard: Vec<_> = readers.iter_mut().map(|reader| seqs(&reader.events())).collect();
    assert_eq!(heard, [vec![3, 5, 6], vec![1, 5, 6], vec![1, 2, 3, 5, 6], vec![5, 6], vec![5, 6]]);
}

#[test]
fn a_subscription_up_to_now_ends_by_itself_and_its_place_is_free_when_that_is_read() {
    let field = Field::new();
    field.updates(300);
    let mut reader = field.operator();
    let head = field.feed.head();
    field.follow(&reader, 7, everything(), field.feed.start(Some("start"), head).unwrap(), Some(head));
    field.follow(&reader, 8, everything(), field.feed.start(None, head).unwrap(), Some(head));
    field.updates(1);
    assert_eq!(field.streams.usage().used, 2);
    field.tell();
    let heard = reader.read();
    let (all, none): (Vec<_>, Vec<_>) = heard.into_iter().partition(|heard| heard.head["subscription"] == 7);
    assert_eq!(all.iter().flat_map(|heard| seqs(&heard.events)).collect::<Vec<_>>(), (1..=300).collect::<Vec<_>>());
    let ended: Vec<_> = all.iter().map(|heard| heard.head.get("ended").is_some()).collect();
    assert_eq!(ended, [false, true]);
    assert_eq!((none.len(), none[0].events.len(), &none[0].head["ended"]), (1, 0, &true.into()));
    assert_eq!(field.streams.usage().used, 0);
    assert!(field.feed.state.lock().subscribers.is_empty());
}

#[test]
fn behind_an_unsubscription_and_behind_a_connection_nothing_is_told() {
    let field = Field::new();
    let (mut one, mut two) = (field.operator(), field.operator());
    for subscription in [1, 2] {
        field.subscribe(&one, subscription, None, everything());
    }
    field.subscribe(&two, 1, None, everything());
    field.updates(1);
    assert!(field.feed.unsubscribe(one.peer.id(), 1) && !field.feed.unsubscribe(one.peer.id(), 1));
    assert!(!field.feed.unsubscribe(two.peer.id(), 9));
    field.feed.forget(two.peer.id());
    assert_eq!(field.streams.usage().used, 1);
    field.tell();
    let heard = one.read();
    assert_eq!(heard.iter().map(|heard| heard.head["subscription"].as_u64().unwrap()).collect::<Vec<_>>(), [2]);
    assert!(two.read().is_empty());
}

#[test]
fn a_subscriber_whose_gate_closes_gets_nothing_more_and_is_one_no_longer() {
    let field = Field::new();
    let (mut revoked, mut other) = (field.operator(), field.operator());
    field.subscribe(&revoked, 1, None, everything());
    field.subscribe(&other, 1, None, everything());
    revoked.peer.authority().credential().gate.close(End::Revoked);
    field.updates(1);
    field.tell();
    assert!(revoked.events().is_empty());
    assert_eq!(seqs(&other.events()), [1]);
    assert_eq!((field.feed.state.lock().subscribers.len(), field.streams.usage().used), (1, 1));
}

#[test]
fn what_is_kept_for_replay_has_a_bound_in_bytes_too() {
    let field = Field::new();
    let facts = facts("board", "/board");
    let runtimes = [serde_json::value::to_raw_value(&"x".repeat(1024 * 1024)).unwrap()];
    for _ in 0..20 {
        let detected = Event::RuntimesDetected { session_id: SessionId([3; 16]), runtimes: &runtimes };
        field.feed.publish(Audience::Session(SessionId([3; 16]), Arc::clone(&facts)), &detected);
    }
    let state = field.feed.state.lock();
    assert_eq!((state.kept.len(), state.first, state.head()), (15, 6, 20));
    assert!(state.kept_bytes <= EVENTS_MAX_BYTES);
    assert_eq!(state.kept.iter().map(|happened| happened.bytes()).sum::<usize>(), state.kept_bytes);
}

#[test]
fn what_was_not_told_is_counted_for_those_who_would_have_heard_it() {
    let field = Field::new();
    let (slow, gone) = (field.operator(), field.operator());
    field.subscribe(&slow, 1, None, of_kinds(&[Kind::SessionUpdated]));
    field.subscribe(&gone, 1, None, of_kinds(&[Kind::Paired]));
    field.updates(5);
    assert_eq!(field.feed.wait_told(Instant::now()), 5);
    field.tell();
    assert_eq!(field.feed.wait_told(Instant::now()), 0);
}

#[test]
fn behind_the_end_nothing_happens() {
    let field = Field::new();
    let mut reader = field.operator();
    field.subscribe(&reader, 1, None, everything());
    field.feed.publish(Audience::Everybody, &Event::ShutdownComplete { reason: "stop", undelivered: 0 });
    field.updates(3);
    field.tell();
    assert_eq!(kinds(&reader.events()), ["shutdown-complete"]);
    assert_eq!(field.feed.head().seq, 1);
}

/// Of one test's thread the feed's own thread, as in a daemon.
#[test]
fn subscribers_that_come_and_go_while_events_pour_each_see_a_row_without_a_gap() {
    let field = Field::new();
    std::thread::scope(|scope| {
        #[expect(clippy::disallowed_methods, reason = "a scoped thread of a test")]
        let told = std::thread::Builder::new().spawn_scoped(scope, || field.feed.run()).unwrap();
        for round in 0..50 {
            let mut reader = field.operator();
            field.subscribe(&reader, round, None, everything());
            field.updates(20);
            let (deadline, mut events) = (Instant::now() + PATIENCE, Vec::new());
            while events.len() < 20 {
                assert!(Instant::now() < deadline);
                events.extend(reader.events());
            }
            assert_eq!(seqs(&events), (round * 20 + 1..=round * 20 + 20).collect::<Vec<_>>());
            field.feed.forget(reader.peer.id());
        }
        assert_eq!(field.feed.wait_told(Instant::now() + PATIENCE), 0);
        field.feed.end();
        told.join().unwrap();
    });
    assert_eq!(field.streams.usage().used, 0);
}

/// `cargo test --release --lib held -- --ignored --nocapture`: how long whoever publishes is held while a hundred are told.
#[test]
#[ignore = "a measure, not a judgement"]
fn how_long_a_publisher_is_held_by_a_hundred_subscribers() {
    use std::io::Write;
    for subscribers in [0, 100] {
        let field = Field::new();
        let mut readers: Vec<_> = (0..subscribers).map(|_| field.operator()).collect();
        readers.iter().for_each(|reader| field.subscribe(reader, 1, None, everything()));
        let facts = facts("board", "/board");
        let mut held = Vec::new();
        std::thread::scope(|scope| {
            #[expect(clippy::disallowed_methods, reason = "a scoped thread of a test")]
            std::thread::Builder::new().spawn_scoped(scope, || field.feed.run()).unwrap();
            for _ in 0..200 {
                for _ in 0..50 {
                    let begun = Instant::now();
                    field.update(SessionId([3; 16]), &facts);
                    held.push(begun.elapsed());
                }
                assert_eq!(field.feed.wait_told(Instant::now() + PATIENCE), 0);
                readers.iter_mut().for_each(|reader| drop(reader.read()));
            }
            field.feed.end();
        });
        held.sort();
        let at = |percent: usize| held[held.len() * percent / 100].as_nanos() as f64 / 1_000.0;
        let text =
            format!("{subscribers} subscribers: {:.1} us, 90 of 100 {:.1}, 99 of 100 {:.1}\n", at(50), at(90), at(99));
        std::io::stdout().write_all(text.as_bytes()).unwrap();
    }
}
