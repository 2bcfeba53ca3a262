//! Which terminal this process has, as far as descriptors and environment tell.

use std::env;
use std::io::{IsTerminal, stderr, stdin, stdout};
use std::os::fd::{AsFd, BorrowedFd};
use std::path::Path;

use nix::unistd::{getpgrp, tcgetpgrp, ttyname};

use crate::limits::TITLE_MAX_BYTES;
use crate::wire::rows::Terminal;
use crate::wire::text::is_plain;

/// What the session reports; none where there is nothing to tell.
pub fn find() -> Option<Terminal> {
    let terminal = Terminal {
        tty: streams(tty),
        tmux_pane: variable("TMUX_PANE"),
        // socket, pid of the server, number of the session
        tmux_socket: variable("TMUX").and_then(|tmux| fitting(tmux.split(',').next()?)),
        iterm_session: variable("ITERM_SESSION_ID"),
        term_session: variable("TERM_SESSION_ID"),
        program: variable("TERM_PROGRAM"),
    };
    (terminal != Terminal::default()).then_some(terminal)
}

/// Whether the terminal's keys act on this process group now.
pub fn is_foreground() -> bool {
    streams(|fd| tcgetpgrp(fd).ok()) == Some(getpgrp())
}

/// Whether the terminal's keys may reach us.
pub fn stdin_is_terminal() -> bool {
    stdin().is_terminal()
}

/// The first answer of standard input, output and error.
fn streams<T>(ask: impl Fn(BorrowedFd<'_>) -> Option<T>) -> Option<T> {
    ask(stdin().as_fd()).or_else(|| ask(stdout().as_fd())).or_else(|| ask(stderr().as_fd()))
}

/// The terminal's own name, not the one that stands for whichever a process has.
fn tty(fd: BorrowedFd<'_>) -> Option<String> {
    let path = ttyname(fd).ok().filter(|path| path != Path::new("/dev/tty"))?;
    fitting(&path.to_string_lossy())
}

fn variable(name: &str) -> Option<String> {
    fitting(&env::var_os(name)?.to_string_lossy())
}

/// Names are for comparing: one that would have to be altered is left away.
fn fitting(text: &str) -> Option<String> {
    (!text.is_empty() && text.len() <= TITLE_MAX_BYTES && is_plain(text)).then(|| text.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_that_does_not_fit_is_left_away_not_cut() {
        assert_eq!(fitting("%5"), Some("%5".to_owned()));
        for text in ["", "a\u{1b}b", &"x".repeat(257)] {
            assert_eq!(fitting(text), None);
        }
    }
}
