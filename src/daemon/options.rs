//! What was said on the command line of `usherd`. Parsing touches nothing of the system.

use std::ffi::OsString;
use std::fmt::Write;
use std::time::Duration;

use lexopt::prelude::{Long, Short, ValueExt};

use crate::error::Failure;
use crate::limits::{Limits, PROTOCOL_MAX, PROTOCOL_MIN};
use crate::version::version;
use crate::wire::lines::Range;

/// How long a daemon stays with nothing to do: longer than a person needs for the next command, short enough that an
/// upgrade meets an old one seldom.
const IDLE_EXIT: Duration = Duration::from_secs(60);

/// How to run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Mode {
    /// Here, with the log on stderr.
    Foreground,
    /// Start a detached one and return when it is ready.
    Background,
    /// Be that one.
    Detached,
}

/// What to run with.
#[derive(Debug, Clone)]
pub(super) struct Options {
    pub(super) mode: Mode,
    pub(super) limits: Limits,
    /// How long to stay with nothing to do; `None`: for ever.
    pub(super) idle_exit: Option<Duration>,
    /// Limits and times as they were given, for handing them on.
    pub(super) given: Vec<String>,
}

/// What to do.
#[derive(Debug)]
pub(super) enum Action {
    Print(String),
    Run(Box<Options>),
}

pub(super) fn parse(args: impl IntoIterator<Item = OsString>) -> Result<Action, Failure> {
    let mut parser = lexopt::Parser::from_iter(args);
    let (mode, idle_exit) = (Mode::Foreground, Some(IDLE_EXIT));
    let mut options = Options { mode, limits: Limits::default(), idle_exit, given: Vec::new() };
    let usage = |error: lexopt::Error| Failure::usage(error.to_string()).hint("usherd --help");
    while let Some(arg) = parser.next().map_err(usage)? {
        match arg {
            Long("help") | Short('h') => return Ok(Action::Print(help())),
            Long("version") | Short('V') => return Ok(Action::Print(version())),
            Long("background") => options.mode = Mode::Background,
            // Between the launcher and the daemon; not for people.
            Long("detached") => options.mode = Mode::Detached,
            Long("limit") => {
                let text = parser.value().and_then(ValueExt::string).map_err(usage)?;
                let parsed = text.split_once('=').and_then(|(name, value)| Some((name, value.parse().ok()?)));
                let (name, value) = parsed.ok_or_else(|| Failure::usage("--limit takes NAME=N"))?;
                options.limits.lower(name, value).map_err(Failure::usage)?;
                options.given.extend(["--limit".to_owned(), text]);
            }
            Long("idle-exit") => {
                let text = parser.value().and_then(ValueExt::string).map_err(usage)?;
                let seconds: u32 =
                    text.parse().map_err(|_| Failure::usage("--idle-exit takes seconds, or 0 to stay"))?;
                options.idle_exit = (seconds > 0).then(|| Duration::from_secs(seconds.into()));
                options.given.extend(["--idle-exit".to_owned(), text]);
            }
            Long("protocol") => {
                let text = parser.value().and_then(ValueExt::string).map_err(usage)?;
                let range = text
                    .split_once('-')
                    .and_then(|(min, max)| Some(Range { min: min.parse().ok()?, max: max.parse().ok()? }));
                let range = range.ok_or_else(|| Failure::usage("--protocol takes MIN-MAX"))?;
                if Range::OURS.common(range).is_none() {
                    return Err(Failure::new(
                        crate::error::Exit::Incompatible,
                        "incompatible",
                        format!("this usherd speaks protocol {PROTOCOL_MIN} to {PROTOCOL_MAX}, not {text}"),
                    )
                    .hint("install usher and usherd of the same version side by side"));
                }
            }
            other => return Err(usage(other.unexpected())),
        }
    }
    Ok(Action::Run(Box::new(options)))
}

fn version() -> String {
    format!("usherd {} (protocol {PROTOCOL_MIN} to {PROTOCOL_MAX})\n", version!())
}

fn help() -> String {
    let mut text = "\
usherd: a private daemon through which scripts and agents drive the programs you already have open

usage: usherd [--background] [--idle-exit SECONDS] [--limit NAME=N]… [--protocol MIN-MAX]

It runs in the foreground, logs to stderr and ends at SIGTERM or SIGINT, or when nobody needs it any more. `usher run` starts
one by itself.

  --background        start a daemon that leaves nothing of the shell behind; return when it is ready
  --idle-exit SECONDS end after so long without a session, an open approval or a connection (60; 0: never)
  --limit NAME=N      lower a limit (below)
  --protocol MIN-MAX  fail unless it speaks one of these protocols
  -h, --help          this text
  -V, --version       the version

environment
  USHER_DIR           its directory (default ~/.local/state/usher/<host>)
  USHER_LOG           what is logged: error, warn, info (default), debug

limits (default, what they protect)
"
    .to_owned();
    for (name, value, reason) in Limits::table() {
        let _infallible = writeln!(text, "  {name:<24}{value:>10}  {reason}");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(args: &[&str]) -> Result<Action, Failure> {
        parse(std::iter::once("usherd").chain(args.iter().copied()).map(OsString::from))
    }

    #[test]
    fn limits_are_lowered_by_name() {
        let Ok(Action::Run(options)) = parsed(&["--limit", "sessions=3"]) else { panic!("refused") };
        assert_eq!(
            (options.limits.sessions, options.given.as_slice()),
            (3, &["--limit".to_owned(), "sessions=3".to_owned()][..])
        );
        for wrong in ["sessions", "sessions=x", "sessions=99999", "nothing=1"] {
            assert!(parsed(&["--limit", wrong]).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_daemon_goes_after_a_minute_with_nothing_to_do_unless_it_is_told_otherwise() {
        for (args, expected) in [
            (&[][..], Some(Duration::from_secs(60))),
            (&["--idle-exit", "5"], Some(Duration::from_secs(5))),
            (&["--idle-exit=0"], None),
        ] {
            let Ok(Action::Run(options)) = parsed(args) else { panic!("refused") };
            assert_eq!(options.idle_exit, expected);
        }
        for wrong in ["soon", "-1", "1.5", ""] {
            assert!(parsed(&["--idle-exit", wrong]).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_range_without_a_common_protocol_is_refused() {
        assert!(parsed(&["--protocol", "1-3"]).is_ok());
        assert_eq!(parsed(&["--protocol", "2-3"]).unwrap_err().exit, crate::error::Exit::Incompatible);
    }

    #[test]
    fn help_names_every_limit_and_what_is_unknown_is_refused() {
        let Ok(Action::Print(text)) = parsed(&["--help"]) else { panic!("no help") };
        for (name, ..) in Limits::table() {
            assert!(text.contains(name), "{name}");
        }
        assert!(parsed(&["--nothing"]).is_err());
        assert!(parsed(&["extra"]).is_err());
    }
}
