//! How many machines the waves of a rollout reach, from what the API says of it.

use guest_agent_proto::fleet_api::{Rollout, RolloutProgress};
use guest_fleet_core::rollout::{Label, Plan, Size, Wave};

/// How many machines something reaches.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Reach {
    /// So many.
    Exactly(u64),
    /// At most so many: they are chosen by something that only the machines have.
    AtMost(u64),
    /// Nobody counted yet.
    Unknown,
}

// === impl Reach ===

impl Reach {
    /// `touches 4 machines`, as a sentence.
    pub(super) fn sentence(&self) -> String {
        match self {
            Self::Exactly(0) => "Touches no machine.".to_owned(),
            Self::Exactly(1) => "Touches 1 machine.".to_owned(),
            Self::Exactly(count) => format!("Touches {count} machines."),
            Self::AtMost(1) => "Touches at most 1 machine.".to_owned(),
            Self::AtMost(count) => format!("Touches at most {count} machines."),
            Self::Unknown => "Nobody counted yet how many machines it touches.".to_owned(),
        }
    }

    /// `4 machines`, for a button.
    pub(super) fn short(&self) -> String {
        match self {
            Self::Exactly(0) => "no machine".to_owned(),
            Self::Exactly(1) => "1 machine".to_owned(),
            Self::Exactly(count) => format!("{count} machines"),
            Self::AtMost(count) => format!("≤ {count} machines"),
            Self::Unknown => "not counted yet".to_owned(),
        }
    }
}

/// How many machines a wave, counted from 0, reaches that no wave before it did.
pub(super) fn of_wave(rollout: &Rollout, at: usize) -> Reach {
    let Some(progress) = &rollout.progress else { return Reach::Unknown };
    let plan = plan(rollout);
    if plan.label(at).is_some() {
        return Reach::AtMost(left(progress));
    }
    let before = at.checked_sub(1).map_or(0, |before| plan.goal(before, progress.targets));
    let goal = plan.goal(at, progress.targets);
    // Waves by label have no size here, so what was given may be more than what waves by number add up to.
    let given = before.max(progress.given);
    Reach::Exactly(goal.saturating_sub(given).into())
}

/// How many machines have not been given the new release.
pub(super) fn left(progress: &RolloutProgress) -> u64 {
    progress.targets.saturating_sub(progress.given).into()
}

/// The waves as the core has them. What cannot be read counts as a wave for all.
fn plan(rollout: &Rollout) -> Plan {
    let waves = rollout.waves.iter().map(|words| Wave {
        size: size(words).unwrap_or(Size::Percent(100)),
        soak: 0,
        needs_approval: false,
    });
    Plan { waves: waves.collect(), budget: rollout.budget }
}

fn size(words: &str) -> Option<Size> {
    if let Some((key, value)) = words.split_once('=') {
        return Some(Size::Label(Label { key: key.to_owned(), value: value.to_owned() }));
    }
    if let Some(share) = words.strip_suffix('%') {
        return share.parse().ok().map(Size::Percent);
    }
    words.parse().ok().map(Size::Count)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rollout(waves: &[&str], given: u32) -> Rollout {
        Rollout {
            waves: waves.iter().map(|it| (*it).to_owned()).collect(),
            progress: Some(RolloutProgress { targets: 100, given, ..RolloutProgress::default() }),
            ..Rollout::default()
        }
    }

    #[test]
    fn a_wave_reaches_what_the_waves_before_did_not() {
        let plan = rollout(&["5", "10", "50%", "100%"], 15);
        assert_eq!(of_wave(&plan, 2), Reach::Exactly(35));
        assert_eq!(of_wave(&plan, 3), Reach::Exactly(50));
        assert_eq!(of_wave(&plan, 1), Reach::Exactly(0), "it has been given");
        assert_eq!(of_wave(&rollout(&["5", "100%"], 0), 0), Reach::Exactly(5));
    }

    #[test]
    fn waves_by_label_and_rollouts_that_nobody_counted_say_so() {
        assert_eq!(of_wave(&rollout(&["ring=canary", "100%"], 0), 0), Reach::AtMost(100));
        assert_eq!(of_wave(&rollout(&["ring=canary", "100%"], 20), 1), Reach::Exactly(80));
        assert_eq!(of_wave(&Rollout::default(), 0), Reach::Unknown);
        assert_eq!(Reach::AtMost(1).sentence(), "Touches at most 1 machine.");
        assert_eq!(Reach::Exactly(2).short(), "2 machines");
    }
}
