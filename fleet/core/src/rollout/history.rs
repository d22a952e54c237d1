//! What a plugin's earlier rollouts say of its installations.
//!
//! A rollout is remembered where it was done and never halted. What halted it is no measure of what installs
//! of this plugin usually cost: a bad release would make the gate milder for the next one. Each rollout
//! carries the last ones with it, so what is known of a plugin outlives their records.

use super::{Cause, Rollout, State};
use crate::gate::{self, Installs};
use crate::target::Target;
use crate::time::Seconds;

/// Most rollouts that are remembered of one plugin; the newest stay.
pub const REMEMBERED: usize = 10;

/// What installations of an earlier rollout came to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Past {
    /// Its name.
    pub name: String,
    /// When it began.
    pub began: Seconds,
    /// Installations that succeeded.
    pub succeeded: u64,
    /// Those that failed.
    pub failed: u64,
}

/// Most halted releases that a record keeps; the newest stay.
pub const HALTS: usize = 20;

/// A release that halted a rollout.
#[derive(Clone, Debug, PartialEq)]
pub struct HaltedRelease {
    /// The release.
    pub target: Target,
    /// Why.
    pub cause: Cause,
    /// When.
    pub at: Seconds,
}

/// How a release halted last, in any of these rollouts.
#[must_use]
pub fn halts<'a>(
    rollouts: impl IntoIterator<Item = &'a Rollout>,
    target: &Target,
) -> Option<&'a HaltedRelease> {
    let all = rollouts.into_iter().flat_map(|rollout| &rollout.halted);
    all.filter(|halted| halted.target == *target).max_by_key(|halted| halted.at)
}

/// What the rollouts of a plugin remember, the newest first.
#[must_use]
pub fn remembered<'a>(rollouts: impl IntoIterator<Item = &'a Rollout>) -> Vec<Past> {
    let mut all: Vec<Past> = rollouts
        .into_iter()
        .flat_map(|rollout| rollout.earlier.iter().chain(&rollout.past))
        .cloned()
        .collect();
    all.sort_by(|one, other| (other.began, &other.name).cmp(&(one.began, &one.name)));
    // Two rollouts of a plugin may both carry one that was before them.
    all.dedup_by(|one, other| (one.began, &one.name) == (other.began, &other.name));
    all.truncate(REMEMBERED);
    all
}

// === impl Rollout ===

impl Rollout {
    /// Halts, and notes that its release did so.
    pub(super) fn halt(&mut self, cause: Cause, at: Seconds) {
        self.halted.retain(|halted| halted.target != self.to);
        if self.halted.len() >= HALTS {
            self.halted.remove(0);
        }
        self.halted.push(HaltedRelease { target: self.to.clone(), cause: cause.clone(), at });
        self.state = State::Halted(cause);
    }

    /// Notes what its installations came to, where that says something of later ones.
    pub fn remember(&mut self, name: &str, installs: &Installs) {
        if self.state == State::Done && self.epoch == 0 {
            let Installs { succeeded, failed, .. } = *installs;
            self.past =
                Some(Past { name: name.to_owned(), began: self.start(), succeeded, failed });
        }
    }

    /// The share of installations that may fail without a reason to stop.
    #[must_use]
    pub fn tolerated(&self) -> f64 {
        let sum = |count: fn(&Past) -> u64| {
            self.earlier.iter().map(count).fold(0_u64, u64::saturating_add)
        };
        gate::tolerated(sum(|past| past.succeeded), sum(|past| past.failed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rollout::{Plan, Stage, Verb};
    use crate::target::Target;

    fn rollout(began: u64) -> Rollout {
        let [from, to] = ["1", "2"].map(|text| Target::Revision(text.to_owned()));
        let mut rollout = Rollout::new(from, to, Plan::usual(300, 60));
        rollout.ask(&Verb::Start, Seconds(began)).unwrap();
        rollout
    }

    fn installs(succeeded: u64, failed: u64) -> Installs {
        Installs { succeeded, failed, ..Installs::default() }
    }

    fn done(name: &str, began: u64, failed: u64) -> Rollout {
        let mut rollout = rollout(began);
        rollout.state = State::Done;
        rollout.remember(name, &installs(1_000 - failed, failed));
        rollout
    }

    #[test]
    fn a_rollout_that_was_done_raises_what_is_tolerated_and_one_that_halted_does_not() {
        let mut next = rollout(9);
        next.earlier = remembered([&done("a", 1, 60)]);
        assert!((next.tolerated() - 62.0 / 1_100.0).abs() < 1e-9, "{}", next.tolerated());
        let mut halted = rollout(2);
        halted.ask(&Verb::Halt { reason: "bad".to_owned() }, Seconds(3)).unwrap();
        halted.remember("b", &installs(500, 500));
        assert_eq!(remembered([&halted]), []);
        // A person resumed it, and it was done after all.
        halted.ask(&Verb::Resume { reason: "known".to_owned() }, Seconds(4)).unwrap();
        halted.state = State::Done;
        halted.remember("b", &installs(500, 500));
        assert_eq!(remembered([&halted]), []);
        for state in [State::RolledBack, State::Aborted, State::Running(Stage::Reaching)] {
            let mut ended = rollout(5);
            ended.state = state;
            ended.remember("c", &installs(500, 500));
            assert_eq!(remembered([&ended]), []);
        }
    }

    #[test]
    fn what_two_rollouts_carry_counts_once_and_the_newest_stay() {
        let mut carries = done("b", 2, 20);
        carries.earlier = remembered([&done("a", 1, 10)]);
        let mut other = done("c", 3, 30);
        other.earlier.clone_from(&carries.earlier);
        let names = |all: &[Past]| all.iter().map(|past| past.name.clone()).collect::<Vec<_>>();
        assert_eq!(names(&remembered([&carries, &other])), ["c", "b", "a"]);
        let many: Vec<Rollout> = (0..30).map(|at| done("x", at, 1)).collect();
        let kept = remembered(&many);
        assert_eq!((kept.len(), kept[0].began), (REMEMBERED, Seconds(29)));
    }

    #[test]
    fn no_history_tolerates_so_much_that_the_gate_says_nothing() {
        let mut next = rollout(9);
        let past = Past { name: "a".to_owned(), began: Seconds(1), succeeded: 0, failed: u64::MAX };
        next.earlier = vec![past.clone(), past];
        assert!(next.tolerated() <= gate::TOLERATED_MOST, "{}", next.tolerated());
    }
}
