//! What the checker makes of evidence: it accepts what was seen, and nothing that was not.

use std::process::{Command, Stdio};
use std::sync::OnceLock;

use serde_json::{Value, json};

use super::super::support::system::cannot;
use super::super::support::threads;
use super::builds::{Builds, digest};
use super::evidence::{Evidence, checked};
use super::{load, stories};

/// The evidence of the short form, and its manifest.
fn seen() -> &'static (Value, String) {
    static SEEN: OnceLock<(Value, String)> = OnceLock::new();
    SEEN.get_or_init(|| {
        let evidence = Evidence::new(Builds::Made);
        let (upgrade, upgrades, restarts) =
            (evidence.run("upgrade"), evidence.run("upgrades"), evidence.run("restarts"));
        let runs = [
            threads::spawn("upgrade", move || stories::upgrade(upgrade)),
            threads::spawn("upgrades", move || load::upgrades(&upgrades, 2)),
            threads::spawn("restarts", move || load::restarts(&restarts, 3)),
        ];
        runs.into_iter().for_each(|run| run.join().unwrap());
        evidence.document()
    })
}

// 17, 22
#[test]
fn an_upgrade_in_the_middle_of_work_and_under_load_costs_no_session_and_runs_no_command_twice() {
    let (evidence, manifest) = seen();
    if !can_judge() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let accepted = checked(folder.path(), manifest, evidence);
    assert_eq!((accepted.code, accepted.stderr.as_str()), (0, ""), "{accepted:?}");
    assert!(accepted.stdout.contains("0 twice, 0 wrong, 0 lost"), "{accepted:?}");
}

/// The checker is a program for Python.
fn can_judge() -> bool {
    let there = Command::new("python3").arg("--version").stdout(Stdio::null()).status().is_ok();
    if !there {
        cannot("evidence of upgrades", "no python3 here");
    }
    there
}

/// The entries of a step in a run.
fn steps<'a>(evidence: &'a mut Value, run: &str, step: &str) -> Vec<&'a mut Value> {
    let entries = evidence["timeline"].as_array_mut().unwrap();
    entries.iter_mut().filter(|entry| entry["run"] == run && entry["step"] == step).collect()
}

/// Where the first entry of a step in a run is.
fn place(evidence: &Value, run: &str, step: &str) -> usize {
    let mut entries = evidence["timeline"].as_array().unwrap().iter();
    entries.position(|entry| entry["run"] == run && entry["step"] == step).unwrap()
}

fn timeline(evidence: &mut Value) -> &mut Vec<Value> {
    evidence["timeline"].as_array_mut().unwrap()
}

#[test]
fn forged_evidence_of_an_upgrade_is_refused_by_name() {
    type Forgery = (&'static str, fn(&mut Value));
    let forgeries: [Forgery; 16] = [
        ("here waiting is to happen", |evidence| {
            let at = place(evidence, "upgrade", "waiting");
            timeline(evidence).remove(at);
        }),
        ("is to happen", |evidence| {
            let at = place(evidence, "upgrade", "held");
            let again = timeline(evidence)[at].clone();
            timeline(evidence).insert(at, again);
        }),
        ("it is earlier than the one before", |evidence| {
            let at = place(evidence, "upgrade", "held");
            timeline(evidence)[at]["at_ms"] = json!(0);
        }),
        ("this is not usherd of build B", |evidence| {
            let incumbent = steps(evidence, "upgrade", "daemon")[0]["exe"].clone();
            steps(evidence, "upgrade", "daemon")[1]["exe"] = incumbent;
        }),
        ("another daemon is there, or none", |evidence| {
            steps(evidence, "upgrade", "held")[0]["pid"] = json!(1);
        }),
        ("b1 has another session than it said", |evidence| {
            steps(evidence, "upgrade", "listed")[1]["sessions"]["b1"] = json!("AAAAAAAAAAAAAAAAAAAAAA");
        }),
        ("health tells more than that the daemon is alive", |evidence| {
            let health = &mut steps(evidence, "upgrade", "health")[0]["body"];
            *health = json!(health.as_str().unwrap().replacen('{', "{\"sessions\":1,", 1));
        }),
        ("two daemons have one generation", |evidence| {
            let first = steps(evidence, "upgrade", "health")[0]["body"].clone();
            steps(evidence, "upgrade", "health")[1]["body"] = first;
        }),
        ("why is 'signal', not 'successor'", |evidence| {
            steps(evidence, "upgrade", "daemon-ended")[0]["why"] = json!("signal");
        }),
        ("code is 137, not 0", |evidence| {
            steps(evidence, "upgrade", "daemon-ended")[0]["code"] = json!(137);
        }),
        ("a command of another protocol was not refused", |evidence| {
            steps(evidence, "upgrade", "refused")[0]["code"] = json!(0);
        }),
        ("it was held for 10 ms only", |evidence| {
            steps(evidence, "upgrade", "held")[0]["ms"] = json!(10);
        }),
        ("a session was lost", |evidence| {
            let round = &mut steps(evidence, "upgrades", "round")[0];
            let first = round["windows"].as_object().unwrap().keys().next().unwrap().clone();
            round["sessions"].as_object_mut().unwrap().remove(&first);
        }),
        ("done is", |evidence| {
            let load = &mut steps(evidence, "upgrades", "load")[0];
            load["done"] = json!(load["done"].as_u64().unwrap() + 1);
        }),
        ("ran_twice is 1", |evidence| steps(evidence, "restarts", "load")[0]["ran_twice"] = json!(1)),
        ("the daemon is the same as before", |evidence| {
            let round = &mut steps(evidence, "restarts", "round")[0];
            round["after"] = round["before"].clone();
        }),
    ];
    if !can_judge() {
        return;
    }
    let (evidence, manifest) = seen();
    let folder = tempfile::tempdir().unwrap();
    let refused = |manifest: &str, evidence: &Value, why: &str| {
        let told = checked(folder.path(), manifest, evidence);
        assert_eq!((told.code, told.stdout.as_str()), (1, ""), "{why}: {told:?}");
        assert!(told.stderr.contains(why), "{why}: {told:?}");
    };
    for (why, forge) in forgeries {
        let mut forged = evidence.clone();
        forge(&mut forged);
        refused(manifest, &forged, why);
    }
    // Members and runs that nobody asked for, and those that are missing.
    let mut forged = evidence.clone();
    steps(&mut forged, "upgrade", "held")[0]["note"] = json!("all was well");
    refused(manifest, &forged, "the entry has the members");
    let mut forged = evidence.clone();
    timeline(&mut forged).retain(|entry| entry["run"] != "restarts");
    refused(manifest, &forged, "run restarts is missing");
    let mut forged = evidence.clone();
    steps(&mut forged, "upgrade", "held")[0]["run"] = json!("rehearsal");
    refused(manifest, &forged, "there is no run 'rehearsal'");

    // A manifest that was changed afterwards, alone and together with the evidence.
    let mut other: Value = serde_json::from_str(manifest).unwrap();
    other["builds"]["B"] = other["builds"]["A"].clone();
    refused(&other.to_string(), evidence, "build B speaks protocol 1");
    let mut other: Value = serde_json::from_str(manifest).unwrap();
    other["inputs"]["flags"] = json!("none");
    refused(&other.to_string(), evidence, "the digest of the inputs is not theirs");
    let mut other: Value = serde_json::from_str(manifest).unwrap();
    other["builds"]["A"]["usherd"] = json!("0".repeat(64));
    refused(&other.to_string(), evidence, "the evidence belongs to another manifest");
    let mut forged = evidence.clone();
    forged["manifest"] = json!(digest(other.to_string().as_bytes()));
    refused(&other.to_string(), &forged, "this is not usherd of build A");
}
