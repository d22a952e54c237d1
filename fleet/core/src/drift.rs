//! Drift: an agent lacks what an order brought. Plain data; the journal says when it is so.

use crate::time::Seconds;

/// How far apart the two looks that tell of drift have to be, in seconds, unless the fleet is set up for
/// another time.
pub const APART: u64 = 60;

/// After how many seconds without drift an agent has all its repairs again.
pub const FORGOTTEN_AFTER: u64 = 6 * 3600;

/// How far a gateway's clock may be ahead, in seconds.
const AHEAD: u64 = 24 * 3600;

/// Longest text about who changed a plugin, in bytes.
const BY_BYTES: usize = 256;

/// An order of which the agent lacks something.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Drift {
    /// How that came.
    pub lack: Lack,
    /// When it was certain.
    pub since: Seconds,
}

/// How it came that an agent lacks something.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Lack {
    /// The agent knows of older orders only: its machine went back to an earlier state, or it lost its
    /// records.
    WentBack,
    /// The agent has something else, or nothing.
    Differs,
    /// A person on the machine changed the plugin.
    ByOwner(OwnersChange),
}

/// A change by a person on the machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OwnersChange {
    /// What became of the plugin.
    pub kind: OwnersKind,
    /// Who did it, and why, as the agent says.
    pub by: String,
}

/// What a person on a machine did with a plugin.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum OwnersKind {
    /// The plugin was removed.
    Removed,
    /// A revision was installed, another one or the same with other settings.
    Installed,
    /// The plugin was taken back to the revision before.
    RolledBack,
    /// The plugin was given another configuration.
    Configured,
    /// The plugin was stopped.
    Stopped,
}

/// Orders by which an agent was brought back to what it had been ordered.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Repairs {
    /// How many there were.
    pub count: u32,
    /// When the last one was given, or drift ended last after one.
    pub last: Seconds,
}

/// What the fleet lets be done about an agent and a plugin.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Leave {
    /// The generation of the drifted order that may be given again.
    pub repair: Option<u64>,
    /// A person lets orders go on, although the agent reports generations up to this one that the journal
    /// does not know.
    pub accepted: u64,
}

/// Whether a fleet may have given a generation to an agent that came to it at `since`, by now. An earlier one is
/// of another fleet.
#[must_use]
pub fn may_be_of_fleet(generation: u64, since: Option<Seconds>, now: Option<Seconds>) -> bool {
    since.is_none_or(|since| generation > since.0)
        && now.is_none_or(|now| is_plausible(generation, now))
}

/// Whether a fleet may have given a generation by now. Generations are times; a later one is an agent's mistake, or
/// its lie, and says nothing about the ledger.
#[must_use]
pub fn is_plausible(generation: u64, now: Seconds) -> bool {
    generation <= now.0.saturating_add(AHEAD)
}

// === impl Lack ===

impl Lack {
    /// Whether the fleet mends it by itself. A change by a person on the machine stays, unless a policy undoes
    /// such changes and an order can.
    #[must_use]
    pub fn is_mended(&self, undoes_owners: bool) -> bool {
        match self {
            Self::WentBack | Self::Differs => true,
            Self::ByOwner(change) => undoes_owners && change.kind.can_be_undone(),
        }
    }
}

// === impl OwnersChange ===

impl OwnersChange {
    /// A change, with as much of the text as is kept.
    #[must_use]
    pub fn new(kind: OwnersKind, by: &str) -> Self {
        Self { kind, by: by[..by.floor_char_boundary(BY_BYTES)].to_owned() }
    }
}

// === impl Repairs ===

impl Repairs {
    /// Drift ended.
    pub fn rest(&mut self, now: Seconds) {
        if self.count > 0 {
            self.last = now;
        }
    }
}

// === impl OwnersKind ===

impl OwnersKind {
    /// All, those first that change most.
    pub const ALL: [Self; 5] =
        [Self::Removed, Self::Installed, Self::RolledBack, Self::Configured, Self::Stopped];

    /// Whether an order of the fleet can undo it. An agent starts nothing on an order that a person stopped,
    /// and installs no revision again that a person rolled back.
    #[must_use]
    pub const fn can_be_undone(self) -> bool {
        !matches!(self, Self::Stopped | Self::RolledBack)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_text_about_a_person_is_cut() {
        let change = OwnersChange::new(OwnersKind::Removed, &format!("x{}", "ä".repeat(BY_BYTES)));
        assert_eq!(change.by.len(), BY_BYTES - 1);
    }
}
