//! The end of a plugin with its machine: it took the `shutdown` event, and then exited with code 0.
//!
//! That is what the event asks for, so it is no crash, and costs a revision on trial nothing. The
//! plugin is not started again while the machine goes down under it; only a machine that still runs
//! after a while did not shut down.

use super::TransitionBuilder;
use crate::model::event::PluginEventKind;
use crate::model::exit::ExitCause;
use crate::plugin::state::{Pause, Phase, Shutdown};

/// Why such a plugin does not run.
const ENDED: &str = "it ended after the shutdown event of the machine, and is started again if the \
                     machine still runs ten minutes later";

// === impl TransitionBuilder: the end with the machine ===

impl TransitionBuilder<'_> {
    /// Whether this exit of the running process is its end with the machine.
    pub(super) fn ends_with_machine(&self, cause: ExitCause) -> bool {
        self.state.shutdown == Shutdown::Taken && cause == ExitCause::Exited(0)
    }

    /// The plugin ended as the machine asked it to.
    pub(super) fn end_with_machine(&mut self, cause: ExitCause) {
        let details = format!("{cause}, after the shutdown event of the machine");
        self.announce(PluginEventKind::Stopped, &details);
        self.state.restarts = self.state.restarts.forgiven();
        self.state.phase = Phase::BackingOff { reason: ENDED.into(), pause: Pause::AfterShutdown };
    }

    /// Only a process that runs has taken the event.
    pub(super) fn forget_shutdown(&mut self) {
        if !matches!(self.state.phase, Phase::Running { .. }) {
            self.state.shutdown = Shutdown::NotTaken;
        }
    }
}
