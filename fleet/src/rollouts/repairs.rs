//! Drifted agents are ordered again, few at a time; and nothing is where the ledger went back.
//!
//! ```text
//!   needs that gateways tell ─► rows of all agents ─► core::repair ─► repair/<assignment> ─► views of gateways
//! ```

use std::collections::{BTreeMap, BTreeSet};

use guest_fleet_core::drifting::drifting;
use guest_fleet_core::repair::{Drifting, Repair};
use guest_fleet_core::time::Seconds;
use guest_fleet_ledger::records::repair::{RepairRecord, repair_key};
use guest_fleet_ledger::{Revision, Write};
use prost::Message;

use super::controller::{Controller, Lost};
use super::rows::Rows;
use crate::configuration::change::{Becomes, Edit};
use crate::configuration::{Configuration, words};
use crate::gateways::needs::Needs;

// === impl Controller ===

impl Controller<'_> {
    /// Whether no order of an assignment is given, because the ledger went back.
    pub(super) fn is_paused(&self, assignment: &str) -> bool {
        self.configuration.view().repairs.get(assignment).is_some_and(Repair::is_paused)
    }

    /// Decides which drifted agents are ordered again, and which assignments pause.
    pub(super) async fn repair(&mut self, needs: &Needs) -> Result<(), Lost> {
        let view = self.configuration.view();
        let open = view.repairs.iter().filter(|(_, repair)| repair.is_open());
        let drifting = open.map(|(name, _)| name).chain(&needs.drifted);
        let drifting = drifting.filter(|name| view.assignments.contains_key(*name));
        let drifting: BTreeSet<String> = drifting.cloned().collect();
        let unknown = needs.unknown.keys().filter(|name| view.assignments.contains_key(*name));
        let all: BTreeSet<String> = unknown.chain(&drifting).cloned().collect();
        self.mends = !drifting.is_empty();
        let mut counts = self.count_drifting(&drifting).await?;
        for assignment in all {
            let unknown = needs.unknown.get(&assignment);
            let drifting = Drifting {
                unknown: unknown.map(|unknown| (unknown.agent.clone(), unknown.generation)),
                ..counts.remove(&assignment).unwrap_or_default()
            };
            let (before, now) = (self.repair_of(&assignment), (self.settings.wall)());
            if let Some(after) = before.next(&drifting, &self.settings.pace, now) {
                self.set_repair(&assignment, &before, &after, now).await?;
            }
        }
        Ok(())
    }

    async fn count_drifting(
        &mut self,
        assignments: &BTreeSet<String>,
    ) -> Result<BTreeMap<String, Drifting>, Lost> {
        if assignments.is_empty() {
            return Ok(BTreeMap::new());
        }
        let rows = self.rows.get_or_insert_with(Rows::new);
        rows.catch_up_reports(self.ledger).await?;
        rows.catch_up_journals(self.ledger, Revision::ABSENT).await?;
        let of = (self.configuration.view(), assignments);
        Ok(drifting(rows.all(), of, (self.settings.wall)(), &*self.settings.zones))
    }

    fn repair_of(&self, assignment: &str) -> Repair {
        self.configuration.view().repairs.get(assignment).cloned().unwrap_or_default()
    }

    async fn set_repair(
        &mut self,
        assignment: &str,
        before: &Repair,
        after: &Repair,
        now: Seconds,
    ) -> Result<(), Lost> {
        if before.stop == after.stop {
            // A leave comes and goes every minute; the orders by it are in the journals.
            let write = write(&self.configuration, assignment, after);
            return self.renew(vec![write]).await;
        }
        let (what, why) = match &after.stop {
            Some(stop) => ("assignment pause", words::stopped(stop)),
            None => ("assignment resume", "few agents of the assignment drift".to_owned()),
        };
        tracing::warn!(assignment, what, why, "drifted agents are not ordered again, or again are");
        let decision = Self::decision(what, why, now);
        self.write(assignment, assignment, &decision, edit(assignment, Some(before), after))
            .await
            .map(drop)
    }
}

/// The edit that changes how it goes on with drifted agents of an assignment.
#[must_use]
pub fn edit(assignment: &str, before: Option<&Repair>, after: &Repair) -> Edit {
    Edit {
        key: repair_key(assignment),
        before: before.map(words::repair),
        after: Some(words::repair(after)),
        record: Becomes::Bytes(RepairRecord::of(after).encode_to_vec().into()),
    }
}

fn write(configuration: &Configuration, assignment: &str, repair: &Repair) -> Write {
    let key = repair_key(assignment);
    let value = Some(RepairRecord::of(repair).encode_to_vec().into());
    Write { expected: configuration.revision(&key), key, value }
}
