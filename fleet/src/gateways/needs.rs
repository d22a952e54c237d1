//! The matters of agents that only the controller decides, as gateways tell it with their heartbeats.

use std::collections::{BTreeMap, BTreeSet};

use guest_fleet_ledger::records::gateway::GatewayRecord;
use guest_fleet_ledger::records::repair::UnknownPart;
use guest_fleet_ledger::{Ledger, ReadError};

use super::presence;

/// Most assignments of each matter in a heartbeat.
const ASSIGNMENTS: usize = 100;

/// The matters of one agent, or of all agents of a gateway, by the names of assignments.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Needs {
    /// Assignments that an agent waits to join.
    pub(crate) joins: BTreeSet<String>,
    /// Assignments of which an agent drifted and may be ordered again.
    pub(crate) drifted: BTreeSet<String>,
    /// Assignments of which an agent reports a generation that its journal does not know.
    pub(crate) unknown: BTreeMap<String, Unknown>,
}

/// A generation that no journal knows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Unknown {
    /// Id of the agent that reports it.
    pub(crate) agent: String,
    /// The generation.
    pub(crate) generation: u64,
}

// === impl Needs ===

impl Needs {
    /// Whether there is nothing.
    pub(crate) fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// Whether others are about assignments that these are not about.
    pub(crate) fn lacks(&self, other: &Self) -> bool {
        let unknown = |needs: &Self| needs.unknown.keys().cloned().collect::<BTreeSet<_>>();
        !other.joins.is_subset(&self.joins)
            || !other.drifted.is_subset(&self.drifted)
            || !unknown(other).is_subset(&unknown(self))
    }

    /// Adds those of others. Of two unknown generations the higher one stays.
    pub(crate) fn add(&mut self, other: &Self) {
        self.joins.extend(other.joins.iter().cloned());
        self.drifted.extend(other.drifted.iter().cloned());
        for (assignment, unknown) in &other.unknown {
            let known = self.unknown.entry(assignment.clone()).or_insert_with(|| unknown.clone());
            if known.generation < unknown.generation {
                known.clone_from(unknown);
            }
        }
    }

    /// Those of all gateways.
    ///
    /// # Errors
    /// The ledger cannot be read.
    pub(crate) async fn load(ledger: &dyn Ledger) -> Result<Self, ReadError> {
        let mut all = Self::default();
        for gateway in presence::list(ledger).await? {
            all.add(&Self::of(gateway.record));
        }
        Ok(all)
    }

    fn of(record: GatewayRecord) -> Self {
        let unknown = record
            .unknown
            .into_iter()
            .map(|it| (it.assignment, Unknown { agent: it.agent, generation: it.generation }));
        Self {
            joins: record.joined.into_iter().collect(),
            drifted: record.drifted.into_iter().collect(),
            unknown: unknown.collect(),
        }
    }

    /// Writes them into the record of a gateway, as many as there is room for.
    pub(crate) fn tell(self, record: &mut GatewayRecord) {
        record.joined = self.joins.into_iter().take(ASSIGNMENTS).collect();
        record.drifted = self.drifted.into_iter().take(ASSIGNMENTS).collect();
        let unknown = self.unknown.into_iter().take(ASSIGNMENTS);
        record.unknown = unknown
            .map(|(assignment, Unknown { agent, generation })| UnknownPart {
                assignment,
                agent,
                generation,
            })
            .collect();
    }
}
