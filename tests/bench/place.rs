//! Private directories and the processes in them; all are gone when the benchmark ends, however it ends.

use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use super::AS;

pub const USHER: &str = env!("CARGO_BIN_EXE_usher");
pub const USHERD: &str = env!("CARGO_BIN_EXE_usherd");

/// Asks until there is an answer.
pub fn patiently<T>(what: &str, mut ask: impl FnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + Duration::from_secs(20);
    loop {
        if let Some(answer) = ask() {
            return answer;
        }
        assert!(Instant::now() < deadline, "waited in vain: {what}");
        std::thread::sleep(Duration::from_micros(200));
    }
}

/// A process that ends with its owner.
pub struct Process(Child);

impl Process {
    pub fn start(command: &mut Command) -> Self {
        Self(command.spawn().unwrap())
    }

    pub fn id(&self) -> u32 {
        self.0.id()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ended_already = self.0.kill();
        let _reaped = self.0.wait();
    }
}

/// This program in another part.
pub fn part(words: &[&str]) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.arg(AS).args(words).stdin(Stdio::null());
    command
}

/// A part that is told what to do, line by line, and answers each with a line.
pub struct Part {
    to: ChildStdin,
    from: BufReader<ChildStdout>,
    _process: Process,
}

impl Part {
    pub fn start(words: &[&str]) -> Self {
        let mut child = part(words).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let (to, from) = (child.stdin.take().unwrap(), BufReader::new(child.stdout.take().unwrap()));
        let mut part = Self { to, from, _process: Process(child) };
        assert_eq!(part.hear(), "ready");
        part
    }

    pub fn ask(&mut self, line: &str) -> String {
        writeln!(self.to, "{line}").unwrap();
        self.hear()
    }

    fn hear(&mut self) -> String {
        let mut line = String::new();
        assert!(self.from.read_line(&mut line).unwrap() > 0, "a part of the benchmark has ended");
        line.trim_end().to_owned()
    }
}

/// A directory of our own.
pub struct Place(tempfile::TempDir);

impl Place {
    pub fn new() -> Self {
        Self(tempfile::Builder::new().prefix("usher-bench-").tempdir_in("/tmp").unwrap())
    }

    pub fn path(&self) -> &Path {
        self.0.path()
    }

    /// Where the baseline meets.
    pub fn relay(&self) -> PathBuf {
        self.0.path().join("relay")
    }

    /// A program of ours.
    pub fn program(&self, program: &str) -> Command {
        let mut command = Command::new(program);
        command.env("USHER_DIR", self.path()).env_remove("USHER_SESSION").env_remove("USHER_CREDENTIAL");
        command.env("USHER_LOG", "off").stdin(Stdio::null()).stdout(Stdio::null());
        command
    }

    /// A daemon that answers.
    pub fn daemon(&self) -> Process {
        let process = Process::start(&mut self.program(USHERD));
        patiently("the daemon answers", || self.answers().then_some(()));
        process
    }

    /// Whether the daemon answers a health line.
    pub fn answers(&self) -> bool {
        let Ok(socket) = std::os::unix::net::UnixStream::connect(self.path().join("s/usherd.sock")) else {
            return false;
        };
        super::frames::write(&socket, b"{\"health\":1}\n") && super::frames::Reader::new(socket).line().is_some()
    }
}

/// Resident memory of a process in KiB: all of it, and what is no file's.
pub fn memory(process: u32) -> (f64, f64) {
    let status = std::fs::read_to_string(format!("/proc/{process}/status")).unwrap();
    let field = |name: &str| -> f64 {
        let line = status.lines().find_map(|line| line.strip_prefix(name)).unwrap();
        line.trim().trim_end_matches(" kB").parse().unwrap()
    };
    (field("VmRSS:"), field("RssAnon:"))
}

/// µs of processor time that a thread has used; by its folder.
pub fn processor_time(thread: &Path) -> f64 {
    let text = std::fs::read_to_string(thread.join("schedstat")).unwrap();
    text.split(' ').next().unwrap().parse::<f64>().unwrap() / 1_000.0
}

/// The folder of the thread of a process that has this name.
pub fn thread_of(process: u32, name: &str) -> PathBuf {
    let threads = std::fs::read_dir(format!("/proc/{process}/task")).unwrap().map(|thread| thread.unwrap().path());
    let is_it = |thread: &PathBuf| std::fs::read_to_string(thread.join("comm")).is_ok_and(|is| is.trim_end() == name);
    threads.into_iter().find(is_it).unwrap()
}
