//! Which assignments an agent waits to join.

use std::collections::{BTreeMap, BTreeSet};

use guest_fleet_core::desired::{Agent, Decision, Permission, permission};
use guest_fleet_core::time::{Seconds, Zones};
use guest_fleet_core::view::View;

/// The assignments that an agent waits to join, and that nothing else keeps it from: a rollout of them would
/// reach it.
pub(super) fn joined(
    view: &View,
    agent: &Agent,
    decisions: &BTreeMap<String, Decision>,
    now: Seconds,
    zones: &dyn Zones,
) -> BTreeSet<String> {
    let joined = decisions.iter().filter_map(|(plugin, decision)| {
        let Permission::Joins { assignment } = &decision.permission else { return None };
        let target = &view.assignments.get(assignment)?.target;
        let may = permission(view, agent, plugin, target, now, zones);
        may.is_go().then(|| assignment.clone())
    });
    joined.collect()
}
