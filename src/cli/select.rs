//! From what was said to a selector: paths made absolute and canonical, the boundary found.

use std::path::{Path, PathBuf};

use crate::error::Failure;
use crate::wire::selector::Selector;

use super::args::SelectorArgs;
use super::trouble::Trouble;

/// A selector for a request: `repo` with the nearest repository around it as the boundary.
pub fn request(args: &SelectorArgs) -> Result<Selector, Trouble> {
    let mut selector = plain(args)?;
    selector.boundary =
        selector.repo.as_deref().and_then(|repo| repository(Path::new(repo))).and_then(|path| text(&path).ok());
    check(selector)
}

/// A selector for a grant: there `repo` is its own boundary, so that a grant for a folder never reaches above it.
pub fn grant(args: &SelectorArgs) -> Result<Selector, Trouble> {
    check(plain(args)?)
}

fn plain(args: &SelectorArgs) -> Result<Selector, Failure> {
    let labels: std::collections::BTreeMap<_, _> = args.labels.iter().cloned().collect();
    if labels.len() != args.labels.len() {
        return Err(Failure::usage("a label was given twice"));
    }
    Ok(Selector {
        session: args.session.clone(),
        cwd: args.cwd.as_deref().map(canonical).transpose()?,
        repo: args.repo.as_deref().map(canonical).transpose()?,
        boundary: None,
        labels: Some(labels).filter(|labels| !labels.is_empty()),
        title: args.title.clone(),
    })
}

fn check(selector: Selector) -> Result<Selector, Trouble> {
    match selector.check() {
        Ok(()) => Ok(selector),
        Err(refusal) => Err(Trouble::refused(refusal.object())),
    }
}

/// Absolute, links resolved; a path that is gone stays as it was said.
fn canonical(path: &Path) -> Result<String, Failure> {
    let absolute = std::fs::canonicalize(path).or_else(|_| std::path::absolute(path));
    text(&absolute.map_err(|error| Failure::usage(format!("{path:?} cannot be made absolute: {error}")))?)
}

fn text(path: &Path) -> Result<String, Failure> {
    path.to_str().map(str::to_owned).ok_or_else(|| Failure::usage(format!("{path:?} is not UTF-8")))
}

/// The nearest folder upwards that is a repository; `.git` is a folder in a clone and a file in a worktree.
fn repository(path: &Path) -> Option<PathBuf> {
    path.ancestors().find(|folder| folder.join(".git").symlink_metadata().is_ok()).map(Path::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_repository_is_found_from_below_and_is_the_boundary() {
        let scratch = tempfile::tempdir().unwrap();
        let root = std::fs::canonicalize(scratch.path()).unwrap();
        let inner = root.join("a/b");
        std::fs::create_dir_all(&inner).unwrap();
        std::fs::create_dir(root.join("a/.git")).unwrap();
        std::os::unix::fs::symlink(&inner, root.join("link")).unwrap();
        let args = SelectorArgs { repo: Some(root.join("link")), ..SelectorArgs::default() };
        let selector = request(&args).unwrap();
        assert_eq!(selector.repo.as_deref(), inner.to_str());
        assert_eq!(selector.boundary.as_deref(), root.join("a").to_str());
        assert_eq!(grant(&args).unwrap().boundary, None);
    }

    #[test]
    fn a_path_that_is_gone_is_taken_as_it_was_said() {
        assert_eq!(canonical(Path::new("/no/such/path")), Ok("/no/such/path".to_owned()));
    }

    #[test]
    fn a_label_given_twice_is_a_mistake() {
        let args = SelectorArgs {
            labels: vec![("a".into(), "1".into()), ("a".into(), "2".into())],
            ..SelectorArgs::default()
        };
        assert_eq!(request(&args).unwrap_err().code(), "usage");
    }
}
