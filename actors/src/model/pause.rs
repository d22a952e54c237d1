//! Times in which the machine, or the agent with its plugins, stood still.

use std::time::{Duration, SystemTime};

/// Why nothing went on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum PauseKind {
    /// The machine was suspended: its clocks say so.
    Suspended,
    /// Nothing ran, for another reason: the machine was stopped by its host, such as during a migration, or
    /// the processes were stopped.
    Stopped,
    /// The host gave the processors to other machines meanwhile.
    Stolen,
}

/// A time in which nothing went on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pause {
    /// Why.
    pub kind: PauseKind,
    /// How long.
    pub lasted: Duration,
    /// When it ended, by the clock of that moment.
    pub ended: SystemTime,
}

// === impl PauseKind ===

impl PauseKind {
    /// Its name in logs.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Suspended => "suspended",
            Self::Stopped => "stopped",
            Self::Stolen => "stolen",
        }
    }

    /// Whether plugins that ask for it get the event: what they knew of other machines may be old.
    #[must_use]
    pub const fn resumes(self) -> bool {
        match self {
            Self::Suspended | Self::Stopped => true,
            Self::Stolen => false,
        }
    }
}
