//! `usher` as scripts meet it: exit codes, streams, JSON, keys, receipts, selectors, deadlines.

use std::collections::BTreeSet;
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::fs::symlink;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use serde_json::{Value, json};

use crate::support::daemon::{Place, Ran, USHER, USHERD, finished, ran};
use crate::support::peers::{Operator, Producer, registration};
use crate::support::system::{Programs, cannot, in_own_mounts, is_root, mode, mode_of, put, tree};
use crate::support::threads;
use crate::support::wait::{promised, until};
use crate::support::wire::{Identity, Key, Lines, Peer, base64, random};

/// Everything `usher` can be told to do, with as little as it needs.
fn verbs() -> Vec<Vec<&'static str>> {
    let line = |line: &'static str| line.split(' ').collect::<Vec<_>>();
    [
        "list",
        "get",
        "send status",
        "wait --timeout 200ms",
        "events --follow",
        "approvals",
        "approvals AAAA",
        "approve AAAA",
        "reject AAAA BBBB",
        "status",
        "health",
        "paths",
        "stop",
        "drain",
        "restart",
        "keys list",
        "keys show caller",
        "keys new --label x --row --out bundle",
        "keys enroll --label x --row --public-key AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA",
        "keys revoke nobody",
        "keys renew nobody",
        "keys renew caller",
        "verify receipt",
        "audit --verify",
        "rpc session.list",
        "rpc daemon.stop",
    ]
    .into_iter()
    .map(line)
    .collect()
}

/// Runs it in a folder of the test's own, so that what it makes lies there.
fn usher(place: &Place, args: &[&str]) -> Ran {
    ran(place.usher().args(args).current_dir(place.scratch()))
}

/// With `--json`: standard output is empty or one document, and a failure is one object on standard error.
fn in_json(place: &Place, args: &[&str]) -> (i32, Option<Value>, Value) {
    is_json(&ran(place.usher().arg("--json").args(args).current_dir(place.scratch())), args)
}

fn is_json(ran: &Ran, args: &[&str]) -> (i32, Option<Value>, Value) {
    let one = |text: &str| -> Value {
        assert_eq!(text.matches('\n').count(), 1, "{args:?}: {ran:?}");
        serde_json::from_str(text).unwrap_or_else(|error| panic!("{args:?}: {error}: {ran:?}"))
    };
    let document = (!ran.stdout.is_empty()).then(|| one(&ran.stdout));
    if ran.code == 0 {
        assert!(document.is_some() && ran.stderr.is_empty(), "{args:?}: {ran:?}");
        return (0, document, Value::Null);
    }
    let told = one(&ran.stderr);
    let error = &told["error"];
    assert_eq!(told.as_object().unwrap().len(), 1, "{args:?}: {ran:?}");
    for word in ["code", "message"] {
        assert!(error[word].as_str().is_some_and(|text| !text.is_empty()), "{args:?}: {ran:?}");
    }
    assert!(document.is_none(), "a failure with data: {args:?}: {ran:?}");
    (ran.code, document, error.clone())
}

/// Exit code and word of a failure, in JSON and for people alike.
fn fails(place: &Place, args: &[&str], exit: i32, code: &str) -> Value {
    let plain = usher(place, args);
    assert_eq!((plain.code, plain.stdout.as_str()), (exit, ""), "{args:?}: {plain:?}");
    assert!(plain.stderr.starts_with("usher: "), "{args:?}: {plain:?}");
    let (exited, _, error) = in_json(place, args);
    assert_eq!((exited, error["code"].as_str()), (exit, Some(code)), "{args:?}: {error}");
    error
}

fn succeeds(place: &Place, args: &[&str]) -> String {
    let ran = usher(place, args);
    assert_eq!(ran.code, 0, "{args:?}: {ran:?}");
    ran.stdout
}

// 45
#[test]
fn without_a_daemon_every_verb_has_its_exit_code_and_starts_none() {
    let mut killed = Place::with_daemon(&[]);
    killed.signal_daemon(Signal::SIGKILL);
    killed.wait_daemon();
    let mut stopped = Place::with_daemon(&[]);
    stopped.signal_daemon(Signal::SIGTERM);
    stopped.wait_daemon();
    let never = Place::empty();
    let missing = Place::below("not/made");
    for (what, place) in [("killed", &killed), ("stopped", &stopped), ("never", &never), ("missing", &missing)] {
        let before = tree(place.scratch());
        for args in verbs() {
            let (exit, code) = match args[0] {
                "list" | "paths" => (0, ""),
                "approvals" if args.len() == 1 => (0, ""),
                "approvals" => (6, "approval-not-found"),
                "get" | "send" => (6, "session-not-found"),
                "wait" => (4, "timeout"),
                "verify" => (2, "usage"),
                "audit" if ["killed", "stopped"].contains(&what) => (0, ""),
                "audit" => (6, "not-found"),
                _ => (3, "not-running"),
            };
            let (exited, document, error) = in_json(place, &args);
            assert_eq!(exited, exit, "{what}: {args:?}: {error}");
            if exit == 0 {
                let document = document.unwrap();
                assert!(
                    args[0] != "list" || document == json!({"daemon": "not-running", "sessions": []}),
                    "{document}"
                );
            } else {
                assert_eq!(error["code"], code, "{what}: {args:?}: {error}");
                assert_eq!(usher(place, &args).code, exit, "{what}: {args:?}");
            }
            assert!(args[0] != "send" || error["delivery"] == "not-delivered", "{error}");
        }
        assert_eq!(tree(place.scratch()), before, "{what}: something was made or started");
        assert_eq!(usher(place, &["list"]).stderr, "no daemon is running\n");
    }
    let live = Place::with_daemon(&[]);
    let list = live.json(&["list"]);
    assert_eq!((&list["daemon"], &list["sessions"]), (&json!("running"), &json!([])));
    assert!(list["generation"].is_string(), "{list}");
    let list = usher(&live, &["list"]);
    assert_eq!((list.code, list.stdout.as_str(), list.stderr.as_str()), (0, "", "no session is registered\n"));
}

// 44
#[test]
fn mistakes_on_the_command_line_are_one_object_on_standard_error() {
    let place = Place::empty();
    let before = tree(place.scratch());
    for line in [
        "",
        "nonsense",
        "--nonsense",
        "list --nonsense",
        "list extra",
        "list --title",
        "list --title a --title b",
        "get --session abc",
        "get --session ?bad?",
        "list --label nopair",
        "list --label =x",
        "send",
        "send a {",
        "send a 1 2",
        "send a --deadline 0s",
        "send a --deadline 6m",
        "send a --deadline soon",
        "send a @",
        "send a @/nonexistent",
        "send a 1 --text x",
        "wait --timeout 1",
        "status extra",
        "health extra",
        "paths nothing",
        "stop extra",
        "stop --receipt",
        "keys",
        "keys nonsense",
        "keys show",
        "keys new --label x --row",
        "keys new --row --out x",
        "keys new --label x --out x",
        "keys new --label x --row --scope session.list --out x",
        "keys new --label x --role king --row --out x",
        "keys enroll --label x --row",
        "keys revoke",
        "keys renew x --expires 1",
        "verify",
        "verify a b",
        "verify a --daemon-key",
        "rpc",
        "rpc a b c d",
        "rpc session.list []",
        "rpc session.list {",
        "rpc session.list 1",
        "rpc a - --payload -",
        "rpc a --role king",
        "run",
        "run --title",
        "run --on x -- true",
        "run --max-in-flight 0 -- true",
        "run --label x -- true",
        "run --on a=b --on a=c -- true",
        "help nonsense",
        "-x",
        "--json=yes list",
    ] {
        let args: Vec<_> = line.split(' ').filter(|word| !word.is_empty()).collect();
        let (exit, _, error) = in_json(&place, &args);
        assert_eq!(exit, 2, "{line}: {error}");
        let plain = usher(&place, &args);
        assert_eq!((plain.code, plain.stdout.as_str()), (2, ""), "{line}: {plain:?}");
        assert!(plain.stderr.starts_with("usher: "), "{line}: {plain:?}");
    }
    assert_eq!(tree(place.scratch()), before);
    let refused = ran(place.usherd().args(["--limit", "sessions=0"]));
    assert_eq!((refused.code, refused.stdout.as_str()), (2, ""), "{refused:?}");
    for args in [&["--nonsense"][..], &["extra"], &["--limit"], &["--limit", "x=1"], &["--limit", "sessions=9999999"]] {
        let refused = ran(place.usherd().args(args));
        assert_eq!((refused.code, refused.stdout.as_str()), (2, ""), "{args:?}: {refused:?}");
        assert_eq!(refused.stderr.lines().count(), 1, "{args:?}: {refused:?}");
    }
    let refused = ran(place.usherd().args(["--protocol", "7-9"]));
    assert_eq!(refused.code, 8, "{refused:?}");
    assert_eq!(tree(place.scratch()), before);
}

// 44
#[test]
fn every_failure_of_a_live_daemon_has_its_exit_code_and_its_word() {
    let place = Place::with_daemon(&["--limit", "streams=1", "--limit", "session-queued=1"]);
    let held = Producer::start(&place, "one");
    fails(&place, &["get", "--title", "none"], 6, "session-not-found");
    fails(&place, &["send", "--title", "none", "echo"], 6, "session-not-found");
    fails(&place, &["send", "nonsense"], 6, "command-not-found");
    fails(&place, &["send", "fail"], 1, "command-failed");
    fails(&place, &["rpc", "no.such"], 2, "unknown-method");
    fails(&place, &["rpc", "session.list", r#"{"more":1}"#], 2, "invalid-params");
    fails(&place, &["rpc", "session.send", "{}"], 2, "invalid-params");
    fails(&place, &["rpc", "--role", "producer", "session.unregister"], 9, "not-registered");
    fails(&place, &["keys", "show", "nobody"], 6, "credential-not-found");
    fails(&place, &["keys", "revoke", "nobody"], 6, "credential-not-found");
    fails(&place, &["keys", "revoke", "operator"], 9, "last-operator");
    fails(&place, &["keys", "new", "--label", "x", "--row", "--out", "missing/x"], 6, "not-found");
    fails(&place, &["keys", "new", "--label", "x", "--row", "--out", "."], 9, "exists");
    fails(&place, &["keys", "new", "--label", "x", "--scope", "no.such", "--out", "x"], 2, "invalid-params");
    fails(&place, &["stop"], 9, "sessions-live");
    fails(&place, &["--credential", "nowhere", "list"], 3, "store");
    let slow = Producer::start(&place, "slow");
    let (exit, _, error) = in_json(&place, &["send", "--title", "slow", "hold", "--deadline", "200ms"]);
    assert_eq!((exit, &error["code"]), (4, &json!("timeout")));
    assert_eq!((&error["delivery"], &error["retryable"]), (&json!("unknown"), &json!(true)), "{error}");
    drop(slow);
    until("it is gone", || (place.json(&["list"])["sessions"].as_array().unwrap().len() == 1).then_some(()));

    let two = Producer::start(&place, "two");
    let error = fails(&place, &["get"], 7, "ambiguous");
    let candidates: BTreeSet<_> =
        error["candidates"].as_array().unwrap().iter().map(|one| one["session_id"].as_str().unwrap()).collect();
    assert_eq!(candidates, BTreeSet::from([held.session.as_str(), two.session.as_str()]));
    let plain = usher(&place, &["send", "echo"]);
    assert!([&held.session, &two.session].iter().all(|id| plain.stderr.contains(id.as_str())), "{plain:?}");
    fails(&place, &["wait", "--timeout", "5s"], 7, "ambiguous");

    // One command runs, one waits, the third is refused.
    let mut waiting = Vec::new();
    let queued = |place: &Place| {
        let list = place.json(&["list", "--title", "one"]);
        list["sessions"][0]["pending"].as_u64().unwrap()
    };
    for count in 1..=2 {
        let mut send = place.usher();
        send.args(["send", "--title", "one", "hold", "--deadline", "60s"])
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        waiting.push(send.spawn().unwrap());
        until("the command is pending", || (queued(&place) == count).then_some(()));
    }
    let error = fails(&place, &["send", "--title", "one", "echo"], 10, "queue-full");
    assert_eq!(error["delivery"], "not-delivered", "{error}");
    // One waits, the second is refused.
    let mut wait = place.usher();
    wait.args(["wait", "--title", "never"]).stdout(Stdio::piped()).stderr(Stdio::piped());
    waiting.push(wait.spawn().unwrap());
    let mut operator = Operator::connect(&place);
    until("the wait is there", || (operator.used("streams") == 1).then_some(()));
    let error = fails(&place, &["wait", "--title", "never either"], 10, "busy");
    assert_eq!(error["resource"], "streams", "{error}");

    // What waits hears of the end.
    let stopped = usher(&place, &["stop", "--force"]);
    assert_eq!(stopped.code, 0, "{stopped:?}");
    for child in &mut waiting[2..] {
        child.kill().unwrap();
    }
    let codes: Vec<_> = waiting.into_iter().map(finished).collect();
    assert!(codes[..2].iter().all(|ran| ran.code == 3), "{codes:?}");
}

#[test]
fn a_daemon_without_a_place_is_told_as_no_capacity() {
    let place = Place::with_daemon(&["--limit", "connections=9"]);
    let _takes_the_place = Producer::start(&place, "one");
    let error = fails(&place, &["list"], 10, "busy");
    assert_eq!(error["resource"], "connections", "{error}");
    // The places kept for operators are still there.
    assert!(place.json(&["rpc", "--role", "operator", "daemon.status"])["result"].is_object());
    assert_eq!(usher(&place, &["stop", "--force"]).code, 0);
}

/// What a false daemon answers to a first line.
type FalseAnswer = Box<dyn Fn(&[u8]) -> Vec<u8> + Send>;

/// Says what a false daemon answers to the first line of each of so many connections.
fn false_daemon(
    place: &Place,
    connections: usize,
    answer: impl Fn(&[u8]) -> Vec<u8> + Send + 'static,
) -> JoinHandle<()> {
    let _gone = fs::remove_file(place.socket());
    let listener = UnixListener::bind(place.socket()).unwrap();
    threads::spawn("false daemon", move || {
        for _ in 0..connections {
            let (mut stream, _) = listener.accept().unwrap();
            let mut first = Vec::new();
            let _gone = BufReader::new(stream.try_clone().unwrap()).read_until(b'\n', &mut first);
            let _gone = stream.write_all(&answer(&first));
            let mut rest = Vec::new();
            let _gone = stream.shutdown(std::net::Shutdown::Write);
            let _gone = stream.read_to_end(&mut rest);
            assert!(rest.is_empty(), "a client said more to a daemon that it cannot speak with");
        }
    })
}

/// A place with keys and no daemon.
fn without_daemon() -> Place {
    let mut place = Place::with_daemon(&[]);
    place.signal_daemon(Signal::SIGTERM);
    place.wait_daemon();
    place
}

fn incompatible(first: &[u8], key: &Key, said: &[u8; 32]) -> Vec<u8> {
    let line = json!({"incompatible": {
        "protocol": {"min": 7, "max": 9}, "build": "usherd/9.0.0", "generation": base64(&random::<16>()),
        "daemon": base64(said), "nonce": base64(&random::<32>()),
    }});
    let challenge = format!("{line}\n").into_bytes();
    let lines = Lines { first: first.to_vec(), challenge: challenge.clone(), ..Lines::default() };
    [challenge, key.proof("usher/1 incompatible\n", &lines.t1())].concat()
}

// 16
#[test]
fn an_incompatible_daemon_is_exit_8_in_under_a_second_with_both_versions() {
    let place = without_daemon();
    let key = Key::read(&place.path().join("keys/daemon.pem"));
    // Each verb comes twice more: to ask how many sessions there are, once in each form.
    let daemon = false_daemon(&place, 8, move |first| incompatible(first, &key, &key.public()));
    let limit = promised(Duration::from_secs(1));
    let begun = Instant::now();
    let error = fails(&place, &["list"], 8, "incompatible");
    assert!(begun.elapsed() < 2 * limit, "{:?}", begun.elapsed());
    let told = error["message"].as_str().unwrap();
    for word in ["usherd/9.0.0", "protocols 7 to 9", "protocol 1", concat!("usher/", env!("CARGO_PKG_VERSION"))] {
        assert!(told.contains(word), "{word}: {told}");
    }
    fails(&place, &["send", "x"], 8, "incompatible");
    daemon.join().unwrap();
}

#[test]
fn whoever_does_not_prove_the_daemons_key_is_an_impostor_whatever_it_says() {
    let place = without_daemon();
    let right = Key::read(&place.path().join("keys/daemon.pem")).public();
    let answers: [FalseAnswer; 4] = [
        Box::new(move |first| incompatible(first, &Key::random(), &right)),
        Box::new(|first| incompatible(first, &Key::random(), &Key::random().public())),
        Box::new(|_| b"HTTP/1.1 400 Bad Request\r\n\r\n".to_vec()),
        Box::new(|_| b"{\"challenge\":{}}\n".to_vec()),
    ];
    for answer in answers {
        let daemon = false_daemon(&place, 2, answer);
        let error = fails(&place, &["list"], 3, "impostor");
        assert!(error["message"].as_str().unwrap().contains(place.socket().to_str().unwrap()), "{error}");
        daemon.join().unwrap();
    }
}

// 46
#[test]
fn help_and_version_need_no_home_no_directory_and_no_streams() {
    let mut lines: Vec<(&str, Vec<&str>)> = Vec::new();
    for word in ["--help", "-h", "--version", "-V"] {
        lines.push((USHER, vec![word]));
        lines.push((USHERD, vec![word]));
    }
    lines.push((USHER, vec!["help"]));
    for verb in
        "list get send wait ask approvals approve reject status health paths stop drain restart keys verify audit rpc run attach".split(' ')
    {
        lines.push((USHER, vec![verb, "--help"]));
        lines.push((USHER, vec![verb, "-h"]));
        lines.push((USHER, vec!["help", verb]));
    }
    let programs = is_root().then(Programs::for_everybody);
    if programs.is_none() {
        cannot("help for a user without an entry in passwd", "needs root");
    }
    for (program, args) in lines {
        let bare = |program: &Path, streams: &str| {
            let mut command = Command::new("/bin/sh");
            command.env_clear().args(["-c", &format!("exec \"$@\" {streams}"), "sh"]).arg(program).args(&args);
            command.current_dir("/").stdin(Stdio::null());
            command
        };
        let program = Path::new(program);
        let done = ran(&mut bare(program, ""));
        assert_eq!((done.code, done.stderr.as_str()), (0, ""), "{args:?}: {done:?}");
        assert!(done.stdout.contains("usher") && done.stdout.ends_with('\n'), "{args:?}: {done:?}");
        for streams in ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"] {
            let done = ran(&mut bare(program, streams));
            assert_eq!((done.code, done.stderr.as_str()), (0, ""), "{args:?} {streams}: {done:?}");
        }
        if let Some(programs) = &programs {
            use std::os::unix::process::CommandExt;
            let program = if program == Path::new(USHER) { programs.usher() } else { programs.usherd() };
            let done = ran(bare(&program, "").uid(54_321).gid(54_321));
            assert_eq!((done.code, done.stderr.as_str()), (0, ""), "{args:?}: {done:?}");
        }
    }
}

// 46
#[test]
fn a_user_without_a_home_is_told_to_name_a_directory() {
    if !is_root() {
        return cannot("a user without a home", "needs root");
    }
    use std::os::unix::process::CommandExt;
    let programs = Programs::for_everybody();
    let homeless = |program: &Path, args: &[&str]| {
        let mut command = Command::new(program);
        ran(command.args(args).env_clear().current_dir("/").stdin(Stdio::null()).uid(54_321).gid(54_321))
    };
    for args in [&["list"][..], &["paths"], &["status"], &["keys", "list"]] {
        let told = homeless(&programs.usher(), args);
        assert_eq!((told.code, told.stdout.as_str()), (3, ""), "{told:?}");
        assert!(told.stderr.contains("USHER_DIR"), "{told:?}");
    }
    for args in [&[][..], &["--background"]] {
        let told = homeless(&programs.usherd(), args);
        assert_eq!(told.code, 3, "{told:?}");
        assert!(told.stderr.contains("USHER_DIR"), "{told:?}");
    }
    let run = homeless(&programs.usher(), &["run", "--", "sh", "-c", "exit 5"]);
    assert_eq!((run.code, run.stderr.as_str()), (5, ""), "the program runs all the same");
}

// 46
#[test]
fn verbs_work_with_closed_streams() {
    let place = Place::with_daemon(&[]);
    let _one = Producer::start(&place, "one");
    for line in [
        "list",
        "get",
        "send echo 1",
        "wait",
        "events",
        "status",
        "health",
        "paths",
        "keys list",
        "audit",
        "audit --verify",
        "rpc session.list",
        "run true",
    ] {
        for streams in ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"] {
            let script = format!("exec \"$0\" {line} {streams}");
            let done = ran(place.program("sh").args(["-c", &script, USHER]));
            assert_eq!((done.code, done.stderr.as_str()), (0, ""), "{line} {streams}: {done:?}");
        }
    }
    // An input from a closed stream is no input, and no other file that took its number.
    let done = ran(place.program("sh").args(["-c", "exec \"$0\" send echo - <&-", USHER]));
    assert_eq!((done.code, done.stdout.as_str()), (2, ""), "{done:?}");
}

#[test]
fn a_reader_that_goes_away_is_no_failure_and_a_full_disk_is_one() {
    let place = Place::with_daemon(&[]);
    let _many: Vec<_> = (0..30).map(|count| Producer::start(&place, &format!("{count}"))).collect();
    for line in ["list", "--json list", "status", "keys list", "paths", "--help", "help keys", "rpc session.list"] {
        let script = format!("{{ \"$0\" {line}; echo \"code $?\" >&2; }} | true");
        let gone = ran(place.program("sh").args(["-c", &script, USHER]));
        assert_eq!(gone.stderr, "code 0\n", "{line}: {gone:?}");
        let script = format!("\"$0\" {line} >/dev/full");
        let full = ran(place.program("sh").args(["-c", &script, USHER]));
        assert!(full.code == 1 && full.stderr.lines().count() == 1, "{line}: {full:?}");
        assert!(full.stderr.contains("standard output"), "{line}: {full:?}");
    }
    for line in ["--help", "--version"] {
        let gone = ran(place.program("sh").args([
            "-c",
            &format!("{{ \"$0\" {line}; echo \"code $?\" >&2; }} | true"),
            USHERD,
        ]));
        assert_eq!(gone.stderr, "code 0\n", "{line}: {gone:?}");
        let full = ran(place.program("sh").args(["-c", &format!("\"$0\" {line} >/dev/full"), USHERD]));
        assert!(full.code == 1 && full.stderr.contains("standard output"), "{line}: {full:?}");
    }
}

/// A bundle in the scratch folder, made with these words; its credential's id.
fn bundle(place: &Place, name: &str, words: &[&str]) -> String {
    let made = usher(place, &[&["keys", "new", "--label", name, "--out", name], words].concat());
    assert_eq!(made.code, 0, "{made:?}");
    made.stdout.trim().to_owned()
}

#[test]
fn a_bundle_is_private_and_does_what_it_was_made_for_and_nothing_else() {
    let place = Place::with_daemon(&[]);
    let _one = Producer::start(&place, "one");
    let _two = Producer::start(&place, "two");
    let id = bundle(
        &place,
        "sandbox",
        &["--scope", "session.list", "--scope", "session.send", "--title", "one", "--command", "echo"],
    );
    let folder = place.scratch().join("sandbox");
    assert_eq!(mode_of(&folder), 0o700);
    let names: BTreeSet<_> = fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(names, ["bundle.json", "daemon.pub", "key.pem"].map(Into::into).into());
    for name in names {
        assert_eq!(mode_of(folder.join(name)), 0o600);
    }
    let leftovers = fs::read_dir(place.scratch()).unwrap().flatten();
    assert!(!leftovers.into_iter().any(|entry| entry.file_name().to_string_lossy().contains(".tmp")));

    let with = |words: &[&str]| usher(&place, &[&["--credential", "sandbox"], words].concat());
    let through = |words: &[&str]| {
        let mut command = place.usher();
        ran(command.args(words).env("USHER_CREDENTIAL", &folder).env("USHER_DIR", "/nonexistent"))
    };
    let listed = |ran: &Ran| -> Vec<String> {
        let list: Value = serde_json::from_str(&ran.stdout).unwrap_or_else(|error| panic!("{error}: {ran:?}"));
        list["sessions"].as_array().unwrap().iter().map(|row| row["title"].as_str().unwrap().to_owned()).collect()
    };
    assert_eq!(listed(&with(&["list", "--json"])), ["one"]);
    assert_eq!(listed(&through(&["list", "--json"])), ["one"]);
    assert_eq!(through(&["send", "echo", "[1]"]).stdout, "[1]\n");
    assert_eq!(with(&["send", "count"]).code, 5, "a command that was not granted");
    assert_eq!(with(&["send", "--title", "two", "echo"]).code, 6, "what is not granted is not there");
    assert_eq!(with(&["get"]).code, 5);
    assert_eq!(with(&["status"]).code, 5);
    assert_eq!(with(&["wait", "--timeout", "5s"]).code, 5);
    for verb in [
        &["stop", "--force"][..],
        &["keys", "list"],
        &["keys", "renew", "caller"],
        &["rpc", "--role", "producer", "session.heartbeat"],
    ] {
        let refused = with(verb);
        assert_eq!((refused.code, refused.stdout.as_str()), (5, ""), "{verb:?}: {refused:?}");
    }
    assert_eq!(with(&["run", "true"]).code, 0);

    // It is the only key that is tried, also where there is a better one.
    mode(folder.join("key.pem"), 0o644);
    let refused = with(&["list"]);
    assert!(refused.code == 3 && refused.stderr.contains("key.pem can be read by others"), "{refused:?}");
    mode(folder.join("key.pem"), 0o600);
    symlink(&folder, place.scratch().join("link")).unwrap();
    assert_eq!(usher(&place, &["--credential", "link", "list"]).code, 3);

    let shown = place.json(&["keys", "show", "sandbox"]);
    assert_eq!(
        (&shown["credential"], &shown["role"], &shown["state"]),
        (&json!(id), &json!("caller"), &json!("active"))
    );
    assert_eq!(shown["scopes"], json!(["session.list", "session.send"]));
    let shown = succeeds(&place, &["keys", "show", &id[..6]]);
    assert!(shown.contains("sandbox") && shown.contains("session.send"), "{shown}");

    assert!(succeeds(&place, &["keys", "revoke", "sandbox"]).contains("revoked"));
    let refused = with(&["list"]);
    assert!(refused.code == 5 && refused.stderr.contains("revoked"), "{refused:?}");
    assert!(!succeeds(&place, &["keys", "list"]).contains("sandbox"));
    let all = succeeds(&place, &["keys", "list", "--all"]);
    assert!(all.lines().any(|line| line.contains("sandbox") && line.contains("revoked")), "{all}");
    let again = bundle(&place, "again", &["--row"]);
    assert_ne!(again, id);
    assert_eq!(usher(&place, &["--credential", "again", "list"]).code, 0);
}

#[test]
fn a_bundle_ends_when_it_was_said_to_and_can_be_given_more_time_before() {
    let place = Place::with_daemon(&[]);
    let id = bundle(&place, "short", &["--row", "--expires", "1s"]);
    bundle(&place, "longer", &["--row", "--expires", "30s"]);
    let with = |name: &str| usher(&place, &["--credential", name, "list"]);
    assert!(succeeds(&place, &["keys", "renew", "longer", "--expires", "8h"]).contains("ends at"));
    until("it has expired", || (with("short").code == 5).then_some(()));
    let refused = with("short");
    assert!(refused.stderr.contains("expired"), "{refused:?}");
    fails(&place, &["keys", "renew", "short", "--expires", "8h"], 5, "expired");
    assert_eq!(place.json(&["keys", "show", &id])["state"], "expired");
    assert_eq!(with("longer").code, 0);
    assert!(succeeds(&place, &["keys", "renew", "longer"]).contains("has no end"));
}

#[test]
fn an_operator_with_a_bundle_of_its_own_does_what_it_was_granted() {
    let place = Place::with_daemon(&[]);
    bundle(&place, "reader", &["--role", "operator", "--scope", "credential.list"]);
    let with = |words: &[&str]| usher(&place, &[&["--credential", "reader"], words].concat());
    assert!(with(&["keys", "list"]).stdout.contains("reader"));
    assert_eq!(with(&["keys", "revoke", "caller"]).code, 5);
    assert_eq!(with(&["stop"]).code, 5);
    assert_eq!(with(&["keys", "renew", "caller"]).code, 2, "a bundle leads to no default keys");
}

#[test]
fn no_verb_leaves_a_daemon_that_nobody_can_manage_any_more() {
    let place = Place::with_daemon(&[]);
    // Neither at once nor in time, nor with an operator that could enroll nobody.
    fails(&place, &["keys", "revoke", "operator"], 9, "last-operator");
    fails(&place, &["keys", "renew", "operator", "--expires", "8h"], 9, "last-operator");
    let id = place.json(&["keys", "show", "operator"])["credential"].as_str().unwrap().to_owned();
    fails(&place, &["keys", "renew", &id, "--expires", "8h"], 9, "last-operator");
    bundle(&place, "reader", &["--role", "operator", "--scope", "credential.list"]);
    bundle(&place, "guest", &["--role", "operator", "--row", "--expires", "8h"]);
    fails(&place, &["keys", "revoke", "operator"], 9, "last-operator");
    succeeds(&place, &["keys", "list"]);
    let keys = fs::read_dir(place.path().join("keys")).unwrap().flatten();
    assert!(keys.into_iter().all(|entry| !entry.file_name().to_string_lossy().contains(".new")));

    bundle(&place, "narrow", &["--role", "operator", "--scope", "credential.enroll", "--scope", "credential.list"]);
    fails(&place, &["keys", "revoke", "operator"], 9, "last-operator");
    bundle(&place, "deputy", &["--role", "operator", "--row"]);
    succeeds(&place, &["keys", "revoke", "reader"]);
    succeeds(&place, &["keys", "renew", "operator", "--expires", "8h"]);
    assert!(place.json(&["keys", "show", "operator"])["expires"].is_string());
    fails(&place, &["keys", "revoke", "deputy"], 9, "last-operator");
}

#[test]
fn a_key_that_was_made_elsewhere_is_enrolled_and_ours_are_read_elsewhere() {
    let place = Place::with_daemon(&[]);
    let key = Key::random();
    let id = succeeds(&place, &["keys", "enroll", "--label", "mine", "--row", "--public-key", &base64(&key.public())]);
    fails(
        &place,
        &["keys", "enroll", "--label", "x", "--row", "--public-key", &base64(&key.public())],
        9,
        "already-enrolled",
    );
    let identity = Identity::of(&place, "caller").with_key(key);
    assert!(Peer::hello(&identity).is_ok());
    succeeds(&place, &["keys", "revoke", id.trim()]);
    assert!(Peer::hello(&identity).is_err());

    let openssl = |words: &[&str]| {
        let mut command = Command::new("openssl");
        command.args(words).current_dir(place.scratch()).stdin(Stdio::null()).stderr(Stdio::null()).output()
    };
    let made = openssl(&["genpkey", "-algorithm", "ed25519", "-out", "theirs.pem"]);
    if !made.is_ok_and(|output| output.status.success()) {
        return cannot("keys of openssl", "no openssl here");
    }
    assert!(openssl(&["pkey", "-in", "theirs.pem", "-pubout", "-out", "theirs.pub"]).unwrap().status.success());
    let id = succeeds(&place, &["keys", "enroll", "--label", "theirs", "--row", "--public-key", "@theirs.pub"]);
    assert_eq!(id.trim().len(), 22);
    let theirs = Key::read(&place.scratch().join("theirs.pem"));
    assert!(Peer::hello(&identity.with_key(theirs)).is_ok());
    for name in ["daemon", "caller", "producer", "operator"] {
        let path = place.path().join(format!("keys/{name}.pem"));
        let read = openssl(&["pkey", "-noout", "-in", path.to_str().unwrap()]).unwrap();
        assert!(read.status.success(), "openssl reads {name}.pem");
    }
}

#[test]
fn a_renewed_default_key_works_and_the_old_one_does_not() {
    let place = Place::with_daemon(&[]);
    for role in ["caller", "producer", "operator"] {
        let old = Identity::of(&place, role);
        let connected = Peer::connect(&old);
        let ids = |place: &Place| place.json(&["keys", "list", "--all"])["credentials"].as_array().unwrap().len();
        let before = ids(&place);
        let said = succeeds(&place, &["keys", "renew", role]);
        assert!(said.starts_with(&format!("{role} has a new key")), "{said}");
        let mut connected = connected;
        connected.all_that_comes();
        let new = Identity::of(&place, role);
        assert_ne!(old.named, new.named);
        assert_eq!(mode_of(place.path().join(format!("keys/{role}.pem"))), 0o600);
        let refused = Peer::hello(&old).map(|_| ()).unwrap_err();
        assert!(format!("{refused:?}").contains("revoked"), "{refused:?}");
        assert!(Peer::hello(&new).is_ok());
        assert_eq!(ids(&place), before + 1);
        assert_eq!(place.json(&["list"])["daemon"], "running");
        assert_eq!(place.json(&["keys", "show", role])["default"], true);
    }
    let names: BTreeSet<_> = fs::read_dir(place.path().join("keys"))
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    assert!(names.iter().all(|name| !name.contains(".new")), "{names:?}");
    // A file that somebody put where the new key would lie is in nobody's way.
    put(place.path().join("keys/caller.pem.new"), b"left by a crash");
    succeeds(&place, &["keys", "renew", "caller"]);
    assert_eq!(place.json(&["list"])["daemon"], "running");
}

#[test]
fn inside_a_session_operators_verbs_have_to_be_meant() {
    let place = Place::with_daemon(&[]);
    let inside = |words: &[&str]| {
        let mut command = place.usher();
        ran(command.args(words).env("USHER_SESSION", "AAAAAAAAAAAAAAAAAAAAAA").current_dir(place.scratch()))
    };
    let before = tree(place.path());
    for words in verbs()
        .into_iter()
        .filter(|words| ["stop", "keys", "audit"].contains(&words[0]) || words.contains(&"daemon.stop"))
    {
        let refused = inside(&[&["--json"], &words[..]].concat());
        let (code, _, error) = is_json(&refused, &words);
        assert_eq!((code, error["code"].as_str()), (5, Some("operator-not-meant")), "{words:?}: {refused:?}");
        assert!(error["hint"].as_str().unwrap().contains("--operator"), "{error}");
    }
    let refused = inside(&["rpc", "--role", "operator", "session.list"]);
    assert_eq!(refused.code, 5, "{refused:?}");
    let mut after = tree(place.path());
    let mut before = before;
    for tree in [&mut before, &mut after] {
        tree.remove(&place.log());
    }
    assert_eq!(after, before);
    for words in [&["list"][..], &["status"], &["health"], &["paths"], &["rpc", "session.list"]] {
        assert_eq!(inside(words).code, 0, "{words:?}");
    }
    assert_eq!(inside(&["keys", "list", "--operator"]).code, 0);
    assert_eq!(inside(&["--operator", "rpc", "credential.list"]).code, 0);
    let mut empty = place.usher();
    assert_eq!(ran(empty.args(["keys", "list"]).env("USHER_SESSION", "")).code, 0, "an empty variable is none");
    assert_eq!(inside(&["stop", "--operator"]).code, 0);
}

#[test]
fn a_receipt_proves_what_was_done_until_any_byte_of_it_is_another() {
    let mut place = Place::with_daemon(&[]);
    let id = bundle(&place, "gone", &["--row"]);
    succeeds(&place, &["keys", "revoke", "gone", "--receipt", "receipt"]);
    let path = place.scratch().join("receipt");
    assert_eq!(mode_of(&path), 0o600);
    // It is new each time: nothing is written over.
    bundle(&place, "next", &["--row"]);
    let refused = usher(&place, &["keys", "revoke", "next", "--receipt", "receipt"]);
    assert_eq!(refused.code, 2, "{refused:?}");
    assert_eq!(
        usher(&place, &["--credential", "next", "list"]).code,
        0,
        "nothing was done without a place for the receipt"
    );
    let key = fs::read_to_string(place.path().join("keys/daemon.pub")).unwrap();
    succeeds(&place, &["stop", "--receipt", "stopped"]);
    assert_eq!(place.wait_daemon(), 0);

    // Without a daemon.
    let proved = place.json(&["verify", path.to_str().unwrap()]);
    assert_eq!((&proved["verified"], &proved["method"]), (&json!(true), &json!("credential.revoke")));
    assert_eq!((&proved["params"]["credential"], &proved["role"]), (&json!(id), &json!("operator")));
    assert_eq!(proved["daemon"], key.trim());
    assert_eq!(place.json(&["verify", place.scratch().join("stopped").to_str().unwrap()])["method"], "daemon.stop");
    let elsewhere = Place::empty();
    put(elsewhere.scratch().join("daemon.pub"), &key);
    let receipt = path.to_str().unwrap();
    for key in [key.trim(), "@daemon.pub"] {
        assert!(succeeds(&elsewhere, &["verify", receipt, "--daemon-key", key]).starts_with("verified"));
    }
    fails(&elsewhere, &["verify", receipt], 6, "not-found");
    fails(&elsewhere, &["verify", receipt, "--daemon-key", &base64(&Key::random().public())], 1, "not-verified");
    fails(&elsewhere, &["verify", receipt, "--daemon-key", "nonsense"], 2, "usage");

    let whole = fs::read(&path).unwrap();
    let altered = elsewhere.scratch().join("altered");
    let step = whole.len() / 100;
    for at in (0..whole.len()).step_by(step).chain(whole.len() - 8..whole.len()) {
        for bit in [0x01, 0x02, 0x20] {
            let mut bytes = whole.clone();
            bytes[at] ^= bit;
            if bytes[at].is_ascii_whitespace() && at == whole.len() - 1 {
                continue;
            }
            put(&altered, &bytes);
            let refused = usher(&elsewhere, &["verify", "altered", "--daemon-key", "@daemon.pub"]);
            let shown = format!("byte {at}, bit {bit}: {}", String::from_utf8_lossy(&bytes));
            assert_eq!((refused.code, refused.stdout.as_str()), (1, ""), "{refused:?}\n{shown}");
        }
    }
    for bytes in [&whole[..whole.len() / 2], b"", b"[]", b"{}", b"null", &[&whole[..], &whole[..]].concat()] {
        put(&altered, bytes);
        assert_eq!(usher(&elsewhere, &["verify", "altered", "--daemon-key", "@daemon.pub"]).code, 1);
    }
}

#[test]
fn stop_refuses_while_there_are_sessions_and_names_them_unless_it_is_forced() {
    let mut place = Place::with_daemon(&[]);
    let mut one = Producer::start(&place, "precious");
    let error = fails(&place, &["stop"], 9, "sessions-live");
    assert_eq!(error["sessions"][0]["session_id"], one.session.as_str(), "{error}");
    let plain = usher(&place, &["stop", "--receipt", "receipt"]);
    assert!(plain.stderr.contains("precious") && plain.stderr.contains(&one.session), "{plain:?}");
    assert!(!place.scratch().join("receipt").exists(), "nothing happened, so there is no receipt");
    assert!(place.health().is_some());
    assert_eq!(succeeds(&place, &["stop", "--force"]), "the daemon has stopped; 1 session was told\n");
    one.ended();
    assert_eq!(place.wait_daemon(), 0);
    assert!(!place.socket().exists());
    fails(&place, &["stop"], 3, "not-running");
    place.start_daemon(&[]);
    let (_, document, _) = in_json(&place, &["stop"]);
    let document = document.unwrap();
    assert_eq!((&document["stopped"], &document["sessions"]), (&json!(true), &json!(0)));
    assert_eq!(place.wait_daemon(), 0);
}

#[test]
fn rpc_calls_any_method_with_the_least_key_and_prints_what_came() {
    let place = Place::with_daemon(&[]);
    let one = Producer::start(&place, "one");
    let rpc = |words: &[&str]| -> Value {
        let ran = usher(&place, &[&["rpc"], words].concat());
        assert_eq!((ran.code, ran.stderr.as_str()), (0, ""), "{words:?}: {ran:?}");
        serde_json::from_str(&ran.stdout).unwrap()
    };
    assert_eq!(rpc(&["session.list"])["payload"][0]["title"], "one");
    let params = json!({"selector": {"session": one.session}, "command": "echo"}).to_string();
    put(place.scratch().join("params"), &params);
    for words in [
        &["session.send", &params, "--payload", r#"{"a":[1.0,1e400]}"#][..],
        &["session.send", "@params", "--payload", r#"{"a":[1.0,1e400]}"#],
    ] {
        let plain = usher(&place, &[&["rpc"], words].concat());
        assert!(plain.stdout.contains(r#""payload":{"a":[1.0,1e400]}"#), "numbers are the applications': {plain:?}");
    }
    let mut piped = place
        .usher()
        .args(["rpc", "session.send", "@params", "--payload", "-"])
        .current_dir(place.scratch())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    piped.stdin.take().unwrap().write_all(b" [ 1,\n2 ] ").unwrap();
    let piped = finished(piped);
    assert_eq!(piped.code, 0, "{piped:?}");
    let back: Value = serde_json::from_str(&piped.stdout).unwrap();
    assert_eq!(back["payload"], json!([1, 2]));
    assert!(rpc(&["credential.list"])["payload"].as_array().unwrap().len() == 3);
    assert!(rpc(&["daemon.status", r#"{"receipt":true}"#])["receipt"].is_object());
    assert!(rpc(&["--role", "operator", "session.list"])["payload"].is_array());
    fails(&place, &["rpc", "--role", "caller", "credential.list"], 2, "unknown-method");
    fails(&place, &["rpc", "--role", "producer", "session.list"], 2, "unknown-method");
}

/// A session at a folder, with a repository root and labels.
fn session(place: &Place, title: &str, more: &Value) -> Producer {
    let mut registration = registration(title, 1);
    for (name, value) in more.as_object().unwrap() {
        registration[name] = value.clone();
    }
    Producer::with(&Identity::of(place, "producer"), &registration)
}

#[test]
fn a_selector_finds_the_one_session_that_is_meant() {
    let place = Place::with_daemon(&[]);
    let work = fs::canonicalize(place.scratch()).unwrap().join("work");
    for folder in ["", "a", "a/deep", "b", "b/.git", "b/deep", "c"] {
        fs::create_dir(work.join(folder)).unwrap();
    }
    symlink(work.join("a"), work.join("link")).unwrap();
    let at = |folder: &str| work.join(folder).components().collect::<PathBuf>().to_str().unwrap().to_owned();
    let [x, y] = ["AAAAAAAAAAAAAAAAAAAAAA", "AAAAAAAAAAAAAAAAAAAAAQ"];
    let _work = session(
        &place,
        "work",
        &json!({"session_id": x, "cwd": at(""), "repo_root": at(""), "labels": {"k": "1", "env": "prod"}}),
    );
    let _a =
        session(&place, "a", &json!({"session_id": y, "cwd": at("a"), "repo_root": at("a"), "labels": {"k": "1"}}));
    let _c = session(&place, "c", &json!({"cwd": at("c"), "labels": {"k": "2"}}));

    let found = |words: &[&str]| -> Result<String, i32> {
        let ran = usher(&place, &[&["get", "--json"], words].concat());
        if ran.code != 0 {
            return Err(ran.code);
        }
        let got: Value = serde_json::from_str(&ran.stdout).unwrap();
        Ok(got["session"]["title"].as_str().unwrap().to_owned())
    };
    let title = |title: &str| Ok(title.to_owned());
    for (words, expected) in [
        (&["--session", x][..], title("work")),
        (&["--session", &x[..21]], Err(7)),
        (&["--session", "AAAA"], Err(7)),
        (&["--session", "AAAAAAAAAAAAAAAAAAAAAg"], Err(6)),
        (&["--title", "c"], title("c")),
        (&["--title", "C"], Err(6)),
        (&["--title", ""], Err(6)),
        (&["--cwd", &at("a")], title("a")),
        (&["--cwd", &at("a/deep")], Err(6)),
        (&["--cwd", &at("link")], title("a")),
        (&["--cwd", &format!("{}/", at("a"))], title("a")),
        (&["--repo", &at("a/deep")], title("a")),
        (&["--repo", &at("link/deep")], title("a")),
        (&["--repo", &at("c")], title("c")),
        (&["--repo", &at("gone")], title("work")),
        (&["--repo", &at("")], title("work")),
        // The repository of `b` is nearer than the root of `work`.
        (&["--repo", &at("b/deep")], Err(6)),
        (&["--repo", &at("b")], Err(6)),
        (&["--repo", work.parent().unwrap().to_str().unwrap()], Err(6)),
        (&["--label", "k=1"], Err(7)),
        (&["--label", "k=1", "--label", "env=prod"], title("work")),
        (&["--label", "k=2"], title("c")),
        (&["--label", "k="], Err(6)),
        (&["--label", "k=1", "--title", "c"], Err(6)),
        (&["--label", "k=1", "--cwd", &at("a")], title("a")),
        (&[], Err(7)),
    ] {
        assert_eq!(found(words), expected, "{words:?}");
    }
    let relative = ran(place.usher().args(["get", "--repo", "."]).current_dir(work.join("a/deep")));
    assert!(relative.code == 0 && relative.stdout.contains("title     a\n"), "{relative:?}");
    let list = usher(&place, &["list", "--label", "k=1"]);
    assert_eq!(list.stdout.lines().count(), 3, "a list shows all that match: {list:?}");
}

#[test]
fn an_input_is_an_argument_a_file_standard_input_or_text() {
    let place = Place::with_daemon(&[]);
    let _one = Producer::start(&place, "one");
    put(place.scratch().join("input"), b"{\"from\":\"file\"}\n");
    let sent = |words: &[&str]| {
        let ran = usher(&place, &[&["send", "echo"], words].concat());
        assert_eq!((ran.code, ran.stderr.as_str()), (0, ""), "{words:?}: {ran:?}");
        ran.stdout
    };
    assert_eq!(sent(&[]), "null\n");
    assert_eq!(
        sent(&[r#"{"b":1,"a":[1,2],"b":2.50}"#]),
        "{\"b\":1,\"a\":[1,2],\"b\":2.50}\n",
        "not one byte is another"
    );
    assert_eq!(sent(&["@input"]), "{\"from\":\"file\"}\n");
    assert_eq!(sent(&["--text", "plain \"text\""]), "plain \"text\"\n", "a string is printed as it is");
    assert_eq!(sent(&["--text", ""]), "\n");
    assert_eq!(sent(&["--text", "-"]), "-\n");
    assert_eq!(sent(&["--text=--json"]), "--json\n");
    assert_eq!(sent(&["--", "-1"]), "-1\n");
    assert_eq!(sent(&["--text", "x", "--json"]).matches("\"result\":\"x\"").count(), 1);
    let script = "printf '[1,\n 2]' | \"$0\" send echo -";
    let piped = ran(place.program("sh").args(["-c", script, USHER]));
    assert!(piped.code == 0 && serde_json::from_str::<Value>(&piped.stdout).unwrap() == json!([1, 2]), "{piped:?}");

    let deep = |depth: usize| format!("{}{}", "[".repeat(depth), "]".repeat(depth));
    assert_eq!(sent(&[&deep(128)]).trim(), deep(128));
    put(place.scratch().join("bom"), b"\xef\xbb\xbf1");
    put(place.scratch().join("nul"), b"\"\0\"");
    put(place.scratch().join("latin"), b"\"\xe9\"");
    put(place.scratch().join("large"), format!("\"{}\"", "x".repeat(1024 * 1024)));
    put(place.scratch().join("fits"), format!("\"{}\"", "x".repeat(1024 * 1024 - 2)));
    put(place.scratch().join("empty"), b"");
    let deep = deep(129);
    for bad in [
        "",
        " ",
        "{",
        "1 2",
        "nope",
        "'x'",
        "{\"a\":1,}",
        "NaN",
        "@bom",
        "@nul",
        "@latin",
        "@empty",
        "@large",
        "@.",
        &deep,
    ] {
        let refused = usher(&place, &["send", "echo", bad]);
        assert_eq!((refused.code, refused.stdout.as_str()), (2, ""), "{:.40}: {refused:?}", bad);
        let (code, _, _) = in_json(&place, &["send", "echo", bad]);
        assert_eq!(code, 2);
    }
    assert_eq!(sent(&["@fits"]).len(), 1024 * 1024 - 2 + 1);
    let endless = usher(&place, &["send", "echo", "@/dev/zero"]);
    assert_eq!(endless.code, 2, "{endless:?}");
}

#[test]
fn wait_ends_at_its_time_or_with_the_session_that_came_and_waits_for_a_daemon_too() {
    let mut place = Place::empty();
    let begun = Instant::now();
    let error = fails(&place, &["wait", "--timeout", "300ms"], 4, "timeout");
    assert!(begun.elapsed() >= Duration::from_millis(600), "both have waited");
    assert!(error["message"].as_str().unwrap().contains("no daemon is running"), "{error}");

    let wait = |place: &Place, title: &str| {
        let mut wait = place.usher();
        wait.args(["wait", "--title", title, "--timeout", "60s"]).stdout(Stdio::piped()).stderr(Stdio::piped());
        wait.spawn().unwrap()
    };
    let early = wait(&place, "one");
    place.start_daemon(&[]);
    let one = Producer::start(&place, "one");
    let early = finished(early);
    assert_eq!((early.code, early.stdout.trim(), early.stderr.as_str()), (0, one.session.as_str(), ""));
    assert_eq!(succeeds(&place, &["wait"]).trim(), one.session);

    let second = wait(&place, "two");
    let mut operator = Operator::connect(&place);
    until("it waits at the daemon", || (operator.used("streams") == 1).then_some(()));
    let two = Producer::start(&place, "two");
    let second = finished(second);
    assert_eq!((second.code, second.stdout.trim()), (0, two.session.as_str()));

    // The daemon is replaced while somebody waits.
    let third = wait(&place, "three");
    until("it waits at the daemon", || (operator.used("streams") == 1).then_some(()));
    drop(operator);
    assert_eq!(usher(&place, &["stop", "--force"]).code, 0);
    place.wait_daemon();
    place.start_daemon(&[]);
    let three = Producer::start(&place, "three");
    let third = finished(third);
    assert_eq!((third.code, third.stdout.trim()), (0, three.session.as_str()), "{third:?}");

    let begun = Instant::now();
    let error = fails(&place, &["wait", "--title", "never", "--timeout", "300ms"], 4, "timeout");
    assert!(begun.elapsed() >= Duration::from_millis(600) && begun.elapsed() < promised(Duration::from_secs(3)));
    assert!(error["message"].as_str().unwrap().contains("no session matches"), "{error}");
}

#[test]
fn a_daemon_that_hangs_holds_no_verb_longer_than_its_deadline_and_is_named() {
    let mut place = Place::with_daemon(&[]);
    let _one = Producer::start(&place, "one");
    place.signal_daemon(Signal::SIGSTOP);
    let limit = promised(Duration::from_secs(8));
    let begun = Instant::now();
    let verbs: Vec<_> = verbs().into_iter().filter(|words| !["paths", "verify"].contains(&words[0])).collect();
    let spawn = |words: &Vec<&str>| {
        let mut command = place.usher();
        command.arg("--json").args(words).current_dir(place.scratch());
        command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
    };
    let all: Vec<_> = verbs.iter().map(spawn).collect();
    let pid = format!("process {}", place.pid());
    for (words, child) in verbs.iter().zip(all) {
        let done = finished(child);
        let (code, _, error) = is_json(&done, words);
        assert_eq!((code, error["code"].as_str()), (3, Some("hung")), "{words:?}: {done:?}");
        assert!(error["message"].as_str().unwrap().contains(&pid), "{words:?}: {error}");
        assert!(words[0] != "send" || error["delivery"] == "not-delivered", "{words:?}: {error}");
    }
    assert!(begun.elapsed() < limit, "{:?}", begun.elapsed());
    place.signal_daemon(Signal::SIGCONT);
    assert_eq!(place.json(&["list"])["sessions"].as_array().unwrap().len(), 1, "nothing of it was done");
    assert_eq!(place.json(&["keys", "list", "--all"])["credentials"].as_array().unwrap().len(), 3);
    assert!(!place.scratch().join("bundle").exists());

    // It stops in the middle of a command.
    let mut send = place.usher();
    send.args(["--json", "send", "hold", "--deadline", "500ms"]).stdout(Stdio::piped()).stderr(Stdio::piped());
    let send = send.spawn().unwrap();
    until("the command is pending", || (place.json(&["list"])["sessions"][0]["pending"] == 1).then_some(()));
    place.signal_daemon(Signal::SIGSTOP);
    let done = finished(send);
    let (code, _, error) = is_json(&done, &["send"]);
    assert_eq!((code, &error["delivery"]), (4, &json!("unknown")), "{done:?}");
    // It dies in the middle of one.
    place.signal_daemon(Signal::SIGCONT);
    let mut send = place.usher();
    send.args(["--json", "send", "echo", "--deadline", "60s"]).stdout(Stdio::piped()).stderr(Stdio::piped());
    let send = send.spawn().unwrap();
    until("the command is pending", || {
        (place.json(&["list"])["sessions"][0]["pending"].as_u64() >= Some(1)).then_some(())
    });
    place.signal_daemon(Signal::SIGKILL);
    place.wait_daemon();
    let done = finished(send);
    let (code, _, error) = is_json(&done, &["send"]);
    assert!((code == 3 && error["delivery"] != "delivered") || code == 0, "{done:?}");
}

#[test]
fn a_full_disk_takes_no_bundle_and_leaves_no_credential_without_a_key() {
    let place = Place::below("small");
    let script = r#"
        "$3" --background || exit 98
        mkdir "$1.out" && mount -t tmpfs -o size=16k,mode=0700 none "$1.out" || exit 99
        dd if=/dev/zero of="$1.out/filler" bs=4k 2>/dev/null
        "$2" --json keys new --label lost --row --out "$1.out/bundle" 2>&1; echo "code $?"
        ls -A "$1.out"
        "$2" --json keys list
        "$2" stop --force"#;
    let Some(ran) = in_own_mounts(&place, script) else {
        return cannot("a full disk for a bundle", "no mount namespaces here");
    };
    let lines: Vec<_> = ran.stdout.lines().collect();
    assert!(lines[0].contains("ENOSPC") || lines[0].contains("No space"), "{ran:?}");
    assert_ne!(lines[1], "code 0", "{ran:?}");
    assert_eq!(lines[2], "filler", "{ran:?}");
    assert!(!lines[3].contains("lost"), "{ran:?}");
}
