//! Upgrades with real binaries: this build, and another one of the same tree that speaks protocol 2 alone.

use std::collections::BTreeMap;
use std::fs;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use serde_json::Value;

use super::support::daemon::{Place, Ran, USHER, USHERD, ran};
use super::support::system::{Process, copy_program, kill, put_program};
use super::support::wait::{until, within};

/// How long a window may take that comes back: pauses grow to five seconds.
const BACK: Duration = Duration::from_secs(60);

/// The programs of one build.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Build {
    /// This one.
    A,
    /// The other one.
    B,
}

/// Where the other build is. Made once, in a folder of its own beside this one's.
fn other() -> &'static Path {
    static OTHER: OnceLock<PathBuf> = OnceLock::new();
    OTHER.get_or_init(|| {
        let target = Path::new(USHER).parent().unwrap().parent().unwrap().join("fixture");
        let mut cargo = Command::new(env!("CARGO"));
        cargo.args(["build", "--locked", "--bins", "--quiet"]).current_dir(env!("CARGO_MANIFEST_DIR"));
        cargo.env("RUSTFLAGS", "--cfg usher_fixture").env("USHER_FIXTURE", "2").env("CARGO_TARGET_DIR", &target);
        cargo.env_remove("CARGO_ENCODED_RUSTFLAGS").stdin(Stdio::null());
        let built = cargo.output().unwrap();
        assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
        target.join("debug")
    })
}

impl Build {
    fn usher(self) -> PathBuf {
        if self == Self::A { PathBuf::from(USHER) } else { other().join("usher") }
    }

    fn usherd(self) -> PathBuf {
        if self == Self::A { PathBuf::from(USHERD) } else { other().join("usherd") }
    }
}

/// A directory, and a folder into which one build is installed over the other.
struct Machine {
    place: Place,
    bin: PathBuf,
}

impl Machine {
    fn new(build: Build) -> Self {
        let place = Place::empty();
        let bin = place.scratch().join("bin");
        fs::create_dir(&bin).unwrap();
        let machine = Self { place, bin };
        machine.install(build);
        machine
    }

    /// As `make install` does it: each file is replaced, and what runs goes on running.
    fn install(&self, build: Build) {
        for (program, name) in [(build.usher(), "usher"), (build.usherd(), "usherd")] {
            copy_program(program, self.bin.join("new"));
            fs::rename(self.bin.join("new"), self.bin.join(name)).unwrap();
        }
    }

    /// The installed `usher`.
    fn usher(&self) -> Command {
        self.place.program(self.bin.join("usher"))
    }

    fn run(&self, args: &[&str]) -> Ran {
        ran(self.usher().args(args))
    }

    /// A program of this build, wherever the other is installed.
    fn run_as(&self, build: Build, args: &[&str]) -> Ran {
        ran(self.place.program(build.usher()).args(args))
    }

    /// A daemon that makes room soon; auto-started ones take half a minute.
    fn start_daemon(&self) {
        let started = ran(self.place.program(self.bin.join("usherd")).args([
            "--background",
            "--idle-exit",
            "0",
            "--limit",
            "settled-ms=1",
        ]));
        assert_eq!((started.code, started.stderr.as_str()), (0, ""), "{started:?}");
    }

    /// A window: it says its own id in a file.
    fn window(&self, title: &str) -> Window {
        let said = self.place.scratch().join(format!("{title}.id"));
        let script = format!("echo $USHER_SESSION > '{}'; exec sleep 1000", said.display());
        let mut command = self.usher();
        command.args(["run", "--title", title, "--on", "echo=cat", "--", "sh", "-c", &script]);
        let child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        let id = until("the window says its id", || {
            let id = fs::read_to_string(&said).ok()?.trim().to_owned();
            (!id.is_empty()).then_some(id)
        });
        Window { child, id }
    }

    /// Title and id of each session, as a build sees them; none where it cannot.
    fn sessions(&self, build: Build) -> BTreeMap<String, String> {
        let listed = self.run_as(build, &["list", "--json"]);
        let Ok(document) = serde_json::from_str::<Value>(&listed.stdout) else { return BTreeMap::new() };
        let text = |value: &Value| value.as_str().unwrap().to_owned();
        let rows = document["sessions"].as_array().cloned().unwrap_or_default();
        rows.iter().map(|row| (text(&row["title"]), text(&row["session_id"]))).collect()
    }

    fn has(&self, build: Build, title: &str, window: &Window) {
        within(BACK, "the window is there under its own id", || {
            (self.sessions(build).get(title) == Some(&window.id)).then_some(())
        });
    }

    /// The one daemon: its process and when that started.
    fn daemon(&self) -> Option<(u32, i64)> {
        let [pid] = self.place.daemons()[..] else { return None };
        Some((pid, Process::new(pid).stat(22)))
    }

    /// All that whoever can connect is told.
    fn health(&self) -> Option<String> {
        let mut stream = UnixStream::connect(self.place.socket()).ok()?;
        stream.write_all(b"{\"health\":1}\n").ok()?;
        let mut body = String::new();
        stream.read_to_string(&mut body).ok()?;
        Some(body)
    }

    fn log(&self) -> String {
        self.place.log_text()
    }
}

struct Window {
    child: Child,
    id: String,
}

impl Window {
    fn close(mut self) {
        kill(self.child.id(), Signal::SIGTERM);
        self.child.wait().unwrap();
    }
}

/// The program that a process runs is this one, byte for byte.
fn runs(pid: u32, program: &Path) -> bool {
    fs::read(format!("/proc/{pid}/exe")).unwrap() == fs::read(program).unwrap()
}

/// Nothing but the generation.
fn is_only_alive(body: &str) -> bool {
    let Ok(Value::Object(body)) = serde_json::from_str(body) else { return false };
    body.len() == 2 && body["ok"] == true && body["generation"].as_str().is_some_and(|text| text.len() == 22)
}

#[test]
fn an_upgrade_in_the_middle_of_work_costs_no_session() {
    let machine = Machine::new(Build::A);
    machine.start_daemon();
    let a = machine.window("a");
    machine.has(Build::A, "a", &a);
    let incumbent = machine.daemon().unwrap();
    assert!(runs(incumbent.0, &Build::A.usherd()));
    assert!(machine.health().is_some_and(|body| is_only_alive(&body)));

    machine.install(Build::B);
    let (first, second) = (machine.window("b1"), machine.window("b2"));
    until("both wait", || (machine.log().matches(": incompatible").count() >= 2).then_some(()));
    let asked = Instant::now();
    for args in [&["list"][..], &["send", "--title", "a", "echo", "1"], &["status"], &["ask", "x?"], &["restart"]] {
        let told = machine.run(args);
        assert_eq!((told.code, told.stdout.as_str()), (8, ""), "{args:?}: {told:?}");
        assert!(told.stderr.contains("usherd/0.1.0 ") && told.stderr.contains("protocol 2"), "{args:?}: {told:?}");
    }
    assert!(asked.elapsed() < Duration::from_secs(5), "five commands that fail fast took {:?}", asked.elapsed());
    let told = machine.run(&["list"]);
    assert!(told.stderr.contains("1 session holds it"), "{told:?}");

    // For a while nothing changes: the old daemon serves the old window.
    let later = Instant::now() + Duration::from_secs(3);
    while Instant::now() < later {
        assert_eq!(machine.run_as(Build::A, &["send", "--title", "a", "echo", "1"]).stdout, "1\n");
        assert_eq!(machine.daemon(), Some(incumbent), "the same process");
    }
    kill(second.child.id(), Signal::SIGSTOP);
    a.close();
    machine.has(Build::B, "b1", &first);
    let successor = machine.daemon().unwrap();
    assert_ne!(successor, incumbent);
    assert!(runs(successor.0, &Build::B.usherd()));
    assert!(machine.health().is_some_and(|body| is_only_alive(&body)));
    assert!(machine.log().contains("ending: successor") && !machine.log().contains("ending: signal"));
    kill(second.child.id(), Signal::SIGCONT);
    machine.has(Build::B, "b2", &second);
    machine.has(Build::B, "b1", &first);
    assert_eq!(machine.daemon(), Some(successor));
    first.close();
    second.close();
}

#[test]
fn commands_say_what_the_page_on_upgrades_says() {
    let page = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/upgrades.md")).unwrap();
    let told: Vec<_> = page.split("```text\n").skip(1).map(|block| block.split("```").next().unwrap()).collect();
    let [incompatible, hung] = told[..] else { panic!("the page shows two messages") };
    let machine = Machine::new(Build::A);
    machine.start_daemon();
    let a = machine.window("a");
    machine.has(Build::A, "a", &a);
    let other_build = Build::B.usher();
    assert!(other_build.exists());
    let asked = Instant::now();
    assert_eq!(
        machine.run_as(Build::B, &["list"]),
        Ran { code: 8, stdout: String::new(), stderr: incompatible.into() }
    );
    assert!(asked.elapsed() < Duration::from_secs(1), "it took {:?}", asked.elapsed());
    let (pid, _) = machine.daemon().unwrap();
    kill(pid, Signal::SIGSTOP);
    let waited = machine.run_as(Build::A, &["list"]);
    kill(pid, Signal::SIGCONT);
    let hung = hung.replace("4711", &pid.to_string());
    assert_eq!(waited, Ran { code: 3, stdout: String::new(), stderr: hung });
    assert_eq!(machine.run_as(Build::A, &["send", "echo", "1"]).stdout, "1\n", "it goes on as if nothing had been");
    a.close();
}

// 19
#[test]
fn old_and_new_clients_in_turn_never_change_the_daemon() {
    let machine = Machine::new(Build::A);
    machine.start_daemon();
    let a = machine.window("a");
    machine.has(Build::A, "a", &a);
    let incumbent = machine.daemon();
    for _ in 0..20 {
        assert_eq!(machine.run_as(Build::B, &["list"]).code, 8);
        assert_eq!(machine.run_as(Build::A, &["send", "echo", "1"]).stdout, "1\n");
        let through_zero = machine.run_as(Build::B, &["stop"]);
        assert_eq!(through_zero.code, 9, "an operator of any version is told that sessions live: {through_zero:?}");
        assert_eq!(machine.daemon(), incumbent);
    }
    a.close();
}

// 16, 22
#[test]
fn an_old_window_waits_for_a_new_daemon_without_ending_it_and_the_other_way_round() {
    let machine = Machine::new(Build::B);
    machine.start_daemon();
    let b = machine.window("b");
    machine.has(Build::B, "b", &b);
    let incumbent = machine.daemon();
    machine.install(Build::A);
    let a = machine.window("a");
    until("the old window waits", || machine.log().contains(": incompatible").then_some(()));
    let told = machine.run(&["list"]);
    assert_eq!((told.code, told.stdout.as_str()), (8, ""), "{told:?}");
    assert!(!machine.log().contains("waits for this daemon to end"), "an older window is no successor");
    b.close();
    // Nobody is left, and nobody newer waits: this daemon was told to stay.
    let later = Instant::now() + Duration::from_secs(2);
    until("nothing happens", || (Instant::now() > later).then_some(()));
    assert_eq!(machine.daemon(), incumbent);
    assert_eq!(machine.run(&["stop"]).code, 0, "through protocol 0");
    machine.has(Build::A, "a", &a);
    a.close();
}

// 18
#[test]
fn a_successor_that_cannot_start_leaves_windows_waiting_until_it_can() {
    let machine = Machine::new(Build::A);
    machine.start_daemon();
    let a = machine.window("a");
    machine.has(Build::A, "a", &a);
    machine.install(Build::B);
    put_program(machine.bin.join("new"), "#!/bin/sh\nexit 1\n");
    fs::rename(machine.bin.join("new"), machine.bin.join("usherd")).unwrap();
    let b = machine.window("b");
    until("the new window waits", || machine.log().contains("waits for this daemon to end").then_some(()));
    assert_eq!(machine.run_as(Build::A, &["send", "echo", "1"]).stdout, "1\n", "the old one serves on");
    a.close();
    until("the old one makes room", || machine.daemon().is_none().then_some(()));
    machine.install(Build::B);
    machine.has(Build::B, "b", &b);
    b.close();
}

// 56
#[test]
fn each_of_many_waiting_windows_asks_once_and_comes_back() {
    const WINDOWS: usize = 20;
    let machine = Machine::new(Build::A);
    let mut start = machine.place.program(machine.bin.join("usherd"));
    start.args(["--background", "--limit", "settled-ms=1"]).env("USHER_LOG", "debug");
    assert_eq!(ran(&mut start).code, 0);
    let a = machine.window("a");
    machine.has(Build::A, "a", &a);
    machine.install(Build::B);
    let windows: Vec<_> = (0..WINDOWS).map(|number| machine.window(&format!("b{number}"))).collect();
    let asked = || machine.log().matches("has proved itself and speaks no protocol of ours").count();
    until("all of them wait", || (asked() >= WINDOWS).then_some(()));
    // Longer than any pause.
    let later = Instant::now() + Duration::from_secs(7);
    until("they go on waiting", || (Instant::now() > later).then_some(()));
    assert_eq!(asked(), WINDOWS, "one signed hello for each window and generation");
    let mut following = machine.place.program(Build::A.usher());
    following.args(["approvals", "--follow"]).stdout(Stdio::null()).stderr(Stdio::null());
    let mut following = following.spawn().unwrap();
    a.close();
    within(BACK, "all windows are there", || (machine.sessions(Build::B).len() == WINDOWS).then_some(()));
    let sessions = machine.sessions(Build::B);
    for (number, window) in windows.iter().enumerate() {
        assert_eq!(sessions.get(&format!("b{number}")), Some(&window.id));
    }
    assert_eq!(following.wait().unwrap().code(), Some(3), "who followed did not hold the upgrade");
    windows.into_iter().for_each(Window::close);
}
