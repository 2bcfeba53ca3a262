//! Everything, with builds for release: `make test-upgrade`.

use super::super::support::system::put;
use super::super::support::threads;
use super::builds::{Builds, given};
use super::evidence::Evidence;
use super::{load, stories};

const ROUNDS: usize = 200;

#[test]
#[ignore = "takes half an hour, and builds that scripts/upgrade.sh makes: make test-upgrade"]
fn upgrades_of_every_kind_cost_no_session() {
    let evidence = Evidence::new(Builds::Given);
    let run = |name| evidence.run(name);
    // One after the other: some have promises of time.
    stories::many_waiters(run("waiters-100"), 100);
    stories::many_waiters(run("waiters-200"), 200);
    stories::upgrade(run("upgrade"));
    stories::without_idle_exit(run("without-idle-exit"));
    stories::old_clients(run("old-clients"));
    stories::two_generations(run("two-generations"));
    stories::no_successor(run("no-successor"));
    stories::in_turn(run("in-turn"));
    let (upgrades, restarts) = (run("upgrades"), run("restarts"));
    let loads = [
        threads::spawn("upgrades", move || load::upgrades(&upgrades, ROUNDS)),
        threads::spawn("restarts", move || load::restarts(&restarts, ROUNDS)),
    ];
    loads.into_iter().for_each(|load| load.join().unwrap());
    let (document, _) = evidence.document();
    put(given().join("evidence.json"), serde_json::to_string_pretty(&document).unwrap());
}
