//! What plugins offer: names, offers and entries, each checked once when it arrives. Pure data.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;
use std::time::SystemTime;

use crate::model::id::{IdError, PluginName, Process, check};
use crate::text::quoted;

/// Longest type, in bytes.
pub const KIND_MAX: usize = 63;

/// Longest name and longest instance id, in bytes.
pub const NAME_MAX: usize = 128;

/// Longest version, in bytes.
pub const VERSION_MAX: usize = 128;

/// Longest path of a socket that the kernel takes, in bytes.
pub const SOCKET_MAX: usize = 107;

/// Most options of one entry.
pub const OPTIONS_MAX: usize = 32;

/// Most bytes of all options of one entry together, keys and values.
pub const OPTION_BYTES_MAX: usize = 8 * 1024;

/// Hostile text is quoted in errors, but not kilobytes of it.
const QUOTED_MAX: usize = 80;

macro_rules! name_type {
    ($(#[$doc:meta])* $name:ident, $what:literal, $max:expr) => {
        $(#[$doc])*
        #[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(Arc<str>);

        impl FromStr for $name {
            type Err = IdError;

            fn from_str(text: &str) -> Result<Self, IdError> {
                check($what, text, $max)?;
                Ok(Self(text.into()))
            }
        }

        impl $name {
            /// The name as text.
            #[must_use]
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }
    };
}

name_type!(
    /// The type of an entry, such as `csi-node`.
    Kind, "type", KIND_MAX
);
name_type!(
    /// The name of an entry within its type.
    Name, "name", NAME_MAX
);
name_type!(
    /// Distinguishes instances of one name.
    Instance, "instance", NAME_MAX
);

/// The key of an entry.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Key {
    /// Its type.
    pub kind: Kind,
    /// Its name.
    pub name: Name,
    /// Its instance.
    pub instance: Instance,
}

/// An offer of a plugin, checked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Offer {
    key: Key,
    version: Arc<str>,
    socket: Arc<str>,
    options: Arc<BTreeMap<String, String>>,
}

/// An offer in the form in which it arrived.
#[derive(Clone, Debug, Default)]
pub struct RawOffer {
    /// Its type.
    pub kind: String,
    /// Its name.
    pub name: String,
    /// Its instance; empty for `default_instance`.
    pub instance: String,
    /// Its version.
    pub version: String,
    /// The socket on which the plugin answers.
    pub socket: String,
    /// Options for consumers.
    pub options: BTreeMap<String, String>,
}

/// Why something cannot be offered.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum OfferError {
    /// The name is not a valid name.
    #[error(transparent)]
    Name(#[from] IdError),
    /// The version is too long or has control characters.
    #[error(
        "the version {0:?} is longer than {VERSION_MAX} bytes or has control characters; shorten it"
    )]
    Version(String),
    /// A path on which no process can listen, or that is not a plain path.
    #[error(
        "the socket path {0:?} has to be absolute, at most {SOCKET_MAX} bytes, without control \
         characters and without \"..\""
    )]
    Socket(String),
    /// Too many options, or too long ones.
    #[error(
        "the options are more than {OPTIONS_MAX} or longer than {OPTION_BYTES_MAX} bytes together; \
         offer fewer options, or serve them on the socket"
    )]
    TooManyOptions,
    /// An option without a name.
    #[error("an option has an empty key, or one with control characters: {0:?}")]
    OptionKey(String),
}

/// The number of a process of a plugin that registered entries: a later process has a higher
/// number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Epoch(pub u64);

/// Whether a process has answered on an entry's socket since this agent started.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing {
    /// Yes.
    Verified,
    /// Not yet: an earlier agent process stored the entry.
    Unverified,
}

/// The plugin that registers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Registrant {
    /// The plugin.
    pub plugin: PluginName,
    /// Its process.
    pub process: Process,
    /// The user whose process answers on the offered socket.
    pub uid: u32,
}

/// An entry of the registry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// The plugin's offer.
    pub offer: Offer,
    /// Its owner.
    pub registrant: Registrant,
    /// The number of the owner's process.
    pub epoch: Epoch,
    /// Its place: of the instances of a name the one with the highest number is current.
    pub order: u64,
    /// When this process registered it first.
    pub registered_at: SystemTime,
    /// Whether a process answers on its socket.
    pub standing: Standing,
}

// === impl Key ===

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}/{}", self.kind, self.name, self.instance)
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

// === impl Offer ===

impl Offer {
    /// Checks an offer. Without an instance it is that of `default_instance`.
    ///
    /// # Errors
    /// Says what cannot be offered, and what could.
    pub fn parse(raw: RawOffer, default_instance: &PluginName) -> Result<Self, OfferError> {
        let RawOffer { kind, name, instance, version, socket, options } = raw;
        let instance =
            if instance.is_empty() { default_instance.as_str() } else { instance.as_str() };
        let key = Key { kind: kind.parse()?, name: name.parse()?, instance: instance.parse()? };
        if version.len() > VERSION_MAX || version.chars().any(char::is_control) {
            return Err(OfferError::Version(quoted(&version, QUOTED_MAX)));
        }
        let is_plain = socket.starts_with('/')
            && socket.len() <= SOCKET_MAX
            && !socket.ends_with('/')
            && !socket.chars().any(char::is_control)
            && socket.split('/').all(|part| part != "..");
        if !is_plain {
            return Err(OfferError::Socket(quoted(&socket, QUOTED_MAX)));
        }
        let bytes: usize = options.iter().map(|(key, value)| key.len() + value.len()).sum();
        if options.len() > OPTIONS_MAX || bytes > OPTION_BYTES_MAX {
            return Err(OfferError::TooManyOptions);
        }
        let nameless = |key: &&String| key.is_empty() || key.chars().any(char::is_control);
        if let Some(key) = options.keys().find(nameless) {
            return Err(OfferError::OptionKey(quoted(key, QUOTED_MAX)));
        }
        Ok(Self { key, version: version.into(), socket: socket.into(), options: options.into() })
    }

    /// Its key.
    #[must_use]
    pub const fn key(&self) -> &Key {
        &self.key
    }

    /// Its version; may be empty.
    #[must_use]
    pub fn version(&self) -> &str {
        &self.version
    }

    /// Absolute path of the socket on which it answers.
    #[must_use]
    pub fn socket(&self) -> &str {
        &self.socket
    }

    /// Options for consumers.
    #[must_use]
    pub fn options(&self) -> &BTreeMap<String, String> {
        &self.options
    }
}

// === impl Entry ===

impl Entry {
    /// Its key.
    #[must_use]
    pub const fn key(&self) -> &Key {
        self.offer.key()
    }

    /// Whether this process of a plugin registered it.
    #[must_use]
    pub fn is_of(&self, plugin: &PluginName, process: &Process) -> bool {
        self.registrant.plugin == *plugin && self.registrant.process == *process
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn raw() -> RawOffer {
        RawOffer {
            kind: "csi-node".to_owned(),
            name: "ebs".to_owned(),
            socket: "/run/ebs.sock".to_owned(),
            ..RawOffer::default()
        }
    }

    fn parse(change: impl FnOnce(&mut RawOffer)) -> Result<Offer, OfferError> {
        let mut raw = raw();
        change(&mut raw);
        Offer::parse(raw, &"plug".parse().expect("a name"))
    }

    #[test]
    fn the_plugin_is_the_instance_where_none_is_named() {
        let offer = parse(|_| {}).expect("an offer");
        assert_eq!(offer.key().to_string(), "csi-node/ebs/plug");
        let offer = parse(|raw| raw.instance = "i-7".to_owned()).expect("an offer");
        assert_eq!(offer.key().instance.as_str(), "i-7");
    }

    #[test]
    fn what_is_hostile_is_refused() {
        type Change = fn(&mut RawOffer);
        let bad: [Change; 14] = [
            |raw| raw.kind.clear(),
            |raw| raw.kind = "a/b".to_owned(),
            |raw| raw.kind = "k".repeat(KIND_MAX + 1),
            |raw| raw.name = "../x".to_owned(),
            |raw| raw.name = "n".repeat(NAME_MAX + 1),
            |raw| raw.instance = "a\0b".to_owned(),
            |raw| raw.version = "1\n2".to_owned(),
            |raw| raw.version = "v".repeat(VERSION_MAX + 1),
            |raw| raw.socket = "run/x.sock".to_owned(),
            |raw| raw.socket = "/run/../etc/x.sock".to_owned(),
            |raw| raw.socket = "/run/x\0.sock".to_owned(),
            |raw| raw.socket = format!("/{}", "s".repeat(SOCKET_MAX)),
            |raw| drop(raw.options.insert(String::new(), "x".to_owned())),
            |raw| drop(raw.options.insert("x".to_owned(), "y".repeat(OPTION_BYTES_MAX))),
        ];
        for (number, change) in bad.into_iter().enumerate() {
            assert!(parse(change).is_err(), "{number}");
        }
        let many = |raw: &mut RawOffer| {
            raw.options = (0..=OPTIONS_MAX).map(|n| (n.to_string(), String::new())).collect();
        };
        assert_eq!(parse(many), Err(OfferError::TooManyOptions));
    }
}
