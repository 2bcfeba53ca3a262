//! What a run is asked to be: the command line, checked before anything starts.
//!
//! Owns: which arguments are mistakes. It touches no system.

use std::collections::BTreeSet;
use std::ffi::OsString;

use crate::cli::session::Named;
use crate::cli::text::clean;
use crate::error::Failure;
use crate::limits::COMMANDS_MAX;
use crate::wire::rows::is_name;

use super::builtin;

/// `usher run [--title T] [--label K=V]… [--on NAME=CMD]… [--max-in-flight N] -- CMD…`
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RunArgs {
    /// Title, labels, commands at once.
    pub named: Named,
    /// Commands of the session: name, and text for `sh -c`.
    pub on: Vec<(String, String)>,
    /// The child.
    pub command: Vec<OsString>,
}

impl RunArgs {
    /// Refuses what the daemon would refuse later, when nobody would see it.
    pub fn check(&self) -> Result<(), Failure> {
        if self.command.is_empty() {
            return Err(Failure::usage("run needs a command").hint("usher run -- CMD"));
        }
        self.named.check()?;
        if self.on.len() + builtin::NAMES.len() > COMMANDS_MAX {
            let most = COMMANDS_MAX - builtin::NAMES.len();
            return Err(Failure::usage(format!("--on can be given {most} times")));
        }
        let mut names = BTreeSet::new();
        for (name, shell) in &self.on {
            if !is_name(name, false) {
                let name = clean(name);
                return Err(Failure::usage(format!("--on {name}: a name takes 1 to 64 of A-Z a-z 0-9 . _ -")));
            }
            if builtin::NAMES.iter().any(|(builtin, _)| builtin == name) {
                return Err(Failure::usage(format!("--on {name}: every run has a command of that name")));
            }
            if !names.insert(name) {
                return Err(Failure::usage(format!("--on {name} is given twice")));
            }
            if shell.contains('\0') {
                return Err(Failure::usage(format!("--on {name}: a command has no NUL")));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with(change: impl FnOnce(&mut RunArgs)) -> Result<(), Failure> {
        let mut args = RunArgs { named: Named::default(), on: vec![], command: vec!["true".into()] };
        change(&mut args);
        args.check()
    }

    #[test]
    fn what_the_daemon_would_refuse_is_refused_before_the_child_starts() {
        let on = |name: &str| (name.to_owned(), "cat".to_owned());
        assert_eq!(with(|_| ()), Ok(()));
        assert_eq!(with(|args| args.on = vec![on("reload"), on("a.b_c-D9")]), Ok(()));
        for wrong in [
            with(|args| args.command.clear()),
            with(|args| args.named.max_in_flight = Some(0)),
            with(|args| args.on = vec![on("a b")]),
            with(|args| args.on = vec![on("")]),
            with(|args| args.on = vec![on("status")]),
            with(|args| args.on = vec![on("signal")]),
            with(|args| args.on = vec![on("a"), on("a")]),
            with(|args| args.on = (0..63).map(|number| on(&format!("c{number}"))).collect()),
        ] {
            assert_eq!(wrong.unwrap_err().exit, crate::error::Exit::Usage);
        }
    }
}
