//! A command as its handler sees it, and what a session offers.

use std::sync::Arc;
use std::time::{Duration, Instant};

use serde::Deserialize;
use serde_json::value::RawValue;

use crate::wire::message;
use crate::wire::object;

use super::cancel::{Cancel, Why};

/// Who sent a command.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
pub struct Asker {
    /// The id of its credential's record.
    #[serde(default)]
    pub credential: String,
    /// What its credential is called, for people.
    #[serde(default)]
    pub label: String,
}

/// A command that a handler is to do.
pub struct Command {
    pub(super) name: String,
    pub(super) input: Option<Vec<u8>>,
    pub(super) asker: Asker,
    pub(super) key: Option<String>,
    pub(super) deadline: Option<Instant>,
    pub(super) result_max: usize,
    pub(super) cancel: Arc<Cancel>,
}

/// Of `command`: read leniently, a newer daemon may say more.
#[derive(Deserialize)]
struct Params {
    command: String,
    #[serde(default)]
    deadline_ms: Option<u64>,
    #[serde(default, deserialize_with = "object::object")]
    caller: Asker,
    #[serde(default)]
    key: Option<String>,
}

impl Command {
    /// From a request of the daemon. None: the parameters are not as documented.
    pub(super) fn read(params: Option<&RawValue>, input: Option<Vec<u8>>, result_max: usize) -> Option<Self> {
        let Params { command, deadline_ms, caller, key } = message::params(params).ok()?;
        // Whole milliseconds were told: with one more this deadline is never before the daemon's, which tells the caller.
        let deadline =
            deadline_ms.and_then(|ms| Instant::now().checked_add(Duration::from_millis(ms.saturating_add(1))));
        Some(Self { name: command, input, asker: caller, key, deadline, result_max, cancel: Arc::default() })
    }

    /// Its name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// What it was sent with: meant to be one JSON text, checked by nobody. `None` reads as `null`.
    #[must_use]
    pub fn input(&self) -> Option<&[u8]> {
        self.input.as_deref()
    }

    /// Who sent it.
    #[must_use]
    pub fn caller(&self) -> &Asker {
        &self.asker
    }

    /// What makes a repeat of it known, if the caller gave that. The library knows repeats by itself.
    #[must_use]
    pub fn key(&self) -> Option<&str> {
        self.key.as_deref()
    }

    /// When its caller stops waiting.
    #[must_use]
    pub fn deadline(&self) -> Option<Instant> {
        self.deadline
    }

    /// Bytes of the largest result that the daemon takes.
    #[must_use]
    pub fn result_max(&self) -> usize {
        self.result_max
    }

    /// Why nobody waits for the result any more, if so. Whoever does something long looks from time to time.
    #[must_use]
    pub fn cancelled(&self) -> Option<Why> {
        let late = self.deadline.filter(|deadline| *deadline <= Instant::now());
        self.cancel.why().max(late.map(|_| Why::Deadline))
    }

    /// Waits until nobody waits for the result any more, at most so long.
    pub fn wait_cancelled(&self, patience: Duration) -> Option<Why> {
        let until = Instant::now().checked_add(patience);
        self.cancel.wait_until(self.deadline.into_iter().chain(until).min());
        self.cancelled()
    }

    /// Calls `wake` when [`cancelled`](Self::cancelled) has something new to say but that the deadline passed, at once if
    /// it has. It is called by a thread of the library and must not wait.
    pub fn on_cancel(&self, wake: impl FnMut() + Send + 'static) {
        self.cancel.on_change(Box::new(wake));
    }
}

type Handler = Arc<dyn Fn(&Command) -> Result<Vec<u8>, String> + Send + Sync>;

/// What does a command.
#[derive(Clone)]
pub(super) struct Doer {
    pub handler: Handler,
    pub is_quick: bool,
}

/// A command that a session offers, and what does it.
#[derive(Clone)]
pub struct Offer {
    pub(super) name: String,
    pub(super) description: Option<String>,
    pub(super) doer: Doer,
}

impl Offer {
    /// The handler returns one JSON text, or for the caller why not. It runs on a thread of the library, at once with
    /// others if the session takes several. One that panics fails its command and nothing else.
    pub fn new(
        name: impl Into<String>,
        handler: impl Fn(&Command) -> Result<Vec<u8>, String> + Send + Sync + 'static,
    ) -> Self {
        let doer = Doer { handler: Arc::new(handler), is_quick: false };
        Self { name: name.into(), description: None, doer }
    }

    /// For people.
    #[must_use]
    pub fn description(self, text: impl Into<String>) -> Self {
        Self { description: Some(text.into()), ..self }
    }

    /// For a handler that never waits: it is called by the thread that reads from the daemon, which costs no change of
    /// threads and needs no place among the commands that run. Meanwhile the session hears nothing.
    #[must_use]
    pub fn quick(mut self) -> Self {
        self.doer.is_quick = true;
        self
    }
}
