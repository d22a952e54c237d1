//! What is offered, and what has become of it in the registry.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use guest_agent_proto::host;

use super::RegistryError;

/// Something a plugin offers. Types, names and instances consist of letters, digits, `.`, `_` and `-`.
/// Every plugin may read it, so it holds no secrets.
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
    /// Its type.
    pub kind: String,
    /// Its name.
    pub name: String,
    /// Tells it from other instances of the name.
    pub instance: String,
    /// Its version; may be empty.
    pub version: String,
    /// The unix socket on which it answers.
    pub socket_path: PathBuf,
    /// Whatever its provider wants consumers to know.
    pub options: BTreeMap<String, String>,
    /// The plugin that offers it.
    pub plugin: String,
    /// Which life of that plugin: after a restart the number is another, and higher.
    pub epoch: u64,
    /// Whether somebody answered on the socket since the agent started.
    pub verified: bool,
    /// Its place: of the instances of a name the one with the highest number is current.
    pub order: u64,
}

// === impl Offer ===

impl Offer {
    /// What is of this type, has this name, and answers on this socket (an absolute path). Its instance
    /// is that of the plugin's own name, unless another is named.
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

    /// Names the instance, where a plugin offers more than one of a name.
    #[must_use]
    pub fn instance(self, instance: impl Into<String>) -> Offer {
        Offer { instance: instance.into(), ..self }
    }

    /// Says which version it is.
    #[must_use]
    pub fn version(self, version: impl Into<String>) -> Offer {
        Offer { version: version.into(), ..self }
    }

    /// Adds something that consumers should know.
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
            // A path that is not UTF-8 is refused by the agent, under the form in which it is shown.
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
