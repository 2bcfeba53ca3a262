//! Whether a selector means a session: pure, by components, as text.

use std::path::Path;

use crate::ids::SessionId;
use crate::wire::rows::Facts;
use crate::wire::selector::Selector;

/// Whether everything in the selector but nearness holds: `repo` is taken as "a root that contains it".
pub fn matches(selector: &Selector, id: SessionId, facts: &Facts) -> bool {
    selector.session.as_ref().is_none_or(|prefix| id.to_string().starts_with(prefix.as_str()))
        && selector.cwd.as_ref().is_none_or(|cwd| Path::new(cwd) == Path::new(&facts.cwd))
        && selector.title.as_ref().is_none_or(|title| *title == facts.title)
        && selector.labels.iter().flatten().all(|(key, value)| facts.labels.get(key) == Some(value))
        && selector.repo.as_ref().is_none_or(|repo| holds(facts, repo, selector.boundary.as_deref()))
}

/// The same for a grant: `repo` without a boundary is its own boundary, so that a grant for a folder never reaches
/// programs above it.
pub fn grants(selector: &Selector, id: SessionId, facts: &Facts) -> bool {
    match (&selector.repo, &selector.boundary) {
        (Some(repo), None) => {
            let bounded = Selector { boundary: Some(repo.clone()), ..selector.clone() };
            matches(&bounded, id, facts)
        }
        _ => matches(selector, id, facts),
    }
}

/// A session's root: its repository, else its working directory.
pub fn root(facts: &Facts) -> &Path {
    Path::new(facts.repo_root.as_ref().unwrap_or(&facts.cwd))
}

/// How deep a session's root lies; of those that contain a path the deepest is the nearest.
pub fn depth(facts: &Facts) -> usize {
    root(facts).components().count()
}

fn holds(facts: &Facts, repo: &str, boundary: Option<&str>) -> bool {
    let root = root(facts);
    Path::new(repo).starts_with(root) && boundary.is_none_or(|boundary| root.starts_with(boundary))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::object;

    fn facts(cwd: &str, repo_root: Option<&str>) -> Facts {
        let mut register: crate::wire::rows::Register =
            object::read(br#"{"title":"t","cwd":"/","pid":1,"started":1,"labels":{"a":"b"},"commands":[]}"#).unwrap();
        register.cwd = cwd.to_owned();
        register.repo_root = repo_root.map(str::to_owned);
        Facts::new(register).unwrap()
    }

    fn repo(path: &str, boundary: Option<&str>) -> Selector {
        Selector { repo: Some(path.into()), boundary: boundary.map(str::to_owned), ..Selector::default() }
    }

    #[test]
    fn a_root_contains_whole_components_only() {
        let id = SessionId([0; 16]);
        let session = facts("/a/bc", None);
        assert!(matches(&repo("/a/bc", None), id, &session));
        assert!(matches(&repo("/a/bc/d", None), id, &session));
        assert!(!matches(&repo("/a/b", None), id, &session));
        assert!(!matches(&repo("/a/bcd", None), id, &session));
        assert!(!matches(&repo("/a", None), id, &session));
    }

    #[test]
    fn a_root_above_the_boundary_does_not_count() {
        let id = SessionId([0; 16]);
        let outer = facts("/work", None);
        assert!(matches(&repo("/work/inner/src", None), id, &outer));
        assert!(!matches(&repo("/work/inner/src", Some("/work/inner")), id, &outer));
        assert!(matches(
            &repo("/work/inner/src", Some("/work/inner")),
            id,
            &facts("/work/inner/x", Some("/work/inner"))
        ));
    }

    #[test]
    fn a_grant_for_a_folder_never_reaches_programs_above_it() {
        let id = SessionId([0; 16]);
        assert!(!grants(&repo("/home/a/x", None), id, &facts("/", None)));
        assert!(grants(&repo("/home/a/x", None), id, &facts("/home/a/x/sub", Some("/home/a/x"))));
    }

    #[test]
    fn everything_given_must_match() {
        let id = SessionId([9; 16]);
        let session = facts("/a", None);
        let labels =
            |value: &str| Selector { labels: Some([("a".into(), value.into())].into()), ..Selector::default() };
        assert!(matches(&Selector::default(), id, &session));
        assert!(matches(&labels("b"), id, &session));
        assert!(!matches(&labels("c"), id, &session));
        assert!(!matches(&Selector { title: Some("u".into()), ..labels("b") }, id, &session));
        let prefix = id.to_string()[..6].to_owned();
        assert!(matches(&Selector { session: Some(prefix), ..Selector::default() }, id, &session));
    }
}
