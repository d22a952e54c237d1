//! How the actor of a plugin begins: with an order, or with what an earlier actor left.

use std::sync::Arc;

use crate::model::spec::PluginSpec;
use crate::model::window::Closed;
use crate::plugin::event::{Boot, Transition};
use crate::plugin::snapshot::Snapshot;
use crate::trace::Trace;

/// The origin of a plugin's actor.
pub enum Beginning {
    /// An order has just made it; this is the order's trace.
    Ordered(Box<Transition>, Option<Arc<Trace>>),
    /// An earlier actor left it.
    Recovered {
        /// Its durable state.
        snapshot: Box<Snapshot>,
        /// Whether the machine restarted since.
        boot: Boot,
    },
}

// === impl Beginning ===

impl Beginning {
    /// What the plugin knows of its maintenance windows when it begins.
    #[must_use]
    pub fn closed(&self) -> Option<Closed> {
        match self {
            Self::Ordered(transition, _) => transition.next.closed,
            Self::Recovered { snapshot, .. } => snapshot.state.closed,
        }
    }

    /// The local version that the plugin begins with.
    #[must_use]
    pub fn local(&self) -> Option<&Arc<PluginSpec>> {
        match self {
            Self::Ordered(transition, _) => transition.next.local.as_ref(),
            Self::Recovered { snapshot, .. } => snapshot.state.local.as_ref(),
        }
    }
}
