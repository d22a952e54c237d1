//! An offer of a plugin, and its entry in the registry.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use guest_agent_proto::host;

use super::RegistryError;

/// An offer of a plugin. Types, names and instances consist of letters, digits, `.`, `_` and `-`.
/// Every plugin may read it, so it must not hold secrets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Offer {
    kind: String,
    name: String,
    instance: String,
    version: String,
    socket_path: PathBuf,
    options: BTreeMap<String, String>,
}

/// An entry of the registry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// The type that the plugin offers.
    pub kind: String,
    /// The name, unique within the type.
    pub name: String,
    /// The instance, unique within the name.
    pub instance: String,
    /// The version; may be empty.
    pub version: String,
    /// The unix socket on which it answers.
    pub socket_path: PathBuf,
    /// Options for consumers, chosen by the provider.
    pub options: BTreeMap<String, String>,
    /// The plugin that offers it.
    pub plugin: String,
    /// The life of that plugin: a restarted process has a higher number.
    pub epoch: u64,
    /// Whether the socket has answered since the agent started.
    pub verified: bool,
    /// The number of the entry: of the instances of a name the one with the highest number is
    /// current.
    pub order: u64,
}

// === impl Offer ===

impl Offer {
    /// An offer of this type and name, which answers on this socket (an absolute path). Its
    /// instance is the plugin's own name, unless [`Offer::instance`] sets another.
    pub fn new(
        kind: impl Into<String>,
        name: impl Into<String>,
        socket: impl AsRef<Path>,
    ) -> Offer {
        Offer {
            kind: kind.into(),
            name: name.into(),
            instance: String::new(),
            version: String::new(),
            socket_path: socket.as_ref().to_owned(),
            options: BTreeMap::new(),
        }
    }

    /// Sets the instance, for a plugin that offers several of one name.
    #[must_use]
    pub fn instance(self, instance: impl Into<String>) -> Offer {
        Offer { instance: instance.into(), ..self }
    }

    /// Sets the version.
    #[must_use]
    pub fn version(self, version: impl Into<String>) -> Offer {
        Offer { version: version.into(), ..self }
    }

    /// Adds an option for consumers.
    #[must_use]
    pub fn option(mut self, key: impl Into<String>, value: impl Into<String>) -> Offer {
        self.options.insert(key.into(), value.into());
        self
    }

    pub(super) fn kind(&self) -> &str {
        &self.kind
    }

    pub(super) fn name(&self) -> &str {
        &self.name
    }

    pub(super) fn into_wire(self) -> host::Offer {
        host::Offer {
            r#type: self.kind,
            name: self.name,
            instance: self.instance,
            version: self.version,
            // The agent refuses a path that is not UTF-8; the lossy form is good enough for its
            // message.
            socket_path: self.socket_path.to_string_lossy().into_owned(),
            options: self.options.into_iter().collect(),
        }
    }
}

// === impl Entry ===

impl Entry {
    pub(super) fn of(entry: Option<host::Entry>) -> Result<Entry, RegistryError> {
        let incomplete = || RegistryError::Unreachable("it answered without an entry".to_owned());
        let entry = entry.ok_or_else(incomplete)?;
        let offer = entry.offer.ok_or_else(incomplete)?;
        Ok(Entry {
            kind: offer.r#type,
            name: offer.name,
            instance: offer.instance,
            version: offer.version,
            socket_path: offer.socket_path.into(),
            options: offer.options.into_iter().collect(),
            plugin: entry.plugin,
            epoch: entry.epoch,
            verified: entry.verified,
            order: entry.order,
        })
    }

    pub(super) fn is_same_instance(&self, other: &Entry) -> bool {
        (&self.kind, &self.name, &self.instance) == (&other.kind, &other.name, &other.instance)
    }
}
