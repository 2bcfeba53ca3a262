use std::ffi::OsString;
use std::fs;
use std::io::{Read, Write};
use std::os::unix::fs::{MetadataExt, symlink};
use std::path::{Path, PathBuf};

use super::super::scratch::Scratch;
use super::*;

const SOON: Duration = Duration::from_millis(200);

struct Place {
    _scratch: Scratch,
    root: Dir,
    folder: Dir,
    lock: Lock,
}

/// A directory with its folder and lock, the directory's path of at least so many bytes.
fn place(length: usize) -> Place {
    let scratch = Scratch::new();
    let mut path = PathBuf::from(scratch.path());
    while path.as_os_str().len() + 1 < length {
        let left = length - path.as_os_str().len() - 1;
        // Never a rest that is too short for a slash and a name.
        path.push("d".repeat(if left > 202 { 200 } else { left }));
    }
    let root = Dir::create(&path).unwrap();
    let folder = root.create_sub("s").unwrap();
    let lock = root.lock("usherd.lock").unwrap();
    Place { _scratch: scratch, root, folder, lock }
}

fn path(folder: &Dir) -> PathBuf {
    folder.path().join(SOCKET)
}

/// What has this name at all: `ls` sees it without following it.
fn names(folder: &Dir) -> Vec<OsString> {
    fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect()
}

#[test]
fn a_directory_of_any_length_is_listened_and_connected_to() {
    for length in [0, 90, 93, 94, 103, 104, 107, 108, 150, 300, 1000] {
        let place = place(length);
        assert!(length == 0 || place.root.path().as_os_str().len() == length);
        let bound = Listener::bind(&place.folder, &place.lock);
        if sys::fd_path(place.folder.as_fd()).is_none() && UnixAddr::new(&path(&place.folder)).is_err() {
            let error = bound.unwrap_err().to_string();
            assert!(error.contains("ENAMETOOLONG") && error.contains("USHER_DIR"), "{error}");
            continue;
        }
        let listener = bound.unwrap();
        assert_eq!(names(&place.folder), [SOCKET], "{length} bytes: the whole name and nothing else");
        assert!(listener.is_ours_still());
        let mut theirs = connect(&place.folder, SOON).unwrap();
        let mut ours = listener.accept().unwrap();
        theirs.write_all(b"x").unwrap();
        let mut byte = [0];
        ours.read_exact(&mut byte).unwrap();
        assert_eq!(&byte, b"x");
        listener.unlink();
        assert!(names(&place.folder).is_empty(), "{length} bytes");
    }
}

#[test]
fn the_socket_is_for_its_owner_only_and_inherited_by_nobody() {
    let place = place(0);
    let listener = Listener::bind(&place.folder, &place.lock).unwrap();
    assert_eq!(fs::symlink_metadata(path(&place.folder)).unwrap().mode() & 0o7777, 0o600);
    let client = connect(&place.folder, SOON).unwrap();
    let accepted = listener.accept().unwrap();
    for fd in [listener.as_fd(), client.as_fd(), accepted.as_fd()] {
        let flags = nix::fcntl::fcntl(fd, nix::fcntl::FcntlArg::F_GETFD).unwrap();
        assert_eq!(flags & nix::libc::FD_CLOEXEC, nix::libc::FD_CLOEXEC);
    }
    for fd in [client.as_fd(), accepted.as_fd()] {
        let flags = nix::fcntl::fcntl(fd, nix::fcntl::FcntlArg::F_GETFL).unwrap();
        assert_eq!(flags & nix::libc::O_NONBLOCK, 0);
    }
    assert_eq!(listener.accept().unwrap_err().kind(), io::ErrorKind::WouldBlock);
}

#[test]
fn a_socket_that_a_dead_daemon_left_is_replaced() {
    let place = place(0);
    drop(Listener::bind(&place.folder, &place.lock).unwrap());
    assert_eq!(connect(&place.folder, SOON).unwrap_err(), ConnectError::NobodyListens);
    let _listener = Listener::bind(&place.folder, &place.lock).unwrap();
    assert!(connect(&place.folder, SOON).is_ok());
}

#[test]
fn what_is_no_socket_at_the_path_is_named_and_never_removed() {
    type Make = fn(&Path);
    let makes: [(&str, Make); 5] = [
        ("file", |path| drop(fs::File::create(path).unwrap())),
        ("folder", |path| fs::create_dir(path).unwrap()),
        ("fifo", |path| nix::unistd::mkfifo(path, Mode::S_IRWXU).unwrap()),
        ("dangling link", |path| symlink("nowhere", path).unwrap()),
        ("link to a socket", |path| {
            drop(UnixListener::bind(path.with_file_name("real")).unwrap());
            symlink("real", path).unwrap();
        }),
    ];
    for (what, make) in makes {
        let place = place(0);
        let path = path(&place.folder);
        make(&path);
        let before = fs::symlink_metadata(&path).unwrap().ino();
        let error = Listener::bind(&place.folder, &place.lock).unwrap_err();
        assert_eq!((error.path(), error.problem()), (&*path, &Problem::Unsafe(check::NOT_A_SOCKET)), "{what}");
        assert_eq!(connect(&place.folder, SOON).unwrap_err(), ConnectError::Failed(error), "{what}");
        assert_eq!(fs::symlink_metadata(&path).unwrap().ino(), before, "{what}");
    }
}

#[test]
fn a_socket_of_another_user_is_left_alone() {
    let place = place(0);
    drop(UnixListener::bind(path(&place.folder)).unwrap());
    if Scratch::give_away(&path(&place.folder)) {
        let error = Listener::bind(&place.folder, &place.lock).unwrap_err();
        assert_eq!(error.problem(), &Problem::Unsafe(check::FOREIGN));
        assert_eq!(names(&place.folder), [SOCKET]);
    }
}

#[test]
fn a_listener_removes_only_what_it_bound() {
    let place = place(0);
    let old = Listener::bind(&place.folder, &place.lock).unwrap();
    assert!(old.is_ours_still());
    fs::remove_file(path(&place.folder)).unwrap();
    assert!(!old.is_ours_still());
    let new = Listener::bind(&place.folder, &place.lock).unwrap();
    assert!(!old.is_ours_still() && new.is_ours_still());
    old.unlink();
    assert!(new.is_ours_still());
    new.unlink();
    assert!(names(&place.folder).is_empty());
}

#[test]
fn a_listener_whose_folder_was_replaced_knows_it() {
    let place = place(0);
    let old = Listener::bind(&place.folder, &place.lock).unwrap();
    fs::rename(place.folder.path(), place.root.path().join("moved")).unwrap();
    assert!(!old.is_ours_still());
    let folder = place.root.create_sub("s").unwrap();
    let new = Listener::bind(&folder, &place.lock).unwrap();
    assert!(!old.is_ours_still() && new.is_ours_still());
}

#[test]
fn a_daemon_that_is_not_there_is_told_from_one_that_does_not_accept() {
    let place = place(0);
    assert_eq!(connect(&place.folder, SOON).unwrap_err(), ConnectError::Absent);
    let _listener = Listener::bind(&place.folder, &place.lock).unwrap();
    // Nobody accepts: connections that their ends closed again keep their place in the backlog.
    let mut waiting = 0;
    let (error, took) = loop {
        let started = Instant::now();
        match connect(&place.folder, SOON) {
            Ok(_) => waiting += 1,
            Err(error) => break (error, started.elapsed()),
        }
        assert!(waiting < 10_000, "the backlog has no end");
    };
    assert!(waiting > 0);
    if cfg!(target_os = "linux") {
        assert_eq!(error, ConnectError::Busy);
        assert!(took >= SOON && took < SOON * 10, "{took:?}");
    }
}

#[test]
fn a_full_backlog_that_empties_in_time_lets_the_connection_through() {
    let place = place(0);
    let listener = Listener::bind(&place.folder, &place.lock).unwrap();
    while connect(&place.folder, Duration::ZERO).is_ok() {}
    std::thread::scope(|scope| {
        let waiter = scope.spawn(|| connect(&place.folder, Duration::from_secs(30)).is_ok());
        listener.accept().unwrap();
        listener.accept().unwrap();
        assert!(waiter.join().unwrap());
    });
}

#[test]
fn a_file_system_without_sockets_is_told_with_the_path_and_the_way_out() {
    let place = place(0);
    for errno in [Errno::EOPNOTSUPP, Errno::EPERM] {
        let line = place.folder.error(SOCKET, bind_problem(errno)).to_string();
        assert!(line.contains("/s/usherd.sock is on a file system without"), "{line}");
        assert!(line.contains(&format!("({errno:?})")) && line.contains("USHER_DIR"), "{line}");
    }
    assert_eq!(bind_problem(Errno::ENOENT), Problem::Missing);
    assert_eq!(bind_problem(Errno::EADDRINUSE), Problem::Io(Errno::EADDRINUSE));
}
