//! The first start: keys and credentials come to be at once, or not at all.
//!
//! Owns: the order of renames that makes them appear, and what each half-done state means. It must not know what is in
//! them. Invariant: `keys` under its name is the commit point and is there only together with `credentials.json`; after
//! a kill at any step the next start begins anew or goes on, and keys without credentials are never taken for a first
//! start.
//!
//! ```text
//! Fresh          nothing, or a leftover new/             ──▶ clear new/, build new/keys and new/credentials.json, sync
//! Fresh          new/ complete                           ──▶ new/credentials.json becomes credentials.json
//! HalfPublished  credentials.json, new/keys              ──▶ new/keys becomes keys
//! Present        credentials.json, keys, an empty new/   ──▶ new/ goes
//! ```

use super::dir::Dir;
use super::error::{Problem, StoreError};
use super::lock::Lock;
use super::paths::{CREDENTIALS, KEYS};

/// Where they are built.
const ASIDE: &str = "new";

/// Folders in `new/`, itself counted.
const ASIDE_LEVELS: usize = 2;

/// How far the first start came.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FirstStart {
    /// Nothing was published: there are neither keys nor credentials.
    Fresh,
    /// Killed between the two renames: all is built, the keys lack their name.
    HalfPublished,
    /// Both are there.
    Present,
}

/// A step that is done; the next one may never come.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Step {
    Cleared,
    Built,
    CredentialsPublished,
    KeysPublished,
    Tidied,
}

/// Looks, and changes nothing.
pub fn state(root: &Dir) -> Result<FirstStart, StoreError> {
    match (root.identity(KEYS)?.is_some(), root.identity(CREDENTIALS)?.is_some()) {
        (true, true) => Ok(FirstStart::Present),
        (false, false) => Ok(FirstStart::Fresh),
        (true, false) => Err(root
            .error(CREDENTIALS, Problem::Corrupt("it is missing although there are keys".to_owned()))
            .with_remedy("restore it from a copy, or move the keys folder away to begin anew with other keys")),
        (false, true) if root.identity(ASIDE)?.is_some() && root.sub(ASIDE)?.identity(KEYS)?.is_some() => {
            Ok(FirstStart::HalfPublished)
        }
        (false, true) => Err(root
            .error(KEYS, Problem::Corrupt("it is missing although there is credentials.json".to_owned()))
            .with_remedy("restore it from a copy, or move credentials.json away to begin anew with other keys")),
    }
}

/// Makes sure that keys and credentials are there, and says what was found. `build` makes `keys` and
/// `credentials.json` in the folder that it gets; it is called on a first start only. The lock is the daemon's: of many
/// starters one builds and the others find it done.
pub fn publish(
    root: &Dir,
    _lock: &Lock,
    build: impl FnOnce(&Dir) -> Result<(), StoreError>,
) -> Result<FirstStart, StoreError> {
    advance(root, build, |_| true)
}

/// All steps that are left, as long as `goes_on` says so after each.
fn advance(
    root: &Dir,
    build: impl FnOnce(&Dir) -> Result<(), StoreError>,
    goes_on: impl Fn(Step) -> bool,
) -> Result<FirstStart, StoreError> {
    let found = state(root)?;
    if found == FirstStart::Fresh {
        root.clear(ASIDE, ASIDE_LEVELS)?;
        if !goes_on(Step::Cleared) {
            return Ok(found);
        }
        let aside = root.create_sub(ASIDE)?;
        build(&aside)?;
        // Missing parts are found before anything is published; what is published is on the disk.
        aside.sub(KEYS)?.sync()?;
        aside.identity(CREDENTIALS)?.ok_or_else(|| aside.error(CREDENTIALS, Problem::Missing))?;
        aside.sync()?;
        root.sync()?;
        if !goes_on(Step::Built) {
            return Ok(found);
        }
        aside.move_new(CREDENTIALS, root, CREDENTIALS)?;
        if !goes_on(Step::CredentialsPublished) {
            return Ok(found);
        }
    }
    if found != FirstStart::Present {
        root.sub(ASIDE)?.move_new(KEYS, root, KEYS)?;
        if !goes_on(Step::KeysPublished) {
            return Ok(found);
        }
    }
    // Only tidiness from here on: what else lies in it is nobody's business and does not stop a start.
    if root.identity(ASIDE)?.is_some() {
        let _ = root.remove_empty(ASIDE);
    }
    goes_on(Step::Tidied);
    Ok(found)
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::fs;

    use super::super::scratch::Scratch;
    use super::*;

    fn build(aside: &Dir) -> Result<(), StoreError> {
        aside.create_sub(KEYS)?.write("daemon.pem", b"key")?;
        aside.write(CREDENTIALS, b"records")
    }

    fn complete(scratch: &Scratch) {
        assert_eq!(scratch.names(), [CREDENTIALS, KEYS]);
        assert_eq!(fs::read(scratch.path().join(CREDENTIALS)).unwrap(), b"records");
        assert_eq!(fs::read(scratch.path().join("keys/daemon.pem")).unwrap(), b"key");
        assert_eq!(state(&scratch.dir()), Ok(FirstStart::Present));
    }

    #[test]
    fn a_kill_after_any_step_leaves_what_the_next_start_completes() {
        for (last, left, found) in [
            (Step::Cleared, &[] as &[&str], FirstStart::Fresh),
            (Step::Built, &["new"], FirstStart::Fresh),
            (Step::CredentialsPublished, &[CREDENTIALS, "new"], FirstStart::HalfPublished),
            (Step::KeysPublished, &[CREDENTIALS, KEYS, "new"], FirstStart::Present),
            (Step::Tidied, &[CREDENTIALS, KEYS], FirstStart::Present),
        ] {
            let scratch = Scratch::new();
            let reached = Cell::new(None);
            let goes_on = |step| {
                reached.set(Some(step));
                step < last
            };
            assert_eq!(advance(&scratch.dir(), build, goes_on), Ok(FirstStart::Fresh), "{last:?}");
            assert_eq!(reached.get(), Some(last));
            assert_eq!(scratch.names(), left, "{last:?}");
            let built = Cell::new(false);
            let again = |aside: &Dir| {
                built.set(true);
                build(aside)
            };
            assert_eq!(advance(&scratch.dir(), again, |_| true), Ok(found), "{last:?}");
            assert_eq!(built.get(), found == FirstStart::Fresh, "keys that may be in use are never made anew");
            complete(&scratch);
        }
    }

    #[test]
    fn a_kill_or_failure_while_building_leaves_what_the_next_start_clears() {
        type Part = fn(&Dir) -> Result<(), StoreError>;
        let parts: [Part; 4] = [
            |_| Ok(()),
            |aside| aside.create_sub(KEYS).map(|_| ()),
            |aside| aside.create_sub(KEYS)?.write("half.pem", b"other key"),
            |aside| aside.write(CREDENTIALS, b"other records"),
        ];
        for part in parts {
            let scratch = Scratch::new();
            let lock = scratch.dir().create_sub("locks").unwrap().lock("usherd.lock").unwrap();
            let error = publish(&scratch.dir(), &lock, |aside| {
                part(aside)?;
                Err(aside.error("daemon.pem", Problem::Io(nix::errno::Errno::ENOSPC)))
            });
            assert_eq!(error.unwrap_err().problem(), &Problem::Io(nix::errno::Errno::ENOSPC));
            assert!(publish(&scratch.dir(), &lock, part).unwrap_err().is_missing(), "a part is not the whole");
            assert_eq!(scratch.names(), ["locks", "new"]);
            fs::remove_dir_all(scratch.path().join("locks")).unwrap();
            assert_eq!(publish(&scratch.dir(), &lock, build), Ok(FirstStart::Fresh));
            complete(&scratch);
        }
    }

    #[test]
    fn keys_without_credentials_are_corruption_and_not_a_first_start() {
        let scratch = Scratch::new();
        advance(&scratch.dir(), build, |_| true).unwrap();
        fs::remove_file(scratch.path().join(CREDENTIALS)).unwrap();
        let error = advance(&scratch.dir(), |_| panic!("built"), |_| true).unwrap_err();
        assert_eq!(error.path(), scratch.path().join(CREDENTIALS));
        assert!(matches!(error.problem(), Problem::Corrupt(_)) && error.remedy().contains("restore it"), "{error}");
        assert_eq!(scratch.names(), [KEYS]);
    }

    #[test]
    fn credentials_without_keys_are_corruption_and_not_a_first_start() {
        let scratch = Scratch::new();
        advance(&scratch.dir(), build, |_| true).unwrap();
        fs::remove_dir_all(scratch.path().join(KEYS)).unwrap();
        for leftover in [false, true] {
            if leftover {
                scratch.dir().create_sub("new").unwrap();
            }
            let error = advance(&scratch.dir(), |_| panic!("built"), |_| true).unwrap_err();
            assert_eq!(error.path(), scratch.path().join(KEYS));
            assert!(matches!(error.problem(), Problem::Corrupt(_)) && error.remedy().contains("restore it"), "{error}");
            assert_eq!(fs::read(scratch.path().join(CREDENTIALS)).unwrap(), b"records");
        }
    }

    #[test]
    fn of_racing_starters_one_builds_and_the_others_adopt() {
        let scratch = Scratch::new();
        let found: Vec<_> = std::thread::scope(|scope| {
            let start = || {
                let root = scratch.dir();
                let lock = root.lock_wait("usherd.lock").unwrap();
                publish(&root, &lock, build).unwrap()
            };
            let threads: Vec<_> = (0..12).map(|_| scope.spawn(start)).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        assert_eq!(found.iter().filter(|found| **found == FirstStart::Fresh).count(), 1);
        assert_eq!(found.iter().filter(|found| **found == FirstStart::Present).count(), 11);
        fs::remove_file(scratch.path().join("usherd.lock")).unwrap();
        complete(&scratch);
    }
}
