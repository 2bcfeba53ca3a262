//! Locks between processes.
//!
//! Owns: flock on a file of ours, which is never removed and whose bytes mean nothing. Invariant: a `Lock` holds the
//! lock of the very file that its path leads to, so two holders of one path cannot be; the kernel releases it when the
//! process ends, however that happens.

use std::fs::File;
use std::thread::sleep;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::fcntl::{Flock, FlockArg, OFlag};
use nix::sys::stat::fstat;

use crate::sys;

use super::check::Identity;
use super::dir::Dir;
use super::error::{Problem, StoreError};

/// How long a change to a file waits for others that change it: each takes milliseconds, so whoever holds it longer is
/// stopped, and nothing of ours hangs with it.
const PATIENCE: Duration = Duration::from_secs(10);

/// The pauses between two looks at a held lock.
const PAUSE: Duration = Duration::from_millis(2);
const PAUSE_MAX: Duration = Duration::from_millis(50);

/// Tries to lock a file that is replaced at the same moment.
const ATTEMPTS: usize = 16;

/// A held lock; dropping it releases it.
#[derive(Debug)]
pub struct Lock {
    _held: Flock<File>,
}

impl Dir {
    /// Takes a lock, or says at once that it is [`Problem::Held`].
    pub fn lock(&self, name: &str) -> Result<Lock, StoreError> {
        self.lock_around(name, || ())
    }

    /// As [`Dir::lock`]; `between` is called while the file is open but not yet locked.
    fn lock_around(&self, name: &str, mut between: impl FnMut()) -> Result<Lock, StoreError> {
        for _ in 0..ATTEMPTS {
            let file = self.open_or_make(name, OFlag::O_RDWR)?;
            between();
            let identity = Identity::of(&fstat(&file).map_err(|errno| self.errno(name, errno))?);
            let held = Flock::lock(file, FlockArg::LockExclusiveNonblock)
                .map_err(|(_, errno)| self.error(name, refusal(errno, identity)))?;
            // Whoever removed or replaced the file in between would let a second one lock the new file.
            if self.identity(name)? == Some(identity) {
                return Ok(Lock { _held: held });
            }
        }
        Err(self.error(name, Problem::Changed))
    }

    /// Takes a lock, waiting for it: for reading, changing and writing a file that other processes change too.
    pub fn lock_wait(&self, name: &str) -> Result<Lock, StoreError> {
        self.lock_within(name, PATIENCE)
    }

    /// flock itself can wait, but not until a deadline.
    fn lock_within(&self, name: &str, patience: Duration) -> Result<Lock, StoreError> {
        let deadline = Instant::now() + patience;
        let mut pause = PAUSE;
        loop {
            match self.lock(name) {
                Err(error) if matches!(error.problem(), Problem::Held { .. }) && Instant::now() < deadline => {}
                done => return done,
            }
            sleep(pause);
            pause = (pause * 2).min(PAUSE_MAX);
        }
    }
}

/// What a failed flock means.
fn refusal(errno: Errno, identity: Identity) -> Problem {
    match errno {
        Errno::EWOULDBLOCK => Problem::Held { by: sys::lock_holder(identity.dev, identity.ino) },
        Errno::ENOLCK | Errno::EOPNOTSUPP | Errno::ENOSYS => Problem::Unsupported(errno),
        errno => Problem::Io(errno),
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use super::super::check;
    use super::super::scratch::Scratch;
    use super::*;

    #[test]
    fn a_held_lock_is_told_with_its_holder_and_free_again_when_dropped() {
        let scratch = Scratch::new();
        let lock = scratch.dir().lock("usherd.lock").unwrap();
        let error = scratch.dir().lock("usherd.lock").unwrap_err();
        let Problem::Held { by } = *error.problem() else { panic!("{error}") };
        if let Some(pid) = by {
            assert_eq!(pid, std::process::id());
            assert!(error.to_string().contains(&format!("is locked by process {pid}")), "{error}");
        }
        drop(lock);
        assert!(scratch.dir().lock("usherd.lock").is_ok());
    }

    #[test]
    fn a_waiting_lock_gets_its_turn_or_gives_up() {
        let scratch = Scratch::new();
        let lock = scratch.dir().lock("a").unwrap();
        let started = Instant::now();
        let error = scratch.dir().lock_within("a", Duration::from_millis(30)).unwrap_err();
        assert!(matches!(error.problem(), Problem::Held { .. }));
        assert!(started.elapsed() >= Duration::from_millis(30));
        std::thread::scope(|scope| {
            let waiter = scope.spawn(|| scratch.dir().lock_wait("a").is_ok());
            drop(lock);
            assert!(waiter.join().unwrap());
        });
    }

    #[test]
    fn no_two_threads_hold_the_same_lock() {
        let scratch = Scratch::new();
        scratch.file("count", b"0", 0o600);
        let add = || {
            for _ in 0..20 {
                let dir = scratch.dir();
                let _lock = dir.lock_wait("count.lock").unwrap();
                let kind = super::super::Kind { secret: false, max_bytes: 16 };
                let count: u32 = String::from_utf8(dir.read("count", &kind).unwrap()).unwrap().parse().unwrap();
                dir.write("count", (count + 1).to_string().as_bytes()).unwrap();
            }
        };
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(add);
            }
        });
        assert_eq!(fs::read(scratch.path().join("count")).unwrap(), b"80");
    }

    #[test]
    fn a_lock_file_replaced_before_it_is_locked_does_not_make_two_holders() {
        let scratch = Scratch::new();
        let mut other = None;
        let locked = scratch.dir().lock_around("a", || {
            if other.is_none() {
                fs::remove_file(scratch.path().join("a")).unwrap();
                other = Some(scratch.dir().lock("a").unwrap());
            }
        });
        assert!(matches!(locked.unwrap_err().problem(), Problem::Held { .. }));
    }

    #[test]
    fn a_lock_file_that_is_not_ours_alone_is_refused() {
        let scratch = Scratch::new();
        symlink("elsewhere", scratch.path().join("link")).unwrap();
        nix::unistd::mkfifo(&scratch.path().join("fifo"), nix::sys::stat::Mode::S_IRWXU).unwrap();
        scratch.file("open", b"", 0o666);
        for (name, what) in [("link", check::LINK), ("fifo", check::NOT_A_FILE), ("open", check::OTHERS_WRITE)] {
            assert_eq!(scratch.dir().lock(name).unwrap_err().problem(), &Problem::Unsafe(what), "{name}");
        }
        assert!(!scratch.path().join("elsewhere").exists());
    }

    #[test]
    fn a_file_system_without_locks_is_told_with_the_path_and_the_way_out() {
        let scratch = Scratch::new();
        scratch.file("a", b"x", 0o600);
        let identity = scratch.dir().identity("a").unwrap().unwrap();
        for errno in [Errno::ENOLCK, Errno::EOPNOTSUPP] {
            let line = scratch.dir().error("usherd.lock", refusal(errno, identity)).to_string();
            assert!(line.contains("/usherd.lock is on a file system without locks"), "{line}");
            assert!(line.contains(&format!("({errno:?})")) && line.contains("USHER_DIR"), "{line}");
        }
        assert_eq!(refusal(Errno::EBADF, identity), Problem::Io(Errno::EBADF));
    }
}
