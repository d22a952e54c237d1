//! When a request is whole. Pure, and linear in the bytes however they are cut.
//!
//! A request is one JSON object. Its end is where its first bracket is closed; whether what is
//! between makes sense is for the parser, which runs once.

use std::time::Duration;

use super::reply::Reply;

/// Largest request.
pub(super) const REQUEST_MAX: usize = 64 * 1024;

/// The bytes of a request so far.
#[derive(Default)]
pub(super) struct Collector {
    bytes: Vec<u8>,
    depth: usize,
    within: Within,
}

/// Where in the object the next byte is.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
enum Within {
    /// Before its first bracket.
    #[default]
    Nothing,
    /// Between texts.
    Object,
    /// In a text.
    Text,
    /// In a text, after a backslash.
    Escape,
    /// After its last bracket.
    End,
}

/// What there is.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Collected {
    /// Not all of it.
    More,
    /// A whole request, byte for byte.
    Whole(Vec<u8>),
    /// Bytes that no request begins with, or too many.
    Wrong(Reply),
}

// === impl Collector ===

impl Collector {
    /// Takes what was read.
    pub(super) fn take(&mut self, bytes: &[u8]) -> Collected {
        if self.bytes.len() + bytes.len() > REQUEST_MAX {
            let problem = format!("the request is larger than {REQUEST_MAX} bytes");
            return Collected::Wrong(Reply::invalid_json(&problem));
        }
        for &byte in bytes {
            self.within = match (self.within, byte) {
                (within @ (Within::Nothing | Within::End), b' ' | b'\t' | b'\r' | b'\n') => within,
                (Within::Nothing, b'{') => {
                    self.depth = 1;
                    Within::Object
                }
                (Within::Nothing, _) => {
                    return Collected::Wrong(Reply::invalid_json("a JSON object is expected"));
                }
                (Within::End, _) => {
                    return Collected::Wrong(Reply::invalid_json(
                        "more data follows the object; send one request per connection",
                    ));
                }
                (Within::Object, b'"') => Within::Text,
                (Within::Object, b'{' | b'[') => {
                    self.depth += 1;
                    Within::Object
                }
                (Within::Object, b'}' | b']') => {
                    self.depth -= 1;
                    if self.depth == 0 { Within::End } else { Within::Object }
                }
                (Within::Object, _) => Within::Object,
                (Within::Text, b'"') => Within::Object,
                (Within::Text, b'\\') => Within::Escape,
                (Within::Text | Within::Escape, _) => Within::Text,
            };
        }
        self.bytes.extend_from_slice(bytes);
        if self.within == Within::End {
            Collected::Whole(std::mem::take(&mut self.bytes))
        } else {
            Collected::More
        }
    }

    /// Why there is no request, when the caller has said everything; `None` when it said nothing.
    pub(super) fn ended(&self) -> Option<Reply> {
        let problem = "the connection was closed in the middle of the request";
        (!self.bytes.is_empty()).then(|| Reply::invalid_json(problem))
    }

    /// Why there is no request, when time is up. Bytes that could never become one are no request
    /// that is late.
    pub(super) fn late(&self, waited: Duration) -> Reply {
        match serde_json::from_slice::<serde::de::IgnoredAny>(&self.bytes) {
            Err(error) if !error.is_eof() => Reply::invalid_json(&error.to_string()),
            Ok(_) | Err(_) => Reply::timed_out(waited),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn whole(text: &str) -> Collected {
        Collected::Whole(text.as_bytes().to_vec())
    }

    #[track_caller]
    fn status(collected: &Collected) -> i32 {
        match collected {
            Collected::Wrong(reply) => reply.status,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn brackets_and_quotes_inside_of_texts_do_not_count() {
        for text in
            ["{}", " \n{\"a\":[{}]}\r\n", r#"{"a":"}]\"}","b":"\\"}"#, r#"{"a":"{[","\"{":0}"#]
        {
            assert_eq!(Collector::default().take(text.as_bytes()), whole(text), "{text}");
        }
    }

    #[test]
    fn what_no_object_begins_with_is_wrong_at_once() {
        for text in ["x", "[]", "1", "\"{}\"", "\u{feff}{}", "{}{}", "{} x", "}"] {
            assert_eq!(status(&Collector::default().take(text.as_bytes())), 102, "{text}");
        }
    }

    #[test]
    fn a_request_has_a_size() {
        let mut collector = Collector::default();
        let mut text = format!("{{\"a\":\"{}", "x".repeat(REQUEST_MAX - 8));
        assert_eq!(collector.take(text.as_bytes()), Collected::More);
        text.push_str("\"}");
        assert_eq!(text.len(), REQUEST_MAX);
        assert_eq!(collector.take(b"\"}"), whole(&text));
        let mut collector = Collector::default();
        assert_eq!(collector.take(&vec![b' '; REQUEST_MAX]), Collected::More);
        assert_eq!(status(&collector.take(b"{")), 102);
    }

    #[test]
    fn half_a_request_is_late_and_nonsense_is_nonsense() {
        let late = |text: &str| {
            let mut collector = Collector::default();
            assert_eq!(collector.take(text.as_bytes()), Collected::More);
            collector.late(Duration::from_secs(1)).status
        };
        assert_eq!(late(r#"{"Command":"VmEv"#), 104);
        assert_eq!(late(" "), 104);
        assert_eq!(late("{Command"), 102);
    }

    proptest! {
        #[test]
        fn how_a_request_is_cut_makes_no_difference(
            text in r#"[ \n]{0,2}\{("[a-c{}\\\\"]{0,5}"|[\[\]{},:1a]){0,20}\}?\n?"#,
            cuts in proptest::collection::vec(1_usize..9, 1..20),
        ) {
            let mut cuts = cuts.into_iter().cycle();
            let mut collector = Collector::default();
            let mut rest = text.as_bytes();
            let mut taken = 0;
            while !rest.is_empty() {
                let (piece, later) = rest.split_at(cuts.next().unwrap_or(1).min(rest.len()));
                rest = later;
                taken += piece.len();
                match collector.take(piece) {
                    Collected::More => {}
                    Collected::Whole(bytes) => {
                        prop_assert_eq!(&bytes[..], &text.as_bytes()[..taken]);
                        // What is whole in pieces is whole at once, up to there.
                        let again = Collector::default().take(&text.as_bytes()[..taken]);
                        prop_assert_eq!(again, Collected::Whole(bytes));
                        return Ok(());
                    }
                    Collected::Wrong(_) => return Ok(()),
                }
            }
            prop_assert_eq!(Collector::default().take(text.as_bytes()), Collected::More);
        }

        #[test]
        fn every_object_is_whole_at_its_last_byte(
            fields in proptest::collection::btree_map(".{0,8}", ".{0,8}", 0..5)
        ) {
            let text = serde_json::to_string(&fields).expect("texts have a form");
            let (start, last) = text.as_bytes().split_at(text.len() - 1);
            let mut collector = Collector::default();
            prop_assert_eq!(collector.take(start), Collected::More);
            prop_assert_eq!(collector.take(last), whole(&text));
        }
    }
}
