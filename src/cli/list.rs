//! `usher list`: which window is that?

use std::path::Path;
use std::process::ExitCode;

use serde::Serialize;
use serde_json::value::RawValue;

use crate::ids::Generation;
use crate::wire::methods::Method;
use crate::wire::rows::{Row, State, Terminal};
use crate::wire::selector::Selector;

use super::args::{Global, SelectorArgs};
use super::ask::{self, Asker, Missed};
use super::table::{self, Column};
use super::trouble::Trouble;
use super::{Outcome, out, select, time};

/// Characters of a session id that are shown at least.
const ID_CHARS: usize = 8;
/// Commands that are named.
const COMMANDS_SHOWN: usize = 4;

const COLUMNS: &[Column] = &[
    Column::new("SESSION", 22),
    Column::new("TITLE", 32),
    Column::path("WHERE", 44),
    Column::new("TERMINAL", 24),
    Column::number("PID"),
    Column::number("AGE"),
    Column::new("STATE", 8),
    Column::number("PENDING"),
    Column::new("COMMANDS", 40),
];

/// Parameters of `session.list`.
#[derive(Serialize)]
struct List<'a> {
    selector: &'a Selector,
}

#[derive(Serialize)]
struct Document {
    daemon: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    generation: Option<Generation>,
    sessions: Vec<Box<RawValue>>,
}

/// Shows the sessions; none without a daemon.
pub fn main(global: &Global, args: &SelectorArgs) -> Outcome {
    let selector = select::request(args)?;
    let target = ask::target(global)?;
    let mut asker = match Asker::connect(&target, Method::SessionList) {
        Ok(asker) => asker,
        Err(Missed::NotRunning) if global.json => {
            out::json(&Document { daemon: "not-running", generation: None, sessions: Vec::new() })?;
            return Ok(ExitCode::SUCCESS);
        }
        Err(Missed::NotRunning) => {
            out::note("no daemon is running");
            return Ok(ExitCode::SUCCESS);
        }
        Err(Missed::Trouble(trouble)) => return Err(trouble),
    };
    let sessions = asker.pages(Method::SessionList, &List { selector: &selector })?;
    if global.json {
        let generation = Some(asker.caller().proved().generation);
        out::json(&Document { daemon: "running", generation, sessions })?;
    } else if sessions.is_empty() {
        let all = selector == Selector::default();
        out::note(if all { "no session is registered" } else { "no session matches" });
    } else {
        out::text(&human(&sessions)?)?;
    }
    Ok(ExitCode::SUCCESS)
}

fn human(sessions: &[Box<RawValue>]) -> Result<String, Trouble> {
    let name = Method::SessionList.name();
    let rows = sessions.iter().map(|row| ask::read::<Row>(row, name)).collect::<Result<Vec<_>, _>>()?;
    let ids: Vec<_> = rows.iter().map(|row| row.session_id).collect();
    let length = prefix_length(&ids);
    let home = std::env::var("HOME").unwrap_or_default();
    let cells: Vec<_> = rows.iter().map(|row| cells(row, length, &home)).collect();
    let width = std::env::var("COLUMNS").ok().and_then(|columns| columns.parse().ok());
    let text = table::text(COLUMNS, &cells, width);
    Ok(if out::is_colourful() { coloured(&text, &rows) } else { text })
}

fn cells(row: &Row, length: usize, home: &str) -> Vec<String> {
    let id = row.session_id.to_string();
    vec![
        id[..length].to_owned(),
        row.title.clone(),
        place(&row.cwd, row.repo_root.as_deref(), home),
        row.terminal.as_ref().map(terminal).unwrap_or_default(),
        row.pid.to_string(),
        time::age(time::since_ms(row.started)),
        match row.state {
            State::Live => "live".to_owned(),
            State::Stale => "stale".to_owned(),
        },
        row.pending.to_string(),
        commands(row),
    ]
}

/// So many characters that no two ids begin alike.
pub fn prefix_length(ids: &[impl ToString]) -> usize {
    let mut texts: Vec<_> = ids.iter().map(ToString::to_string).collect();
    texts.sort();
    let alike = |pair: &[String]| pair[0].bytes().zip(pair[1].bytes()).take_while(|(a, b)| a == b).count();
    texts.windows(2).map(|pair| alike(pair) + 1).max().unwrap_or(0).clamp(ID_CHARS, 22)
}

/// The working directory, with `~` for home, and the repository where that is another.
pub fn place(cwd: &str, repo: Option<&str>, home: &str) -> String {
    let short = |path: &str| match Path::new(path).strip_prefix(home) {
        Ok(rest) if home.len() > 1 && rest.as_os_str().is_empty() => "~".to_owned(),
        Ok(rest) if home.len() > 1 => format!("~/{}", rest.display()),
        _ => path.to_owned(),
    };
    match repo {
        Some(repo) if Path::new(repo) != Path::new(cwd) => {
            let name = Path::new(repo).file_name().map(|name| name.to_string_lossy().into_owned());
            format!("{} ({})", short(cwd), name.unwrap_or_else(|| repo.to_owned()))
        }
        _ => short(cwd),
    }
}

/// What a person can look for: a pane, a terminal's name, a program.
pub fn terminal(terminal: &Terminal) -> String {
    let tty = terminal.tty.as_deref().map(|tty| tty.strip_prefix("/dev/").unwrap_or(tty).to_owned());
    let pane = terminal.tmux_pane.as_ref().map(|pane| format!("tmux {pane}"));
    let program = terminal.program.clone().filter(|program| pane.is_none() || program != "tmux");
    [pane, tty, program].into_iter().flatten().collect::<Vec<_>>().join(" ")
}

fn commands(row: &Row) -> String {
    let mut names: Vec<_> = row.commands.iter().take(COMMANDS_SHOWN).map(|command| command.name.clone()).collect();
    if row.commands.len() > COMMANDS_SHOWN {
        names.push(format!("+{}", row.commands.len() - COMMANDS_SHOWN));
    }
    names.join(" ")
}

/// The heading bold, what is stale dim; the line is coloured as a whole, so foreign text is never parsed for it.
fn coloured(text: &str, rows: &[Row]) -> String {
    let style = |line: usize| match line.checked_sub(1).and_then(|at| rows.get(at)) {
        None => Some("\u{1b}[1m"),
        Some(row) if row.state == State::Stale => Some("\u{1b}[2m"),
        Some(_) => None,
    };
    let lines = text.lines().enumerate().map(|(at, line)| match style(at) {
        Some(style) => format!("{style}{line}\u{1b}[0m\n"),
        None => format!("{line}\n"),
    });
    lines.collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::SessionId;

    #[test]
    fn an_id_is_shown_as_far_as_it_takes_to_tell_it_from_the_others() {
        let id = |text: &str| text.parse::<SessionId>().unwrap();
        assert_eq!(prefix_length(&[""; 0]), 8);
        assert_eq!(prefix_length(&[id("AAAAAAAAAAAAAAAAAAAAAA")]), 8);
        assert_eq!(prefix_length(&[id("AAAAAAAAAAAAAAAAAAAAAA"), id("AAAAAAAAAABBBBBBBBBBBA")]), 11);
    }

    #[test]
    fn a_place_is_short_and_names_another_repository() {
        assert_eq!(place("/home/a/x", Some("/home/a/x"), "/home/a"), "~/x");
        assert_eq!(place("/home/a", None, "/home/a"), "~");
        assert_eq!(place("/home/ab", None, "/home/a"), "/home/ab");
        assert_eq!(place("/home/a/x/src", Some("/home/a/x"), "/home/a"), "~/x/src (x)");
        assert_eq!(place("/x", None, "/"), "/x");
        assert_eq!(place("/x", None, ""), "/x");
    }

    #[test]
    fn a_terminal_is_told_by_what_one_can_look_for() {
        let tmux = Terminal {
            tty: Some("/dev/pts/3".into()),
            tmux_pane: Some("%5".into()),
            program: Some("tmux".into()),
            ..Terminal::default()
        };
        assert_eq!(terminal(&tmux), "tmux %5 pts/3");
        assert_eq!(terminal(&Terminal { program: Some("ghostty".into()), ..Terminal::default() }), "ghostty");
    }
}
