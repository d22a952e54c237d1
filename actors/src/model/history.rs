//! What happened to a plugin before its present state, as far as verdicts need it.

use std::sync::Arc;
use std::time::SystemTime;

/// What a verdict needs to know beside the present state of a plugin.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct History {
    /// When it crashed, oldest first; the newest few of this revision.
    pub crashes: Vec<SystemTime>,
    /// Why it crashed last.
    pub crash_reason: Arc<str>,
    /// When it came into its present state.
    pub since: Option<SystemTime>,
    /// When its last failure was reported.
    pub failed_at: Option<SystemTime>,
    /// Since when each health check says that it is not well.
    pub unhealthy_since: Option<SystemTime>,
    /// When it is started next, while it pauses.
    pub next_start: Option<SystemTime>,
    /// The start under way.
    pub start: Option<StartTry>,
}

/// A start that is under way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StartTry {
    /// The attempt, counted from 1.
    pub attempt: u32,
    /// How many there are at most.
    pub of: u32,
}
