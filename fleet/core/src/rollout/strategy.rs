//! The strategy of an assignment: how its changes go.

use super::waves::{OnHalt, Plan, Size, Wave};
use crate::fold::PROBATION;
use crate::window::Weekly;

/// How changes of an assignment go. It says only some of it: the fleet's defaults say the rest, and then what
/// is usual.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Strategy {
    /// The waves; the usual ones where the list is empty.
    pub waves: Vec<StrategyWave>,
    /// How long a wave is watched that says nothing else, in seconds: [`PROBATION`] where no strategy
    /// says so.
    pub soak: Option<u64>,
    /// The most agents in flight at one time.
    pub budget: Option<u32>,
    /// Whether a person has to approve every wave after the first.
    pub approval: Option<bool>,
    /// When agents' turns may begin; at any time where the list is empty.
    pub windows: Vec<Weekly>,
    /// The way of a rollout that the gate halted.
    pub on_halt: Option<OnHalt>,
}

/// A wave of a strategy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StrategyWave {
    /// Which agents.
    pub size: Size,
    /// How long it is watched, in seconds.
    pub soak: Option<u64>,
    /// Whether a person has to approve the next wave.
    pub needs_approval: bool,
}

// === impl Strategy ===

impl Strategy {
    /// How a change of so many agents goes, with what `defaults` say where this strategy says nothing.
    #[must_use]
    pub fn plan(&self, defaults: &Self, targets: u32) -> Plan {
        let soak = self.soak.or(defaults.soak).unwrap_or(PROBATION);
        let usual = Plan::usual(targets.max(1), soak);
        let own = if self.waves.is_empty() { &defaults.waves } else { &self.waves };
        let needs_approval = self.approval.or(defaults.approval).unwrap_or(false);
        let wave = |wave: &StrategyWave| Wave {
            size: wave.size.clone(),
            soak: wave.soak.unwrap_or(soak),
            needs_approval: wave.needs_approval,
        };
        let mut waves: Vec<Wave> =
            if own.is_empty() { usual.waves } else { own.iter().map(wave).collect() };
        waves.iter_mut().for_each(|wave| wave.needs_approval |= needs_approval);
        let windows = if self.windows.is_empty() { &defaults.windows } else { &self.windows };
        Plan {
            waves,
            budget: self.budget.or(defaults.budget).unwrap_or(usual.budget),
            windows: windows.clone(),
            on_halt: self.on_halt.or(defaults.on_halt).unwrap_or_default(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_strategy_stands_above_the_defaults_and_these_above_what_is_usual() {
        let usual = Strategy::default().plan(&Strategy::default(), 10);
        assert_eq!(usual, Plan::usual(10, PROBATION));
        let all = StrategyWave { size: Size::Percent(100), soak: None, needs_approval: false };
        let defaults = Strategy {
            waves: vec![all.clone()],
            soak: Some(5),
            approval: Some(true),
            on_halt: Some(OnHalt::GoBack),
            ..Strategy::default()
        };
        let plan = Strategy::default().plan(&defaults, 10);
        let wave = Wave { size: Size::Percent(100), soak: 5, needs_approval: true };
        assert_eq!((plan.waves, plan.on_halt), (vec![wave], OnHalt::GoBack));
        let first = StrategyWave { size: Size::Count(2), soak: Some(1), ..all.clone() };
        let own = Strategy {
            waves: vec![first, all],
            budget: Some(3),
            approval: Some(false),
            on_halt: Some(OnHalt::Stay),
            ..Strategy::default()
        };
        let plan = own.plan(&defaults, 10);
        let soaks: Vec<u64> = plan.waves.iter().map(|wave| wave.soak).collect();
        assert_eq!((soaks, plan.budget, plan.on_halt), (vec![1, 5], 3, OnHalt::Stay));
        assert!(plan.waves.iter().all(|wave| !wave.needs_approval));
    }
}
