//! What the disk and others do to it: the daemon lives, counts, and says so.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::{chown, symlink};
use std::path::Path;

use serde_json::{Value, json};

use super::{fails, file, line, lines, stop, verifies};
use crate::support::daemon::Place;
use crate::support::system::{NOBODY, cannot, fifo, in_own_mounts, is_root, mode, put};
use crate::support::wait::until;

fn status(place: &Place) -> Value {
    place.json(&["status", "--operator"])["status"]["audit"].clone()
}

// 13
#[test]
fn a_file_that_is_no_audit_of_ours_alone_is_left_and_the_daemon_serves_and_says_so() {
    type Make = fn(&Path);
    let mut makes: Vec<(&str, Make)> = vec![
        ("is no audit", |path| put(path, "notes of mine\n")),
        ("can be written by others", |path| {
            put(path, "");
            mode(path, 0o666);
        }),
        ("is a symbolic link", |path| symlink("/dev/null", path).unwrap()),
        ("is not a regular file", |path| fifo(path)),
        ("is not a regular file", |path| fs::create_dir(path).unwrap()),
        ("has several links", |path| {
            put(path.with_extension("other"), "");
            fs::hard_link(path.with_extension("other"), path).unwrap();
        }),
    ];
    if is_root() {
        makes.push(("is owned by another user", |path| {
            put(path, "");
            chown(path, Some(NOBODY), None).unwrap();
        }));
    }
    let mut place = Place::with_daemon(&[]);
    stop(&mut place);
    for name in ["audit.ndjson", "audit-head.json"] {
        fs::remove_file(place.path().join(name)).unwrap();
    }
    for (what, make) in makes {
        let path = file(&place);
        make(&path);
        let before = fs::symlink_metadata(&path).unwrap();
        place.start_daemon(&[]);
        place.json(&["list"]);
        let told = until("facts are counted", || Some(status(&place)).filter(|told| told["lost"].as_u64() > Some(2)));
        assert_eq!(told["state"], "unavailable", "{what}");
        let verified = place.run(&["audit", "--verify"]);
        assert_ne!(verified.code, 0, "{what}: {verified:?}");
        let words = if what == "is no audit" { "is corrupt: no line of its end is one of an audit" } else { what };
        assert!(place.log_text().contains(words), "{what}: {}", place.log_text());
        let after = fs::symlink_metadata(&path).unwrap();
        assert_eq!((before.len(), before.modified().unwrap()), (after.len(), after.modified().unwrap()), "{what}");
        let away = place.scratch().join(format!("away-{}", what.replace(' ', "-")));
        let _none = fs::remove_file(path.with_extension("other"));
        fs::rename(&path, &away).unwrap();
        if away.is_dir() {
            fs::remove_dir(&away).unwrap();
        } else {
            fs::remove_file(&away).unwrap();
        }
        // Moved away, another is begun, and says how many facts have no line.
        let lost = line(&place, "lost", 0);
        assert!(lost["count"].as_u64() > Some(2), "{what}: {lost}");
        assert_eq!(verifies(&place, "daemon")["notes"][0]["fact"], "lost", "{what}");
        assert_eq!(status(&place)["state"], "available", "{what}");
        stop(&mut place);
        for name in ["audit.ndjson", "audit-head.json"] {
            fs::remove_file(place.path().join(name)).unwrap();
        }
        fs::remove_file(place.log()).unwrap();
    }
}

#[test]
fn a_file_that_somebody_takes_away_or_writes_to_while_the_daemon_runs_is_told() {
    let place = Place::with_daemon(&[]);
    line(&place, "started", 0);
    fs::rename(file(&place), place.scratch().join("away")).unwrap();
    place.json(&["list"]);
    let told = line(&place, "end-differs", 0);
    assert!(told["known_seq"].as_u64() >= Some(2) && told["found_seq"] == 0, "{told}");
    fails(&place, "it says that a daemon found the file cut off or altered");
    assert_eq!(lines(&place)[0]["fact"], "begun");
    assert!(place.log_text().contains("it is opened anew"));
}

// 37
#[test]
fn on_a_full_disk_the_daemon_serves_counts_and_tells_the_gap_when_there_is_room_again() {
    let place = Place::below("small");
    let script = r#"
        mount -t tmpfs -o size=256k,mode=0700 none "$1" || exit 99
        say() { printf '%s=%s\n' "$1" "$2"; }
        "$3" --background || exit 98
        "$2" list >/dev/null 2>&1
        dd if=/dev/zero of="$1/filler" bs=1k 2>/dev/null
        count=0; while [ $count -lt 40 ]; do "$2" list >/dev/null 2>&1 || say failed $count; count=$((count + 1)); done
        say health "$("$2" health 2>&1)"
        say full "$("$2" --json status --operator)"
        say verify_full "$("$2" --json audit --verify 2>&1); $?"
        rm "$1/filler"
        count=0
        until "$2" audit --json | grep -q '"fact":"lost"' || [ $count -ge 300 ]; do sleep 0.1; count=$((count + 1)); done
        say lost "$("$2" audit --json | grep '"fact":"lost"' | tail -n 1)"
        say again "$("$2" --json status --operator)"
        say verify "$("$2" --json audit --verify 2>&1)"
        "$2" stop >/dev/null
        say verify_stopped "$("$2" --json audit --verify 2>&1)"
        "$3" --background; dd if=/dev/zero of="$1/filler" bs=1k 2>/dev/null
        said=$("$2" stop 2>&1); say stop_full "$? $said"
        say verify_stop_full "$("$2" --json audit --verify 2>&1)"
        "$3" --background; say start_full "$?"
        say health_full "$("$2" health 2>&1)"
        "$2" stop >/dev/null 2>&1"#;
    let Some(ran) = in_own_mounts(&place, script) else {
        return cannot("an audit on a full disk", "no mount namespaces here");
    };
    let said: BTreeMap<&str, &str> = ran.stdout.lines().filter_map(|line| line.split_once('=')).collect();
    let of = |name: &str| *said.get(name).unwrap_or_else(|| panic!("no {name}: {ran:?}"));
    let document = |name: &str| -> Value {
        serde_json::from_str(of(name)).unwrap_or_else(|error| panic!("{name}: {error}: {ran:?}"))
    };
    assert!(!said.contains_key("failed"), "{ran:?}");
    assert_eq!((of("health"), of("health_full")), ("alive", "alive"));
    let full = &document("full")["status"]["audit"];
    assert_eq!(full["state"], "unavailable", "{ran:?}");
    assert!(full["lost"].as_u64() > Some(10), "{ran:?}");
    assert!(of("verify_full").ends_with("; 0"), "what is there is unbroken: {ran:?}");
    let lost = document("lost");
    assert!(lost["count"].as_u64() >= full["lost"].as_u64(), "{ran:?}");
    assert_eq!(document("again")["status"]["audit"]["state"], "available", "{ran:?}");
    for (name, against) in [("verify", "daemon"), ("verify_stopped", "stop")] {
        let document = document(name);
        assert_eq!((&document["verified"], &document["against"]), (&json!(true), &json!(against)), "{ran:?}");
        let notes = document["notes"].as_array().unwrap();
        assert!(notes.iter().any(|note| note["fact"] == "lost"), "{ran:?}");
    }
    assert!(of("stop_full").starts_with("0 ") && of("start_full") == "0", "{ran:?}");
    assert_eq!(document("verify_stop_full")["verified"], true, "{ran:?}");
}
