//! `usher keys`: what is said about credentials.

use std::path::PathBuf;
use std::time::Duration;

use lexopt::Arg::{Long, Value};

use crate::error::Failure;
use crate::wire::lines::Role;

use super::parse::{Line, Stop, is_selector};
use super::{KeyArg, SelectorArgs, value};

/// What is to be done with credentials. `who` is an id, a unique prefix of one, a label, or a role's word for its default.
#[derive(Debug, PartialEq)]
pub enum KeysArgs {
    List { all: bool },
    Show { who: String },
    New { grant: NewKey, out: PathBuf },
    Enroll { grant: NewKey, public_key: KeyArg },
    Revoke { who: String, receipt: Option<PathBuf> },
    Renew { who: Grantee, expires: Option<Duration> },
}

/// Whose end or key is to be new.
#[derive(Debug, PartialEq)]
pub enum Grantee {
    /// The default of a role: a new key.
    Default(Role),
    /// A credential: a new end.
    Credential(String),
}

/// What a new credential may do.
#[derive(Debug, PartialEq)]
pub struct NewKey {
    pub label: String,
    pub role: Role,
    /// Names of methods; none stands for all of the role's row.
    pub scopes: Option<Vec<String>>,
    /// Any of these; none of them stands for every session.
    pub sessions: Vec<SelectorArgs>,
    /// Exactly these; none stands for all.
    pub commands: Option<Vec<String>>,
    pub expires: Option<Duration>,
}

/// The words behind `keys`.
pub(super) fn keys(line: &mut Line) -> Result<KeysArgs, Stop> {
    let Some(Value(verb)) = line.next()? else {
        return Err(Failure::usage("keys takes list, show, new, enroll, revoke or renew").into());
    };
    match value::text(verb)?.as_str() {
        "list" => list(line),
        "show" => who(line, &[]).map(|words| KeysArgs::Show { who: words.who }),
        "new" => {
            let words = grant(line, "out")?;
            let out = words.out.ok_or_else(|| Failure::usage("--out DIR is missing: where the bundle goes"))?;
            Ok(KeysArgs::New { grant: words.grant, out })
        }
        "enroll" => {
            let words = grant(line, "public-key")?;
            let public_key = words.public_key.ok_or_else(|| Failure::usage("--public-key KEY or @FILE is missing"))?;
            Ok(KeysArgs::Enroll { grant: words.grant, public_key })
        }
        "revoke" => who(line, &["receipt"]).map(|words| KeysArgs::Revoke { who: words.who, receipt: words.receipt }),
        "renew" => who(line, &["expires"]).map(|words| {
            let who = Role::from_word(&words.who).map_or(Grantee::Credential(words.who), Grantee::Default);
            KeysArgs::Renew { who, expires: words.expires }
        }),
        _ => Err(Failure::usage("keys takes list, show, new, enroll, revoke or renew").into()),
    }
}

fn list(line: &mut Line) -> Result<KeysArgs, Stop> {
    let mut all = false;
    while let Some(arg) = line.next()? {
        match arg {
            Long("all") => all = true,
            other => return Err(other.unexpected().into()),
        }
    }
    Ok(KeysArgs::List { all })
}

struct Who {
    who: String,
    receipt: Option<PathBuf>,
    expires: Option<Duration>,
}

fn who(line: &mut Line, options: &[&str]) -> Result<Who, Stop> {
    let (mut who, mut receipt, mut expires) = (None, None, None);
    while let Some(arg) = line.next()? {
        match arg {
            Long("receipt") if options.contains(&"receipt") => receipt = Some(line.value()?.into()),
            Long("expires") if options.contains(&"expires") => expires = Some(value::duration(&line.text()?)?),
            Value(word) if who.is_none() => who = Some(value::text(word)?),
            other => return Err(other.unexpected().into()),
        }
    }
    let who = who.ok_or_else(|| Failure::usage("name a credential: its id or the beginning of it, label or role"))?;
    Ok(Who { who, receipt, expires })
}

struct Grant {
    grant: NewKey,
    out: Option<PathBuf>,
    public_key: Option<KeyArg>,
}

/// `place` is the option that says where the key is.
fn grant(line: &mut Line, place: &str) -> Result<Grant, Stop> {
    let (mut label, mut role, mut row, mut scopes) = (None, Role::Caller, false, Vec::new());
    let (mut sessions, mut commands, mut expires) = (Vec::new(), Vec::new(), None);
    let (mut out, mut public_key) = (None, None);
    while let Some(arg) = line.next()? {
        match arg {
            Long("label") => label = Some(line.text()?),
            Long("role") => role = line.role()?,
            Long("scope") => scopes.push(line.text()?),
            Long("row") => row = true,
            Long("label-match") => {
                let pair = value::pair("--label-match", &line.text()?)?;
                last(&mut sessions, |_| false).labels.push(pair);
            }
            Long(name) if is_selector(name) => {
                let selector = last(&mut sessions, |selector| is_said(selector, name));
                line.select(name, selector)?;
            }
            Long("command") => commands.push(line.text()?),
            Long("expires") => expires = Some(value::duration(&line.text()?)?),
            Long("out") if place == "out" => out = Some(line.value()?.into()),
            Long("public-key") if place == "public-key" => public_key = Some(value::key(line.value()?)?),
            other => return Err(other.unexpected().into()),
        }
    }
    let label = label.ok_or_else(|| Failure::usage("--label is missing: what people know it by"))?;
    let scopes = match (row, scopes.is_empty()) {
        (true, true) => None,
        (false, false) => Some(scopes),
        (true, false) => return Err(Failure::usage("--row is all there is; leave --scope out").into()),
        (false, true) => {
            let row = crate::wire::methods::Scopes::row(role).names().join(" ");
            let message = format!("say what it may do: --scope for each of {row}; or --row for all of them");
            return Err(Failure::usage(message).into());
        }
    };
    let commands = Some(commands).filter(|commands| !commands.is_empty());
    Ok(Grant { grant: NewKey { label, role, scopes, sessions, commands, expires }, out, public_key })
}

/// The selector that is being said; a word that stands in it already begins the next.
fn last(sessions: &mut Vec<SelectorArgs>, is_said: impl Fn(&SelectorArgs) -> bool) -> &mut SelectorArgs {
    if sessions.last().is_none_or(is_said) {
        sessions.push(SelectorArgs::default());
    }
    let end = sessions.len() - 1;
    &mut sessions[end]
}

fn is_said(selector: &SelectorArgs, name: &str) -> bool {
    match name {
        "session" => selector.session.is_some(),
        "title" => selector.title.is_some(),
        "cwd" => selector.cwd.is_some(),
        _ => selector.repo.is_some(),
    }
}
