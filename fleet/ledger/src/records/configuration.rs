//! The declarations of operators, in the bucket of the configuration, one record per key:
//!
//! | key | record |
//! |---|---|
//! | `release/<plugin>/<revision>` | [`ReleaseRecord`] |
//! | `assignment/<name>` | [`AssignmentRecord`] |
//! | `hold/<name>` | [`HoldRecord`] |
//! | `window/<name>` | [`WindowRecord`] |
//! | `rollout/<assignment>` | [`RolloutRecord`](super::rollout::RolloutRecord) |
//! | `ended/<assignment>/<time>-<number>` | the same, of a rollout whose place another took |
//! | `defaults/rollout` | [`DefaultsRecord`] |
//! | `policy/<name>` | [`PolicyRecord`] |
//! | `repair/<assignment>` | [`RepairRecord`](super::repair::RepairRecord) |
//!
//! Parts of a key that come from outside are escaped, so that no name can reach another's key.

use guest_agent_proto::escape::escaped;
use guest_fleet_core::rollout::{OnHalt, Strategy, StrategyWave, WAVES, Wave};
use guest_fleet_core::selector::{OwnLabels, Selector};
use guest_fleet_core::time::Seconds;
use guest_fleet_core::view::{
    Archive, Assignment, Hold, Plugins, Policy, Release, ReleaseName, Window,
};
use guest_fleet_core::window::Weekly;

use super::rollout::WavePart;
use super::{RecordError, Versioned, revision, target};

pub use super::generated::{
    ArchiveRecord, AssignmentRecord, DefaultsRecord, HoldRecord, PolicyRecord, ReleaseRecord,
    StrategyPart, StrategyWavePart, WeeklyPart, WindowRecord,
};

/// The beginning of the keys of releases.
pub const RELEASE: &str = "release/";
/// The beginning of the keys of assignments.
pub const ASSIGNMENT: &str = "assignment/";
/// The beginning of the keys of holds.
pub const HOLD: &str = "hold/";
/// The beginning of the keys of windows.
pub const WINDOW: &str = "window/";

/// The beginning of the keys of policies.
pub const POLICY: &str = "policy/";
/// Key of the defaults, which hold where an assignment says nothing.
pub const DEFAULTS: &str = "defaults/rollout";

/// Key of a release.
#[must_use]
pub fn release_key(name: &ReleaseName) -> String {
    format!("{RELEASE}{}/{}", escaped(&name.plugin), escaped(&name.revision))
}

fn damaged(key: &str, problem: impl ToString) -> RecordError {
    RecordError::Damaged { key: key.to_owned(), problem: problem.to_string() }
}

pub(super) fn own_labels(are_trusted: bool) -> OwnLabels {
    if are_trusted { OwnLabels::Trusted } else { OwnLabels::Ignored }
}

pub(super) fn selector(key: &str, text: &str) -> Result<Selector, RecordError> {
    Selector::parse(text).map_err(|error| damaged(key, format_args!("its selector: {error}")))
}

fn plugins(names: &[String]) -> Plugins {
    if names.is_empty() { Plugins::All } else { Plugins::Named(names.iter().cloned().collect()) }
}

fn names(plugins: &Plugins) -> Vec<String> {
    match plugins {
        Plugins::All => Vec::new(),
        Plugins::Named(names) => names.iter().cloned().collect(),
    }
}

// === impl ReleaseRecord ===

impl ReleaseRecord {
    /// The record of a release.
    #[must_use]
    pub fn of(name: &ReleaseName, release: &Release) -> Self {
        let archive = |archive: &Archive| ArchiveRecord {
            digest: archive.digest.clone(),
            url: archive.url.clone(),
        };
        Self {
            version: Self::VERSION,
            plugin: name.plugin.clone(),
            revision: name.revision.clone(),
            archives: release
                .archives
                .iter()
                .map(|(architecture, found)| (architecture.clone(), archive(found)))
                .collect(),
            order: release.order.clone(),
        }
    }

    /// The release.
    #[must_use]
    pub fn release(self) -> (ReleaseName, Release) {
        let archives = self.archives.into_iter().map(|(architecture, found)| {
            (architecture, Archive { digest: found.digest, url: found.url })
        });
        (
            ReleaseName { plugin: self.plugin, revision: self.revision },
            Release { archives: archives.collect(), order: self.order },
        )
    }
}

// === impl AssignmentRecord ===

impl AssignmentRecord {
    /// The record of an assignment.
    #[must_use]
    pub fn of(assignment: &Assignment) -> Self {
        Self {
            version: Self::VERSION,
            plugin: assignment.plugin.clone(),
            revision: revision(&assignment.target),
            selector: assignment.selector.to_string(),
            trusts_own_labels: assignment.own_labels == OwnLabels::Trusted,
            priority: assignment.priority,
            attempt: assignment.attempt,
            strategy: StrategyPart::of(&assignment.strategy),
            declared: assignment.declared.as_ref().map(revision),
        }
    }

    /// The assignment.
    ///
    /// # Errors
    /// Its selector does not parse, or its strategy makes no sense.
    pub fn assignment(self, key: &str) -> Result<Assignment, RecordError> {
        Ok(Assignment {
            selector: selector(key, &self.selector)?,
            plugin: self.plugin,
            target: target(&self.revision),
            own_labels: own_labels(self.trusts_own_labels),
            priority: self.priority,
            attempt: self.attempt,
            strategy: StrategyPart::strategy(self.strategy, key)?,
            declared: self.declared.as_deref().map(target),
        })
    }
}

// === impl DefaultsRecord ===

impl DefaultsRecord {
    /// The record of a strategy that holds where an assignment says nothing.
    #[must_use]
    pub fn of(defaults: &Strategy) -> Self {
        Self { version: Self::VERSION, rollout: StrategyPart::of(defaults) }
    }

    /// The strategy.
    ///
    /// # Errors
    /// It makes no sense.
    pub fn defaults(self, key: &str) -> Result<Strategy, RecordError> {
        StrategyPart::strategy(self.rollout, key)
    }
}

// === impl PolicyRecord ===

impl PolicyRecord {
    /// The record of a policy.
    #[must_use]
    pub fn of(policy: &Policy) -> Self {
        Self {
            version: Self::VERSION,
            selector: policy.selector.to_string(),
            allows_at_once: !policy.by_rollout,
            undoes_owners: policy.undoes_owners,
        }
    }

    /// The policy.
    ///
    /// # Errors
    /// Its selector does not parse.
    pub fn policy(self, key: &str) -> Result<Policy, RecordError> {
        Ok(Policy {
            selector: selector(key, &self.selector)?,
            by_rollout: !self.allows_at_once,
            undoes_owners: self.undoes_owners,
        })
    }
}

// === impl StrategyPart ===

impl StrategyPart {
    /// `None` where the strategy says nothing.
    fn of(strategy: &Strategy) -> Option<Self> {
        let part = Self {
            waves: strategy.waves.iter().map(StrategyWavePart::of).collect(),
            soak: strategy.soak,
            budget: strategy.budget,
            approval: strategy.approval,
            windows: strategy.windows.iter().map(WeeklyPart::of).collect(),
            on_halt: match strategy.on_halt {
                None => 0,
                Some(OnHalt::Stay) => 1,
                Some(OnHalt::GoBack) => 2,
            },
        };
        (part != Self::default()).then_some(part)
    }

    fn strategy(part: Option<Self>, key: &str) -> Result<Strategy, RecordError> {
        let Some(part) = part else { return Ok(Strategy::default()) };
        if part.waves.len() > WAVES {
            return Err(damaged(key, format_args!("it has {} waves", part.waves.len())));
        }
        let waves = part.waves.into_iter().map(|wave| wave.wave(key));
        let windows = part.windows.into_iter().map(|window| window.weekly(key));
        Ok(Strategy {
            waves: waves.collect::<Result<_, _>>()?,
            soak: part.soak,
            budget: part.budget,
            approval: part.approval,
            windows: windows.collect::<Result<_, _>>()?,
            on_halt: match part.on_halt {
                0 => None,
                1 => Some(OnHalt::Stay),
                2 => Some(OnHalt::GoBack),
                _ => return Err(damaged(key, "it does something else when it halts")),
            },
        })
    }
}

// === impl StrategyWavePart ===

impl StrategyWavePart {
    fn of(wave: &StrategyWave) -> Self {
        let StrategyWave { size, needs_approval, .. } = wave;
        let part =
            WavePart::of(&Wave { size: size.clone(), soak: 0, needs_approval: *needs_approval });
        Self { wave: Some(part), soak: wave.soak }
    }

    fn wave(self, key: &str) -> Result<StrategyWave, RecordError> {
        let Wave { size, needs_approval, .. } = self.wave.unwrap_or_default().wave(key)?;
        Ok(StrategyWave { size, soak: self.soak, needs_approval })
    }
}

// === impl WeeklyPart ===

impl WeeklyPart {
    /// The part of hours.
    #[must_use]
    pub fn of(weekly: &Weekly) -> Self {
        let days = weekly.days.iter().zip(0..).filter(|(is_one, _)| **is_one);
        Self {
            days: days.map(|(_, day)| day).collect(),
            opens: weekly.opens.into(),
            minutes: weekly.minutes.into(),
            zone: weekly.zone.clone(),
        }
    }

    /// The hours.
    ///
    /// # Errors
    /// Its days or times do not exist.
    pub fn weekly(self, key: &str) -> Result<Weekly, RecordError> {
        let mut days = [false; 7];
        for day in &self.days {
            let day = usize::try_from(*day).ok().and_then(|day| days.get_mut(day));
            *day.ok_or_else(|| damaged(key, "a week has no such day"))? = true;
        }
        let minute = |minutes: u32| {
            u16::try_from(minutes)
                .ok()
                .filter(|minutes| *minutes <= 24 * 60)
                .ok_or_else(|| damaged(key, "a day has no such minute"))
        };
        let (opens, minutes) = (minute(self.opens)?, minute(self.minutes)?);
        Ok(Weekly { days, opens, minutes, zone: self.zone })
    }
}

// === impl HoldRecord ===

impl HoldRecord {
    /// The record of a hold.
    #[must_use]
    pub fn of(hold: &Hold) -> Self {
        Self {
            version: Self::VERSION,
            selector: hold.selector.to_string(),
            plugins: names(&hold.plugins),
            reason: hold.reason.clone(),
            by: hold.by.clone(),
            until: hold.until.map_or(0, |until| until.0),
            trusts_own_labels: hold.own_labels == OwnLabels::Trusted,
            by_hand: false,
        }
    }

    /// The hold.
    ///
    /// # Errors
    /// Its selector does not parse.
    pub fn hold(self, key: &str) -> Result<Hold, RecordError> {
        Ok(Hold {
            selector: selector(key, &self.selector)?,
            own_labels: own_labels(self.trusts_own_labels),
            plugins: plugins(&self.plugins),
            reason: self.reason,
            by: self.by,
            until: (self.until != 0).then_some(Seconds(self.until)),
        })
    }
}

// === impl WindowRecord ===

impl WindowRecord {
    /// The record of a window.
    #[must_use]
    pub fn of(window: &Window) -> Self {
        let WeeklyPart { days, opens, minutes, zone } = WeeklyPart::of(&window.weekly);
        Self {
            version: Self::VERSION,
            selector: window.selector.to_string(),
            plugins: names(&window.plugins),
            days,
            opens,
            minutes,
            zone,
            trusts_own_labels: window.own_labels == OwnLabels::Trusted,
        }
    }

    /// The window.
    ///
    /// # Errors
    /// Its selector does not parse, or its days or times do not exist.
    pub fn window(self, key: &str) -> Result<Window, RecordError> {
        let Self { days, opens, minutes, zone, .. } = self;
        Ok(Window {
            selector: selector(key, &self.selector)?,
            own_labels: own_labels(self.trusts_own_labels),
            plugins: plugins(&self.plugins),
            weekly: WeeklyPart { days, opens, minutes, zone }.weekly(key)?,
        })
    }
}

macro_rules! versioned {
    ($($record:ty),+) => {
        $(impl Versioned for $record {
            const VERSION: u32 = 1;

            fn version(&self) -> u32 {
                self.version
            }
        })+
    };
}

versioned!(ReleaseRecord, AssignmentRecord, DefaultsRecord, HoldRecord, PolicyRecord, WindowRecord);
