//! Formats times, sizes and foreign text for the command line, as in the whole agent.

use unicode_width::UnicodeWidthStr;

pub(super) use crate::display::{
    age, bytes, not_enforced, one_line, rfc3339, second, shortened, timestamp,
};

/// Columns that a text takes on a terminal.
pub(super) fn width(text: &str) -> usize {
    text.width()
}

/// The time of a line, as wide as every other; dashes where it is not known. Whole seconds are enough
/// for reading; JSON has the rest.
pub(super) fn when(at: Option<&prost_types::Timestamp>) -> String {
    timestamp(at).map_or_else(|| "-".repeat(20), second)
}

/// `1 file`, `2 files`: a count with a regular noun.
pub(super) fn counted(count: u64, noun: &str) -> String {
    let plural = if count == 1 { "" } else { "s" };
    format!("{count} {noun}{plural}")
}

/// A text, padded with blanks to this many columns.
pub(super) fn padded(text: &str, columns: usize) -> String {
    [text, &" ".repeat(columns.saturating_sub(width(text)))].concat()
}

/// The columns of these widths that fit side by side into `room`. If not all fit, the columns in
/// `expendable` are left out, the first of them first.
pub(super) fn fitting(
    widths: &[usize],
    gap: usize,
    room: usize,
    expendable: &[usize],
) -> Vec<usize> {
    let mut shown: Vec<usize> = (0..widths.len()).collect();
    for dropped in expendable {
        let used: usize = shown.iter().map(|column| widths[*column].saturating_add(gap)).sum();
        if used > room.saturating_add(gap) {
            shown.retain(|column| column != dropped);
        }
    }
    shown
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_is_not_many() {
        assert_eq!([0, 1, 2].map(|count| counted(count, "file")), ["0 files", "1 file", "2 files"]);
    }

    #[test]
    fn characters_may_be_wider_than_one_column() {
        assert_eq!(width("日本語"), 6);
        assert_eq!(padded("日本", 6), "日本  ");
    }

    #[test]
    fn the_least_missed_columns_go_first_and_only_as_many_as_must() {
        let fitting = |room| fitting(&[4, 4, 4], 2, room, &[2, 1]);
        assert_eq!(fitting(16), [0, 1, 2]);
        assert_eq!(fitting(15), [0, 1]);
        assert_eq!(fitting(9), [0]);
        assert_eq!(fitting(0), [0], "what is not expendable stays");
    }
}
