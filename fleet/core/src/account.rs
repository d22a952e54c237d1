//! The account of a rollout: who decided, and what came of it. It stays with the rollout when that has
//! ended, and no decision depends on it.

use std::collections::BTreeMap;

use crate::time::Seconds;

/// Most decisions that a rollout keeps: the first one, and the newest.
pub const DECISIONS: usize = 20;

/// Most agents, and most fingerprints, that results name.
pub const RESULTS: usize = 10;

/// The account of a rollout.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Account {
    /// The decisions of people, and those of the controller that did not open or close a turn; the
    /// oldest first.
    pub decisions: Vec<Decided>,
    /// The results at its last step; `None` before the end of its first wave.
    pub results: Option<Results>,
    /// Name of the rollout that took its place before it ended; `None` where none did.
    pub replaced_by: Option<String>,
}

/// A decision about a rollout.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Decided {
    /// Who: a user and a machine, or the controller.
    pub who: String,
    /// The decision, such as `rollout halt`.
    pub what: String,
    /// Why; may be empty.
    pub why: String,
    /// When.
    pub at: Seconds,
}

/// The results of a rollout.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Results {
    /// When the agents were counted.
    pub at: Seconds,
    /// How many agents it was about.
    pub targets: u32,
    /// How many were given the new target.
    pub given: u32,
    /// On how many it failed.
    pub failures: u32,
    /// Fingerprints of the failures and how many have each, the most frequent first.
    pub fingerprints: Vec<(String, u32)>,
    /// The first agents on which it failed.
    pub failed: Vec<Failed>,
}

/// An agent on which the new target failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failed {
    /// Id of the agent.
    pub agent: String,
    /// The wave in which it was given the new target, from 0.
    pub wave: usize,
    /// When it failed.
    pub at: Seconds,
    /// Its fingerprint: the same for failures of the same cause.
    pub fingerprint: String,
    /// The reason, as the agent told it.
    pub reason: String,
}

/// The fingerprints of failures and how many have each, the most frequent first.
#[must_use]
pub fn fingerprints(failed: &[Failed]) -> Vec<(String, u32)> {
    let mut counts: BTreeMap<&str, u32> = BTreeMap::new();
    for failed in failed {
        *counts.entry(&failed.fingerprint).or_default() += 1;
    }
    let counts = counts.into_iter().map(|(fingerprint, count)| (fingerprint.to_owned(), count));
    let mut all: Vec<_> = counts.collect();
    all.sort_by(|(one, of_one), (other, of_other)| (of_other, other).cmp(&(of_one, one)));
    all
}

// === impl Account ===

impl Account {
    /// Notes a decision.
    pub fn note(&mut self, decided: Decided) {
        if self.decisions.len() >= DECISIONS {
            self.decisions.remove(1);
        }
        self.decisions.push(decided);
    }

    /// The time of the first decision; the beginning of time where none is known.
    #[must_use]
    pub fn first(&self) -> Seconds {
        self.decisions.first().map(|decided| decided.at).unwrap_or_default()
    }

    /// The time of the last decision; the beginning of time where none is known.
    #[must_use]
    pub fn last(&self) -> Seconds {
        self.decisions.last().map(|decided| decided.at).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_account_keeps_its_first_decision_and_the_newest() {
        let mut account = Account::default();
        assert_eq!((account.first(), account.last()), (Seconds(0), Seconds(0)));
        for at in 5..105 {
            account.note(Decided { at: Seconds(at), ..Decided::default() });
        }
        let kept: Vec<u64> = account.decisions.iter().map(|decided| decided.at.0).collect();
        assert_eq!((kept.len(), kept[0], kept[1], kept[19]), (DECISIONS, 5, 86, 104));
        assert_eq!((account.first(), account.last()), (Seconds(5), Seconds(104)));
    }
}
