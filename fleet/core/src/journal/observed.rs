//! What an agent is known to have of one plugin, from a report or a list.

use crate::drift::OwnersChange;
use crate::time::Seconds;
use crate::view::Target;

/// What an agent is known to have of one plugin.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Observed {
    /// The revision that is there; `None` when the plugin is not.
    pub revision: Option<String>,
    /// The revision that is being installed or waits to be.
    pub pending: Option<String>,
    /// SHA-256 of the body of the order by which the revision came, where the agent says so.
    pub digest: Option<[u8; 32]>,
    /// The highest generation that the agent keeps for the plugin.
    pub generation: u64,
    /// The plugin came with the machine.
    pub is_local: bool,
    /// The agent says that nothing of the plugin is there, and only keeps its generation. A plugin that
    /// could not be installed, or that crashed, has no revision either and is not gone.
    pub is_gone: bool,
    /// A list says so, and it is newer than the order: the agent sends no report, so that the
    /// revision is all that is known.
    pub is_listed: bool,
    /// When the agent came to this fleet; `None` where that is not known.
    pub since: Option<Seconds>,
    /// What a person on the machine changed since the newest order.
    pub owners_change: Option<OwnersChange>,
}

// === impl Observed ===

impl Observed {
    /// The target that is there.
    #[must_use]
    pub fn target(&self) -> Target {
        Target::there(self.revision.as_deref(), self.is_local)
    }

    /// Whether nothing of the plugin is there, nor on its way.
    #[must_use]
    pub fn is_absent(&self) -> bool {
        self.revision.is_none() && self.pending.is_none()
    }

    /// Whether the agent has what would be ordered, so that ordering it would be wrong: an agent may
    /// report an installation of what is there as a failure.
    ///
    /// With a digest the body decides, because the revision alone does not say how it is configured.
    #[must_use]
    pub fn has(&self, target: &Target, digest: &[u8; 32]) -> bool {
        match target {
            // What came with the machine is not the fleet's to remove.
            Target::Absent => self.is_absent() || (self.is_local && self.pending.is_none()),
            Target::Revision(revision) => {
                let is_current = self.revision.as_ref() == Some(revision) && self.pending.is_none();
                is_current && !self.is_local && self.digest.is_none_or(|found| found == *digest)
            }
        }
    }

    /// Whether an order for something else was carried out. A plugin that crashed is no sign of one.
    pub(super) fn is_instead_of(&self, target: &Target, digest: &[u8; 32]) -> bool {
        match target {
            Target::Absent => !self.has(target, digest),
            Target::Revision(revision) => {
                let is_coming = self.pending.as_ref() == Some(revision);
                let is_other = self.revision.is_some() || self.pending.is_some();
                self.is_gone || (is_other && !is_coming && !self.has(target, digest))
            }
        }
    }

    /// Whether the target is what is there now, whatever is on its way.
    pub(super) fn is_at(&self, target: &Target) -> bool {
        match target {
            Target::Absent => self.is_absent() || self.is_local,
            Target::Revision(revision) => self.revision.as_ref() == Some(revision),
        }
    }

    /// Whether the target is there or on its way.
    #[must_use]
    pub fn takes_up(&self, target: &Target) -> bool {
        match target {
            Target::Absent => self.is_absent(),
            Target::Revision(revision) => {
                self.revision.as_ref() == Some(revision) || self.pending.as_ref() == Some(revision)
            }
        }
    }
}
