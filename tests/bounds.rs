//! What is held of each bound, and that it is given back.

use serde_json::json;

use crate::support::daemon::Place;
use crate::support::peers::{Operator, registration};
use crate::support::wire::{Identity, Peer};

#[test]
fn a_session_that_was_unregistered_holds_nothing_and_its_place_can_be_taken_by_the_same_connection() {
    let place = Place::with_daemon(&["--limit", "sessions=1"]);
    let mut operator = Operator::connect(&place);
    let mut producer = Peer::connect(&Identity::of(&place, "producer"));
    for _ in 0..3 {
        producer.call("session.register", &registration("again", 1), Some(b"\"snapshot\"")).unwrap();
        assert_eq!((operator.used("sessions"), operator.used("snapshots-total-bytes")), (1, 10));
        producer.call("session.unregister", &json!({}), None).unwrap();
    }
}
