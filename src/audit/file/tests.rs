use jiff::Timestamp;

use super::super::fact::Fact;
use super::*;
use crate::store::scratch::Scratch;

fn lines(count: usize) -> (Head, Vec<u8>) {
    let (mut head, mut text) = (Head::NONE, Vec::new());
    for number in 0..count {
        let fact = if number == 0 { Fact::Begun {} } else { Fact::Stopped { reason: "stop", undelivered: 0 } };
        head.add(&mut text, Timestamp::now(), &fact);
    }
    (head, text)
}

fn found(scratch: &Scratch, bytes: &[u8]) -> Result<Found, StoreError> {
    scratch.file(FILE, bytes, 0o600);
    Log::open(&scratch.dir()).map(|(_, found)| found)
}

#[test]
fn a_file_goes_on_behind_its_last_line_whatever_stands_there() {
    let scratch = Scratch::new();
    let (head, text) = lines(3);
    let behind = |rest: &[u8]| {
        let found = found(&scratch, &[&text, rest].concat()).unwrap();
        assert_eq!((found.head, found.is_new), (head, false), "{rest:?}");
        assert_eq!(std::fs::read(scratch.path().join(FILE)).unwrap(), [&text, rest].concat(), "left as it is");
        found.behind
    };
    assert_eq!(behind(b""), Behind::Nothing);
    let torn =
        |bytes: &[u8], is_open| Behind::Torn { bytes: bytes.len() as u64, sha256: Digest(sha256(&[bytes])), is_open };
    assert_eq!(behind(b"{\"seq"), torn(b"{\"seq", true));
    assert_eq!(behind(b"{\"seq\n"), torn(b"{\"seq", false));
    assert_eq!(behind(b"\n"), torn(b"", false));
    assert_eq!(behind(b"\0\n\0\0"), torn(b"\0\n\0\0", true));
    let found = found(&scratch, &text[..text.len() - 1]).unwrap();
    assert_eq!((found.head, found.behind), (head, Behind::NoEnd));
    assert!(found.is_stopped);
}

#[test]
fn a_new_file_begins_or_goes_on_from_the_old_copy() {
    let scratch = Scratch::new();
    let (_, found) = Log::open(&scratch.dir()).unwrap();
    assert_eq!((found.head, found.is_new), (Head::NONE, true));
    let (head, text) = lines(2);
    scratch.file(OLD, &text, 0o600);
    let (_, found) = Log::open(&scratch.dir()).unwrap();
    assert_eq!((found.head, found.is_new), (head, true));
}

#[test]
fn a_first_line_that_was_cut_off_is_taken_away_and_what_is_none_of_ours_is_left() {
    let scratch = Scratch::new();
    let (_, text) = lines(1);
    for cut in 1..text.len() - 1 {
        let found = found(&scratch, &text[..cut]).unwrap();
        assert_eq!((found.head, found.is_new), (Head::NONE, true), "{cut}");
        assert!(std::fs::read(scratch.path().join(FILE)).unwrap().is_empty());
    }
    for foreign in [b"notes of mine".as_slice(), b"{\"seq\":1}\n", &[0; 4096], &b"x\n".repeat(300_000)] {
        let error = found(&scratch, foreign).unwrap_err();
        assert!(matches!(error.problem(), Problem::Corrupt(_)), "{error}");
        assert_eq!(std::fs::read(scratch.path().join(FILE)).unwrap(), foreign);
    }
}

#[test]
fn a_file_that_somebody_else_has_touched_is_not_written_to() {
    let scratch = Scratch::new();
    let (_, text) = lines(2);
    let path = scratch.path().join(FILE);
    let touches: [fn(&std::path::Path); 4] = [
        |path| std::fs::remove_file(path).unwrap(),
        |path| std::fs::rename(path, path.with_extension("moved")).unwrap(),
        |path| File::options().write(true).open(path).unwrap().set_len(10).unwrap(),
        |path| File::options().append(true).open(path).unwrap().write_all(b"x").unwrap(),
    ];
    for touch in touches {
        scratch.file(FILE, &text, 0o600);
        let (mut log, _) = Log::open(&scratch.dir()).unwrap();
        assert!(log.add(b"a\n").is_ok());
        touch(&path);
        let before = std::fs::read(&path).ok();
        assert!(matches!(log.add(b"b\n"), Err(Unwritten::Disturbed)));
        assert_eq!(std::fs::read(&path).ok(), before);
    }
}

/// A limit on the size of files stands for a full disk: the kernel takes a part and refuses the rest.
#[test]
fn a_write_that_is_cut_off_leaves_whole_lines() {
    let test = concat!(module_path!(), "::a_write_that_is_cut_off_leaves_whole_lines");
    let line = [[b'x'; 299].as_slice(), b"\n"].concat();
    if let Some(path) = Scratch::of_parent() {
        let (mut log, _) = Log::open(&Dir::open(&path).unwrap()).unwrap();
        let Err(Unwritten::Refused { kept, error }) = log.add(&line.repeat(10)) else { panic!("written") };
        assert_eq!((kept, error.problem()), (900, &Problem::Io(nix::errno::Errno::EFBIG)));
        assert_eq!(log.size(), 900);
        return;
    }
    let scratch = Scratch::new();
    // 1 block: 512 bytes for some shells, 1,024 for others.
    scratch.run(test, "trap '' XFSZ; ulimit -f 2; [ $(ulimit -f) = 2 ] || exit 9", None);
    assert_eq!(std::fs::read(scratch.path().join(FILE)).unwrap(), line.repeat(3));
}
