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

/// Whether the one selects nothing that the other does not: it says at least as much, and the same.
pub fn is_within(narrow: &Selector, wide: &Selector) -> bool {
    let same = |narrow: &Option<String>, wide: &Option<String>| wide.is_none() || narrow == wide;
    let session = match (&narrow.session, &wide.session) {
        (Some(narrow), Some(wide)) => narrow.starts_with(wide.as_str()),
        (_, wide) => wide.is_none(),
    };
    let labelled = |key, value| narrow.labels.as_ref().and_then(|labels| labels.get(key)) == Some(value);
    session
        && same(&narrow.cwd, &wide.cwd)
        && same(&narrow.title, &wide.title)
        && (wide.repo.is_none() || (&narrow.repo, &narrow.boundary) == (&wide.repo, &wide.boundary))
        && wide.labels.iter().flatten().all(|(key, value)| labelled(key, value))
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
        let key = crate::ids::PublicKey([1; 32]);
        let text = format!(
            r#"{{"title":"t","cwd":"/","pid":1,"started":1,"labels":{{"a":"b"}},"commands":[],"reconnect_key":"{key}"}}"#
        );
        let mut register: crate::wire::rows::Register = object::read(text.as_bytes()).unwrap();
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
    fn a_selector_lies_within_another_that_asks_for_less() {
        let all: Selector = Selector::default();
        let given = |text: &str| object::read::<Selector>(text.as_bytes()).unwrap();
        let narrow = given(r#"{"session":"abcd12","cwd":"/a","labels":{"a":"b","c":"d"},"repo":"/r","title":"t"}"#);
        assert!(is_within(&narrow, &all) && is_within(&all, &all) && is_within(&narrow, &narrow));
        for wide in [
            r#"{"session":"abcd"}"#,
            r#"{"cwd":"/a"}"#,
            r#"{"labels":{"c":"d"}}"#,
            r#"{"repo":"/r"}"#,
            r#"{"title":"t"}"#,
        ] {
            let wide = given(wide);
            assert!(is_within(&narrow, &wide), "{wide:?}");
            assert!(!is_within(&all, &wide), "{wide:?}");
        }
        let others = [
            r#"{"session":"abce"}"#,
            r#"{"cwd":"/b"}"#,
            r#"{"labels":{"a":"x"}}"#,
            r#"{"repo":"/"}"#,
            r#"{"repo":"/r","boundary":"/"}"#,
            r#"{"title":"u"}"#,
        ];
        for other in others {
            assert!(!is_within(&narrow, &given(other)), "{other}");
        }
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
