//! `usher events`: what happens, a line for each.
//!
//! One thread and no queue: what standard output does not take is not read from the daemon, whose bounds apply. A reader that
//! has gone away ends it, also while nothing happens.

use std::fmt;
use std::io::{self, ErrorKind, Write};
use std::os::fd::AsFd;
use std::process::ExitCode;
use std::time::Instant;

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use serde::de::{Deserializer, MapAccess, Visitor};
use serde_json::Value;

use crate::client::{Event, Events, EventsError, Filter, Hello, Target};
use crate::error::{Exit, Failure};
use crate::wire::codes::Code;
use crate::wire::lines::Role;
use crate::wire::methods::Method;
use crate::wire::text::escaped;

use super::args::{EventsArgs, Global, SelectorArgs};
use super::ask::{self, Missed};
use super::trouble::Trouble;
use super::{Outcome, out, select};

/// Characters of a field that are shown.
const FIELD_MAX_CHARS: usize = 200;
/// Columns for the kind: the usual ones stand below each other.
const KIND_WIDTH: usize = 18;

/// Shows what is kept, or what happens from now on.
pub fn main(global: &Global, args: &EventsArgs) -> Outcome {
    let filter = filter(args)?;
    let target = ask::target(global)?;
    let connection = match ask::connection(&target, &Hello::new(role(global, &target))) {
        Err(Missed::NotRunning) if !args.follow => {
            if !global.json {
                out::note("no daemon is running");
            }
            return Ok(ExitCode::SUCCESS);
        }
        connection => connection?,
    };
    let mut events = Events::over(connection, &filter).map_err(|error| trouble(error, args, None))?;
    let style = Style { json: global.json, colour: out::is_colourful() };
    loop {
        let event = match next(&mut events, args.follow) {
            Ok(Some(event)) => event,
            Ok(None) => return Ok(ExitCode::SUCCESS),
            Err(error) => return Err(trouble(error, args, Some(events.cursor()))),
        };
        if !written(style.line(&event).as_bytes())? {
            return Ok(ExitCode::SUCCESS);
        }
    }
}

fn filter(args: &EventsArgs) -> Result<Filter, Trouble> {
    let mut filter = args.kinds.iter().fold(Filter::new(), |filter, kind| filter.kind(kind));
    if args.selector != SelectorArgs::default() {
        filter = filter.sessions(select::request(&args.selector)?);
    }
    filter = match (&args.since, args.follow) {
        (Some(cursor), _) => filter.since(cursor),
        (None, true) => filter,
        (None, false) => filter.from_start(),
    };
    Ok(if args.follow { filter } else { filter.up_to_now() })
}

/// A bundle's own, else a person's: the operator's, who sees everything, but inside a session only when that is meant.
fn role(global: &Global, target: &Target) -> Role {
    match target.as_bundle() {
        Some(_) => ask::role_for(target, Method::EventsSubscribe),
        None if ask::operator_is_meant(global).is_ok() => Role::Operator,
        None => Role::Caller,
    }
}

/// The next event; none where all is told, or nobody reads any more.
fn next(events: &mut Events, follow: bool) -> Result<Option<Event>, EventsError> {
    let deadline = Instant::now() + ask::PATIENCE;
    loop {
        match events.wait(Some(Instant::now())) {
            Err(EventsError::Timeout) => {}
            done => return done,
        }
        let stdout = io::stdout();
        // Nothing is asked of standard output: that its reader is gone is told all the same.
        let mut both =
            [PollFd::new(events.as_fd(), PollFlags::POLLIN), PollFd::new(stdout.as_fd(), PollFlags::empty())];
        let patience = if follow {
            PollTimeout::NONE
        } else {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(EventsError::Timeout);
            }
            PollTimeout::try_from(left).unwrap_or(PollTimeout::MAX)
        };
        match poll(&mut both, patience) {
            Ok(_) | Err(Errno::EINTR) => {}
            Err(_) => return Err(EventsError::Lost),
        }
        let gone = PollFlags::POLLERR | PollFlags::POLLHUP;
        if both[1].revents().is_some_and(|seen| seen.intersects(gone)) {
            return Ok(None);
        }
    }
}

/// Writes a line at once. False: nobody reads it.
fn written(line: &[u8]) -> Result<bool, Trouble> {
    let mut out = io::stdout().lock();
    match out.write_all(line).and_then(|()| out.flush()) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(false),
        Err(error) => {
            Err(Failure::new(Exit::Negative, "output", format!("standard output cannot be written: {error}")).into())
        }
    }
}

/// With the cursor to go on from, where there is one.
fn trouble(error: EventsError, args: &EventsArgs, cursor: Option<&str>) -> Trouble {
    let failure = match error {
        EventsError::Refused(error) => return Trouble::refused(*error),
        EventsError::Misread => return ask::misread(Method::EventsSubscribe.name()),
        EventsError::Timeout => {
            Failure::new(Exit::Timeout, Code::Timeout.word(), "the daemon did not tell all that is kept in time")
        }
        EventsError::Closing { reason } => {
            let reason = escaped(&reason, FIELD_MAX_CHARS);
            lost(format!("the daemon has ended ({reason})"))
        }
        EventsError::Connect(_) | EventsError::Lost => lost("the connection was lost"),
    };
    match cursor {
        None => failure.into(),
        Some(cursor) => {
            let follow = if args.follow { " --follow" } else { "" };
            let cursor = escaped(cursor, FIELD_MAX_CHARS);
            failure.hint(format!("usher events{follow} --since {cursor} goes on from there")).into()
        }
    }
}

fn lost(message: impl Into<String>) -> Failure {
    Failure::new(Code::ConnectionLost.exit(), Code::ConnectionLost.word(), message)
}

struct Style {
    json: bool,
    colour: bool,
}

impl Style {
    fn line(&self, event: &Event) -> String {
        if self.json {
            // A line feed outside of a text is a blank.
            return event.json().replace(['\n', '\r'], " ") + "\n";
        }
        let kind = format!("{:<KIND_WIDTH$}", escaped(&event.kind, FIELD_MAX_CHARS));
        let kind = if self.colour { format!("\u{1b}[1m{kind}\u{1b}[0m") } else { kind };
        let fields = fields(event.json()).map(|Fields(fields)| fields).unwrap_or_default();
        let own = ["cursor", "ts", "kind"];
        let fields: Vec<_> = fields
            .iter()
            .filter(|(name, _)| !own.contains(&name.as_str()))
            .map(|(name, value)| field(name, value))
            .collect();
        let line = format!("{}  {kind}  {}", escaped(&event.ts, FIELD_MAX_CHARS), fields.join("  "));
        format!("{}\n", line.trim_end())
    }
}

fn field(name: &str, value: &Value) -> String {
    format!("{}={}", escaped(name, FIELD_MAX_CHARS), shown(value))
}

/// A text as it is where that is one word, else in quotes; all else as JSON.
fn shown(value: &Value) -> String {
    match value {
        Value::String(text) => {
            let is_word = !text.is_empty() && !text.contains([' ', '"', '=', '\\']);
            if is_word {
                return escaped(text, FIELD_MAX_CHARS);
            }
            // Its own backslashes too: none of them may end the quotes.
            let quoted = text.replace('\\', "\\\\").replace('"', "\\\"");
            format!("\"{}\"", escaped(&quoted, FIELD_MAX_CHARS))
        }
        Value::Array(items) if !items.is_empty() && items.iter().all(Value::is_string) => {
            items.iter().map(shown).collect::<Vec<_>>().join(",")
        }
        Value::Object(who) if who.get("label").is_some_and(Value::is_string) => shown(&who["label"]),
        other => escaped(&other.to_string(), FIELD_MAX_CHARS),
    }
}

/// The members of an object in the order in which they were told, which is the manual's.
struct Fields(Vec<(String, Value)>);

fn fields(json: &str) -> serde_json::Result<Fields> {
    struct InOrder;
    impl<'de> Visitor<'de> for InOrder {
        type Value = Fields;

        fn expecting(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
            out.write_str("an object")
        }

        fn visit_map<A: MapAccess<'de>>(self, mut members: A) -> Result<Fields, A::Error> {
            let mut fields = Vec::new();
            while let Some(member) = members.next_entry()? {
                fields.push(member);
            }
            Ok(Fields(fields))
        }
    }
    serde_json::Deserializer::from_str(json).deserialize_map(InOrder)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(members: &str) -> String {
        let json = format!(r#"[{{"cursor":"a:1","ts":"2026-11-30T22:00:00.123Z",{members}}}]"#);
        let event = Event::of_test(&json);
        Style { json: false, colour: false }.line(&event)
    }

    #[test]
    fn a_line_has_the_time_the_kind_and_the_fields_in_the_order_in_which_they_were_told() {
        assert_eq!(
            line(
                r#""kind":"session-updated","session_id":"AQEBAQEBAQEBAQEBAQEBAQ","title":"my board","changed":["title","info"]"#
            ),
            "2026-11-30T22:00:00.123Z  session-updated     session_id=AQEBAQEBAQEBAQEBAQEBAQ  title=\"my board\"  changed=title,info\n"
        );
        let decided =
            line(r#""kind":"approval-decided","z":1,"by":{"credential":"x","label":"operator"},"a":{"b":[]}"#);
        assert!(decided.ends_with("  approval-decided    z=1  by=operator  a={\"b\":[]}\n"), "{decided}");
        assert!(line(r#""kind":"newer""#).ends_with("  newer\n"));
    }

    #[test]
    fn foreign_text_breaks_no_line_and_reaches_no_terminal() {
        let told = line(r#""kind":"k\u001b[2J","title":"a\nb\u001b[31m c","x":{"y":"\u202e"},"":"=\"""#);
        assert!(told.trim_end().chars().all(|c| !c.is_control()) && !told.contains('\u{202e}'), "{told}");
        assert!(told.contains(r#"title="a\nb\u{1b}[31m c""#) && told.contains(r#"="=\"""#), "{told}");
        assert_eq!(
            line(r#""kind":"k","title":"a\\\"  reason=\\""#),
            "2026-11-30T22:00:00.123Z  k                   title=\"a\\\\\\\"  reason=\\\\\"\n",
            "no quote of its own ends it"
        );
        let long = line(&format!(r#""kind":"k","title":"{}""#, "x".repeat(5_000)));
        assert!(long.len() < 300, "{}", long.len());
    }
}
