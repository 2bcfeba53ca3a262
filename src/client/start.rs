//! Starting a daemon where there is none (docs/protocol.md has no part in it; the daemon detaches itself).
//!
//! Owns: which program is started and what it inherits. Invariant: the program is the one that was installed with this
//! one, never one from `PATH`; it gets three variables and no descriptor but a pipe for its last word; the wait is
//! bounded, and whoever is late is killed.

use std::io::Read;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStderr, Command, ExitStatus, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use crate::limits::START_MS;
use crate::store::Paths;
use crate::wire::codes::Code;
use crate::wire::lines::Range;
use crate::wire::text::escaped;

use super::address::Target;
use super::connection::Connection;
use super::failure::ConnectFailure;
use super::handshake::{Hello, connect};

/// The daemon's program.
const PROGRAM: &str = "usherd";

/// What a daemon may say about its end.
const WORDS_MAX_BYTES: usize = 16 * 1024;

/// The launcher has a deadline of its own and says what the log says; it is let have its word.
const WORD: Duration = Duration::from_millis(500);

/// The longest wait for its word between two looks at its end.
const LOOK: Duration = Duration::from_millis(20);

/// The pauses between two tries to connect: a winner may just be binding.
const PAUSE: Duration = Duration::from_millis(5);
const PAUSE_MAX: Duration = Duration::from_millis(100);

/// Connects, after starting a daemon where there is none. A bundle knows no directory: for it nothing is started.
/// `program` is started in place of the one that was installed with this one. `begun` is told once the start goes on without us, for whoever will not wait for its end.
pub fn connect_or_start(
    target: &Target,
    hello: &Hello,
    program: Option<&Path>,
    begun: impl FnOnce(),
) -> Result<Connection, ConnectFailure> {
    let first = match connect(target, hello) {
        Err(failure) if is_absence(&failure) => failure,
        done => return done,
    };
    let Some(paths) = target.paths() else { return Err(first) };
    let deadline = Instant::now() + Duration::from_millis(START_MS);
    start(paths, program, begun)?;
    let mut pause = PAUSE;
    loop {
        match connect(target, hello) {
            Err(failure) if is_absence(&failure) && Instant::now() < deadline => {}
            done => return done,
        }
        sleep(pause);
        pause = (pause * 2).min(PAUSE_MAX);
    }
}

/// Nobody there, or somebody who was about to go.
fn is_absence(failure: &ConnectFailure) -> bool {
    matches!(failure, ConnectFailure::NotRunning | ConnectFailure::Lost | ConnectFailure::Refused(Code::ShuttingDown))
}

/// Starts a daemon and waits until there is one, its own or another that was faster.
fn start(paths: &Paths, named: Option<&Path>, begun: impl FnOnce()) -> Result<(), ConnectFailure> {
    let failed = |reason: String| ConnectFailure::NotStarted { reason };
    let program = named.map_or_else(program, |path| Ok(path.to_owned())).map_err(failed)?;
    let mut command = Command::new(&program);
    command.args(["--background", "--protocol", &format!("{}-{}", Range::OURS.min, Range::OURS.max)]);
    command.env_clear().env("USHER_DIR", paths.root());
    for name in ["HOME", "USHER_LOG"] {
        if let Some(value) = std::env::var_os(name) {
            command.env(name, value);
        }
    }
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
    let mut child = command.spawn().map_err(|error| failed(format!("{} cannot be run: {error}", shown(&program))))?;
    begun();
    let (status, words) = wait(&mut child, Instant::now() + Duration::from_millis(START_MS) + WORD);
    match status {
        Some(status) if status.success() => Ok(()),
        Some(status) => Err(failed(last_line(&words).unwrap_or_else(|| format!("it ended with {status}")))),
        None => {
            let word = last_line(&words).map(|line| format!("; its last word: {line}")).unwrap_or_default();
            let log = shown(&paths.log());
            Err(failed(format!("it was not ready within {START_MS} ms{word}; see {log}")))
        }
    }
}

/// Whether the daemon that would be started can be run at all and speaks a protocol of ours.
pub fn check_installed() -> Result<(), ConnectFailure> {
    let failed = |reason: String| ConnectFailure::NotStarted { reason };
    let program = program().map_err(failed)?;
    let mut command = Command::new(&program);
    command.args(["--protocol", &format!("{}-{}", Range::OURS.min, Range::OURS.max), "--version"]).env_clear();
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
    let mut child = command.spawn().map_err(|error| failed(format!("{} cannot be run: {error}", shown(&program))))?;
    match wait(&mut child, Instant::now() + Duration::from_millis(START_MS)) {
        (Some(status), _) if status.success() => Ok(()),
        (status, words) => {
            let ended = status.map_or_else(|| "it did not end".to_owned(), |status| format!("it ended with {status}"));
            let word = last_line(&words).unwrap_or(ended);
            Err(failed(format!("{} is no daemon to start: {word}", shown(&program))))
        }
    }
}

/// `usherd` beside this program, links resolved, else where this build was told that it will be.
fn program() -> Result<PathBuf, String> {
    // After an upgrade there is no file any more at the path of a program that runs on; its folder still is.
    let own = std::env::current_exe().map(|own| std::fs::canonicalize(&own).unwrap_or(own));
    let beside = own.ok().and_then(|own| own.parent().map(|folder| folder.join(PROGRAM)));
    let installed = option_env!("USHER_LIBEXECDIR").map(|folder| Path::new(folder).join(PROGRAM));
    let places: Vec<_> = beside.into_iter().chain(installed).collect();
    places.iter().find(|place| place.is_file()).cloned().ok_or_else(|| {
        let places: Vec<_> = places.iter().map(|place| shown(place)).collect();
        format!("there is no {}", places.join(" and no "))
    })
}

/// Reads what the child says until it ends; a child that is late is killed (`None`). What its descendants keep open is
/// not waited for.
fn wait(child: &mut Child, deadline: Instant) -> (Option<ExitStatus>, Vec<u8>) {
    let mut words = Vec::new();
    let mut pipe = child.stderr.take();
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        if !listen(&mut pipe, &mut words, left.min(LOOK)) {
            pipe = None;
        }
        match child.try_wait() {
            Ok(Some(status)) => {
                while pipe.is_some() && listen(&mut pipe, &mut words, Duration::ZERO) {}
                return (Some(status), words);
            }
            Ok(None) if !left.is_zero() => {}
            Ok(None) | Err(_) => {
                let _ = child.kill();
                let _ = child.wait();
                return (None, words);
            }
        }
    }
}

/// Takes what the pipe holds, waiting at most so long for it. False: there is nothing more to come, or nothing now when
/// nothing was waited for.
fn listen(pipe: &mut Option<ChildStderr>, words: &mut Vec<u8>, patience: Duration) -> bool {
    let Some(open) = pipe else {
        sleep(patience.min(Duration::from_millis(2)));
        return false;
    };
    let mut ready = [PollFd::new(open.as_fd(), PollFlags::POLLIN)];
    let timeout = PollTimeout::try_from(patience).unwrap_or(PollTimeout::ZERO);
    if poll(&mut ready, timeout).unwrap_or(0) == 0 {
        return !patience.is_zero();
    }
    let mut bytes = [0; 4096];
    let count = open.read(&mut bytes).unwrap_or(0);
    words.extend_from_slice(&bytes[..count]);
    // The last line counts.
    let excess = words.len().saturating_sub(WORDS_MAX_BYTES);
    words.drain(..excess);
    count > 0
}

/// The last line that is not empty, without the name that programs put before it.
fn last_line(words: &[u8]) -> Option<String> {
    let words = String::from_utf8_lossy(words);
    let line = words.lines().rev().map(str::trim).find(|line| !line.is_empty())?;
    Some(escaped(line.strip_prefix("usherd: ").unwrap_or(line), 1024))
}

fn shown(path: &Path) -> String {
    escaped(&path.to_string_lossy(), 4096)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str, patience: Duration) -> (Option<ExitStatus>, Option<String>) {
        let mut command = Command::new("/bin/sh");
        command.args(["-c", script]).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let (status, words) = wait(&mut child, Instant::now() + patience);
        (status, last_line(&words))
    }

    #[test]
    fn the_last_line_is_the_reason_of_a_start_that_failed() {
        let (status, reason) =
            shell("echo one >&2; printf 'usherd: t\\033wo\\n\\n' >&2; exit 3", Duration::from_secs(5));
        assert_eq!(status.unwrap().code(), Some(3));
        assert_eq!(reason.unwrap(), "t\\u{1b}wo");
    }

    #[test]
    fn a_start_that_hangs_is_killed_at_the_deadline() {
        let started = Instant::now();
        let (status, reason) = shell("echo slow >&2; exec sleep 60", Duration::from_millis(200));
        assert!(status.is_none() && started.elapsed() < Duration::from_secs(5));
        assert_eq!(reason.unwrap(), "slow");
    }

    #[test]
    fn a_pipe_that_a_descendant_keeps_open_is_not_waited_for() {
        let started = Instant::now();
        let (status, _) = shell("sleep 5 & exit 0", Duration::from_secs(4));
        assert!(status.unwrap().success() && started.elapsed() < Duration::from_secs(3));
    }

    #[test]
    fn a_flood_of_words_neither_blocks_the_child_nor_grows() {
        let (status, reason) =
            shell("head -c 300000 /dev/zero | tr '\\0' 'x' >&2; echo >&2; echo end >&2", Duration::from_secs(5));
        assert!(status.unwrap().success());
        assert_eq!(reason.unwrap(), "end");
    }
}
