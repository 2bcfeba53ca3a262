//! The log: RFC 3339 stamps, one line an event. On stderr in the foreground; a detached daemon keeps `usherd.log` at
//! 8 MiB and one old copy.

use std::fs::File;
use std::io::{self, Write};
use std::os::fd::AsFd;

use env_logger::{Builder, Target};

use crate::error::{Exit, Failure};
use crate::store::{Dir, paths};

use super::options::Mode;
use super::store_failure;

/// The log's ceiling before it is turned.
const LOG_MAX_BYTES: u64 = 8 * 1024 * 1024;
const OLD_LOG: &str = "usherd.log.1";

/// Sets the logger up, once.
pub(super) fn start(root: &Dir, mode: Mode) -> Result<(), Failure> {
    let mut builder = Builder::new();
    builder.filter_level(log::LevelFilter::Info).parse_env("USHER_LOG").format(|out, record| {
        let now = jiff::Timestamp::now();
        writeln!(out, "{now:.3} {} {}", record.level(), record.args())
    });
    let target = match mode {
        Mode::Foreground | Mode::Background => Target::Stderr,
        Mode::Detached => {
            let folder = root.try_clone().map_err(store_failure)?;
            // Where the file cannot be used, the launcher has said so and given another stderr.
            Turning::open(folder).map_or(Target::Stderr, |file| Target::Pipe(Box::new(file)))
        }
    };
    builder.target(target).try_init().map_err(|error| Failure::new(Exit::Bug, "log", error.to_string()))
}

/// A file that is set aside when it is full.
struct Turning {
    folder: Dir,
    file: File,
    bytes: u64,
}

impl Turning {
    fn open(folder: Dir) -> Result<Self, crate::store::StoreError> {
        let file = folder.append(paths::LOG)?;
        let bytes = file.metadata().map_or(0, |metadata| metadata.len());
        Ok(Self { folder, file, bytes })
    }

    /// The full file gets its old name, and what panics print follows into the new one. When that fails the log goes on
    /// where it is: it never stops the daemon.
    fn turn(&mut self) {
        let turned = self.folder.rename(paths::LOG, OLD_LOG).and_then(|()| self.folder.append(paths::LOG));
        self.bytes = 0;
        if let Ok(file) = turned {
            let _kept = nix::unistd::dup2_stderr(file.as_fd());
            let _kept = nix::unistd::dup2_stdout(file.as_fd());
            self.file = file;
        }
    }
}

impl Write for Turning {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        if self.bytes + line.len() as u64 > LOG_MAX_BYTES {
            self.turn();
        }
        let count = self.file.write(line)?;
        self.bytes += count as u64;
        Ok(count)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}
