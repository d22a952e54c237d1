//! The version of a plugin that came with the machine, beside the revision that a control plane
//! wants.
//!
//! `State::local` is the version of the manifest; it comes from no order and has no number. A
//! dynamic revision takes precedence: while one is wanted, the local version is only remembered.
//! When the dynamic one is removed, or fails and never ran, the local version runs again. Its files
//! are never deleted. They can be replaced in place, though, also under the same revision: the new
//! files then go through an installation like another revision, so that they are admitted before
//! they run. `transition` calls this for `LocalChanged`; `transition_builder` and `orders` call it
//! for the consequences.

use std::sync::Arc;

use crate::model::act::HeldOrder;
use crate::model::event::PluginEventKind;
use crate::model::id::RevisionId;
use crate::model::spec::PluginSpec;
use crate::plugin::state::{FailedAt, Next, Phase, Resume, Then};
use crate::plugin::transition_builder::TransitionBuilder;

/// Why a REMOVE is refused.
const STAYS: &str = "the plugin came with the machine, and only the machine can take it back: remove \
                     its manifest, then send the agent SIGHUP";

// === impl TransitionBuilder: the local version ===

impl TransitionBuilder<'_> {
    /// The manifest differs from the one before. Nothing happens when it does not.
    pub(super) fn local_changed(&mut self, local: Option<Arc<PluginSpec>>) {
        if self.state.local == local {
            return;
        }
        self.state.local.clone_from(&local);
        if self.state.trial.as_ref().is_some_and(|trial| trial.last_good.is_local()) {
            // The version to return to may not exist any more in its old form.
            let trial = self.state.trial.take();
            self.state.trial = trial.zip(local).map(|(mut trial, local)| {
                // Other files have to be admitted before they run; the digests of the old ones show
                // that they are others.
                if local.has_files_of(&trial.last_good) {
                    trial.last_good = local;
                }
                trial
            });
        }
        if self.is_leaving() || self.is_dynamic_wanted() {
            return;
        }
        if self.state.person.hold.is_some() {
            self.hold_local(self.state.local.clone());
            return;
        }
        match self.state.local.clone() {
            Some(local) => self.take_local(local),
            None => self.forget_local(),
        }
    }

    /// No dynamic revision is wanted any more: the running version is brought in line with the
    /// manifest.
    pub(super) fn follow_local(&mut self) {
        if self.is_leaving() || self.is_dynamic_wanted() {
            return;
        }
        match self.state.local.clone() {
            // A configuration that was applied since stays.
            Some(local) if self.coming().is_some_and(|it| it.is_but_for_config(&local)) => {}
            Some(local) => self.take_local(local),
            None => self.forget_local(),
        }
    }

    /// The version that the plugin has when all is done that has begun. A person may have had another
    /// form of the manifest tried meanwhile.
    fn coming(&self) -> Option<&PluginSpec> {
        match &self.state.next {
            Next::Preparing { spec, .. } | Next::Ready { spec } | Next::AfterRemoval { spec } => {
                Some(spec)
            }
            Next::Nothing | Next::Failed { .. } => {
                (self.state.phase != Phase::Gone).then_some(&*self.state.spec)
            }
        }
    }

    /// The current revision failed for good. A dynamic one leaves its place to the local one.
    pub(super) fn fall_back_on_local(&mut self) {
        if !self.state.spec.is_local() && self.state.local.is_some() {
            self.follow_local();
        }
    }

    /// The version to which a revision on trial returns. Files that came with the machine are
    /// replaced in place: of two local revisions the older one is gone.
    pub(super) fn way_back(
        &self,
        old: Arc<PluginSpec>,
        new: &PluginSpec,
    ) -> Option<Arc<PluginSpec>> {
        if !old.is_local() {
            return Some(old);
        }
        let local = self.state.local.clone().filter(|_| !new.is_local())?;
        // The old version may have a configuration that was applied since; and if nobody admitted
        // the new files, the digests of the old ones show that they are others.
        Some(if old.is_but_for_config(&local) || !old.has_files_of(&local) { old } else { local })
    }

    /// Whether a local version stands for other files than the current one, which is called the
    /// same: they were replaced in place.
    pub(super) fn is_replaced_by(&self, spec: &PluginSpec) -> bool {
        spec.is_local()
            && spec.is_revision_of(&self.state.spec)
            && !spec.has_files_of(&self.state.spec)
    }

    /// What the machine has instead of the files of the current revision, which came with it as
    /// well.
    pub(super) fn replaced(&self) -> Option<Arc<PluginSpec>> {
        let local = self.state.local.clone().filter(|_| self.state.spec.is_local())?;
        (!local.has_files_of(&self.state.spec)).then_some(local)
    }

    /// The files that took the place of those of the current revision, and were refused: a restart
    /// is a wish to try them again, because the old ones cannot be started any more. They have
    /// another revision where the digest of the entry point is the revision.
    pub(super) fn refused_local(&self) -> Option<Arc<PluginSpec>> {
        let rests = matches!(self.state.next, Next::Nothing | Next::Failed { .. });
        let lives = !self.is_leaving() && self.state.phase != Phase::Gone;
        let in_place = |local: &PluginSpec| local.entry_point == self.state.spec.entry_point;
        self.replaced()
            .filter(|local| rests && lives && (self.is_replaced_by(local) || in_place(local)))
    }

    /// The local version takes over, in a life of its own.
    pub(super) fn return_to_local(&mut self, local: Arc<PluginSpec>) {
        let details = "the version that came with the machine takes over";
        self.announce_for(local.revision.clone(), PluginEventKind::InstallRequested, details);
        self.reborn(local);
    }

    /// Whether the version that runs, or is meant to, is local and is not being stopped for good.
    pub(super) fn rests_on_local(&self) -> bool {
        self.state.spec.is_local()
            && self.state.local.is_some()
            && !self.is_leaving()
            && self.state.phase != Phase::Gone
    }

    /// A REMOVE of a plugin that runs its local version: it takes back a dynamic revision that was
    /// ordered to follow, if there is one, and never the local version itself.
    pub(super) fn ordered_remove_of_local(&mut self) {
        let Some(revision) = self.dynamic_to_follow() else {
            self.announce(PluginEventKind::RemoveFailed, STAYS);
            return;
        };
        self.drop_next(Some("superseded by a REMOVE"), None);
        self.state.next = Next::Nothing;
        let details = "the local version continues";
        self.announce_order(revision.clone(), PluginEventKind::RemoveRequested, details);
        match self.state.phase.clone() {
            Phase::Stopping { attempt, target, then: Then::Swap } => {
                self.state.phase = Phase::Stopping { attempt, target, then: Then::Start };
            }
            Phase::Stopped { then: Resume::Swap } => {
                self.state.phase = Phase::Stopped { then: Resume::Start };
            }
            _other => {}
        }
        self.announce_for(revision, PluginEventKind::Removed, "");
        // Another manifest waits, too.
        if self.state.person.hold.is_none() {
            self.follow_local();
        }
    }

    /// The dynamic revision that is to follow the local version, or failed to.
    pub(super) fn dynamic_to_follow(&self) -> Option<RevisionId> {
        match &self.state.next {
            Next::Preparing { spec, .. } | Next::Ready { spec } | Next::AfterRemoval { spec } => {
                Some(spec.revision.clone()).filter(|_| !spec.is_local())
            }
            Next::Failed { revision, .. } => Some(revision.clone())
                .filter(|failed| self.state.local.as_ref().is_none_or(|l| l.revision != *failed)),
            Next::Nothing => None,
        }
    }

    fn take_local(&mut self, local: Arc<PluginSpec>) {
        let revision = self.state.spec.revision.clone();
        let failed = match &self.state.phase {
            Phase::InstallFailed { reason } => Some((FailedAt::Install, reason.clone())),
            Phase::Crashed { reason } => Some((FailedAt::Run, reason.clone())),
            _other => None,
        }
        .filter(|_| !self.state.spec.is_local());
        self.ordered_install(local);
        if let Some((at, reason)) = failed {
            // The control plane still gets the outcome of the dynamic one.
            self.state.next = Next::failed(revision, at, reason);
        }
    }

    fn forget_local(&mut self) {
        if self.state.spec.is_local() && self.state.phase != Phase::Gone {
            let details = "its manifest was removed";
            self.take_down(details, details);
        }
    }

    /// Whether its end has begun. What follows is decided when it is over.
    pub(super) fn is_leaving(&self) -> bool {
        matches!(
            self.state.phase,
            Phase::Removing { .. } | Phase::Stopping { then: Then::Remove, .. }
        )
    }

    /// Whether a control plane wants a revision that is running, on its way, or worth another try.
    pub(super) fn is_dynamic_wanted(&self) -> bool {
        let follows = match &self.state.next {
            Next::Preparing { spec, .. } | Next::Ready { spec } | Next::AfterRemoval { spec } => {
                !spec.is_local()
            }
            Next::Nothing | Next::Failed { .. } => false,
        };
        let waits = matches!(
            &self.state.person.held_order,
            Some(HeldOrder::Install(spec)) if !spec.is_local()
        );
        let has_failed = matches!(
            self.state.phase,
            Phase::Held | Phase::InstallFailed { .. } | Phase::Crashed { .. } | Phase::Gone
        );
        follows || waits || !self.state.spec.is_local() && !has_failed
    }
}
