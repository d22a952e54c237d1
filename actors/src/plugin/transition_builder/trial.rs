//! The trial of a new revision: it proves itself, or the agent returns to the revision before.

use std::sync::Arc;

use super::TransitionBuilder;
use crate::model::event::PluginEventKind;
use crate::model::id::RevisionId;
use crate::model::runs::Due;
use crate::plugin::event::Effect;
use crate::plugin::restart::Restarts;
use crate::plugin::state::{FailedAt, Next, Owed};
use crate::ports::without_output;

// === impl TransitionBuilder: the trial ===

impl TransitionBuilder<'_> {
    /// One more part of the probation window passed without trouble.
    pub(in crate::plugin) fn probation_passed(&mut self) {
        let Some(trial) = &mut self.state.trial else { return };
        let ordered_back = matches!(&self.state.next, Next::Preparing { spec, .. } | Next::Ready { spec }
            if spec.is_revision_of(&trial.last_good));
        if ordered_back && trial.slices_left <= 1 {
            // The old revision is about to run again: it is not let go while that is undecided.
            return;
        }
        trial.slices_left = trial.slices_left.saturating_sub(1);
        if trial.slices_left > 0 {
            return;
        }
        let old = trial.last_good.clone();
        self.state.trial = None;
        if old.is_local() {
            // It stays on the machine; it is only not running.
            return;
        }
        let revision = || old.revision.clone();
        self.announce_for(
            revision(),
            PluginEventKind::RemoveRequested,
            "the new revision proved itself",
        );
        self.announce_for(revision(), PluginEventKind::Removed, "");
        // Its files stay until the next revision has proved itself, for a rollback.
        self.keep_former(old);
    }

    /// The current revision is to leave for the one before: its order, and one for it that waits, end
    /// with its failure.
    pub(in crate::plugin) fn take_back(&mut self, reason: &str) {
        self.announce(PluginEventKind::InstallFailed, reason);
        self.state.owed.install = Due::No;
        if let Some(trial) = &mut self.state.trial {
            trial.taken_back = Some(reason.into());
        }
        self.supersede_held_failure();
    }

    /// The revision on trial failed: the one before it runs again. It is on disk already.
    pub(in crate::plugin) fn return_to_last_good(&mut self, reason: Arc<str>) {
        let Some(trial) = self.state.trial.take() else {
            // Without a revision to return to, the current one is tried again.
            self.back_off(reason);
            return;
        };
        self.supersede_held_failure();
        let failed = std::mem::replace(&mut self.state.spec, trial.last_good);
        self.discard(&failed);
        self.fail_owed_apply("the agent returned to the revision before");
        self.state.owed = Owed::default();
        match std::mem::replace(&mut self.state.next, Next::Nothing) {
            Next::Preparing { spec, attempt } if spec.has_files_of(&self.state.spec) => {
                // The way back was ordered already; what is being fetched is on disk.
                self.effect(Effect::CancelInstall { attempt });
                self.state.spec = spec;
                self.state.owed.install = Due::Yes;
            }
            next @ (Next::Nothing | Next::Failed { .. }) => {
                let told = told(next, &failed.revision, reason);
                if let Some(local) = self.replaced() {
                    self.return_to_local(local);
                    self.state.next = told;
                    return;
                }
                self.state.next = told;
            }
            // These are of a newer order, too.
            next @ (Next::Preparing { .. } | Next::Ready { .. } | Next::AfterRemoval { .. }) => {
                self.state.next = next;
            }
        }
        self.state.restarts = Restarts::default();
        self.launch(1);
    }
}

/// The failure that shows once this revision was taken back. A failure `before` is of a newer order,
/// whose sender still looks for it; people look for the cause of now, so the text has both.
fn told(before: Next, taken_back: &RevisionId, why: Arc<str>) -> Next {
    match before {
        Next::Failed { revision, at, reason, dismissed: _ } if revision != *taken_back => {
            let before = without_output(&reason);
            let both = format!("{before}; then revision {taken_back} was taken back: {why}");
            Next::failed(revision, at, both.into())
        }
        _of_the_same_revision => Next::failed(taken_back.clone(), FailedAt::Run, why),
    }
}
