//! What callers ask about sessions (docs/protocol.md, "Callers").

use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::ids::SessionId;
use crate::limits::DEADLINE_MAX_MS;
use crate::wire::methods::Method;
use crate::wire::object;
use crate::wire::rows::Row;
use crate::wire::selector::Selector;

use super::pages::Pages;
use super::{CallError, Caller, Reply};

/// For an answer that needs nobody but the daemon.
const PATIENCE: Duration = Duration::from_secs(10);
/// For the daemon's own word after a deadline.
const SLACK: Duration = Duration::from_secs(5);

#[derive(Serialize)]
struct Get<'a> {
    selector: &'a Selector,
}

#[derive(Serialize)]
struct Send<'a> {
    selector: &'a Selector,
    command: &'a str,
    deadline_ms: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    key: Option<&'a str>,
}

#[derive(Serialize)]
struct Wait<'a> {
    selector: &'a Selector,
    deadline_ms: u64,
}

#[derive(Deserialize)]
struct One {
    #[serde(deserialize_with = "object::object")]
    session: Row,
}

#[derive(Deserialize)]
struct Done {
    session_id: SessionId,
    took_ms: u64,
}

/// What came of a command.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sent {
    /// The session that the selector meant.
    pub session_id: SessionId,
    /// How long it took in the daemon and behind it.
    pub took: Duration,
    /// What the session answered: meant to be one JSON text, checked by nobody. `None` reads as `null`.
    pub result: Option<Vec<u8>>,
}

/// Sessions in order of registration, asked for page by page.
pub struct Sessions<'a>(Pages<'a>);

impl Iterator for Sessions<'_> {
    type Item = Result<Row, CallError>;

    fn next(&mut self) -> Option<Self::Item> {
        let read = |text: Box<serde_json::value::RawValue>| {
            object::read(text.get().as_bytes()).map_err(|_| CallError::Misread)
        };
        self.0.next().map(|row| row.and_then(read))
    }
}

impl Caller {
    /// The sessions that match.
    pub fn list(&self, selector: &Selector) -> Sessions<'_> {
        // Our own type: it always serialises.
        let selector = serde_json::to_value(selector).unwrap_or_else(|_| Value::Object(Map::new()));
        let params = Map::from_iter([("selector".to_owned(), selector)]);
        Sessions(self.pages(Method::SessionList.name(), params, PATIENCE))
    }

    /// The session that the selector means, and its latest snapshot if there is one.
    pub fn get(&self, selector: &Selector) -> Result<(Row, Option<Vec<u8>>), CallError> {
        let deadline = Instant::now() + PATIENCE;
        let reply = self.call(Method::SessionGet.name(), &Get { selector }, None, deadline)?;
        Ok((read::<One>(&reply)?.session, reply.payload))
    }

    /// Sends a command to the session that the selector means and waits for what comes of it. The input is one JSON
    /// text, at most 1 MiB; the deadline at most five minutes, in whole milliseconds.
    pub fn send(
        &self,
        selector: &Selector,
        command: &str,
        input: Option<&[u8]>,
        deadline: Duration,
    ) -> Result<Sent, CallError> {
        self.send_under(None, selector, command, input, deadline)
    }

    /// The same under a key: sent again with it after whatever failure, the command runs once, and the first outcome is
    /// told again (docs/protocol.md, "Keys").
    pub fn send_once(
        &self,
        key: &str,
        selector: &Selector,
        command: &str,
        input: Option<&[u8]>,
        deadline: Duration,
    ) -> Result<Sent, CallError> {
        self.send_under(Some(key), selector, command, input, deadline)
    }

    fn send_under(
        &self,
        key: Option<&str>,
        selector: &Selector,
        command: &str,
        input: Option<&[u8]>,
        deadline: Duration,
    ) -> Result<Sent, CallError> {
        let params = Send { selector, command, deadline_ms: millis(deadline), key };
        let reply = self.call(Method::SessionSend.name(), &params, input, after(deadline))?;
        let Done { session_id, took_ms } = read(&reply)?;
        Ok(Sent { session_id, took: Duration::from_millis(took_ms), result: reply.payload })
    }

    /// Waits until exactly one session matches.
    pub fn wait(&self, selector: &Selector, deadline: Duration) -> Result<Row, CallError> {
        let params = Wait { selector, deadline_ms: millis(deadline) };
        let reply = self.call(Method::SessionWait.name(), &params, None, after(deadline))?;
        Ok(read::<One>(&reply)?.session)
    }
}

fn read<T: serde::de::DeserializeOwned>(reply: &Reply) -> Result<T, CallError> {
    object::read(reply.result.get().as_bytes()).map_err(|_| CallError::Misread)
}

/// Until when the daemon has had its word on a deadline. It refuses longer ones than its longest, at once.
fn after(deadline: Duration) -> Instant {
    Instant::now() + deadline.min(Duration::from_millis(DEADLINE_MAX_MS)) + SLACK
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}
