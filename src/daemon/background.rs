//! How a daemon is started that leaves nothing of the shell behind.
//!
//! `usherd --background` is a launcher: it leaves the session and the folder, then spawns the daemon with default signals,
//! a bare environment and no descriptor but the log, waits for its word on a pipe, and goes. So the daemon has no parent
//! that waits for it, no terminal, and whoever called the launcher has an answer.

use std::ffi::CString;
use std::fs::{File, OpenOptions};
use std::io::{Read, Write};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::thread::sleep;
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::spawn::{PosixSpawnAttr, PosixSpawnFileActions, PosixSpawnFlags, posix_spawn};
use nix::sys::signal::SigSet;
use nix::sys::wait::waitpid;
use nix::unistd::{Pid, chdir, close, pipe, setsid};

use crate::error::{Exit, Failure};
use crate::limits::START_MS;
use crate::store::socket::{self, ConnectError};
use crate::store::{Dir, Kind, Paths, paths};

use super::options::Options;
use super::store_failure;

/// The daemon is ready.
pub(super) const READY: &[u8] = b"ready\n";
/// Another daemon is there already: that is as good.
pub(super) const HELD: &[u8] = b"held\n";

/// The pauses between two tries while another one has the lock and does not listen.
const PAUSE: Duration = Duration::from_millis(10);
const PAUSE_MAX: Duration = Duration::from_millis(200);

/// What the daemon gets of the environment, beside its directory.
const KEPT: [&str; 2] = ["HOME", "USHER_LOG"];

/// Spawns a detached daemon; returns when it is ready, or with its last words.
pub(super) fn launch(options: &Options) -> Result<(), Failure> {
    let paths = Paths::from_env().map_err(store_failure)?;
    let root = Dir::create(paths.root()).map_err(store_failure)?;
    // A record never stops a daemon.
    let (log, unlogged) = match root.append(paths::LOG) {
        Ok(log) => (log, None),
        Err(error) => (null(OpenOptions::new().write(true))?, Some(format!("no log is kept: {error}"))),
    };
    let log_before = log.metadata().map_or(0, |metadata| metadata.len());
    let exe = std::env::current_exe().map_err(|error| failed(format!("the path of usherd is not known: {error}")))?;

    // A session of its own without a terminal. It fails only for a group's leader, and then spawning leaves the group.
    let _leader_already = setsid();
    chdir("/").map_err(|error| failed(format!("/ cannot be entered: {error}")))?;
    let deadline = Instant::now() + Duration::from_millis(START_MS);
    let mut pause = PAUSE;
    loop {
        let (ours, theirs) = pipe().map_err(|error| failed(format!("no pipe: {error}")))?;
        let daemon = spawn(&exe, options, paths.root(), &theirs, &log)
            .map_err(|error| failed(format!("{} cannot be started: {error}", exe.display())))?;
        drop(theirs);
        match hear(ours, deadline) {
            Word::Ready => {
                if let Some(why) = unlogged {
                    let _unheard = writeln!(std::io::stderr(), "usherd: {why}");
                }
                return Ok(());
            }
            // Another one has the lock. It may be on its way to listen, or to its end, and then nobody would be there:
            // whoever asks next is to find a daemon. One that does neither is not ours to judge.
            Word::Held if listens(&root) || Instant::now() >= deadline => return Ok(()),
            Word::Held => {
                let _reaped = waitpid(daemon, None);
                sleep(pause);
                pause = (pause * 2).min(PAUSE_MAX);
            }
            Word::Gone => {
                let _reaped = waitpid(daemon, None);
                let said = last_line(&root, log_before);
                let ended = || unlogged.unwrap_or_else(|| "the daemon ended before it was ready".to_owned());
                return Err(failed(said.unwrap_or_else(ended)));
            }
            Word::Late => {
                let said = last_line(&root, log_before);
                let said = said.map(|line| format!("; the log says: {line}")).unwrap_or_default();
                return Err(failed(format!("the daemon was not ready within {} s{said}", START_MS / 1_000)));
            }
        }
    }
}

fn null(how: &OpenOptions) -> Result<File, Failure> {
    how.open("/dev/null").map_err(|error| failed(format!("/dev/null cannot be opened: {error}")))
}

fn failed(message: String) -> Failure {
    Failure::new(Exit::Unavailable, "start", message)
}

fn spawn(exe: &Path, options: &Options, root: &Path, word: &OwnedFd, log: &impl AsRawFd) -> nix::Result<Pid> {
    let text = |bytes: &[u8]| CString::new(bytes).map_err(|_| nix::Error::EINVAL);
    let mut args = vec![text(b"usherd")?, text(b"--detached")?];
    for given in &options.given {
        args.push(text(given.as_bytes())?);
    }
    let mut environment = vec![text(&[b"USHER_DIR=", root.as_os_str().as_bytes()].concat())?];
    for name in KEPT {
        if let Some(value) = std::env::var_os(name) {
            environment.push(text(&[name.as_bytes(), b"=", value.as_bytes()].concat())?);
        }
    }
    let mut attributes = PosixSpawnAttr::init()?;
    attributes.set_flags(
        PosixSpawnFlags::POSIX_SPAWN_SETSIGDEF
            | PosixSpawnFlags::POSIX_SPAWN_SETSIGMASK
            | PosixSpawnFlags::POSIX_SPAWN_SETPGROUP,
    )?;
    attributes.set_sigdefault(&SigSet::all())?;
    attributes.set_sigmask(&SigSet::empty())?;
    attributes.set_pgroup(Pid::from_raw(0))?;
    let mut actions = PosixSpawnFileActions::init()?;
    let null = File::open("/dev/null").map_err(|_| nix::Error::ENOENT)?;
    actions.add_dup2(null.as_raw_fd(), 0)?;
    actions.add_dup2(word.as_raw_fd(), 1)?;
    actions.add_dup2(log.as_raw_fd(), 2)?;
    posix_spawn(exe, &actions, &attributes, &args, &environment)
}

/// Whether a daemon takes connections there; a full backlog is one that does.
fn listens(root: &Dir) -> bool {
    let Ok(folder) = root.sub(paths::SOCKET_FOLDER) else { return false };
    matches!(socket::connect(&folder, Duration::ZERO), Ok(_) | Err(ConnectError::Busy))
}

enum Word {
    Ready,
    Held,
    Gone,
    Late,
}

fn hear(pipe: OwnedFd, deadline: Instant) -> Word {
    let mut pipe = File::from(pipe);
    let mut said = Vec::new();
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        let timeout = PollTimeout::try_from(left).unwrap_or(PollTimeout::ZERO);
        let mut ready = [PollFd::new(pipe.as_fd(), PollFlags::POLLIN)];
        match poll(&mut ready, timeout) {
            Ok(0) => return Word::Late,
            Ok(_) => {}
            Err(_) => continue,
        }
        let mut buffer = [0; 64];
        match pipe.read(&mut buffer) {
            Ok(0) | Err(_) => return Word::Gone,
            Ok(count) => said.extend_from_slice(&buffer[..count]),
        }
        if said == READY {
            return Word::Ready;
        }
        if said == HELD {
            return Word::Held;
        }
    }
}

/// The last line that was logged since the launch.
fn last_line(root: &Dir, before: u64) -> Option<String> {
    let log = root.read(paths::LOG, &Kind { secret: false, max_bytes: u64::MAX }).ok()?;
    let new = log.get(usize::try_from(before).ok()?..).unwrap_or(&log);
    let text = String::from_utf8_lossy(new);
    let line = text.lines().rev().find(|line| !line.trim().is_empty())?;
    Some(line.trim_start_matches("usherd: ").to_owned())
}

/// In the detached daemon, before anything else: what the launcher was given by a shell, beyond stdio, is closed.
pub(super) fn leave_the_shell_behind() {
    let inherited: Vec<i32> = std::fs::read_dir("/dev/fd")
        .map(|entries| entries.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect())
        .unwrap_or_default();
    for fd in inherited.into_iter().filter(|&fd| fd > 2) {
        // The listing's own descriptor is closed already.
        let _closed_already = close(fd);
    }
}

/// Gives the launcher its word and the pipe's place to the log.
pub(super) fn tell_launcher(word: &[u8]) {
    let _gone = std::io::stdout().write_all(word);
    let _gone = std::io::stdout().flush();
    let _kept = nix::unistd::dup2_stdout(std::io::stderr().as_fd());
}
