//! Orders that wait because a person holds the plugin.
//!
//! A hold makes INSTALL, APPLY, REMOVE and another local manifest wait. What is past the stop of the
//! old revision finishes; crash restarts, the return from probation, triggers and what a person asks
//! go on. One order waits at a time: a newer one takes its place, and the older one ends. An order
//! is announced when it is taken, with details that begin with `held: `, and is not announced again
//! when the hold ends.
//!
//! An order that changes nothing, or that is refused whatever the hold does, is answered at once.

use std::sync::Arc;

use crate::model::act::{HeldOrder, Hold};
use crate::model::event::PluginEventKind;
use crate::model::id::RevisionId;
use crate::model::runs::Due;
use crate::model::spec::{Config, Difference, PluginSpec};
use crate::plugin::event::{Effect, Order, Whose};
use crate::plugin::orders::superseded_by;
use crate::plugin::state::{Change, Next, Phase};
use crate::plugin::transition_builder::TransitionBuilder;

/// Why the end of an older order of the same revision comes when the hold ends.
const OVERTAKEN: &str = "superseded by the order that was held";

/// Why an order that waited does so no longer.
const SUPERSEDED_BY_REMOVE: &str = "superseded by a REMOVE";

// === impl TransitionBuilder: holds ===

impl TransitionBuilder<'_> {
    /// The first order for a plugin that came while all plugins were held.
    pub(super) fn begin_held(&mut self, hold: Hold, spec: Arc<PluginSpec>) {
        self.state.person.hold = Some(hold.clone());
        self.wait_to_install(&hold, spec);
    }

    /// Orders wait from now on, those included whose work has not stopped anything yet.
    pub(super) fn ordered_hold(&mut self, hold: Hold) {
        if self.state.phase == Phase::Gone {
            return;
        }
        self.state.person.hold = Some(hold);
        if self.state.person.held_order.is_some() {
            return;
        }
        if let Phase::Installing { attempt } = self.state.phase {
            self.effect(Effect::CancelInstall { attempt });
            let spec = self.state.spec.clone();
            // It may be complete, with its answer still on the way.
            self.discard(&spec);
            self.state.owed.install = Due::No;
            self.state.phase = Phase::Held;
            self.state.person.held_order = Some(HeldOrder::Install(spec));
            return;
        }
        match std::mem::replace(&mut self.state.next, Next::Nothing) {
            Next::Preparing { spec, attempt } => {
                self.effect(Effect::CancelInstall { attempt });
                self.discard_unless_wanted(&spec, None);
                self.state.person.held_order = Some(HeldOrder::Install(spec));
            }
            Next::AfterRemoval { spec } => {
                self.state.person.held_order = Some(HeldOrder::Install(spec));
            }
            // An upgrade that is past the stop of the old revision finishes.
            next @ (Next::Nothing | Next::Ready { .. } | Next::Failed { .. }) => {
                self.state.next = next;
            }
        }
    }

    /// The hold ends: the order that waits is carried out.
    pub(super) fn end_hold(&mut self) {
        self.state.person.hold = None;
        let held = &self.state.person.held_order;
        let is_local = matches!(held, Some(HeldOrder::Install(spec)) if spec.is_local());
        if is_local && self.is_dynamic_wanted() {
            // A person restarted a dynamic revision that had failed.
            self.supersede_held("superseded by the dynamic revision, which was started again");
        }
        match self.state.person.held_order.take() {
            Some(HeldOrder::Install(spec)) => self.begin_held_install(spec),
            Some(HeldOrder::Remove { of }) => self.begin_held_remove(of),
            Some(HeldOrder::Apply { config, of }) => {
                self.ordered_apply(config, Some(of));
                self.follow_local();
            }
            // The manifest may have changed and changed back, or another order may have come after
            // its change.
            None => self.follow_local(),
        }
        self.is_announced = false;
    }

    /// Returns the order if it is to be carried out now; otherwise it waits.
    pub(super) fn hold_back(&mut self, order: Order) -> Option<Order> {
        let hold = self.state.person.hold.clone();
        match (hold, order) {
            (Some(hold), Order::Install(spec)) => self.hold_install(&hold, spec),
            (Some(hold), Order::Remove) => self.hold_remove(&hold),
            (Some(hold), Order::Apply(config)) => self.hold_apply(&hold, config),
            (None, order) | (Some(_), order @ (Order::Restart | Order::Asked(_))) => Some(order),
        }
    }

    fn hold_install(&mut self, hold: &Hold, spec: Arc<PluginSpec>) -> Option<Order> {
        let is_refused = self.is_left(&spec) || self.archive_in_the_way_of(&spec).is_some();
        if is_refused {
            return Some(Order::Install(spec));
        }
        if self.runs_as_in(&spec) {
            self.supersede_held(&superseded_by(&spec));
            return Some(Order::Install(spec));
        }
        if matches!(&self.state.next, Next::Ready { spec: next } if next.asks_the_same(&spec)) {
            // It is past the stop of the old revision: the order that is under way does all of it.
            self.supersede_held(&superseded_by(&spec));
            self.state.next = Next::Ready { spec };
            return None;
        }
        self.wait_to_install(hold, spec);
        None
    }

    fn wait_to_install(&mut self, hold: &Hold, spec: Arc<PluginSpec>) {
        let shares_announcement = matches!(
            &self.state.person.held_order,
            Some(HeldOrder::Install(held)) if held.is_revision_of(&spec)
        );
        if !shares_announcement {
            self.supersede_held(&superseded_by(&spec));
            let revision = spec.revision.clone();
            self.announce_for(revision, PluginEventKind::InstallRequested, &hold.reason());
        }
        if self.state.phase == Phase::Gone {
            self.rest_held(spec.clone());
        } else if self.state.phase == Phase::Held {
            self.state.spec = spec.clone();
        }
        self.state.person.held_order = Some(HeldOrder::Install(spec));
    }

    fn hold_remove(&mut self, hold: &Hold) -> Option<Order> {
        if self.is_leaving() || self.state.phase == Phase::Gone {
            // Only an INSTALL that was to follow the removal waits.
            self.supersede_held(SUPERSEDED_BY_REMOVE);
            return Some(Order::Remove);
        }
        let Some(of) = self.removable() else { return Some(Order::Remove) };
        self.wait_to_remove(hold, of);
        None
    }

    fn wait_to_remove(&mut self, hold: &Hold, of: RevisionId) {
        if !matches!(self.state.person.held_order, Some(HeldOrder::Remove { .. })) {
            self.supersede_held(SUPERSEDED_BY_REMOVE);
            self.announce_for(of.clone(), PluginEventKind::RemoveRequested, &hold.reason());
            self.state.person.held_order = Some(HeldOrder::Remove { of });
        }
    }

    /// The revision that a REMOVE would change something about: the current one, or a dynamic one
    /// that is to follow the local version. The local version itself stays.
    fn removable(&self) -> Option<RevisionId> {
        if !self.rests_on_local() {
            // The revision before is let go, with events of its own, when this one has proved itself.
            let taking_over = match &self.state.next {
                Next::Ready { spec } => Some(spec),
                Next::Nothing
                | Next::Preparing { .. }
                | Next::AfterRemoval { .. }
                | Next::Failed { .. } => None,
            };
            return Some(taking_over.unwrap_or(&self.state.spec).revision.clone());
        }
        match (&self.state.person.held_order, &self.state.next) {
            (Some(HeldOrder::Remove { of }), _) => Some(of.clone()),
            (Some(HeldOrder::Install(spec)), _) | (_, Next::Ready { spec }) if !spec.is_local() => {
                Some(spec.revision.clone())
            }
            _nothing_dynamic => None,
        }
    }

    fn hold_apply(&mut self, hold: &Hold, config: Option<Config>) -> Option<Order> {
        let is_answered =
            self.is_leaving() || matches!(self.state.phase, Phase::Gone | Phase::Held);
        if is_answered {
            return Some(Order::Apply(config));
        }
        if let Some(HeldOrder::Apply { config: held, .. }) = &self.state.person.held_order
            && *held == config
        {
            return None;
        }
        self.supersede_held("superseded by a later APPLY");
        let of = self.state.spec.revision.clone();
        self.announce_for(of.clone(), PluginEventKind::ApplyRequested, &hold.reason());
        self.state.person.held_order = Some(HeldOrder::Apply { config, of });
        None
    }

    /// The order that waits does so no longer.
    fn supersede_held(&mut self, details: &str) {
        let (revision, kind) = match self.state.person.held_order.take() {
            None => return,
            Some(HeldOrder::Install(spec)) => {
                (spec.revision.clone(), PluginEventKind::InstallFailed)
            }
            Some(HeldOrder::Remove { of }) => (of, PluginEventKind::RemoveFailed),
            Some(HeldOrder::Apply { of, .. }) => (of, PluginEventKind::ApplyFailed),
        };
        self.tell(revision, kind, details, Whose::Superseded);
    }

    /// An order for the current revision that waits ends with the failure of that revision.
    pub(super) fn supersede_held_failure(&mut self) {
        let held = &self.state.person.held_order;
        if matches!(held, Some(HeldOrder::Install(spec)) if spec.is_revision_of(&self.state.spec)) {
            self.supersede_held("the revision failed while the order was held");
        }
    }

    /// Another manifest waits like an order: while no dynamic revision is wanted it is the order.
    pub(super) fn hold_local(&mut self, local: Option<Arc<PluginSpec>>) {
        let Some(hold) = self.state.person.hold.clone() else { return };
        match local {
            Some(local) if self.is_on_this_machine(&local) => {
                self.supersede_held("superseded by an earlier form of the manifest");
            }
            Some(local) => self.wait_to_install(&hold, local),
            None if self.is_fresh() && self.state.spec.is_local() => {
                self.supersede_held("its manifest was removed");
                self.supersede_owed_apply("its manifest was removed");
                self.state.phase = Phase::Gone;
                self.effect(Effect::Retire);
            }
            None if self.state.spec.is_local() && self.state.phase != Phase::Gone => {
                self.wait_to_remove(&hold, self.state.spec.revision.clone());
            }
            None => {}
        }
    }

    /// Whether the plugin has this version, but for its configuration.
    fn is_on_this_machine(&self, spec: &PluginSpec) -> bool {
        let is_here = !matches!(self.state.phase, Phase::Held | Phase::Gone);
        is_here && self.state.spec.is_but_for_config(spec)
    }

    /// Whether nothing of the plugin was ever on this machine.
    fn is_fresh(&self) -> bool {
        self.state.phase == Phase::Held
    }

    /// Whether a person rolled this revision back.
    fn is_left(&self, spec: &PluginSpec) -> bool {
        self.state.person.left.as_ref().is_some_and(|left| left.revision == spec.revision)
    }

    /// Whether the plugin runs as this order wants it to.
    fn runs_as_in(&self, spec: &PluginSpec) -> bool {
        let rests = matches!(self.state.phase, Phase::Running { change: Change::None, .. })
            && matches!(self.state.next, Next::Nothing | Next::Failed { .. });
        rests
            && spec.is_revision_of(&self.state.spec)
            && !self.is_replaced_by(spec)
            && spec.execution.one_shot().is_none()
            // Its rules may say something else.
            && spec.execution == self.state.spec.execution
            && self.state.spec.difference(spec) == Difference::Unnoticed
    }

    fn begin_held_install(&mut self, spec: Arc<PluginSpec>) {
        // Two orders for one revision were announced, so the older one gets an end of its own.
        if self.is_coming(&spec) {
            self.drop_next(Some(OVERTAKEN), Some(&spec));
        }
        if spec.is_revision_of(&self.state.spec) {
            self.supersede_install(OVERTAKEN);
        }
        self.is_announced = true;
        self.ordered_install(spec);
    }

    fn begin_held_remove(&mut self, of: RevisionId) {
        let about = if self.rests_on_local() {
            self.dynamic_to_follow()
        } else {
            Some(self.state.spec.revision.clone())
        };
        let Some(about) = about else {
            self.announce_for(of, PluginEventKind::Removed, "the local version continues");
            self.follow_local();
            return;
        };
        if about == of {
            self.is_announced = true;
        } else {
            let details = "superseded by a REMOVE of the revision that is current now";
            self.tell(of, PluginEventKind::RemoveFailed, details, Whose::Superseded);
        }
        self.ordered_remove();
    }
}
