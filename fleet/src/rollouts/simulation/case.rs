//! What a run is about: the release, the plan and the agents, from a seed.

use guest_fleet_core::rollout::{OnHalt, Plan, Size, Wave};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

pub(super) const PLUGIN: &str = "p";
pub(super) const ASSIGNMENT_NAME: &str = "a";
pub(super) const FORMER: &str = "1";
pub(super) const NEW: &str = "2";

/// In one of so many seeds an agent is made of the real actors: it costs as much as all others.
const OURS: u64 = 8;

/// In one of so many seeds the processes fold the index.
const FOLDS: u64 = 8;

/// What becomes of the new release on an agent on which it is bad.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Release {
    /// It is good everywhere.
    Good,
    /// It cannot be installed.
    FailsToInstall,
    /// It is installed, crashes on probation, and the agent goes back.
    IsTakenBack,
    /// The agent never says what became of it.
    NeverAnswers,
}

/// A run.
#[derive(Clone, Debug)]
pub(super) struct Case {
    pub(super) release: Release,
    /// It is bad on each agent whose number this divides.
    pub(super) bad_each: usize,
    /// Agents that are models.
    pub(super) agents: usize,
    /// Whether one more is made of the real actors.
    pub(super) ours: bool,
    pub(super) folds: bool,
    pub(super) processes: usize,
    pub(super) plan: Plan,
    /// The last agent leaves before the rollout begins, and comes back in calm.
    pub(super) one_leaves: bool,
    /// It comes back when the rollout has ended, and not before.
    pub(super) comes_back_late: bool,
    /// For how many seconds things go wrong.
    pub(super) noise: u64,
    /// Machines lose everything when the rollout has ended.
    pub(super) forgets: bool,
}

// === impl Case ===

impl Case {
    pub(super) fn of(seed: u64) -> Self {
        let mut chance = StdRng::seed_from_u64(seed ^ 0x5eed);
        let mut below = |bound: u32| chance.random_range(0..bound);
        let release = match below(10) {
            0..=4 => Release::Good,
            5 | 6 => Release::FailsToInstall,
            7 | 8 => Release::IsTakenBack,
            _ => Release::NeverAnswers,
        };
        let agents = 8 + below(5);
        let waves = match below(3) {
            0 => vec![Size::Count(1), Size::Percent(50), Size::Percent(100)],
            1 => vec![Size::Count(2), Size::Count(3), Size::Percent(100)],
            _ => vec![Size::Percent(25), Size::Percent(100)],
        };
        let wave =
            |size| Wave { size, soak: 2 + u64::from(below(4)), needs_approval: below(6) == 0 };
        let plan = Plan {
            waves: waves.into_iter().map(wave).collect(),
            budget: 2 + below(2),
            ..Plan::default()
        };
        let one_leaves = below(6) == 0;
        let (comes_back_late, noise) = (below(2) == 0, 25 + u64::from(below(40)));
        let on_halt = if below(3) == 0 { OnHalt::GoBack } else { OnHalt::Stay };
        Self {
            release,
            bad_each: 1 + below(3) as usize,
            agents: agents as usize,
            ours: seed % OURS == 3,
            folds: seed % FOLDS == 5,
            processes: 2 + below(2) as usize,
            plan: Plan { on_halt, ..plan },
            one_leaves,
            comes_back_late,
            noise,
            forgets: below(4) == 0,
        }
    }

    /// The ids of all agents; those of models first.
    pub(super) fn ids(&self) -> Vec<String> {
        let models = (0..self.agents).map(|number| format!("m-{number}"));
        models.chain(self.ours.then(|| "ours".to_owned())).collect()
    }

    /// Whether the new release is bad on a model.
    pub(super) fn is_bad_on(&self, number: usize) -> bool {
        self.release != Release::Good && number.is_multiple_of(self.bad_each)
    }
}
