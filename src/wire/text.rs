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

/// Foreign text for a log line or a table: hostile characters as `\u{…}`, cut at `max` characters.
pub fn escaped(text: &str, max: usize) -> String {
    let mut shown = String::with_capacity(text.len().min(max));
    for (count, c) in text.chars().enumerate() {
        if count == max {
            shown.push('…');
            break;
        }
        if is_hostile(c) {
            shown.extend(c.escape_default());
        } else {
            shown.push(c);
        }
    }
    shown
}

/// Foreign text of several lines, for a terminal: LF and tab stay, all else hostile is escaped.
pub fn escaped_lines(text: &str) -> String {
    let mut shown = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '\n' | '\t' => shown.push(c),
            c if is_hostile(c) => shown.extend(c.escape_default()),
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
}
