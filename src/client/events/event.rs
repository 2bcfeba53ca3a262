//! One event, read leniently: a daemon may come to say more.

use std::collections::{BTreeMap, VecDeque};

use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::value::RawValue;

use crate::ids::SessionId;

/// Something that happened (docs/protocol.md, "Events"). Texts in it may be of other programs: whoever shows them to a
/// person escapes them.
#[derive(Debug, Clone)]
pub struct Event {
    /// Where it stands; with it as [`Filter::since`](super::Filter::since) one goes on behind it.
    pub cursor: String,
    /// When, in UTC as of RFC 3339.
    pub ts: String,
    /// What kind of thing; there may be kinds that this library does not know.
    pub kind: String,
    /// The session that it is about.
    pub session_id: Option<SessionId>,
    json: Box<RawValue>,
}

#[derive(Deserialize)]
struct Known {
    cursor: String,
    ts: String,
    kind: String,
    #[serde(default)]
    session_id: Option<SessionId>,
}

impl Event {
    /// All of it, as it was told.
    #[must_use]
    pub fn json(&self) -> &str {
        self.json.get()
    }

    /// From a list of one.
    #[cfg(test)]
    pub(crate) fn of_test(list: &str) -> Self {
        read(list.as_bytes()).unwrap().remove(0).unwrap()
    }

    /// One of its fields; none where it is absent or of another shape.
    #[must_use]
    pub fn field<T: DeserializeOwned>(&self, name: &str) -> Option<T> {
        let fields: BTreeMap<String, &RawValue> = serde_json::from_str(self.json()).ok()?;
        serde_json::from_str(fields.get(name)?.get()).ok()
    }
}

/// The events of a notification. None: it is not as documented.
pub(super) fn read(payload: &[u8]) -> Option<VecDeque<Event>> {
    let list: Vec<Box<RawValue>> = serde_json::from_slice(payload).ok()?;
    let event = |json: Box<RawValue>| {
        let Known { cursor, ts, kind, session_id } = crate::wire::object::read(json.get().as_bytes()).ok()?;
        Some(Event { cursor, ts, kind, session_id, json })
    };
    list.into_iter().map(event).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_event_of_a_kind_that_is_not_known_passes_as_it_was_told() {
        let text = r#"[{"cursor":"a:1","ts":"2026-11-30T22:00:00Z","kind":"newer","n": 1.0e0,"who":{"label":"x"}},
            {"cursor":"a:2","ts":"t","kind":"session-gone","session_id":"AQEBAQEBAQEBAQEBAQEBAQ"}]"#;
        let events = read(text.as_bytes()).unwrap();
        assert_eq!((events[0].cursor.as_str(), events[0].kind.as_str()), ("a:1", "newer"));
        assert!(events[0].json().contains("1.0e0") && events[0].session_id.is_none());
        assert_eq!(events[0].field::<BTreeMap<String, String>>("who").unwrap()["label"], "x");
        assert_eq!((events[0].field::<u8>("who"), events[0].field::<u8>("absent")), (None, None));
        assert_eq!(events[1].session_id, Some(SessionId([1; 16])));
    }

    #[test]
    fn what_is_no_list_of_events_is_not_taken_for_one() {
        for text in ["", "{}", "[1]", "[[]]", r#"[{"cursor":"a:1","ts":"t"}]"#, "[] []", "[{\"cursor\":1}]"] {
            assert!(read(text.as_bytes()).is_none(), "{text}");
        }
        assert!(read(b"[]").unwrap().is_empty());
    }
}
