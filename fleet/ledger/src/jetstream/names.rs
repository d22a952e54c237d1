//! Streams, subjects, and keys as tokens of subjects.
//!
//! ```text
//!   bucket  PREFIX-records-agents   PREFIX.records.agents.k.KEY     the record of a key, or its tombstone
//!                                   PREFIX.records.agents.m         markers: writes that change nothing
//!                                   PREFIX.records.agents.f         up to where deletions were forgotten
//!                                   PREFIX.records.agents.g.ID      which keys a batch is about to delete
//!   log     PREFIX-log-events       PREFIX.log.events.k.SUBJECT     entries
//!   hints                           PREFIX.wake.agents              in no stream
//! ```
//!
//! A key is any text. What is no letter, digit, `-` or `_` becomes `=` and two hexadecimal digits
//! for each of its bytes. `/` and `.` end a token, so that the server finds the keys of most
//! prefixes by its own index. The last token begins with `_`, because a token must not be empty.

use crate::{Bucket, Log};

/// Separators of a key that end a token; the server walks token by token, and hostile keys have
/// hundreds.
const SPLITS: usize = 8;

/// Longest prefix of names.
const PREFIX: usize = 32;

/// What all names of a ledger begin with, so that several ledgers have room in one account.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Prefix(String);

// === impl Prefix ===

impl Prefix {
    /// `None` where the text does not fit into names of streams and subjects.
    pub(super) fn new(text: &str) -> Option<Self> {
        let is_right = (1..=PREFIX).contains(&text.len())
            && text.bytes().all(|it| it.is_ascii_alphanumeric() || it == b'-' || it == b'_');
        is_right.then(|| Self(text.to_owned()))
    }

    pub(super) fn stream_of_bucket(&self, bucket: Bucket) -> String {
        format!("{}-records-{}", self.0, name_of_bucket(bucket))
    }

    pub(super) fn subjects_of_bucket(&self, bucket: Bucket) -> String {
        format!("{}.records.{}", self.0, name_of_bucket(bucket))
    }

    pub(super) fn stream_of_log(&self, log: Log) -> String {
        format!("{}-log-{}", self.0, name_of_log(log))
    }

    pub(super) fn subjects_of_log(&self, log: Log) -> String {
        format!("{}.log.{}", self.0, name_of_log(log))
    }

    /// The stream that is there while a restore is under way.
    pub(super) fn restoring(&self) -> String {
        format!("{}-restoring", self.0)
    }

    /// Where hints are sent for a bucket.
    pub(super) fn wake(&self, bucket: Bucket) -> String {
        format!("{}.wake.{}", self.0, name_of_bucket(bucket))
    }

    /// Where hints are sent for any bucket.
    pub(super) fn wake_all(&self) -> String {
        format!("{}.wake.*", self.0)
    }

    /// The bucket that a hint is for.
    pub(super) fn woken(&self, subject: &str) -> Option<Bucket> {
        Bucket::ALL.into_iter().find(|bucket| self.wake(*bucket) == subject)
    }
}

/// The name of a bucket in streams and subjects. A name is never given to another one.
pub(super) fn name_of_bucket(bucket: Bucket) -> &'static str {
    match bucket {
        Bucket::Configuration => "configuration",
        Bucket::Agents => "agents",
        Bucket::Journal => "journal",
        Bucket::Reports => "reports",
        Bucket::Index => "index",
    }
}

/// The name of a log in streams and subjects. A name is never given to another one.
pub(super) fn name_of_log(log: Log) -> &'static str {
    match log {
        Log::Events => "events",
    }
}

/// The subject of a key below the subjects of its stream.
pub(super) fn subject_of(base: &str, key: &str) -> String {
    let (tokens, rest) = split(key);
    let mut subject = format!("{base}.k.");
    for token in tokens {
        subject.push_str(&token);
        subject.push('.');
    }
    subject.push('_');
    subject.push_str(&rest);
    subject
}

/// A filter that fits the subjects of all keys that begin with the prefix, and may fit others.
pub(super) fn filter_of(base: &str, prefix: &str) -> String {
    let (tokens, _) = split(prefix);
    let mut filter = format!("{base}.k.");
    for token in tokens {
        filter.push_str(&token);
        filter.push('.');
    }
    filter.push('>');
    filter
}

/// The tokens that a separator ends, and the rest.
fn split(key: &str) -> (Vec<String>, String) {
    let mut tokens = Vec::new();
    let mut token = String::new();
    for byte in key.bytes() {
        if byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_' {
            token.push(char::from(byte));
            continue;
        }
        token.push('=');
        for digit in [byte >> 4, byte & 15] {
            token.push(char::from_digit(u32::from(digit), 16).unwrap_or('0'));
        }
        if matches!(byte, b'/' | b'.') && tokens.len() < SPLITS {
            tokens.push(std::mem::take(&mut token));
        }
    }
    (tokens, token)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// The key that a subject is of.
    fn key_of(base: &str, subject: &str) -> String {
        let tokens = subject.strip_prefix(&format!("{base}.k.")).unwrap();
        let (before, last) = tokens.rsplit_once('.').unwrap_or(("", tokens));
        let joined = before.replace('.', "") + last.strip_prefix('_').unwrap();
        let mut bytes = Vec::new();
        let mut rest = joined.as_str();
        while let Some(first) = rest.chars().next() {
            if first == '=' {
                bytes.push(u8::from_str_radix(&rest[1..3], 16).unwrap());
                rest = &rest[3..];
            } else {
                bytes.push(u8::try_from(first).unwrap());
                rest = &rest[1..];
            }
        }
        String::from_utf8(bytes).unwrap()
    }

    /// Whether a filter of NATS fits a subject.
    fn fits(filter: &str, subject: &str) -> bool {
        match filter.strip_suffix('>') {
            Some(begin) => subject.len() > begin.len() && subject.starts_with(begin),
            None => filter == subject,
        }
    }

    #[test]
    fn keys_become_tokens_of_subjects() {
        for (key, subject) in [
            ("web", "b.k._web"),
            ("a/b", "b.k.a=2f._b"),
            ("a/", "b.k.a=2f._"),
            ("//", "b.k.=2f.=2f._"),
            ("*>", "b.k._=2a=3e"),
            ("ä", "b.k._=c3=a4"),
            ("1.2.3.4.5.6.7.8.9.0", "b.k.1=2e.2=2e.3=2e.4=2e.5=2e.6=2e.7=2e.8=2e._9=2e0"),
        ] {
            assert_eq!(subject_of("b", key), subject);
        }
        assert_eq!(filter_of("b", "token/x"), "b.k.token=2f.>");
        assert_eq!(filter_of("b", ""), "b.k.>");
    }

    proptest! {
        #[test]
        fn no_two_keys_have_one_subject_and_none_breaks_it(key in ".{1,80}") {
            let subject = subject_of("b", &key);
            prop_assert_eq!(key_of("b", &subject), key);
            prop_assert!(subject.split('.').all(|token| !token.is_empty()));
            prop_assert!(subject.bytes().all(|it| it.is_ascii_graphic() && !b"*>".contains(&it)));
        }

        #[test]
        fn a_filter_fits_every_key_of_its_prefix(prefix in "[a./é]{0,12}", rest in "[a./é]{0,12}") {
            let key = format!("{prefix}{rest}");
            prop_assert!(fits(&filter_of("b", &prefix), &subject_of("b", &key)));
        }
    }

    #[test]
    fn a_prefix_is_a_name() {
        for good in ["a", "guest-fleet", "A_1"] {
            assert!(Prefix::new(good).is_some());
        }
        for bad in ["", "a.b", "a b", "*", "ä", "123456789012345678901234567890123"] {
            assert!(Prefix::new(bad).is_none(), "{bad:?}");
        }
    }

    #[test]
    fn a_hint_names_its_bucket() {
        let prefix = Prefix::new("p").unwrap();
        for bucket in Bucket::ALL {
            assert_eq!(prefix.woken(&prefix.wake(bucket)), Some(bucket));
        }
        assert_eq!(prefix.woken("p.wake.other"), None);
    }
}
