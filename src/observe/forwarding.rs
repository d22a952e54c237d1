//! How the forwarding of plugins' logs fares: counts for the metrics, and what is wrong, for the
//! status and `doctor`. [`crate::forward`] does the work and notes it here.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use guest_agent_actors::model::id::PluginName;

use crate::config::LogDestination;

/// What every trouble of forwarding begins with.
pub const TROUBLE: &str = "the logs of plugins do not reach ";

/// How the forwarding to each destination fares. Cheap to clone; clones share everything.
#[derive(Clone, Debug, Default)]
pub struct Forwarding(Arc<Mutex<BTreeMap<LogDestination, Figures>>>);

/// How the forwarding to one destination fares.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Figures {
    /// Lines that it took.
    pub lines: u64,
    /// Bytes of those lines.
    pub bytes: u64,
    /// Bytes that were gone from the log before it took them.
    pub missing_bytes: u64,
    /// Lines that it refused for good.
    pub refused: u64,
    /// Messages that failed, each of which is tried again.
    pub failures: u64,
    /// Bytes in the log of each plugin that it has not taken.
    pub lag: BTreeMap<PluginName, u64>,
    /// Why nothing reaches it, and what helps.
    pub trouble: Option<String>,
}

// === impl Forwarding ===

impl Forwarding {
    /// Changes the figures of a destination.
    pub(crate) fn note(&self, to: LogDestination, change: impl FnOnce(&mut Figures)) {
        change(self.figures().entry(to).or_default());
    }

    /// Nothing is forwarded to a destination any more. What was counted stays counted.
    pub(crate) fn is_off(&self, to: LogDestination) {
        if let Some(figures) = self.figures().get_mut(&to) {
            figures.lag.clear();
            figures.trouble = None;
        }
    }

    /// The figures of all destinations to which anything was forwarded since the agent started.
    #[must_use]
    pub fn now(&self) -> BTreeMap<LogDestination, Figures> {
        self.figures().clone()
    }

    /// What is wrong, a sentence for each destination.
    #[must_use]
    pub fn troubles(&self) -> Vec<String> {
        let of = |(to, figures): (&LogDestination, &Figures)| {
            Some(format!("{TROUBLE}{to}: {}", figures.trouble.as_deref()?))
        };
        self.figures().iter().filter_map(of).collect()
    }

    fn figures(&self) -> MutexGuard<'_, BTreeMap<LogDestination, Figures>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
