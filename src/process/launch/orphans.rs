//! The names of plugins whose processes an earlier agent process launched.
//!
//! A launch has to find the processes that are left of a plugin, and looks at all processes for
//! that. Where this agent never launched a plugin, only an earlier agent process can have left
//! processes of it, and those exist by the time this agent has run for a while. One look is
//! therefore enough for all such plugins, and the first launches of hundreds of new plugins need no
//! look each. The launcher calls this.

use std::collections::HashSet;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use guest_agent_actors::model::id::PluginName;

use crate::process::launch::process_table::Lookout;

/// An earlier agent process may have forked just before it ended, and a process has its markers
/// only after exec. This is a thousand times as long as that takes.
const SETTLED: Duration = Duration::from_secs(10);

/// The names, once they are known.
#[derive(Debug)]
pub(crate) struct Strangers(Mutex<State>);

#[derive(Debug)]
struct State {
    since: Instant,
    names: Option<HashSet<Box<[u8]>>>,
}

// === impl Strangers ===

impl Strangers {
    /// For an agent that starts now.
    pub(crate) fn new() -> Self {
        Self(Mutex::new(State { since: Instant::now(), names: None }))
    }

    /// Whether a process may run under this name that this agent did not launch.
    pub(crate) async fn may_have(&self, name: &PluginName, lookout: &Lookout) -> bool {
        let name = name.as_str().as_bytes();
        {
            let state = self.lock();
            if state.since.elapsed() < SETTLED {
                return true;
            }
            if let Some(names) = &state.names {
                return names.contains(name);
            }
        }
        let Some(census) = lookout.look().await else { return true };
        self.lock().names.get_or_insert_with(|| census.names()).contains(name)
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// As if the agent had started long ago.
    #[cfg(test)]
    pub(crate) fn age(&self) {
        self.lock().since -= SETTLED;
    }
}
