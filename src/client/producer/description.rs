//! What a session tells about itself.
//!
//! Owns: the facts, the commands with their handlers, and refusing what the daemon would refuse later, when nobody sees it.

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use crate::ids::SessionId;
use crate::limits::Limits;
use crate::sys;
use crate::wire::codes::Refusal;
use crate::wire::json;
use crate::wire::rows::{CommandOffer, Facts, Register, Terminal};

use super::command::Offer;
use super::lease::Claim;

/// What is told cannot be told: why.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Invalid(pub(super) String);

impl fmt::Display for Invalid {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(&self.0)
    }
}

impl std::error::Error for Invalid {}

impl From<Refusal> for Invalid {
    fn from(refusal: Refusal) -> Self {
        Self(refusal.message.unwrap_or_else(|| refusal.code.sentence().to_owned()))
    }
}

/// Whether a producer starts a daemon where there is none. One that `usher stop` has ended is never started again.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum StartDaemon {
    /// The `usherd` beside this program, else the one that this library was built to find.
    #[default]
    Installed,
    /// This program.
    Program(PathBuf),
    /// None: somebody else does.
    Never,
}

/// What a session tells about itself: what it is called, where and what it is, and the commands that it takes. Bounds are
/// those of docs/protocol.md, `session.register`.
#[derive(Clone)]
pub struct Description {
    pub(super) title: String,
    pub(super) labels: BTreeMap<String, String>,
    pub(super) offers: Vec<Offer>,
    pub(super) snapshot: Option<Vec<u8>>,
    pub(super) max_in_flight: u32,
    pub(super) session: SessionId,
    pub(super) start: StartDaemon,
    cwd: Result<String, PathBuf>,
    repo_root: Option<Result<String, PathBuf>>,
    process: Option<(u32, u64)>,
    terminal: Option<Terminal>,
}

impl Description {
    /// This process in its working directory, with no commands yet and one at a time.
    pub fn new(title: impl Into<String>) -> Self {
        let cwd = std::env::current_dir().unwrap_or_else(|_| PathBuf::from("/"));
        Self {
            title: title.into(),
            labels: BTreeMap::new(),
            offers: Vec::new(),
            snapshot: None,
            max_in_flight: 1,
            session: SessionId::random(),
            start: StartDaemon::Installed,
            cwd: utf8(&cwd),
            repo_root: None,
            process: None,
            terminal: None,
        }
    }

    /// Where it works, absolute.
    #[must_use]
    pub fn cwd(self, path: impl AsRef<Path>) -> Self {
        Self { cwd: utf8(path.as_ref()), ..self }
    }

    /// The root of what it works on, absolute: `--repo` finds the session by it.
    #[must_use]
    pub fn repo_root(self, path: impl AsRef<Path>) -> Self {
        Self { repo_root: Some(utf8(path.as_ref())), ..self }
    }

    /// One more label.
    #[must_use]
    pub fn label(mut self, key: impl Into<String>, value: impl Into<String>) -> Self {
        self.labels.insert(key.into(), value.into());
        self
    }

    /// Another process than this one, and when it started, in ms since 1970.
    #[must_use]
    pub fn process(self, pid: u32, started: u64) -> Self {
        Self { process: Some((pid, started)), ..self }
    }

    /// Where it shows.
    #[must_use]
    pub fn terminal(self, terminal: Terminal) -> Self {
        Self { terminal: Some(terminal), ..self }
    }

    /// One more command.
    #[must_use]
    pub fn offer(mut self, offer: Offer) -> Self {
        self.offers.push(offer);
        self
    }

    /// So many commands at once, 1 to 64.
    #[must_use]
    pub fn max_in_flight(self, count: u32) -> Self {
        Self { max_in_flight: count, ..self }
    }

    /// The session's state at the beginning: one JSON text.
    #[must_use]
    pub fn snapshot(self, json: Vec<u8>) -> Self {
        Self { snapshot: Some(json), ..self }
    }

    /// An id of one's own choice: 16 random bytes that are nobody else's.
    #[must_use]
    pub fn session_id(self, session: SessionId) -> Self {
        Self { session, ..self }
    }

    /// Whether a daemon is started where there is none.
    #[must_use]
    pub fn start_daemon(self, start: StartDaemon) -> Self {
        Self { start, ..self }
    }

    /// Refuses what the daemon would refuse.
    pub(super) fn check(&self) -> Result<(), Invalid> {
        for path in [Some(&self.cwd), self.repo_root.as_ref()].into_iter().flatten() {
            if let Err(path) = path {
                return Err(Invalid(format!("{path:?} is not UTF-8")));
            }
        }
        if let Some(snapshot) = &self.snapshot {
            check_snapshot(snapshot)?;
        }
        Facts::new(self.register(Claim::NONE))?;
        Ok(())
    }

    /// The parameters of `session.register`.
    pub(super) fn register(&self, claim: Claim) -> Register {
        let Claim { session_id, reconnect_key, lease_signature } = claim;
        let (pid, started) = self.process.unwrap_or_else(|| {
            let pid = std::process::id();
            (pid, sys::process_started(pid).unwrap_or_else(now_ms))
        });
        Register {
            session_id,
            title: self.title.clone(),
            cwd: self.cwd.clone().unwrap_or_default(),
            repo_root: self.repo_root.clone().and_then(Result::ok),
            pid,
            started,
            terminal: self.terminal.clone(),
            labels: self.labels.clone(),
            runtimes: Vec::new(),
            commands: commands(&self.offers),
            max_in_flight: Some(self.max_in_flight),
            info: None,
            reconnect_key,
            lease_signature,
            receipt: false,
        }
    }

    /// The command of this name.
    pub(super) fn find(&self, name: &str) -> Option<&Offer> {
        self.offers.iter().find(|offer| offer.name == name)
    }
}

/// What of a session changes: what is not named stays, what is replaces all of the old.
#[derive(Clone, Default)]
pub struct Update {
    pub(super) title: Option<String>,
    pub(super) labels: Option<BTreeMap<String, String>>,
    pub(super) offers: Option<Vec<Offer>>,
}

impl Update {
    /// Nothing.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Another title.
    #[must_use]
    pub fn title(self, title: impl Into<String>) -> Self {
        Self { title: Some(title.into()), ..self }
    }

    /// Other labels, all of them.
    #[must_use]
    pub fn labels(self, labels: BTreeMap<String, String>) -> Self {
        Self { labels: Some(labels), ..self }
    }

    /// Other commands, all of them. What runs of the old ones goes on.
    #[must_use]
    pub fn offers(self, offers: Vec<Offer>) -> Self {
        Self { offers: Some(offers), ..self }
    }
}

/// As the daemon is told of them.
pub(super) fn commands(offers: &[Offer]) -> Vec<CommandOffer> {
    let command = |offer: &Offer| CommandOffer { name: offer.name.clone(), description: offer.description.clone() };
    offers.iter().map(command).collect()
}

pub(super) fn check_snapshot(snapshot: &[u8]) -> Result<(), Invalid> {
    let most = Limits::default().snapshot_bytes;
    if snapshot.len() as u64 > most {
        return Err(Refusal::too_large("snapshot", most).into());
    }
    json::check(snapshot).map(drop).map_err(|why| Invalid(format!("the snapshot is not one JSON text: {why}")))
}

fn utf8(path: &Path) -> Result<String, PathBuf> {
    path.to_str().map(str::to_owned).ok_or_else(|| path.to_owned())
}

fn now_ms() -> u64 {
    let since = SystemTime::UNIX_EPOCH.elapsed().unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn offer(name: &str) -> Offer {
        Offer::new(name, |_| Ok(b"null".to_vec()))
    }

    #[test]
    fn what_the_daemon_would_refuse_is_refused_here() {
        let board = || Description::new("board").cwd("/").offer(offer("reload"));
        assert_eq!(board().snapshot(b"{}".to_vec()).check(), Ok(()));
        for wrong in [
            Description::new(""),
            Description::new("a\u{1b}b"),
            board().cwd("relative"),
            board().label("a b", "x"),
            board().offer(offer("reload")),
            board().offer(offer("no spaces")),
            board().max_in_flight(0),
            board().max_in_flight(65),
            board().process(0, 0),
            board().snapshot(Vec::new()),
            board().snapshot(b"{} {}".to_vec()),
            board().snapshot(vec![b' '; 5 << 20]),
        ] {
            assert!(wrong.check().is_err(), "{:?}", wrong.register(Claim::NONE));
        }
    }
}
