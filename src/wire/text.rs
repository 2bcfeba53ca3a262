//! Text that peers sent: what may enter, and how it is shown.

/// Whether text may stand in a title, label, path or description: no control character (C0, DEL, C1), no separator that
/// breaks lines, no direction override that makes a listing lie.
pub fn is_plain(text: &str) -> bool {
    !text.chars().any(is_hostile)
}

fn is_hostile(c: char) -> bool {
    c.is_control()
        || matches!(c, '\u{2028}' | '\u{2029}' | '\u{202A}'..='\u{202E}' | '\u{2066}'..='\u{2069}' | '\u{FEFF}')
}

/// What would stand in a listing and not be seen. It may enter: nothing breaks by it, but two texts look the same. Joiners are
/// not among these, since languages and emoji need them.
fn is_invisible(c: char) -> bool {
    matches!(c, '\u{200B}' | '\u{2060}'..='\u{2065}' | '\u{206A}'..='\u{206F}' | '\u{E0000}'..='\u{E007F}')
}

fn is_shown_escaped(c: char) -> bool {
    is_hostile(c) || is_invisible(c)
}

/// Foreign text for a log line or a table: hostile and invisible characters as `\u{…}`, cut at `max` characters.
pub fn escaped(text: &str, max: usize) -> String {
    let mut shown = String::with_capacity(text.len().min(max));
    for (count, c) in text.chars().enumerate() {
        if count == max {
            shown.push('…');
            break;
        }
        if is_shown_escaped(c) {
            shown.extend(c.escape_default());
        } else {
            shown.push(c);
        }
    }
    shown
}

/// Foreign text of several lines, for a terminal: LF and tab stay, all else hostile or invisible is escaped.
pub fn escaped_lines(text: &str) -> String {
    let mut shown = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '\n' | '\t' => shown.push(c),
            c if is_shown_escaped(c) => shown.extend(c.escape_default()),
            c => shown.push(c),
        }
    }
    shown
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_characters_and_direction_overrides_are_not_plain() {
        assert!(is_plain("naïve – 日本語 ✓"));
        for text in ["a\nb", "\u{1b}[31m", "\u{7f}", "\u{9b}31m", "a\u{202e}b", "a\u{2028}b", "\0"] {
            assert!(!is_plain(text), "{text:?}");
        }
    }

    #[test]
    fn escaped_text_has_one_line_and_a_bound() {
        assert_eq!(escaped("a\u{1b}[31m\nb", 80), "a\\u{1b}[31m\\nb");
        assert_eq!(escaped("abcdef", 3), "abc…");
        assert_eq!(escaped_lines("a\n\tb\u{1b}"), "a\n\tb\\u{1b}");
    }

    #[test]
    fn what_would_not_be_seen_is_let_in_and_shown() {
        for (text, shown) in [("a\u{200b}b", r"a\u{200b}b"), ("a\u{2060}", r"a\u{2060}"), ("a\u{e0041}", r"a\u{e0041}")]
        {
            assert!(is_plain(text), "{shown}");
            assert_eq!((&*escaped(text, 80), &*escaped_lines(text)), (shown, shown));
        }
        let family = "👩\u{200d}👧 می\u{200c}خواهم";
        assert_eq!(escaped(family, 80), family, "joiners belong to what is seen");
    }
}
