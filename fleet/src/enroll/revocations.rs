//! Who is admitted no longer, as gateways see it: a view of the agents' records.
//!
//! It holds only agents about which there is something to say. It is at most [`STALE`] old; while the
//! ledger cannot be read for longer, it answers nothing, and nobody is admitted.

#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use thiserror::Error;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::agents;
use super::certificate::Facts;
use crate::ledger::{Bucket, Change, FreshView, Kept, Ledger, ReadError, TooOld};
use crate::records;
use crate::records::agent::AgentRecord;

/// Age from which on the view says nothing.
pub const STALE: Duration = Duration::from_secs(5);

/// The view; clones are the same.
#[derive(Clone, Default)]
pub struct Revocations {
    agents: FreshView<Agents>,
}

/// Agents about which there is something to say.
#[derive(Default)]
struct Agents(HashMap<String, AgentRecord>);

/// How an agent stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Standing {
    /// Nothing is known against it.
    Good,
    /// It is connected, and gets no orders, for this reason.
    Quarantined(String),
    /// It is not admitted.
    Revoked,
}

/// The view is too old to say anything.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("it is not known whether the agent was revoked, because the ledger does not answer")]
pub struct Stale;

// === impl Revocations ===

impl Revocations {
    /// Reads everything that changed since the last time.
    ///
    /// # Errors
    /// The ledger cannot be read.
    pub async fn refresh(&self, ledger: &dyn Ledger) -> Result<(), ReadError> {
        self.agents.refresh(ledger).await
    }

    /// Changes its value when some agent stands otherwise.
    #[must_use]
    pub fn changes(&self) -> watch::Receiver<u64> {
        self.agents.changes()
    }

    /// Keeps the view current until `shutdown`.
    pub async fn follow(self, ledger: Arc<dyn Ledger>, shutdown: CancellationToken) {
        self.agents.follow(ledger, shutdown).await;
    }

    /// How an agent stands, by the certificate that it showed, if it did.
    ///
    /// # Errors
    /// The view is too old.
    pub fn standing(&self, agent: &str, shown: Option<&Facts>) -> Result<Standing, Stale> {
        self.agents.ask(|Agents(agents)| standing(agents.get(agent), shown)).map_err(|TooOld| Stale)
    }
}

fn standing(record: Option<&AgentRecord>, shown: Option<&Facts>) -> Standing {
    let Some(record) = record else { return Standing::Good };
    let is_revoked = match shown {
        Some(shown) => agents::is_revoked(record, shown),
        None => record.revoked.is_some(),
    };
    if is_revoked {
        Standing::Revoked
    } else if record.quarantine.is_empty() {
        Standing::Good
    } else {
        Standing::Quarantined(record.quarantine.clone())
    }
}

// === impl Agents ===

impl Kept for Agents {
    const BUCKET: Bucket = Bucket::Agents;
    const STALE: Duration = STALE;
    const PATIENCE: Duration = Duration::from_secs(4);
    const WHAT: &'static str = "revocations";

    /// Whether there is something else to say about its agent.
    fn take(&mut self, change: Change) -> bool {
        let Change { key, value, .. } = change;
        let record = match value.map(|value| records::decode::<AgentRecord>(&key, &value)) {
            None => None,
            Some(Ok(record)) => Some(record),
            Some(Err(error)) => {
                // Who cannot be read is not admitted, and nobody else is slowed.
                tracing::error!(%error, "an agent is not admitted");
                Some(AgentRecord {
                    revoked: Some(prost_types::Timestamp::default()),
                    ..AgentRecord::new(&key)
                })
            }
        };
        match record.filter(says_something).map(slim) {
            Some(record) if self.0.get(&key) == Some(&record) => false,
            Some(record) => {
                self.0.insert(key, record);
                true
            }
            None => self.0.remove(&key).is_some(),
        }
    }
}

fn says_something(record: &AgentRecord) -> bool {
    record.revoked.is_some()
        || record.revoked_before.is_some()
        || !record.quarantine.is_empty()
        || record.certificates.iter().any(|listed| listed.revoked.is_some())
}

/// What of the record is asked for.
fn slim(record: AgentRecord) -> AgentRecord {
    AgentRecord {
        id: record.id,
        certificates: record.certificates,
        quarantine: record.quarantine,
        revoked: record.revoked,
        revoked_before: record.revoked_before,
        ..AgentRecord::default()
    }
}
