//! Ages, sizes, tones and foreign text as people read them, in a browser and in a terminal.

use jiff::Timestamp;
use unicode_width::{UnicodeWidthChar, UnicodeWidthStr};

/// How good or bad a value is for the operators of the machine. Colours show it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tone {
    /// Nothing in particular.
    Plain,
    /// As it should be.
    Good,
    /// On its way.
    Busy,
    /// Wrong.
    Bad,
    /// Not what is looked for first.
    Quiet,
}

/// How long ago, in one unit: `12s`, `5m`, `3h`, `9d`.
#[must_use]
pub fn age(since: Timestamp, now: Timestamp) -> String {
    let seconds = (now.as_second() - since.as_second()).max(0);
    match seconds {
        0..120 => format!("{seconds}s"),
        120..7200 => format!("{}m", seconds / 60),
        7200..172_800 => format!("{}h", seconds / 3600),
        _ => format!("{}d", seconds / 86_400),
    }
}

/// A time, RFC 3339 in whole seconds.
#[must_use]
pub fn second(at: Timestamp) -> String {
    Timestamp::from_second(at.as_second()).unwrap_or(at).to_string()
}

/// Bytes in binary units with one decimal: `512 B`, `1.5 MiB`.
#[must_use]
pub fn bytes(count: u64) -> String {
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

/// A text on one line without control characters: plugins and archives choose their texts, and no
/// text may move the cursor of the reader's terminal.
#[must_use]
pub fn one_line(text: &str) -> String {
    let mut line = String::with_capacity(text.len());
    for part in text.split(|c: char| moves_others(c) || c.is_whitespace()) {
        if !part.is_empty() {
            if !line.is_empty() {
                line.push(' ');
            }
            line.push_str(part);
        }
    }
    line
}

/// Whether a character does something to others around it: control characters, and those that turn
/// the direction of writing, with which a text can look like another one.
#[must_use]
pub fn moves_others(c: char) -> bool {
    c.is_control()
        || matches!(c, '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

/// The beginning of a text, marked when it is cut off, in at most so many columns of a terminal.
#[must_use]
pub fn shortened(text: &str, most: usize) -> String {
    if text.width() <= most {
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
        assert_eq!(one_line("rm\u{202e}\u{2066}gpj.exe"), "rm gpj.exe");
        assert_eq!(shortened("abcdef", 4), "abc…");
        assert_eq!(shortened("abcd", 4), "abcd");
        assert_eq!(shortened("abcd", 0), "");
    }

    #[test]
    fn characters_may_be_wider_than_one_column() {
        assert_eq!(shortened("日本語", 6), "日本語");
        assert_eq!(shortened("日本語", 5), "日本…");
        assert_eq!(shortened("日本語", 4), "日…");
    }
}
