//! Upgrades with real builds of this tree, each of which speaks one protocol alone.

mod builds;
mod evidence;
mod forged;
mod full;
mod load;
mod machine;
mod stories;

use std::path::Path;
use std::time::Duration;

use nix::sys::signal::Signal;
use serde_json::{Value, json};

use super::attach::Attached;
use super::support::daemon::Ran;
use super::support::system::kill;
use super::support::wait::promised;
use builds::Build::{A, B, Rebuilt};
use builds::Builds;
use evidence::{Evidence, Run};
use machine::{AT_ONCE, Machine};

/// Nobody judges what this run records: it asserts as it goes.
fn unjudged() -> Run {
    Evidence::new(Builds::Made).run("unjudged")
}

#[test]
fn a_daemon_that_never_goes_by_itself_makes_room_for_a_successor() {
    stories::without_idle_exit(unjudged());
}

// 19
#[test]
fn old_and_new_clients_in_turn_never_change_the_daemon() {
    stories::in_turn(unjudged());
}

// 16, 22
#[test]
fn an_old_window_waits_for_a_new_daemon_without_ending_it() {
    stories::old_clients(unjudged());
}

// 18
#[test]
fn a_successor_that_cannot_start_leaves_windows_waiting_until_it_can() {
    stories::no_successor(unjudged());
}

// 22, 56
#[test]
fn two_generations_in_a_row_end_on_one_window() {
    stories::two_generations(unjudged());
}

// 56
#[test]
fn each_of_many_waiting_windows_asks_once_and_comes_back() {
    stories::many_waiters(unjudged(), 20);
}

#[test]
fn an_attached_program_is_told_that_it_waits_and_has_its_session_after_the_upgrade() {
    let mut machine = Machine::new(unjudged(), A);
    let incumbent = machine.start_daemon(AT_ONCE);
    let a = machine.window("a");
    machine.listed(A, &[&a]);
    machine.install(B);
    let attached = Attached::of(machine.usher().args(["attach", "--title", "attached"]).env("USHER_LOG", "debug"));
    let waiting = attached.wait_for("waiting");
    assert!(waiting["reason"].as_str().is_some_and(|reason| reason.starts_with("incompatible: ")), "{waiting}");
    machine.waiting(1);
    machine.close(a);
    machine.ended(incumbent);
    let open = attached.wait_for("open");
    assert_eq!(open["session_id"], waiting["session_id"]);
    let sessions = machine.sessions(B);
    assert_eq!(sessions.get("attached").map(String::as_str), open["session_id"].as_str());
}

// 23
#[test]
fn status_drain_and_stop_work_with_a_daemon_of_another_protocol_and_leave_receipts() {
    for (old, new) in [(A, B), (B, A)] {
        let mut machine = Machine::new(unjudged(), old);
        let daemon = machine.start_daemon(AT_ONCE);
        let window = machine.window("there");
        machine.listed(old, &[&window]);
        machine.install(new);
        let told = machine.run(&["status", "--json"]);
        assert_eq!((told.code, told.stderr.as_str()), (0, ""), "{told:?}");
        let told: Value = serde_json::from_str(&told.stdout).unwrap();
        let status = &told["status"];
        assert_eq!((&status["sessions"], &status["draining"]), (&json!(1), &json!(false)), "{told}");
        assert_eq!(status["protocol"], json!({"min": old.protocol(), "max": old.protocol()}), "{told}");
        let human = machine.run(&["status", "--human"]).stdout;
        let line = format!("protocol    {}, and this speaks {}", old.protocol(), new.protocol());
        assert!(human.lines().any(|told| told == line), "{human}");

        let receipt = |name: &str| machine.place.scratch().join(name).to_str().unwrap().to_owned();
        let (drained, stopped) = (receipt("drained"), receipt("stopped"));
        assert_eq!(machine.run(&["drain", "--receipt", &drained]).code, 0);
        assert_eq!(machine.run(&["stop"]).code, 9, "a session is there");
        assert_eq!(machine.run(&["stop", "--force", "--receipt", &stopped]).code, 0);
        machine.ended(daemon);
        for (file, what) in [(&drained, "daemon.drain"), (&stopped, "daemon.stop")] {
            let verified = machine.run(&["verify", file]);
            assert!(verified.code == 0 && verified.stdout.contains(what), "{verified:?}");
        }
        machine.close(window);
    }
}

#[test]
fn another_build_of_the_same_protocol_speaks_with_what_runs_until_a_restart_puts_it_in_place() {
    let mut machine = Machine::new(unjudged(), A);
    let before = machine.start_daemon(AT_ONCE);
    let a = machine.window("a");
    machine.install(Rebuilt);
    let b = machine.window("b");
    machine.listed(Rebuilt, &[&a, &b]);
    let both = |status: &str| ["usherd/0.1.0,", "0.1.0+protocol.1"].map(|build| status.contains(build));
    let status = machine.run(&["status", "--human"]);
    assert_eq!(both(&status.stdout), [true, true], "{status:?}");
    let restarted = machine.run(&["restart"]);
    let told = "usherd/0.1.0+protocol.1 runs in place of usherd/0.1.0; its sessions are back: 2\n";
    assert_eq!((restarted.code, restarted.stdout.as_str()), (0, told), "{restarted:?}");
    machine.ended(before);
    machine.listed(Rebuilt, &[&a, &b]);
    let status = machine.run(&["status", "--human"]);
    assert_eq!(both(&status.stdout), [false, true], "{status:?}");
    machine.close(a);
    machine.close(b);
}

#[test]
fn commands_say_what_the_page_on_upgrades_says() {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/upgrades.md");
    let [incompatible, hung] = stories::told(&page);
    let mut machine = Machine::new(unjudged(), A);
    let (pid, _) = machine.start_daemon(AT_ONCE);
    let a = machine.window("a");
    machine.listed(A, &[&a]);
    machine.install(B);
    assert_eq!(machine.run(&["list"]), Ran { code: 8, stdout: String::new(), stderr: incompatible });
    machine.refused(&["list"]);
    kill(pid, Signal::SIGSTOP);
    let waited = machine.run_as(A, &["list"]);
    kill(pid, Signal::SIGCONT);
    let hung = hung.replace("4711", &pid.to_string());
    assert_eq!(waited, Ran { code: 3, stdout: String::new(), stderr: hung });
    machine.held(A, &a, promised(Duration::from_millis(10)));
    machine.close(a);
}
