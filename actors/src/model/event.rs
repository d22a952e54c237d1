//! Events about plugins, as the agent records them and sends them to the control plane.

use std::sync::Arc;
use std::time::SystemTime;

use crate::text::shortened;

mod kind;

pub use kind::{EventClass, PluginEventKind};

/// An event before it has a number.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewEvent {
    /// What happened.
    pub kind: PluginEventKind,
    /// The plugin. Text, because an order may name an impossible plugin.
    pub plugin: Arc<str>,
    /// The revision; empty when none is known.
    pub revision: Arc<str>,
    /// The time.
    pub at: SystemTime,
    /// In words, bounded by [`DETAILS_MAX`].
    pub details: Arc<str>,
}

/// An event that is recorded under its number.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredEvent {
    /// Grows by one with every event of this machine.
    pub seq: u64,
    /// The message id it is sent with, every time.
    pub id: Arc<str>,
    /// What happened.
    pub event: NewEvent,
}

/// How an event left the outbox.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Settlement {
    /// The control plane acknowledged it.
    Acknowledged,
    /// There was no control plane to send it to, or the one there was has no type for it.
    Unaddressed,
}

/// An event that left the outbox.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SettledEvent {
    /// The event.
    pub recorded: StoredEvent,
    /// How it left.
    pub how: Settlement,
}

/// Details are cut to this many bytes.
pub const DETAILS_MAX: usize = 16 * 1024;

/// Names of plugins and revisions are cut to this many bytes. Names that are valid are shorter.
pub const NAME_MAX: usize = 256;

// === impl NewEvent ===

impl NewEvent {
    /// An event with its details cut to their bound.
    #[must_use]
    pub fn new(
        kind: PluginEventKind,
        plugin: &str,
        revision: &str,
        at: SystemTime,
        details: &str,
    ) -> Self {
        Self {
            kind,
            plugin: shortened(plugin, NAME_MAX).into(),
            revision: shortened(revision, NAME_MAX).into(),
            at,
            details: shortened(details, DETAILS_MAX).into(),
        }
    }
}
