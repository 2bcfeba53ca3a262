//! Writing a file of ours.
//!
//! Owns: replacing a file in one step, and opening one to add to. It must not know what the bytes mean. Invariant:
//! under its name a file is always whole, the old bytes or the new ones; every file that is made has mode 0600 whatever
//! the umask is, and none is chmod-ed that was there before.

use std::fs::File;
use std::io::{self, BufWriter, IntoInnerError, Write};

use nix::errno::Errno;
use nix::fcntl::{OFlag, openat, renameat};
use nix::sys::stat::{Mode, fchmod};
use nix::unistd::{UnlinkatFlags, unlinkat};

use crate::ids;

use super::dir::Dir;
use super::error::{Problem, StoreError};
use super::fault;

/// Tries to open a name that others make and remove at the same moment.
const ATTEMPTS: usize = 16;

/// What we make: ours to read and write.
const MODE: Mode = Mode::S_IRUSR.union(Mode::S_IWUSR);

impl Dir {
    /// Replaces a file, or makes it, with these bytes. See [`Dir::write_with`].
    pub fn write(&self, name: &str, bytes: &[u8]) -> Result<(), StoreError> {
        if bytes.is_empty() {
            // No file of ours is: it would be refused when it is read.
            return Err(self.error(name, Problem::Empty));
        }
        self.write_with(name, |file| file.write_all(bytes))
    }

    /// Replaces a file, or makes it: aside, then synced, then renamed, then the folder synced. After an error the name
    /// has its old bytes, unless all that failed was the last sync; then it has the new ones.
    pub(super) fn write_with(
        &self,
        name: &str,
        content: impl FnOnce(&mut dyn Write) -> io::Result<()>,
    ) -> Result<(), StoreError> {
        self.judge_name(name)?;
        fault::point(name, "begun");
        let aside = format!("{name}.{}.tmp", ids::base64url(&ids::random::<9>()));
        let file = self.make_file(&aside, OFlag::O_WRONLY).map_err(|errno| self.errno(name, errno))?;
        let replaced =
            fill(file, content).map_err(|error| StoreError::io(self.path().join(name), &error)).and_then(|()| {
                fault::point(name, "aside");
                renameat(self, aside.as_str(), self, name).map_err(|errno| self.errno(name, errno))
            });
        if let Err(error) = replaced {
            let _ = unlinkat(self, aside.as_str(), UnlinkatFlags::NoRemoveDir);
            return Err(error);
        }
        fault::point(name, "renamed");
        self.sync()?;
        fault::point(name, "synced");
        Ok(())
    }

    /// Opens a file to add to its end, making it if it is missing.
    pub fn append(&self, name: &str) -> Result<File, StoreError> {
        self.open_or_make(name, OFlag::O_WRONLY | OFlag::O_APPEND)
    }

    /// Opens a file to add to its end and to read what stands there, making it if it is missing.
    pub fn extend(&self, name: &str) -> Result<File, StoreError> {
        self.open_or_make(name, OFlag::O_RDWR | OFlag::O_APPEND)
    }

    /// Opens a file that is judged like one to be read, or makes it with mode 0600.
    pub(super) fn open_or_make(&self, name: &str, access: OFlag) -> Result<File, StoreError> {
        self.judge_name(name)?;
        for _ in 0..ATTEMPTS {
            match self.open_judged(name, access, false) {
                Ok((file, _)) => return Ok(file),
                // Missing, or removed after it was opened.
                Err(error) if matches!(error.problem(), Problem::Missing | Problem::Changed) => {}
                Err(error) => return Err(error),
            }
            match self.make_file(name, access) {
                Ok(file) => return Ok(file),
                // Another one made it; it is judged in the next round. A link that leads nowhere is refused there.
                Err(Errno::EEXIST) => {}
                Err(errno) => return Err(self.errno(name, errno)),
            }
        }
        Err(self.error(name, Problem::Changed))
    }

    /// A new file, which must not exist; the mode is set by handle, since a umask may have taken from it.
    fn make_file(&self, name: &str, access: OFlag) -> nix::Result<File> {
        let flags = access | OFlag::O_CREAT | OFlag::O_EXCL | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
        let fd = openat(self, name, flags, MODE)?;
        if let Err(errno) = fchmod(&fd, MODE) {
            let _ = unlinkat(self, name, UnlinkatFlags::NoRemoveDir);
            return Err(errno);
        }
        Ok(File::from(fd))
    }
}

/// Writes all and waits until it is on the disk; the file is closed before it gets its name.
fn fill(file: File, content: impl FnOnce(&mut dyn Write) -> io::Result<()>) -> io::Result<()> {
    let mut buffered = BufWriter::new(file);
    content(&mut buffered)?;
    buffered.into_inner().map_err(IntoInnerError::into_error)?.sync_all()
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::{MetadataExt, symlink};
    use std::sync::Barrier;

    use super::super::check;
    use super::super::scratch::Scratch;
    use super::*;

    #[test]
    fn a_file_is_made_and_replaced_with_mode_0600_and_nothing_is_left_beside_it() {
        let scratch = Scratch::new();
        scratch.dir().write("a", b"old").unwrap();
        let old = fs::metadata(scratch.path().join("a")).unwrap();
        scratch.dir().write("a", b"new").unwrap();
        let new = fs::metadata(scratch.path().join("a")).unwrap();
        assert_eq!(fs::read(scratch.path().join("a")).unwrap(), b"new");
        assert_eq!((old.mode() & 0o7777, new.mode() & 0o7777), (0o600, 0o600));
        assert_ne!(old.ino(), new.ino());
        assert_eq!(scratch.names(), ["a"]);
    }

    #[test]
    fn a_failed_rename_keeps_what_was_there_and_removes_the_temporary_file() {
        let scratch = Scratch::new();
        fs::create_dir(scratch.path().join("a")).unwrap();
        scratch.file("a/inside", b"old", 0o600);
        let error = scratch.dir().write("a", b"new").unwrap_err();
        assert_eq!((error.path(), error.problem()), (&*scratch.path().join("a"), &Problem::Io(Errno::EISDIR)));
        assert_eq!(scratch.names(), ["a"]);
        assert_eq!(fs::read(scratch.path().join("a/inside")).unwrap(), b"old");
    }

    /// A limit on the size of files stands for a full disk: the kernel takes a part and refuses the rest.
    #[test]
    fn a_failed_write_keeps_the_old_bytes_and_removes_the_temporary_file() {
        let test = concat!(module_path!(), "::a_failed_write_keeps_the_old_bytes_and_removes_the_temporary_file");
        if let Some(path) = Scratch::of_parent() {
            let dir = Dir::open(&path).unwrap();
            for name in ["a", "b"] {
                let error = dir.write(name, &[b'x'; 8192]).unwrap_err();
                assert_eq!((error.path(), error.problem()), (&*path.join(name), &Problem::Io(Errno::EFBIG)));
            }
            return;
        }
        let scratch = Scratch::new();
        scratch.dir().write("a", b"old").unwrap();
        scratch.run(test, "trap '' XFSZ; ulimit -f 1", None);
        assert_eq!(fs::read(scratch.path().join("a")).unwrap(), b"old");
        assert_eq!(scratch.names(), ["a"]);
    }

    #[test]
    fn a_file_without_bytes_is_not_written_since_it_could_not_be_read() {
        let scratch = Scratch::new();
        scratch.dir().write("a", b"old").unwrap();
        assert_eq!(scratch.dir().write("a", b"").unwrap_err().problem(), &Problem::Empty);
        assert_eq!(fs::read(scratch.path().join("a")).unwrap(), b"old");
    }

    #[test]
    fn a_link_is_replaced_and_never_written_through() {
        let scratch = Scratch::new();
        let target = scratch.file("target", b"theirs", 0o600);
        symlink("target", scratch.path().join("a")).unwrap();
        scratch.dir().write("a", b"ours").unwrap();
        assert_eq!(fs::read(target).unwrap(), b"theirs");
        assert!(fs::symlink_metadata(scratch.path().join("a")).unwrap().is_file());
    }

    #[test]
    fn appending_makes_the_file_once_and_adds_to_its_end() {
        let scratch = Scratch::new();
        scratch.dir().append("log").unwrap().write_all(b"one\n").unwrap();
        scratch.dir().append("log").unwrap().write_all(b"two\n").unwrap();
        assert_eq!(fs::read(scratch.path().join("log")).unwrap(), b"one\ntwo\n");
        assert_eq!(fs::metadata(scratch.path().join("log")).unwrap().mode() & 0o7777, 0o600);
    }

    #[test]
    fn nothing_is_appended_to_what_is_not_ours_alone() {
        let scratch = Scratch::new();
        scratch.file("open", b"x", 0o622);
        fs::hard_link(scratch.file("one", b"x", 0o600), scratch.path().join("two")).unwrap();
        symlink("elsewhere", scratch.path().join("link")).unwrap();
        nix::unistd::mkfifo(&scratch.path().join("fifo"), Mode::S_IRWXU).unwrap();
        let names = scratch.names();
        for (name, what) in [
            ("open", check::OTHERS_WRITE),
            ("one", check::SEVERAL_LINKS),
            ("link", check::LINK),
            ("fifo", check::NOT_A_FILE),
        ] {
            assert_eq!(scratch.dir().append(name).unwrap_err().problem(), &Problem::Unsafe(what), "{name}");
        }
        assert_eq!(scratch.names(), names);
    }

    #[test]
    fn of_many_that_make_the_same_file_each_gets_the_same_one() {
        let scratch = Scratch::new();
        let barrier = Barrier::new(8);
        let inodes: Vec<_> = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..8)
                .map(|_| {
                    scope.spawn(|| {
                        barrier.wait();
                        scratch.dir().append("log").unwrap().metadata().unwrap().ino()
                    })
                })
                .collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        assert!(inodes.iter().all(|inode| *inode == inodes[0]));
    }
}
