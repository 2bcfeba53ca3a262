//! When a folder or file is safe to use: the verdicts on what `stat` said.
//!
//! Owns: the rules. It opens nothing and changes nothing. Invariant: a verdict speaks of an inode that is held open or
//! was looked at without following a link, never of a path that could lead elsewhere a moment later.

use std::os::fd::BorrowedFd;
use std::path::Path;

use nix::errno::Errno;
use nix::fcntl::AtFlags;
use nix::libc;
use nix::sys::stat::{FileStat, Mode, SFlag, fstatat};
use nix::unistd::{Uid, geteuid};

use super::error::Problem;

/// The words of [`Problem::Unsafe`].
pub const LINK: &str = "is a symbolic link";
/// Owned by somebody else than the effective user.
pub const FOREIGN: &str = "is owned by another user";
/// Group or other write bits.
pub const OTHERS_WRITE: &str = "can be written by others";
/// Any group or other bits, on a secret.
pub const OTHERS_READ: &str = "can be read by others";
/// A second name could be kept by whoever made it.
pub const SEVERAL_LINKS: &str = "has several links";
/// A folder, FIFO, device or socket where a file is meant.
pub const NOT_A_FILE: &str = "is not a regular file";
/// Something else where a folder is meant.
pub const NOT_A_DIRECTORY: &str = "is not a directory";
/// Something else where the rendezvous is meant.
pub const NOT_A_SOCKET: &str = "is not a socket";
/// A name with a slash in it, or one that leads out of its folder.
pub const NOT_A_NAME: &str = "is not a plain file name";

/// What an inode is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FileKind {
    /// A regular file.
    File,
    /// A folder.
    Directory,
    /// A symbolic link.
    Link,
    /// A socket.
    Socket,
    /// A FIFO or device.
    Special,
}

/// Which inode, as long as something holds it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Identity {
    /// The file system.
    pub dev: libc::dev_t,
    /// The inode on it.
    pub ino: libc::ino_t,
    /// What it is.
    pub kind: FileKind,
}

impl Identity {
    /// The inode that `stat` describes.
    pub fn of(stat: &FileStat) -> Self {
        let kind = match SFlag::from_bits_truncate(stat.st_mode) & SFlag::S_IFMT {
            kind if kind == SFlag::S_IFREG => FileKind::File,
            kind if kind == SFlag::S_IFDIR => FileKind::Directory,
            kind if kind == SFlag::S_IFLNK => FileKind::Link,
            kind if kind == SFlag::S_IFSOCK => FileKind::Socket,
            _ => FileKind::Special,
        };
        Self { dev: stat.st_dev, ino: stat.st_ino, kind }
    }
}

/// What stays the same in a file that nobody writes to.
#[derive(PartialEq, Eq)]
pub struct Stamp([i128; 7]);

impl Stamp {
    /// Device, inode, size and both times; `ctime` cannot be set back.
    pub fn of(stat: &FileStat) -> Self {
        Self([
            stat.st_dev.into(),
            stat.st_ino.into(),
            stat.st_size.into(),
            stat.st_mtime.into(),
            stat.st_mtime_nsec.into(),
            stat.st_ctime.into(),
            stat.st_ctime_nsec.into(),
        ])
    }
}

/// Ours, by the effective user: for root, only what belongs to root.
pub fn owned(stat: &FileStat) -> Result<(), Problem> {
    if Uid::from_raw(stat.st_uid) == geteuid() { Ok(()) } else { Err(Problem::Unsafe(FOREIGN)) }
}

/// Nobody else can write.
fn private_to_write(stat: &FileStat) -> Result<(), Problem> {
    let mode = Mode::from_bits_truncate(stat.st_mode);
    if mode.intersects(Mode::S_IWGRP | Mode::S_IWOTH) { Err(Problem::Unsafe(OTHERS_WRITE)) } else { Ok(()) }
}

/// A folder of ours that nobody else can put names into.
pub fn directory(stat: &FileStat) -> Result<(), Problem> {
    if Identity::of(stat).kind != FileKind::Directory {
        return Err(Problem::Unsafe(NOT_A_DIRECTORY));
    }
    owned(stat)?;
    private_to_write(stat)
}

/// A regular file of ours with one name, that nobody else can write to, nor read if it is a secret.
pub fn regular(stat: &FileStat, secret: bool) -> Result<(), Problem> {
    if Identity::of(stat).kind != FileKind::File {
        return Err(Problem::Unsafe(NOT_A_FILE));
    }
    owned(stat)?;
    match stat.st_nlink {
        // Replaced between being opened and being looked at.
        0 => return Err(Problem::Changed),
        1 => {}
        _ => return Err(Problem::Unsafe(SEVERAL_LINKS)),
    }
    private_to_write(stat)?;
    if secret && Mode::from_bits_truncate(stat.st_mode).intersects(Mode::S_IRWXG | Mode::S_IRWXO) {
        return Err(Problem::Unsafe(OTHERS_READ));
    }
    Ok(())
}

/// The size, from 1 byte to the ceiling.
pub fn size(stat: &FileStat, max_bytes: u64) -> Result<usize, Problem> {
    let bytes = u64::try_from(stat.st_size).unwrap_or(u64::MAX);
    if bytes == 0 {
        return Err(Problem::Empty);
    }
    if bytes > max_bytes {
        return Err(Problem::TooLarge { bytes, max_bytes });
    }
    usize::try_from(bytes).map_err(|_| Problem::TooLarge { bytes, max_bytes })
}

/// One component: nothing that names the folder itself, another folder, or no file at all.
pub fn name(name: &str) -> Result<(), Problem> {
    let plain = !name.is_empty() && name != "." && name != ".." && !name.contains(['/', '\0']);
    if plain { Ok(()) } else { Err(Problem::Unsafe(NOT_A_NAME)) }
}

/// Says for a failed open what stands there instead, where that is the cause; only for the message, so a race in it
/// harms nobody.
pub fn why_not_opened(base: BorrowedFd<'_>, name: &Path, wanted: FileKind, errno: Errno) -> Problem {
    if errno == Errno::ENOENT {
        return Problem::Missing;
    }
    let Ok(stat) = fstatat(base, name, AtFlags::AT_SYMLINK_NOFOLLOW) else { return Problem::Io(errno) };
    match (Identity::of(&stat).kind, wanted) {
        (FileKind::Link, _) => Problem::Unsafe(LINK),
        (kind, FileKind::Directory) if kind != wanted => Problem::Unsafe(NOT_A_DIRECTORY),
        (kind, _) if kind != wanted => Problem::Unsafe(NOT_A_FILE),
        _ => owned(&stat).err().unwrap_or(Problem::Io(errno)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_one_plain_component_is_a_name() {
        for plain in ["usherd.lock", "keys", "..x", "a.b"] {
            assert_eq!(name(plain), Ok(()), "{plain}");
        }
        for other in ["", ".", "..", "/", "a/b", "../keys", "a/", "a\0b"] {
            assert_eq!(name(other), Err(Problem::Unsafe(NOT_A_NAME)), "{other:?}");
        }
    }

    #[test]
    fn a_replaced_file_counts_as_changed_and_a_second_name_as_unsafe() {
        let folder = super::super::scratch::Scratch::new();
        let mut stat = nix::sys::stat::stat(&folder.file("a", b"x", 0o600)).unwrap();
        assert_eq!(regular(&stat, false), Ok(()));
        stat.st_nlink = 0;
        assert_eq!(regular(&stat, false), Err(Problem::Changed));
        stat.st_nlink = 2;
        assert_eq!(regular(&stat, false), Err(Problem::Unsafe(SEVERAL_LINKS)));
    }

    #[test]
    fn a_size_has_a_floor_and_a_ceiling() {
        let mut stat = nix::sys::stat::stat("/").unwrap();
        for (bytes, verdict) in
            [(0, Err(Problem::Empty)), (1, Ok(1)), (8, Ok(8)), (9, Err(Problem::TooLarge { bytes: 9, max_bytes: 8 }))]
        {
            stat.st_size = bytes;
            assert_eq!(size(&stat, 8), verdict);
        }
    }
}
