//! How times, sizes and foreign text are written.

use guest_agent_proto::local::NotEnforced;
use jiff::Timestamp;
use unicode_width::{UnicodeWidthChar, UnicodeWidthStr};

/// A wire time as RFC 3339 in UTC; `None` when it is absent or no time at all.
pub(super) fn rfc3339(time: Option<&prost_types::Timestamp>) -> Option<String> {
    timestamp(time).map(|time| time.to_string())
}

/// A wire time.
pub(super) fn timestamp(time: Option<&prost_types::Timestamp>) -> Option<Timestamp> {
    let time = time?;
    Timestamp::new(time.seconds, time.nanos).ok()
}

/// How long ago, in one unit: `12s`, `5m`, `3h`, `9d`.
pub(super) fn age(since: Timestamp, now: Timestamp) -> String {
    let seconds = (now.as_second() - since.as_second()).max(0);
    match seconds {
        0..120 => format!("{seconds}s"),
        120..7200 => format!("{}m", seconds / 60),
        7200..172_800 => format!("{}h", seconds / 3600),
        _ => format!("{}d", seconds / 86_400),
    }
}

/// Bytes in binary units with one decimal: `512 B`, `1.5 MiB`.
pub(super) fn bytes(count: u64) -> String {
    const UNITS: [&str; 5] = ["KiB", "MiB", "GiB", "TiB", "PiB"];
    if count < 1024 {
        return format!("{count} B");
    }
    // Tenths of a unit, in whole numbers: exact for every u64.
    let mut tenths = u128::from(count) * 10 / 1024;
    let mut unit = UNITS[0];
    for larger in &UNITS[1..] {
        if tenths < 10_240 {
            break;
        }
        tenths /= 1024;
        unit = larger;
    }
    format!("{}.{} {unit}", tenths / 10, tenths % 10)
}

/// A text on one line without control characters: plugins and archives choose what theirs say, and
/// it must not move the cursor of whoever reads it.
pub(super) fn one_line(text: &str) -> String {
    let mut line = String::with_capacity(text.len());
    for part in text.split(|c: char| c.is_control() || c.is_whitespace()) {
        if !part.is_empty() {
            if !line.is_empty() {
                line.push(' ');
            }
            line.push_str(part);
        }
    }
    line
}

/// What is not enforced, why, and what to do about it.
pub(super) fn not_enforced(shortfall: &NotEnforced) -> String {
    let NotEnforced { what, why, fix } = shortfall;
    format!("{what}: {why}; {fix}")
}

/// Columns that a text takes on a terminal.
pub(super) fn width(text: &str) -> usize {
    text.width()
}

/// The beginning of a text, marked when it is cut off, in at most so many columns.
pub(super) fn shortened(text: &str, most: usize) -> String {
    if width(text) <= most {
        return text.to_owned();
    }
    let (mut short, mut used) = (String::new(), 0);
    for c in text.chars() {
        used += c.width().unwrap_or_default();
        if used >= most {
            break;
        }
        short.push(c);
    }
    if most > 0 {
        short.push('…');
    }
    short
}

/// `1 file`, `2 files`: how many there are of what a regular noun names.
pub(super) fn counted(count: u64, noun: &str) -> String {
    let plural = if count == 1 { "" } else { "s" };
    format!("{count} {noun}{plural}")
}

/// A text with blanks behind it, up to so many columns.
pub(super) fn padded(text: &str, columns: usize) -> String {
    [text, &" ".repeat(columns.saturating_sub(width(text)))].concat()
}

/// Which columns of these widths fit side by side into `room`: as many as there are, without those of
/// `expendable`, its first first, that there is no room for.
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
    fn ages_have_one_unit() {
        let at = |second| Timestamp::from_second(second).expect("a time");
        for (seconds, text) in
            [(0, "0s"), (119, "119s"), (120, "2m"), (7199, "119m"), (7200, "2h"), (172_800, "2d")]
        {
            assert_eq!(age(at(1000), at(1000 + seconds)), text);
        }
        assert_eq!(age(at(1000), at(0)), "0s", "a clock that went back is not an error");
    }

    #[test]
    fn sizes_have_one_decimal() {
        for (count, text) in [
            (0, "0 B"),
            (1023, "1023 B"),
            (1024, "1.0 KiB"),
            (1536, "1.5 KiB"),
            (10 << 20, "10.0 MiB"),
            (u64::MAX, "16383.9 PiB"),
        ] {
            assert_eq!(bytes(count), text);
        }
    }

    #[test]
    fn foreign_text_cannot_move_the_cursor() {
        assert_eq!(one_line("a\n\x1b[2Jb\r\n  c\u{9b}1m"), "a [2Jb c 1m");
        assert_eq!(shortened("abcdef", 4), "abc…");
        assert_eq!(shortened("abcd", 4), "abcd");
        assert_eq!(shortened("abcd", 0), "");
    }

    #[test]
    fn characters_may_be_wider_than_one_column() {
        assert_eq!(width("日本語"), 6);
        assert_eq!(shortened("日本語", 6), "日本語");
        assert_eq!(shortened("日本語", 5), "日本…");
        assert_eq!(shortened("日本語", 4), "日…");
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
