//! From words to [`Said`]: one function for each verb.

use std::ffi::OsString;
use std::time::Duration;

use lexopt::Arg::{self, Long, Short, Value};
use lexopt::Parser;

use crate::error::Failure;
use crate::wire::approvals::Decision;
use crate::wire::lines::Role;
use crate::wire::text::escaped;

use super::super::help::Topic;
use super::{
    ApprovalsArgs, AskArgs, AuditArgs, DecideArgs, Detail, DrainArgs, EventsArgs, Global, Input, RestartArgs, RpcArgs,
    Said, SelectorArgs, SendArgs, Since, StopArgs, Verb, VerifyArgs, WaitArgs, keys, run, value,
};

/// How long `usher wait` waits when it is not told.
const WAIT: Duration = Duration::from_secs(60);

/// How long `usher drain --wait` waits when it is not told: programs stay open for long.
const DRAIN: Duration = Duration::from_secs(24 * 60 * 60);
/// How long `usher restart` waits for commands, and then for sessions, when it is not told.
const RESTART: Duration = Duration::from_secs(30);

/// Why there is no verb to act on.
pub(super) enum Stop {
    /// What was said was a mistake.
    Mistake(Failure),
    /// An explanation is wanted instead.
    Help,
}

impl From<Failure> for Stop {
    fn from(failure: Failure) -> Self {
        Self::Mistake(failure)
    }
}

impl From<lexopt::Error> for Stop {
    fn from(error: lexopt::Error) -> Self {
        Self::Mistake(Failure::usage(error.to_string()))
    }
}

/// The words behind the program's name.
pub fn parse(words: impl IntoIterator<Item = OsString>) -> Result<Said, Failure> {
    let mut line = Line { parser: Parser::from_args(words), global: Global::default() };
    let mut topic = Topic::Usher;
    match line.said(&mut topic) {
        Ok(said) => Ok(said),
        Err(Stop::Help) => Ok(Said::Help(topic)),
        Err(Stop::Mistake(failure)) if failure.hint.is_some() => Err(failure),
        Err(Stop::Mistake(failure)) => Err(failure.hint(format!("{} --help explains it", topic.name()))),
    }
}

/// The words that are left, and the options of every verb that were among those before.
pub(super) struct Line {
    parser: Parser,
    global: Global,
}

impl Line {
    fn said(&mut self, topic: &mut Topic) -> Result<Said, Stop> {
        let verb = match self.next()? {
            None => return Err(Failure::usage("no verb was given").into()),
            Some(Long("version") | Short('V')) => return Ok(Said::Version),
            Some(Value(verb)) => value::text(verb)?,
            Some(other) => return Err(other.unexpected().into()),
        };
        if verb == "help" {
            if let Some(Value(verb)) = self.next()? {
                let verb = value::text(verb)?;
                *topic = Topic::of(&verb).ok_or_else(|| no_verb(&verb))?;
            }
            return Err(Stop::Help);
        }
        *topic = Topic::of(&verb).ok_or_else(|| no_verb(&verb))?;
        let verb = match topic {
            Topic::Usher => return Err(no_verb(&verb).into()),
            Topic::List => Verb::List(self.selector_only()?),
            Topic::Get => Verb::Get(self.selector_only()?),
            Topic::Send => Verb::Send(self.send()?),
            Topic::Wait => Verb::Wait(self.wait()?),
            Topic::Ask => Verb::Ask(self.ask()?),
            Topic::Approvals => Verb::Approvals(self.approvals()?),
            Topic::Approve => Verb::Decide(Decision::Approved, self.decide()?),
            Topic::Reject => Verb::Decide(Decision::Rejected, self.decide()?),
            Topic::Events => Verb::Events(self.events()?),
            Topic::Status => self.nothing(&["human"]).map(|()| Verb::Status)?,
            Topic::Health => self.nothing(&[]).map(|()| Verb::Health)?,
            Topic::Paths => Verb::Paths(self.name()?),
            Topic::Stop => Verb::Stop(self.stop()?),
            Topic::Drain => Verb::Drain(self.drain()?),
            Topic::Restart => Verb::Restart(self.restart()?),
            Topic::Rpc => Verb::Rpc(self.rpc()?),
            Topic::Keys => Verb::Keys(keys::keys(self)?),
            Topic::Verify => Verb::Verify(self.verify()?),
            Topic::Audit => Verb::Audit(self.audit()?),
            Topic::Run => Verb::Run(run::run(self)?),
            Topic::Attach => Verb::Attach(run::attach(self)?),
        };
        Ok(Said::Do(self.global.clone(), Box::new(verb)))
    }

    /// The next word that is not an option of every verb.
    pub fn next(&mut self) -> Result<Option<Arg<'static>>, Stop> {
        loop {
            match self.parser.next()? {
                Some(Long("json")) => self.global.json = true,
                Some(Long("operator")) => self.global.operator = true,
                Some(Long("help") | Short('h')) => return Err(Stop::Help),
                Some(Long("credential")) => self.global.credential = Some(self.parser.value()?.into()),
                None => return Ok(None),
                Some(Value(word)) => return Ok(Some(Value(word))),
                Some(Short(letter)) => return Ok(Some(Short(letter))),
                Some(Long(name)) => {
                    let name = name.to_owned();
                    return Ok(Some(Long(known(&name).ok_or_else(|| unknown(&name))?)));
                }
            }
        }
    }

    /// The value of the option that was just read.
    pub fn value(&mut self) -> Result<OsString, Stop> {
        Ok(self.parser.value()?)
    }

    /// The same as text.
    pub fn text(&mut self) -> Result<String, Stop> {
        Ok(value::text(self.parser.value()?)?)
    }

    /// All words that are left, options of ours or not.
    pub fn rest(&mut self) -> Result<Vec<OsString>, Stop> {
        Ok(self.parser.raw_args()?.collect())
    }

    fn nothing(&mut self, allowed: &[&str]) -> Result<(), Stop> {
        while let Some(arg) = self.next()? {
            match arg {
                Long(name) if allowed.contains(&name) => {}
                other => return Err(other.unexpected().into()),
            }
        }
        Ok(())
    }

    fn name(&mut self) -> Result<Option<String>, Stop> {
        let mut name = None;
        while let Some(arg) = self.next()? {
            match arg {
                Value(word) if name.is_none() => name = Some(value::text(word)?),
                other => return Err(other.unexpected().into()),
            }
        }
        Ok(name)
    }

    fn selector_only(&mut self) -> Result<SelectorArgs, Stop> {
        let mut selector = SelectorArgs::default();
        while let Some(arg) = self.next()? {
            match arg {
                Long(name) if is_selector(name) => self.select(name, &mut selector)?,
                other => return Err(other.unexpected().into()),
            }
        }
        Ok(selector)
    }

    /// Takes one option of a selector; each but a label says which session, so it cannot be said twice.
    pub fn select(&mut self, name: &'static str, selector: &mut SelectorArgs) -> Result<(), Stop> {
        let given = self.value()?;
        let again = match name {
            "session" => selector.session.replace(value::text(given)?).is_some(),
            "title" => selector.title.replace(value::text(given)?).is_some(),
            "cwd" => selector.cwd.replace(given.into()).is_some(),
            "repo" => selector.repo.replace(given.into()).is_some(),
            _ => {
                selector.labels.push(value::pair("--label", &value::text(given)?)?);
                false
            }
        };
        if again { Err(Failure::usage(format!("--{name} was given twice")).into()) } else { Ok(()) }
    }

    fn send(&mut self) -> Result<SendArgs, Stop> {
        let (mut selector, mut command, mut input) = (SelectorArgs::default(), None, None);
        let (mut deadline, mut key) = (None, None);
        while let Some(arg) = self.next()? {
            match arg {
                Long(name) if is_selector(name) => self.select(name, &mut selector)?,
                Long("deadline") => deadline = Some(value::duration(&self.text()?)?),
                Long("key") => key = Some(self.text()?),
                Long("text") if input.is_none() => input = Some(Input::Text(self.text()?)),
                Value(word) if command.is_none() => command = Some(value::text(word)?),
                Value(word) if input.is_none() => input = Some(value::input(word)?),
                Long("text") | Value(_) => return Err(Failure::usage("more than one input was given").into()),
                other => return Err(other.unexpected().into()),
            }
        }
        let command = command.ok_or_else(|| Failure::usage("no command was given"))?;
        Ok(SendArgs { selector, command, input, deadline, key })
    }

    fn wait(&mut self) -> Result<WaitArgs, Stop> {
        let (mut selector, mut timeout) = (SelectorArgs::default(), WAIT);
        while let Some(arg) = self.next()? {
            match arg {
                Long(name) if is_selector(name) => self.select(name, &mut selector)?,
                Long("timeout") => timeout = value::duration(&self.text()?)?,
                other => return Err(other.unexpected().into()),
            }
        }
        Ok(WaitArgs { selector, timeout })
    }

    fn ask(&mut self) -> Result<AskArgs, Stop> {
        let (mut summary, mut detail, mut ttl, mut receipt) = (None, None, None, None);
        while let Some(arg) = self.next()? {
            match arg {
                Long("detail") if detail.is_none() => detail = Some(Detail::Text(self.text()?)),
                Long("detail-file") if detail.is_none() => detail = Some(Detail::File(self.value()?.into())),
                Long("detail" | "detail-file") => return Err(Failure::usage("more than one detail was given").into()),
                Long("ttl") => ttl = Some(value::duration(&self.text()?)?),
                Long("receipt") => receipt = Some(self.value()?.into()),
                Value(word) if summary.is_none() => summary = Some(value::text(word)?),
                other => return Err(other.unexpected().into()),
            }
        }
        let summary = summary.ok_or_else(|| Failure::usage("no question was given"))?;
        Ok(AskArgs { summary, detail, ttl, receipt })
    }

    fn approvals(&mut self) -> Result<ApprovalsArgs, Stop> {
        let mut args = ApprovalsArgs::default();
        while let Some(arg) = self.next()? {
            match arg {
                Long("follow") => args.follow = true,
                Value(word) if args.id.is_none() => args.id = Some(value::text(word)?),
                other => return Err(other.unexpected().into()),
            }
        }
        if args.follow && args.id.is_some() {
            return Err(Failure::usage("--follow shows all of them and takes no id").into());
        }
        Ok(args)
    }

    fn decide(&mut self) -> Result<DecideArgs, Stop> {
        let (mut ids, mut reason, mut receipt) = (Vec::new(), None, None);
        while let Some(arg) = self.next()? {
            match arg {
                Long("reason") => reason = Some(self.text()?),
                Long("receipt") => receipt = Some(self.value()?.into()),
                Value(word) => ids.push(value::text(word)?),
                other => return Err(other.unexpected().into()),
            }
        }
        if ids.is_empty() {
            return Err(Failure::usage("no approval was named").hint("usher approvals shows them").into());
        }
        if receipt.is_some() && ids.len() > 1 {
            return Err(Failure::usage("--receipt goes with one approval").into());
        }
        Ok(DecideArgs { ids, reason, receipt })
    }

    fn events(&mut self) -> Result<EventsArgs, Stop> {
        let mut args = EventsArgs::default();
        while let Some(arg) = self.next()? {
            match arg {
                Long("follow") => args.follow = true,
                Long("since") => args.since = Some(self.text()?),
                Long("kind") => args.kinds.push(self.text()?),
                Long(name) if is_selector(name) => self.select(name, &mut args.selector)?,
                other => return Err(other.unexpected().into()),
            }
        }
        Ok(args)
    }

    fn stop(&mut self) -> Result<StopArgs, Stop> {
        let mut args = StopArgs::default();
        while let Some(arg) = self.next()? {
            match arg {
                Long("force") => args.force = true,
                Long("receipt") => args.receipt = Some(self.value()?.into()),
                other => return Err(other.unexpected().into()),
            }
        }
        Ok(args)
    }

    fn drain(&mut self) -> Result<DrainArgs, Stop> {
        let (mut waits, mut timeout, mut receipt) = (false, None, None);
        while let Some(arg) = self.next()? {
            match arg {
                Long("wait") => waits = true,
                Long("timeout") => timeout = Some(value::duration(&self.text()?)?),
                Long("receipt") => receipt = Some(self.value()?.into()),
                other => return Err(other.unexpected().into()),
            }
        }
        if timeout.is_some() && !waits {
            return Err(Failure::usage("--timeout goes with --wait").into());
        }
        Ok(DrainArgs { wait: waits.then(|| timeout.unwrap_or(DRAIN)), receipt })
    }

    fn restart(&mut self) -> Result<RestartArgs, Stop> {
        let mut timeout = RESTART;
        while let Some(arg) = self.next()? {
            match arg {
                Long("timeout") => timeout = value::duration(&self.text()?)?,
                other => return Err(other.unexpected().into()),
            }
        }
        Ok(RestartArgs { timeout })
    }

    fn rpc(&mut self) -> Result<RpcArgs, Stop> {
        let (mut method, mut params, mut payload, mut role) = (None, None, None, None);
        while let Some(arg) = self.next()? {
            match arg {
                Long("payload") => payload = Some(value::input(self.value()?)?),
                Long("role") => role = Some(self.role()?),
                Value(word) if method.is_none() => method = Some(value::text(word)?),
                Value(word) if params.is_none() => params = Some(value::input(word)?),
                other => return Err(other.unexpected().into()),
            }
        }
        let method = method.ok_or_else(|| Failure::usage("no method was given"))?;
        if params == Some(Input::Stdin) && payload == Some(Input::Stdin) {
            return Err(Failure::usage("standard input can be read once only").into());
        }
        Ok(RpcArgs { method, params, payload, role })
    }

    /// The value of `--role`.
    pub fn role(&mut self) -> Result<Role, Stop> {
        let word = self.text()?;
        Role::from_word(&word)
            .ok_or_else(|| Failure::usage(format!("--role takes producer, caller or operator, not {word:?}")).into())
    }

    fn audit(&mut self) -> Result<AuditArgs, Stop> {
        let mut args = AuditArgs::default();
        while let Some(arg) = self.next()? {
            match arg {
                Long("follow") => args.follow = true,
                Long("verify") => args.verify = true,
                Long("since") => args.since = Some(since(&self.text()?)?),
                other => return Err(other.unexpected().into()),
            }
        }
        if args.verify && (args.follow || args.since.is_some()) {
            return Err(Failure::usage("--verify looks at all of it, once: leave --follow and --since out").into());
        }
        Ok(args)
    }

    fn verify(&mut self) -> Result<VerifyArgs, Stop> {
        let (mut file, mut daemon_key) = (None, None);
        while let Some(arg) = self.next()? {
            match arg {
                Long("daemon-key") => daemon_key = Some(value::key(self.value()?)?),
                Value(word) if file.is_none() => file = Some(word.into()),
                other => return Err(other.unexpected().into()),
            }
        }
        let file = file.ok_or_else(|| Failure::usage("no receipt file was given"))?;
        Ok(VerifyArgs { file, daemon_key })
    }
}

fn since(word: &str) -> Result<Since, Failure> {
    let seq = word.parse().ok().map(Since::Seq);
    seq.or_else(|| word.parse().ok().map(Since::Time)).ok_or_else(|| {
        Failure::usage(format!("--since takes a line's number or an instant (RFC 3339), not {:?}", escaped(word, 64)))
    })
}

/// Options of selectors.
pub(super) fn is_selector(name: &str) -> bool {
    matches!(name, "session" | "cwd" | "repo" | "label" | "title")
}

/// Every long option of some verb, as a name that outlives the words.
fn known(name: &str) -> Option<&'static str> {
    const NAMES: [&str; 35] = [
        "kind",
        "wait",
        "detail",
        "detail-file",
        "ttl",
        "follow",
        "reason",
        "version",
        "human",
        "session",
        "cwd",
        "repo",
        "key",
        "label",
        "title",
        "deadline",
        "text",
        "timeout",
        "force",
        "receipt",
        "payload",
        "role",
        "daemon-key",
        "on",
        "max-in-flight",
        "scope",
        "row",
        "label-match",
        "command",
        "expires",
        "out",
        "public-key",
        "all",
        "since",
        "verify",
    ];
    NAMES.into_iter().find(|known| *known == name)
}

fn unknown(name: &str) -> Failure {
    Failure::usage(format!("invalid option {:?}", format!("--{name}")))
}

fn no_verb(name: &str) -> Failure {
    Failure::usage(format!("there is no such verb: {}", escaped(name, 64))).hint("usher --help lists them")
}

#[cfg(test)]
#[path = "tests.rs"]
mod tests;
