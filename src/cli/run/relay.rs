//! Where whoever started us ignores SIGCHLD: a second `usher run` with the default again does the work, and this one
//! hands signals in and the exit code out.
//!
//! With SIGCHLD ignored the kernel throws exit codes away, and what was ignored when a program started is set right
//! without unsafe code only at the start of another. Owns: that start, and the pipe by which the code comes back. The
//! kernel reaps the second one by itself; a signal in the moment between its end and ours goes nowhere.

use std::env;
use std::ffi::OsString;
use std::fs::{File, OpenOptions};
use std::io::{Read, Write};
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::process::ExitCode;

use nix::errno::Errno;
use nix::sys::signal::{Signal, kill};
use nix::unistd::{Pid, close, pipe};

use crate::error::{Exit, Failure};
use crate::sys::{self, Arrived, Origin, Signals};
use crate::threads;

use super::spawn::{self, Start};
use super::watch;

/// Tells the second one which descriptor the code goes to. Never handed on.
pub const VARIABLE: &str = "USHER_RUN_RELAY";
/// The code when the second one was killed before it could tell one.
const KILLED: u8 = 137;

/// Whether exit codes are thrown away, and nobody set that right yet.
pub fn is_needed() -> bool {
    sys::ignores(Signal::SIGCHLD) && env::var_os(VARIABLE).is_none()
}

/// Stands between: the exit code of the second one.
pub fn main() -> Result<ExitCode, Failure> {
    let taken = watch::taken();
    taken.thread_block().map_err(failed)?;
    let signals = Signals::new(&taken).map_err(failed)?;
    let (codes, told) = pipe().map_err(failed)?;
    let second = start(&codes, &told).map_err(failed)?;
    drop(told);
    // It lives as long as the process; there is nothing to wait for.
    let forward = move || {
        while let Ok(arrived) = signals.wait(None) {
            if let Some(Arrived { signal, origin: Some(Origin::Process(_)) | None }) = arrived {
                let _ = kill(second, signal);
            }
        }
    };
    let _forwarder = threads::spawn("signals", forward).map_err(|_| failed(Errno::EAGAIN))?;
    let mut code = [KILLED];
    let _ = File::from(codes).read_exact(&mut code);
    Ok(ExitCode::from(code[0]))
}

fn start(codes: &OwnedFd, told: &OwnedFd) -> nix::Result<Pid> {
    let program = env::current_exe().map_err(|_| Errno::ENOENT)?;
    let arguments: Vec<OsString> = env::args_os().collect();
    let told = told.as_raw_fd().to_string();
    spawn::start(&Start {
        program: program.as_os_str(),
        arguments: &arguments,
        environment: &[(VARIABLE, &told)],
        stdio: None,
        closed: Some(codes.as_raw_fd()),
        own_group: false,
    })
}

fn failed(errno: Errno) -> Failure {
    Failure::new(Exit::Unavailable, "not-started", format!("usher run cannot start itself anew: {}", errno.desc()))
        .hint("SIGCHLD is ignored by whoever started it; let it have its default")
}

/// Where the second one tells its code; nowhere in an ordinary run.
pub struct First(Option<File>);

impl First {
    /// Finds it. The descriptor that was inherited is closed, so that no program of ours inherits it in turn.
    pub fn find() -> Self {
        let number = env::var(VARIABLE).ok().and_then(|number| number.parse::<RawFd>().ok()).filter(|fd| *fd > 2);
        let Some(number) = number else { return Self(None) };
        let told = OpenOptions::new().write(true).open(format!("/dev/fd/{number}")).ok();
        let _ = close(number);
        Self(told)
    }

    /// Tells it.
    pub fn tell(self, code: u8) {
        if let Some(mut first) = self.0 {
            let _ = first.write_all(&[code]);
        }
    }
}
