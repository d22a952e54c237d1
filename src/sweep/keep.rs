//! The files that a sweep must keep.

use std::collections::BTreeSet;
use std::sync::Arc;

use guest_agent_actors::model::id::PluginName;
use guest_agent_actors::ports::{Claim, Known, References};

use super::alive::Alive;

/// What must stay, with what the disk itself says about that.
#[derive(Clone, Debug)]
pub(super) struct Keep {
    pub(super) references: References,
    /// Names in the folder of local plugins.
    pub(super) local: Arc<BTreeSet<String>>,
    pub(super) alive: Arc<Alive>,
}

// === impl Keep ===

impl Keep {
    pub(super) fn claim(&self, name: &PluginName) -> Claim {
        if self.local.contains(name.as_str()) {
            return Claim::Unknown("a local plugin has this name");
        }
        self.references.of(name)
    }

    /// Whether a file of an unknown plugin belongs to a removed plugin.
    pub(super) fn knows_all(&self) -> bool {
        self.references.known == Known::All
    }
}
