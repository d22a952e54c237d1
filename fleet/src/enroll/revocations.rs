//! Who is admitted no longer, as gateways see it: a view of the agents' records.
//!
//! It holds only agents about which there is something to say. It is at most [`STALE`] old; while the
//! ledger cannot be read for longer, it answers nothing, and nobody is admitted.

#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use guest_agent_serve_kit::certificate::Facts;
use guest_agent_serve_kit::lock::lock;
use guest_fleet_ledger::records::agent::AgentRecord;
use guest_fleet_ledger::{Bucket, Change, Follower, Ledger, ReadError, records};
use thiserror::Error;
use tokio::sync::watch;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::agents;
use crate::chain::Chain;

/// Age from which on the view says nothing.
pub const STALE: Duration = Duration::from_secs(5);
/// How often the ledger is asked, without a hint that something changed.
const ASK: Duration = Duration::from_secs(1);
/// How long hints are gathered.
const PAUSE: Duration = Duration::from_millis(100);
/// How long an answer of the ledger is waited for.
const PATIENCE: Duration = Duration::from_secs(4);

/// The view; clones are the same.
#[derive(Clone)]
pub struct Revocations {
    view: Arc<Mutex<View>>,
    changes: Arc<watch::Sender<u64>>,
    /// Held by the one that reads.
    follower: Arc<tokio::sync::Mutex<Follower>>,
}

#[derive(Default)]
struct View {
    /// Everything that was written before then is in the view.
    as_of: Option<Instant>,
    agents: HashMap<String, Said>,
}

/// The record of an agent, as the view keeps it.
#[derive(Clone, Debug, PartialEq)]
enum Said {
    Record(Box<AgentRecord>),
    /// Its record is damaged.
    Unreadable,
}

/// How an agent stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Standing {
    /// Nothing is known against it.
    Good,
    /// It is connected, and gets no orders, for this reason.
    Quarantined(String),
    /// It is not admitted.
    Revoked,
    /// It is not admitted until its record, which is damaged, can be read: it may be revoked.
    Unreadable,
}

/// The view is too old to say anything.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("it is not known whether the agent was revoked, because the ledger does not answer")]
pub struct Stale;

impl Default for Revocations {
    fn default() -> Self {
        Self {
            view: Arc::default(),
            changes: Arc::default(),
            follower: Arc::new(tokio::sync::Mutex::new(Follower::new(Bucket::Agents))),
        }
    }
}

// === impl Revocations ===

impl Revocations {
    /// Reads everything that changed since the last time.
    ///
    /// # Errors
    /// The ledger cannot be read.
    pub async fn refresh(&self, ledger: &dyn Ledger) -> Result<(), ReadError> {
        let mut follower = self.follower.lock().await;
        let asked = Instant::now();
        loop {
            let through = follower.through();
            let update = follower.next(ledger, through).await?;
            let mut view = lock(&self.view);
            let mut has_changed = false;
            if update.is_reset {
                has_changed |= !view.agents.is_empty();
                view.agents.clear();
                // Until all of it was read, what is missing says nothing.
                view.as_of = None;
            }
            for change in update.changes {
                has_changed |= view.apply(change);
            }
            if has_changed {
                self.changes.send_modify(|count| *count += 1);
            }
            if !update.more {
                view.as_of = Some(asked);
                return Ok(());
            }
        }
    }

    /// Changes its value when some agent stands otherwise.
    #[must_use]
    pub fn changes(&self) -> watch::Receiver<u64> {
        self.changes.subscribe()
    }

    /// Keeps the view current until `shutdown`.
    pub async fn follow(self, ledger: Arc<dyn Ledger>, shutdown: CancellationToken) {
        let mut hints = ledger.watch(Bucket::Agents);
        let mut is_failing = false;
        loop {
            let refreshed = tokio::time::timeout(PATIENCE, self.refresh(&*ledger)).await;
            let problem = match &refreshed {
                Ok(Ok(())) => None,
                Ok(Err(error)) => Some(Chain(error).to_string()),
                Err(_elapsed) => Some(format!("it did not answer within {PATIENCE:?}")),
            };
            if let Some(problem) = &problem
                && !is_failing
            {
                tracing::error!(problem, "revocations cannot be read from the ledger");
            }
            is_failing = problem.is_some();
            let pause = async {
                // Hints may come with every write of every agent.
                tokio::time::sleep(PAUSE).await;
                tokio::select! {
                    () = tokio::time::sleep(ASK) => {}
                    // A ledger that ended gives no hints; then the clock alone counts.
                    Ok(()) = hints.changed() => {}
                }
            };
            if shutdown.run_until_cancelled(pause).await.is_none() {
                return;
            }
        }
    }

    /// How an agent stands, by the certificate that it showed, if it did.
    ///
    /// # Errors
    /// The view is too old.
    pub fn standing(&self, agent: &str, shown: Option<&Facts>) -> Result<Standing, Stale> {
        let view = lock(&self.view);
        if view.as_of.is_none_or(|as_of| as_of.elapsed() > STALE) {
            return Err(Stale);
        }
        let record = match view.agents.get(agent) {
            None => return Ok(Standing::Good),
            Some(Said::Unreadable) => return Ok(Standing::Unreadable),
            Some(Said::Record(record)) => record,
        };
        let is_revoked = match shown {
            Some(shown) => agents::is_revoked(record, shown),
            None => record.revoked.is_some(),
        };
        Ok(if is_revoked {
            Standing::Revoked
        } else if record.quarantine.is_empty() {
            Standing::Good
        } else {
            Standing::Quarantined(record.quarantine.clone())
        })
    }
}

// === impl View ===

impl View {
    /// Takes a change over; whether there is something else to say about its agent.
    fn apply(&mut self, change: Change) -> bool {
        let Change { key, value, .. } = change;
        let said = match value.map(|value| records::decode::<AgentRecord>(&key, &value)) {
            None => None,
            Some(Ok(record)) => {
                says_something(&record).then(|| Said::Record(Box::new(slim(record))))
            }
            Some(Err(error)) => {
                // Who cannot be read is not admitted, and nobody else is slowed.
                tracing::error!(%error, "an agent is not admitted");
                Some(Said::Unreadable)
            }
        };
        match said {
            Some(said) if self.agents.get(&key) == Some(&said) => false,
            Some(said) => {
                self.agents.insert(key, said);
                true
            }
            None => self.agents.remove(&key).is_some(),
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
