//! One private directory with perhaps a daemon in it. Dropped, the daemon is ended and the directory removed.

use std::ffi::OsStr;
use std::io::{Read, Write};
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::Duration;

use super::wait::until;
use super::{signals, threads};

/// The programs under test.
pub const USHER: &str = env!("CARGO_BIN_EXE_usher");
/// The programs under test.
pub const USHERD: &str = env!("CARGO_BIN_EXE_usherd");

/// A private `USHER_DIR`.
pub struct Place {
    /// Removed with all that is in it.
    dir: tempfile::TempDir,
    root: PathBuf,
    daemon: Option<Child>,
}

/// What a finished program left.
#[derive(Debug, PartialEq, Eq)]
pub struct Ran {
    pub code: i32,
    pub stdout: String,
    pub stderr: String,
}

impl Place {
    /// Without a daemon.
    pub fn empty() -> Self {
        Self::below("")
    }

    /// Without a daemon, in a folder that is not made yet, under a private one.
    pub fn below(folder: impl AsRef<Path>) -> Self {
        signals::hand_none_on();
        let dir = tempfile::Builder::new().prefix("usher-test-").tempdir().unwrap();
        let root = dir.path().join(folder).components().collect();
        Self { dir, root, daemon: None }
    }

    /// With a daemon in the foreground, ready.
    pub fn with_daemon(args: &[&str]) -> Self {
        let mut place = Self::empty();
        place.start_daemon(args);
        place
    }

    /// Starts a daemon in the foreground, its log in `stderr.log`, and waits until it answers.
    pub fn start_daemon(&mut self, args: &[&str]) {
        let mut command = self.usherd();
        command.args(args);
        self.start_daemon_as(command);
    }

    /// The same by a command that becomes the daemon.
    pub fn start_daemon_as(&mut self, mut command: Command) {
        let log = std::fs::File::options().create(true).append(true).open(self.log()).unwrap();
        let child = command.stdout(Stdio::null()).stderr(log).spawn().unwrap();
        self.daemon = Some(child);
        until("the daemon answers health", || {
            let ended = self.daemon.as_mut().unwrap().try_wait().unwrap();
            assert!(ended.is_none(), "the daemon ended: {ended:?}\n{}", self.log_text());
            self.health()
        });
    }

    /// Starts one that leaves nothing of us behind, as `usher run` does.
    pub fn start_daemon_in_background(&mut self) {
        let launched = ran(self.usherd().arg("--background"));
        // A busy disk may hold the daemon's first writes for longer than its launcher waits. It comes all the same.
        if launched.code == 3 && launched.stderr.starts_with("usherd: the daemon was not ready within") {
            return until("the daemon comes after its launcher has gone", || self.health().map(drop));
        }
        assert_eq!((launched.code, launched.stderr.as_str()), (0, ""), "{launched:?}\n{}", self.log_text());
    }

    /// `USHER_DIR`.
    pub fn path(&self) -> &Path {
        &self.root
    }

    /// The private folder around it, for what a test needs beside it.
    pub fn scratch(&self) -> &Path {
        self.dir.path()
    }

    /// The socket.
    pub fn socket(&self) -> PathBuf {
        self.path().join("s/usherd.sock")
    }

    /// Where a daemon started here logs.
    pub fn log(&self) -> PathBuf {
        self.path().join("stderr.log")
    }

    /// What it has logged.
    pub fn log_text(&self) -> String {
        std::fs::read_to_string(self.log()).unwrap_or_default()
            + &std::fs::read_to_string(self.path().join("usherd.log")).unwrap_or_default()
    }

    /// The daemon started here.
    pub fn pid(&self) -> u32 {
        self.daemon.as_ref().expect("a daemon was started here").id()
    }

    /// A program of ours in this directory, with nothing of the caller's environment that could matter.
    pub fn program(&self, path: impl AsRef<OsStr>) -> Command {
        let mut command = Command::new(path);
        command.env("USHER_DIR", self.path()).stdin(Stdio::null());
        for name in ["USHER_SESSION", "USHER_CREDENTIAL", "USHER_LOG", "NO_COLOR", "TMUX", "TMUX_PANE"] {
            command.env_remove(name);
        }
        command
    }

    /// `usher`
    pub fn usher(&self) -> Command {
        self.program(USHER)
    }

    /// `usherd`
    pub fn usherd(&self) -> Command {
        self.program(USHERD)
    }

    /// Runs `usher` to its end.
    pub fn run(&self, args: &[&str]) -> Ran {
        ran(self.usher().args(args))
    }

    /// Runs `usher --json …`, which must succeed, and reads its document.
    pub fn json(&self, args: &[&str]) -> serde_json::Value {
        let ran = self.run(&[&["--json"], args].concat());
        assert_eq!(ran.code, 0, "usher --json {args:?}: {ran:?}");
        serde_json::from_str(&ran.stdout).unwrap_or_else(|error| panic!("{error}: {ran:?}"))
    }

    /// The generation, if a daemon answers.
    pub fn health(&self) -> Option<String> {
        let mut stream = UnixStream::connect(self.socket()).ok()?;
        stream.set_read_timeout(Some(Duration::from_secs(2))).unwrap();
        stream.write_all(b"{\"health\":1}\n").ok()?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).ok()?;
        let answer: serde_json::Value = serde_json::from_str(&answer).ok()?;
        Some(answer["generation"].as_str()?.to_owned())
    }

    /// Sends the foreground daemon a signal.
    pub fn signal_daemon(&self, signal: nix::sys::signal::Signal) {
        let pid = nix::unistd::Pid::from_raw(i32::try_from(self.pid()).unwrap());
        nix::sys::signal::kill(pid, signal).unwrap();
    }

    /// Waits for the foreground daemon's end; its exit code (128 + n for a signal).
    pub fn wait_daemon(&mut self) -> i32 {
        let mut child = self.daemon.take().expect("a daemon was started here");
        let status = until("the daemon ends", || child.try_wait().unwrap());
        code(status)
    }

    /// Every daemon that has this directory's lock file open, however it was started. A process that a test is forking at
    /// this moment has all that the tests have open, and is none.
    pub fn daemons(&self) -> Vec<u32> {
        let Ok(lock) = std::fs::metadata(self.path().join("usherd.lock")) else { return Vec::new() };
        let mut found = Vec::new();
        for process in std::fs::read_dir("/proc").unwrap().flatten() {
            let Some(pid) = process.file_name().to_str().and_then(|name| name.parse::<u32>().ok()) else { continue };
            let Ok(exe) = std::fs::read_link(process.path().join("exe")) else { continue };
            if !exe.file_name().is_some_and(|name| name.to_string_lossy().starts_with("usherd")) {
                continue;
            }
            let Ok(fds) = std::fs::read_dir(process.path().join("fd")) else { continue };
            let has_it = fds.flatten().any(|fd| {
                std::fs::metadata(fd.path()).is_ok_and(|open| (open.dev(), open.ino()) == (lock.dev(), lock.ino()))
            });
            if has_it {
                found.push(pid);
            }
        }
        found
    }

    /// Every `usherd`, launchers too, that was given this directory or one in it.
    pub fn usherds(&self) -> Vec<u32> {
        let name = |pid: &u32| std::fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
        self.processes().into_iter().filter(|pid| name(pid) == "usherd\n").collect()
    }

    /// Every process whose environment names this directory: what a run that was killed leaves running, too.
    fn processes(&self) -> Vec<u32> {
        let path = self.path().as_os_str().as_encoded_bytes();
        let names_it = |pid: &u32| {
            let environment = std::fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
            environment.windows(path.len()).any(|window| window == path)
        };
        let names = std::fs::read_dir("/proc").unwrap().flatten().map(|entry| entry.file_name());
        let pids = names.filter_map(|name| name.to_str()?.parse().ok());
        pids.filter(|pid| *pid != std::process::id()).filter(names_it).collect()
    }

    /// As `kill -9`, however they were started; returns when the lock is free.
    pub fn kill_daemons(&self) {
        for pid in self.daemons() {
            let pid = nix::unistd::Pid::from_raw(i32::try_from(pid).unwrap());
            let _ended_already = nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGKILL);
        }
        // Asked of the kernel: a lock that is tried here would be held by whatever is forked here meanwhile.
        let lock = std::fs::metadata(self.path().join("usherd.lock")).unwrap();
        let (dev, ino) = (lock.dev(), lock.ino());
        let place = format!("{:02x}:{:02x}:{ino}", nix::sys::stat::major(dev), nix::sys::stat::minor(dev));
        until("nobody has the lock", || {
            let locks = std::fs::read_to_string("/proc/locks").unwrap();
            (!locks.lines().any(|line| line.split_ascii_whitespace().any(|word| word == place))).then_some(())
        });
    }
}

impl Drop for Place {
    #[expect(clippy::print_stderr, reason = "the runner shows what a failed test printed")]
    fn drop(&mut self) {
        if let Some(mut daemon) = self.daemon.take() {
            let _ended_already = daemon.kill();
            let _status = daemon.wait();
        }
        // A launcher on its way would find the place free, so they are looked for until there is none.
        while let pids @ [_, ..] = self.processes().as_slice() {
            for pid in pids {
                let pid = nix::unistd::Pid::from_raw(i32::try_from(*pid).unwrap());
                let _ended_already = nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGKILL);
            }
        }
        if std::thread::panicking() {
            eprintln!("--- log of {}:\n{}", self.path().display(), self.log_text());
        }
    }
}

/// A program, `usher` its `$0`, that ends when a daemon answers. A run whose program ends at once may be over before its
/// daemon was started: it is not held up by that.
pub const UNTIL_THERE: &str = "until \"$0\" health >/dev/null 2>&1; do sleep 0.05; done";

/// Arguments of a run of that program.
pub const RUN_UNTIL_THERE: [&str; 6] = ["run", "--", "sh", "-c", UNTIL_THERE, USHER];

/// Runs a program to its end, at most 60 s.
pub fn ran(command: &mut Command) -> Ran {
    let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    finished(child)
}

/// Waits for a program that was started with pipes.
pub fn finished(child: Child) -> Ran {
    let pid = nix::unistd::Pid::from_raw(i32::try_from(child.id()).unwrap());
    let (done, ended) = std::sync::mpsc::sync_channel::<()>(1);
    let watch = threads::spawn("watch", move || {
        if ended
            .recv_timeout(Duration::from_secs(60))
            .is_err_and(|error| error == std::sync::mpsc::RecvTimeoutError::Timeout)
        {
            let _ended_already = nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGKILL);
        }
    });
    let Output { status, stdout, stderr } = child.wait_with_output().unwrap();
    drop(done);
    watch.join().unwrap();
    Ran {
        code: code(status),
        stdout: String::from_utf8_lossy(&stdout).into_owned(),
        stderr: String::from_utf8_lossy(&stderr).into_owned(),
    }
}

/// An exit code as a shell tells it.
pub fn code(status: std::process::ExitStatus) -> i32 {
    use std::os::unix::process::ExitStatusExt;
    status.code().unwrap_or_else(|| 128 + status.signal().unwrap_or(0))
}
