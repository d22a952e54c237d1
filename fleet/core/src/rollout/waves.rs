//! How a rollout goes: its waves and its budget.

use crate::window::Weekly;

/// Most waves of a rollout.
pub const WAVES: usize = 100;

/// How a rollout goes.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Plan {
    /// The waves, one after the other. Canaries by label come first.
    pub waves: Vec<Wave>,
    /// The most agents in flight at one time.
    pub budget: u32,
    /// When agents' turns may begin; at any time where the list is empty.
    pub windows: Vec<Weekly>,
    /// Its way after the gate halted it.
    pub on_halt: OnHalt,
}

/// The way of a rollout that the gate halted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnHalt {
    /// It waits for a person.
    #[default]
    Stay,
    /// It gives the agents that have the new target the former one.
    GoBack,
}

/// A wave.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wave {
    /// Which agents.
    pub size: Size,
    /// How long it is watched after its agents settled, in seconds.
    pub soak: u64,
    /// Whether a person has to approve the next wave.
    pub needs_approval: bool,
}

/// Which agents a wave is about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Size {
    /// So many beside those of the waves before.
    Count(u32),
    /// As many as make this share of all, with those of the waves before; in a hundred.
    Percent(u8),
    /// All with this label.
    Label(Label),
}

/// A label that operators or tokens gave.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Label {
    /// Its key.
    pub key: String,
    /// Its value.
    pub value: String,
}

// === impl Plan ===

impl Plan {
    /// The waves for so many targets when nobody says otherwise: 1, 2, 4, … and at most a quarter each
    /// in a small fleet; 10, 40, 160, … in a larger one. Each is watched for `soak` seconds.
    #[must_use]
    pub fn usual(targets: u32, soak: u64) -> Self {
        let is_small = targets < crate::gate::SMALL;
        let (mut next, factor) = if is_small { (1, 2) } else { (10, 4) };
        let most = (targets / 4).max(1);
        let mut left = targets;
        let mut waves = Vec::new();
        while left > 0 {
            let count = u32::min(next, most).min(left);
            waves.push(Wave { size: Size::Count(count), soak, needs_approval: false });
            left -= count;
            next = next.saturating_mul(factor);
        }
        // Agents that come meanwhile belong to the last wave.
        if let Some(last) = waves.last_mut() {
            last.size = Size::Percent(100);
        }
        // What is in flight says nothing yet, and is touched when the gate halts.
        Self { waves, budget: (targets / 200).clamp(10, 250), ..Self::default() }
    }

    /// All agents together: one wave, which is not watched.
    #[must_use]
    pub fn at_once() -> Self {
        let wave = Wave { size: Size::Percent(100), soak: 0, needs_approval: false };
        Self { waves: vec![wave], budget: u32::MAX, ..Self::default() }
    }

    /// Whether all agents get it together.
    #[must_use]
    pub fn is_at_once(&self) -> bool {
        self.budget == u32::MAX
    }

    /// How many of the targets have the new target when a wave ended.
    #[must_use]
    pub fn goal(&self, wave: usize, targets: u32) -> u32 {
        let waves = self.waves.iter().take(wave.saturating_add(1));
        let goal = waves.fold(0_u32, |goal, wave| match wave.size {
            Size::Count(count) => goal.saturating_add(count),
            Size::Percent(share) => {
                let exact = u64::from(targets) * u64::from(share.min(100));
                goal.max(u32::try_from(exact.div_ceil(100)).unwrap_or(u32::MAX))
            }
            Size::Label(_) => goal,
        });
        goal.min(targets)
    }

    /// The label of a wave.
    #[must_use]
    pub fn label(&self, wave: usize) -> Option<&Label> {
        match &self.waves.get(wave)?.size {
            Size::Label(label) => Some(label),
            Size::Count(_) | Size::Percent(_) => None,
        }
    }
}
