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

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_character_is_kept_or_cut_as_a_whole() {
        assert_eq!(shortened("aé", 2), "a");
        assert_eq!(shortened("aé", 3), "aé");
        assert_eq!(shortened("é", 0), "");
        assert_eq!((quoted("aé", 2), quoted("aé", 3)), ("a…".to_owned(), "aé".to_owned()));
    }

    proptest! {
        #[test]
        fn what_is_kept_is_the_longest_beginning_that_fits(text in ".{0,20}", max in 0_usize..50) {
            let short = shortened(&text, max);
            prop_assert!(short.len() <= max && text.starts_with(short));
            let next = text[short.len()..].chars().next();
            prop_assert!(next.is_none_or(|next| short.len() + next.len_utf8() > max));
        }
    }
}
