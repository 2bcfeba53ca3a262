//! What somebody wants to hear, and from where on.

use serde::Serialize;

use crate::wire::selector::Selector;

/// What to follow: everything from now on, unless more is said.
#[derive(Debug, Clone, Default)]
#[must_use]
pub struct Filter {
    pub(super) since: Option<String>,
    kinds: Option<Vec<String>>,
    selector: Option<Selector>,
    task_id: Option<String>,
    is_bounded: bool,
    pub(super) is_operator: bool,
}

/// Parameters of `events.subscribe`.
#[derive(Serialize)]
pub(super) struct Params<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    since: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    kinds: Option<&'a [String]>,
    #[serde(skip_serializing_if = "Option::is_none")]
    selector: Option<&'a Selector>,
    #[serde(skip_serializing_if = "Option::is_none")]
    task_id: Option<&'a str>,
    follow: bool,
}

impl Filter {
    /// Everything, from now on.
    pub fn new() -> Self {
        Self::default()
    }

    /// From behind a cursor on; what is not kept any more is told as a gap (`lagged`).
    pub fn since(mut self, cursor: impl Into<String>) -> Self {
        self.since = Some(cursor.into());
        self
    }

    /// From the first event on that is kept.
    pub fn from_start(self) -> Self {
        self.since("start")
    }

    /// Of this kind, or another one that was named. `lagged` and the two kinds of the daemon's end are told always.
    pub fn kind(mut self, kind: impl Into<String>) -> Self {
        self.kinds.get_or_insert_default().push(kind.into());
        self
    }

    /// Of sessions that it matches.
    pub fn sessions(mut self, selector: Selector) -> Self {
        self.selector = Some(selector);
        self
    }

    /// Of this task.
    pub fn task(mut self, task_id: impl Into<String>) -> Self {
        self.task_id = Some(task_id.into());
        self
    }

    /// What is kept now, and then no more.
    pub fn up_to_now(mut self) -> Self {
        self.is_bounded = true;
        self
    }

    /// With the operator's key of the directory, who sees everything. A bundle has a key of its own.
    pub fn as_operator(mut self) -> Self {
        self.is_operator = true;
        self
    }

    pub(super) fn params(&self) -> Params<'_> {
        Params {
            since: self.since.as_deref(),
            kinds: self.kinds.as_deref(),
            selector: self.selector.as_ref(),
            task_id: self.task_id.as_deref(),
            follow: !self.is_bounded,
        }
    }
}
