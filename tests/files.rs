//! Files of ours that are not as we left them: refused by name, never echoed, never silently begun anew.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::{chown, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use nix::sys::signal::Signal;
use serde_json::{Value, json};

use crate::support::daemon::{Place, RUN_UNTIL_THERE, Ran, ran};
use crate::support::peers::{Operator, Producer, registration};
use crate::support::system::{NOBODY, cannot, fifo, in_own_mounts, is_root, mode, mode_of, put, tree};
use crate::support::wait::until;
use crate::support::wire::{Identity, Peer, base64, sha256};

/// What no message may repeat, in files that are refused.
const SECRET: &str = "SECRETsecretSECRET";

/// A place whose daemon has made its keys and has ended.
fn made() -> Place {
    let mut place = Place::with_daemon(&[]);
    place.signal_daemon(Signal::SIGTERM);
    assert_eq!(place.wait_daemon(), 0);
    fs::remove_file(place.log()).unwrap();
    place
}

/// A refusal of one line that names the file and holds no byte of it.
fn refuses(ran: &Ran, codes: &[i32], named: &Path, why: &str) {
    assert!(codes.contains(&ran.code) && ran.stdout.is_empty(), "{why}: {ran:?}");
    let line = ran.stderr.lines().find(|line| line.starts_with("usher")).unwrap_or_default();
    assert!(line.contains(named.to_str().unwrap()), "{why}: names no {}: {ran:?}", named.display());
    assert!(line.contains(why), "says no {why:?}: {ran:?}");
    assert!(!ran.stderr.contains(SECRET), "{why}: {ran:?}");
    assert!(!ran.stderr.contains("panicked"), "{why}: {ran:?}");
}

/// Does something to a path.
type Make = fn(&Path);

/// What is done to a file: its name, the words that say so, and whether only a secret is refused for it.
type Spoil = (&'static str, Make, bool);

fn spoils() -> Vec<Spoil> {
    let mut spoils: Vec<Spoil> = vec![
        ("can be read by others", |path| mode(path, 0o644), true),
        ("can be written by others", |path| mode(path, 0o622), false),
        (
            "is a symbolic link",
            |path| {
                fs::rename(path, path.with_extension("moved")).unwrap();
                symlink(path.with_extension("moved"), path).unwrap();
            },
            false,
        ),
        (
            "is a symbolic link",
            |path| {
                fs::remove_file(path).unwrap();
                symlink("/dev/zero", path).unwrap();
            },
            false,
        ),
        (
            "is not a regular file",
            |path| {
                fs::remove_file(path).unwrap();
                fifo(path);
            },
            false,
        ),
        (
            "is not a regular file",
            |path| {
                fs::remove_file(path).unwrap();
                fs::create_dir(path).unwrap();
            },
            false,
        ),
        ("has several links", |path| fs::hard_link(path, path.with_extension("other")).unwrap(), false),
        ("is empty", |path| put(path, b""), false),
        ("more than the", |path| put(path, SECRET.repeat(17 * 1024 * 1024 / SECRET.len())), false),
        ("is corrupt", |path| put(path, format!("{SECRET}\n")), false),
        (
            "is corrupt",
            |path| put(path, format!("-----BEGIN PRIVATE KEY-----\n{SECRET}\n-----END PRIVATE KEY-----\n")),
            true,
        ),
    ];
    if is_root() {
        spoils.push(("is owned by another user", |path| chown(path, Some(NOBODY), None).unwrap(), false));
    } else {
        cannot("files of other users", "needs root");
    }
    spoils
}

/// Spoils a file, looks, and puts back what was there.
fn spoiled(path: &Path, spoil: Make, look: impl FnOnce()) {
    let (bytes, bits) = (fs::read(path).unwrap(), mode_of(path));
    spoil(path);
    look();
    for extension in ["moved", "other"] {
        let _none = fs::remove_file(path.with_extension(extension));
    }
    if path.symlink_metadata().unwrap().is_dir() {
        fs::remove_dir(path).unwrap();
    } else {
        fs::remove_file(path).unwrap();
    }
    put(path, bytes);
    mode(path, bits);
}

// 13, 38
#[test]
fn a_daemon_does_not_start_with_a_file_that_is_not_ours_alone_and_names_it() {
    let place = made();
    for (name, secret) in [("keys/daemon.pem", true), ("keys/daemon.pub", false), ("credentials.json", false)] {
        let path = place.path().join(name);
        for (why, spoil, secrets_only) in spoils() {
            if secrets_only && !secret {
                continue;
            }
            spoiled(&path, spoil, || {
                let before = tree(place.path());
                refuses(&ran(&mut place.usherd()), &[3], &path, why);
                assert_eq!(tree(place.path()), before, "{name} {why}: something was changed");
                let launched = ran(place.usherd().arg("--background"));
                refuses(&launched, &[3], &path, why);
            });
        }
    }
    let started = ran(place.usherd().arg("--background"));
    assert_eq!(started.code, 0, "put back it is as it was: {started:?}");
}

// 13
#[test]
fn a_client_uses_no_key_that_is_not_ours_alone_and_names_it() {
    let place = Place::with_daemon(&[]);
    for (name, secret) in [("keys/caller.pem", true), ("keys/daemon.pub", false)] {
        let path = place.path().join(name);
        for (why, spoil, secrets_only) in spoils() {
            if secrets_only && !secret {
                continue;
            }
            spoiled(&path, spoil, || {
                for args in [&["list"][..], &["status"], &["send", "x"], &["wait", "--timeout", "5s"]] {
                    refuses(&place.run(args), &[3], &path, why);
                }
            });
        }
    }
    let operator = place.path().join("keys/operator.pem");
    for (why, spoil, _) in spoils() {
        spoiled(&operator, spoil, || {
            refuses(&place.run(&["keys", "list"]), &[3], &operator, why);
            refuses(&place.run(&["stop"]), &[3], &operator, why);
        });
    }
    // A run goes on without the daemon, in silence.
    let producer = place.path().join("keys/producer.pem");
    for (why, spoil, _) in spoils() {
        spoiled(&producer, spoil, || {
            let run = place.run(&["run", "--", "true"]);
            assert_eq!((run.code, run.stdout.as_str(), run.stderr.as_str()), (0, "", ""), "{why}");
        });
    }
    assert_eq!(place.json(&["list"])["daemon"], "running");
}

// 13
#[test]
fn a_directory_that_is_not_ours_alone_is_refused_by_name_and_left_as_it_is() {
    let mut spoils: Vec<(&str, Make)> = vec![
        ("can be written by others", |path| mode(path, 0o777)),
        ("can be written by others", |path| mode(path, 0o720)),
        ("is a symbolic link", |path| {
            fs::rename(path, path.with_extension("moved")).unwrap();
            symlink(path.with_extension("moved"), path).unwrap();
        }),
        ("is not a directory", |path| {
            fs::rename(path, path.with_extension("moved")).unwrap();
            put(path, SECRET);
        }),
    ];
    if is_root() {
        spoils.push(("is owned by another user", |path| chown(path, Some(NOBODY), None).unwrap()));
    } else {
        cannot("a directory of another user", "needs root");
    }
    for folder in ["", "keys", "s"] {
        for (why, spoil) in &spoils {
            let mut place = Place::below("dir");
            fs::create_dir(place.path()).unwrap();
            place.start_daemon(&[]);
            let path: PathBuf = place.path().join(folder).components().collect();
            let end = |place: &mut Place| {
                place.signal_daemon(Signal::SIGKILL);
                place.wait_daemon();
            };
            // A live daemon would make its folder again.
            let is_down = folder == "s";
            if is_down {
                end(&mut place);
            }
            spoil(&path);
            let before = unlogged(tree(place.scratch()));
            refuses(&place.run(&["list"]), &[3], &path, why);
            let run = place.run(&["run", "--", "true"]);
            assert_eq!((run.code, run.stderr.as_str()), (0, ""), "{folder} {why}");
            let after = unlogged(tree(place.scratch()));
            assert_eq!(after, before, "{folder} {why}: something was changed");
            if !is_down {
                end(&mut place);
            }
            let before = unlogged(tree(place.scratch()));
            refuses(&ran(&mut place.usherd()), &[3], &path, why);
            assert_eq!(unlogged(tree(place.scratch())), before, "{folder} {why}: something was changed");
        }
    }
}

fn unlogged<T>(mut tree: BTreeMap<PathBuf, T>) -> BTreeMap<PathBuf, T> {
    tree.retain(|path, _| !path.ends_with("usherd.log") && !path.ends_with("stderr.log"));
    tree
}

/// `credentials.json` with a first line that fits.
fn document(version: u64, body: &[u8]) -> Vec<u8> {
    let first = format!("{{\"version\":{version},\"sha256\":\"{}\"}}\n", base64(&sha256(body)));
    [first.as_bytes(), body].concat()
}

// 21
#[test]
fn a_newer_credentials_file_is_refused_by_name_and_version_and_not_a_byte_of_it_is_changed() {
    let place = made();
    let path = place.path().join("credentials.json");
    let whole = fs::read(&path).unwrap();
    let body = &whole[whole.iter().position(|byte| *byte == b'\n').unwrap() + 1..];
    assert_eq!(document(1, body), whole, "the test writes what the daemon writes");
    for newer in
        [document(2, body), document(7, b"{\"of another shape\":[]}\n"), b"{\"version\":2,\"more\":1}\nSECRET".to_vec()]
    {
        put(&path, &newer);
        let before = unlogged(tree(place.path()));
        for args in [&[][..], &["--background"]] {
            let refused = ran(place.usherd().args(args));
            refuses(&refused, &[3], &path, "newer than this program knows");
        }
        assert_eq!(unlogged(tree(place.path())), before);
    }
}

// 38
#[test]
fn a_credentials_file_that_was_cut_emptied_or_altered_is_refused_by_name_and_left() {
    let place = made();
    let path = place.path().join("credentials.json");
    let whole = fs::read(&path).unwrap();
    let mut spoiled: Vec<(String, Vec<u8>)> = Vec::new();
    for at in [1, 10, 70, 72, 80, whole.len() / 2, whole.len() - 2, whole.len() - 1] {
        spoiled.push((format!("cut at {at}"), whole[..at].to_vec()));
    }
    for at in (0..whole.len()).step_by(whole.len() / 40) {
        let mut bytes = whole.clone();
        bytes[at] ^= 1 << (at % 7);
        spoiled.push((format!("byte {at} altered"), bytes));
    }
    spoiled.push(("a byte more".to_owned(), [&whole[..], b"\n"].concat()));
    spoiled.push(("a byte order mark".to_owned(), [b"\xef\xbb\xbf", &whole[..]].concat()));
    // With a digest that fits: somebody edited it and was careful.
    let text = std::str::from_utf8(&whole).unwrap().split_once('\n').unwrap().1.to_owned();
    let edit = |from: &str, to: &str| {
        let edited = text.replacen(from, to, 1);
        assert_ne!(edited, text, "{from}");
        document(1, edited.as_bytes())
    };
    spoiled.push(("an unknown field".to_owned(), edit("\"label\"", "\"nickname\": 1, \"label\"")));
    spoiled.push(("a field twice".to_owned(), edit("\"label\"", "\"label\": \"x\", \"label\"")));
    spoiled.push(("an unknown field at the top".to_owned(), edit("{", "{\"more\": 1,")));
    spoiled.push(("a list".to_owned(), document(1, b"[[]]\n")));
    spoiled.push(("a role that is none".to_owned(), edit("\"role\": \"caller\"", "\"role\": \"king\"")));
    spoiled.push(("a key that is none".to_owned(), edit("\"public_key\": \"", "\"public_key\": \"!")));
    spoiled.push(("a scope that is none".to_owned(), edit("\"row\"", "\"everything\"")));
    spoiled.push(("version 0".to_owned(), document(0, text.as_bytes())));
    for (what, bytes) in spoiled {
        put(&path, &bytes);
        let refused = ran(&mut place.usherd());
        assert_eq!(refused.code, 3, "{what}: {refused:?}");
        assert!(refused.stderr.contains(path.to_str().unwrap()), "{what}: {refused:?}");
        assert_eq!(fs::read(&path).unwrap(), bytes, "{what}: it is left");
    }
    put(&path, &whole);
    assert_eq!(ran(place.usherd().arg("--background")).code, 0);
}

// 38
#[test]
fn a_key_file_of_which_one_bit_is_another_lets_nobody_in() {
    let mut place = made();
    let keys = place.path().join("keys");
    let altered = |name: &str, mut look: Box<dyn FnMut(&str) + '_>| {
        let path = keys.join(name);
        let whole = fs::read(&path).unwrap();
        for at in (0..whole.len()).step_by(whole.len() / 20).chain([whole.len() - 2, whole.len() - 1]) {
            let mut bytes = whole.clone();
            bytes[at] ^= 1 << (at % 6);
            put(&path, &bytes);
            look(&format!("{name}, byte {at}"));
            assert_eq!(fs::read(&path).unwrap(), bytes, "{name}: it is left");
        }
        for at in [1, 30, whole.len() / 2, whole.len() - 2] {
            put(&path, &whole[..at]);
            look(&format!("{name} cut at {at}"));
        }
        put(&path, [&whole[..], &whole[..]].concat());
        look(&format!("{name} twice"));
        put(&path, &whole);
    };
    for name in ["daemon.pem", "daemon.pub"] {
        let not_started = |what: &str| {
            let refused = ran(&mut place.usherd());
            assert_eq!(refused.code, 3, "{what}: {refused:?}");
            assert!(refused.stderr.contains("keys/daemon.p"), "{what}: {refused:?}");
        };
        altered(name, Box::new(not_started));
    }
    place.start_daemon(&[]);
    for (name, args) in [("caller.pem", &["list"][..]), ("operator.pem", &["keys", "list"]), ("daemon.pub", &["list"])]
    {
        let refused = |what: &str| {
            let refused = place.run(args);
            // A bit of the seed makes another good key, which the daemon does not know.
            let codes: &[i32] = if name == "daemon.pub" { &[3] } else { &[3, 5] };
            assert!(codes.contains(&refused.code) && refused.stdout.is_empty(), "{what}: {refused:?}");
            assert!(refused.code == 5 || refused.stderr.contains(&format!("keys/{name}")), "{what}: {refused:?}");
        };
        let path = place.path().join("keys").join(name);
        let whole = fs::read(&path).unwrap();
        for at in (0..whole.len()).step_by(whole.len() / 20).chain([whole.len() - 2, whole.len() - 1]) {
            let mut bytes = whole.clone();
            bytes[at] ^= 1 << (at % 6);
            put(&path, &bytes);
            refused(&format!("{name}, byte {at}"));
        }
        put(&path, &whole);
    }
    assert_eq!(place.json(&["list"])["daemon"], "running");
}

// 38
/// Starts a daemon once no other starter, which an earlier `usher run` may have left behind, holds the lock.
fn start_alone(place: &Place, args: &[&str]) -> Ran {
    until("the lock is free", || {
        let ran = ran(place.usherd().args(args));
        (ran.code != 9).then_some(ran)
    })
}

#[test]
fn keys_without_credentials_and_credentials_without_keys_are_no_first_start() {
    let place = made();
    let (keys, credentials) = (place.path().join("keys"), place.path().join("credentials.json"));
    for (gone, named) in [(&credentials, &credentials), (&keys, &keys)] {
        let away = place.scratch().join("away");
        fs::rename(gone, &away).unwrap();
        let before = unlogged(tree(place.path()));
        for args in [&[][..], &["--background"]] {
            refuses(&start_alone(&place, args), &[3], named, "it is missing although");
        }
        let run = place.run(&["run", "--", "true"]);
        assert_eq!((run.code, run.stderr.as_str()), (0, ""));
        let mut after = unlogged(tree(place.path()));
        after.remove(&place.path().join("usherd.lock"));
        let mut before = before;
        before.remove(&place.path().join("usherd.lock"));
        assert_eq!(after, before, "nothing is begun anew");
        fs::rename(&away, gone).unwrap();
    }
    for name in ["daemon.pem", "daemon.pub"] {
        let (path, away) = (keys.join(name), place.scratch().join("away"));
        fs::rename(&path, &away).unwrap();
        refuses(&start_alone(&place, &[]), &[3], &path, "does not exist");
        assert!(!path.exists());
        fs::rename(&away, &path).unwrap();
    }
    assert_eq!(ran(place.usherd().arg("--background")).code, 0);
}

// 38
#[test]
fn the_bytes_of_the_lock_mean_nothing_and_what_is_no_file_is_refused() {
    let mut place = made();
    let lock = place.path().join("usherd.lock");
    for bytes in [&b""[..], b"garbage", b"1\n", &[0xff; 5000]] {
        put(&lock, bytes);
        place.start_daemon(&[]);
        assert_eq!(ran(&mut place.usherd()).code, 9);
        assert_eq!(fs::read(&lock).unwrap(), bytes);
        place.signal_daemon(Signal::SIGTERM);
        assert_eq!(place.wait_daemon(), 0);
    }
    for (why, spoil, secrets_only) in spoils() {
        if secrets_only || ["is empty", "more than the", "is corrupt"].contains(&why) {
            continue;
        }
        spoiled(&lock, spoil, || refuses(&ran(&mut place.usherd()), &[3], &lock, why));
    }
}

// 38
#[test]
fn a_log_that_cannot_be_written_to_never_stops_a_daemon_and_is_left_as_it_is() {
    let mut place = made();
    let log = place.path().join("usherd.log");
    for bytes in [&b""[..], b"half a li", &[0xff; 5000]] {
        put(&log, bytes);
        place.start_daemon_in_background();
        assert_eq!(place.run(&["stop"]).code, 0);
        let after = fs::read(&log).unwrap();
        assert!(after.starts_with(bytes) && after.len() > bytes.len(), "it is added to");
    }
    for (why, spoil, secrets_only) in spoils() {
        if secrets_only || ["is empty", "more than the", "is corrupt"].contains(&why) {
            continue;
        }
        spoiled(&log, spoil, || {
            let before = tree(&log);
            let run = place.run(&RUN_UNTIL_THERE);
            assert_eq!((run.code, run.stderr.as_str()), (0, ""), "a daemon runs although its log {why}");
            assert_eq!(place.run(&["stop", "--force"]).code, 0, "{why}");
            assert_eq!(tree(&log), before, "{why}: it is left");
        });
    }
}

/// A library that makes one function of the C library fail.
fn failing(place: &Place, function: &str, errno: i32) -> Option<PathBuf> {
    let (source, library) = (place.scratch().join("fail.c"), place.scratch().join(format!("{function}{errno}.so")));
    put(&source, format!("#include <errno.h>\nint {function}() {{ errno = {errno}; return -1; }}\n"));
    let mut cc = Command::new("cc");
    cc.args(["-w", "-shared", "-fPIC", "-fno-builtin", "-o"]).arg(&library).arg(&source);
    cc.stdout(Stdio::null()).stderr(Stdio::null()).status().is_ok_and(|status| status.success()).then_some(library)
}

// 14
#[test]
fn a_file_system_without_locks_or_sockets_is_named_with_the_way_out() {
    for (function, named) in [("flock", "usherd.lock"), ("bind", "s/usherd.sock")] {
        for (errno, word) in [(nix::errno::Errno::ENOLCK, "ENOLCK"), (nix::errno::Errno::EOPNOTSUPP, "EOPNOTSUPP")] {
            if (function, word) == ("bind", "ENOLCK") {
                continue;
            }
            let place = Place::below("dir");
            let Some(library) = failing(&place, function, errno as i32) else {
                return cannot("a file system without locks", "no cc here");
            };
            let refused = ran(place.usherd().env("LD_PRELOAD", &library));
            refuses(&refused, &[3], &place.path().join(named), "without locks or sockets");
            assert!(refused.stderr.contains(word) && refused.stderr.contains("USHER_DIR"), "{refused:?}");
            assert_eq!(refused.stderr.lines().count(), if function == "bind" { 2 } else { 1 }, "{refused:?}");
            assert_eq!(ran(place.usherd().arg("--background")).code, 0, "with locks it starts");
        }
    }
}

// 37
#[test]
fn on_a_full_disk_enrolling_and_revoking_fail_with_a_word_and_the_old_file_stays() {
    let place = Place::below("small");
    let script = r#"
        mount -t tmpfs -o size=256k,mode=0700 none "$1" || exit 99
        say() { printf '%s=%s\n' "$1" "$2"; }
        key() { printf 'A%.0s' $(seq 42); printf '%s' "$1"; }
        sum() { sha256sum <"$1/credentials.json"; }
        "$3" --background || exit 98
        made=$("$2" keys enroll --label early --row --public-key "$(key E)") || exit 97
        dd if=/dev/zero of="$1/filler" bs=4k 2>/dev/null
        say before "$(sum "$1")"
        said=$("$2" keys enroll --label late --row --public-key "$(key I)" 2>&1); say enroll "$? $said"
        said=$("$2" keys revoke "$made" 2>&1); say revoke "$? $said"
        said=$("$2" keys renew caller 2>&1); say renew "$? $said"
        say after "$(sum "$1")"
        say names "$(ls "$1" "$1/keys" | tr '\n' ' ')"
        said=$("$2" health 2>&1); say health "$? $said"
        said=$("$2" --json list 2>&1); say list "$? $said"
        rm "$1/filler"
        said=$("$2" keys enroll --label late --row --public-key "$(key I)" 2>&1); say enroll_again "$?"
        said=$("$2" keys renew caller 2>&1); say renew_again "$? $said"
        said=$("$2" keys revoke "$made" 2>&1); say revoke_again "$? $said"
        "$2" stop; "$3" --background; say restarted "$?"
        say at_last "$("$2" --json keys list --all)"
        "$2" stop --force"#;
    let Some(ran) = in_own_mounts(&place, script) else {
        return cannot("a full disk", "no mount namespaces here");
    };
    let said: BTreeMap<&str, &str> = ran.stdout.lines().filter_map(|line| line.split_once('=')).collect();
    let of = |name: &str| *said.get(name).unwrap_or_else(|| panic!("no {name}: {ran:?}"));
    assert_eq!(of("before"), of("after"), "the old file stays: {ran:?}");
    for (verb, named) in [("enroll", "credentials.json"), ("revoke", "credentials.json"), ("renew", "keys/caller.pem")]
    {
        assert!(of(verb).contains(named) && of(verb).contains("ENOSPC"), "{verb}: {ran:?}");
        assert!(!of(verb).starts_with("0 "), "{verb}: {ran:?}");
    }
    assert!(of("revoke").contains("revoked until the daemon ends, but not stored"), "{ran:?}");
    assert!(!of("names").contains(".tmp") && !of("names").contains(".new"), "nothing is left beside: {ran:?}");
    assert!(of("enroll").starts_with("10 ") && of("revoke").starts_with("10 "), "a full disk is no bug: {ran:?}");
    assert_eq!(of("health"), "0 alive", "{ran:?}");
    let list = of("list").strip_prefix("0 ").and_then(|list| serde_json::from_str::<Value>(list).ok());
    let list = list.unwrap_or_else(|| panic!("list: {ran:?}"));
    assert_eq!(list["daemon"], "running");
    assert!(of("enroll_again").starts_with('0') && of("renew_again").starts_with('0'), "{ran:?}");
    assert!(of("revoke_again").starts_with('0') && of("restarted") == "0", "{ran:?}");
    let records: Value = serde_json::from_str(of("at_last")).unwrap();
    let state = |label: &str| {
        records["credentials"].as_array().unwrap().iter().find(|record| record["label"] == label).unwrap()["state"]
            .clone()
    };
    assert_eq!((state("early"), state("late")), (json!("revoked"), json!("active")), "{ran:?}");
}

// 15
#[test]
fn hostile_titles_folders_and_labels_never_break_the_listing() {
    let place = Place::with_daemon(&[]);
    let hostile = place.scratch().join("x\n\u{1b}[2J\u{202e}y");
    fs::create_dir(&hostile).unwrap();
    let bytes = {
        use std::os::unix::ffi::OsStringExt;
        place.scratch().join(std::ffi::OsString::from_vec(b"not \xff utf\x9b8".to_vec()))
    };
    fs::create_dir(&bytes).unwrap();
    let long = "w".repeat(100_000);
    let titles =
        ["two\nlines", "\u{1b}]0;owned\u{7}\u{1b}[31mred", "\u{9b}31m\u{2028}\u{202e}", long.as_str(), "\r\t\u{8}"];
    let mut runs = Vec::new();
    for (folder, title) in [&hostile, &bytes].into_iter().cycle().zip(titles) {
        let mut run = place.usher();
        run.args(["run", "--title", title, "--label", &format!("k={title}"), "--on", "go=printf '\u{1b}[1m'"]);
        run.args(["--", "sleep", "1000"]).current_dir(folder).stderr(Stdio::null());
        runs.push(run.spawn().unwrap());
        let strange: &std::ffi::OsStr = std::os::unix::ffi::OsStrExt::from_bytes(b"a\xff\x1b[0m\n");
        let mut run = place.usher();
        run.args(["run", "--", "sh", "-c", "exec sleep 1000"]).arg(strange).current_dir(folder);
        runs.push(run.spawn().unwrap());
    }
    // A title of nothing but control characters and a label of 100 kB are mistakes on the command line.
    let count = runs.len() - 2;
    until("all that run are sessions", || {
        (place.json(&["list"])["sessions"].as_array().unwrap().len() == count).then_some(())
    });
    until("the two have ended", || {
        let ended: Vec<_> = runs.iter_mut().filter_map(|run| run.try_wait().unwrap()?.code()).collect();
        (ended == [2, 2]).then_some(())
    });

    for columns in ["40", "200"] {
        let list = ran(place.usher().arg("list").env("COLUMNS", columns));
        assert_eq!((list.code, list.stderr.as_str()), (0, ""));
        assert_eq!(list.stdout.lines().count(), count + 1, "{}", list.stdout);
        assert!(is_harmless(&list.stdout), "{:?}", list.stdout);
    }
    let json = place.run(&["list", "--json"]);
    assert_eq!(json.stdout.lines().count(), 1);
    assert!(is_harmless(&json.stdout), "{:?}", json.stdout);
    for row in place.json(&["list"])["sessions"].as_array().unwrap() {
        let get = place.run(&["get", "--session", row["session_id"].as_str().unwrap()]);
        assert_eq!(get.code, 0, "{get:?}");
        assert!(is_harmless(&get.stdout), "{get:?}");
    }
    let ambiguous = place.run(&["get"]);
    assert_eq!(ambiguous.code, 7);
    assert!(is_harmless(&ambiguous.stderr), "{ambiguous:?}");
    let stop = place.run(&["stop"]);
    assert_eq!(stop.code, 9);
    assert!(is_harmless(&stop.stderr), "{stop:?}");
    for run in &mut runs {
        let _ended_already = run.kill();
        run.wait().unwrap();
    }
}

/// Nothing that a terminal acts on, but the ends of lines.
fn is_harmless(text: &str) -> bool {
    let acted_on =
        |c: char| (c.is_control() && c != '\n') || matches!(c, '\u{2028}' | '\u{2029}' | '\u{202a}'..='\u{202e}');
    !text.chars().any(acted_on)
}

// 15
#[test]
fn what_is_no_text_on_the_command_line_is_a_mistake_that_is_told_in_plain_text() {
    let place = Place::empty();
    let strange: &std::ffi::OsStr = std::os::unix::ffi::OsStrExt::from_bytes(b"\xff\x1b[31m");
    let before = tree(place.path());
    for args in [
        &["run", "--title"][..],
        &["run", "--label"],
        &["run", "--on"],
        &["get", "--title"],
        &["get", "--session"],
        &["get", "--cwd"],
        &["list", "--repo"],
        &["list", "--label"],
        &["send", "--text"],
        &["send"],
        &["rpc"],
        &["keys", "show"],
        &["paths"],
        &[],
        &["wait", "--timeout"],
        &["send", "x", "--deadline"],
        &["rpc", "--role"],
    ] {
        let refused = ran(place.usher().args(args).arg(strange));
        assert_eq!((refused.code, refused.stdout.as_str()), (2, ""), "{args:?}: {refused:?}");
        assert!(is_harmless(&refused.stderr), "{args:?}: {refused:?}");
    }
    assert_eq!(tree(place.path()), before, "nothing was started");
}

// 15
#[test]
fn the_daemon_refuses_hostile_text_whoever_sends_it() {
    let place = Place::with_daemon(&[]);
    let good = registration("good", 1);
    for (field, text) in [
        ("title", "a\nb"),
        ("title", "\u{1b}[31m"),
        ("title", "\u{202e}"),
        ("title", "\u{0}"),
        ("title", ""),
        ("cwd", "/a\nb"),
        ("cwd", "relative"),
        ("cwd", "/\u{9b}"),
    ] {
        let mut params = good.clone();
        params[field] = json!(text);
        put(place.scratch().join("params"), params.to_string());
        let file = format!("@{}", place.scratch().join("params").display());
        let refused = place.run(&["rpc", "--role", "producer", "session.register", &file]);
        assert_eq!((refused.code, refused.stdout.as_str()), (2, ""), "{field} {text:?}: {refused:?}");
        assert!(refused.stderr.contains(field) && is_harmless(&refused.stderr), "{field} {text:?}: {refused:?}");
    }
    let mut large = good.clone();
    large["title"] = json!("x".repeat(1024 * 1024));
    put(place.scratch().join("params"), large.to_string());
    let file = format!("@{}", place.scratch().join("params").display());
    let refused = place.run(&["rpc", "--role", "producer", "session.register", &file]);
    assert_eq!((refused.code, refused.stdout.as_str()), (2, ""), "{refused:?}");

    // Without our client's own look: over the header's bound the connection ends, under it the title is refused.
    let identity = Identity::of(&place, "producer");
    let mut peer = Peer::connect(&identity);
    peer.request("session.register", &large, None);
    let words = peer.all_that_comes();
    assert!(words.iter().all(|message| message.header.get("result").is_none()), "{words:?}");
    large["title"] = json!("x".repeat(10_000));
    let mut peer = Peer::connect(&identity);
    let failure = peer.call("session.register", &large, None).unwrap_err();
    assert_eq!(failure.told().0, "too-large", "{failure:?}");
    assert_eq!(Operator::connect(&place).status()["sessions"], 0);
    let _fine = Producer::with(&identity, &good);
}
