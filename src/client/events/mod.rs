//! What happens at the daemon, as a row of events.
//!
//! Owns: a connection that follows, and where in the feed it is. It must not know kinds: those that are newer than this
//! library pass. Invariant: each event comes once, in order, or a `lagged` says that some are missing. No thread of its own:
//! what is not asked for stays in the socket and then with the daemon, whose bounds apply.

mod event;
mod filter;
mod watch;

use std::collections::VecDeque;
use std::fmt;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

use serde::Deserialize;
use serde_json::value::RawValue;

use crate::wire::codes::{Code, ErrorObject};
use crate::wire::events::Cursor;
use crate::wire::lines::Role;
use crate::wire::message;
use crate::wire::methods::{EVENTS, Method};
use crate::wire::object;

use super::address::Target;
use super::connection::{Connection, Ended, Incoming, Receiver, Sender};
use super::failure::{ConnectError, SendError};
use super::handshake::{Hello, connect};

pub use event::Event;
pub use filter::Filter;
pub use watch::{Listening, Watch};

/// For the daemon's word that it tells.
const ANSWER: Duration = Duration::from_secs(10);

/// A connection on which the daemon tells what happens. Dropped, it says goodbye.
///
/// An iterator that waits for the next event for as long as the connection lives; [`Events::wait`] waits no longer than
/// until a deadline. Where it has come to is [`Events::cursor`]: with [`Filter::since`] another connection goes on from
/// there.
///
/// ```no_run
/// use usher::client::{Events, Filter, Target};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let filter = Filter::new().kind("session-registered").kind("session-gone");
/// for event in Events::connect(&Target::from_env(None)?, &filter)? {
///     let event = event?;
///     println!("{} {} {:?}", event.ts, event.kind, event.field::<String>("title"));
/// }
/// # Ok(())
/// # }
/// ```
pub struct Events {
    sender: Sender,
    receiver: Receiver,
    subscription: u64,
    ready: VecDeque<Event>,
    cursor: String,
    /// Where the feed stood at the beginning.
    head: String,
    /// All that was wanted was told.
    is_over: bool,
    has_failed: bool,
}

#[derive(Deserialize)]
struct Subscribed {
    subscription: u64,
    cursor: String,
}

/// Parameters of the notification.
#[derive(Deserialize)]
struct Told {
    subscription: u64,
    #[serde(default)]
    ended: bool,
}

impl Events {
    /// Connects and begins to follow: with a bundle's own key, else with the directory's key for callers
    /// ([`Filter::as_operator`]: for operators). Starts no daemon.
    pub fn connect(target: &Target, filter: &Filter) -> Result<Self, EventsError> {
        let connection = connect(target, &Hello::new(role(target, filter)));
        Self::over(connection.map_err(|failure| EventsError::Connect(failure.into()))?, filter)
    }

    /// Over a connection of a caller or an operator.
    pub(crate) fn over(connection: Connection, filter: &Filter) -> Result<Self, EventsError> {
        let (sender, mut receiver) = connection.split();
        let id = sender.request(Method::EventsSubscribe.name(), &filter.params(), None)?;
        let deadline = Instant::now() + ANSWER;
        let result = loop {
            match receiver.next(Some(deadline))? {
                Incoming::Answer { id: answered, result, .. } if answered == id => break result,
                Incoming::Failure { id: failed, error } if failed == id => {
                    return Err(EventsError::Refused(Box::new(error)));
                }
                _ => {}
            }
        };
        let subscribed: Subscribed = object::read(result.get().as_bytes()).map_err(|_| EventsError::Misread)?;
        let Subscribed { subscription, cursor: head } = subscribed;
        let cursor = filter.since.clone().unwrap_or_else(|| head.clone());
        let ready = VecDeque::new();
        Ok(Self { sender, receiver, subscription, ready, cursor, head, is_over: false, has_failed: false })
    }

    /// The next event, waited for until the deadline, or for as long as the connection lives. None: all that the filter wanted
    /// was told ([`Filter::up_to_now`]). After [`EventsError::Timeout`] it can be asked again.
    pub fn wait(&mut self, deadline: Option<Instant>) -> Result<Option<Event>, EventsError> {
        loop {
            if let Some(event) = self.ready.pop_front() {
                self.cursor.clone_from(&event.cursor);
                return Ok(Some(event));
            }
            if self.is_over {
                self.cursor = later(&self.cursor, &self.head).to_owned();
                return Ok(None);
            }
            match self.receiver.next(deadline)? {
                Incoming::Notification { method, params, payload } if method == EVENTS => {
                    self.hear(params.as_deref(), payload.as_deref())?;
                }
                // News of another kind, and what nobody here has asked for.
                Incoming::Notification { .. } | Incoming::Answer { .. } | Incoming::Failure { .. } => {}
                Incoming::Request { id, .. } => {
                    let _lost = self.sender.fail(id, Code::UnknownMethod.word(), "whoever follows answers nothing");
                }
            }
        }
    }

    fn hear(&mut self, params: Option<&RawValue>, payload: Option<&[u8]>) -> Result<(), EventsError> {
        let told: Told = message::params(params).map_err(|_| EventsError::Misread)?;
        if told.subscription == self.subscription {
            self.ready = event::read(payload.unwrap_or(b"[]")).ok_or(EventsError::Misread)?;
            self.is_over = told.ended;
        }
        Ok(())
    }

    /// Where to go on from: behind the last event that was taken, for [`Filter::since`].
    #[must_use]
    pub fn cursor(&self) -> &str {
        &self.cursor
    }

    /// Ends the connection from elsewhere.
    fn sender(&self) -> &Sender {
        &self.sender
    }
}

/// The role of whoever follows.
fn role(target: &Target, filter: &Filter) -> Role {
    match target.as_bundle() {
        Some(bundle) if bundle.role == Role::Operator => Role::Operator,
        None if filter.is_operator => Role::Operator,
        _ => Role::Caller,
    }
}

/// The later of two cursors; the second one where they cannot be compared.
fn later<'a>(one: &'a str, other: &'a str) -> &'a str {
    match (one.parse::<Cursor>(), other.parse::<Cursor>()) {
        (Ok(a), Ok(b)) if a.generation == b.generation && a.seq > b.seq => one,
        _ => other,
    }
}

impl Iterator for Events {
    type Item = Result<Event, EventsError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.has_failed {
            return None;
        }
        let next = self.wait(None).transpose();
        self.has_failed = matches!(next, Some(Err(_)));
        next
    }
}

/// Readable when there is something to take, or the connection is over. Ask [`Events::wait`] first: what has been read
/// already makes nothing readable.
impl AsFd for Events {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.sender.as_fd()
    }
}

impl Drop for Events {
    fn drop(&mut self) {
        self.sender.close("done");
    }
}

/// Why no event came.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub enum EventsError {
    /// There is no connection.
    Connect(ConnectError),
    /// The daemon does not tell: the filter is wrong, the key may not follow, or there is no place.
    Refused(Box<ErrorObject>),
    /// The daemon has said goodbye.
    Closing {
        /// Its word.
        reason: String,
    },
    /// The connection is over.
    Lost,
    /// Nothing until the deadline.
    Timeout,
    /// What came is not as documented.
    Misread,
}

impl EventsError {
    /// The word to act on (docs/protocol.md, "Errors").
    #[must_use]
    pub fn code(&self) -> &str {
        let code = match self {
            Self::Connect(error) => return error.code(),
            Self::Refused(error) => return error.data.as_ref().map_or("internal", |data| &data.code),
            Self::Closing { .. } | Self::Lost => Code::ConnectionLost,
            Self::Timeout => Code::Timeout,
            Self::Misread => Code::Internal,
        };
        code.word()
    }
}

impl fmt::Display for EventsError {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Connect(error) => error.fmt(out),
            Self::Refused(error) => out.write_str(&error.message),
            Self::Closing { .. } => out.write_str("the daemon has ended"),
            Self::Lost => out.write_str("the connection was lost"),
            Self::Timeout => out.write_str("nothing happened in time"),
            Self::Misread => out.write_str("what the daemon tells is not as documented"),
        }
    }
}

impl std::error::Error for EventsError {}

impl From<Ended> for EventsError {
    fn from(ended: Ended) -> Self {
        match ended {
            Ended::Closing(reason) => Self::Closing { reason },
            Ended::Lost => Self::Lost,
            Ended::Timeout => Self::Timeout,
        }
    }
}

impl From<SendError> for EventsError {
    fn from(error: SendError) -> Self {
        match error {
            SendError::Lost => Self::Lost,
            SendError::TooLarge => {
                let refusal = crate::wire::codes::Refusal::from(Code::TooLarge);
                Self::Refused(Box::new(refusal.message("the filter is larger than a message may be").object()))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_two_cursors_the_later_one_is_gone_on_from() {
        let cursor = |start: u8, seq| Cursor { generation: crate::ids::Generation([start; 16]), seq }.to_string();
        assert_eq!(later(&cursor(1, 5), &cursor(1, 3)), cursor(1, 5));
        assert_eq!(later(&cursor(1, 3), &cursor(1, 5)), cursor(1, 5));
        assert_eq!(later(&cursor(2, 9), &cursor(1, 5)), cursor(1, 5));
        assert_eq!(later("start", &cursor(1, 5)), cursor(1, 5));
    }
}
