//! Permissions of a socket, written in octal as for `chmod`.

use std::fmt;

use serde::de::{Error, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// Permission bits, at most `0777`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SocketMode(u32);

impl SocketMode {
    /// Owner and group: `0770`.
    pub const GROUP: Self = Self(0o770);

    /// Owner and group, without the right to execute: `0660`.
    pub const READ_WRITE: Self = Self(0o660);

    /// Reads an octal text such as `0770` or `600`.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let octal = (3..=4).contains(&text.len()) && text.bytes().all(|c| c.is_ascii_digit());
        u32::from_str_radix(text, 8).ok().filter(|bits| octal && *bits <= 0o777).map(Self)
    }

    /// The bits.
    #[must_use]
    pub const fn bits(self) -> u32 {
        self.0
    }
}

impl Serialize for SocketMode {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&format!("{:04o}", self.0))
    }
}

impl<'de> Deserialize<'de> for SocketMode {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Text;
        impl Visitor<'_> for Text {
            type Value = SocketMode;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("permissions as an octal text, such as \"0770\"")
            }

            fn visit_str<E: Error>(self, text: &str) -> Result<SocketMode, E> {
                SocketMode::parse(text).ok_or_else(|| {
                    E::custom(format_args!(
                        "{text:?} is not a mode; write permissions in octal, such as \"0770\""
                    ))
                })
            }
        }
        deserializer.deserialize_str(Text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modes_are_octal_and_at_most_0777() {
        assert_eq!(SocketMode::parse("0770"), Some(SocketMode::GROUP));
        assert_eq!(SocketMode::parse("600").map(SocketMode::bits), Some(0o600));
        for text in ["", "7", "0888", "1777", "+700", "rwx", "00770"] {
            assert_eq!(SocketMode::parse(text), None, "{text}");
        }
    }
}
