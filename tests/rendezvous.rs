//! One directory, one daemon: found again after any death, never two, and nobody else's file is ever removed.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::{FileTypeExt, MetadataExt, symlink};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;

use crate::support::daemon::{Place, RUN_UNTIL_THERE, Ran, USHER, USHERD, finished, ran};
use crate::support::system::{
    NOBODY, Programs, as_nobody, cannot, fifo, in_own_mounts, is_root, mode, mode_of, put, tree,
};
use crate::support::wait::{promised, until};
use crate::support::wire::{Key, base64};

/// What a start may take.
const START: Duration = Duration::from_secs(3);

/// Starts all of them before the first is waited for.
fn at_once(commands: impl IntoIterator<Item = Command>) -> Vec<Ran> {
    let spawn = |mut command: Command| command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let children: Vec<Child> = commands.into_iter().map(spawn).collect();
    children.into_iter().map(finished).collect()
}

fn running(place: &Place, program: &str, args: &[&str]) -> Command {
    let mut command = place.program(program);
    command.args(args);
    command
}

fn is_silent_success(ran: &Ran) -> bool {
    ran.code == 0 && ran.stdout.is_empty() && ran.stderr.is_empty()
}

/// One line that says so much.
fn says(ran: &Ran, words: &[&str]) {
    assert_eq!(ran.stderr.trim_end().lines().count(), 1, "more than one line: {ran:?}");
    for word in words {
        assert!(ran.stderr.contains(word), "does not say {word:?}: {ran:?}");
    }
}

/// The daemon of a place, once there is exactly one process with its lock.
fn the_daemon(place: &Place) -> u32 {
    until("one daemon has the lock", || match place.daemons().as_slice() {
        [one] => Some(*one),
        _ => None,
    })
}

fn works(place: &Place) {
    let list = place.json(&["list"]);
    assert_eq!(list["daemon"], "running", "{list}");
}

// 1
#[test]
fn after_kill_9_the_next_list_and_the_next_run_work_and_nothing_is_cleaned_up_by_hand() {
    let mut place = Place::with_daemon(&[]);
    let before = place.health().unwrap();
    place.signal_daemon(Signal::SIGKILL);
    assert_eq!(place.wait_daemon(), 128 + 9);
    assert!(place.socket().exists(), "the socket of the dead one is what the next meets");

    let limit = promised(START);
    let begun = Instant::now();
    assert_eq!(place.json(&["list"])["daemon"], "not-running");
    let run = place.run(&RUN_UNTIL_THERE);
    assert!(is_silent_success(&run), "{run:?}");
    let generation = place.health().expect("a new daemon answers");
    assert!(begun.elapsed() < limit, "{:?}", begun.elapsed());
    assert_ne!(generation, before);
    works(&place);
    the_daemon(&place);
}

// 2
#[test]
fn a_stopped_daemon_is_busy_and_not_dead_for_those_that_start() {
    let place = Place::with_daemon(&[]);
    let generation = place.health().unwrap();
    let socket = fs::metadata(place.socket()).unwrap().ino();
    place.signal_daemon(Signal::SIGSTOP);

    let begun = Instant::now();
    let limit = promised(START);
    let holder = format!("is locked by process {}", place.pid());
    let by_hand = at_once((0..5).map(|_| running(&place, USHERD, &[])));
    for ran in &by_hand {
        assert_eq!(ran.code, 9, "{ran:?}");
        says(ran, &[&holder, "usherd.lock"]);
    }
    let launched = at_once((0..5).map(|_| running(&place, USHERD, &["--background"])));
    assert!(launched.iter().all(is_silent_success), "{launched:?}");
    let ran = at_once((0..5).map(|_| running(&place, USHER, &["run", "--", "sh", "-c", "echo ran"])));
    for ran in &ran {
        assert_eq!((ran.code, ran.stdout.as_str(), ran.stderr.as_str()), (0, "ran\n", ""));
    }
    assert!(begun.elapsed() < limit, "{:?}", begun.elapsed());
    assert_eq!(fs::metadata(place.socket()).unwrap().ino(), socket, "the socket is the same inode");

    place.signal_daemon(Signal::SIGCONT);
    assert_eq!(until("it serves on", || place.health()), generation);
    works(&place);
    assert_eq!(the_daemon(&place), place.pid());
}

// 3
#[test]
fn of_fifty_runs_at_once_on_an_empty_directory_all_run_and_one_daemon_starts() {
    let place = Place::empty();
    let all = at_once((0..50).map(|_| running(&place, USHER, &["run", "--", "true"])));
    for (count, ran) in all.iter().enumerate() {
        assert!(is_silent_success(ran), "number {count}: {ran:?}");
    }
    until("a daemon answers", || place.health());
    the_daemon(&place);
    works(&place);
    let log = place.log_text();
    assert_eq!(log.matches("is ready in").count(), 1, "{log}");
    assert_eq!(log.matches("first start").count(), 1, "{log}");
}

// 3
#[test]
fn of_twelve_that_race_for_the_first_start_one_makes_the_keys_and_all_are_content() {
    for round in 0..3 {
        let place = Place::empty();
        let all = at_once((0..12).map(|_| running(&place, USHERD, &["--background"])));
        assert!(all.iter().all(is_silent_success), "round {round}: {all:?}");
        works(&place);
        the_daemon(&place);

        let mut names: Vec<_> = fs::read_dir(place.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        names.sort();
        assert_eq!(names, ["audit.ndjson", "credentials.json", "keys", "s", "usherd.lock", "usherd.log"]);
        let mut keys: Vec<_> =
            fs::read_dir(place.path().join("keys")).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        keys.sort();
        assert_eq!(keys, ["caller.pem", "daemon.pem", "daemon.pub", "operator.pem", "producer.pem"]);

        let public = |name: &str| base64(&Key::read(&place.path().join("keys").join(name)).public());
        let said = fs::read_to_string(place.path().join("keys/daemon.pub")).unwrap();
        assert_eq!(said, format!("{}\n", public("daemon.pem")));
        let stored = fs::read_to_string(place.path().join("credentials.json")).unwrap();
        let stored: serde_json::Value = serde_json::from_str(stored.split_once('\n').unwrap().1).unwrap();
        let records = stored["credentials"].as_array().unwrap();
        assert_eq!(records.len(), 3);
        let mut four = BTreeSet::from([public("daemon.pem")]);
        for record in records {
            let key = public(&format!("{}.pem", record["role"].as_str().unwrap()));
            assert_eq!(record["public_key"], key.as_str(), "record and key are of one maker: {record}");
            four.insert(key);
        }
        assert_eq!(four.len(), 4, "four independent keys");
    }
}

// 4
#[test]
fn a_second_daemon_by_hand_says_who_holds_the_lock_and_an_automatic_one_is_silent() {
    let place = Place::with_daemon(&[]);
    let limit = promised(Duration::from_secs(2));
    let begun = Instant::now();
    let second = ran(&mut place.usherd());
    assert!(begun.elapsed() < limit, "{:?}", begun.elapsed());
    assert_eq!(second.code, 9, "{second:?}");
    says(&second, &[&format!("is locked by process {}", place.pid()), &place.path().display().to_string()]);

    let begun = Instant::now();
    let launched = ran(place.usherd().arg("--background"));
    assert!(begun.elapsed() < limit, "{:?}", begun.elapsed());
    assert!(is_silent_success(&launched), "{launched:?}");
    assert_eq!(the_daemon(&place), place.pid());
    works(&place);
}

/// Makes something at a path.
type Make = fn(&Path);

// 5
#[test]
fn what_is_no_socket_of_ours_at_the_sockets_path_is_named_and_never_removed() {
    let things: [(&str, Make); 5] = [
        ("a regular file", |path| put(path, b"mine")),
        ("a folder", |path| fs::create_dir(path).unwrap()),
        ("a FIFO", |path| fifo(path)),
        ("a dangling link", |path| symlink("nowhere", path).unwrap()),
        ("a link to a socket", |path| symlink("/proc/self/fd/0", path).unwrap()),
    ];
    let mut place = Place::with_daemon(&[]);
    place.signal_daemon(Signal::SIGTERM);
    assert_eq!(place.wait_daemon(), 0);
    let socket = place.socket();
    let name = socket.display().to_string();
    for (what, make) in things {
        make(&socket);
        let before = tree(&place.path().join("s"));
        let limit = promised(START);
        let begun = Instant::now();
        for args in [&[][..], &["--background"]] {
            let started = ran(place.usherd().args(args));
            assert_eq!(started.code, 3, "{what}: {started:?}");
            says(&started, &[&name, "is not a socket"]);
        }
        let list = place.run(&["list"]);
        assert_eq!((list.code, list.stdout.as_str()), (3, ""), "{what}: {list:?}");
        assert!(list.stderr.contains(&name), "{what}: {list:?}");
        let run = place.run(&["run", "--", "true"]);
        assert!(is_silent_success(&run), "{what}: {run:?}");
        assert!(begun.elapsed() < 2 * limit, "{what}: {:?}", begun.elapsed());
        assert_eq!(tree(&place.path().join("s")), before, "{what} is as it was");
        if socket.symlink_metadata().unwrap().is_dir() {
            fs::remove_dir(&socket).unwrap();
        } else {
            fs::remove_file(&socket).unwrap();
        }
    }
    place.start_daemon(&[]);
    works(&place);
}

// 5
#[test]
fn a_socket_of_another_user_at_the_path_is_not_removed() {
    if !is_root() {
        return cannot("a socket of another user", "needs root");
    }
    let mut place = Place::with_daemon(&[]);
    place.signal_daemon(Signal::SIGKILL);
    place.wait_daemon();
    std::os::unix::fs::lchown(place.socket(), Some(NOBODY), None).unwrap();
    let started = ran(&mut place.usherd());
    assert_eq!(started.code, 3, "{started:?}");
    says(&started, &[&place.socket().display().to_string(), "is owned by another user"]);
    assert!(place.socket().symlink_metadata().unwrap().file_type().is_socket());
}

// 7
#[test]
fn a_directory_that_cannot_be_made_or_written_to_is_named_with_the_reason_and_soon() {
    let place = Place::empty();
    put(place.path().join("file"), b"x");
    let file = place.path().join("file/in");
    let long = place.path().join("x".repeat(256));
    for (dir, why) in [(&*file, "ENOTDIR"), (&*long, "ENAMETOOLONG"), (Path::new("/proc/usher"), "does not exist")] {
        let limit = promised(START);
        let begun = Instant::now();
        for args in [&[][..], &["--background"]] {
            let started = ran(place.usherd().args(args).env("USHER_DIR", dir));
            assert_eq!(started.code, 3, "{started:?}");
            says(&started, &[why, &dir.parent().unwrap().display().to_string()]);
        }
        let run = ran(place.usher().args(["run", "--", "true"]).env("USHER_DIR", dir));
        assert!(is_silent_success(&run), "{run:?}");
        assert!(begun.elapsed() < limit, "{:?}", begun.elapsed());
    }
}

// 7
#[test]
fn another_user_who_cannot_write_there_is_told_so() {
    if !is_root() {
        return cannot("a directory that another user cannot write to", "needs root");
    }
    let programs = Programs::for_everybody();
    let place = Place::empty();
    mode(place.path(), 0o755);
    fs::create_dir(place.path().join("closed")).unwrap();
    mode(place.path().join("closed"), 0o700);
    fs::create_dir(place.path().join("open")).unwrap();
    mode(place.path().join("open"), 0o755);
    for (dir, named) in [("missing", "missing"), ("open/missing/deep", "open/missing"), ("closed/x", "closed/x")] {
        let before = tree(place.path());
        for args in [&[][..], &["--background"]] {
            let mut usherd = place.program(programs.usherd());
            let started = ran(as_nobody(usherd.args(args).env("USHER_DIR", place.path().join(dir))));
            assert_eq!(started.code, 3, "{started:?}");
            says(&started, &[&place.path().join(named).display().to_string(), "EACCES"]);
        }
        assert_eq!(tree(place.path()), before);
    }
    let mut usherd = place.program(programs.usherd());
    let started = ran(as_nobody(usherd.env("USHER_DIR", place.path().join("open"))));
    assert_eq!(started.code, 3, "{started:?}");
    says(&started, &[&place.path().join("open").display().to_string(), "is owned by another user"]);
}

// 7
#[test]
fn a_directory_that_is_missing_is_made_with_its_parents_for_this_user_alone() {
    let mut place = Place::below("a/b/c");
    place.start_daemon_in_background();
    works(&place);
    for folder in ["a", "a/b", "a/b/c", "a/b/c/s", "a/b/c/keys"] {
        assert_eq!(mode_of(place.scratch().join(folder)), 0o700, "{folder}");
    }
}

// 7
#[test]
fn a_read_only_file_system_is_named_with_its_reason() {
    let place = Place::below("ro");
    let script = r#"
        mount -t tmpfs -o mode=0700 none "$1" && mount -o remount,ro "$1" || exit 99
        exec 2>&1
        "$3"; echo "code $?"
        "$3" --background; echo "code $?"
        "$2" run -- echo ran; echo "code $?"
        "$2" list; echo "code $?""#;
    let Some(ran) = in_own_mounts(&place, script) else {
        return cannot("a read-only file system", "no mount namespaces here");
    };
    let dir = place.path().display();
    let lines: Vec<_> = ran.stdout.lines().collect();
    assert_eq!(lines.len(), 8, "{ran:?}");
    for line in [lines[0], lines[2]] {
        assert!(line.contains(&format!("{dir}")) && line.contains("EROFS"), "{ran:?}");
    }
    assert_eq!((lines[1], lines[3]), ("code 3", "code 3"), "{ran:?}");
    assert_eq!(lines[4..], ["ran", "code 0", "no daemon is running", "code 0"], "{ran:?}");
}

// 7
#[test]
fn a_directory_from_which_nothing_may_be_run_is_good_enough() {
    let place = Place::below("noexec");
    let script = r#"
        mount -t tmpfs -o noexec,mode=0700 none "$1" || exit 99
        "$2" run --title there -- sh -c '"$1" wait --title there --timeout 20s >/dev/null && "$1" list' sh "$2"
        echo "code $?"
        "$2" stop --force"#;
    let Some(ran) = in_own_mounts(&place, script) else {
        return cannot("a file system without execution", "no mount namespaces here");
    };
    assert!(ran.stdout.contains(" there ") && ran.stdout.contains("code 0\n"), "{ran:?}");
    assert_eq!(ran.code, 0, "{ran:?}");
}

// 8
#[test]
fn two_directories_live_side_by_side_and_the_end_of_one_does_not_touch_the_other() {
    let mut one = Place::with_daemon(&[]);
    let two = Place::with_daemon(&[]);
    let generation = two.health().unwrap();
    let before = tree(two.path());
    assert_ne!(one.health().unwrap(), generation);
    let stopped = one.run(&["stop"]);
    assert_eq!(stopped.code, 0, "{stopped:?}");
    assert_eq!(one.wait_daemon(), 0);
    assert_eq!(two.health(), Some(generation));
    works(&two);
    let unlogged = |mut tree: std::collections::BTreeMap<_, _>| {
        for own in [two.log(), two.path().join("audit.ndjson")] {
            tree.remove(&own);
        }
        tree
    };
    assert_eq!(unlogged(tree(two.path())), unlogged(before));
    assert!(!one.socket().exists());
}

/// Moments of a start, in milliseconds: before anything, in the middle, and when all is done.
fn moments() -> impl Iterator<Item = Duration> {
    (0..24).map(|round| Duration::from_micros(round * round * 180))
}

/// Lets a program run for a moment and kills it.
fn kill_after(mut command: Command, moment: Duration) {
    let mut child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    // No condition is waited for: the moment is the test.
    std::thread::sleep(moment);
    child.kill().unwrap();
    child.wait().unwrap();
}

// 9
#[test]
fn a_launcher_that_is_killed_in_the_middle_of_a_start_is_in_nobodys_way() {
    let old = Place::empty();
    for moment in moments() {
        let fresh = Place::empty();
        for place in [&fresh, &old] {
            kill_after(running(place, USHERD, &["--background"]), moment);
            let next = ran(place.usherd().arg("--background"));
            assert!(is_silent_success(&next), "after {moment:?}: {next:?}\n{}", place.log_text());
            works(place);
            the_daemon(place);
        }
        old.kill_daemons();
    }
}

// 9
#[test]
fn a_daemon_that_is_killed_between_lock_and_ready_is_in_nobodys_way() {
    let old = Place::empty();
    for moment in moments() {
        let fresh = Place::empty();
        for place in [&fresh, &old] {
            kill_after(running(place, USHERD, &[]), moment);
            let begun = Instant::now();
            let run = place.run(&RUN_UNTIL_THERE);
            assert!(is_silent_success(&run), "after {moment:?}: {run:?}");
            assert!(begun.elapsed() < promised(START), "after {moment:?}: {:?}", begun.elapsed());
            works(place);
            the_daemon(place);
        }
        old.kill_daemons();
    }
}

// 10
#[test]
fn a_directory_of_any_length_works_from_end_to_end() {
    for length in [90, 103, 104, 107, 108, 150, 300] {
        let base = tempfile::Builder::new().prefix("u").tempdir_in("/tmp").unwrap();
        let mut dir = base.path().to_str().unwrap().to_owned();
        while dir.len() < length {
            // Components of at most 101 bytes, none of them empty.
            let left = length - dir.len() - 1;
            let take = if left > 102 { 100 } else { left };
            dir = format!("{dir}/{}", "d".repeat(take));
        }
        assert_eq!(dir.len(), length);
        let place = Place::below(&dir);
        assert_eq!(place.path().as_os_str().len(), length);
        let inside =
            r#""$1" wait --title long --timeout 20s >/dev/null && "$1" list && "$1" send echo '{"a":1}' && exit 7"#;
        let run = place.run(&["run", "--title", "long", "--on", "echo=cat", "--", "sh", "-c", inside, "sh", USHER]);
        assert_eq!((run.code, run.stderr.as_str()), (7, ""), "{length}: {run:?}\n{}", place.log_text());
        let lines: Vec<_> = run.stdout.lines().collect();
        assert!(lines.len() == 3 && lines[1].contains(" long ") && lines[2] == r#"{"a":1}"#, "{length}: {run:?}");
        assert!(place.socket().symlink_metadata().unwrap().file_type().is_socket(), "{length}");
        let stopped = place.run(&["stop", "--force"]);
        assert_eq!(stopped.code, 0, "{length}: {stopped:?}");
        assert_eq!(fs::read_dir(base.path()).unwrap().count(), 1, "{length}: only the path itself, none cut short");
    }
}

#[test]
fn a_socket_that_vanishes_under_a_live_daemon_is_bound_again() {
    let place = Place::with_daemon(&[]);
    let generation = place.health().unwrap();
    let folder = place.path().join("s");
    let losses: [(&str, Make); 4] = [
        ("the socket was removed", |folder| fs::remove_file(folder.join("usherd.sock")).unwrap()),
        ("the socket was moved", |folder| fs::rename(folder.join("usherd.sock"), folder.join("away")).unwrap()),
        // The daemon may be making it again at the same moment.
        ("the folder was removed", |folder| until("it is gone", || fs::remove_dir_all(folder).ok())),
        ("the folder was moved", |folder| fs::rename(folder, folder.with_file_name("away")).unwrap()),
    ];
    for (what, lose) in losses {
        lose(&folder);
        assert_eq!(until(what, || place.health()), generation, "{what}");
        works(&place);
    }
    assert_eq!(the_daemon(&place), place.pid());
}

#[test]
fn a_socket_that_cannot_be_bound_again_at_once_is_bound_when_it_can() {
    let place = Place::with_daemon(&[]);
    let generation = place.health().unwrap();
    let folder = place.path().join("s");
    let told = |what: &str| until("the log tells it", || place.log_text().contains(what).then_some(()));

    // Somebody puts a file of theirs at the path, in one step.
    put(place.path().join("theirs"), b"mine");
    fs::rename(place.path().join("theirs"), place.socket()).unwrap();
    told("is not a socket");
    assert_eq!(fs::read(place.socket()).unwrap(), b"mine");
    fs::remove_file(place.socket()).unwrap();
    assert_eq!(until("the file is gone", || place.health()), generation);

    // The folder is a link for a while.
    fs::rename(&folder, place.path().join("away")).unwrap();
    until("the folder is made again", || fs::symlink_metadata(&folder).ok());
    until("the socket is in it", || place.health());
    fs::rename(&folder, place.path().join("away too")).unwrap();
    until("it is made once more", || place.health());
    works(&place);
}

#[test]
fn a_folder_of_the_socket_that_is_a_link_is_not_followed_and_found_again_once_it_is_gone() {
    let place = Place::with_daemon(&[]);
    let generation = place.health().unwrap();
    let (folder, theirs) = (place.path().join("s"), place.path().join("theirs"));
    fs::create_dir(&theirs).unwrap();
    symlink(&theirs, place.path().join("link")).unwrap();
    // The daemon may make the folder again before the link has its name: then the link replaces nothing, so try anew.
    until("the link takes the folder's place", || {
        let _gone = fs::remove_dir_all(&folder);
        fs::rename(place.path().join("link"), &folder).ok()
    });
    until("the log tells it", || place.log_text().contains("is a symbolic link").then_some(()));
    assert_eq!(fs::read_dir(&theirs).unwrap().count(), 0, "nothing is made where the link leads");
    fs::remove_file(&folder).unwrap();
    assert_eq!(until("the socket is bound again", || place.health()), generation);
}
