//! `usher paths`: where everything is. It looks at nothing.

use std::os::unix::ffi::OsStrExt;
use std::process::ExitCode;

use serde_json::{Map, Value};

use crate::error::{Exit, Failure};
use crate::store::Paths;
use crate::wire::text::escaped;

use super::args::Global;
use super::{Outcome, out};

/// Prints all of them, or one as it is.
pub fn main(global: &Global, name: Option<&str>) -> Outcome {
    let mut list = Paths::from_env()?.list();
    if let Some(name) = name {
        let known: Vec<_> = list.iter().map(|(name, ..)| *name).collect();
        let known = known.join(" ");
        list.retain(|(other, ..)| *other == name);
        if list.is_empty() {
            let message = format!("nothing is called {name:?}");
            return Err(Failure::new(Exit::Usage, "usage", message).hint(format!("there are {known}")).into());
        }
    }
    if global.json {
        let document: Map<String, Value> = list
            .into_iter()
            .map(|(name, path, _)| (name.to_owned(), Value::from(path.to_string_lossy().into_owned())))
            .collect();
        out::json(&document)?;
    } else if name.is_some() {
        let path = list.first().map(|(_, path, _)| path.as_os_str().as_bytes()).unwrap_or_default();
        out::bytes(&[path, b"\n"].concat())?;
    } else {
        let lines = list
            .iter()
            .map(|(name, path, what)| format!("{name:<14}  {}  ({what})\n", escaped(&path.to_string_lossy(), 4096)));
        out::text(&lines.collect::<String>())?;
    }
    Ok(ExitCode::SUCCESS)
}
