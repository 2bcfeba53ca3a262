//! What an operator with a narrowed grant may see and do.

use std::time::Duration;

use serde_json::{Value, json};

use crate::support::daemon::Place;
use crate::support::peers::{Operator, Producer};
use crate::support::wire::{Identity, Key, Peer, base64};

#[test]
fn a_session_outside_the_grant_of_an_operator_is_not_there_for_it() {
    let place = Place::with_daemon(&[]);
    let mut operator = Operator::connect(&place);
    let _others = Producer::start(&place, "secret");
    let narrow = operator.enroll(&place, "operator", &json!({"sessions": [{"title": "mine"}]}));
    let mut narrow = Peer::connect(&narrow.identity);
    let refused = narrow.call("daemon.stop", &json!({}), None).unwrap_err();
    assert_eq!((refused.code.as_str(), &refused.error["data"]["sessions"]), ("sessions-live", &Value::Null));
    let status = narrow.call("daemon.status", &json!({}), None).unwrap().result;
    assert_eq!((&status["sessions"], &status["accounts"]), (&json!(0), &json!([])), "{status}");
    let drained = narrow.call("daemon.drain", &json!({}), None).unwrap().result;
    assert_eq!(drained, json!({"sessions": 0}));
}

#[test]
fn an_operator_gives_away_no_more_than_it_has() {
    let place = Place::with_daemon(&[]);
    let mut operator = Operator::connect(&place);
    let soon = (jiff::Timestamp::now() + Duration::from_secs(600)).to_string();
    let late = (jiff::Timestamp::now() + Duration::from_secs(6000)).to_string();
    let grant = json!({
        "scopes": ["credential.enroll", "credential.renew", "session.list"],
        "sessions": [{"labels": {"team": "a"}}], "commands": ["reload", "status"], "expires": soon,
    });
    let narrow = operator.enroll(&place, "operator", &grant);
    let default = operator.credentials("caller").remove(0);
    let mut narrow_peer = Peer::connect(&narrow.identity);
    let mut enroll = |role: &str, more: &Value| {
        let mut params = json!({
            "public_key": base64(&Key::random().public()), "label": "test", "role": role, "scopes": "row",
            "sessions": [{"labels": {"team": "a", "who": "me"}}], "commands": ["reload"], "expires": soon,
        });
        for (name, value) in more.as_object().unwrap() {
            params[name] = value.clone();
        }
        params.as_object_mut().unwrap().retain(|_, value| !value.is_null());
        narrow_peer.call("credential.enroll", &params, None)
    };
    enroll("caller", &json!({})).unwrap();
    enroll("operator", &json!({"scopes": ["session.list"]})).unwrap();
    let beyond = [
        ("operator", json!({}), "scopes"),
        ("operator", json!({"scopes": ["credential.revoke"]}), "scopes"),
        ("caller", json!({"sessions": null}), "sessions"),
        ("caller", json!({"sessions": [{"labels": {"team": "a"}}, {"labels": {"team": "b"}}]}), "sessions"),
        ("caller", json!({"commands": null}), "commands"),
        ("caller", json!({"commands": ["reload", "stop"]}), "commands"),
        ("caller", json!({"expires": null}), "expires"),
        ("caller", json!({"expires": late}), "expires"),
        ("caller", json!({"replaces": default}), "credential.revoke"),
    ];
    for (role, more, named) in beyond {
        let refused = enroll(role, &more).unwrap_err();
        assert_eq!(refused.code, "denied", "{more}");
        let message = refused.error["message"].as_str().unwrap();
        assert!(message.contains(named), "{more}: {message}");
    }
    for (id, expires) in [(&narrow.id, json!(late)), (&narrow.id, Value::Null), (&default, json!(late))] {
        let mut params = json!({ "credential": id, "expires": expires });
        params.as_object_mut().unwrap().retain(|_, value| !value.is_null());
        assert_eq!(narrow_peer.call("credential.renew", &params, None).unwrap_err().code, "denied");
    }
    assert_eq!(operator.credentials("operator").len(), 3);
    assert_eq!(operator.credentials("caller").len(), 2);
}

/// So many ms from now, as parameters have it.
fn soon(ms: u64) -> String {
    (jiff::Timestamp::now() + Duration::from_millis(ms)).to_string()
}

#[test]
fn an_operator_that_lets_its_own_end_run_out_while_it_asks_holds_nobody_up() {
    let place = Place::with_daemon(&[]);
    let mut operator = Operator::connect(&place);
    let grant = json!({"scopes": ["credential.renew", "credential.revoke"]});
    for round in 0..24 {
        let short = operator.enroll(&place, "operator", &grant);
        let mut peer = Peer::connect(&short.identity);
        let ends = json!({"credential": short.id, "expires": soon(1 + round % 8)});
        let id = peer.request("credential.renew", &ends, None);
        // Done, expired meanwhile, or cut: but an end of it.
        if let Some(Err(failure)) = peer.try_answer(id) {
            assert!(["expired", "invalid-params"].contains(&failure.code.as_str()), "{failure:?}");
        }
    }
    // The clock goes on: a deadline is told, and the daemon ends in order.
    let mut caller = Peer::connect(&Identity::of(&place, "caller"));
    let wait = json!({"selector": {"title": "nobody"}, "deadline_ms": 50});
    assert_eq!(caller.call("session.wait", &wait, None).unwrap_err().code, "timeout");
    operator.done("daemon.stop", &json!({}));
}

#[test]
fn the_last_operator_that_may_do_everything_stays_whatever_others_there_are() {
    let place = Place::with_daemon(&[]);
    let mut operator = Operator::connect(&place);
    let default = operator.credentials("operator").remove(0);
    for narrow in [
        json!({"scopes": ["credential.enroll", "credential.revoke"]}),
        json!({"sessions": [{"title": "mine"}]}),
        json!({"commands": []}),
        json!({"expires": soon(600_000)}),
    ] {
        operator.enroll(&place, "operator", &narrow);
    }
    assert_eq!(operator.revoke(&default).unwrap_err().code, "last-operator");
    let ends = json!({"credential": default, "expires": soon(600_000)});
    assert_eq!(operator.0.call("credential.renew", &ends, None).unwrap_err().code, "last-operator");
    let another = operator.enroll(&place, "operator", &json!({}));
    let mut another = Operator(Peer::connect(&another.identity));
    another.revoke(&default).unwrap();
}

#[test]
fn renewing_reaches_no_further_than_the_grant_and_ends_nothing_sooner() {
    let place = Place::with_daemon(&[]);
    let mut operator = Operator::connect(&place);
    let grant = json!({"scopes": ["credential.renew"], "sessions": [{"title": "mine"}], "commands": []});
    let narrow = operator.enroll(&place, "operator", &grant);
    let end = soon(60_000);
    let wide = operator.enroll(&place, "operator", &json!({"expires": end}));
    let own =
        operator.enroll(&place, "caller", &json!({"sessions": [{"title": "mine"}], "commands": [], "expires": end}));
    let mut narrow = Peer::connect(&narrow.identity);
    let default = operator.credentials("caller").remove(0);
    for params in [
        json!({"credential": wide.id}),
        json!({"credential": default, "expires": soon(100)}),
        json!({"credential": own.id, "expires": soon(100)}),
    ] {
        assert_eq!(narrow.call("credential.renew", &params, None).unwrap_err().code, "denied", "{params}");
    }
    narrow.call("credential.renew", &json!({"credential": own.id, "expires": soon(120_000)}), None).unwrap();
    narrow.call("credential.renew", &json!({"credential": own.id}), None).unwrap();
    operator.done("credential.renew", &json!({"credential": own.id, "expires": soon(100)}));
}

#[test]
fn a_row_is_given_by_a_row_alone_because_it_grows() {
    let place = Place::with_daemon(&[]);
    let mut operator = Operator::connect(&place);
    let all = operator.0.welcome["scopes"].clone();
    let named = operator.enroll(&place, "operator", &json!({"scopes": all}));
    let mut named = Peer::connect(&named.identity);
    let mut give = |scopes: Value| {
        let params = json!({
            "public_key": base64(&Key::random().public()), "label": "test", "role": "operator", "scopes": scopes,
        });
        named.call("credential.enroll", &params, None)
    };
    give(all).unwrap();
    assert_eq!(give(json!("row")).unwrap_err().code, "denied");
}

#[test]
fn the_status_of_a_narrowed_operator_counts_its_own_alone() {
    let place = Place::with_daemon(&[]);
    let mut operator = Operator::connect(&place);
    let _others = Producer::start(&place, "secret");
    let narrow = operator.enroll(&place, "operator", &json!({"sessions": [{"title": "mine"}]}));
    let mut peer = Peer::connect(&narrow.identity);
    let status = peer.call("daemon.status", &json!({}), None).unwrap().result;
    let ids: Vec<_> = status["credentials"].as_array().unwrap().iter().map(|holder| &holder["credential"]).collect();
    assert_eq!(ids, [&json!(narrow.id)], "{status}");
}
