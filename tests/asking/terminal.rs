//! A question on a terminal says what it waits for, and how to answer.

use super::super::run::terminal::Screen;
use super::super::support::daemon::{Place, USHER};
use super::{asked, id};

#[test]
fn on_a_terminal_a_question_says_how_to_answer_it_and_what_was_answered() {
    let place = Place::with_daemon(&[]);
    let Some(mut screen) = Screen::new(&place, &format!("'{USHER}' ask 'go on?'; echo \"exit $?\"")) else { return };
    screen.wait_for("waiting for approval, for 10m: usher approve ");
    let question = asked(&place, "go on?");
    assert!(question["asker"]["terminal"]["tty"].as_str().is_some_and(|tty| tty.starts_with("/dev/")), "{question}");
    screen.wait_for(&id(&question));
    assert_eq!(place.run(&["approve", &id(&question), "--reason", "go"]).code, 0);
    screen.wait_for("approved by operator: go");
    screen.wait_for("exit 0");
}

#[test]
fn on_a_terminal_control_c_takes_a_question_back() {
    let place = Place::with_daemon(&[]);
    let Some(mut screen) = Screen::new(&place, &format!("'{USHER}' ask 'go on?'; echo \"exit $?\"")) else { return };
    screen.wait_for("waiting for approval");
    asked(&place, "go on?");
    screen.press("\u{3}");
    super::gone(&place);
}
