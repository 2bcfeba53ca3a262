//! Producers that answer wrongly: only they are harmed, and whoever asked is told.

use serde_json::json;

use crate::support::daemon::{Place, ran};
use crate::support::peers::{Caller, Heard, Producer, Reply, registration};
use crate::support::wire::Identity;

const RESULT_MAX: usize = 8 * 1024 * 1024;

/// A JSON string of so many bytes.
fn text(bytes: usize) -> Vec<u8> {
    let mut text = vec![b'x'; bytes];
    text[0] = b'"';
    text[bytes - 1] = b'"';
    text
}

/// A session that answers every command with what is named.
fn answering(place: &Place, title: &str, answer: impl Fn() -> Reply + Send + 'static) -> Producer {
    Producer::custom(&Identity::of(place, "producer"), &registration(title, 1), move |heard| match heard {
        Heard::Command(_) => answer(),
        Heard::Answer => Reply::Nothing,
    })
}

#[test]
fn a_result_may_have_8_mib_and_one_byte_more_fails_its_command_alone() {
    let place = Place::with_daemon(&[]);
    let whole = answering(&place, "whole", || Reply::Result(Some(text(RESULT_MAX))));
    let over = answering(&place, "over", || Reply::Result(Some(text(RESULT_MAX + 1))));
    let healthy = Producer::start(&place, "healthy");
    let mut caller = Caller::connect(&place);
    assert_eq!(caller.send(&whole.session, "echo", None).unwrap().payload.unwrap().len(), RESULT_MAX);
    for _ in 0..2 {
        let failure = caller.send(&over.session, "echo", None).unwrap_err();
        assert_eq!(failure.told(), ("invalid-result", "delivered"));
        assert_eq!(failure.error["data"]["resource"], json!("result"));
    }
    caller.fence(&healthy.session);
}

#[test]
fn a_frame_over_its_limit_ends_its_producer_and_its_command_is_told_as_lost() {
    let place = Place::with_daemon(&[]);
    let mut huge = answering(&place, "huge", || Reply::Result(Some(text(9 * 1024 * 1024))));
    let healthy = Producer::start(&place, "healthy");
    let mut caller = Caller::connect(&place);
    assert_eq!(caller.send(&huge.session, "echo", None).unwrap_err().told(), ("session-lost", "unknown"));
    huge.ended();
    caller.fence(&healthy.session);
}

#[test]
fn a_result_that_is_no_json_passes_untouched_and_the_command_line_does_not_print_it() {
    let place = Place::with_daemon(&[]);
    for (number, bytes) in [&b"{not json"[..], b"\xff\xfe", b"1 2", b"\x1b[2J", b"[1]\n[2]"].into_iter().enumerate() {
        let title = format!("odd {number}");
        let odd = answering(&place, &title, move || Reply::Result(Some(bytes.to_vec())));
        let mut caller = Caller::connect(&place);
        assert_eq!(caller.send(&odd.session, "echo", None).unwrap().payload.as_deref(), Some(bytes));
        for json in [&[][..], &["--json"]] {
            let mut send = place.usher();
            let done = ran(send.arg("send").args(json).args(["--title", &title, "echo"]));
            assert_eq!((done.code, done.stdout.as_str()), (1, ""), "{done:?}");
            assert!(done.stderr.contains("not one JSON text"), "{}", done.stderr);
            assert!(!done.stderr.contains('\x1b'), "{}", done.stderr);
        }
    }
}

#[test]
fn failures_with_control_characters_or_without_end_are_told_cleaned_and_cut() {
    let place = Place::with_daemon(&[]);
    let wild = answering(&place, "wild", || Reply::Failure(format!("\x1b[31mred\n{}", "y".repeat(60_000))));
    let mut caller = Caller::connect(&place);
    let failure = caller.send(&wild.session, "echo", None).unwrap_err();
    let message = failure.error["message"].as_str().unwrap();
    assert_eq!(failure.told(), ("command-failed", "delivered"));
    assert!(!message.contains('\x1b') && message.contains("red"), "{message:.100}");
    assert!(message.len() < 16 * 1024, "{} bytes", message.len());
    caller.send(&wild.session, "echo", None).unwrap_err();
}
