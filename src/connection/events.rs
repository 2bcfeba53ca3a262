//! Methods of the event feed.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::account::Charge;
use crate::auth::gate::Permit;
use crate::registry::busy;
use crate::route::feed::Want;
use crate::wire::codes::Refusal;
use crate::wire::events::{Cursor, Kinds};
use crate::wire::message;
use crate::wire::object;
use crate::wire::selector::Selector;

use super::dispatch::{Conversation, Done, Request};

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Subscribe {
    #[serde(default, deserialize_with = "object::some")]
    since: Option<String>,
    #[serde(default, deserialize_with = "object::some")]
    kinds: Option<Vec<String>>,
    #[serde(default, deserialize_with = "object::some_object")]
    selector: Option<Selector>,
    #[serde(default, deserialize_with = "object::some")]
    task_id: Option<String>,
    #[serde(default, deserialize_with = "object::some")]
    follow: Option<bool>,
    #[serde(default)]
    receipt: bool,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Unsubscribe {
    subscription: u64,
    #[serde(default)]
    receipt: bool,
}

#[derive(Serialize)]
struct Subscribed {
    subscription: u64,
    cursor: Cursor,
}

#[derive(Serialize)]
struct Nothing {}

#[inline(never)]
pub(super) fn subscribe(on: &Conversation, _permit: Permit<'_>, request: &Request<'_>) -> Done {
    let Subscribe { since, kinds, selector, task_id, follow, receipt } = message::params(request.params)?;
    let kinds = kinds.map_or(Ok(Kinds::ALL), |words| Kinds::named(&words))?;
    selector.as_ref().map_or(Ok(()), Selector::check)?;
    let cursor = on.hub.feed.head();
    let start = on.hub.feed.start(since.as_deref(), cursor)?;
    let shares = &on.peer.authority().credential().shares;
    let charge = Charge::take(&on.hub.totals.streams, &shares.streams, 1).map_err(busy)?;
    let subscribed = Subscribed { subscription: request.id, cursor };
    let _gone = on.peer.answer(request.id, &subscribed, None, request.receipt(receipt));
    // After the answer, and from where it says: what happens meanwhile is kept.
    let want = Want { kinds, selector, task_id };
    let until = (!follow.unwrap_or(true)).then_some(cursor);
    on.hub.feed.follow(Arc::clone(&on.peer), request.id, want, start, until, charge);
    Ok(())
}

#[inline(never)]
pub(super) fn unsubscribe(on: &Conversation, _permit: Permit<'_>, request: &Request<'_>) -> Done {
    let Unsubscribe { subscription, receipt } = message::params(request.params)?;
    if !on.hub.feed.unsubscribe(on.peer.id(), subscription) {
        return Err(Refusal::invalid("no such subscription on this connection"));
    }
    let _gone = on.peer.answer(request.id, &Nothing {}, None, request.receipt(receipt));
    Ok(())
}
