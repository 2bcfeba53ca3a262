//! The scripts of docs/recipes.md, each taken from the page and run.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use super::super::support::daemon::{Place, USHER, finished, ran};
use super::super::support::system::put_program;
use super::{asked, id};

/// The first script below a heading of the page.
fn script(heading: &str) -> String {
    let page = std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/recipes.md")).unwrap();
    let section = page.split(&format!("\n## {heading}\n")).nth(1).unwrap().to_owned();
    section.split("```sh\n").nth(1).unwrap().split("```").next().unwrap().to_owned()
}

/// A shell that finds `usher` and, in front of everything, what lies in the folder `bin`.
fn shell(place: &Place, folder: &Path) -> Command {
    let ours = Path::new(USHER).parent().unwrap();
    let path = format!("{}:{}:{}", folder.join("bin").display(), ours.display(), std::env::var("PATH").unwrap());
    let mut command = place.program("sh");
    command.current_dir(folder).env("PATH", path).env("HOME", folder).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

fn folder(place: &Place) -> PathBuf {
    let folder = place.scratch().join("work");
    std::fs::create_dir_all(folder.join("bin")).unwrap();
    folder
}

fn gate(place: &Place, folder: &Path) -> Child {
    put_program(
        folder.join("bin/terraform"),
        "#!/bin/sh\ncase $1 in plan) echo 'one to add';; apply) echo applied > applied;; esac\n",
    );
    put_program(folder.join("deploy"), &script("A gate in a script"));
    shell(place, folder).arg("./deploy").spawn().unwrap()
}

#[test]
fn a_gate_in_a_script_lets_through_what_was_approved_and_nothing_else() {
    let place = Place::with_daemon(&[]);
    let folder = folder(&place);
    let rejected = gate(&place, &folder);
    let question = asked(&place, "apply this plan?");
    assert_eq!(question["detail"], "one to add\n");
    assert_eq!(place.run(&["reject", &id(&question)]).code, 0);
    assert_eq!(finished(rejected).code, 1);
    assert!(!folder.join("applied").exists(), "it was applied all the same");

    let killed = gate(&place, &folder);
    asked(&place, "apply this plan?");
    place.kill_daemons();
    assert_eq!(finished(killed).code, 3);
    assert!(!folder.join("applied").exists(), "it was applied all the same");

    let approved = gate(&place, &folder);
    let question = asked(&place, "apply this plan?");
    assert_eq!(place.run(&["approve", &id(&question)]).code, 0);
    let approved = finished(approved);
    assert_eq!(approved.code, 0, "{approved:?}");
    assert!(folder.join("applied").exists());
    let receipts = std::fs::read_dir(&folder).unwrap().flatten().map(|entry| entry.path());
    let receipt = receipts.filter(|path| path.extension().is_some_and(|end| end == "json")).max().unwrap();
    assert_eq!(ran(place.usher().arg("verify").arg(receipt)).code, 0);
}

#[test]
fn a_push_waits_for_its_approval() {
    if Command::new("git").arg("--version").stdout(Stdio::null()).status().is_err() {
        println!("SKIPPED: there is no git");
        return;
    }
    let place = Place::with_daemon(&[]);
    let folder = folder(&place);
    let git = |line: &str| {
        let script = format!("git -c user.name=a -c user.email=a@b -c init.defaultBranch=main {line}");
        finished(shell(&place, &folder).args(["-c", &script]).spawn().unwrap())
    };
    for line in ["init -q --bare there.git", "init -q here", "-C here commit -q --allow-empty -m 'the first one'"] {
        assert_eq!(git(line).code, 0, "{line}");
    }
    assert_eq!(git("-C here remote add origin ../there.git").code, 0);
    put_program(folder.join("here/.git/hooks/pre-push"), &script("A push that waits for you"));
    let push = || shell(&place, &folder).args(["-c", "git -C here push -q origin main"]).spawn().unwrap();
    let heads = || git("-C there.git for-each-ref").stdout;

    let rejected = push();
    let question = asked(&place, "push to origin?");
    assert!(question["detail"].as_str().unwrap().ends_with("the first one\n"), "{question}");
    assert_eq!(place.run(&["reject", &id(&question)]).code, 0);
    assert_ne!(finished(rejected).code, 0);
    assert_eq!(heads(), "", "it was pushed all the same");

    let approved = push();
    let question = asked(&place, "push to origin?");
    assert_eq!(place.run(&["approve", &id(&question)]).code, 0);
    let approved = finished(approved);
    assert_eq!(approved.code, 0, "{approved:?}");
    assert!(heads().contains("refs/heads/main"), "{}", heads());
    assert_eq!(finished(push()).code, 0, "with nothing to push nobody is asked");

    // What takes away is asked for as well, though no commit comes: a forced push, a branch that goes.
    let before = heads();
    assert_eq!(git("-C here commit -q --amend --allow-empty -m 'another one'").code, 0);
    for (push, says) in [("-f origin main", "lost: "), ("origin :main", "refs/heads/main: ")] {
        let push = shell(&place, &folder).args(["-c", &format!("git -C here push -q {push}")]).spawn().unwrap();
        let question = asked(&place, "push to origin?");
        let detail = question["detail"].as_str().unwrap();
        assert!(detail.lines().any(|line| line.starts_with(says)), "{detail}");
        assert_eq!(place.run(&["reject", &id(&question)]).code, 0);
        assert_ne!(finished(push).code, 0);
    }
    assert_eq!(heads(), before, "it was pushed all the same");
}

#[test]
fn a_key_for_an_agent_asks_and_neither_answers_nor_outlives_its_revocation() {
    let place = Place::with_daemon(&[]);
    let folder = folder(&place);
    put_program(folder.join("make-key"), &script("A key for an agent that may ask and not answer"));
    let made = finished(shell(&place, &folder).arg("./make-key").spawn().unwrap());
    assert_eq!(made.code, 0, "{made:?}");
    let agent = |line: &str| {
        let mut command = shell(&place, &folder);
        command.args(["-c", line]).env("USHER_CREDENTIAL", folder.join("agent-key")).spawn().unwrap()
    };
    let asking = agent("exec usher ask 'may I delete the old assets?'");
    let question = id(&asked(&place, "may I delete the old assets?"));
    assert_eq!(finished(agent(&format!("usher approve {question}"))).code, 5);
    assert_eq!(finished(agent("usher approvals")).code, 5, "it sees no question, its own neither");
    assert_eq!(place.run(&["keys", "revoke", "agent"]).code, 0);
    let asking = finished(asking);
    assert_eq!(asking.code, 3, "{asking:?}");
    assert_eq!(place.run(&["approve", &question]).code, 9);
}
