use super::*;
use crate::account::Pool;
use crate::auth::credential::Credential;
use crate::auth::record::Records;
use crate::ids::PublicKey;
use crate::limits::Limits;
use crate::wire::lines::Role;

const A: SessionId = SessionId([1; 16]);
const B: SessionId = SessionId([2; 16]);
const ONE: CredentialId = CredentialId([1; 16]);
const TWO: CredentialId = CredentialId([2; 16]);
const OWNER: CredentialId = CredentialId([9; 16]);
const PERIOD: Duration = Duration::from_secs(600);

fn charge() -> Charge {
    Charge::take(&Pool::new("keys", 1), &Pool::new("keys", 1), 1).unwrap()
}

fn name(session: SessionId, caller: CredentialId) -> Name {
    Name { session, caller, key: "k".to_owned() }
}

fn kept(took_ms: u64) -> Option<Arc<Kept>> {
    let records = Records::first([(Role::Producer, PublicKey([1; 32]))], jiff::Timestamp::UNIX_EPOCH);
    let credential = Credential::new(&records.credentials[0], &Limits::default()).unwrap();
    let producer = Arc::new(Authority::of_test(credential));
    Some(Arc::new(Kept { outcome: Outcome::Done { payload: None, took_ms }, producer, _charge: charge() }))
}

fn begin(table: &mut Table, name: Name) -> Ticket {
    table.begin(name, OWNER, [1; 32], charge())
}

/// A word for what is found.
fn found(table: &Table, name: &Name) -> String {
    match table.find(name, Some(OWNER), &[1; 32]) {
        Found::Known(kept) => match &kept.outcome {
            Outcome::Done { took_ms, .. } => format!("known {took_ms}"),
            Outcome::Failed(refusal) => format!("failed {}", refusal.code.word()),
        },
        Found::Unknown(code) => format!("unknown {}", code.word()),
        other => format!("{other:?}"),
    }
}

#[test]
fn what_was_known_of_a_session_that_is_anothers_now_is_kept_nowhere() {
    let (mut table, now) = (Table::new(PERIOD), Instant::now());
    for round in 0..10 {
        let ticket = table.begin(name(A, ONE), [ONE, TWO][round % 2], [1; 32], charge());
        table.unknown(&ticket, Code::SessionLost, now);
        assert_eq!((table.entries.len(), table.over.len()), (1, 1), "round {round}");
    }
    table.expire(now + PERIOD);
    assert!(table.entries.is_empty() && table.over.is_empty());
}

#[test]
fn a_key_is_of_one_caller_one_session_its_producer_and_one_command() {
    let mut table = Table::new(PERIOD);
    begin(&mut table, name(A, ONE));
    assert_eq!(found(&table, &name(A, ONE)), "Running");
    for other in [name(B, ONE), name(A, TWO), Name { key: "l".to_owned(), ..name(A, ONE) }] {
        assert_eq!(found(&table, &other), "Nothing", "{other:?}");
    }
    assert!(matches!(table.find(&name(A, ONE), Some(OWNER), &[2; 32]), Found::Conflict));
    assert!(matches!(table.find(&name(A, ONE), Some(TWO), &[1; 32]), Found::Nothing), "another's session");
    assert!(matches!(table.find(&name(A, ONE), None, &[1; 32]), Found::Running), "no session is there");
    assert_eq!((table.count(A), table.count(B)), (1, 0));
}

#[test]
fn what_has_ended_is_known_for_its_time_and_what_runs_for_as_long_as_it_runs() {
    let now = Instant::now();
    let mut table = Table::new(PERIOD);
    let ticket = begin(&mut table, name(A, ONE));
    assert_eq!(table.expire(now + PERIOD * 10), None);
    table.settle(&ticket, kept(7), now);
    table.settle(&ticket, kept(8), now);
    assert_eq!(found(&table, &name(A, ONE)), "known 7", "the first answer counts");
    assert_eq!(table.expire(now + PERIOD - Duration::from_secs(1)), Some(now + PERIOD));
    assert_eq!(found(&table, &name(A, ONE)), "known 7");
    assert_eq!(table.expire(now + PERIOD), None);
    assert_eq!(found(&table, &name(A, ONE)), "Nothing");
}

#[test]
fn a_result_without_room_is_told_as_not_kept() {
    let mut table = Table::new(PERIOD);
    let ticket = begin(&mut table, name(A, ONE));
    table.settle(&ticket, None, Instant::now());
    assert_eq!(found(&table, &name(A, ONE)), "NotKept");
}

#[test]
fn an_unknown_outcome_stays_unknown_until_its_answer_comes_late() {
    let now = Instant::now();
    let mut table = Table::new(PERIOD);
    let ticket = begin(&mut table, name(A, ONE));
    table.unknown(&ticket, Code::Timeout, now);
    table.unknown(&ticket, Code::SessionLost, now);
    assert_eq!(found(&table, &name(A, ONE)), "unknown timeout");
    assert!(table.is_open(&ticket));
    table.settle(&ticket, kept(7), now + PERIOD / 2);
    assert_eq!(found(&table, &name(A, ONE)), "known 7");
    assert_eq!(table.expire(now + PERIOD), None, "its time ran from its end on");
    assert_eq!(found(&table, &name(A, ONE)), "Nothing");
    assert!(!table.is_open(&ticket));
}

#[test]
fn what_was_not_delivered_is_forgotten_and_a_late_answer_never_reaches_the_next_run() {
    let now = Instant::now();
    let mut table = Table::new(PERIOD);
    let first = begin(&mut table, name(A, ONE));
    table.forget(&first);
    assert_eq!(found(&table, &name(A, ONE)), "Nothing");
    let second = begin(&mut table, name(A, ONE));
    table.settle(&first, kept(1), now);
    table.unknown(&first, Code::Timeout, now);
    table.forget(&first);
    assert_eq!(found(&table, &name(A, ONE)), "Running");
    table.settle(&second, kept(2), now);
    assert_eq!(found(&table, &name(A, ONE)), "known 2");
}

#[test]
fn a_session_or_a_caller_takes_its_keys_with_it() {
    let now = Instant::now();
    let mut table = Table::new(PERIOD);
    for (session, caller) in [(A, ONE), (A, TWO), (B, ONE), (B, TWO)] {
        let ticket = begin(&mut table, name(session, caller));
        table.settle(&ticket, kept(1), now);
    }
    table.forget_session(A);
    assert_eq!((table.count(A), table.count(B)), (0, 2));
    table.forget_caller(ONE);
    assert_eq!(found(&table, &name(B, ONE)), "Nothing");
    assert_eq!(found(&table, &name(B, TWO)), "known 1");
    assert_eq!(table.over.len(), 1);
}
