//! Deeds: changes by people on the machine of a plugin for which a fleet gave orders.
//!
//! A deed is remembered when its order is taken, whatever becomes of the order then. Only the plugin
//! itself shows whether the change is in force: an installation may have failed, a configuration may
//! have been refused.

use std::sync::Arc;
use std::time::SystemTime;

use crate::model::id::{FleetGeneration, RevisionId, Sha256Digest};

/// Most deeds of one plugin that are remembered. One more, and the oldest is forgotten.
pub const DEEDS_MAX: usize = 16;

/// A plugin for which a fleet gave orders.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Numbered {
    /// The highest number of such an order.
    pub generation: FleetGeneration,
    /// The deeds of people.
    pub deeds: Deeds,
}

/// A change of a plugin by a person.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Deed {
    /// The change.
    pub change: Change,
    /// Who did it, and why.
    pub by: Arc<str>,
    /// When; `None` where the record of it cannot be read.
    pub at: Option<SystemTime>,
}

/// A change that a person wants of a plugin.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// It is to be removed.
    Removed,
    /// This revision is to run.
    Installed(RevisionId),
    /// The revision before is to run.
    RolledBack,
    /// It is to have the configuration with this digest; `None`: none.
    Configured(Option<Sha256Digest>),
    /// It is to stay stopped.
    Stopped,
}

/// The deeds about one plugin, the newest of each change, oldest first.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Deeds(Vec<Deed>);

// === impl Deeds ===

impl Deeds {
    /// Remembers one more.
    pub fn add(&mut self, deed: Deed) {
        self.0.retain(|before| before.change != deed.change);
        self.0.push(deed);
        self.0.drain(..self.0.len().saturating_sub(DEEDS_MAX));
    }

    /// Forgets the deeds whose change is not to be kept.
    pub fn retain(&mut self, keeps: impl Fn(&Change) -> bool) {
        self.0.retain(|deed| keeps(&deed.change));
    }

    /// The newest deed with this change.
    #[must_use]
    pub fn of(&self, change: &Change) -> Option<&Deed> {
        self.0.iter().find(|deed| deed.change == *change)
    }

    /// All of them, oldest first.
    pub fn iter(&self) -> impl Iterator<Item = &Deed> {
        self.0.iter()
    }

    /// Whether nobody did anything.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl FromIterator<Deed> for Deeds {
    fn from_iter<T: IntoIterator<Item = Deed>>(deeds: T) -> Self {
        let mut all = Self::default();
        deeds.into_iter().for_each(|deed| all.add(deed));
        all
    }
}
