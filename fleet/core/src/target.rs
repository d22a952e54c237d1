//! What an agent should have of a plugin.

/// What an agent should have of a plugin.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Target {
    /// This revision.
    Revision(String),
    /// Nothing: the plugin is removed.
    Absent,
}

// === impl Target ===

impl Target {
    /// The revision; `None` where the plugin should be absent.
    #[must_use]
    pub fn revision(&self) -> Option<&str> {
        match self {
            Self::Revision(revision) => Some(revision),
            Self::Absent => None,
        }
    }
}
