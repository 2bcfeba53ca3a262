//! `usher run`: what is said before the program is ours, all behind it the program's.

use std::collections::BTreeMap;

use lexopt::Arg::{Long, Value};

use crate::cli::run::RunArgs;
use crate::error::Failure;
use crate::limits::IN_FLIGHT_MAX;

use super::parse::{Line, Stop};
use super::value;

/// The words behind `run`.
pub(super) fn run(line: &mut Line) -> Result<RunArgs, Stop> {
    let (mut title, mut labels, mut on, mut max_in_flight) = (None, BTreeMap::new(), Vec::<(String, String)>::new(), 1);
    let mut command = Vec::new();
    while let Some(arg) = line.next()? {
        match arg {
            Long("title") => title = Some(line.text()?),
            Long("label") => {
                let (key, label) = value::pair("--label", &line.text()?)?;
                if labels.insert(key.clone(), label).is_some() {
                    return Err(Failure::usage(format!("--label {key} was given twice")).into());
                }
            }
            Long("on") => {
                let (name, shell) = value::pair("--on", &line.text()?)?;
                if on.iter().any(|(other, _)| *other == name) {
                    return Err(Failure::usage(format!("--on {name} was given twice")).into());
                }
                on.push((name, shell));
            }
            Long("max-in-flight") => {
                let text = line.text()?;
                max_in_flight =
                    text.parse().ok().filter(|count| (1..=IN_FLIGHT_MAX).contains(count)).ok_or_else(|| {
                        Failure::usage(format!("--max-in-flight takes 1 to {IN_FLIGHT_MAX}, not {text:?}"))
                    })?;
            }
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
    Ok(RunArgs { title, labels, on, max_in_flight, command })
}
