//! What a shell, a terminal and another user leave to the daemon and to its directory: nothing.

use std::collections::BTreeSet;
use std::fs;
use std::io::Write;
use std::os::unix::fs::{chown, symlink};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;

use crate::support::daemon::{Place, UNTIL_THERE, USHER, USHERD, finished, ran};
use crate::support::peers::Producer;
use crate::support::system::{NOBODY, Process, Programs, as_nobody, cannot, fifo, is_root, kill, mode, put, tree};
use crate::support::wait::{promised, until};

/// The daemon of a place, once it answers.
fn the_daemon(place: &Place) -> u32 {
    until("a daemon answers", || place.health());
    until("one daemon has the lock", || match place.daemons().as_slice() {
        [one] => Some(*one),
        _ => None,
    })
}

/// Bits of signals, as `status` of a process shows them.
fn bits(signals: &[Signal]) -> u64 {
    signals.iter().map(|signal| 1 << (*signal as i32 - 1)).sum()
}

/// Asserts that a daemon has nothing but what is its own.
fn has_nothing_of_the_shell(place: &Place, pid: u32) {
    let process = Process::new(pid);
    let root = place.path().to_str().unwrap();
    for (number, leads) in process.descriptors() {
        let own = leads == "/dev/null"
            || leads.starts_with(root)
            || ["socket:", "anon_inode:"].iter().any(|kind| leads.starts_with(kind));
        assert!(own, "descriptor {number} leads to {leads}");
        assert!(!leads.contains("shell"), "descriptor {number} leads to {leads}");
    }
    let names: Vec<_> = process.environment().into_keys().collect();
    assert!(names.iter().all(|name| ["USHER_DIR", "HOME", "USHER_LOG"].contains(&name.as_str())), "{names:?}");
    assert_eq!(process.cwd(), Path::new("/"));
    assert_eq!(process.status("Umask"), "0077");
    let mask = |field: &str| u64::from_str_radix(&process.status(field), 16).unwrap();
    // Every Rust program ignores SIGPIPE; 32 and 33 are the C library's own, and it sets them so in all that it spawns.
    let ignored = mask("SigIgn") & !bits(&[Signal::SIGPIPE]) & !(0b11 << 31);
    assert_eq!(ignored, 0, "ignored signals {ignored:x}");
    let waited_for = bits(&[Signal::SIGTERM, Signal::SIGINT, Signal::SIGHUP, Signal::SIGUSR1]);
    assert_eq!(mask("SigBlk"), waited_for, "blocked signals");
    let (group, session, terminal) = (process.stat(5), process.stat(6), process.stat(7));
    assert_eq!(terminal, 0, "it has a terminal");
    let own = nix::unistd::getpgrp();
    assert!(group != i64::from(own.as_raw()) && session != i64::from(nix::unistd::getsid(None).unwrap().as_raw()));
    let parent = u32::try_from(process.stat(4)).unwrap();
    assert_ne!(parent, std::process::id());
}

// 24
#[test]
fn a_daemon_that_a_shell_caused_holds_nothing_of_it() {
    let run = format!("\"$1\" run -- sh -c '{UNTIL_THERE}' \"$1\"");
    for (what, started_by) in [("run", run.as_str()), ("background", "\"$2\" --background")] {
        let place = Place::below("daemon");
        let shell = place.scratch().join("shell");
        fs::create_dir(&shell).unwrap();
        fifo(shell.join("fifo"));
        put(shell.join("lock"), b"x");
        // A pipe on 7, a locked file on 9, signals that are ignored, an open umask, a folder and a variable of its own.
        let script = format!(
            "exec 7<>fifo 9<lock; flock -n 9 || exit 99; trap '' HUP TERM INT USR1 CHLD; umask 000; FOO=bar; export FOO; {started_by}"
        );
        let mut command = place.program("sh");
        command.args(["-c", &script, "sh", USHER, USHERD]).current_dir(&shell);
        // Its three streams are pipes too; they end when all who hold them have ended.
        let done =
            finished(command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap());
        assert_eq!((done.code, done.stdout.as_str(), done.stderr.as_str()), (0, "", ""), "{what}");
        let pid = the_daemon(&place);
        has_nothing_of_the_shell(&place, pid);
        let free = ran(Command::new("flock").arg("-n").arg(shell.join("lock")).arg("true"));
        assert_eq!(free.code, 0, "{what}: nobody holds the shell's lock");
        for (path, (_, mode, ..)) in tree(place.path()) {
            assert_eq!(mode & 0o077, 0, "{what}: {} is open to others", path.display());
        }
        // No signal is ignored: it ends in order.
        kill(pid, Signal::SIGTERM);
        until("it ends", || place.daemons().is_empty().then_some(()));
        assert!(!place.socket().exists(), "{what}: {}", place.log_text());
    }
}

// 24
#[test]
fn a_command_substitution_around_a_run_returns_at_once() {
    let place = Place::empty();
    let limit = promised(Duration::from_secs(3));
    let begun = Instant::now();
    let script = format!("x=$(\"$1\" run -- sh -c '{UNTIL_THERE}; echo value' \"$1\" 2>&1); echo \"got $x\"");
    let done = ran(place.program("sh").args(["-c", &script, "sh", USHER]));
    assert_eq!((done.code, done.stdout.as_str(), done.stderr.as_str()), (0, "got value\n", ""));
    assert!(begun.elapsed() < limit, "{:?}", begun.elapsed());
    the_daemon(&place);
}

/// A command in a terminal of its own, whose keyboard is the pipe.
fn in_terminal(place: &Place, line: &str) -> Option<Child> {
    let works = Command::new("script").args(["-qec", "true", "/dev/null"]).stdin(Stdio::null()).output();
    if !works.is_ok_and(|output| output.status.success()) {
        return None;
    }
    let mut script = place.program("script");
    script.args(["-qec", line, "/dev/null"]).stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null());
    Some(script.spawn().unwrap())
}

fn titles(place: &Place) -> BTreeSet<String> {
    let list = place.json(&["list"]);
    let sessions = list["sessions"].as_array().unwrap();
    sessions.iter().map(|row| row["title"].as_str().unwrap().to_owned()).collect()
}

// 25
#[test]
fn the_daemon_outlives_ctrl_c_in_the_terminal_that_caused_it_and_the_terminal() {
    let place = Place::empty();
    let line = format!("exec '{USHER}' run --title first -- sleep 1000");
    let Some(mut terminal) = in_terminal(&place, &line) else {
        return cannot("a terminal that is closed", "no script(1) here");
    };
    let pid = the_daemon(&place);
    let generation = place.health().unwrap();
    until("the session is there", || titles(&place).contains("first").then_some(()));
    terminal.stdin.as_mut().unwrap().write_all(b"\x03").unwrap();
    until("Ctrl-C ends the program", || terminal.try_wait().unwrap());
    until("its session is gone", || titles(&place).is_empty().then_some(()));
    assert_eq!(place.health(), Some(generation.clone()));

    // With a shell between the terminal and the run, which has the hangup passed on to its foreground group.
    closed_under(&place, &format!("'{USHER}' run --title second -- sleep 1000; true"));
    assert_eq!(place.health(), Some(generation));
    assert_eq!(the_daemon(&place), pid);
}

/// The terminal goes away under a run, as a window does that is closed; its session goes with it.
fn closed_under(place: &Place, line: &str) {
    let mut terminal = in_terminal(place, line).unwrap();
    until("the session is there", || titles(place).contains("second").then_some(()));
    terminal.kill().unwrap();
    terminal.wait().unwrap();
    until("its session is gone", || titles(place).is_empty().then_some(()));
}

// 25
#[test]
fn a_run_that_is_its_terminals_only_program_ends_when_the_terminal_is_closed() {
    let mut place = Place::empty();
    place.start_daemon_in_background();
    if in_terminal(&place, "true").map(finished).is_none() {
        return cannot("a terminal that is closed", "no script(1) here");
    }
    closed_under(&place, &format!("exec '{USHER}' run --title second -- sleep 1000"));
}

// 25
#[test]
fn the_daemon_takes_no_notice_of_a_hangup_and_ends_in_order_at_ctrl_c_in_its_own_terminal() {
    let mut background = Place::empty();
    background.start_daemon_in_background();
    let foreground = Place::with_daemon(&[]);
    for place in [&background, &foreground] {
        let (pid, generation) = (the_daemon(place), place.health());
        let producer = Producer::start(place, "stays");
        for _ in 0..20 {
            kill(pid, Signal::SIGHUP);
            assert_eq!(place.health(), generation);
        }
        assert_eq!(titles(place), BTreeSet::from(["stays".to_owned()]));
        drop(producer);
    }

    let place = Place::empty();
    let Some(mut terminal) = in_terminal(&place, &format!("exec '{USHERD}'")) else {
        return cannot("a daemon in a terminal", "no script(1) here");
    };
    the_daemon(&place);
    terminal.stdin.as_mut().unwrap().write_all(b"\x03").unwrap();
    let status = until("Ctrl-C ends it", || terminal.try_wait().unwrap());
    assert_eq!(status.code(), Some(0));
    assert!(!place.socket().exists());
}

/// A user's own directory, under a home of the test's.
struct Home {
    place: Place,
}

impl Home {
    fn new() -> Self {
        let home = Place::empty();
        let root = ran(Self::bare(home.path(), USHER).args(["paths", "root"]));
        assert_eq!(root.code, 0, "{root:?}");
        let root = root.stdout.trim_end().to_owned();
        let folder = Path::new(&root).strip_prefix(home.path()).unwrap().to_owned();
        let place = Place::below(folder);
        Self { place }
    }

    fn path(&self) -> &Path {
        self.place.scratch()
    }

    /// With nothing in the environment but a home.
    fn bare(home: &Path, program: &str) -> Command {
        let mut command = Command::new(program);
        command.env_clear().env("HOME", home).stdin(Stdio::null()).current_dir("/");
        command
    }
}

// 11
#[test]
fn a_shell_cron_and_ssh_see_the_same_sessions() {
    let home = Home::new();
    let link = home.path().join("link to home");
    symlink(home.path(), &link).unwrap();
    let mut shell = Command::new(USHER);
    shell.env("HOME", home.path()).env_remove("USHER_DIR").env_remove("USHER_SESSION").env_remove("USHER_CREDENTIAL");
    let mut session = shell.args(["run", "--title", "mine", "--", "sleep", "1000"]).spawn().unwrap();
    the_daemon(&home.place);
    assert!(home.place.path().starts_with(home.path().join(".local/state/usher")), "{:?}", home.place.path());

    let environments: [(&str, &[(&str, &str)]); 5] = [
        ("nothing but HOME", &[]),
        ("cron", &[("SHELL", "/bin/sh"), ("LOGNAME", "x"), ("PATH", "/usr/bin:/bin")]),
        ("ssh", &[("XDG_RUNTIME_DIR", "/run/user/0"), ("SSH_TTY", "/dev/pts/9"), ("TMPDIR", "/nonexistent")]),
        ("a unit", &[("XDG_STATE_HOME", "/var/lib"), ("XDG_CONFIG_HOME", "/etc"), ("INVOCATION_ID", "x")]),
        ("an empty name", &[("USHER_DIR", ""), ("USHER_CREDENTIAL", "")]),
    ];
    let of = |list: &str| -> Vec<String> {
        let list: serde_json::Value = serde_json::from_str(list).unwrap();
        let rows = list["sessions"].as_array().unwrap();
        rows.iter().map(|row| row["session_id"].as_str().unwrap().to_owned()).collect()
    };
    let listed = |environment: &[(&str, &str)], home: &Path| {
        let list = ran(Home::bare(home, USHER).args(["list", "--json"]).envs(environment.iter().copied()));
        assert_eq!(list.code, 0, "{list:?}");
        of(&list.stdout)
    };
    let mine = until("the session is there", || listed(&[], home.path()).pop());
    for (what, environment) in environments {
        assert_eq!(listed(environment, home.path()), std::slice::from_ref(&mine), "{what}");
    }
    assert_eq!(listed(&[], &link), [mine], "another name of the same home");
    // Not outright: that would leave the program of the run behind.
    kill(session.id(), Signal::SIGTERM);
    session.wait().unwrap();
}

// 12
#[test]
fn neither_root_nor_another_user_gets_into_a_directory_that_is_not_theirs_nor_leaves_anything_there() {
    if !is_root() {
        return cannot("directories of other users", "needs root");
    }
    let programs = Programs::for_everybody();
    let theirs = Place::below("nobody/dir");
    let home = theirs.path().parent().unwrap();
    fs::create_dir(home).unwrap();
    chown(home, Some(NOBODY), Some(NOBODY)).unwrap();
    mode(theirs.scratch(), 0o755);
    let as_them = |args: &[&str]| {
        let mut command = theirs.program(programs.usher());
        ran(as_nobody(command.args(args)))
    };
    let seen = "until \"$0\" get --session \"$USHER_SESSION\" >/dev/null 2>&1; do sleep 0.05; done";
    let run = as_them(&["run", "--", "sh", "-c", seen, programs.usher().to_str().unwrap()]);
    assert_eq!((run.code, run.stderr.as_str()), (0, ""));
    until("their daemon has written that down", || {
        let audit = fs::read_to_string(theirs.path().join("audit.ndjson")).ok()?;
        let count = |fact: &str| audit.matches(&format!("\"{fact}\"")).count();
        (count("session-gone") == 1 && count("connected") == count("disconnected")).then_some(())
    });

    // As root, with their USHER_DIR, as `sudo -E` leaves it.
    let before = tree(theirs.scratch());
    let named = theirs.path().display().to_string();
    let keys = theirs.scratch().join("bundle").display().to_string();
    let new_key = ["keys", "new", "--label", "x", "--row", "--out", &keys];
    let verbs: [&[&str]; 6] =
        [&["list"], &["status"], &["send", "status"], &["stop", "--force"], &new_key, &["keys", "list"]];
    for args in verbs {
        let refused = theirs.run(args);
        assert_eq!((refused.code, refused.stdout.as_str()), (3, ""), "{args:?}: {refused:?}");
        assert!(refused.stderr.contains(&named) && refused.stderr.contains("owned by another user"), "{refused:?}");
    }
    for args in [&[][..], &["--background"]] {
        let refused = ran(theirs.usherd().args(args));
        assert_eq!(refused.code, 3, "{refused:?}");
        assert!(refused.stderr.contains(&named) && refused.stderr.contains("owned by another user"), "{refused:?}");
    }
    let run = theirs.run(&["run", "--", "true"]);
    assert_eq!((run.code, run.stdout.as_str(), run.stderr.as_str()), (0, "", ""));
    assert_eq!(changed(&before, &tree(theirs.scratch()), theirs.path()), Vec::<String>::new());
    // Nor past the folder, at the socket itself: it is closed before a byte is read.
    assert_eq!(theirs.health(), None, "root is another user");
    assert_eq!(as_them(&["health"]).code, 0);

    // As somebody else, with root's.
    let ours = Place::with_daemon(&[]);
    for bits in [0o755, 0o700] {
        mode(ours.path(), bits);
        let before = tree(ours.path());
        for args in [&["list"][..], &["status"], &["stop", "--force"], &["keys", "list"]] {
            let mut command = ours.program(programs.usher());
            let refused = ran(as_nobody(command.args(args)));
            assert_eq!((refused.code, refused.stdout.as_str()), (3, ""), "{args:?}: {refused:?}");
            assert!(refused.stderr.contains(ours.path().to_str().unwrap()), "{refused:?}");
        }
        let mut command = ours.program(programs.usherd());
        assert_eq!(ran(as_nobody(&mut command)).code, 3);
        let mut command = ours.program(programs.usher());
        let run = ran(as_nobody(command.args(["run", "--", "true"])));
        assert_eq!((run.code, run.stderr.as_str()), (0, ""));
        assert_eq!(changed(&before, &tree(ours.path()), ours.path()), Vec::<String>::new());
    }
    assert!(ours.health().is_some());
}

/// Paths that came, went or are not what they were, but for the daemon's own logs.
fn changed<T: PartialEq>(
    before: &std::collections::BTreeMap<std::path::PathBuf, T>,
    after: &std::collections::BTreeMap<std::path::PathBuf, T>,
    root: &Path,
) -> Vec<String> {
    let paths: BTreeSet<_> = before.keys().chain(after.keys()).collect();
    let logs = [root.join("usherd.log"), root.join("stderr.log")];
    let other = paths.into_iter().filter(|path| before.get(*path) != after.get(*path) && !logs.contains(path));
    other.map(|path| path.display().to_string()).collect()
}
