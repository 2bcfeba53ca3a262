//! A directory, and a folder into which one build is installed over the other; what happens there is recorded.

use std::collections::BTreeMap;
use std::fs;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use nix::sys::socket::getsockopt;
use nix::sys::socket::sockopt::PeerCredentials;
use serde_json::{Value, json};

use super::super::support::daemon::{Place, Ran, ran};
use super::super::support::system::{Process, copy_program, kill};
use super::super::support::wait::{promised, until, within};
use super::builds::{Build, Builds, digest_of};
use super::evidence::Run;

/// How long a window may take that comes back: pauses grow to five seconds, and a daemon of default limits makes no room
/// in its first half minute.
const BACK: Duration = Duration::from_secs(90);

/// Stays with nothing to do, and makes room at once.
pub const AT_ONCE: &[&str] = &["--idle-exit", "0", "--limit", "settled-ms=1"];

pub struct Machine {
    pub place: Place,
    pub bin: PathBuf,
    pub builds: Builds,
    installed: Build,
    run: Run,
}

/// A program that is open, with its session.
pub struct Window {
    pub child: Child,
    pub title: String,
    /// As the program itself was told.
    pub id: String,
}

/// A process, and when it started.
pub type Life = (u32, i64);

impl Machine {
    pub fn new(run: Run, build: Build) -> Self {
        let place = Place::empty();
        let bin = place.scratch().join("bin");
        fs::create_dir(&bin).unwrap();
        let builds = run.builds();
        let mut machine = Self { place, bin, builds, installed: build, run };
        machine.install(build);
        machine
    }

    /// As `make install` does it: each file is replaced, and what runs goes on running.
    pub fn install(&mut self, build: Build) {
        for (program, name) in [(self.builds.usher(build), "usher"), (self.builds.usherd(build), "usherd")] {
            copy_program(program, self.bin.join("new"));
            fs::rename(self.bin.join("new"), self.bin.join(name)).unwrap();
        }
        self.installed = build;
        let [usher, usherd] = ["usher", "usherd"].map(|name| digest_of(self.bin.join(name)));
        self.record("installed", json!({"build": build.name(), "usher": usher, "usherd": usherd}));
    }

    pub fn record(&self, step: &str, facts: Value) {
        self.run.record(step, facts);
    }

    /// The installed `usher`.
    pub fn usher(&self) -> Command {
        self.place.program(self.bin.join("usher"))
    }

    pub fn run(&self, args: &[&str]) -> Ran {
        ran(self.usher().args(args))
    }

    /// A program of this build, wherever the other is installed.
    pub fn usher_of(&self, build: Build) -> Command {
        self.place.program(self.builds.usher(build))
    }

    pub fn run_as(&self, build: Build, args: &[&str]) -> Ran {
        ran(self.usher_of(build).args(args))
    }

    /// Starts the installed daemon as a child of ours, which sees how it ends.
    pub fn start_daemon(&mut self, args: &[&str]) -> Life {
        let mut command = self.place.program(self.bin.join("usherd"));
        command.args(args).env("USHER_LOG", "debug");
        self.place.start_daemon_as(command);
        let daemon = self.daemon().unwrap();
        self.record_daemon(self.installed, daemon, args);
        daemon
    }

    /// Waits for a daemon that a window has started.
    pub fn successor(&self, build: Build, before: Life) -> Life {
        let daemon = within(BACK, "there is a successor", || self.daemon().filter(|daemon| daemon.0 != before.0));
        self.record_daemon(build, daemon, &[]);
        self.health_of(daemon);
        daemon
    }

    fn record_daemon(&self, build: Build, (pid, start): Life, args: &[&str]) {
        let exe = digest_of(format!("/proc/{pid}/exe"));
        let facts = json!({"build": build.name(), "pid": pid, "start": start, "exe": exe, "arguments": args});
        self.record("daemon", facts);
    }

    /// Who listens, by the kernel's word: those that lose the race of a start are there for a moment as well.
    pub fn daemon(&self) -> Option<Life> {
        let stream = UnixStream::connect(self.place.socket()).ok()?;
        let pid = u32::try_from(getsockopt(&stream, PeerCredentials).ok()?.pid()).unwrap();
        Path::new(&format!("/proc/{pid}")).exists().then(|| (pid, Process::new(pid).stat(22)))
    }

    /// Waits for the end of the daemon that is a child of ours, and says why it went.
    pub fn ended(&mut self, (pid, start): Life) {
        let code =
            within(BACK, "the daemon goes", || (self.daemon() != Some((pid, start))).then(|| self.place.wait_daemon()));
        self.record_end((pid, start), &json!(code));
    }

    /// The same of one whose parent is nobody here.
    pub fn gone(&self, (pid, start): Life) {
        within(BACK, "the daemon goes", || (!self.place.daemons().contains(&pid)).then_some(()));
        self.record_end((pid, start), &Value::Null);
    }

    fn record_end(&self, (pid, start): Life, code: &Value) {
        let log = self.log();
        let why = log.rsplit_once("ending: ").unwrap().1.lines().next().unwrap();
        self.record("daemon-ended", json!({"pid": pid, "start": start, "code": code, "why": why}));
    }

    pub fn log(&self) -> String {
        self.place.log_text()
    }

    /// Nothing that was logged counts any more.
    pub fn clear_log(&self) {
        for name in ["stderr.log", "usherd.log"] {
            if let Ok(log) = fs::File::options().write(true).open(self.place.path().join(name)) {
                log.set_len(0).unwrap();
            }
        }
    }

    /// All that whoever can connect is told.
    pub fn health(&self) {
        self.health_of(self.daemon().unwrap());
    }

    fn health_of(&self, (pid, start): Life) {
        let body = until("the daemon answers health", || {
            let mut stream = UnixStream::connect(self.place.socket()).ok()?;
            stream.write_all(b"{\"health\":1}\n").ok()?;
            let mut body = String::new();
            stream.read_to_string(&mut body).ok()?;
            (!body.is_empty()).then_some(body)
        });
        let told: Value = serde_json::from_str(&body).unwrap();
        assert!(told.as_object().unwrap().keys().eq(["generation", "ok"]), "nothing but the generation: {body}");
        self.record("health", json!({"pid": pid, "start": start, "body": body}));
    }

    /// Opens a window, which says its own id in a file.
    pub fn window(&self, title: &str) -> Window {
        self.window_of(self.installed, self.usher(), title, "cat")
    }

    /// The same by this `usher`; for each input `echo` runs a shell.
    pub fn window_of(&self, build: Build, mut usher: Command, title: &str, echo: &str) -> Window {
        let said = self.place.scratch().join(format!("{title}.id"));
        let _from_an_earlier_one = fs::remove_file(&said);
        let script = format!("echo $USHER_SESSION > '{}'; exec sleep 3000", said.display());
        usher.env("USHER_LOG", "debug").args([
            "run",
            "--title",
            title,
            "--on",
            &format!("echo={echo}"),
            "--",
            "sh",
            "-c",
            &script,
        ]);
        let child = usher.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        let id = until("the window says its id", || {
            let id = fs::read_to_string(&said).ok()?.trim().to_owned();
            (!id.is_empty()).then_some(id)
        });
        let pid = child.id();
        let (start, exe) = (Process::new(pid).stat(22), digest_of(format!("/proc/{pid}/exe")));
        let facts =
            json!({"title": title, "build": build.name(), "pid": pid, "start": start, "exe": exe, "session": id});
        self.record("window", facts);
        Window { child, title: title.to_owned(), id }
    }

    pub fn close(&self, window: Window) {
        self.end(window, Signal::SIGTERM);
    }

    /// Ends a window by a signal: SIGTERM closes it in order.
    pub fn end(&self, mut window: Window, signal: Signal) {
        kill(window.child.id(), signal);
        window.child.wait().unwrap();
        self.record("closed", json!({"title": window.title, "signal": signal.as_str()}));
    }

    /// Stops a window's process, or lets it go on.
    pub fn signal(&self, window: &Window, signal: Signal) {
        kill(window.child.id(), signal);
        self.record("signalled", json!({"title": window.title, "signal": signal.as_str()}));
    }

    /// Title and id of each session, as a build sees them; none where it cannot.
    pub fn sessions(&self, build: Build) -> BTreeMap<String, String> {
        let listed = self.run_as(build, &["list", "--json"]);
        let Ok(document) = serde_json::from_str::<Value>(&listed.stdout) else { return BTreeMap::new() };
        let text = |value: &Value| value.as_str().unwrap().to_owned();
        let rows = document["sessions"].as_array().cloned().unwrap_or_default();
        rows.iter().map(|row| (text(&row["title"]), text(&row["session_id"]))).collect()
    }

    /// Waits until these windows are the sessions, each under its own id; within so many ms.
    pub fn listed(&self, build: Build, windows: &[&Window]) -> u64 {
        let began = Instant::now();
        let wanted: BTreeMap<String, String> =
            windows.iter().map(|window| (window.title.clone(), window.id.clone())).collect();
        let sessions = within(BACK, &format!("the sessions are {wanted:?}"), || {
            Some(self.sessions(build)).filter(|sessions| *sessions == wanted)
        });
        let took = u64::try_from(began.elapsed().as_millis()).unwrap();
        let (pid, start) = self.daemon().unwrap();
        let facts = json!({"build": build.name(), "pid": pid, "start": start, "sessions": sessions, "ms": took});
        self.record("listed", facts);
        took
    }

    /// How many windows have proved themselves to the daemon and were told to wait.
    pub fn refusals(&self) -> usize {
        self.log().matches("has proved itself and speaks no protocol of ours").count()
    }

    /// Waits until so many have been since the directory was made.
    pub fn waiting(&self, refusals: usize) {
        within(BACK, "they wait", || (self.refusals() >= refusals).then_some(()));
        self.record("waiting", json!({"refusals": self.refusals()}));
    }

    /// A command of the installed build, which the daemon of another one refuses.
    pub fn refused(&self, args: &[&str]) {
        let asked = Instant::now();
        let told = self.run(args);
        let took = asked.elapsed();
        assert_eq!((told.code, told.stdout.as_str()), (8, ""), "{args:?}: {told:?}");
        assert!(took < promised(Duration::from_secs(1)), "a command that fails fast took {took:?}: {args:?}");
        let took = u64::try_from(took.as_millis()).unwrap();
        let facts =
            json!({"arguments": args, "code": told.code, "stdout": told.stdout, "stderr": told.stderr, "ms": took});
        self.record("refused", facts);
    }

    /// For so long nothing changes: the same daemon serves this window.
    pub fn held(&self, build: Build, window: &Window, time: Duration) {
        let (began, daemon) = (Instant::now(), self.daemon().unwrap());
        let mut calls = 0;
        while began.elapsed() < time {
            let echoed = self.run_as(build, &["send", "--title", &window.title, "echo", "1"]);
            assert_eq!(echoed, Ran { code: 0, stdout: "1\n".into(), stderr: String::new() });
            assert_eq!(self.daemon(), Some(daemon), "the same process");
            calls += 1;
        }
        let took = u64::try_from(began.elapsed().as_millis()).unwrap();
        let (pid, start) = daemon;
        self.record("held", json!({"pid": pid, "start": start, "calls": calls, "ms": took}));
    }

    /// How long a story holds its middle.
    pub fn while_nothing_changes(&self) -> Duration {
        Duration::from_secs(if self.builds.is_full() { 8 } else { 2 })
    }
}
