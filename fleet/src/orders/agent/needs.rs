//! The matters of one agent that only the controller decides.

use std::collections::BTreeMap;

use guest_fleet_core::desired::{Agent, Decision, Permission, permission};
use guest_fleet_core::drift::Leave;
use guest_fleet_core::journal::{Entry, Observed};
use guest_fleet_core::repair::Repair;
use guest_fleet_core::time::{Seconds, Zones};
use guest_fleet_core::view::View;

use super::journal::Draft;
use crate::gateways::needs::{Needs, Unknown};
use crate::simulated::removed::{self, Guard};

/// What the fleet lets be done about an agent and a plugin.
pub(super) fn leave(view: &View, decision: &Decision, agent: &Agent, entry: &Entry) -> Leave {
    let mut leave = view.leave(&decision.assignment, &agent.id);
    if removed::is(Guard::LeaveToRepair) {
        leave.repair = entry.order.as_ref().map(|order| order.generation);
    }
    if removed::is(Guard::LedgerWentBack) {
        leave.accepted = u64::MAX;
    }
    leave
}

/// What they follow from.
pub(super) struct Ground<'a> {
    pub(super) view: &'a View,
    pub(super) agent: &'a Agent,
    pub(super) decisions: &'a BTreeMap<String, Decision>,
    /// How often a drifted agent is ordered again.
    pub(super) repairs: usize,
    pub(super) now: Seconds,
    pub(super) zones: &'a dyn Zones,
}

// === impl Ground ===

impl Ground<'_> {
    /// The matters. `observed` says what the agent has of a plugin.
    pub(super) fn needs(
        &self,
        journal: &Draft,
        observed: impl Fn(&str) -> Option<Observed>,
    ) -> Needs {
        let mut needs = Needs::default();
        for (plugin, decision) in self.decisions {
            if let Some(assignment) = self.joins(plugin, decision) {
                needs.joins.insert(assignment);
            }
            // What is decided already needs no telling, and would take the place of others.
            let repair = self.view.repairs.get(&decision.assignment);
            let is_paused = repair.is_some_and(Repair::is_paused);
            if is_paused || matches!(decision.permission, Permission::Quarantined(_)) {
                continue;
            }
            let is_stopped = repair.is_some_and(|repair| repair.stop.is_some());
            let entry = journal.entry(plugin);
            if decision.permission.is_go() && !is_stopped && self.is_drifted(decision, &entry) {
                needs.drifted.insert(decision.assignment.clone());
            }
            let unknown = observed(plugin).and_then(|it| entry.unknown_generation(&it, self.now));
            let leave = self.view.leave(&decision.assignment, &self.agent.id);
            if let Some(generation) = unknown.filter(|unknown| *unknown > leave.accepted) {
                let unknown = Unknown { agent: self.agent.id.clone(), generation };
                needs.unknown.insert(decision.assignment.clone(), unknown);
            }
        }
        needs
    }

    /// The assignment that the agent waits to join, where nothing else keeps it from that: a rollout of it
    /// would reach the agent.
    fn joins(&self, plugin: &str, decision: &Decision) -> Option<String> {
        let Permission::Joins { assignment } = &decision.permission else { return None };
        let target = &self.view.assignments.get(assignment)?.target;
        let may = permission(self.view, self.agent, plugin, target, self.now, self.zones);
        may.is_go().then(|| assignment.clone())
    }

    /// Whether the agent drifted, and may be ordered again by itself.
    fn is_drifted(&self, decision: &Decision, entry: &Entry) -> bool {
        let order = entry.order.as_ref().filter(|order| order.asks_for(decision));
        let has_repairs =
            usize::try_from(entry.repairs.count).is_ok_and(|count| count < self.repairs);
        let drift = order.and_then(|order| order.drift.as_ref());
        has_repairs
            && drift.is_some_and(|drift| {
                self.view.mends(&drift.lack, &self.agent.id, &self.agent.labels)
            })
    }
}
