//! How orders are announced and how they end.
//!
//! Each INSTALL and each APPLY that was announced gets exactly one end, which names the revision
//! that the announcement named. An order whose place a newer one takes ends before the newer one
//! is announced, or right after it where both are INSTALLs.

use super::TransitionBuilder;
use crate::model::event::PluginEventKind;
use crate::model::id::RevisionId;
use crate::model::runs::Due;
use crate::model::spec::PluginSpec;
use crate::plugin::event::{Effect, PluginEvent, Whose};
use crate::plugin::state::{Change, Next, Owed, Phase};

// === impl TransitionBuilder: the ends of orders ===

impl TransitionBuilder<'_> {
    /// Announces an INSTALL, unless it joins one that is under way.
    pub(in crate::plugin) fn announce_install(&mut self, spec: &PluginSpec) {
        if !self.joins(spec) {
            let revision = spec.revision.clone();
            self.announce_order(revision, PluginEventKind::InstallRequested, "");
        }
    }

    /// Announces an order, unless that was done when the order had to wait. What is announced after
    /// that is of another order.
    pub(in crate::plugin) fn announce_order(
        &mut self,
        revision: RevisionId,
        kind: PluginEventKind,
        details: &str,
    ) {
        if !std::mem::take(&mut self.is_announced) {
            self.announce_for(revision, kind, details);
        }
    }

    /// Whether an INSTALL of the same revision is under way: both share its events.
    fn joins(&self, spec: &PluginSpec) -> bool {
        let is_replacing = self.is_replaced_by(spec)
            // An installation that is replaced in flight is still the same order.
            && !matches!(self.state.phase, Phase::Installing { .. });
        let is_current = spec.is_revision_of(&self.state.spec) && !is_replacing;
        self.is_coming(spec) || is_current && self.owes_install()
    }

    /// Whether this revision is the next one, and its INSTALL has no end yet.
    pub(in crate::plugin) fn is_coming(&self, spec: &PluginSpec) -> bool {
        match &self.state.next {
            Next::Preparing { spec: next, .. }
            | Next::Ready { spec: next }
            | Next::AfterRemoval { spec: next } => next.is_revision_of(spec),
            Next::Nothing | Next::Failed { .. } => false,
        }
    }

    /// Whether an INSTALL of the current revision has no end yet.
    fn owes_install(&self) -> bool {
        let changes = matches!(
            &self.state.phase,
            Phase::Running {
                change: Change::Applying { answers: Owed { install: Due::Yes, .. }, .. }
                    | Change::Limiting { .. },
                ..
            }
        );
        changes || self.state.owed.install == Due::Yes
    }

    /// An INSTALL of the current revision ends because another order takes its place.
    pub(in crate::plugin) fn supersede_install(&mut self, details: &str) {
        if self.owes_install() {
            self.state.owed.install = Due::No;
            if let Some(answers) = self.answers() {
                answers.install = Due::No;
            }
            let revision = self.state.spec.revision.clone();
            self.tell(revision, PluginEventKind::InstallFailed, details, Whose::Superseded);
        }
    }

    /// The revision that was to follow the current one no longer does.
    pub(in crate::plugin) fn supersede_next(&mut self, by: &PluginSpec, details: &str) {
        // An order for the same revision takes over the announcement of the one before, unless
        // the current revision has one to give it already.
        let is_current = by.is_revision_of(&self.state.spec) && !self.is_replaced_by(by);
        let is_shared = self.is_coming(by) && !(is_current && self.owes_install());
        self.drop_next(Some(details).filter(|_| !is_shared), Some(by));
    }

    /// Cancels the next revision. With `details`, its order ends with them. Files that are `wanted`
    /// stay.
    pub(in crate::plugin) fn drop_next(
        &mut self,
        details: Option<&str>,
        wanted: Option<&PluginSpec>,
    ) {
        let dropped = match std::mem::replace(&mut self.state.next, Next::Nothing) {
            Next::Nothing | Next::Failed { .. } => return,
            Next::Preparing { spec, attempt } => {
                self.effect(Effect::CancelInstall { attempt });
                // It may be complete, with its answer still on the way.
                self.discard_unless_wanted(&spec, wanted);
                spec
            }
            Next::Ready { spec } => {
                self.discard_unless_wanted(&spec, wanted);
                spec
            }
            Next::AfterRemoval { spec } => spec,
        };
        if let Some(details) = details {
            let revision = dropped.revision.clone();
            self.tell(revision, PluginEventKind::InstallFailed, details, Whose::Superseded);
        }
    }

    pub(in crate::plugin) fn discard_unless_wanted(
        &mut self,
        dropped: &PluginSpec,
        wanted: Option<&PluginSpec>,
    ) {
        let last_good = self.state.trial.as_ref().map(|trial| &trial.last_good);
        let is_last_good = last_good.is_some_and(|last_good| last_good.is_revision_of(dropped));
        let is_wanted = wanted.is_some_and(|wanted| wanted.has_files_of(dropped));
        if !is_last_good && !is_wanted {
            self.discard(dropped);
        }
    }

    /// Announces an APPLY, unless it was announced for a revision when it had to wait.
    pub(in crate::plugin) fn announce_apply(&mut self, announced_for: Option<RevisionId>) {
        if announced_for.is_none() {
            self.announce(PluginEventKind::ApplyRequested, "");
        }
        let current = || self.state.spec.revision.clone();
        self.state.apply_of = Some(announced_for.unwrap_or_else(current));
    }

    /// The APPLY that was announced last ends.
    pub(in crate::plugin) fn end_apply(&mut self, kind: PluginEventKind, details: &str) {
        self.end_apply_of(kind, details, Whose::Newest);
    }

    fn end_apply_of(&mut self, kind: PluginEventKind, details: &str, whose: Whose) {
        let current = &self.state.spec.revision;
        let revision = self.state.apply_of.take().unwrap_or_else(|| current.clone());
        self.tell(revision, kind, details, whose);
    }

    /// An APPLY that is kept for the next start fails.
    pub(in crate::plugin) fn fail_owed_apply(&mut self, details: &str) {
        if std::mem::take(&mut self.state.owed.apply) == Due::Yes {
            self.end_apply(PluginEventKind::ApplyFailed, details);
        }
    }

    /// The same, because another order takes its place.
    pub(in crate::plugin) fn supersede_owed_apply(&mut self, details: &str) {
        if std::mem::take(&mut self.state.owed.apply) == Due::Yes {
            self.end_apply_of(PluginEventKind::ApplyFailed, details, Whose::Superseded);
        }
    }

    /// The APPLY that the call in flight answers ends, because another order takes its place.
    pub(in crate::plugin) fn supersede_call(&mut self, details: &str) {
        self.end_apply_of(PluginEventKind::ApplyFailed, details, Whose::Superseded);
    }

    /// The plugin gives no outcome any more for an APPLY that has none: another order takes its
    /// place.
    pub(in crate::plugin) fn supersede_apply(&mut self, details: &str) {
        self.supersede_owed_apply(details);
        let in_flight = self.answers().map(|answers| std::mem::take(&mut answers.apply));
        if in_flight == Some(Due::Yes) {
            self.supersede_call(details);
        }
    }

    /// The orders that the call in flight answers, if there is one.
    fn answers(&mut self) -> Option<&mut Owed> {
        match &mut self.state.phase {
            Phase::Running { change: Change::Applying { answers, .. }, .. } => Some(answers),
            _no_call => None,
        }
    }

    /// Every order without an outcome gets one: the plugin is about to be removed.
    pub(in crate::plugin) fn supersede_all(&mut self, details: &str) {
        self.supersede_install(details);
        self.drop_next(Some(details), None);
        self.supersede_apply(details);
    }

    pub(in crate::plugin) fn tell(
        &mut self,
        revision: RevisionId,
        kind: PluginEventKind,
        details: &str,
        whose: Whose,
    ) {
        let details = details.into();
        self.effect(Effect::Announce(PluginEvent { kind, revision, details, whose }));
    }
}
