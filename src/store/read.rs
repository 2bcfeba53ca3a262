//! Reading a whole file of ours.
//!
//! Owns: opening a file and judging it before its first byte. Invariant: bytes come only from a regular file of ours
//! with one name, not larger than its own ceiling, that nobody changed while it was read.

use std::fs::File;
use std::io::{self, Read};
use std::os::fd::AsFd;
use std::path::Path;

use nix::fcntl::{OFlag, openat};
use nix::sys::stat::{FileStat, Mode, fstat};

use super::check::{self, FileKind, Stamp};
use super::dir::Dir;
use super::error::{Problem, StoreError};

/// Tries before a file that changes each time is given up: a writer replaces it in one rename, so the second usually
/// finds it at rest.
const ATTEMPTS: usize = 5;

/// How a file is judged.
#[derive(Debug, Clone, Copy)]
pub struct Kind {
    /// Nobody else may even read it.
    pub secret: bool,
    /// Its ceiling.
    pub max_bytes: u64,
}

impl Dir {
    /// All bytes of a file.
    pub fn read(&self, name: &str, kind: &Kind) -> Result<Vec<u8>, StoreError> {
        self.read_around(name, kind, || ())
    }

    /// Opens a file that grows while it is read; its bytes are the caller's to judge.
    pub fn open_growing(&self, name: &str) -> Result<File, StoreError> {
        Ok(self.open_judged(name, OFlag::O_RDONLY, false)?.0)
    }

    /// As [`Dir::read`]; `between` is called while the file is open and judged but not yet read.
    fn read_around(&self, name: &str, kind: &Kind, mut between: impl FnMut()) -> Result<Vec<u8>, StoreError> {
        for _ in 1..ATTEMPTS {
            match self.read_once(name, kind, &mut between) {
                Err(error) if error.problem() == &Problem::Changed => {}
                done => return done,
            }
        }
        self.read_once(name, kind, &mut between)
    }

    fn read_once(&self, name: &str, kind: &Kind, between: &mut impl FnMut()) -> Result<Vec<u8>, StoreError> {
        let (mut file, before) = self.open_judged(name, OFlag::O_RDONLY, kind.secret)?;
        let size = check::size(&before, kind.max_bytes).map_err(|problem| self.error(name, problem))?;
        between();
        let mut bytes = vec![0; size];
        let whole = file.read_exact(&mut bytes).and_then(|()| file.read(&mut [0]));
        match whole {
            Ok(0) => {}
            Ok(_) => return Err(self.error(name, Problem::Changed)),
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => {
                return Err(self.error(name, Problem::Changed));
            }
            Err(error) => return Err(StoreError::io(self.path().join(name), &error)),
        }
        let after = fstat(&file).map_err(|errno| self.errno(name, errno))?;
        if Stamp::of(&before) != Stamp::of(&after) {
            return Err(self.error(name, Problem::Changed));
        }
        Ok(bytes)
    }

    /// Opens an existing file and judges what was opened. It never blocks on a FIFO and never follows a link.
    pub(super) fn open_judged(&self, name: &str, access: OFlag, secret: bool) -> Result<(File, FileStat), StoreError> {
        self.judge_name(name)?;
        let flags = access | OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK | OFlag::O_NOCTTY | OFlag::O_CLOEXEC;
        openat(self, name, flags, Mode::empty())
            .map_err(|errno| check::why_not_opened(self.as_fd(), Path::new(name), FileKind::File, errno))
            .and_then(|fd| {
                let stat = fstat(&fd).map_err(Problem::Io)?;
                check::regular(&stat, secret)?;
                Ok((File::from(fd), stat))
            })
            .map_err(|problem| self.error(name, problem))
    }
}

#[cfg(test)]
mod tests {
    use std::fs::{self, OpenOptions};
    use std::io::Write;
    use std::os::unix::fs::symlink;
    use std::os::unix::net::UnixListener;

    use super::super::scratch::Scratch;
    use super::*;

    const PLAIN: Kind = Kind { secret: false, max_bytes: 4096 };
    const SECRET: Kind = Kind { secret: true, max_bytes: 4096 };

    fn refusal(scratch: &Scratch, name: &str, kind: &Kind) -> Problem {
        let error = scratch.dir().read(name, kind).unwrap_err();
        assert!(error.to_string().starts_with(scratch.path().join(name).to_str().unwrap()), "{error}");
        assert!(!error.to_string().contains("the-content"), "{error}");
        error.problem().clone()
    }

    #[test]
    fn a_file_of_ours_is_read_whole() {
        let scratch = Scratch::new();
        scratch.file("a", b"the-content", 0o600);
        assert_eq!(scratch.dir().read("a", &SECRET).unwrap(), b"the-content");
        let exact = Kind { secret: true, max_bytes: 11 };
        assert_eq!(scratch.dir().read("a", &exact).unwrap(), b"the-content");
    }

    #[test]
    fn links_are_refused_whether_they_lead_somewhere_or_not() {
        let scratch = Scratch::new();
        scratch.file("a", b"the-content", 0o600);
        symlink("a", scratch.path().join("link")).unwrap();
        symlink("nowhere", scratch.path().join("dangling")).unwrap();
        assert_eq!(refusal(&scratch, "link", &PLAIN), Problem::Unsafe(check::LINK));
        assert_eq!(refusal(&scratch, "dangling", &PLAIN), Problem::Unsafe(check::LINK));
    }

    #[test]
    fn what_is_no_regular_file_is_refused_without_waiting_for_it() {
        let scratch = Scratch::new();
        nix::unistd::mkfifo(&scratch.path().join("fifo"), Mode::S_IRWXU).unwrap();
        fs::create_dir(scratch.path().join("folder")).unwrap();
        let _listener = UnixListener::bind(scratch.path().join("socket")).unwrap();
        for name in ["fifo", "folder", "socket"] {
            assert_eq!(refusal(&scratch, name, &PLAIN), Problem::Unsafe(check::NOT_A_FILE), "{name}");
        }
    }

    #[test]
    fn a_file_with_a_second_name_is_refused_under_both() {
        let scratch = Scratch::new();
        fs::hard_link(scratch.file("a", b"the-content", 0o600), scratch.path().join("b")).unwrap();
        assert_eq!(refusal(&scratch, "a", &PLAIN), Problem::Unsafe(check::SEVERAL_LINKS));
        assert_eq!(refusal(&scratch, "b", &PLAIN), Problem::Unsafe(check::SEVERAL_LINKS));
    }

    #[test]
    fn a_file_that_others_can_write_is_refused_and_a_secret_that_others_can_read() {
        let scratch = Scratch::new();
        for mode in [0o620, 0o602, 0o666] {
            scratch.file("a", b"the-content", mode);
            assert_eq!(refusal(&scratch, "a", &PLAIN), Problem::Unsafe(check::OTHERS_WRITE), "{mode:o}");
            assert_eq!(refusal(&scratch, "a", &SECRET), Problem::Unsafe(check::OTHERS_WRITE), "{mode:o}");
        }
        for mode in [0o644, 0o640, 0o604, 0o610, 0o601] {
            scratch.file("a", b"the-content", mode);
            assert_eq!(refusal(&scratch, "a", &SECRET), Problem::Unsafe(check::OTHERS_READ), "{mode:o}");
            assert!(scratch.dir().read("a", &PLAIN).is_ok(), "{mode:o}");
        }
    }

    #[test]
    fn a_file_of_another_user_is_refused_even_by_root() {
        let scratch = Scratch::new();
        let path = scratch.file("a", b"the-content", 0o600);
        if Scratch::give_away(&path) {
            assert_eq!(refusal(&scratch, "a", &PLAIN), Problem::Unsafe(check::FOREIGN));
        }
    }

    #[test]
    fn nothing_no_bytes_and_too_many_bytes_are_told_apart() {
        let scratch = Scratch::new();
        assert_eq!(refusal(&scratch, "none", &PLAIN), Problem::Missing);
        scratch.file("a", b"", 0o600);
        assert_eq!(refusal(&scratch, "a", &PLAIN), Problem::Empty);
        scratch.file("a", &vec![b'x'; 2 << 20], 0o600);
        assert_eq!(refusal(&scratch, "a", &SECRET), Problem::TooLarge { bytes: 2 << 20, max_bytes: 4096 });
    }

    #[test]
    fn a_file_that_changes_each_time_it_is_read_is_refused() {
        let scratch = Scratch::new();
        let path = scratch.file("a", b"the-content", 0o600);
        let add = || OpenOptions::new().append(true).open(&path).unwrap().write_all(b"+").unwrap();
        let shorten = || OpenOptions::new().write(true).open(&path).unwrap().set_len(5).unwrap();
        let touch = || {
            let file = File::open(&path).unwrap();
            file.set_modified(std::time::SystemTime::now() + std::time::Duration::from_secs(9)).unwrap();
        };
        let add_then_read = scratch.dir().read_around("a", &PLAIN, add).unwrap_err();
        assert_eq!(add_then_read.problem(), &Problem::Changed);
        let touched = scratch.dir().read_around("a", &PLAIN, touch).unwrap_err();
        assert_eq!(touched.problem(), &Problem::Changed);
        let mut left = 1;
        let short = scratch.dir().read_around("a", &PLAIN, || {
            if left > 0 {
                shorten();
                left -= 1;
            }
        });
        assert_eq!(short.unwrap(), b"the-c", "the second try finds the file at rest");
    }

    #[test]
    fn a_file_replaced_while_it_is_read_is_read_anew() {
        let scratch = Scratch::new();
        scratch.file("a", b"old", 0o600);
        let mut left = 1;
        let bytes = scratch.dir().read_around("a", &PLAIN, || {
            if left > 0 {
                scratch.dir().write("a", b"newer").unwrap();
                left -= 1;
            }
        });
        assert_eq!(bytes.unwrap(), b"newer");
    }
}
