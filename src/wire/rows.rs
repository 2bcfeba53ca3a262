//! What is known of a session: as its producer reports it, and as a list shows it.
//!
//! [`Facts`] can only be made by checking: what is inside has its limits and its alphabet.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Deserializer, Serialize};
use serde_json::value::RawValue;

use crate::ids::{PublicKey, SessionId, Signature};
use crate::limits::{
    COMMANDS_MAX, IN_FLIGHT_MAX, INFO_MAX_BYTES, JSON_DEPTH_MAX, LABELS_MAX_BYTES, NAME_MAX_BYTES, PATH_MAX_BYTES,
    RUNTIMES_MAX, RUNTIMES_MAX_BYTES, SESSION_MAX_BYTES, TITLE_MAX_BYTES,
};
use crate::wire::codes::{Code, Refusal};
use crate::wire::object;
use crate::wire::text::is_plain;

/// Which terminal a program has, as far as its environment tells. Observability: what else is reported is not kept.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Terminal {
    /// `/dev/pts/3`
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "object::some")]
    pub tty: Option<String>,
    /// `%5`
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "object::some")]
    pub tmux_pane: Option<String>,
    /// The tmux server that the pane is of.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "object::some")]
    pub tmux_socket: Option<String>,
    /// `ITERM_SESSION_ID`
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "object::some")]
    pub iterm_session: Option<String>,
    /// `TERM_SESSION_ID`
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "object::some")]
    pub term_session: Option<String>,
    /// `TERM_PROGRAM`
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "object::some")]
    pub program: Option<String>,
}

impl Terminal {
    /// Refuses what no line can show.
    pub fn check(&self) -> Result<(), Refusal> {
        let Self { tty, tmux_pane, tmux_socket, iterm_session, term_session, program } = self;
        let texts = [tty, tmux_pane, tmux_socket, iterm_session, term_session, program];
        texts.into_iter().flatten().try_for_each(|text| plain("terminal", text, TITLE_MAX_BYTES))
    }
}

/// A command that a session offers. What else is said of it is not kept.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CommandOffer {
    /// Its name.
    pub name: String,
    /// What it does.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "object::some")]
    pub description: Option<String>,
}

/// Parameters of `session.register`.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Register {
    /// The producer's choice.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "object::some")]
    pub session_id: Option<SessionId>,
    /// See [`Facts`].
    pub title: String,
    /// See [`Facts`].
    pub cwd: String,
    /// See [`Facts`].
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "object::some")]
    pub repo_root: Option<String>,
    /// See [`Facts`].
    pub pid: u32,
    /// See [`Facts`].
    pub started: u64,
    /// See [`Facts`].
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "object::some_object")]
    pub terminal: Option<Terminal>,
    /// See [`Facts`].
    #[serde(default, deserialize_with = "object::unique_map")]
    pub labels: BTreeMap<String, String>,
    /// See [`Facts`].
    #[serde(default)]
    pub runtimes: Vec<Box<RawValue>>,
    /// See [`Facts`].
    #[serde(deserialize_with = "object::objects")]
    pub commands: Vec<CommandOffer>,
    /// See [`Facts`].
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "object::some")]
    pub max_in_flight: Option<u32>,
    /// See [`Facts`].
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "object::some")]
    pub info: Option<Box<RawValue>>,
    /// What takes the session back.
    pub reconnect_key: PublicKey,
    /// That key's signature of this connection and the session.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "object::some")]
    pub lease_signature: Option<Signature>,
    /// Whether the answer is to be signed.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub receipt: bool,
}

/// Parameters of `session.update`.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Update {
    /// A new title.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "object::some")]
    pub title: Option<String>,
    /// New labels, all of them.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "object::some_unique_map")]
    pub labels: Option<BTreeMap<String, String>>,
    /// New commands, all of them.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "object::some_objects")]
    pub commands: Option<Vec<CommandOffer>>,
    /// New runtimes, all of them.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "object::some")]
    pub runtimes: Option<Vec<Box<RawValue>>>,
    /// New info.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "object::some")]
    pub info: Option<Box<RawValue>>,
    /// Whether the payload replaces the snapshot.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub snapshot: bool,
    /// Whether the answer is to be signed.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub receipt: bool,
}

impl Update {
    /// The names of what stands in it.
    pub fn changed(&self) -> Vec<&'static str> {
        let parts = [
            ("title", self.title.is_some()),
            ("labels", self.labels.is_some()),
            ("commands", self.commands.is_some()),
            ("runtimes", self.runtimes.is_some()),
            ("info", self.info.is_some()),
            ("snapshot", self.snapshot),
        ];
        parts.into_iter().filter(|(_, is_there)| *is_there).map(|(name, _)| name).collect()
    }
}

/// What is known of a session.
#[derive(Debug, Clone, Serialize)]
pub struct Facts {
    /// 1 to 256 bytes.
    pub title: String,
    /// Absolute.
    pub cwd: String,
    /// Absolute.
    pub repo_root: Option<String>,
    /// The program's process.
    pub pid: u32,
    /// When that process started, in ms since 1970: tells a recycled pid.
    pub started: u64,
    /// Where it shows.
    pub terminal: Option<Terminal>,
    /// At most 4 KiB together.
    pub labels: BTreeMap<String, String>,
    /// As reported.
    pub runtimes: Vec<Box<RawValue>>,
    /// Unique names.
    pub commands: Vec<CommandOffer>,
    /// Commands at the producer at once.
    pub max_in_flight: u32,
    /// As reported.
    pub info: Option<Box<RawValue>>,
}

impl Facts {
    /// Checks what a producer reports.
    pub fn new(register: Register) -> Result<Self, Refusal> {
        let facts = Self {
            title: register.title,
            cwd: register.cwd,
            repo_root: register.repo_root,
            pid: register.pid,
            started: register.started,
            terminal: register.terminal,
            labels: register.labels,
            runtimes: register.runtimes,
            commands: register.commands,
            max_in_flight: register.max_in_flight.unwrap_or(1),
            info: register.info,
        };
        facts.check()?;
        Ok(facts)
    }

    /// The facts with an update applied, or why it is refused; `self` stays as it is.
    pub fn updated(&self, update: Update) -> Result<Self, Refusal> {
        let mut facts = self.clone();
        facts.title = update.title.unwrap_or(facts.title);
        facts.labels = update.labels.unwrap_or(facts.labels);
        facts.commands = update.commands.unwrap_or(facts.commands);
        facts.runtimes = update.runtimes.unwrap_or(facts.runtimes);
        facts.info = update.info.or(facts.info);
        facts.check()?;
        Ok(facts)
    }

    /// What they take in memory, about.
    pub fn bytes(&self) -> usize {
        const ENTRY: usize = 64;
        let texts = self.title.len() + self.cwd.len() + self.repo_root.as_ref().map_or(0, String::len);
        let offer = |offer: &CommandOffer| ENTRY + offer.name.len() + offer.description.as_ref().map_or(0, String::len);
        let commands: usize = self.commands.iter().map(offer).sum();
        let runtimes: usize = self.runtimes.iter().map(|runtime| ENTRY + runtime.get().len()).sum();
        let labels = ENTRY * self.labels.len() + labels_bytes(&self.labels);
        4 * ENTRY + texts + labels + commands + runtimes + self.info.as_ref().map_or(0, |info| info.get().len())
    }

    /// Whether the session offers the command.
    pub fn offers(&self, command: &str) -> bool {
        self.commands.iter().any(|offer| offer.name == command)
    }

    fn check(&self) -> Result<(), Refusal> {
        plain("title", &self.title, TITLE_MAX_BYTES)?;
        if self.title.is_empty() {
            return Err(Refusal::invalid("title is empty"));
        }
        for (name, path) in [("cwd", Some(&self.cwd)), ("repo_root", self.repo_root.as_ref())] {
            let Some(path) = path else { continue };
            plain(name, path, PATH_MAX_BYTES)?;
            if !path.starts_with('/') {
                return Err(Refusal::invalid(format!("{name} is not an absolute path")));
            }
        }
        if self.pid == 0 || i32::try_from(self.pid).is_err() {
            return Err(Refusal::invalid("pid is not a process id"));
        }
        if let Some(terminal) = &self.terminal {
            terminal.check()?;
        }
        check_labels(&self.labels)?;
        check_commands(&self.commands)?;
        check_runtimes(&self.runtimes)?;
        if self.max_in_flight == 0 || self.max_in_flight > IN_FLIGHT_MAX {
            return Err(Refusal::invalid(format!("max_in_flight takes 1 to {IN_FLIGHT_MAX}")));
        }
        match &self.info {
            Some(info) if info.get().len() > INFO_MAX_BYTES => {
                return Err(Refusal::too_large("info", INFO_MAX_BYTES as u64));
            }
            Some(info) if !info.get().starts_with('{') => return Err(Refusal::invalid("info is not an object")),
            Some(info) => shallow("info", info)?,
            None => {}
        }
        // Each part has its own limit; all of them at once would not fit a header, and whoever lists gets one.
        let together = serde_json::to_vec(self).map_or(usize::MAX, |text| text.len());
        if together > SESSION_MAX_BYTES {
            return Err(Refusal::too_large("session", SESSION_MAX_BYTES as u64));
        }
        Ok(())
    }
}

/// Passed through unread, so nobody else bounds how deep it nests.
fn shallow(name: &str, text: &RawValue) -> Result<(), Refusal> {
    match serde_json::from_str::<serde_json::Value>(text.get()) {
        Ok(_) => Ok(()),
        Err(_) => {
            Err(Refusal::invalid(format!("{name} nests deeper than {JSON_DEPTH_MAX} or has a number out of range")))
        }
    }
}

/// Bytes of all labels together.
pub fn labels_bytes(labels: &BTreeMap<String, String>) -> usize {
    labels.iter().map(|(key, value)| key.len() + value.len()).sum()
}

/// Whether text is a name: `[A-Za-z0-9._-]{1,64}`, and `/` for label keys.
pub fn is_name(text: &str, slash: bool) -> bool {
    let allowed =
        |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'_' | b'-') || slash && byte == b'/';
    !text.is_empty() && text.len() <= NAME_MAX_BYTES && text.bytes().all(allowed)
}

fn plain(name: &'static str, text: &str, max: usize) -> Result<(), Refusal> {
    if text.len() > max {
        return Err(Refusal::too_large(name, max as u64));
    }
    if !is_plain(text) {
        return Err(Refusal::invalid(format!("{name} has a control character")));
    }
    Ok(())
}

fn check_labels(labels: &BTreeMap<String, String>) -> Result<(), Refusal> {
    if labels_bytes(labels) > LABELS_MAX_BYTES {
        return Err(Refusal::too_large("labels", LABELS_MAX_BYTES as u64));
    }
    for (key, value) in labels {
        if !is_name(key, true) {
            return Err(Refusal::invalid("a label's key takes 1 to 64 of A-Z a-z 0-9 . _ - /"));
        }
        plain("labels", value, LABELS_MAX_BYTES)?;
    }
    Ok(())
}

fn check_commands(commands: &[CommandOffer]) -> Result<(), Refusal> {
    if commands.len() > COMMANDS_MAX {
        return Err(Refusal::invalid(format!("commands holds at most {COMMANDS_MAX}")));
    }
    let mut names = BTreeSet::new();
    for command in commands {
        if !is_name(&command.name, false) {
            return Err(Refusal::invalid("a command's name takes 1 to 64 of A-Z a-z 0-9 . _ -"));
        }
        if !names.insert(&command.name) {
            return Err(Refusal::invalid("a command's name stands twice"));
        }
        plain("description", command.description.as_deref().unwrap_or_default(), TITLE_MAX_BYTES)?;
    }
    Ok(())
}

fn check_runtimes(runtimes: &[Box<RawValue>]) -> Result<(), Refusal> {
    #[derive(Deserialize)]
    struct Runtime {
        id: String,
    }
    if runtimes.len() > RUNTIMES_MAX {
        return Err(Refusal::invalid(format!("runtimes holds at most {RUNTIMES_MAX}")));
    }
    if runtimes.iter().map(|runtime| runtime.get().len()).sum::<usize>() > RUNTIMES_MAX_BYTES {
        return Err(Refusal::too_large("runtimes", RUNTIMES_MAX_BYTES as u64));
    }
    for runtime in runtimes {
        match object::read::<Runtime>(runtime.get().as_bytes()) {
            Ok(known) => {
                plain("runtimes", &known.id, TITLE_MAX_BYTES).map_err(|refusal| match refusal.code {
                    Code::TooLarge => refusal.message(format!("a runtime's id is larger than {TITLE_MAX_BYTES} bytes")),
                    _ => refusal,
                })?;
                shallow("a runtime", runtime)?;
            }
            Err(_) => return Err(Refusal::invalid("a runtime is not an object with an id")),
        }
    }
    Ok(())
}

/// Whether a producer was heard lately.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum State {
    /// Heard within 45 s.
    Live,
    /// Not; it will be removed.
    Stale,
}

/// As a text alone: serde reads `{"live":null}` as the same.
impl<'de> Deserialize<'de> for State {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        match &*Cow::<'de, str>::deserialize(from)? {
            "live" => Ok(Self::Live),
            "stale" => Ok(Self::Stale),
            _ => Err(serde::de::Error::custom("expected live or stale")),
        }
    }
}

/// A session in a list. The names are frozen from the first release.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Row {
    /// Its id.
    pub session_id: SessionId,
    /// What it is called.
    pub title: String,
    /// Where it works, absolute.
    pub cwd: String,
    /// The root of what it works on, absolute.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub repo_root: Option<String>,
    /// The program's process.
    pub pid: u32,
    /// When that process started, in ms since 1970.
    pub started: u64,
    /// Where it shows.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub terminal: Option<Terminal>,
    /// What it is known by.
    pub labels: BTreeMap<String, String>,
    /// What it takes, as far as the reader may send it.
    pub commands: Vec<CommandOffer>,
    /// Agents that it can run, as it reports them.
    pub runtimes: Vec<Box<RawValue>>,
    /// Commands that it takes at once.
    pub max_in_flight: u32,
    /// More of its own, as it reports it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub info: Option<Box<RawValue>>,
    /// When it registered, RFC 3339.
    pub registered: String,
    /// Whether it was heard lately.
    pub state: State,
    /// How long ago.
    pub last_seen_ms: u64,
    /// Commands queued or at the producer.
    pub pending: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn register() -> Register {
        let key = PublicKey([1; 32]);
        let text = format!(
            r#"{{"title":"t","cwd":"/x","pid":1,"started":1,"commands":[{{"name":"reload"}}],"reconnect_key":"{key}"}}"#
        );
        object::read(text.as_bytes()).unwrap()
    }

    #[test]
    fn what_a_producer_reports_is_checked_field_by_field() {
        assert!(Facts::new(register()).is_ok());
        let refused = |change: fn(&mut Register)| {
            let mut changed = register();
            change(&mut changed);
            assert!(Facts::new(changed).is_err());
        };
        refused(|register| register.title.clear());
        refused(|register| register.title = "a\u{1b}b".into());
        refused(|register| register.title = "x".repeat(257));
        refused(|register| register.cwd = "x".into());
        refused(|register| register.cwd = "/a\nb".into());
        refused(|register| register.pid = 0);
        refused(|register| register.max_in_flight = Some(65));
        refused(|register| register.labels = [("a b".into(), String::new())].into());
        refused(|register| register.labels = [("a".into(), "x".repeat(4_096))].into());
        refused(|register| register.commands.push(CommandOffer { name: "reload".into(), description: None }));
        refused(|register| register.commands.push(CommandOffer { name: "a b".into(), description: None }));
        refused(|register| register.runtimes.push(RawValue::from_string("{}".into()).unwrap()));
        refused(|register| register.info = Some(RawValue::from_string("[]".into()).unwrap()));
    }

    #[test]
    fn a_long_id_of_a_runtime_is_told_from_too_many_bytes_of_runtimes() {
        let told = |runtime: String| {
            let runtimes = vec![RawValue::from_string(runtime).unwrap()];
            let refusal = Facts::new(Register { runtimes, ..register() }).unwrap_err();
            (refusal.resource.unwrap(), refusal.message.unwrap())
        };
        let (resource, message) = told(format!(r#"{{"id":"{}"}}"#, "x".repeat(257)));
        assert_eq!((resource, &*message), ("runtimes", "a runtime's id is larger than 256 bytes"));
        let (resource, message) = told(format!(r#"{{"id":"x","more":"{}"}}"#, "x".repeat(16_384)));
        assert_eq!((resource, &*message), ("runtimes", "runtimes is larger than 16384 bytes"));
    }

    #[test]
    fn a_refused_update_leaves_the_facts_as_they_were() {
        let facts = Facts::new(register()).unwrap();
        assert!(facts.updated(Update { title: Some(String::new()), ..Update::default() }).is_err());
        let updated = facts.updated(Update { title: Some("new".into()), ..Update::default() }).unwrap();
        assert_eq!((facts.title.as_str(), updated.title.as_str()), ("t", "new"));
        assert!(updated.offers("reload"));
    }
}
