//! Who an agent is. Key: the agent's id, in the bucket of agents.

use guest_fleet_core::labels::Labels;

use super::Versioned;

pub use super::generated::{AgentRecord, Boot, Certificate};

// === impl AgentRecord ===

impl AgentRecord {
    /// A new record of an agent.
    #[must_use]
    pub fn new(id: &str) -> Self {
        Self { version: Self::VERSION, id: id.to_owned(), ..Self::default() }
    }

    /// Its labels.
    #[must_use]
    pub fn labels(&self) -> Labels {
        Labels {
            operator: self.operator_labels.clone(),
            token: self.token_labels.clone(),
            own: self.own_labels.clone(),
        }
    }
}

versioned!(AgentRecord: 1);
