//! Counts the actions of the actors, for the metrics: the `Counters` port. Counting begins again
//! with every start of the agent, as readers of counters expect.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use guest_agent_actors::model::exit::ExitCause;
use guest_agent_actors::model::id::PluginName;
use guest_agent_actors::ports::{Count, Counters, OrderKind, Outcome};
use guest_agent_observe_kit::histogram::{Bounds, Histogram};

/// Upper bounds of the time that a commit takes, in seconds: from a fast disk to one that hangs.
const SAVE_BOUNDS: &[f64] =
    &[0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0];

/// The same for installations: from a cached archive to a large one over a slow connection.
const INSTALL_BOUNDS: &[f64] = &[0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 1800.0];

/// Most plugins whose last installation and whose crashes are remembered.
const PLUGINS_MAX: usize = 4096;

/// The counts so far.
#[derive(Debug, Default)]
pub struct Counts(Mutex<Counted>);

/// The counts at some moment.
#[derive(Clone, Debug, Default)]
pub struct Counted {
    /// Commits of the store that a caller waited for.
    pub saves: ByOutcome,
    /// How long they took.
    pub save_time: Histogram<SaveBounds>,
    /// Orders that were given.
    pub orders: BTreeMap<(OrderKind, Outcome), u64>,
    /// Orders of a fleet that came after newer ones.
    pub outdated: u64,
    /// Entries of the audit record that could not be written when they were made.
    pub not_audited: u64,
    /// Deployments that were admitted, and those that were not.
    pub judged: ByOutcome,
    /// Installations that ended.
    pub installs: ByOutcome,
    /// Durations of those that succeeded.
    pub install_time: Histogram<InstallBounds>,
    /// Duration of the last successful installation of each plugin.
    pub last_install: BTreeMap<PluginName, Duration>,
    /// Crashes of each plugin that had any, in the order of [`CrashCause::ALL`].
    pub crashes: BTreeMap<PluginName, [u64; 4]>,
    /// Sweeps that deleted entries.
    pub sweeps: u64,
    /// Entries that were deleted, and those that could not be.
    pub swept: ByOutcome,
}

/// A number for each outcome.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ByOutcome {
    /// For success.
    pub succeeded: u64,
    /// For failure.
    pub failed: u64,
}

/// How the process of a plugin that crashed ended, without the details.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CrashCause {
    /// It exited by itself.
    Exited,
    /// A signal ended it.
    Signaled,
    /// It used more memory than there was, or than it may.
    OutOfMemory,
    /// It hung, or nobody saw how it ended.
    Unknown,
}

/// Bounds for commits.
#[derive(Clone, Copy, Debug)]
pub struct SaveBounds;

/// Bounds for installations.
#[derive(Clone, Copy, Debug)]
pub struct InstallBounds;

impl Bounds for SaveBounds {
    const SECONDS: &'static [f64] = SAVE_BOUNDS;
}

impl Bounds for InstallBounds {
    const SECONDS: &'static [f64] = INSTALL_BOUNDS;
}

// === impl Counts ===

impl Counts {
    /// The counts until now. Plugins that are not among these are forgotten; none is while it is
    /// not known which there are.
    pub fn now(&self, plugins: Option<&BTreeSet<&PluginName>>) -> Counted {
        let mut counted = self.counted();
        if let Some(plugins) = plugins {
            counted.last_install.retain(|name, _| plugins.contains(name));
            counted.crashes.retain(|name, _| plugins.contains(name));
        }
        counted.clone()
    }

    fn counted(&self) -> MutexGuard<'_, Counted> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Counters for Counts {
    fn note(&self, note: Count) {
        let mut counted = self.counted();
        match note {
            Count::Saved { took, outcome } => {
                counted.saves.add(outcome, 1);
                counted.save_time.add(took);
            }
            Count::Ordered { kind, outcome } => {
                *counted.orders.entry((kind, outcome)).or_default() += 1;
            }
            Count::Outdated => counted.outdated = counted.outdated.saturating_add(1),
            Count::NotAudited(entries) => {
                let entries = u64::try_from(entries).unwrap_or(u64::MAX);
                counted.not_audited = counted.not_audited.saturating_add(entries);
            }
            Count::Judged(outcome) => counted.judged.add(outcome, 1),
            Count::Installed { plugin, took, outcome } => {
                counted.installs.add(outcome, 1);
                if outcome == Outcome::Succeeded {
                    counted.install_time.add(took);
                    counted.last_install.insert(plugin, took);
                    if counted.last_install.len() > PLUGINS_MAX {
                        counted.last_install.pop_first();
                    }
                }
            }
            Count::Crashed { plugin, cause } => {
                let place = CrashCause::of(cause).place();
                if let Some(count) = counted.crashes.entry(plugin).or_default().get_mut(place) {
                    *count = count.saturating_add(1);
                }
                if counted.crashes.len() > PLUGINS_MAX {
                    counted.crashes.pop_first();
                }
            }
            Count::Gone(plugin) => {
                counted.last_install.remove(&plugin);
                counted.crashes.remove(&plugin);
            }
            Count::Swept { deleted, failed } => {
                counted.sweeps += 1;
                counted.swept.add(Outcome::Succeeded, deleted);
                counted.swept.add(Outcome::Failed, failed);
            }
        }
    }
}

// === impl CrashCause ===

impl CrashCause {
    /// Every cause.
    pub const ALL: [Self; 4] = [Self::Exited, Self::Signaled, Self::OutOfMemory, Self::Unknown];

    /// The cause of an end.
    #[must_use]
    pub const fn of(cause: ExitCause) -> Self {
        match cause {
            ExitCause::Exited(_) => Self::Exited,
            ExitCause::Signaled(_) => Self::Signaled,
            ExitCause::OutOfMemory { .. } | ExitCause::OverMemoryLimit { .. } => Self::OutOfMemory,
            ExitCause::Unknown => Self::Unknown,
        }
    }

    /// Its name in metrics.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Exited => "exited",
            Self::Signaled => "signaled",
            Self::OutOfMemory => "oom",
            Self::Unknown => "unknown",
        }
    }

    /// Its place in [`Self::ALL`].
    const fn place(self) -> usize {
        match self {
            Self::Exited => 0,
            Self::Signaled => 1,
            Self::OutOfMemory => 2,
            Self::Unknown => 3,
        }
    }
}

// === impl ByOutcome ===

impl ByOutcome {
    fn add(&mut self, outcome: Outcome, count: usize) {
        let count = u64::try_from(count).unwrap_or(u64::MAX);
        let number = match outcome {
            Outcome::Succeeded => &mut self.succeeded,
            Outcome::Failed => &mut self.failed,
        };
        *number = number.saturating_add(count);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_plugins_that_are_gone_nothing_is_kept() {
        let counts = Counts::default();
        let name = |number: usize| format!("p{number}").parse::<PluginName>().expect("a name");
        for number in 0..PLUGINS_MAX + 10 {
            counts.note(Count::Installed {
                plugin: name(number),
                took: Duration::from_secs(1),
                outcome: Outcome::Succeeded,
            });
        }
        assert_eq!(counts.counted().last_install.len(), PLUGINS_MAX);
        counts.note(Count::Gone(name(5)));
        assert_eq!(counts.counted().last_install.len(), PLUGINS_MAX - 1);
        let stays = name(PLUGINS_MAX);
        assert_eq!(counts.now(None).last_install.len(), PLUGINS_MAX - 1, "who is there is unknown");
        let counted = counts.now(Some(&BTreeSet::from([&stays])));
        assert_eq!(counted.last_install.keys().collect::<Vec<_>>(), [&stays]);
        assert_eq!(counts.counted().last_install.len(), 1);
        assert_eq!(counted.installs.succeeded, u64::try_from(PLUGINS_MAX + 10).expect("it fits"));
    }

    #[test]
    fn crashes_are_counted_by_their_cause_until_the_plugin_is_gone() {
        let counts = Counts::default();
        let plugin: PluginName = "web".parse().expect("a name");
        for cause in [
            ExitCause::Exited(0),
            ExitCause::Exited(70),
            ExitCause::OutOfMemory { peak: None },
            ExitCause::OverMemoryLimit { peak: None },
            ExitCause::OutOfMemory { peak: None },
            ExitCause::Unknown,
        ] {
            counts.note(Count::Crashed { plugin: plugin.clone(), cause });
        }
        assert_eq!(counts.counted().crashes[&plugin], [2, 0, 3, 1]);
        for (place, cause) in CrashCause::ALL.into_iter().enumerate() {
            assert_eq!(cause.place(), place);
        }
        counts.note(Count::Gone(plugin));
        assert!(counts.counted().crashes.is_empty());
    }
}
