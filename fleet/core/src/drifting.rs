//! The drifted agents of assignments, counted over the rows of all agents.

use std::collections::{BTreeMap, BTreeSet};

use crate::desired::decide;
use crate::fold::Row;
use crate::repair::{Drifting, Lacking};
use crate::time::{Seconds, Zones};
use crate::view::View;

/// Counts for these assignments; those that do not exist have no agents.
#[must_use]
pub fn drifting<'a>(
    rows: impl IntoIterator<Item = (&'a String, &'a Row)>,
    (view, assignments): (&View, &BTreeSet<String>),
    now: Seconds,
    zones: &dyn Zones,
) -> BTreeMap<String, Drifting> {
    let mut all: BTreeMap<String, Drifting> = BTreeMap::new();
    let plugins = assignments.iter().filter_map(|name| view.assignments.get(name));
    let plugins: BTreeSet<&String> = plugins.map(|assignment| &assignment.plugin).collect();
    for (id, row) in rows {
        if !row.is_near(now) {
            continue;
        }
        let agent = row.decided_on(id);
        for plugin in &plugins {
            let Some(decision) = decide(view, &agent, plugin, now, zones) else { continue };
            if !assignments.contains(&decision.assignment) {
                continue;
            }
            let found = all.entry(decision.assignment.clone()).or_default();
            found.reachable += 1;
            let order = row.orders.get(*plugin).filter(|order| {
                *order.target() == decision.target && order.attempt == decision.attempt
            });
            let Some(order) = order else { continue };
            if let Some(drift) = &order.drift
                && view.mends(&drift.lack, id, &agent.labels)
            {
                let lacking = Lacking {
                    generation: order.generation,
                    since: drift.since,
                    repairs: order.repairs,
                    may: decision.permission.is_go(),
                };
                found.drifted.insert(id.clone(), lacking);
            }
        }
    }
    all
}
