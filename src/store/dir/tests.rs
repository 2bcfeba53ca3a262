use std::fs::{self, Permissions};
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};

use super::super::scratch::Scratch;
use super::*;

fn mode(path: &Path) -> u32 {
    fs::symlink_metadata(path).unwrap().mode() & 0o7777
}

fn refusal(path: &Path) -> Problem {
    Dir::open(path).unwrap_err().problem().clone()
}

#[test]
fn a_folder_that_others_can_write_to_is_refused_and_left_as_it_is() {
    let scratch = Scratch::new();
    for bits in [0o777, 0o770, 0o702, 0o1777] {
        let path = scratch.path().join(format!("{bits:o}"));
        fs::create_dir(&path).unwrap();
        fs::set_permissions(&path, Permissions::from_mode(bits)).unwrap();
        assert_eq!(refusal(&path), Problem::Unsafe(check::OTHERS_WRITE));
        assert!(Dir::create(&path).is_err());
        assert_eq!(mode(&path), bits);
    }
}

#[test]
fn a_folder_that_others_can_read_is_accepted() {
    let scratch = Scratch::new();
    fs::set_permissions(scratch.path(), Permissions::from_mode(0o755)).unwrap();
    assert!(Dir::open(scratch.path()).is_ok());
    assert_eq!(mode(scratch.path()), 0o755);
}

#[test]
fn a_link_is_refused_as_a_folder_with_and_without_a_trailing_slash() {
    let scratch = Scratch::new();
    fs::create_dir(scratch.path().join("real")).unwrap();
    symlink("real", scratch.path().join("link")).unwrap();
    symlink("nowhere", scratch.path().join("dangling")).unwrap();
    for name in ["link", "link/", "link/.", "dangling", "dangling/"] {
        let path = scratch.path().join(name);
        assert_eq!(refusal(&path), Problem::Unsafe(check::LINK), "{name}");
        assert_eq!(Dir::create(&path).unwrap_err().problem(), &Problem::Unsafe(check::LINK), "{name}");
    }
    assert_eq!(scratch.dir().sub("link").unwrap_err().problem(), &Problem::Unsafe(check::LINK));
    assert_eq!(scratch.dir().create_sub("link").unwrap_err().problem(), &Problem::Unsafe(check::LINK));
    assert_eq!(scratch.names(), ["dangling", "link", "real"]);
}

#[test]
fn a_file_or_a_fifo_is_no_folder() {
    let scratch = Scratch::new();
    let file = scratch.file("file", b"x", 0o600);
    assert_eq!(refusal(&file), Problem::Unsafe(check::NOT_A_DIRECTORY));
    let fifo = scratch.path().join("fifo");
    nix::unistd::mkfifo(&fifo, Mode::S_IRWXU).unwrap();
    assert_eq!(refusal(&fifo), Problem::Unsafe(check::NOT_A_DIRECTORY));
    assert_eq!(Dir::create(&file.join("below")).unwrap_err().problem(), &Problem::Io(Errno::ENOTDIR));
}

#[test]
fn a_folder_of_another_user_is_refused_even_by_root() {
    let scratch = Scratch::new();
    let path = scratch.path().join("theirs");
    fs::create_dir(&path).unwrap();
    if Scratch::give_away(&path) {
        assert_eq!(refusal(&path), Problem::Unsafe(check::FOREIGN));
        assert_eq!(Dir::create(&path).unwrap_err().problem(), &Problem::Unsafe(check::FOREIGN));
        assert_eq!(fs::metadata(&path).unwrap().uid(), 65_534);
        assert_eq!(fs::read_dir(&path).unwrap().count(), 0);
    }
}

#[test]
fn only_what_is_missing_is_made_and_what_exists_keeps_its_mode() {
    let scratch = Scratch::new();
    let above = scratch.path().join("above");
    fs::create_dir(&above).unwrap();
    fs::set_permissions(&above, Permissions::from_mode(0o775)).unwrap();
    let dir = Dir::create(&above.join("a/b/c/")).unwrap();
    assert_eq!(dir.path(), above.join("a/b/c"));
    assert_eq!(mode(&above), 0o775);
    for made in ["a", "a/b", "a/b/c"] {
        assert_eq!(mode(&above.join(made)), 0o700, "{made}");
    }
    assert!(Dir::create(&above.join("a/b/c")).is_ok());
}

#[test]
fn a_link_above_the_folder_is_followed() {
    let scratch = Scratch::new();
    fs::create_dir(scratch.path().join("real")).unwrap();
    symlink("real", scratch.path().join("home")).unwrap();
    Dir::create(&scratch.path().join("home/state/usher")).unwrap();
    assert_eq!(mode(&scratch.path().join("real/state/usher")), 0o700);
}

#[test]
fn a_missing_folder_is_told_as_missing_and_a_path_too_long_by_its_errno() {
    let scratch = Scratch::new();
    assert!(Dir::open(&scratch.path().join("none")).unwrap_err().is_missing());
    assert!(scratch.dir().sub("none").unwrap_err().is_missing());
    let long = scratch.path().join("x".repeat(300));
    assert_eq!(Dir::create(&long).unwrap_err().problem(), &Problem::Io(Errno::ENAMETOOLONG));
}

#[test]
fn names_that_lead_elsewhere_are_refused() {
    let dir = Scratch::new();
    let dir = dir.dir();
    for name in ["..", ".", "", "a/b", "/etc"] {
        let refused = Problem::Unsafe(check::NOT_A_NAME);
        assert_eq!(dir.sub(name).unwrap_err().problem(), &refused);
        assert_eq!(dir.create_sub(name).unwrap_err().problem(), &refused);
        assert_eq!(dir.identity(name).unwrap_err().problem(), &refused);
        assert_eq!(dir.rename(name, "x").unwrap_err().problem(), &refused);
        assert_eq!(dir.rename("x", name).unwrap_err().problem(), &refused);
    }
}

#[test]
fn a_handle_stays_with_its_folder_when_the_path_leads_elsewhere() {
    let scratch = Scratch::new();
    let inner = scratch.dir().create_sub("inner").unwrap();
    fs::rename(scratch.path().join("inner"), scratch.path().join("moved")).unwrap();
    symlink("/", scratch.path().join("inner")).unwrap();
    inner.write("a", b"x").unwrap();
    assert!(scratch.path().join("moved/a").exists());
}

#[test]
fn moving_never_overwrites_and_renaming_does() {
    let scratch = Scratch::new();
    let dir = scratch.dir();
    let sub = dir.create_sub("sub").unwrap();
    sub.write("a", b"new").unwrap();
    dir.write("a", b"old").unwrap();
    let error = sub.move_new("a", &dir, "a").unwrap_err();
    assert_eq!((error.path(), error.problem()), (&*scratch.path().join("a"), &Problem::Io(Errno::EEXIST)));
    assert_eq!(fs::read(scratch.path().join("a")).unwrap(), b"old");
    sub.move_new("a", &dir, "b").unwrap();
    dir.rename("b", "a").unwrap();
    assert_eq!(fs::read(scratch.path().join("a")).unwrap(), b"new");
    assert_eq!(scratch.names(), ["a", "sub"]);
}

/// The umask belongs to the process, so each one gets a process of its own; as another user too, since root can open
/// what the umask closed.
#[test]
fn folders_and_files_have_their_modes_under_any_umask() {
    if let Some(path) = Scratch::of_parent() {
        let dir = Dir::create(&path.join("a/b")).unwrap();
        dir.create_sub("c").unwrap().write("d", b"x").unwrap();
        drop(dir.append("e").unwrap());
        drop(dir.lock("f").unwrap());
        return;
    }
    let test = concat!(module_path!(), "::folders_and_files_have_their_modes_under_any_umask");
    for umask in ["umask 000", "umask 022", "umask 077", "umask 277", "umask 777"] {
        for uid in [None, Some(65_534)] {
            let scratch = Scratch::new();
            if uid.is_some() && !Scratch::give_away(scratch.path()) || !scratch.run(test, umask, uid) {
                continue;
            }
            for (path, bits) in
                [("a", 0o700), ("a/b", 0o700), ("a/b/c", 0o700), ("a/b/c/d", 0o600), ("a/b/e", 0o600), ("a/b/f", 0o600)]
            {
                assert_eq!(mode(&scratch.path().join(path)), bits, "{umask}, {uid:?}: {path}");
            }
        }
    }
}
