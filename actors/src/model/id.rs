//! Names, numbers and digests that are checked once, when they enter the core.
//!
//! Everything here has a private field and a parser that says what is wrong with the text it was
//! given. A value of one of these types is safe to join into a path, to log and to compare.

use std::fmt;
use std::num::NonZeroU64;
use std::str::FromStr;
use std::sync::Arc;

use crate::text::quoted;

/// Longest plugin name, in bytes.
pub const PLUGIN_NAME_MAX: usize = 63;

/// Longest revision id, in bytes.
pub const REVISION_ID_MAX: usize = 128;

/// Hostile text is quoted in errors, but not megabytes of it.
const QUOTED_MAX: usize = 80;

/// Why a text is not an id.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{what} {value:?} {reason}")]
pub struct IdError {
    what: &'static str,
    value: String,
    reason: String,
}

/// The name of a plugin: `[A-Za-z0-9][A-Za-z0-9._-]{0,62}`.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PluginName(Arc<str>);

/// A revision of a plugin: like a name, up to 128 bytes.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RevisionId(Arc<str>);

/// A SHA-256 digest.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Sha256Digest([u8; 32]);

/// Numbers one operation that answers later, so that a stale answer can be distinguished from a
/// current one. Grows by one with every such effect of a plugin.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Attempt(pub u64);

/// Numbers an order. A later order has a higher number, across restarts of the agent too.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Generation(pub u64);

/// The number that a fleet gives an order for a plugin, from 1. The fleet's newest order for that
/// plugin has the highest one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FleetGeneration(NonZeroU64);

/// One boot of the machine (`/proc/sys/kernel/random/boot_id`).
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct BootId(pub Arc<str>);

/// One process, distinguished from every other that had or will have its pid.
///
/// A pid alone proves nothing, because the kernel uses it again; a pid with the time its process
/// started, on a known boot, does.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Process {
    /// Process id, in the agent's own pid namespace.
    pub pid: u32,
    /// Field 22 of `/proc/<pid>/stat`: clock ticks from boot to the start of the process.
    pub start_ticks: u64,
    /// The boot it belongs to.
    pub boot: BootId,
}

/// Where a plugin listens, in the form of its `--address` argument with the protocol in front:
/// `unix:/run/…/x.sock` or `tcp:127.0.0.1:4711`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Endpoint(Arc<str>);

// === impl PluginName ===

impl FromStr for PluginName {
    type Err = IdError;

    fn from_str(text: &str) -> Result<Self, IdError> {
        check("plugin name", text, PLUGIN_NAME_MAX)?;
        Ok(Self(text.into()))
    }
}

impl PluginName {
    /// The name as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for PluginName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for PluginName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

// === impl RevisionId ===

impl FromStr for RevisionId {
    type Err = IdError;

    fn from_str(text: &str) -> Result<Self, IdError> {
        check("revision", text, REVISION_ID_MAX)?;
        // The one name that a plugin's folder keeps for itself: the link to what runs.
        if text == "current" {
            return Err(IdError {
                what: "revision",
                value: text.to_owned(),
                reason: "is reserved for the link to the running revision".to_owned(),
            });
        }
        Ok(Self(text.into()))
    }
}

impl RevisionId {
    /// The revision as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for RevisionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for RevisionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

// === impl FleetGeneration ===

impl FleetGeneration {
    /// Wraps a number; 0 is no generation.
    #[must_use]
    pub fn new(number: u64) -> Option<Self> {
        NonZeroU64::new(number).map(Self)
    }

    /// The number.
    #[must_use]
    pub const fn get(self) -> u64 {
        self.0.get()
    }
}

impl FromStr for FleetGeneration {
    type Err = IdError;

    fn from_str(text: &str) -> Result<Self, IdError> {
        // `parse` alone would take a sign and zeros in front, so that one number had many names.
        let is_plain = text.bytes().all(|byte| byte.is_ascii_digit()) && !text.starts_with('0');
        let number = text.parse().ok().filter(|_| is_plain).and_then(Self::new);
        number.ok_or_else(|| IdError {
            what: "fleet-generation",
            value: quoted(text, QUOTED_MAX),
            reason: "is not a decimal number between 1 and 18446744073709551615".to_owned(),
        })
    }
}

impl fmt::Display for FleetGeneration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

// === impl Sha256Digest ===

impl Sha256Digest {
    /// The digest of `data`.
    #[must_use]
    pub fn of(data: &[u8]) -> Self {
        use sha2::Digest;
        Self(sha2::Sha256::digest(data).into())
    }

    /// Wraps a digest that was computed elsewhere.
    #[must_use]
    pub const fn from_bytes(bytes: [u8; 32]) -> Self {
        Self(bytes)
    }

    /// The digest's bytes.
    #[must_use]
    pub const fn as_bytes(&self) -> &[u8; 32] {
        &self.0
    }
}

impl FromStr for Sha256Digest {
    type Err = IdError;

    fn from_str(text: &str) -> Result<Self, IdError> {
        let wrong = |reason: &str| IdError {
            what: "checksum",
            value: quoted(text, QUOTED_MAX),
            reason: reason.to_owned(),
        };
        if text.len() != 64 {
            return Err(wrong("is not 64 hexadecimal digits long"));
        }
        let mut bytes = [0u8; 32];
        for (byte, pair) in bytes.iter_mut().zip(text.as_bytes().chunks_exact(2)) {
            let digit = |c: u8| char::from(c).to_digit(16).and_then(|d| u8::try_from(d).ok());
            let (Some(high), Some(low)) = (digit(pair[0]), digit(pair[1])) else {
                return Err(wrong("has a character that is not a hexadecimal digit"));
            };
            *byte = high << 4 | low;
        }
        Ok(Self(bytes))
    }
}

impl fmt::Display for Sha256Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for Sha256Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

// === impl Attempt ===

impl Attempt {
    /// The number after this one.
    #[must_use]
    pub const fn next(self) -> Self {
        Self(self.0.wrapping_add(1))
    }
}

// === impl Endpoint ===

impl Endpoint {
    /// A plugin on a unix socket.
    #[must_use]
    pub fn unix(path: &str) -> Self {
        Self(format!("unix:{path}").into())
    }

    /// A plugin on a TCP address.
    #[must_use]
    pub fn tcp(address: std::net::SocketAddr) -> Self {
        Self(format!("tcp:{address}").into())
    }

    /// Reads an endpoint back from the text that `Display` wrote. The text is not checked here: the
    /// call that connects to the endpoint reports what is wrong with it.
    #[must_use]
    pub fn from_stored(text: &str) -> Self {
        Self(text.into())
    }

    /// The endpoint with its protocol in front.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

pub(crate) fn check(what: &'static str, text: &str, max: usize) -> Result<(), IdError> {
    let wrong = |reason: String| IdError { what, value: quoted(text, QUOTED_MAX), reason };
    let Some(first) = text.bytes().next() else {
        return Err(wrong("is empty".to_owned()));
    };
    if text.len() > max {
        return Err(wrong(format!("is longer than {max} characters")));
    }
    if !first.is_ascii_alphanumeric() {
        return Err(wrong("does not begin with a letter or a digit".to_owned()));
    }
    match text.chars().find(|c| !(c.is_ascii_alphanumeric() || "._-".contains(*c))) {
        Some(bad) => Err(wrong(format!(
            "has the character {bad:?}; letters, digits, '.', '_' and '-' are allowed"
        ))),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn names_that_could_leave_a_folder_are_refused() {
        for bad in ["", ".", "..", "../x", "a/b", "-x", "_x", "a b", "a\0b", "ä", "x\n"] {
            assert!(bad.parse::<PluginName>().is_err(), "{bad:?} was taken as a name");
            assert!(bad.parse::<RevisionId>().is_err(), "{bad:?} was taken as a revision");
        }
        assert!("current".parse::<RevisionId>().is_err());
        assert!("a".repeat(PLUGIN_NAME_MAX + 1).parse::<PluginName>().is_err());
        assert!("a".repeat(REVISION_ID_MAX + 1).parse::<RevisionId>().is_err());
    }

    #[test]
    fn ordinary_names_are_taken() {
        for good in ["a", "7", "ops-agent", "db_backup.v2", &"a".repeat(PLUGIN_NAME_MAX)] {
            assert_eq!(good.parse::<PluginName>().map(|n| n.to_string()), Ok(good.to_owned()));
        }
    }

    #[test]
    fn an_error_quotes_a_bounded_part_of_the_text() {
        let error = "é".repeat(100_000).parse::<PluginName>().expect_err("too long");
        assert!(error.to_string().len() < 300);
    }

    #[test]
    fn digests_are_read_in_either_case() {
        let digest = Sha256Digest::of(b"abc");
        let text = digest.to_string();
        assert_eq!(text.parse(), Ok(digest));
        assert_eq!(text.to_uppercase().parse(), Ok(digest));
        assert!(text[1..].parse::<Sha256Digest>().is_err());
        assert!(text.replace('b', "g").parse::<Sha256Digest>().is_err());
    }

    proptest! {
        #[test]
        fn law_parsing_never_panics(text in ".{0,200}") {
            let name = text.parse::<PluginName>().map(|name| name.to_string());
            prop_assert!(name.is_err() || name.as_ref() == Ok(&text));
            drop(text.parse::<RevisionId>());
            let digest = text.parse::<Sha256Digest>().map(|digest| digest.to_string());
            prop_assert!(digest.is_err() || digest == Ok(text.to_lowercase()));
        }
    }
}
