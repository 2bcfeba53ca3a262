//! `usher run` and `usher attach`: what a session is to be. Behind the first word that is no option of `run`, all is the
//! program's.

use lexopt::Arg::{self, Long, Value};

use crate::cli::attach::AttachArgs;
use crate::cli::run::RunArgs;
use crate::cli::session::Named;
use crate::error::Failure;
use crate::limits::IN_FLIGHT_MAX;

use super::parse::{Line, Stop};
use super::value;

/// The words behind `run`.
pub(super) fn run(line: &mut Line) -> Result<RunArgs, Stop> {
    let (mut named, mut on, mut command) = (Named::default(), Vec::<(String, String)>::new(), Vec::new());
    while let Some(arg) = line.next()? {
        match arg {
            Long("on") => {
                let (name, shell) = value::pair("--on", &line.text()?)?;
                if on.iter().any(|(other, _)| *other == name) {
                    return Err(Failure::usage(format!("--on {name} was given twice")).into());
                }
                on.push((name, shell));
            }
            Long(name) if is_named(name) => set(&mut named, name, line)?,
            Value(program) => {
                command.push(program);
                command.extend(line.rest()?);
            }
            other => return Err(other.unexpected().into()),
        }
    }
    if command.is_empty() {
        return Err(Failure::usage("no program was given").into());
    }
    Ok(RunArgs { named, on, command })
}

/// The words behind `attach`.
pub(super) fn attach(line: &mut Line) -> Result<AttachArgs, Stop> {
    let (mut named, mut commands) = (Named::default(), Vec::<String>::new());
    while let Some(arg) = line.next()? {
        match arg {
            Long("command") => {
                let name = line.text()?;
                if commands.contains(&name) {
                    return Err(Failure::usage(format!("--command {name} was given twice")).into());
                }
                commands.push(name);
            }
            Long(name) if is_named(name) => set(&mut named, name, line)?,
            other => return Err(unexpected(other)),
        }
    }
    Ok(AttachArgs { named, commands })
}

fn unexpected(arg: Arg<'_>) -> Stop {
    arg.unexpected().into()
}

fn is_named(option: &str) -> bool {
    matches!(option, "title" | "label" | "max-in-flight")
}

fn set(named: &mut Named, option: &str, line: &mut Line) -> Result<(), Stop> {
    let text = line.text()?;
    match option {
        "title" => named.title = Some(text),
        "label" => {
            let (key, label) = value::pair("--label", &text)?;
            if named.labels.insert(key.clone(), label).is_some() {
                return Err(Failure::usage(format!("--label {key} was given twice")).into());
            }
        }
        _ => {
            let count = text.parse().ok().filter(|count| (1..=IN_FLIGHT_MAX).contains(count));
            named.max_in_flight =
                Some(count.ok_or_else(|| {
                    Failure::usage(format!("--max-in-flight takes 1 to {IN_FLIGHT_MAX}, not {text:?}"))
                })?);
        }
    }
    Ok(())
}
