//! Cutting text to a bound. Whatever comes from outside has a length, and what is kept of it a
//! smaller one.

/// `text`, or the beginning of it that fits into `max` bytes.
pub(crate) fn shortened(text: &str, max: usize) -> &str {
    &text[..text.floor_char_boundary(max)]
}

/// The same for quoting: what is cut off is marked.
pub(crate) fn quoted(text: &str, max: usize) -> String {
    let short = shortened(text, max);
    if short.len() == text.len() { short.to_owned() } else { format!("{short}…") }
}

/// Bytes as people read them.
pub(crate) fn mebibytes(bytes: u64) -> String {
    const MIB: u64 = 1 << 20;
    match bytes {
        few if few < MIB => format!("{few} bytes"),
        whole if whole % MIB == 0 => format!("{} MiB", whole / MIB),
        other => format!("{}.{} MiB", other / MIB, other % MIB * 10 / MIB),
    }
}

/// A name out of a request, as events repeat it: what has no glyph of its own is escaped, and what
/// does not fit into `max` bytes is cut off between two characters.
pub(crate) fn echoed(name: &str, max: usize) -> String {
    let mut echo = String::with_capacity(name.len().min(max));
    for character in name.chars() {
        let before = echo.len();
        if has_no_glyph(character) {
            echo.extend(character.escape_debug());
        } else {
            echo.push(character);
        }
        if echo.len() > max {
            echo.truncate(before);
            break;
        }
    }
    echo
}

/// Whether a character steers a terminal, a log or the direction of the text around it.
fn has_no_glyph(character: char) -> bool {
    let is_format = matches!(
        character,
        '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{feff}'
    );
    character.is_control() || is_format
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn an_echoed_name_is_the_name_but_for_what_has_no_glyph() {
        for name in ["", "ops-agent", "a b", "größe/«x»", "\"it's\" a\\b", &"n".repeat(256)] {
            assert_eq!(echoed(name, 256), name);
        }
        assert_eq!(echoed("\u{1b}[31m\n", 256), "\\u{1b}[31m\\n");
        assert_eq!(echoed("a\u{202e}b\0", 256), "a\\u{202e}b\\0");
    }

    #[test]
    fn a_character_is_kept_or_cut_as_a_whole() {
        assert_eq!(shortened("aé", 2), "a");
        assert_eq!(shortened("aé", 3), "aé");
        assert_eq!(shortened("é", 0), "");
        assert_eq!((quoted("aé", 2), quoted("aé", 3)), ("a…".to_owned(), "aé".to_owned()));
    }

    proptest! {
        #[test]
        fn an_echoed_name_is_printable_and_bounded(name in any::<String>(), max in 0_usize..50) {
            let echo = echoed(&name, max);
            prop_assert!(echo.len() <= max && !echo.chars().any(has_no_glyph));
            prop_assert!(echoed(&name, usize::MAX).starts_with(&echo));
        }

        #[test]
        fn what_is_kept_is_the_longest_beginning_that_fits(text in ".{0,20}", max in 0_usize..50) {
            let short = shortened(&text, max);
            prop_assert!(short.len() <= max && text.starts_with(short));
            let next = text[short.len()..].chars().next();
            prop_assert!(next.is_none_or(|next| short.len() + next.len_utf8() > max));
        }
    }
}
