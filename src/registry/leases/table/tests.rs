use super::*;
use crate::account::Pool;

const A: SessionId = SessionId([1; 16]);
const B: SessionId = SessionId([2; 16]);
const C: SessionId = SessionId([3; 16]);
const ONE: CredentialId = CredentialId([1; 16]);
const TWO: CredentialId = CredentialId([2; 16]);
const OLD: PublicKey = PublicKey([7; 32]);
const NEW: PublicKey = PublicKey([8; 32]);
const OTHER: PublicKey = PublicKey([9; 32]);
const R: RotationId = RotationId([5; 16]);
const S: RotationId = RotationId([6; 16]);
const DAY: Duration = Duration::from_secs(24 * 60 * 60);
const RECOVER: Duration = Duration::from_secs(30);

fn pool(limit: u64) -> Arc<Pool> {
    Pool::new("leases", limit)
}

fn charge() -> Charge {
    Charge::take(&pool(1), &pool(1), 1).unwrap()
}

fn claim(credential: CredentialId, key: PublicKey, proof: Proof) -> Claim {
    Claim { credential, key, proof }
}

fn with(session: SessionId, credential: CredentialId) -> Table {
    let mut table = Table::default();
    grant(&mut table, session, credential);
    table
}

fn grant(table: &mut Table, session: SessionId, credential: CredentialId) -> u64 {
    table.grant(session, &claim(credential, OLD, Proof::Absent), charge())
}

fn told(result: Result<Claimed, Refusal>) -> Result<Claimed, Code> {
    result.map_err(|refusal| refusal.code)
}

fn later(now: Instant, seconds: u64) -> Instant {
    now + Duration::from_secs(seconds)
}

/// What a daemon that starts at this wall clock makes of a file.
fn loaded(document: Document, now: Instant, wall: jiff::Timestamp) -> Table {
    Table::load(document, now, wall, DAY, RECOVER, |_| Some(charge())).unwrap()
}

fn staged(rotation_id: RotationId, new_key: PublicKey) -> Staged {
    Staged { rotation_id, new_key }
}

#[test]
fn a_session_with_a_lease_is_its_credentials_with_its_key_and_a_signature_alone() {
    let table = with(A, ONE);
    assert_eq!(told(table.claim(A, &claim(ONE, OLD, Proof::Good))), Ok(Claimed::Back));
    for not_the_owner in [
        claim(TWO, OLD, Proof::Good),
        claim(ONE, OTHER, Proof::Good),
        claim(ONE, OLD, Proof::Bad),
        claim(ONE, OLD, Proof::Absent),
    ] {
        assert_eq!(told(table.claim(A, &not_the_owner)), Err(Code::SessionOwned), "{not_the_owner:?}");
    }
    assert_eq!(told(table.claim(B, &claim(TWO, OLD, Proof::Absent))), Ok(Claimed::Free));
    assert_eq!(told(table.claim(B, &claim(TWO, OLD, Proof::Good))), Ok(Claimed::Free));
    assert_eq!(told(table.claim(B, &claim(TWO, OLD, Proof::Bad))), Err(Code::InvalidParams));
}

#[test]
fn a_lease_ends_a_day_after_its_session_and_never_while_it_is_in_use() {
    let now = Instant::now();
    let mut table = with(A, ONE);
    assert!(table.expire(now + DAY * 1_000).is_empty());
    table.ended(A, now + DAY);
    assert!(table.expire(later(now, 86_399)).is_empty());
    table.resume(A, OLD);
    assert!(table.expire(now + DAY * 2).is_empty(), "it is in use again");
    table.ended(A, now + DAY);
    assert_eq!(table.expire(now + DAY), [A]);
    assert!(!table.has(A));
}

#[test]
fn coming_back_under_a_known_key_changes_nothing_that_has_to_be_stored() {
    let now = Instant::now();
    let mut table = Table::default();
    assert_eq!(grant(&mut table, A, ONE), 1);
    assert_eq!(grant(&mut table, B, ONE), 2);
    let (_, stored) = table.document(now, jiff::Timestamp::UNIX_EPOCH, DAY);
    table.ended(A, now + DAY);
    assert_eq!(table.resume(A, OLD), 1, "its own change, which is stored");
    assert_eq!(table.document(now, jiff::Timestamp::UNIX_EPOCH, DAY).1, stored);
}

/// Else a crash days later would find a session that had ended long ago.
#[test]
fn coming_back_is_stored_where_the_file_says_that_the_session_has_ended() {
    let now = Instant::now();
    let mut table = with(A, ONE);
    table.ended(A, now + DAY);
    let (document, stored) = table.document(now, jiff::Timestamp::UNIX_EPOCH, DAY);
    assert_eq!(document.leases[0].ended, Some(jiff::Timestamp::UNIX_EPOCH));
    assert!(table.resume(A, OLD) > stored);
    assert_eq!(table.document(now, jiff::Timestamp::UNIX_EPOCH, DAY).0.leases[0].ended, None);
}

#[test]
fn a_file_reads_back_with_the_time_that_is_left() {
    let (now, wall) = (Instant::now(), jiff::Timestamp::from_second(1_000_000).unwrap());
    let mut table = with(A, ONE);
    grant(&mut table, B, ONE);
    table.ended(A, now + DAY);
    let (document, _) = table.document(later(now, 3_600), wall, DAY);
    assert_eq!(document.leases[0].ended, Some(jiff::Timestamp::from_second(996_400).unwrap()));
    let hour_later = jiff::Timestamp::from_second(1_003_600).unwrap();
    let mut table = loaded(document, now, hour_later);
    assert!(table.expire(later(now, 79_199)).is_empty());
    assert_eq!(table.expire(later(now, 79_200)), [A], "two of its hours are over");
    assert_eq!(table.expire(now + DAY), [B], "in use when it was written, it counts from the load on");
}

#[test]
fn a_wall_clock_that_jumps_between_two_starts_makes_no_lease_last_longer() {
    let now = Instant::now();
    let ended = Some(jiff::Timestamp::from_second(5_000_000).unwrap());
    let stored = |session| Stored { session, credential: ONE, key: OLD, staged: None, rotated: None, ended };
    let before = jiff::Timestamp::from_second(1_000_000).unwrap();
    let mut table = loaded(Document { leases: vec![stored(A)] }, now, before);
    assert!(table.expire(later(now, 86_399)).is_empty());
    assert_eq!(table.expire(now + DAY), [A]);
    let year_later = jiff::Timestamp::from_second(36_000_000).unwrap();
    assert!(!loaded(Document { leases: vec![stored(A)] }, now, year_later).has(A));
}

#[test]
fn a_session_that_was_there_is_awaited_until_it_is_back_or_its_time_is_over() {
    let (now, wall) = (Instant::now(), jiff::Timestamp::UNIX_EPOCH);
    let mut table = with(A, ONE);
    grant(&mut table, B, ONE);
    assert!(!table.awaits(now), "nothing was lost");
    table.ended(B, now + DAY);
    let (document, _) = table.document(now, wall, DAY);
    let mut table = loaded(document.clone(), now, wall);
    assert!(table.awaits(later(now, 29)) && !table.awaits(later(now, 30)));
    let again = table.document(later(now, 29), wall, DAY).0;
    assert_eq!(again.leases[0], document.leases[0], "a second crash finds it awaited as well");
    assert!(table.document(later(now, 30), wall, DAY).0.leases[0].ended.is_some());
    table.resume(A, OLD);
    assert!(!table.awaits(now), "B had ended before");
}

#[test]
fn a_session_that_ends_with_its_daemon_is_awaited_by_the_next_one() {
    let (now, wall) = (Instant::now(), jiff::Timestamp::UNIX_EPOCH);
    let mut table = with(A, ONE);
    table.close();
    table.ended(A, now + DAY);
    assert!(loaded(table.document(now, wall, DAY).0, now, wall).awaits(now));
}

#[test]
fn a_file_with_a_session_twice_or_a_key_that_is_none_is_corrupt_and_without_room_the_oldest_go() {
    let now = Instant::now();
    let ended = |second| Some(jiff::Timestamp::from_second(second).unwrap());
    let stored = |session, ended| Stored { session, credential: ONE, key: OLD, staged: None, rotated: None, ended };
    let load = |leases: Vec<Stored>, room: u64| {
        let (total, share) = (pool(room), pool(room));
        let wall = jiff::Timestamp::from_second(3_000).unwrap();
        let take = |_| Charge::take(&total, &share, 1).ok();
        Table::load(Document { leases }, now, wall, DAY, RECOVER, take)
    };
    assert!(load(vec![stored(A, None), stored(A, None)], 9).is_err());
    let bad = Stored { staged: Some(staged(R, PublicKey([0; 32]))), ..stored(A, None) };
    assert!(load(vec![bad], 9).is_err());
    let table = load(vec![stored(A, ended(1_000)), stored(B, None), stored(C, ended(2_000))], 2).unwrap();
    assert!(!table.has(A) && table.has(B) && table.has(C));
}

#[test]
fn room_is_made_by_the_credentials_own_session_that_ended_first() {
    let now = Instant::now();
    let mut table = with(A, ONE);
    grant(&mut table, B, ONE);
    grant(&mut table, C, TWO);
    table.ended(C, later(now, 1));
    assert_eq!(table.make_room(ONE), None, "all are in use, and another's is not taken");
    table.ended(A, later(now, 3));
    table.ended(B, later(now, 2));
    assert_eq!(table.make_room(ONE), Some(B));
    assert_eq!(table.make_room(ONE), Some(A));
    assert!(table.has(C));
}

#[test]
fn the_leases_of_a_credential_that_has_ended_go_with_it() {
    let mut table = with(A, ONE);
    grant(&mut table, B, TWO);
    assert_eq!(table.forget(ONE), [A]);
    assert!(!table.has(A) && table.has(B) && table.is_stale());
}

#[test]
fn while_a_rotation_is_pending_both_keys_count_and_the_first_use_of_the_new_one_retires_the_old() {
    let mut table = with(A, ONE);
    let change = table.stage(A, OLD, staged(R, NEW)).unwrap();
    for key in [OLD, NEW] {
        assert_eq!(told(table.claim(A, &claim(ONE, key, Proof::Good))), Ok(Claimed::Back));
    }
    assert_eq!(table.resume(A, OLD), change, "the old one retires nothing");
    assert!(table.resume(A, NEW) > change);
    assert_eq!(told(table.claim(A, &claim(ONE, OLD, Proof::Good))), Err(Code::SessionOwned));
    assert_eq!(table.key(A), Some(NEW));
}

#[test]
fn a_rotation_is_begun_and_confirmed_once_however_often_that_is_asked() {
    let mut table = with(A, ONE);
    let change = table.stage(A, OLD, staged(R, NEW)).unwrap();
    assert_eq!(table.stage(A, OLD, staged(R, NEW)), Ok(change));
    let refused = table.stage(A, OLD, staged(S, OTHER)).unwrap_err();
    assert_eq!((refused.code, refused.rotation_id), (Code::RotationPending, Some(R)));
    assert_eq!(table.stage(A, OLD, staged(R, OTHER)).unwrap_err().code, Code::RotationPending);
    assert_eq!(table.confirm(A, S), Err(Code::RotationNotFound));
    let confirmed = table.confirm(A, R).unwrap();
    assert!(confirmed > change);
    assert_eq!(table.confirm(A, R), Ok(confirmed));
    assert_eq!(table.stage(A, NEW, staged(R, NEW)), Ok(confirmed), "it is done");
    assert_eq!(table.stage(A, OLD, staged(S, OTHER)).unwrap_err().code, Code::Denied, "signed by the one before");
    assert!(table.stage(A, NEW, staged(S, NEW)).is_err());
    assert!(table.stage(A, NEW, staged(S, OTHER)).is_ok());
    assert_eq!(table.confirm(A, R), Err(Code::RotationNotFound), "another one is pending");
}

#[test]
fn a_rotation_that_was_not_stored_is_taken_back_unless_more_has_happened() {
    let mut table = with(A, ONE);
    let change = table.stage(A, OLD, staged(R, NEW)).unwrap();
    table.unstage(A, change);
    assert_eq!(told(table.claim(A, &claim(ONE, NEW, Proof::Good))), Err(Code::SessionOwned));
    let change = table.stage(A, OLD, staged(S, NEW)).unwrap();
    table.resume(A, NEW);
    table.unstage(A, change);
    assert_eq!(told(table.claim(A, &claim(ONE, NEW, Proof::Good))), Ok(Claimed::Back));
}

#[test]
fn a_rotation_reads_back_from_the_file_at_each_of_its_stages() {
    let (now, wall) = (Instant::now(), jiff::Timestamp::UNIX_EPOCH);
    let mut table = with(A, ONE);
    table.stage(A, OLD, staged(R, NEW)).unwrap();
    let mut table = loaded(table.document(now, wall, DAY).0, now, wall);
    assert!([OLD, NEW].map(|key| table.claim(A, &claim(ONE, key, Proof::Good)).is_ok()) == [true, true]);
    table.resume(A, NEW);
    let mut table = loaded(table.document(now, wall, DAY).0, now, wall);
    assert!([OLD, NEW].map(|key| table.claim(A, &claim(ONE, key, Proof::Good)).is_ok()) == [false, true]);
    assert!(table.confirm(A, R).is_ok(), "an answer that was lost can be asked for again");
}
