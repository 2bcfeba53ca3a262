//! What an operator with a narrowed grant may see and do.

use serde_json::json;

use crate::support::daemon::Place;
use crate::support::peers::{Operator, Producer};
use crate::support::wire::Peer;

#[test]
fn a_session_outside_the_grant_of_an_operator_is_not_there_for_it() {
    let place = Place::with_daemon(&[]);
    let mut operator = Operator::connect(&place);
    let _others = Producer::start(&place, "secret");
    let narrow = operator.enroll(&place, "operator", &json!({"sessions": [{"title": "mine"}]}));
    let mut narrow = Peer::connect(&narrow.identity);
    let refused = narrow.call("daemon.stop", &json!({}), None).unwrap_err();
    assert_eq!(
        (refused.code.as_str(), &refused.error["data"]["sessions"]),
        ("sessions-live", &serde_json::Value::Null)
    );
    let status = narrow.call("daemon.status", &json!({}), None).unwrap().result;
    assert_eq!((&status["sessions"], &status["accounts"]), (&json!(0), &json!([])), "{status}");
    let drained = narrow.call("daemon.drain", &json!({}), None).unwrap().result;
    assert_eq!(drained, json!({"sessions": 0}));
}
