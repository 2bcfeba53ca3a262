//! The program that is run: its code, its signals, its surroundings.

use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;

use super::super::support::daemon::{Place, USHER, finished, ran};
use super::super::support::wait::until;
use super::{Window, line_in, sessions, signal, state};

/// `usher run -- sh -c SCRIPT`
fn shell(place: &Place, script: &str) -> Command {
    let mut command = place.usher();
    command.args(["run", "--", "sh", "-c", script]).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

#[test]
fn the_exit_code_of_the_program_is_the_exit_code_of_the_run() {
    let place = Place::with_daemon(&[]);
    for (script, code) in
        [("exit 0", 0), ("exit 3", 3), ("exit 255", 255), ("kill -KILL $$", 137), ("kill -40 $$", 168)]
    {
        let ran = ran(&mut shell(&place, script));
        assert_eq!((ran.code, ran.stderr.as_str()), (code, ""), "{script}");
    }
}

#[test]
fn what_cannot_be_started_has_the_code_and_the_line_that_a_shell_gives() {
    let place = Place::with_daemon(&[]);
    for (program, code, line) in [
        ("usher-no-such-program", 127, "usher: usher-no-such-program: command not found\n"),
        ("/etc/passwd", 126, "usher: /etc/passwd: not executable\n"),
        ("/", 126, "usher: /: not executable\n"),
    ] {
        let ran = place.run(&["run", "--", program]);
        assert_eq!((ran.code, ran.stderr.as_str()), (code, line));
    }
    assert!(sessions(&place).is_empty());
}

#[test]
fn a_script_without_its_first_line_is_run_by_sh() {
    let place = Place::with_daemon(&[]);
    let script = place.path().join("script");
    // Made by another process: a descriptor to write it, inherited by whatever another test starts, would keep it busy.
    let make = format!("echo 'exit $1' >'{0}' && chmod 700 '{0}'", script.display());
    assert_eq!(ran(place.program("sh").args(["-c", &make])).code, 0);
    let ran = place.run(&["run", "--", script.to_str().unwrap(), "5"]);
    assert_eq!((ran.code, ran.stderr.as_str()), (5, ""));
}

#[test]
fn what_the_daemon_would_refuse_is_a_usage_error_before_the_program_starts() {
    let place = Place::empty();
    let long = format!("a={}", "x".repeat(4_096));
    for options in [
        ["--on", "status=true"],
        ["--on", "signal=true"],
        ["--on", "a b=true"],
        ["--label", &long],
        ["--max-in-flight", "65"],
    ] {
        let ran =
            place.run(&["run", options[0], options[1], "--", "touch", place.path().join("ran").to_str().unwrap()]);
        assert_eq!(ran.code, 2, "{options:?}: {ran:?}");
    }
    assert!(!place.path().join("ran").exists() && place.health().is_none());
}

#[test]
fn a_signal_to_the_run_reaches_the_program() {
    let place = Place::with_daemon(&[]);
    for name in ["TERM", "HUP", "INT", "QUIT", "USR1", "USR2"] {
        let ready = place.path().join(name);
        let script = format!("trap 'exit 42' {name}; echo >'{}'; while :; do sleep 0.02; done", ready.display());
        let run = shell(&place, &script).spawn().unwrap();
        until("the program is ready", || line_in(&ready));
        signal(run.id(), format!("SIG{name}").parse().unwrap());
        let ran = finished(run);
        assert_eq!((ran.code, ran.stderr.as_str()), (42, ""), "{name}");
    }
}

#[test]
fn a_program_that_a_forwarded_signal_ends_is_told_as_128_and_its_number() {
    let place = Place::with_daemon(&[]);
    let window = Window::open(&place, "w", &[]);
    signal(window.pid(), Signal::SIGTERM);
    assert_eq!(window.end().code, 143);
    assert!(sessions(&place).is_empty());
}

#[test]
fn the_program_has_an_empty_signal_mask_and_what_was_ignored_stays_so() {
    let place = Place::with_daemon(&[]);
    let sets = |command: &mut Command| {
        let ran = ran(command);
        let set = |name: &str| {
            let line = ran.stdout.lines().find_map(|line| line.strip_prefix(name)).unwrap_or_else(|| panic!("{ran:?}"));
            // Without the C library's own two, 32 and 33, which it ignores in what it starts.
            u64::from_str_radix(line.trim(), 16).unwrap() & 0x7fff_ffff
        };
        (set("SigBlk:"), set("SigIgn:"))
    };
    assert_eq!(sets(place.usher().args(["run", "--", "cat", "/proc/self/status"])), (0, 0));
    let nohup = format!("trap '' HUP; exec '{USHER}' run -- cat /proc/self/status");
    assert_eq!(sets(place.program("sh").args(["-c", &nohup])), (0, 1));

    let window = Window::open(&place, "w", &["--on", "sets=cat /proc/self/status"]);
    let status = window.result(&place, &["sets"]);
    let blocked = status.as_str().unwrap().lines().find_map(|line| line.strip_prefix("SigBlk:")).unwrap();
    assert_eq!(blocked.trim(), "0000000000000000");
}

#[test]
fn a_parent_that_ignores_sigchld_changes_nothing() {
    let place = Place::with_daemon(&[]);
    let ignoring = || {
        let mut command = place.program("env");
        command.arg("--ignore-signal=CHLD");
        command
    };
    let ignored = ran(ignoring().args(["grep", "SigIgn", "/proc/self/status"]));
    if !ignored.stdout.trim_end().ends_with("0010000") {
        println!("SKIPPED: env(1) cannot ignore SIGCHLD: {ignored:?}");
        return;
    }
    let script = "env | grep -c RELAY; grep SigIgn /proc/self/status; exit 9";
    let ran = ran(ignoring().args([USHER, "run", "--", "sh", "-c", script]));
    assert_eq!((ran.code, ran.stderr.as_str()), (9, ""), "{ran:?}");
    assert!(ran.stdout.starts_with("0\n") && ran.stdout.ends_with("00000\n"), "{ran:?}");

    let arguments = ["run", "--title", "w", "--on", "hi=echo hi", "--", "sleep", "600"];
    let window = Window::of(&place, "w", ignoring().arg(USHER).args(arguments));
    assert_eq!(window.result(&place, &["hi"]), "hi");
    signal(window.pid(), Signal::SIGTERM);
    assert_eq!(window.end().code, 143);
}

#[test]
fn a_program_knows_its_session() {
    let place = Place::with_daemon(&[]);
    let file = place.path().join("session");
    let script = format!("echo $USHER_SESSION >'{}'; exec sleep 600", file.display());
    let mut command = place.usher();
    command.args(["run", "--title", "w", "--", "sh", "-c", &script]);
    let window = Window::of(&place, "w", &mut command);
    assert_eq!(until("the program tells", || line_in(&file)), window.id());
}

#[test]
fn a_run_killed_outright_is_gone_from_the_list_within_a_second() {
    let place = Place::with_daemon(&[]);
    let window = Window::open(&place, "w", &[]);
    let program = window.program();
    signal(window.pid(), Signal::SIGKILL);
    let killed = Instant::now();
    until("the session is gone", || sessions(&place).is_empty().then_some(()));
    assert!(killed.elapsed() < Duration::from_secs(1), "{:?}", killed.elapsed());
    assert!(state(program).is_some_and(|state| state != 'Z'), "the program lives on");
    signal(program, Signal::SIGKILL);
    assert_eq!(window.end().code, 137);
}
