//! Drift: an agent lacks what an order brought that is done, or forgot one that it had.
//!
//! ```text
//!   a look at what the agent has ─► Order::lack ─► nothing | WentBack | Differs | ByOwner
//!   two looks, some time apart ───► Entry::drifted ─► the order has drifted
//!   a look that finds it there ───► Entry::told ────► the order has not
//!   the fleet's leave ────────────► next ───────────► a new order, a repair
//! ```
//!
//! An outcome settles a generation, and says nothing about the days after it: a machine goes back to a
//! snapshot, an agent loses its records, a person removes a plugin. A repair is an order with the same target
//! and attempt. How many there may be, and when, is decided for all agents of an assignment:
//! [`crate::repair`].

use super::{Entry, Observed, Order, OrderState};
use crate::drift::{
    Drift, FORGOTTEN_AFTER, Lack, OwnersChange, OwnersKind, Repairs, may_be_of_fleet,
};
use crate::target::Target;
use crate::time::Seconds;

// === impl Entry ===

impl Entry {
    /// Two looks at the agent found that it lacks something; whether that is new.
    pub fn drifted(&mut self, lack: Lack, now: Seconds) -> bool {
        let Some(order) = &mut self.order else { return false };
        if !order.state.can_drift() || order.drift.as_ref().is_some_and(|drift| drift.lack == lack)
        {
            return false;
        }
        if order.drift.is_none() && now.since(self.repairs.last) >= FORGOTTEN_AFTER {
            self.repairs = Repairs::default();
        }
        order.drift = Some(Drift { lack, since: now });
        true
    }

    /// Counts a new order if it is a repair of the one before. Another order begins to count anew.
    pub(super) fn count_repair(&mut self, new: &Order) {
        let same = self.order.as_ref().filter(|former| {
            former.target == new.target
                && former.attempt == new.attempt
                && (former.declared.is_none() || former.declared == new.declared)
        });
        match same {
            Some(former) if former.drift.is_some() => {
                let count = self.repairs.count.saturating_add(1);
                self.repairs = Repairs { count, last: new.made };
            }
            Some(_) => {}
            None => self.repairs = Repairs::default(),
        }
    }

    /// The generation that the agent reports and no order of this journal had: the ledger was lost, or
    /// restored from an older copy.
    ///
    /// Another fleet may have given it before the agent came to this one: such a generation says nothing.
    #[must_use]
    pub fn unknown_generation(&self, observed: &Observed, now: Seconds) -> Option<u64> {
        let known = self.order.as_ref().map_or(0, |order| order.generation).max(self.generation);
        let is_of_fleet = may_be_of_fleet(observed.generation, observed.since, Some(now));
        (is_of_fleet && observed.generation > known).then_some(observed.generation)
    }
}

// === impl Order ===

impl Order {
    /// How the agent lacks what the order brought; `None` where it has that.
    ///
    /// An order that failed or was taken back brought nothing, and one that may be on its way has not yet. A
    /// report of a later order says nothing about this one, and one of an earlier order tells of a machine that
    /// went back: it has to be from after the agent had this one.
    #[must_use]
    pub fn lack(&self, observed: &Observed) -> Option<Lack> {
        if !self.state.can_drift() || observed.generation > self.generation {
            return None;
        }
        // Lists have no generations.
        let went_back = !observed.is_listed && observed.generation < self.generation;
        if !self.state.is_settled() {
            return went_back.then_some(Lack::WentBack);
        }
        if !went_back && let Some(change) = &observed.owners_change {
            return Some(Lack::ByOwner(change.clone()));
        }
        if self.is_there(observed, went_back) {
            return None;
        }
        // The fleet never ordered the plugin, and so agents remember nobody's changes of it.
        if !observed.is_listed && self.generation == 0 {
            let is_removed = self.target != Target::Absent && observed.is_absent();
            let kind = if is_removed { OwnersKind::Removed } else { OwnersKind::Installed };
            return Some(Lack::ByOwner(OwnersChange::new(kind, "")));
        }
        Some(if went_back { Lack::WentBack } else { Lack::Differs })
    }

    /// Whether a person on the machine changed what it brought, and a new order would undo that.
    pub(super) fn is_changed_by_owner(&self) -> bool {
        let lack = self.drift.as_ref().map(|drift| &drift.lack);
        matches!(lack, Some(Lack::ByOwner(change)) if change.kind.can_be_undone())
    }

    fn is_there(&self, observed: &Observed, went_back: bool) -> bool {
        if observed.has(&self.target, &self.digest) {
            return true;
        }
        match &self.target {
            Target::Absent => false,
            Target::Revision(revision) => {
                let is_coming = observed.pending.as_ref() == Some(revision);
                // Something else is on its way and may not stay; a later look tells.
                let at_rest = Observed { pending: None, ..observed.clone() };
                let is_leaving = at_rest.has(&self.target, &self.digest);
                // It is listed without a revision: it crashed before it ran, which is its health.
                let is_unwell = observed.is_absent() && !observed.is_gone && !went_back;
                is_coming || is_leaving || is_unwell
            }
        }
    }
}

// === impl OrderState ===

impl OrderState {
    /// Whether the agent had the order, and it brought something or will.
    #[must_use]
    pub fn can_drift(&self) -> bool {
        matches!(self, Self::Acknowledged | Self::Begun | Self::Done { .. })
    }
}

#[cfg(test)]
mod tests;
