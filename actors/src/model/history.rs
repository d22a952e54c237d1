//! What happened to a plugin before its present state, as far as verdicts need it.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

/// What a verdict needs to know beside the present state of a plugin.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct History {
    /// Its crashes, oldest first; the newest few.
    pub crashes: Vec<Crash>,
    /// Why it crashed last, in the words of then.
    pub crash_reason: Arc<str>,
    /// The last line that the process wrote that crashed last; empty where it wrote none.
    pub last_line: Arc<str>,
    /// Set while the plugin is down, also while it is started again.
    pub down: Option<Down>,
    /// When an order last changed its revision, its limits or how it is launched: crashes of before
    /// are those of another plugin.
    pub changed_at: Option<SystemTime>,
    /// When it came into its present state.
    pub since: Option<SystemTime>,
    /// When the revision failed that shows as failed beside the current one.
    pub failed_at: Option<SystemTime>,
    /// Who dismissed that failure, and why; `None` when nobody did.
    pub dismissed: Option<Arc<str>>,
    /// How its process is; `None` where none runs.
    pub condition: Option<Condition>,
    /// When it is started next, while it pauses.
    pub next_start: Option<SystemTime>,
    /// The start under way.
    pub start: Option<StartTry>,
}

/// A crash.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Crash {
    /// When.
    pub at: SystemTime,
    /// How long the process had run; zero where it never came up, or where that is not known.
    pub ran: Duration,
}

/// Why a plugin is down.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Down {
    /// Since when.
    pub since: SystemTime,
    /// Why its last process or start ended.
    pub because: Arc<str>,
}

/// How the process of a plugin is, and since when.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Condition {
    /// No health check says otherwise since this time.
    Well(SystemTime),
    /// Each health check since this time says that it is not well.
    Unwell(SystemTime),
}

/// A start that is under way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StartTry {
    /// The attempt, counted from 1.
    pub attempt: u32,
    /// How many there are at most.
    pub of: u32,
}

// === impl Condition ===

impl Condition {
    /// The condition after one more health check.
    #[must_use]
    pub fn after(before: Option<Self>, is_well: bool, at: SystemTime) -> Self {
        match (before, is_well) {
            (Some(same @ Self::Well(_)), true) | (Some(same @ Self::Unwell(_)), false) => same,
            (_, true) => Self::Well(at),
            (_, false) => Self::Unwell(at),
        }
    }
}
