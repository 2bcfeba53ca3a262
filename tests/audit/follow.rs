//! `usher audit` and `--follow`: the lines as they are, from where on, and those that come.

use std::fs;
use std::io::{BufRead, BufReader};
use std::process::{Child, Stdio};

use serde_json::Value;

use super::{file, line, lines, seq, stop};
use crate::support::daemon::Place;
use crate::support::wait::until;

#[test]
fn the_lines_are_shown_as_they_are_or_as_a_table_from_where_it_is_said() {
    let mut place = Place::with_daemon(&["--limit", "audit-bytes=4096"]);
    for _ in 0..20 {
        place.json(&["list"]);
    }
    stop(&mut place);
    let old = fs::read_to_string(place.path().join("audit.ndjson.1")).unwrap();
    let text = old + &fs::read_to_string(file(&place)).unwrap();
    let all = place.run(&["audit", "--json"]);
    assert_eq!((all.code, all.stdout.as_str(), all.stderr.as_str()), (0, text.as_str(), ""));

    let lines = lines(&place);
    let middle = &lines[lines.len() / 2];
    for since in [middle["seq"].to_string(), middle["ts"].as_str().unwrap().to_owned()] {
        let some = place.run(&["audit", "--json", "--since", &since]);
        let first: Value = serde_json::from_str(some.stdout.lines().next().unwrap()).unwrap();
        assert!(first["seq"].as_u64() <= middle["seq"].as_u64() && first["ts"] == middle["ts"], "{since}: {first}");
    }
    let table = place.run(&["audit"]).stdout;
    let rows: Vec<&str> = table.lines().collect();
    assert!(rows[0].starts_with("TIME ") && rows.len() == lines.len() + 1, "{table}");
    let last = rows[rows.len() - 1];
    assert!(last.contains("  stopped  ") && last.ends_with("reason=signal undelivered=0"), "{last}");
}

struct Following {
    child: Child,
    lines: std::sync::mpsc::Receiver<String>,
    reader: Option<std::thread::JoinHandle<()>>,
}

impl Following {
    fn start(place: &Place, args: &[&str]) -> Self {
        let mut command = place.usher();
        let mut child =
            command.args(["audit", "--json", "--follow"]).args(args).stdout(Stdio::piped()).spawn().unwrap();
        let out = BufReader::new(child.stdout.take().unwrap());
        let (to, lines) = std::sync::mpsc::sync_channel(100_000);
        let reader = crate::support::threads::spawn("reads", move || {
            out.lines().map_while(Result::ok).for_each(|line| to.send(line).unwrap());
        });
        Self { child, lines, reader: Some(reader) }
    }

    /// The number of the next line.
    fn next(&self) -> u64 {
        let line = self.lines.recv_timeout(crate::support::wait::PATIENCE).expect("a line comes");
        serde_json::from_str::<Value>(&line).unwrap()["seq"].as_u64().unwrap()
    }
}

impl Drop for Following {
    fn drop(&mut self) {
        let _ended_already = self.child.kill();
        let _status = self.child.wait();
        if let Some(reader) = self.reader.take() {
            let _panicked = reader.join();
        }
    }
}

#[test]
fn who_follows_sees_every_line_once_across_files_and_daemons() {
    let mut place = Place::empty();
    fs::create_dir_all(place.path()).unwrap();
    // Before there is anything.
    let following = Following::start(&place, &[]);
    place.start_daemon(&["--limit", "audit-bytes=4096"]);
    let mut expected = 1;
    let mut see = |upto: u64| {
        while expected <= upto {
            assert_eq!(following.next(), expected);
            expected += 1;
        }
    };
    for _ in 0..4 {
        for _ in 0..4 {
            place.json(&["list"]);
        }
        // The file turns after some ten lines: never twice between two looks.
        see(seq(&place));
    }
    assert!(place.path().join("audit.ndjson.1").exists());
    stop(&mut place);
    place.start_daemon(&[]);
    let started = until("the second has started", || {
        lines(&place).iter().rfind(|line| line["fact"] == "started").and_then(|line| line["seq"].as_u64())
    });
    see(started);
    assert!(started > 20);
}

#[test]
fn who_follows_ends_when_nobody_reads_any_more() {
    let place = Place::with_daemon(&[]);
    line(&place, "started", 0);
    let mut command = place.usher();
    let mut child = command.args(["audit", "--follow"]).stdout(Stdio::piped()).spawn().unwrap();
    let mut out = BufReader::new(child.stdout.take().unwrap());
    let mut first = String::new();
    out.read_line(&mut first).unwrap();
    assert!(first.starts_with("TIME "), "{first}");
    drop(out);
    let status = until("it ends", || child.try_wait().unwrap());
    assert_eq!(status.code(), Some(0));
}
