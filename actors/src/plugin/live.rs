//! A plugin that runs and answers.

use crate::model::id::{Endpoint, Process};
use crate::plugin::state::{Change, Target};

/// The parts of `Phase::Running`.
pub(super) struct Live {
    pub(super) process: Process,
    pub(super) endpoint: Endpoint,
    pub(super) change: Change,
}

// === impl Live ===

impl Live {
    /// The process that a stop has to end.
    pub(super) fn target(&self) -> Target {
        Target { process: Some(self.process.clone()), endpoint: Some(self.endpoint.clone()) }
    }
}
