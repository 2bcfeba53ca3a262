//! `usher keys new`: a key, its credential, and the folder that holds both for whoever is to use them.
//!
//! Invariant: the folder appears whole under its name or not at all, and no credential stays that nobody has the key of.

use std::ffi::OsStr;
use std::fs::File;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use serde::Serialize;

use crate::auth::identity::Identity;
use crate::client::bundle::{BUNDLE, Bundle, DAEMON_KEY, KEY, VERSION};
use crate::error::{Exit, Failure};
use crate::ids::{self, CredentialId};
use crate::store::pem::{self, Seed};
use crate::store::{Dir, StoreError};
use crate::sys;
use crate::wire::methods::Method;
use crate::wire::text::escaped;

use super::super::args::NewKey;
use super::super::trouble::Trouble;
use super::super::{Outcome, out};
use super::enroll::Enroll;
use super::{Named, Operator};

#[derive(Serialize)]
struct Document<'a> {
    credential: CredentialId,
    bundle: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    expires: Option<jiff::Timestamp>,
}

/// A folder that is there already is never touched.
pub fn refuse_existing(out: &Path) -> Result<(), Failure> {
    match out.symlink_metadata() {
        Ok(_) => Err(Failure::new(Exit::Conflict, "exists", format!("{} exists already", shown(out)))
            .hint("--out names a folder that is to be made")),
        Err(_) => Ok(()),
    }
}

/// Makes it.
pub fn new(operator: &mut Operator<'_>, grant: &NewKey, out: &Path) -> Outcome {
    let out = std::path::absolute(out).map_err(|error| Failure::usage(format!("{}: {error}", shown(out))))?;
    let socket_folder = operator.target.socket_folder();
    let socket_folder = socket_folder
        .to_str()
        .ok_or_else(|| Failure::usage(format!("{} is not UTF-8 and fits into no bundle", shown(&socket_folder))))?;
    let aside = Aside::create(&out)?;
    let seed = Seed::random();
    pem::write(&aside.dir, KEY, &seed)?;
    let daemon = operator.asker.caller().proved().daemon;
    aside.dir.write(DAEMON_KEY, format!("{daemon}\n").as_bytes())?;
    let identity = Identity::from_seed(&seed).map_err(|why| Failure::new(Exit::Bug, "internal", why))?;
    let enroll = Enroll::new(grant, identity.public())?;
    let credential = enroll.ask(&mut operator.asker)?.credential;
    let bundle = Bundle {
        version: VERSION,
        credential,
        role: grant.role,
        label: grant.label.clone(),
        socket_folder: socket_folder.to_owned(),
    };
    let published = aside.dir.write(BUNDLE, &bundle.text()).map_err(Trouble::from).and_then(|()| aside.publish(&out));
    if let Err(trouble) = published {
        // A credential whose key is about to go is of no use to anybody.
        let _ = operator.asker.ask(Method::CredentialRevoke, &Named { credential });
        return Err(trouble);
    }
    if operator.global.json {
        out::json(&Document { credential, bundle: &out.to_string_lossy(), expires: enroll.expires })?;
    } else {
        out::text(&format!("{credential}\n"))?;
        out::note(&format!("use it with --credential {0} or USHER_CREDENTIAL={0}", shown(&out)));
    }
    Ok(ExitCode::SUCCESS)
}

/// A folder beside the one that is to be; dropped, it goes with all that is in it.
struct Aside {
    dir: Dir,
    path: PathBuf,
    published: bool,
}

impl Aside {
    fn create(out: &Path) -> Result<Self, Trouble> {
        let (Some(parent), Some(name)) = (out.parent(), out.file_name()) else {
            return Err(Failure::usage("--out names no folder").into());
        };
        if !parent.is_dir() {
            return Err(Failure::new(Exit::NotFound, "not-found", format!("{} is no folder", shown(parent))).into());
        }
        let mark = ids::base64url(&ids::random::<9>());
        let path = parent.join(format!(".{}.{mark}.tmp", name.to_string_lossy()));
        let remedy = |error: StoreError| error.with_remedy("name a folder where you can write in --out");
        Ok(Self { dir: Dir::create(&path).map_err(remedy)?, path, published: false })
    }

    /// Gives it its name, which must be free still, durably.
    fn publish(mut self, out: &Path) -> Result<(), Trouble> {
        let failed = |error: std::io::Error| {
            Failure::new(Exit::Conflict, "exists", format!("{} cannot be made: {error}", shown(out)))
        };
        self.dir.sync()?;
        let (Some(parent), Some(from), Some(to)) = (out.parent(), self.path.file_name(), out.file_name()) else {
            return Err(Failure::usage("--out names no folder").into());
        };
        let parent = File::open(parent).map_err(failed)?;
        let at = |name: &'_ OsStr| (parent.as_fd(), name.to_owned());
        let (from, to) = (at(from), at(to));
        sys::rename_new((from.0, &from.1), (to.0, &to.1)).map_err(|errno| failed(errno.into()))?;
        self.published = true;
        // Some file systems cannot sync a folder; there the rename is as durable as it gets.
        let _ = parent.sync_all();
        Ok(())
    }
}

impl Drop for Aside {
    fn drop(&mut self) {
        if self.published {
            return;
        }
        for name in self.dir.names().unwrap_or_default() {
            let _ = self.dir.remove(&name);
        }
        let _ = std::fs::remove_dir(&self.path);
    }
}

fn shown(path: &Path) -> String {
    escaped(&path.to_string_lossy(), 4096)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_not_published_leaves_nothing() {
        let scratch = tempfile::tempdir().unwrap();
        let out = scratch.path().join("bundle");
        let aside = Aside::create(&out).unwrap();
        aside.dir.write(KEY, b"secret").unwrap();
        drop(aside);
        assert_eq!(std::fs::read_dir(scratch.path()).unwrap().count(), 0);
    }

    #[test]
    fn a_folder_that_appeared_meanwhile_is_not_replaced() {
        let scratch = tempfile::tempdir().unwrap();
        let out = scratch.path().join("bundle");
        let aside = Aside::create(&out).unwrap();
        aside.dir.write(KEY, b"secret").unwrap();
        std::fs::create_dir(&out).unwrap();
        assert_eq!(aside.publish(&out).unwrap_err().exit(), Exit::Conflict);
        assert_eq!(std::fs::read_dir(scratch.path()).unwrap().count(), 1);
        assert_eq!(std::fs::read_dir(&out).unwrap().count(), 0);
    }
}
