//! Small parts that all pages are made of. Every text goes through here as text: what is written in
//! `html!` is escaped, and nothing in a console is ever marked as not to be.

use jiff::Timestamp;
use maud::{Markup, html};

use crate::text::{Tone, age, one_line, second};

/// How ages are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ages {
    /// The ages at this time, for browsers without scripts.
    At(Timestamp),
    /// By the script, which keeps them right; so that a part of a page changes only when something
    /// happened, and not with every second that passes.
    Left,
}

/// The style class of a tone.
#[must_use]
pub const fn class(tone: Tone) -> &'static str {
    match tone {
        Tone::Plain => "plain",
        Tone::Good => "good",
        Tone::Busy => "busy",
        Tone::Bad => "bad",
        Tone::Quiet => "quiet",
    }
}

/// A word on a coloured ground. The word alone says it all.
#[must_use]
pub fn pill(tone: Tone, word: &str) -> Markup {
    html! { span class={ "pill " (class(tone)) } { (one_line(word)) } }
}

/// A word in a frame, beside a pill: something that is so as well.
#[must_use]
pub fn badge(word: &str, more: &str) -> Markup {
    html! {
        span class="badge" title=[Some(one_line(more)).filter(|more| !more.is_empty())] {
            (one_line(word))
        }
    }
}

/// How long ago something was, and when on a closer look. Nothing where that is unknown.
#[must_use]
pub fn ago(at: Option<Timestamp>, ages: Ages) -> Markup {
    let Some(at) = at else { return html! {} };
    let second = second(at);
    let text = match ages {
        Ages::At(now) => format!("{} ago", age(at, now)),
        Ages::Left => second.clone(),
    };
    html! { time datetime=(second) title=(second) { (text) } }
}

/// How long something lasts by now: an age without "ago".
#[must_use]
pub fn lasting(since: Option<Timestamp>, ages: Ages) -> Markup {
    let Some(since) = since else { return html! {} };
    let second = second(since);
    let text = match ages {
        Ages::At(now) => age(since, now),
        Ages::Left => second.clone(),
    };
    html! { time datetime=(second) title=(second) data-form="lasting" { (text) } }
}

/// A term and its value; nothing without a value.
#[must_use]
pub fn fact(term: &str, text: Option<impl maud::Render>) -> Markup {
    html! {
        @if let Some(text) = text {
            div { dt { (term) } dd { (text) } }
        }
    }
}

/// A text on one line, unless it is empty.
#[must_use]
pub fn some(text: &str) -> Option<String> {
    Some(one_line(text)).filter(|text| !text.is_empty())
}

/// The values of a query as a part of an address, without those that are empty.
#[must_use]
pub fn query(pairs: &[(&str, &str)]) -> String {
    let mut query = String::new();
    for (name, value) in pairs.iter().filter(|(_, value)| !value.is_empty()) {
        query.push(if query.is_empty() { '?' } else { '&' });
        query.push_str(name);
        query.push('=');
        for byte in value.bytes() {
            if byte.is_ascii_alphanumeric() || b"-._~:".contains(&byte) {
                query.push(char::from(byte));
            } else {
                query.push('%');
                for digit in [byte >> 4, byte & 15] {
                    let digit = char::from_digit(u32::from(digit), 16).unwrap_or('0');
                    query.push(digit.to_ascii_uppercase());
                }
            }
        }
    }
    query
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_query_has_what_is_not_empty_and_is_escaped() {
        assert_eq!(query(&[]), "");
        assert_eq!(query(&[("a", ""), ("b", "")]), "");
        assert_eq!(query(&[("a", ""), ("b", "x y&ü"), ("c", "1")]), "?b=x%20y%26%C3%BC&c=1");
    }

    #[test]
    fn ages_are_texts_or_left_to_the_script() {
        let at = Timestamp::from_millisecond(1_500).expect("a time");
        let now = Timestamp::from_second(61).expect("a time");
        assert!(ago(Some(at), Ages::At(now)).into_string().contains(">60s ago<"));
        let left = ago(Some(at), Ages::Left).into_string();
        assert!(left.contains(r#"datetime="1970-01-01T00:00:01Z""#), "{left}");
        assert!(lasting(Some(at), Ages::At(now)).into_string().contains(">60s<"));
        assert_eq!(ago(None, Ages::Left).into_string(), "");
    }
}
