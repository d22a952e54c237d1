//! The history of a plugin for people: its recent changes, the last output of its last run, and
//! limits that this machine does not enforce.
//!
//! Durable beside the state, and never part of any decision.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use crate::model::history::Crash;
use crate::plugin::health_log::HealthLog;
use crate::plugin::operation::Operation;
use crate::ports::Unenforced;
use crate::text::shortened;

/// Most changes that are remembered.
pub const MOVES_MAX: usize = 16;

/// Most crashes that are remembered.
pub const CRASHES_MAX: usize = 16;

/// Longest text of one change, in bytes.
const WHY_MAX: usize = 240;

/// Most bytes of a run's last output that are remembered.
const OUTPUT_MAX: usize = 4096;

/// The history of a plugin for people.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TransitionLog {
    /// Changes of its state, oldest first.
    pub moves: VecDeque<Move>,
    /// The last output of the last run of a one-shot plugin.
    pub last_output: Arc<str>,
    /// The last failure.
    pub trouble: Option<Trouble>,
    /// Limits of the newest process that are not enforced.
    pub unenforced: Unenforced,
    /// Its crashes, oldest first.
    pub crashes: VecDeque<Crash>,
    /// Why it crashed last.
    pub crash_reason: Arc<str>,
    /// The last line that the process wrote then.
    pub last_line: Arc<str>,
    /// When an order last changed its revision, its limits or how it is launched.
    pub changed_at: Option<SystemTime>,
    /// When the next revision failed.
    pub failed_at: Option<SystemTime>,
    /// The operation of the plugin.
    pub operation: Option<Operation>,
    /// The health of its process, and what events reported of it.
    pub health: HealthLog,
}

/// Something that went wrong.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Trouble {
    /// When.
    pub at: SystemTime,
    /// The wire name of the event that reported it.
    pub kind: Arc<str>,
    /// Why, with all causes.
    pub why: Arc<str>,
}

/// One change of a plugin's state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Move {
    /// When.
    pub at: SystemTime,
    /// The state after it, in words.
    pub state: Arc<str>,
    /// What made it change.
    pub why: Arc<str>,
}

// === impl TransitionLog ===

impl TransitionLog {
    /// Remembers a change, and forgets the oldest when there are too many.
    pub fn moved(&mut self, at: SystemTime, state: &str, why: &str) {
        while self.moves.len() >= MOVES_MAX {
            self.moves.pop_front();
        }
        let why = shortened(why, WHY_MAX).into();
        self.moves.push_back(Move { at, state: shortened(state, WHY_MAX).into(), why });
    }

    /// Remembers a crash of a process that had `ran` so long, and forgets the oldest when there are
    /// too many.
    pub fn crashed(&mut self, at: SystemTime, ran: Duration, reason: &str) {
        while self.crashes.len() >= CRASHES_MAX {
            self.crashes.pop_front();
        }
        self.crashes.push_back(Crash { at, ran });
        self.crash_reason = shortened(reason, WHY_MAX).into();
    }

    /// Remembers a failure.
    pub fn failed(&mut self, at: SystemTime, kind: &str, why: &str) {
        let why = shortened(why, OUTPUT_MAX).into();
        self.trouble = Some(Trouble { at, kind: shortened(kind, WHY_MAX).into(), why });
    }

    /// Remembers the last line of the output of a process that crashed.
    pub fn wrote_last(&mut self, output: &str) {
        let last = output.lines().rev().map(str::trim).find(|line| !line.is_empty());
        self.last_line = shortened(last.unwrap_or_default(), WHY_MAX).into();
    }

    /// Remembers the last output of a run.
    pub fn wrote(&mut self, output: &str) {
        self.last_output = shortened(output, OUTPUT_MAX).into();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_newest_changes_are_remembered_and_each_is_short() {
        let mut story = TransitionLog::default();
        for number in 0..MOVES_MAX + 3 {
            story.moved(SystemTime::UNIX_EPOCH, &format!("state {number}"), &"é".repeat(500));
        }
        assert_eq!(story.moves.len(), MOVES_MAX);
        assert_eq!(story.moves.front().map(|first| &*first.state), Some("state 3"));
        assert!(story.moves.iter().all(|step| step.why.len() <= WHY_MAX));
        story.wrote(&"x".repeat(1 << 20));
        assert_eq!(story.last_output.len(), OUTPUT_MAX);
    }
}
