//! Which drifted agents of an assignment are ordered again, and when.
//!
//! ```text
//!   drifted agents, agents of an unknown journal, time ─► Repair::next ─► who may be ordered again | stopped
//! ```
//!
//! One agent lacks something for reasons of its own. Many that lack it at once have one cause, which orders
//! do not mend and may worsen: a storage that rolled back, an image, a tool beside the fleet. So repairs are
//! few at a time, and stop by themselves where many agents drift.
//!
//! A leave is written, may be used for a short while, and is taken back before the next one is given. Between
//! the two is more than the age of a view, so that never more agents than one leave names are ordered again
//! in a minute.

use std::collections::BTreeMap;

use crate::drift::{Leave, Repairs, is_plausible};
use crate::time::Seconds;

/// How long after the drift was certain an agent is ordered again: the first time, the second, and so on. After
/// the last it stands as it is, until a person has the order given again.
pub const AGAIN_AFTER: [u64; 3] = [60, 600, 3600];

/// For how many seconds a leave may be used.
pub const LEAVE: u64 = 15;

/// How many seconds pass from the end of a leave to the next one: a minute, and the age of a view.
pub const PAUSE: u64 = 65;

/// For how many seconds repairs stop at least because many agents drifted.
const STOPPED_FOR: u64 = 300;

/// So many agents may drift at once whatever part of all they are.
const FEW: usize = 3;

/// How it goes on with the drifted agents of an assignment, and with its orders after its ledger went back.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Repair {
    /// The agents that may be ordered again now, with the generation of the order that drifted.
    pub leave: BTreeMap<String, u64>,
    /// When the leave was given or taken back last, or repairs were stopped.
    pub at: Seconds,
    /// The agent that was named last: the next leave goes on behind it.
    pub last: String,
    /// Why nothing is ordered again by itself; `None` where nothing stands against it.
    pub stop: Option<Stop>,
    /// A person lets repairs go on, although many agents drifted. It ends when they are few again.
    pub is_resumed: bool,
    /// A person lets orders go on, although agents report generations up to this one that the ledger does
    /// not know.
    pub accepted: u64,
}

/// Why agents are not ordered again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Stop {
    /// Many agents drifted at once. It ends by itself when they are few again.
    Many {
        /// How many drifted.
        drifted: u64,
        /// How many agents of the assignment can be reached.
        of: u64,
    },
    /// An agent reports a generation that the ledger does not know: the ledger went back, and what it wants is
    /// old. No order of the assignment is given until a person resumes.
    LedgerWentBack {
        /// Id of the agent.
        agent: String,
        /// The generation.
        generation: u64,
    },
    /// The record that says how it goes on cannot be read. No order of the assignment is given until a person
    /// resumes.
    Unreadable,
}

/// What there is of an assignment to decide on.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Drifting {
    /// How many of its agents can be reached.
    pub reachable: u64,
    /// Those that can be reached and that drifted, by id. A person's change that stays is not among them.
    pub drifted: BTreeMap<String, Lacking>,
    /// An agent that reports a generation that its journal does not know, and the generation.
    pub unknown: Option<(String, u64)>,
}

/// A drifted agent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lacking {
    /// The generation of the order that drifted.
    pub generation: u64,
    /// Since when.
    pub since: Seconds,
    /// Its repairs so far.
    pub repairs: Repairs,
    /// Nothing else keeps an order back.
    pub may: bool,
}

/// How agents are brought back.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pace {
    /// How long after the drift was certain an agent is ordered again, in seconds, by how often it was.
    pub again_after: Vec<u64>,
}

// === impl Repair ===

impl Repair {
    /// The next state; `None` where it stays as it is.
    #[must_use]
    pub fn next(&self, drifting: &Drifting, pace: &Pace, now: Seconds) -> Option<Self> {
        let mut after = self.clone();
        after.stop = self.stop_after(drifting, now);
        if after.stop.is_some() && self.stop.is_none() {
            after.at = now;
        }
        let is_many = is_many(drifting);
        after.is_resumed &= is_many;
        let is_stopped = after.stop.is_some();
        if !self.leave.is_empty() {
            let is_over = self.since(now) >= LEAVE;
            let is_used = self.leave.iter().all(|(agent, generation)| {
                drifting.drifted.get(agent).is_none_or(|it| it.generation != *generation)
            });
            if is_stopped || is_over || is_used {
                (after.leave, after.at) = (BTreeMap::new(), now);
            }
        } else if !is_stopped && self.since(now) >= PAUSE {
            let due = due(drifting, pace, &self.last, now);
            if let Some((last, _)) = due.last() {
                (after.at, after.last) = (now, last.clone());
                after.leave = due.into_iter().collect();
            }
        }
        (after != *self).then_some(after)
    }

    /// How long it has been as it is. A time that has not come yet is of another clock, and long ago.
    fn since(&self, now: Seconds) -> u64 {
        if self.at > now.plus(PAUSE) { u64::MAX } else { now.since(self.at) }
    }

    fn stop_after(&self, drifting: &Drifting, now: Seconds) -> Option<Stop> {
        if let Some(stop @ (Stop::LedgerWentBack { .. } | Stop::Unreadable)) = &self.stop {
            return Some(stop.clone());
        }
        if let Some((agent, generation)) = &drifting.unknown
            && *generation > self.accepted
            && is_plausible(*generation, now)
        {
            let (agent, generation) = (agent.clone(), *generation);
            return Some(Stop::LedgerWentBack { agent, generation });
        }
        // So that an agent that drifts again and again does not stop and start it each time.
        let is_short = self.stop.is_some() && self.since(now) < STOPPED_FOR;
        if self.is_resumed || !(is_many(drifting) || is_short) {
            return None;
        }
        // The first count stays, so that a stop is written once.
        let now = || Stop::Many { drifted: count(drifting), of: drifting.reachable };
        Some(self.stop.clone().unwrap_or_else(now))
    }

    /// When a person lets it go on.
    #[must_use]
    pub fn resumed(&self, now: Seconds) -> Self {
        match &self.stop {
            None => self.clone(),
            Some(Stop::Many { .. }) => Self { stop: None, is_resumed: true, ..self.clone() },
            // Orders of before that others took are from before this moment as well.
            Some(Stop::LedgerWentBack { generation, .. }) => {
                let accepted = self.accepted.max(*generation).max(now.0);
                Self { stop: None, accepted, ..self.clone() }
            }
            Some(Stop::Unreadable) => Self { stop: None, accepted: now.0, ..self.clone() },
        }
    }

    /// What it lets be done about an agent.
    #[must_use]
    pub fn leave(&self, agent: &str) -> Leave {
        Leave { repair: self.leave.get(agent).copied(), accepted: self.accepted }
    }

    /// Whether no order of the assignment is given.
    #[must_use]
    pub fn is_paused(&self) -> bool {
        matches!(self.stop, Some(Stop::LedgerWentBack { .. } | Stop::Unreadable))
    }

    /// In place of a record that cannot be read.
    #[must_use]
    pub fn unreadable() -> Self {
        Self { stop: Some(Stop::Unreadable), ..Self::default() }
    }

    /// Whether it has to be looked at although no agent drifts.
    #[must_use]
    pub fn is_open(&self) -> bool {
        !self.leave.is_empty() || self.is_resumed || matches!(self.stop, Some(Stop::Many { .. }))
    }
}

/// The agents that are due, at most one in a hundred: those behind the one that was named last, and then from the
/// first one on, so that one that cannot use its leave keeps it from nobody.
fn due(drifting: &Drifting, pace: &Pace, last: &str, now: Seconds) -> Vec<(String, u64)> {
    let is_due = |lacking: &Lacking| {
        let at = pace.due_at(lacking.since, lacking.repairs);
        lacking.may && at.is_some_and(|at| at <= now)
    };
    let (before, behind): (Vec<_>, Vec<_>) = drifting
        .drifted
        .iter()
        .filter(|(_, lacking)| is_due(lacking))
        .partition(|(agent, _)| agent.as_str() <= last);
    let most = usize::try_from(drifting.reachable / 100).unwrap_or(usize::MAX).max(1);
    let due = behind.into_iter().chain(before).take(most);
    due.map(|(agent, lacking)| (agent.clone(), lacking.generation)).collect()
}

fn is_many(drifting: &Drifting) -> bool {
    let few = drifting.drifted.len() <= FEW;
    !few && count(drifting).saturating_mul(10) > drifting.reachable
}

fn count(drifting: &Drifting) -> u64 {
    u64::try_from(drifting.drifted.len()).unwrap_or(u64::MAX)
}

// === impl Pace ===

impl Pace {
    /// When an agent that drifted is ordered again; `None` where a person has to say so.
    #[must_use]
    pub fn due_at(&self, since: Seconds, repairs: Repairs) -> Option<Seconds> {
        let count = usize::try_from(repairs.count).unwrap_or(usize::MAX);
        self.again_after.get(count).map(|after| since.plus(*after))
    }
}

impl Default for Pace {
    fn default() -> Self {
        Self { again_after: AGAIN_AFTER.into() }
    }
}

#[cfg(test)]
mod tests;
