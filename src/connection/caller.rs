//! Methods of callers. A session that the grant does not select is not there: not in a list, not among candidates, not
//! in an error.

use std::sync::Arc;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use crate::auth::gate::Permit;
use crate::ids::SessionId;
use crate::limits::{DEADLINE_DEFAULT_MS, DEADLINE_MAX_MS, KEY_MAX_BYTES, PAGE_MAX_BYTES};
use crate::registry::report::{Report, Wait};
use crate::route::directory::Session;
use crate::route::keys::{Found, Key, told_again};
use crate::route::lane::{self, Call, Order};
use crate::route::outbound::Origin;
use crate::route::peer::Place;
use crate::wire::codes::{Code, Delivery, Refusal};
use crate::wire::message;
use crate::wire::object;
use crate::wire::rows::{Row, is_name};
use crate::wire::selector::Selector;
use crate::wire::text::is_plain;

use super::dispatch::{Conversation, Done, Request};

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct List {
    #[serde(default, deserialize_with = "object::object")]
    selector: Selector,
    #[serde(default, deserialize_with = "object::some")]
    page: Option<String>,
    #[serde(default)]
    receipt: bool,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Get {
    #[serde(deserialize_with = "object::object")]
    selector: Selector,
    #[serde(default)]
    receipt: bool,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Send {
    #[serde(deserialize_with = "object::object")]
    selector: Selector,
    command: String,
    #[serde(default, deserialize_with = "object::some")]
    deadline_ms: Option<u64>,
    #[serde(default, deserialize_with = "object::some")]
    key: Option<String>,
    #[serde(default)]
    receipt: bool,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct WaitParams {
    #[serde(deserialize_with = "object::object")]
    selector: Selector,
    #[serde(default, deserialize_with = "object::some")]
    deadline_ms: Option<u64>,
    #[serde(default)]
    receipt: bool,
}

#[derive(Serialize)]
struct One {
    session: Row,
}

/// A list's own field: where its next page begins.
#[derive(Serialize)]
pub(super) struct Page {
    #[serde(skip_serializing_if = "Option::is_none")]
    next: Option<String>,
}

#[inline(never)]
pub(super) fn list(on: &Conversation, _permit: Permit<'_>, request: &Request<'_>) -> Done {
    let List { selector, page, receipt } = message::params(request.params)?;
    selector.check()?;
    let from = page_start(page.as_deref())?;
    let sessions = on.hub.directory.select(&selector, on.peer.authority(), from);
    let rows = sessions.iter().map(|session| (session.order, session.row(on.peer.authority())));
    let (page, rows) = paged(rows);
    let _gone = on.peer.answer(request.id, &page, Some(&rows), request.receipt(receipt));
    Ok(())
}

#[inline(never)]
pub(super) fn get(on: &Conversation, _permit: Permit<'_>, request: &Request<'_>) -> Done {
    let Get { selector, receipt } = message::params(request.params)?;
    let session = on.hub.directory.resolve(&selector, on.peer.authority())?;
    let snapshot = session.snapshot();
    let payload = snapshot.as_ref().map(|snapshot| snapshot.bytes.as_slice());
    let found = One { session: session.row(on.peer.authority()) };
    let answer = on.peer.answering(request.id, &found, payload, request.receipt(receipt));
    // What the session said is its producer's.
    let authority = session.lane.producer().authority();
    let _permit_of_producer = authority.admit_delivery().map_err(|_| Code::SessionNotFound)?;
    let instead = Some((request.id, Code::SessionNotFound.into()));
    let _gone = on.peer.send_for(Origin { authority: Arc::clone(authority), instead }, answer);
    Ok(())
}

#[inline(never)]
pub(super) fn send(on: &Conversation, permit: Permit<'_>, request: &Request<'_>) -> Done {
    let arrived = Instant::now();
    let Send { selector, command, deadline_ms, key, receipt } = message::params(request.params)?;
    let within = deadline(deadline_ms)?;
    let input_max = on.hub.limits.input_bytes;
    if request.payload.is_some_and(|input| input.len() as u64 > input_max) {
        return Err(Refusal::too_large("input", input_max));
    }
    // Resolved to one session first: that id is what the grant is asked about, and what executes.
    let authority = on.peer.authority();
    let key = key.map(|word| named(word, &command, request.payload)).transpose()?;
    let session = match (on.hub.directory.resolve(&selector, authority), &key) {
        (Err(refusal), Some(key)) if refusal.code == Code::SessionNotFound => {
            return absent(on, request, receipt, &selector, key, refusal);
        }
        (resolved, _) => resolved?,
    };
    let offered = is_name(&command, false) && session.facts().offers(&command);
    if !authority.credential().grant.allows(&command) {
        return Err(Refusal::from(Code::Denied).message("this credential was not granted that command"));
    }
    // What became of one that was offered before is told all the same.
    if !offered && !key.as_ref().is_some_and(|key| is_known(on, &session, key)) {
        return Err(Refusal::from(Code::CommandNotFound).hint("usher list --json shows what it offers"));
    }
    let call = Call {
        caller: Arc::clone(&on.peer),
        request: request.id,
        receipt: request.receipt(receipt),
        arrived,
        deadline: arrived + within,
    };
    session.lane.submit(permit, call, Order { command, key, input: request.payload });
    Ok(())
}

fn named(word: String, command: &str, input: Option<&[u8]>) -> Result<Key, Refusal> {
    if word.is_empty() || word.len() > KEY_MAX_BYTES || !is_plain(&word) {
        return Err(Refusal::invalid(format!("key takes 1 to {KEY_MAX_BYTES} bytes without control characters")));
    }
    Ok(Key::new(word, command, input))
}

fn is_known(on: &Conversation, session: &Session, key: &Key) -> bool {
    let caller = on.peer.authority().credential().id;
    let owner = session.lane.producer().authority().credential().id;
    !matches!(on.hub.lanes.keyring.find(session.id, caller, Some(owner), key), Found::Nothing)
}

/// A command under a key whose session is not there. What became of it before is told all the same, when it is named by a
/// whole id; and just after a start, its session may come back.
fn absent(
    on: &Conversation,
    request: &Request<'_>,
    receipt: bool,
    selector: &Selector,
    key: &Key,
    refusal: Refusal,
) -> Done {
    let id = selector.session.as_ref().and_then(|text| text.parse::<SessionId>().ok());
    let caller = on.peer.authority().credential().id;
    let found = id.map_or(Found::Nothing, |session| on.hub.lanes.keyring.find(session, caller, None, key));
    match (&found, id) {
        (Found::Known(kept), Some(session)) => {
            lane::again(&on.peer, request.id, request.receipt(receipt), session, kept)
        }
        (Found::Running, _) => {
            let _gone = on.peer.fail(request.id, &refusal.delivery(Delivery::Unknown));
        }
        _ => match told_again(&found) {
            Some(told) => {
                let _gone = on.peer.fail(request.id, &told);
            }
            None if on.hub.leases.awaits() => {
                return Err(Refusal::from(Code::Recovering).hint("send it again in a second, with the same key"));
            }
            None => return Err(refusal),
        },
    }
    Ok(())
}

#[inline(never)]
pub(super) fn wait(on: &Conversation, permit: Permit<'_>, request: &Request<'_>) -> Done {
    let WaitParams { selector, deadline_ms, receipt } = message::params(request.params)?;
    selector.check()?;
    let deadline = Instant::now() + deadline(deadline_ms)?;
    on.peer.open(request.id, Place::Registry)?;
    // The registry looks at the gate again when it answers.
    drop(permit);
    let peer = Arc::clone(&on.peer);
    let wait = Wait { peer, request: request.id, receipt: request.receipt(receipt), selector, deadline };
    if !on.hub.report(Report::Wait(wait)) && on.peer.settle(request.id) {
        return Err(Code::ShuttingDown.into());
    }
    Ok(())
}

fn deadline(deadline_ms: Option<u64>) -> Result<Duration, Refusal> {
    match deadline_ms.unwrap_or(DEADLINE_DEFAULT_MS) {
        ms @ 1..=DEADLINE_MAX_MS => Ok(Duration::from_millis(ms)),
        _ => Err(Refusal::invalid(format!("deadline_ms takes 1 to {DEADLINE_MAX_MS}"))),
    }
}

/// Where a page begins.
pub(super) fn page_start(page: Option<&str>) -> Result<u64, Refusal> {
    page.unwrap_or("0").parse().map_err(|_| Refusal::invalid("page takes what next was"))
}

/// As many rows as fit a page, and where the next page begins.
pub(super) fn paged<T: Serialize>(rows: impl Iterator<Item = (u64, T)>) -> (Page, Vec<u8>) {
    let mut text = vec![b'['];
    let mut next = None;
    for (number, row) in rows {
        let Ok(row) = serde_json::to_vec(&row) else { continue };
        if text.len() > 1 {
            if text.len() + row.len() + 2 > PAGE_MAX_BYTES {
                next = Some(number.to_string());
                break;
            }
            text.push(b',');
        }
        text.extend_from_slice(&row);
    }
    text.push(b']');
    (Page { next }, text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_is_one_json_array_and_says_where_the_next_begins() {
        let row = "x".repeat(300_000);
        let (page, text) = paged((0..5).map(|number| (number, row.clone())));
        assert_eq!(page.next.as_deref(), Some("3"));
        assert!(text.len() <= PAGE_MAX_BYTES);
        assert_eq!(serde_json::from_slice::<Vec<String>>(&text).unwrap().len(), 3);
        let (page, text) = paged(std::iter::empty::<(u64, String)>());
        assert_eq!((page.next, text.as_slice()), (None, &b"[]"[..]));
    }

    #[test]
    fn a_deadline_has_both_bounds() {
        assert_eq!(deadline(None), Ok(Duration::from_millis(DEADLINE_DEFAULT_MS)));
        assert!(deadline(Some(0)).is_err());
        assert!(deadline(Some(DEADLINE_MAX_MS + 1)).is_err());
    }
}
