//! The text of an API token: `gfa_NAME_SECRETCHECK`.
//!
//! ```text
//!   gfa_ci_q3k…  (52 characters: 260 random bits)  …7x2a4b  (6 characters: a checksum of all before)
//! ```
//!
//! The prefix lets scanners find tokens in sources and logs, and the checksum lets them know a token from
//! something that looks like one. The checksum protects nothing: everybody can compute it.

use std::fmt;

use sha2::{Digest, Sha256};

use crate::enroll::random;

/// What every token begins with.
const PREFIX: &str = "gfa_";
const SECRET: usize = 52;
const CHECK: usize = 6;
const ALPHABET: &[u8; 32] = b"abcdefghijklmnopqrstuvwxyz234567";
/// Stands before what is hashed, so that no other digest can be taken for one of a token.
const DOMAIN: &[u8] = b"guest-fleet api token 1\0";

/// A token with its secret.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct Credential {
    pub(super) name: String,
    secret: String,
}

// === impl Credential ===

impl Credential {
    /// A new one.
    pub(super) fn random(name: &str) -> Self {
        Self { name: name.to_owned(), secret: random::text::<SECRET>() }
    }

    /// Reads the text of a token; `None` where it is something else.
    pub(super) fn parse(text: &str) -> Option<Self> {
        let (name, rest) = text.strip_prefix(PREFIX)?.split_once('_')?;
        let (secret, check) = rest.split_at_checked(SECRET)?;
        let is_ours = rest.bytes().all(|byte| ALPHABET.contains(&byte));
        let found = Self { name: name.to_owned(), secret: secret.to_owned() };
        (is_ours && check.len() == CHECK && check == found.check()).then_some(found)
    }

    /// The text, which is shown once.
    pub(super) fn text(&self) -> String {
        format!("{PREFIX}{}_{}{}", self.name, self.secret, self.check())
    }

    /// What the ledger has of it.
    pub(super) fn digest(&self) -> Vec<u8> {
        let mut hash = Sha256::new();
        hash.update(DOMAIN);
        hash.update(&self.name);
        hash.update(b"\0");
        hash.update(&self.secret);
        hash.finalize().to_vec()
    }

    /// Whether the ledger has this digest of it. The time that it takes does not depend on how much of
    /// the two is equal.
    pub(super) fn is_of(&self, digest: &[u8]) -> bool {
        let ours = self.digest();
        let differing = ours.iter().zip(digest).fold(0, |all, (one, other)| all | (one ^ other));
        std::hint::black_box(differing) == 0 && ours.len() == digest.len()
    }

    fn check(&self) -> String {
        let digest = Sha256::digest(format!("{PREFIX}{}_{}", self.name, self.secret));
        let letter = |byte: &u8| char::from(ALPHABET[usize::from(byte % 32)]);
        digest.iter().take(CHECK).map(letter).collect()
    }
}

impl fmt::Debug for Credential {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Credential").field("name", &self.name).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_token_is_read_as_it_is_written_and_shows_no_secret() {
        let token = Credential::random("ci");
        let text = token.text();
        assert_eq!(text.len(), "gfa_ci_".len() + SECRET + CHECK);
        let read = Credential::parse(&text).expect("a token");
        assert_eq!(read, token);
        assert!(read.is_of(&token.digest()));
        assert!(!format!("{token:?}").contains(&token.secret));
    }

    #[test]
    fn a_token_with_another_letter_or_a_part_of_one_is_none() {
        let text = Credential::random("ci").text();
        for at in 0..text.len() {
            assert_eq!(Credential::parse(&text[..at]), None, "cut at {at}");
            let mut changed = text.clone().into_bytes();
            changed[at] = if changed[at] == b'a' { b'b' } else { b'a' };
            let changed = String::from_utf8(changed).expect("ASCII");
            assert_eq!(Credential::parse(&changed), None, "changed at {at}");
        }
        for more in
            [format!("{text}a"), format!(" {text}"), format!("{text}\n"), text.to_uppercase()]
        {
            assert_eq!(Credential::parse(&more), None, "{more}");
        }
    }

    #[test]
    fn the_digest_of_another_token_or_of_no_token_is_not_the_one() {
        let [one, other] = [Credential::random("ci"), Credential::random("ci")];
        assert!(!one.is_of(&other.digest()));
        assert!(!one.is_of(&[]) && !one.is_of(&one.digest()[..31]));
        let longer = [one.digest(), vec![0]].concat();
        assert!(!one.is_of(&longer));
        // A digest in the record of another name is of no use.
        let moved = Credential { name: "web".to_owned(), ..one.clone() };
        assert!(!moved.is_of(&one.digest()));
    }

    proptest! {
        #[test]
        fn law_nothing_that_is_sent_makes_reading_panic(text in "(gfa_)?[a-z0-9_ä-]{0,130}") {
            if let Some(found) = Credential::parse(&text) {
                prop_assert_eq!(found.text(), text);
            }
        }
    }
}
