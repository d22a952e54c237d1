//! When the health of a plugin is judged.

use std::time::Duration;

/// When a living process is judged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HealthPolicy {
    /// Time between two checks of one plugin.
    pub interval: Duration,
    /// Longest wait for an answer.
    pub timeout: Duration,
    /// Failures in a row that make a judgement.
    pub failures: u32,
}
