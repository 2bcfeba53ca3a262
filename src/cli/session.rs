//! What `run` and `attach` have in common: how a session is called, where it is, and what of it can be refused.
//!
//! Owns: making each of these fit what the daemon takes, whatever this machine's names and paths hold. What cannot be
//! found out is left away.

use std::collections::BTreeMap;
use std::env;
use std::path::{Path, PathBuf};

use crate::client::Description;
use crate::error::Failure;
use crate::limits::{IN_FLIGHT_MAX, LABELS_MAX_BYTES, PATH_MAX_BYTES, TITLE_MAX_BYTES};
use crate::wire::rows::{is_name, labels_bytes};

use super::terminal;
use super::text::{clean, head};

/// What is said of a session on a command line.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Named {
    /// In place of one that is made up.
    pub title: Option<String>,
    /// What selectors match.
    pub labels: BTreeMap<String, String>,
    /// Commands at once; 1 when absent.
    pub max_in_flight: Option<u32>,
}

impl Named {
    /// Refuses what the daemon would refuse later, when nobody would see it.
    pub fn check(&self) -> Result<(), Failure> {
        if self.title.as_ref().is_some_and(|title| clean(title).trim().is_empty()) {
            return Err(Failure::usage("--title is empty"));
        }
        if self.max_in_flight.is_some_and(|count| count == 0 || count > IN_FLIGHT_MAX) {
            return Err(Failure::usage(format!("--max-in-flight takes 1 to {IN_FLIGHT_MAX}")));
        }
        if let Some(key) = self.labels.keys().find(|key| !is_name(key, true)) {
            let key = clean(key);
            return Err(Failure::usage(format!("--label {key}: a key takes 1 to 64 of A-Z a-z 0-9 . _ - /")));
        }
        if labels_bytes(&self.labels) > LABELS_MAX_BYTES {
            return Err(Failure::usage(format!("--label: all labels together take at most {LABELS_MAX_BYTES} bytes")));
        }
        Ok(())
    }

    /// A session in this folder, repository and terminal. `otherwise` is its title where none was given.
    pub fn describe(&self, otherwise: &str) -> Description {
        let cwd = here();
        let mut description = Description::new(title(self.title.as_deref().unwrap_or(otherwise)))
            .cwd(path_text(&cwd))
            .max_in_flight(self.max_in_flight.unwrap_or(1));
        if let Some(root) = repo_root(&cwd) {
            description = description.repo_root(path_text(root));
        }
        if let Some(terminal) = terminal::find() {
            description = description.terminal(terminal);
        }
        let labels = self.labels.iter();
        labels.fold(description, |description, (key, value)| description.label(key, label_value(value)))
    }
}

/// The working directory, links resolved.
pub fn here() -> PathBuf {
    let cwd = env::current_dir().unwrap_or_else(|_| PathBuf::from("/"));
    cwd.canonicalize().unwrap_or(cwd)
}

/// A text as a title.
fn title(text: &str) -> String {
    let title = head(clean(text).trim(), TITLE_MAX_BYTES).trim_end().to_owned();
    if title.is_empty() { "run".to_owned() } else { title }
}

fn path_text(path: impl AsRef<Path>) -> String {
    head(&clean(&path.as_ref().to_string_lossy()), PATH_MAX_BYTES).to_owned()
}

/// The nearest folder upwards that holds `.git`, a folder or, in a worktree, a file.
fn repo_root(cwd: &Path) -> Option<&Path> {
    cwd.ancestors().find(|folder| folder.join(".git").symlink_metadata().is_ok())
}

fn label_value(value: &str) -> String {
    head(&clean(value), LABELS_MAX_BYTES).to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Exit;

    #[test]
    fn a_title_has_no_control_characters_fits_and_is_never_empty() {
        assert_eq!(title("my\teditor"), "my editor");
        assert_eq!(title("\u{1b}"), "run");
        assert_eq!(title(&"é".repeat(200)), "é".repeat(128));
        assert_eq!(label_value("v\n\u{202e}"), "v  ");
    }

    #[test]
    fn what_the_daemon_would_refuse_is_refused_before_anything_starts() {
        let named = |title: Option<&str>, labels: &[(&str, &str)], max_in_flight| Named {
            title: title.map(str::to_owned),
            labels: labels.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect(),
            max_in_flight,
        };
        assert_eq!(named(Some("t"), &[("a/b", "")], Some(64)).check(), Ok(()));
        for wrong in [
            named(Some(" \u{1b} "), &[], None),
            named(None, &[("a b", "x")], None),
            named(None, &[("a", &"x".repeat(4_096))], None),
            named(None, &[], Some(0)),
            named(None, &[], Some(65)),
        ] {
            assert_eq!(wrong.check().unwrap_err().exit, Exit::Usage, "{wrong:?}");
        }
    }

    #[test]
    fn the_repository_is_the_nearest_folder_with_git_in_it() {
        let here = Path::new(env!("CARGO_MANIFEST_DIR"));
        if here.join(".git").exists() {
            assert_eq!(repo_root(&here.join("src/cli")), Some(here));
        }
        assert_eq!(repo_root(Path::new("/proc")), None);
    }
}
