//! The digest that names an artifact.

use std::fmt;
use std::str::FromStr;

use data_encoding::HEXLOWER;
use sha2::Sha256;
use thiserror::Error;

/// Digits of a digest as text.
pub(crate) const DIGITS: usize = 64;

/// The SHA-256 of an artifact. Its text is 64 lower-case hexadecimal digits and nothing else, so it
/// is safe as a part of a path.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Digest([u8; 32]);

/// The text is not a digest.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
#[error("a digest is the SHA-256 of an artifact: 64 digits, 0 to 9 and a to f")]
pub struct DigestError;

impl Digest {
    /// The digest of these bytes.
    #[must_use]
    pub fn of(bytes: &[u8]) -> Self {
        use sha2::Digest as _;
        Self(Sha256::digest(bytes).into())
    }

    /// The digest of all that a hasher was given.
    pub(crate) fn finish(hasher: Sha256) -> Self {
        use sha2::Digest as _;
        Self(hasher.finalize().into())
    }
}

impl FromStr for Digest {
    type Err = DigestError;

    fn from_str(text: &str) -> Result<Self, DigestError> {
        let digits: &[u8; DIGITS] = text.as_bytes().try_into().map_err(|_| DigestError)?;
        let mut digest = [0; DIGITS / 2];
        for (byte, pair) in digest.iter_mut().zip(digits.chunks_exact(2)) {
            *byte = value(pair[0])? << 4 | value(pair[1])?;
        }
        Ok(Self(digest))
    }
}

impl fmt::Display for Digest {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&HEXLOWER.encode(&self.0))
    }
}

impl fmt::Debug for Digest {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, formatter)
    }
}

fn value(digit: u8) -> Result<u8, DigestError> {
    match digit {
        b'0'..=b'9' => Ok(digit - b'0'),
        b'a'..=b'f' => Ok(digit - b'a' + 10),
        _ => Err(DigestError),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_digest_is_read_as_it_is_written() {
        let digest = Digest::of(b"an artifact");
        assert_eq!(digest.to_string().parse(), Ok(digest));
        assert_eq!(digest.to_string().len(), DIGITS);
    }

    #[test]
    fn other_texts_are_not_digests() {
        let good = Digest::of(b"").to_string();
        for bad in [
            String::new(),
            good[1..].to_owned(),
            format!("{good}0"),
            good.to_uppercase(),
            format!("../{}", &good[3..]),
            format!("é{}", &good[2..]),
            format!("sha256:{good}"),
            " ".repeat(DIGITS),
        ] {
            assert_eq!(bad.parse::<Digest>(), Err(DigestError), "{bad}");
        }
    }
}
