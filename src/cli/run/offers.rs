//! The commands of a run's session, and what does each: a shell, or this program itself.
//!
//! Owns: what joins the library's commands to [`handler`] and [`builtin`].

use std::sync::Arc;

use crate::cli::text::{clean, head};
use crate::client::{Command, Offer};
use crate::limits::TITLE_MAX_BYTES;

use super::bells::{self, Bells};
use super::builtin;
use super::child::Child;
use super::handler::{self, Task};
use super::report::Report;

/// Those of the command line first, as lists show them.
pub fn all(report: &Arc<Report>, child: &Arc<Child>, bells: &Bells) -> Vec<Offer> {
    let shells = report.shells.iter().map(|(name, shell)| {
        let (report, bells, text) = (Arc::clone(report), bells.clone(), shell.clone());
        described(Offer::new(name, move |command| run(command, &text, &report, &bells)), shell)
    });
    let builtin = builtin::NAMES.iter().map(|(name, what)| {
        let (report, child, bells) = (Arc::clone(report), Arc::clone(child), bells.clone());
        let answer = move |command: &Command| {
            builtin::answer(command.name(), command.input(), &report, &child, bells.count())
                .unwrap_or_else(|| Err("this session has no such command".to_owned()))
                .map(String::into_bytes)
        };
        described(Offer::new(*name, answer).quick(), what)
    });
    shells.chain(builtin).collect()
}

fn described(offer: Offer, what: &str) -> Offer {
    let text = clean(what);
    let text = head(text.trim(), TITLE_MAX_BYTES);
    if text.is_empty() { offer } else { offer.description(text) }
}

fn run(command: &Command, shell: &str, report: &Report, bells: &Bells) -> Result<Vec<u8>, String> {
    let place = bells.place().map_err(|error| format!("no handler can be started now: {error}"))?;
    let bell = Arc::clone(&place.bell);
    command.on_cancel(move || bells::ring(&bell));
    let task = Task {
        name: command.name(),
        shell,
        input: command.input().unwrap_or(b"null"),
        deadline: command.deadline(),
        result_max: command.result_max(),
        session: report.session,
    };
    handler::run(&task, &place.ear, &|| command.cancelled())
}
