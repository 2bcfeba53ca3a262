//! What was said on the command line.
//!
//! Owns: words, options and their shapes. It must not touch the system: no file, variable or clock is looked at here, so
//! that every line of it can be tested by its words alone.

mod keys;
mod parse;
mod run;
mod value;

use std::ffi::{OsStr, OsString};
use std::path::PathBuf;
use std::time::Duration;

pub use keys::{Grantee, KeysArgs, NewKey};
pub use parse::parse;

use super::attach::AttachArgs;
use super::help::Topic;
use super::run::RunArgs;
use crate::wire::approvals::Decision;

/// What is to be done.
#[derive(Debug, PartialEq)]
pub enum Said {
    /// Explain.
    Help(Topic),
    /// Name the version.
    Version,
    /// Do it.
    Do(Global, Box<Verb>),
}

/// Options of every verb.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Global {
    /// One document in place of a table.
    pub json: bool,
    /// A bundle in place of the default keys.
    pub credential: Option<PathBuf>,
    /// A person means it, also inside a session.
    pub operator: bool,
}

/// The verb and its own options.
#[derive(Debug, PartialEq)]
pub enum Verb {
    List(SelectorArgs),
    Get(SelectorArgs),
    Send(SendArgs),
    Wait(WaitArgs),
    Events(EventsArgs),
    Ask(AskArgs),
    Approvals(ApprovalsArgs),
    /// `approve` and `reject`.
    Decide(Decision, DecideArgs),
    Status,
    Health,
    Paths(Option<String>),
    Stop(StopArgs),
    Drain(DrainArgs),
    Restart(RestartArgs),
    Rpc(RpcArgs),
    Keys(KeysArgs),
    Verify(VerifyArgs),
    Run(RunArgs),
    Attach(AttachArgs),
    Audit(AuditArgs),
}

/// Which session, as it was said.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SelectorArgs {
    pub session: Option<String>,
    pub cwd: Option<PathBuf>,
    pub repo: Option<PathBuf>,
    pub labels: Vec<(String, String)>,
    pub title: Option<String>,
}

/// Where an input comes from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Input {
    /// JSON, as it was said.
    Json(String),
    /// A text that becomes a JSON string.
    Text(String),
    /// JSON from standard input.
    Stdin,
    /// JSON from a file.
    File(PathBuf),
}

/// `usher send`
#[derive(Debug, PartialEq)]
pub struct SendArgs {
    pub selector: SelectorArgs,
    pub command: String,
    pub input: Option<Input>,
    pub deadline: Option<Duration>,
    /// Under which a repeat runs nothing again.
    pub key: Option<String>,
}

/// `usher wait`
#[derive(Debug, PartialEq)]
pub struct WaitArgs {
    pub selector: SelectorArgs,
    pub timeout: Duration,
}

/// `usher ask`
#[derive(Debug, PartialEq)]
pub struct AskArgs {
    pub summary: String,
    pub detail: Option<Detail>,
    /// How long the question stands.
    pub ttl: Option<Duration>,
    pub receipt: Option<PathBuf>,
}

/// What to read before deciding.
#[derive(Debug, PartialEq, Eq)]
pub enum Detail {
    /// As it was said.
    Text(String),
    /// From a file, or standard input for `-`.
    File(PathBuf),
}

/// `usher approvals`
#[derive(Debug, Default, PartialEq, Eq)]
pub struct ApprovalsArgs {
    /// One in full: its id or the beginning of it.
    pub id: Option<String>,
    pub follow: bool,
}

/// `usher approve` and `usher reject`
#[derive(Debug, PartialEq)]
pub struct DecideArgs {
    /// Ids, or beginnings of ids that mean one each.
    pub ids: Vec<String>,
    pub reason: Option<String>,
    pub receipt: Option<PathBuf>,
}

/// `usher events`
#[derive(Debug, Default, PartialEq)]
pub struct EventsArgs {
    pub follow: bool,
    /// A cursor, or `start`.
    pub since: Option<String>,
    pub kinds: Vec<String>,
    pub selector: SelectorArgs,
}

/// `usher stop`
#[derive(Debug, Default, PartialEq)]
pub struct StopArgs {
    pub force: bool,
    pub receipt: Option<PathBuf>,
}

/// `usher drain`
#[derive(Debug, PartialEq)]
pub struct DrainArgs {
    /// Until the daemon is gone, at most so long.
    pub wait: Option<Duration>,
    pub receipt: Option<PathBuf>,
}

/// `usher restart`
#[derive(Debug, PartialEq)]
pub struct RestartArgs {
    /// How long pending commands may take, and how long sessions to come back.
    pub timeout: Duration,
}

/// `usher rpc`
#[derive(Debug, PartialEq)]
pub struct RpcArgs {
    pub method: String,
    pub params: Option<Input>,
    pub payload: Option<Input>,
    pub role: Option<crate::wire::lines::Role>,
}

/// A public key, as it was said.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum KeyArg {
    /// The key itself.
    Text(String),
    /// A file that holds it.
    File(PathBuf),
}

/// `usher verify`
#[derive(Debug, PartialEq)]
pub struct VerifyArgs {
    pub file: PathBuf,
    pub daemon_key: Option<KeyArg>,
}

/// `usher audit`
#[derive(Debug, Default, PartialEq)]
pub struct AuditArgs {
    /// Go on with what comes.
    pub follow: bool,
    /// From where on.
    pub since: Option<Since>,
    /// Check it in place of showing it.
    pub verify: bool,
}

/// Where the shown lines begin.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Since {
    /// With this number.
    Seq(u64),
    /// At this instant.
    Time(jiff::Timestamp),
}

/// Whether errors are to be told as JSON; asked before the words are understood, since a mistake in them is told too.
pub fn wants_json(words: &[OsString]) -> bool {
    let mut own = words.iter().take_while(|word| *word != OsStr::new("--"));
    let has_program = words.first().is_some_and(|verb| verb == OsStr::new("run"));
    if has_program && !words.iter().any(|word| word == "--") {
        // What follows the program is the program's, and the first word that is no option may be it.
        return own.skip(1).take_while(|word| word.as_encoded_bytes().starts_with(b"-")).any(|word| word == "--json");
    }
    own.any(|word| word == "--json")
}
