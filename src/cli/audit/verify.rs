//! Whether the audit is unbroken, and whether it ends where it has to.
//!
//! The head is asked for first and the files are read afterwards: what the daemon writes meanwhile lies behind it. Where it
//! writes so much that the head is rotated away, both are looked at again.

use std::fmt::Write as _;
use std::process::ExitCode;
use std::thread::sleep;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::audit::check::{self, Bound, Broken, Source, Verified, Why};
use crate::audit::{self, Files, Head, Reading, head};
use crate::client::Target;
use crate::error::{Exit, Failure};
use crate::store::{Dir, StoreError};
use crate::wire::lines::Role;
use crate::wire::methods::Method;

use super::super::args::Global;
use super::super::ask::{self, Asker, Missed, Nothing};
use super::super::trouble::Trouble;
use super::super::{Outcome, out};
use super::{folder, none_in};

/// Looks at files that a daemon may just be writing.
const LOOKS: usize = 20;
const PAUSE: Duration = Duration::from_millis(50);

/// As the daemon tells it; read leniently.
#[derive(Deserialize)]
struct Told {
    #[serde(flatten)]
    head: Head,
    lost: u64,
    available: bool,
}

/// Who knows where the audit ends.
enum Against {
    Daemon(Told),
    Stop(Head),
    Nothing,
}

#[derive(Serialize)]
struct Document<'a> {
    verified: bool,
    first: u64,
    last: u64,
    against: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    head: Option<Head>,
    #[serde(skip_serializing_if = "Option::is_none")]
    available: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    lost: Option<u64>,
    notes: &'a [check::Note],
}

/// Says what was verified and against what; exits 1 and names the first line that does not verify.
pub fn main(global: &Global) -> Outcome {
    ask::operator_is_meant(global)?;
    let target = ask::target(global)?;
    let dir = folder(&target)?;
    let (against, verified) = checked(&target, &dir)?;
    if global.json {
        out::json(&document(&against, &verified))?;
    } else {
        out::text(&human(&against, &verified))?;
    }
    Ok(ExitCode::SUCCESS)
}

fn against(target: &Target, dir: &Dir) -> Result<Against, Trouble> {
    match Asker::connect_as(target, Role::Operator) {
        Ok(mut asker) => {
            let reply = asker.ask(Method::AuditHead, &Nothing {})?;
            let told: Told = ask::read(&reply.result, Method::AuditHead.name())?;
            return Ok(if told.head.seq > 0 { Against::Daemon(told) } else { Against::Nothing });
        }
        Err(Missed::NotRunning) => {}
        Err(Missed::Trouble(trouble)) => return Err(trouble),
    }
    if dir.identity(head::FILE)?.is_none() {
        return Ok(Against::Nothing);
    }
    let recorded = head::read(dir, target.daemon_key()?);
    Ok(recorded.map_err(|error| unverified(&error.to_string()))?.map_or(Against::Nothing, Against::Stop))
}

fn checked(target: &Target, dir: &Dir) -> Result<(Against, Verified), Trouble> {
    let mut looks = 1;
    loop {
        let against = against(target, dir)?;
        let bound = match &against {
            Against::Daemon(Told { head, .. }) => Bound::Reaches(*head),
            Against::Stop(head) => Bound::Ends(*head),
            Against::Nothing => Bound::Unknown,
        };
        let Files { old, current } = Files::open(dir).map_err(unread)?;
        let (old, current) = (bytes(old)?, bytes(current)?);
        if bound == Bound::Unknown && old.is_none() && current.is_none() {
            return Err(none_in(dir));
        }
        let old = old.as_deref().map(|bytes| Source { name: audit::OLD, bytes });
        let current = current.as_deref().map(|bytes| Source { name: audit::FILE, bytes });
        match check::check(old, current, bound) {
            Ok(verified) => return Ok((against, verified)),
            Err(Broken { why: Why::Unfinished | Why::BeginsBehind { .. }, .. })
                if looks < LOOKS && matches!(against, Against::Daemon(_)) =>
            {
                looks += 1;
                sleep(PAUSE);
            }
            Err(broken) => return Err(unverified(&broken.to_string()).into()),
        }
    }
}

/// All of a file that is there.
fn bytes(file: Option<Reading>) -> Result<Option<Vec<u8>>, Failure> {
    file.map(|mut file| file.more()).transpose().map_err(unread)
}

/// What is there and cannot be read does not verify.
fn unread(error: StoreError) -> Failure {
    unverified(&error.to_string())
}

fn unverified(why: &str) -> Failure {
    Failure::new(Exit::Negative, "not-verified", format!("the audit does not verify: {why}"))
}

fn document<'a>(against: &Against, verified: &'a Verified) -> Document<'a> {
    let (word, head, told) = match against {
        Against::Daemon(told) => ("daemon", Some(told.head), Some(told)),
        Against::Stop(head) => ("stop", Some(*head), None),
        Against::Nothing => ("nothing", None, None),
    };
    Document {
        verified: true,
        first: verified.first,
        last: verified.end.seq,
        against: word,
        head,
        available: told.map(|told| told.available),
        lost: told.map(|told| told.lost),
        notes: &verified.notes,
    }
}

fn human(against: &Against, verified: &Verified) -> String {
    let mut text = format!("verified: lines seq {} to {} are unbroken\n", verified.first, verified.end.seq);
    match against {
        Against::Daemon(Told { head, lost, available }) => {
            let _ = writeln!(text, "checked against the running daemon, whose last line is seq {}", head.seq);
            if !available {
                let _ = writeln!(text, "the daemon cannot write it now: {lost} facts have no line (its log says why)");
            }
        }
        Against::Stop(head) => {
            let _ = writeln!(text, "checked against the head of the last clean stop, line seq {}", head.seq);
        }
        Against::Nothing => {
            text.push_str("no head is known: the tail cannot be proved, lines may be missing behind it\n")
        }
    }
    for note in &verified.notes {
        let what = match note.fact.as_str() {
            "torn" => "a write was cut off before it",
            "lost" => "facts before it have no line: the queue was full or the disk refused",
            _ => "facts of a kind have no line: there were too many",
        };
        let _ = writeln!(text, "line seq {}: {what}", note.seq);
    }
    text
}
