//! What an agent should have of a plugin.

/// What an agent should have of a plugin.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Target {
    /// This revision.
    Revision(String),
    /// Nothing: the plugin is removed.
    Absent,
}

/// The newest order of a plugin; where no order is known, the revision that the agent has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ordered {
    /// Its target.
    pub target: Target,
    /// Name of the assignment it came from; empty where it was never ordered.
    pub assignment: String,
    /// Name of the rollout that gave it; empty where none did.
    pub rollout: String,
    /// The target that the agent had before; `None` where that is not known.
    pub replaced: Option<Target>,
}

// === impl Ordered ===

impl Ordered {
    /// A target that the agent has without an order.
    #[must_use]
    pub fn found(target: Target) -> Self {
        Self { target, assignment: String::new(), rollout: String::new(), replaced: None }
    }

    /// With the order that took its place without that the ledger knows it, if one did, by the target that is
    /// there since.
    #[must_use]
    pub fn outdated(self, there: Option<Target>) -> Self {
        match there {
            Some(target) => Self { target, rollout: String::new(), replaced: None, ..self },
            None => self,
        }
    }

    /// Whether it was ordered.
    #[must_use]
    pub fn is_ordered(&self) -> bool {
        !self.assignment.is_empty()
    }
}

// === impl Target ===

impl Target {
    /// The target that is there, by the revision that an agent has. A plugin that came with the machine is not
    /// the fleet's, and counts as absent.
    #[must_use]
    pub fn there(revision: Option<&str>, is_local: bool) -> Self {
        match revision {
            Some(revision) if !is_local => Self::Revision(revision.to_owned()),
            Some(_) | None => Self::Absent,
        }
    }

    /// The revision; `None` where the plugin should be absent.
    #[must_use]
    pub fn revision(&self) -> Option<&str> {
        match self {
            Self::Revision(revision) => Some(revision),
            Self::Absent => None,
        }
    }
}
