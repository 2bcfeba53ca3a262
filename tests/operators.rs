//! What an operator with a narrowed grant may see and do.

use std::time::Duration;

use serde_json::{Value, json};

use crate::support::daemon::Place;
use crate::support::peers::{Operator, Producer};
use crate::support::wire::{Key, Peer, base64};

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
