//! Aligned columns of foreign text.
//!
//! Invariant: a cell is one line without control characters, whatever a program put into its title; widths are those of
//! a terminal, not of bytes.

use crate::wire::text::escaped;

/// Characters of a cell that are looked at.
const CELL_MAX_CHARS: usize = 400;
const GAP: &str = "  ";

/// A column.
#[derive(Debug, Clone, Copy)]
pub struct Column {
    /// Its heading.
    pub name: &'static str,
    /// Its width at most.
    pub max: usize,
    /// Which part of a longer text is left out.
    pub cut: Cut,
    /// Numbers stand at the right.
    pub right: bool,
}

/// Which part of a long text is left out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cut {
    /// Its end.
    End,
    /// Its beginning: the end of a path says most.
    Start,
}

impl Column {
    /// Left aligned, cut at its end.
    pub const fn new(name: &'static str, max: usize) -> Self {
        Self { name, max, cut: Cut::End, right: false }
    }

    /// A path.
    pub const fn path(name: &'static str, max: usize) -> Self {
        Self { cut: Cut::Start, ..Self::new(name, max) }
    }

    /// A number.
    pub const fn number(name: &'static str) -> Self {
        Self { right: true, ..Self::new(name, 12) }
    }
}

/// The rows under their headings. Columns in which nothing stands are left out; `width` is how much the widest may share.
pub fn text(columns: &[Column], rows: &[Vec<String>], width: Option<usize>) -> String {
    let cells: Vec<Vec<String>> =
        rows.iter().map(|row| row.iter().map(|cell| escaped(cell, CELL_MAX_CHARS)).collect()).collect();
    let widest = |at: usize| cells.iter().filter_map(|row| row.get(at)).map(|cell| display_width(cell)).max();
    let shown: Vec<usize> = (0..columns.len()).filter(|&at| widest(at).unwrap_or(0) > 0).collect();
    let mut widths: Vec<usize> = shown
        .iter()
        .map(|&at| widest(at).unwrap_or(0).clamp(columns[at].name.len(), columns[at].max.max(columns[at].name.len())))
        .collect();
    if let Some(width) = width {
        shrink(&mut widths, &shown.iter().map(|&at| columns[at].name.len().max(8)).collect::<Vec<_>>(), width);
    }
    let mut lines = String::new();
    let heading: Vec<String> = columns.iter().map(|column| column.name.to_owned()).collect();
    for row in std::iter::once(&heading).chain(&cells) {
        let mut line = String::new();
        for (&at, &width) in shown.iter().zip(&widths) {
            let cell = cut(&row[at], width, columns[at].cut);
            let space = " ".repeat(width.saturating_sub(display_width(&cell)));
            if !line.is_empty() {
                line.push_str(GAP);
            }
            if columns[at].right { line.extend([space, cell]) } else { line.extend([cell, space]) }
        }
        lines.push_str(line.trim_end());
        lines.push('\n');
    }
    lines
}

/// Takes from the widest until all fit, and from none below its floor.
fn shrink(widths: &mut [usize], floors: &[usize], total: usize) {
    let gaps = GAP.len() * widths.len().saturating_sub(1);
    while widths.iter().sum::<usize>() + gaps > total {
        let widest = (0..widths.len()).filter(|&at| widths[at] > floors[at]).max_by_key(|&at| widths[at]);
        let Some(widest) = widest else { return };
        widths[widest] -= 1;
    }
}

/// The text in so many columns, with `…` where something is left out.
pub fn cut(text: &str, width: usize, cut: Cut) -> String {
    if display_width(text) <= width {
        return text.to_owned();
    }
    let mut left = width.saturating_sub(1);
    let mut fits = |c: &char| match left.checked_sub(char_width(*c)) {
        Some(rest) => {
            left = rest;
            true
        }
        None => false,
    };
    match cut {
        Cut::End => text.chars().take_while(&mut fits).chain(['…']).collect(),
        Cut::Start => {
            let kept: Vec<char> = text.chars().rev().take_while(&mut fits).collect();
            std::iter::once('…').chain(kept.into_iter().rev()).collect()
        }
    }
}

/// How many columns a terminal takes for it.
pub fn display_width(text: &str) -> usize {
    text.chars().map(char_width).sum()
}

/// Combining marks take none, East Asian wide characters and pictures two. Terminals differ in rare ones; then a column
/// is a place off, and nothing else.
fn char_width(c: char) -> usize {
    match u32::from(c) {
        0x0300..=0x036F | 0x200B..=0x200F | 0x20D0..=0x20FF | 0xFE00..=0xFE0F | 0xE0100..=0xE01EF => 0,
        0x1100..=0x115F
        | 0x2E80..=0x303E
        | 0x3041..=0xA4CF
        | 0xAC00..=0xD7A3
        | 0xF900..=0xFAFF
        | 0xFE30..=0xFE6F
        | 0xFF00..=0xFF60
        | 0xFFE0..=0xFFE6
        | 0x1F300..=0x1F64F
        | 0x1F680..=0x1F6FF
        | 0x1F900..=0x1F9FF
        | 0x20000..=0x3FFFD => 2,
        _ => 1,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const COLUMNS: &[Column] =
        &[Column::new("NAME", 8), Column::path("WHERE", 9), Column::number("PID"), Column::new("EMPTY", 8)];

    fn row(name: &str, place: &str, pid: &str) -> Vec<String> {
        vec![name.into(), place.into(), pid.into(), String::new()]
    }

    #[test]
    fn columns_are_aligned_cut_and_left_out_when_empty() {
        let rows = [row("a", "/x", "7"), row("a longer name", "/home/a/project", "4711")];
        assert_eq!(
            text(COLUMNS, &rows, None),
            "NAME      WHERE       PID\n\
             a         /x            7\n\
             a longe…  …/project  4711\n"
        );
    }

    #[test]
    fn a_title_cannot_break_its_line_or_colour_the_table() {
        let shown = text(COLUMNS, &[row("a\nb\u{1b}[31m", "/", "1")], None);
        assert_eq!(shown.lines().count(), 2, "{shown}");
        assert!(!shown.contains('\u{1b}'));
    }

    #[test]
    fn wide_and_combining_characters_count_as_a_terminal_counts() {
        assert_eq!(display_width("日本"), 4);
        assert_eq!(display_width("e\u{301}"), 1);
        assert_eq!(cut("日本語", 5, Cut::End), "日本…");
        let shown = text(COLUMNS, &[row("日本", "/", "1"), row("ab", "/", "1")], None);
        let at = |line: &str| display_width(line.split('/').next().unwrap());
        let lines: Vec<_> = shown.lines().collect();
        assert_eq!(at(lines[1]), at(lines[2]));
    }

    #[test]
    fn a_narrow_terminal_takes_from_the_widest_column() {
        let shown =
            text(&[Column::new("A", 50), Column::new("B", 50)], &[vec!["x".repeat(50), "y".repeat(9)]], Some(40));
        assert!(shown.lines().all(|line| display_width(line) <= 40), "{shown}");
        assert!(shown.contains(&"y".repeat(9)));
    }
}
