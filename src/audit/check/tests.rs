use jiff::Timestamp;

use super::super::fact::Fact;
use super::*;
use crate::ids::{self, CredentialId};

const OLD: &str = "audit.ndjson.1";
const CURRENT: &str = "audit.ndjson";

/// The two files of an audit that has seen a rotation before them, a crash in each, and much else.
struct Sample {
    old: Vec<u8>,
    current: Vec<u8>,
    head: Head,
}

fn lines(head: &mut Head, text: &mut Vec<u8>, count: u64) {
    for number in 0..count {
        let by = CredentialId(ids::random());
        let fact = if number % 7 == 3 { Fact::StopAsked { by, force: true } } else { Fact::DrainAsked { by } };
        head.add(text, Timestamp::now(), &fact);
    }
}

fn tear(head: &mut Head, text: &mut Vec<u8>, torn: &[u8]) {
    text.extend_from_slice(torn);
    text.push(b'\n');
    let fact = Fact::Torn { bytes: torn.len() as u64, sha256: Digest(sha256(&[torn])) };
    head.add(text, Timestamp::now(), &fact);
}

fn sample() -> Sample {
    let (mut old, mut current) = (Vec::new(), Vec::new());
    let mut head = Head { seq: 17, hash: Digest([3; 32]) };
    head.add(&mut old, Timestamp::now(), &Fact::Continued {});
    lines(&mut head, &mut old, 20);
    tear(&mut head, &mut old, b"{\"seq\":39,\"ts\":\"20");
    lines(&mut head, &mut old, 9);
    head.add(&mut current, Timestamp::now(), &Fact::Continued {});
    lines(&mut head, &mut current, 15);
    tear(&mut head, &mut current, b"\0\0\0\0\n\0\0");
    lines(&mut head, &mut current, 15);
    Sample { old, current, head }
}

impl Sample {
    fn check(&self, bound: Bound) -> Result<Verified, Broken> {
        check(Some(Source { name: OLD, bytes: &self.old }), Some(Source { name: CURRENT, bytes: &self.current }), bound)
    }
}

#[test]
fn an_unbroken_audit_verifies_and_says_what_it_misses() {
    let sample = sample();
    for bound in [Bound::Unknown, Bound::Reaches(sample.head), Bound::Ends(sample.head)] {
        let verified = sample.check(bound).unwrap();
        assert_eq!((verified.first, verified.end), (18, sample.head));
        let notes: Vec<_> = verified.notes.iter().map(|note| (note.seq, note.fact.as_str())).collect();
        assert_eq!(notes, [(39, "torn"), (65, "torn")]);
    }
    let earlier = Head { seq: 20, hash: Digest([9; 32]) };
    let broken = sample.check(Bound::Reaches(earlier)).unwrap_err();
    assert_eq!((broken.line, broken.seq, broken.why), (3, Some(20), Why::AnotherHead));
}

#[test]
fn files_that_begin_behind_the_head_of_the_running_daemon_do_not_verify() {
    let sample = sample();
    let before = Head { seq: 17, hash: Digest([3; 32]) };
    let broken = sample.check(Bound::Reaches(before)).unwrap_err();
    assert_eq!((broken.file.as_str(), broken.line, broken.seq), (OLD, 1, Some(18)));
    assert_eq!(broken.why, Why::BeginsBehind { head: 17 });
}

#[test]
fn a_current_file_that_was_moved_over_the_old_copy_is_named_where_it_has_to_be() {
    let sample = sample();
    let moved = Some(Source { name: OLD, bytes: &sample.current });
    for current in [None, Some(Source { name: CURRENT, bytes: b"" })] {
        let broken = check(moved, current, Bound::Ends(sample.head)).unwrap_err();
        assert_eq!((broken.file.as_str(), broken.line, broken.why), (CURRENT, 1, Why::Moved));
        // A daemon that runs may just be doing that; and one that was killed may have begun to.
        for bound in [Bound::Unknown, Bound::Reaches(sample.head)] {
            assert_eq!(check(moved, current, bound).unwrap().end, sample.head);
        }
    }
}

struct Random(u64);

impl Random {
    fn below(&mut self, bound: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        usize::try_from(self.0 % bound as u64).unwrap()
    }
}

fn split(bytes: &[u8]) -> Vec<Vec<u8>> {
    bytes.split_inclusive(|byte| *byte == b'\n').map(<[u8]>::to_vec).collect()
}

/// One thing that somebody does to a file.
fn mutated(bytes: &[u8], random: &mut Random) -> (&'static str, Vec<u8>) {
    let mut lines = split(bytes);
    let (one, other) = (random.below(lines.len()), random.below(lines.len()));
    match random.below(6) {
        0 | 1 => {
            let mut bytes = bytes.to_vec();
            let at = random.below(bytes.len());
            bytes[at] ^= u8::try_from(1 + random.below(255)).unwrap();
            return ("a byte is another", bytes);
        }
        2 => {
            lines.remove(one);
            return ("a line is missing", lines.concat());
        }
        3 => lines.swap(one, other),
        4 => {
            let doubled = lines[one].clone();
            lines.insert(other, doubled);
            return ("a line stands twice", lines.concat());
        }
        _ => return ("the tail is cut off", bytes[..random.below(bytes.len())].to_vec()),
    }
    ("two lines have changed places", lines.concat())
}

#[test]
fn each_of_ten_thousand_mutations_is_named_where_it_begins() {
    let seed = u64::from_le_bytes(ids::random()) | 1;
    let (sample, mut random) = (sample(), Random(seed));
    let mut done = 0;
    while done < 10_000 {
        let in_old = random.below(2) == 0;
        let before = if in_old { &sample.old } else { &sample.current };
        let (what, after) = mutated(before, &mut random);
        if after == *before {
            continue;
        }
        done += 1;
        let (was, is) = (split(before), split(&after));
        let place = was.iter().zip(&is).position(|(was, is)| was != is).unwrap_or_else(|| was.len().min(is.len())) + 1;
        let torn = if in_old { 22..=23 } else { 17..=19 };
        let is_torn = |place: usize| (place - 1..=place + 1).any(|line| torn.contains(&line));
        let changed = if in_old {
            Sample { old: after, current: sample.current.clone(), head: sample.head }
        } else {
            Sample { old: sample.old.clone(), current: after, head: sample.head }
        };
        for bound in [Bound::Ends(sample.head), Bound::Reaches(sample.head)] {
            let why = format!("seed {seed}: {what} in line {place} of the {}", if in_old { "old" } else { "current" });
            let broken = changed.check(bound).expect_err(&why);
            let here = broken.file == if in_old { OLD } else { CURRENT };
            // What is missing at an end is named where the next line would stand; what belongs to torn bytes and the line
            // that tells of them, somewhere in these three.
            let is_named = here && (broken.line == place || broken.line.abs_diff(place) <= 2 && is_torn(place));
            let is_next = in_old && place > is.len() && (broken.file.as_str(), broken.line) == (CURRENT, 1);
            // Without any of its lines a file is not there.
            let is_nothing = !in_old && is.is_empty() && broken.file == OLD;
            assert!(is_named || is_next || is_nothing, "{why}: {broken}");
        }
    }
}

#[test]
fn without_a_head_all_but_a_clean_cut_is_named() {
    let sample = sample();
    let whole = split(&sample.current);
    for kept in 1..whole.len() {
        let cut = Sample { current: whole[..kept].concat(), old: sample.old.clone(), head: sample.head };
        let is_torn = chain::read(whole[kept - 1].trim_ascii_end()).is_err();
        assert_eq!(cut.check(Bound::Unknown).is_ok(), !is_torn, "nobody can tell, {kept} lines");
        let broken = cut.check(Bound::Ends(sample.head)).unwrap_err();
        assert!(is_torn || matches!(broken.why, Why::CutOff { .. }), "{broken}");
        let mut torn = cut.current.clone();
        torn.pop();
        assert!(Sample { current: torn, ..cut }.check(Bound::Unknown).is_err());
    }
}

#[test]
fn a_file_that_is_missing_is_named() {
    let Sample { old, current, head } = sample();
    let (old, current) = (Source { name: OLD, bytes: &old }, Source { name: CURRENT, bytes: &current });
    let why = |old, current, bound| check(old, current, bound).unwrap_err().why;
    assert_eq!(why(None, Some(current), Bound::Unknown), Why::NoOld);
    assert_eq!(why(Some(Source { name: OLD, bytes: b"" }), Some(current), Bound::Unknown), Why::NoOld);
    assert!(matches!(why(Some(old), None, Bound::Reaches(head)), Why::CutOff { .. }));
    assert!(matches!(why(None, None, Bound::Ends(head)), Why::CutOff { .. }));
    assert_eq!(why(None, None, Bound::Unknown), Why::Nothing);
    assert!(matches!(why(Some(current), Some(old), Bound::Unknown), Why::Follows { .. }));
    assert!(check(Some(old), None, Bound::Unknown).is_ok(), "a daemon that could not begin the next file");
}

#[test]
fn what_only_looks_like_a_line_in_its_place_is_named() {
    let begin = || {
        let (mut head, mut text) = (Head::NONE, Vec::new());
        head.add(&mut text, Timestamp::now(), &Fact::Begun {});
        (head, text)
    };
    let why = |text: &[u8], bound| {
        check(None, Some(Source { name: CURRENT, bytes: text }), bound).map(|_| ()).map_err(|broken| broken.why)
    };
    let (mut head, mut text) = begin();
    assert_eq!(why(&text, Bound::Ends(head)), Ok(()));
    let another = Head { hash: Digest([9; 32]), ..head };
    head.add(
        &mut text,
        Timestamp::now(),
        &Fact::EndDiffers { known_seq: 9, known_hash: Digest([1; 32]), found_seq: 1 },
    );
    assert_eq!(why(&text, Bound::Unknown), Err(Why::EndDiffers), "cut while no daemon ran");

    let (mut head, mut text) = begin();
    head.add(&mut text, Timestamp::now(), &Fact::Begun {});
    assert_eq!(why(&text, Bound::Unknown), Err(Why::BeginsAgain));

    let (mut head, mut text) = begin();
    lines(&mut head, &mut text, 1);
    assert_eq!(why(&text, Bound::Ends(another)), Err(Why::AnotherHead), "another chain");
    let (mut head, mut text) = begin();
    let end = head;
    lines(&mut head, &mut text, 1);
    assert_eq!(why(&text, Bound::Ends(end)), Err(Why::Beyond));
    assert_eq!(why(&text, Bound::Reaches(end)), Ok(()));

    let (mut head, mut text) = begin();
    head.add(&mut text, Timestamp::now(), &Fact::Torn { bytes: 0, sha256: Digest(sha256(&[])) });
    assert_eq!(why(&text, Bound::Unknown), Err(Why::NotTorn), "an empty tear is an empty line");

    let (mut head, mut text) = (Head::NONE, Vec::new());
    lines(&mut head, &mut text, 2);
    assert_eq!(why(&text, Bound::Unknown), Err(Why::Beginning));
}
