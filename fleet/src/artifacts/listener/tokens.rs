//! Who may upload: those who know one of the tokens in a file.
//!
//! The file is read for each upload, so that a token can be changed without a signal. Tokens are
//! compared by their digests, all of them and to the end: how long it takes says nothing.

use std::fs::File;
use std::hint::black_box;
use std::io::{self, Read};
use std::path::Path;

use http::HeaderMap;
use http::header::AUTHORIZATION;
use sha2::{Digest as _, Sha256};

const MAX_FILE_BYTES: u64 = 64 << 10;
/// Shorter tokens could be guessed.
const MIN_TOKEN_BYTES: usize = 16;

/// Whether the request has one of the tokens in the file. Blocks.
pub(super) fn is_permitted(file: &Path, presented: &str) -> io::Result<bool> {
    let mut text = String::new();
    File::open(file)?.take(MAX_FILE_BYTES).read_to_string(&mut text)?;
    Ok(is_one_of(presented, &text))
}

/// The token of a request.
pub(super) fn presented(headers: &HeaderMap) -> Option<String> {
    let value = headers.get(AUTHORIZATION)?.to_str().ok()?;
    let (scheme, token) = value.split_once(' ')?;
    scheme.eq_ignore_ascii_case("bearer").then(|| token.trim().to_owned())
}

fn is_one_of(presented: &str, file: &str) -> bool {
    let presented = Sha256::digest(presented);
    let mut is_found = false;
    let tokens = file.lines().map(str::trim);
    for token in tokens.filter(|token| token.len() >= MIN_TOKEN_BYTES) {
        let differences = Sha256::digest(token)
            .iter()
            .zip(&presented)
            .fold(0, |differences, (left, right)| black_box(differences | (left ^ right)));
        is_found |= differences == 0;
    }
    is_found
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: &str = "first-token-0123456789\n  second-token-0123456789  \n\nshort\n";

    #[test]
    fn each_line_is_a_token() {
        assert!(is_one_of("first-token-0123456789", FILE));
        assert!(is_one_of("second-token-0123456789", FILE));
    }

    #[test]
    fn everything_else_is_not() {
        for other in ["", "short", "first-token-012345678", "first-token-0123456789 ", FILE] {
            assert!(!is_one_of(other, FILE), "{other}");
        }
        assert!(!is_one_of("", ""));
    }

    #[test]
    fn a_token_is_read_from_the_bearer_header_alone() {
        let of = |value: &str| {
            let value = value.parse().expect("a header value");
            presented(&HeaderMap::from_iter([(AUTHORIZATION, value)]))
        };
        assert_eq!(of("Bearer abc").as_deref(), Some("abc"));
        assert_eq!(of("bearer  abc").as_deref(), Some("abc"));
        for other in ["Basic abc", "abc", "Bearer", ""] {
            assert_eq!(of(other), None, "{other}");
        }
        assert_eq!(presented(&HeaderMap::new()), None);
    }
}
