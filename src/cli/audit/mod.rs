//! `usher audit`: what happened to keys, connections and sessions. It reads the daemon's files, and needs no daemon.

mod show;
mod verify;

use crate::audit::Files;
use crate::error::{Exit, Failure};
use crate::store::Dir;

use super::args::{AuditArgs, Global};
use super::trouble::Trouble;
use super::{Outcome, ask};

/// Does what was said.
pub fn main(global: &Global, args: &AuditArgs) -> Outcome {
    if args.verify {
        return verify::main(global);
    }
    let dir = folder(&ask::target(global)?)?;
    show::main(global, args, &dir)
}

/// The daemon's folder.
fn folder(target: &crate::client::Target) -> Result<Dir, Trouble> {
    let paths = target.paths().ok_or_else(|| {
        let message = "the audit lies in the daemon's folder, which a bundle does not know";
        Failure::usage(message).hint("leave --credential and USHER_CREDENTIAL out")
    })?;
    Dir::open(paths.root()).map_err(|error| if error.is_missing() { none(&error.to_string()) } else { error.into() })
}

/// Both files; one of them is there.
fn files(dir: &Dir) -> Result<Files, Trouble> {
    let files = Files::open(dir)?;
    if files.old.is_none() && files.current.is_none() {
        return Err(none_in(dir));
    }
    Ok(files)
}

fn none_in(dir: &Dir) -> Trouble {
    none(&format!("there is none in {}", dir.path().display()))
}

fn none(why: &str) -> Trouble {
    let failure = Failure::new(Exit::NotFound, "not-found", format!("no audit: {why}"));
    failure.hint("the first daemon that runs there begins one").into()
}
