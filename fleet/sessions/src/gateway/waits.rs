//! Waits for a change of an agent's streams.

use std::time::Duration;

use thiserror::Error;

use super::Gateway;
use crate::core::AgentConnection;

/// The deadline of a wait passed.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
#[error("it did not happen within {0:?}")]
pub struct NotWithin(pub Duration);

// === impl Gateway ===

impl Gateway {
    /// Waits until the agent is connected.
    ///
    /// # Errors
    /// When the deadline passes before that.
    pub async fn wait_connected(
        &self,
        resource: &str,
        timeout: Duration,
    ) -> Result<AgentConnection, NotWithin> {
        self.wait(timeout, || self.connection(resource)).await
    }

    /// Waits until the agent is connected with a newer stream than `before`.
    ///
    /// # Errors
    /// When the deadline passes before that.
    pub async fn wait_reconnected(
        &self,
        resource: &str,
        before: &AgentConnection,
        timeout: Duration,
    ) -> Result<AgentConnection, NotWithin> {
        let newer = || self.connection(resource).filter(|now| now.stream > before.stream);
        self.wait(timeout, newer).await
    }

    /// Waits until the agent has no stream.
    ///
    /// # Errors
    /// When it still has one after `timeout`.
    pub async fn wait_disconnected(
        &self,
        resource: &str,
        timeout: Duration,
    ) -> Result<(), NotWithin> {
        self.wait(timeout, || self.connection(resource).is_none().then_some(())).await
    }

    async fn wait<T>(
        &self,
        timeout: Duration,
        mut found: impl FnMut() -> Option<T>,
    ) -> Result<T, NotWithin> {
        let mut changes = self.connection_changes();
        let wait = async {
            loop {
                changes.mark_unchanged();
                if let Some(found) = found() {
                    return Some(found);
                }
                changes.changed().await.ok()?;
            }
        };
        let waited = tokio::time::timeout(timeout, wait).await;
        waited.ok().flatten().ok_or(NotWithin(timeout))
    }
}
