//! The courses of events, each with real builds, each recorded.

use std::fs;
use std::path::Path;
use std::process::Stdio;
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use serde_json::json;

use super::super::support::system::{copy_program, put_program};
use super::super::support::wait::until;
use super::builds::Build::{A, B, C};
use super::evidence::Run;
use super::machine::{AT_ONCE, Machine, Window};

/// B is installed over A while a window of A is open.
pub fn upgrade(run: Run) {
    let mut machine = Machine::new(run, A);
    // In full with everything as it is when nobody says anything: the daemon makes room after half a minute.
    let incumbent = machine.start_daemon(if machine.builds.is_full() { &[] } else { AT_ONCE });
    let a = machine.window("a");
    machine.listed(A, &[&a]);
    machine.health();

    machine.install(B);
    let (first, second) = (machine.window("b1"), machine.window("b2"));
    machine.waiting(2);
    for args in [&["list"][..], &["send", "--title", "a", "echo", "1"], &["get"], &["ask", "x?"], &["restart"]] {
        machine.refused(args);
    }
    machine.held(A, &a, machine.while_nothing_changes());
    machine.signal(&second, Signal::SIGSTOP);
    machine.close(a);
    machine.ended(incumbent);
    let successor = machine.successor(B, incumbent);
    machine.listed(B, &[&first]);
    machine.signal(&second, Signal::SIGCONT);
    machine.listed(B, &[&first, &second]);
    assert_eq!(machine.daemon(), Some(successor));
    machine.close(first);
    machine.close(second);
}

/// A daemon that never goes by itself makes room all the same.
pub fn without_idle_exit(run: Run) {
    let mut machine = Machine::new(run, A);
    let incumbent = machine.start_daemon(AT_ONCE);
    let a = machine.window("a");
    machine.listed(A, &[&a]);
    machine.install(B);
    let b = machine.window("b");
    machine.waiting(1);
    machine.close(a);
    machine.ended(incumbent);
    machine.successor(B, incumbent);
    machine.listed(B, &[&b]);
    machine.close(b);
}

/// A new daemon, old windows and old commands.
pub fn old_clients(run: Run) {
    let mut machine = Machine::new(run, B);
    let incumbent = machine.start_daemon(AT_ONCE);
    let b = machine.window("b");
    machine.listed(B, &[&b]);
    machine.install(A);
    let a = machine.window("a");
    // Who is older does not prove itself: it asks for nothing.
    until("the old window waits", || machine.log().contains(": incompatible").then_some(()));
    machine.refused(&["list"]);
    assert!(!machine.log().contains("waits for this daemon to end"), "an older window is no successor");
    machine.held(B, &b, machine.while_nothing_changes());
    machine.close(b);
    // Nobody is left, and nobody newer waits: this daemon was told to stay.
    let later = Instant::now() + machine.while_nothing_changes();
    until("nothing happens", || (Instant::now() > later).then_some(()));
    assert_eq!(machine.daemon(), Some(incumbent));
    assert_eq!(machine.run(&["stop"]).code, 0, "through protocol 0");
    machine.ended(incumbent);
    machine.successor(A, incumbent);
    machine.listed(A, &[&a]);
    machine.close(a);
}

/// Two in a row, and one window that waits for the second from the beginning.
pub fn two_generations(run: Run) {
    let mut machine = Machine::new(run, A);
    let first = machine.start_daemon(AT_ONCE);
    let a = machine.window("a");
    machine.listed(A, &[&a]);
    machine.install(B);
    let b = machine.window("b");
    machine.waiting(1);
    // Without a daemon of its own beside it for now.
    let newest = machine.place.scratch().join("newest");
    fs::create_dir(&newest).unwrap();
    copy_program(machine.builds.usher(C), newest.join("usher"));
    let c = machine.window_of(C, machine.place.program(newest.join("usher")), "c", "cat");
    machine.waiting(2);
    machine.close(a);
    machine.ended(first);
    let second = machine.successor(B, first);
    machine.listed(B, &[&b]);
    machine.waiting(3);
    machine.held(B, &b, machine.while_nothing_changes());
    copy_program(machine.builds.usherd(C), newest.join("usherd"));
    machine.close(b);
    // What a window has started makes no room in its first half minute.
    machine.gone(second);
    machine.successor(C, second);
    machine.listed(C, &[&c]);
    machine.close(c);
}

/// What was installed as the successor does not run.
pub fn no_successor(run: Run) {
    let mut machine = Machine::new(run, A);
    let incumbent = machine.start_daemon(AT_ONCE);
    let a = machine.window("a");
    machine.listed(A, &[&a]);
    machine.install(B);
    put_program(machine.bin.join("new"), "#!/bin/sh\necho 'usherd: out of order' >&2\nexit 1\n");
    fs::rename(machine.bin.join("new"), machine.bin.join("usherd")).unwrap();
    let b = machine.window("b");
    machine.waiting(1);
    machine.held(A, &a, machine.while_nothing_changes());
    machine.close(a);
    machine.ended(incumbent);
    machine.install(B);
    machine.successor(B, incumbent);
    machine.listed(B, &[&b]);
    machine.close(b);
}

/// Old and new commands in turn.
pub fn in_turn(run: Run) {
    let mut machine = Machine::new(run, A);
    let incumbent = machine.start_daemon(AT_ONCE);
    let a = machine.window("a");
    machine.listed(A, &[&a]);
    machine.install(B);
    for _ in 0..20 {
        machine.refused(&["list"]);
        assert_eq!(machine.run_as(A, &["send", "--title", "a", "echo", "1"]).stdout, "1\n");
        let through_zero = machine.run(&["stop"]);
        assert_eq!(through_zero.code, 9, "an operator of any version is told that sessions live: {through_zero:?}");
        assert_eq!(machine.daemon(), Some(incumbent));
    }
    machine.held(A, &a, machine.while_nothing_changes() / 2);
    machine.close(a);
}

/// Many windows wait; who only follows does not hold what they wait for.
pub fn many_waiters(run: Run, count: usize) {
    let mut machine = Machine::new(run, A);
    let incumbent = machine.start_daemon(AT_ONCE);
    let a = machine.window("a");
    machine.listed(A, &[&a]);
    machine.install(B);
    let windows: Vec<Window> = (0..count).map(|number| machine.window(&format!("b{number}"))).collect();
    machine.waiting(count);
    // Longer than any pause, so that whoever asked again would be seen.
    machine.held(A, &a, Duration::from_secs(7));
    machine.waiting(count);
    assert_eq!(machine.refusals(), count, "one signed hello for each window and generation");
    let follow = |words: &[&str]| {
        let mut following = machine.usher_of(A);
        following.args(words).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap()
    };
    let following = [follow(&["events", "--follow"]), follow(&["approvals", "--follow"])];
    machine.close(a);
    machine.ended(incumbent);
    machine.successor(B, incumbent);
    machine.listed(B, &windows.iter().collect::<Vec<_>>());
    let codes = following.map(|mut following| following.wait().unwrap().code());
    assert_eq!(codes, [Some(3), Some(3)], "who followed did not hold the upgrade");
    machine.record("followers-ended", json!({"codes": codes}));
    windows.into_iter().for_each(|window| machine.close(window));
}

/// The two messages of the page on upgrades.
pub fn told(page: &Path) -> [String; 2] {
    let page = fs::read_to_string(page).unwrap();
    let told: Vec<_> = page.split("```text\n").skip(1).map(|block| block.split("```").next().unwrap()).collect();
    let [incompatible, hung] = told[..] else { panic!("the page shows two messages") };
    [incompatible.to_owned(), hung.to_owned()]
}
