//! One command of the session, done by `sh -c`: input on its standard input, what it prints is the result.
//!
//! Owns: the shell, its process group and its pipes, until the shell is reaped. Invariants: memory is bounded whatever
//! is printed; every end reaps the shell; a group is signalled only while its shell is not reaped, so its number is
//! still ours. Waits for the pipes, for the bell that is rung when a child ends or an order is given, and for time.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;
use std::time::{Duration, Instant};

use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::{Signal, kill, killpg};
use nix::sys::wait::waitpid;
use nix::unistd::Pid;

use crate::client::Why;
use crate::ids::SessionId;
use crate::sys;

use super::output::{self, Tail};
use super::spawn::{self, Start};

/// What a group has between being asked to end and being made to.
const GRACE: Duration = Duration::from_secs(2);
/// How long output is waited for that a background process may still hold open after the shell has ended.
const DRAIN: Duration = Duration::from_millis(200);
/// What is read or written at once: a pipe's capacity.
const CHUNK_BYTES: usize = 64 * 1024;

/// What to do.
pub struct Task<'a> {
    /// The command's name.
    pub name: &'a str,
    /// For `sh -c`.
    pub shell: &'a str,
    /// One JSON text.
    pub input: &'a [u8],
    /// When it has to be over.
    pub deadline: Option<Instant>,
    /// The largest result.
    pub result_max: usize,
    /// For its environment.
    pub session: SessionId,
}

/// Why it is no longer waited for, if so.
type Ask<'a> = dyn Fn() -> Option<Why> + 'a;

/// Runs it to its end: the result, or why there is none. `bell` is read, and never waits.
pub fn run(task: &Task<'_>, bell: &UnixStream, cancelled: &Ask<'_>) -> Result<Vec<u8>, String> {
    let mut run = Run::start(task).map_err(|errno| format!("sh cannot be started: {}", errno.desc()))?;
    loop {
        if let Some(end) = run.step(task, cancelled) {
            return end;
        }
        run.wait(task, bell);
        run.pump(task);
    }
}

struct Run {
    shell: Pid,
    stdin: Option<File>,
    stdout: Option<File>,
    stderr: Option<File>,
    written: usize,
    output: Vec<u8>,
    errors: Tail,
    is_too_large: bool,
    state: State,
}

enum State {
    /// The shell runs.
    Running,
    /// The shell has ended and is reaped; what it left in the pipes is read until then.
    Draining { status: ExitStatus, until: Instant },
    /// It was asked to end and is made to then. Not reaped: the group's number is still ours.
    Ending { why: String, until: Instant },
}

impl Run {
    fn start(task: &Task<'_>) -> nix::Result<Self> {
        let (their_input, stdin) = sys::pipe()?;
        let (stdout, their_output) = sys::pipe()?;
        let (stderr, their_errors) = sys::pipe()?;
        for pipe in [&stdin, &stdout, &stderr] {
            // Our end alone: the other one has a description of its own.
            fcntl(pipe, FcntlArg::F_SETFL(OFlag::O_NONBLOCK))?;
        }
        let session = task.session.to_string();
        let shell = spawn::start(&Start {
            program: "/bin/sh".as_ref(),
            arguments: &["sh".into(), "-c".into(), task.shell.into()],
            environment: &[("USHER_COMMAND", task.name), ("USHER_SESSION", &session)],
            stdio: Some(&[their_input, their_output, their_errors]),
            closed: None,
            own_group: true,
        })?;
        Ok(Self {
            shell,
            stdin: Some(stdin.into()),
            stdout: Some(stdout.into()),
            stderr: Some(stderr.into()),
            written: 0,
            output: Vec::new(),
            errors: Tail::default(),
            is_too_large: false,
            state: State::Running,
        })
    }

    /// Looks at orders, time and the shell; the outcome once it is over.
    fn step(&mut self, task: &Task<'_>, cancelled: &Ask<'_>) -> Option<Result<Vec<u8>, String>> {
        let now = Instant::now();
        match cancelled() {
            Some(Why::Stopped) => self.end("the program ended", Duration::ZERO),
            Some(Why::Cancelled) => self.end("cancelled", GRACE),
            Some(Why::Deadline) => self.end("the deadline passed", GRACE),
            None if self.is_too_large => self.end_with(too_large(task.result_max), Duration::ZERO),
            None => {}
        }
        if matches!(self.state, State::Running) {
            match sys::reap(self.shell) {
                Ok(None) => {}
                Ok(Some(status)) => self.state = State::Draining { status, until: now + DRAIN },
                // Somebody took the status away from us.
                Err(_) => self.state = State::Draining { status: ExitStatus::from_raw(1 << 8), until: now },
            }
        }
        let is_silent = self.stdout.is_none() && self.stderr.is_none();
        match &self.state {
            State::Draining { status, until } if is_silent || *until <= now => Some(self.conclude(*status, task)),
            State::Ending { why, until } if *until <= now || (is_silent && sys::has_ended(self.shell)) => {
                let why = why.clone();
                self.kill();
                Some(Err(why))
            }
            _ => None,
        }
    }

    /// Asks the group to end, and is ready to make it. What has ended already is left to conclude as it is.
    fn end(&mut self, what: &str, grace: Duration) {
        self.end_with(output::with_errors(what, &self.errors), grace);
    }

    fn end_with(&mut self, why: String, grace: Duration) {
        let until = Instant::now() + grace;
        match &mut self.state {
            State::Running => {
                let _ = killpg(self.shell, Signal::SIGTERM);
                // For one that is stopped, at a terminal that it must not read.
                let _ = killpg(self.shell, Signal::SIGCONT);
                self.state = State::Ending { why, until };
            }
            State::Draining { until: drained, .. } => *drained = until.min(*drained),
            State::Ending { until: ended, .. } => *ended = until.min(*ended),
        }
    }

    /// Makes what is left of the group end, and reaps the shell.
    fn kill(&mut self) {
        let _ = killpg(self.shell, Signal::SIGKILL);
        // A shell that has left its own group.
        let _ = kill(self.shell, Signal::SIGKILL);
        let _ = waitpid(self.shell, None);
    }

    fn conclude(&self, status: ExitStatus, task: &Task<'_>) -> Result<Vec<u8>, String> {
        if !status.success() {
            return Err(output::failure(status, &self.errors));
        }
        let result = output::result(&self.output);
        if self.is_too_large || result.len() > task.result_max { Err(too_large(task.result_max)) } else { Ok(result) }
    }

    fn wait(&self, task: &Task<'_>, bell: &UnixStream) {
        let until = match &self.state {
            State::Running => task.deadline,
            State::Draining { until, .. } | State::Ending { until, .. } => Some(*until),
        };
        let left = until.map(|until| until.saturating_duration_since(Instant::now()));
        // One millisecond more: poll counts whole ones and would return just before.
        let left = left.map(|left| left + Duration::from_millis(1));
        let timeout = left.into_iter().chain(sys::LOOK_AT_CHILDREN).min();
        let timeout = timeout.map_or(PollTimeout::NONE, |left| PollTimeout::try_from(left).unwrap_or(PollTimeout::MAX));
        let input = self.stdin.as_ref().map(|pipe| (pipe.as_fd(), PollFlags::POLLOUT));
        let output = self.stdout.as_ref().map(|pipe| (pipe.as_fd(), PollFlags::POLLIN));
        let errors = self.stderr.as_ref().map(|pipe| (pipe.as_fd(), PollFlags::POLLIN));
        let all = [input, output, errors, Some((bell.as_fd(), PollFlags::POLLIN))];
        let mut ready: Vec<PollFd<'_>> = all.into_iter().flatten().map(|(fd, flags)| PollFd::new(fd, flags)).collect();
        // Woken for nothing, it looks at everything once more.
        let _ = poll(&mut ready, timeout);
        silence(bell);
    }

    /// Moves what can be moved now.
    fn pump(&mut self, task: &Task<'_>) {
        if let Some(pipe) = &mut self.stdin {
            let rest = &task.input[self.written..];
            match pipe.write(&rest[..rest.len().min(CHUNK_BYTES)]) {
                Ok(count) => self.written += count,
                Err(error) if is_not_now(&error) => {}
                // It reads no more: that is its right.
                Err(_) => self.written = task.input.len(),
            }
            if self.written == task.input.len() {
                self.stdin = None;
            }
        }
        let output = &mut self.output;
        read(&mut self.stdout, |bytes| output.extend_from_slice(bytes));
        let errors = &mut self.errors;
        read(&mut self.stderr, |bytes| errors.push(bytes));
        if self.output.len() > task.result_max {
            self.output = Vec::new();
            self.stdout = None;
            self.is_too_large = true;
        }
    }
}

fn too_large(result_max: usize) -> String {
    format!("the result is larger than {result_max} bytes")
}

/// Takes one portion; the pipe is closed at its end.
fn read(pipe: &mut Option<File>, take: impl FnOnce(&[u8])) {
    let Some(open) = pipe else { return };
    let mut bytes = [0; CHUNK_BYTES];
    match open.read(&mut bytes) {
        Ok(0) => *pipe = None,
        Ok(count) => take(&bytes[..count]),
        Err(error) if is_not_now(&error) => {}
        Err(_) => *pipe = None,
    }
}

fn silence(mut bell: &UnixStream) {
    let mut rings = [0; 64];
    while matches!(bell.read(&mut rings), Ok(count) if count == rings.len()) {}
}

fn is_not_now(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted)
}
