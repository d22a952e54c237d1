//! An order that is waited for: its goal, and how far it is.

use super::waiting::Until;

/// The word in place of a state for a removed plugin.
pub(super) const REMOVED: &str = "REMOVED";

/// The goal of an order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Goal {
    /// This revision is installed and runs with the configuration of this digest, or waits for its
    /// trigger.
    Installed { revision: String, config_hash: String, until: Until },
    /// The plugin runs, with any revision; a one-shot plugin has run without a failure.
    Working,
    /// The plugin runs, with any revision; a one-shot plugin runs by its triggers again, whatever its
    /// last run came to.
    Started,
    /// The plugin runs with the configuration of this digest; empty for none.
    Configured { config_hash: String },
    /// The plugin is removed.
    Removed,
    /// The plugin does not run, and is to stay so.
    Stopped,
    /// The revision before runs.
    RolledBack,
    /// The order was carried out, whatever came of it.
    Settled,
}

// === impl Goal ===

impl Goal {
    /// Whether the recorded events say how an order with this goal ended.
    pub(super) const fn ends_in_events(&self) -> bool {
        match self {
            Self::Installed { .. } | Self::Configured { .. } | Self::Removed => true,
            Self::Working | Self::Started | Self::Stopped | Self::RolledBack | Self::Settled => {
                false
            }
        }
    }
}

/// An accepted order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Awaited {
    pub(super) name: String,
    pub(super) goal: Goal,
    /// The number that the agent gave it.
    pub(super) generation: u64,
    /// The number of the last event that was recorded before the agent took the order, 0 for none.
    /// `None` from an agent of an older version, and for a goal that ends in no event.
    pub(super) after: Option<u64>,
}

/// The progress of an order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum FollowedOrder {
    /// The order is still being carried out.
    Waiting,
    /// The goal is reached; the state of the plugin, or `REMOVED`.
    Done(String),
    /// The revision before runs again; the state of the plugin, and that revision.
    Returned { state: String, revision: String },
    /// The goal cannot be reached any more, for this reason.
    Failed(String),
    /// The order waits for the end of a hold; who holds the plugin, and why.
    Held(String),
    /// The time was up before; the state of the plugin in words.
    Late(String),
}
