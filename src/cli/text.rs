//! Text of ours that goes to others: made so that it can never be refused for what is in it.

use crate::wire::text::is_plain;

/// The same with a space for every character that may not stand in a title, label or path. It never grows.
pub fn clean(text: &str) -> String {
    text.chars().map(|c| if is_plain(c.encode_utf8(&mut [0; 4])) { c } else { ' ' }).collect()
}

/// The same for text of several lines.
pub fn clean_lines(text: &str) -> String {
    text.lines().map(clean).collect::<Vec<_>>().join("\n")
}

/// At most `max` bytes from the beginning, cut between characters.
pub fn head(text: &str, max: usize) -> &str {
    let mut end = max.min(text.len());
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    &text[..end]
}

/// At most `max` bytes from the end, cut between characters, at the beginning of a line if there is one.
pub fn tail(text: &str, max: usize) -> &str {
    if text.len() <= max {
        return text;
    }
    let mut start = text.len() - max;
    while !text.is_char_boundary(start) {
        start += 1;
    }
    let rest = &text[start..];
    match rest.split_once('\n') {
        Some((_, lines)) if !lines.is_empty() => lines,
        _ => rest,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cleaned_text_is_plain_and_no_longer_than_before() {
        for text in ["a\nb\t\u{1b}[31m", "\u{202e}x\u{feff}", "日本語", "\u{9b}", ""] {
            let cleaned = clean(text);
            assert!(is_plain(&cleaned) && cleaned.len() <= text.len(), "{text:?}");
        }
        assert_eq!(clean_lines("a\u{1b}[0m\r\nb\n"), "a [0m\nb");
    }

    #[test]
    fn text_is_cut_between_characters() {
        assert_eq!(head("aéb", 2), "a");
        assert_eq!(head("aéb", 3), "aé");
        assert_eq!(head("ab", 10), "ab");
        assert_eq!(tail("aéb", 2), "b");
        assert_eq!(tail("one\ntwo\nthree", 8), "three");
        assert_eq!(tail("one\ntwo\nthree", 10), "two\nthree");
        assert_eq!(tail("xxxxxxxx", 3), "xxx");
    }
}
