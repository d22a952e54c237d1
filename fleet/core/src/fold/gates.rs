//! What is wanted of an agent, and which holds and windows stand before it, without the time.

use std::collections::{BTreeMap, BTreeSet};

use super::facts::{PLUGINS, ReportFacts, bounded};
use super::word::Word;
use crate::desired::{Agent, Permission, decide};
use crate::presence::OFFLINE_AFTER;
use crate::repair::Repair;
use crate::time::{Seconds, UtcOnly, Zones};
use crate::view::{Hold, Release, ReleaseName, Target, View, Window};
use crate::window::{Opening, Weekly};

/// Most holds, and most windows, that are kept of one agent and plugin. Those with the first names stay.
const GATES: usize = 8;

/// What an agent should have of a plugin.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wanted {
    /// What.
    pub target: Target,
    /// Name of the assignment that decides.
    pub assignment: String,
    /// The assignment's attempt.
    pub attempt: u32,
    /// How long an order of it may take, in seconds.
    pub patience: u64,
    /// What stands before a change.
    pub barrier: Barrier,
    /// It is to have something else when its turn comes in a rollout.
    pub waits: bool,
    /// A policy undoes what people on the machine change.
    pub undoes_owners: bool,
}

/// What stands before a change.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Barrier {
    /// Two assignments of the same priority want different things.
    Conflict,
    /// Two machines use the agent's identity.
    Quarantined,
    /// The release was never declared.
    NoRelease,
    /// The release has no archive for the agent's architecture.
    NoArchive,
    /// It was not its turn in a rollout yet, or the rollout has stopped.
    Wave,
    /// The ledger went back, and a person has not resumed the assignment.
    Paused,
    /// Holds and windows, or nothing.
    Gates(Gates),
}

/// The holds and windows that are about an agent and a plugin, by name. Whether they keep a change back
/// is a question of the time.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Gates {
    /// Holds of the fleet.
    pub holds: BTreeSet<String>,
    /// A person on the machine holds it.
    pub by_owner: bool,
    /// Windows.
    pub windows: BTreeSet<String>,
}

/// What a standing is called between two moments.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Mark {
    /// This.
    Word(Word),
    /// What holds and windows say.
    Gates(Gates),
}

/// When holds end and windows open, by name.
#[derive(Clone, Copy)]
pub struct Doors<'a> {
    /// When each hold ends by itself.
    pub holds: &'a BTreeMap<String, Option<Seconds>>,
    /// When each window is open.
    pub windows: &'a BTreeMap<String, Weekly>,
    /// The time zones.
    pub zones: &'a dyn Zones,
}

/// The declarations as the fold needs them.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Declared {
    /// Assignments and releases alone, so that a decision does not depend on the time.
    timeless: View,
    plugins: BTreeSet<String>,
    holds: BTreeMap<String, Hold>,
    windows: BTreeMap<String, Window>,
    patience: BTreeMap<(String, Target), u64>,
    /// For how long an agent may have no stream before it is offline, in seconds.
    pub offline_after: u64,
}

// === impl Declared ===

impl Declared {
    /// Of a view. `patience` says how long an order of a plugin may take, in seconds.
    #[must_use]
    pub fn new(view: &View, patience: impl Fn(&View, &str, &Target) -> u64) -> Self {
        let bare = |(name, release): (&ReleaseName, &Release)| {
            // The order is large, and no decision looks into it.
            (name.clone(), Release { archives: release.archives.clone(), order: Vec::new() })
        };
        let assignments = view.assignments.values();
        let rollouts = view.rollouts.values().flat_map(|found| {
            let targets = found.rollout.from.target().into_iter().chain([&found.rollout.to]);
            targets.map(|target| (&found.plugin, target))
        });
        // What is ordered again changes every minute, and decides nothing here.
        let paused = |(name, repair): (&String, &Repair)| {
            let only = Repair { stop: repair.stop.clone(), ..Repair::default() };
            repair.is_paused().then(|| (name.clone(), only))
        };
        let wanted = assignments.clone().map(|assignment| (&assignment.plugin, &assignment.target));
        Self {
            plugins: assignments.map(|assignment| assignment.plugin.clone()).collect(),
            patience: wanted
                .chain(rollouts)
                .map(|(plugin, target)| {
                    ((plugin.clone(), target.clone()), patience(view, plugin, target))
                })
                .collect(),
            timeless: View {
                releases: view.releases.iter().map(bare).collect(),
                assignments: view.assignments.clone(),
                rollouts: view.rollouts.clone(),
                repairs: view.repairs.iter().filter_map(paused).collect(),
                policies: view.policies.clone(),
                ..View::default()
            },
            holds: view.holds.clone(),
            windows: view.windows.clone(),
            offline_after: OFFLINE_AFTER,
        }
    }

    /// Whether an assignment is about a plugin.
    #[must_use]
    pub fn assigns(&self, plugin: &str) -> bool {
        self.plugins.contains(plugin)
    }

    /// With another time after which an agent without a stream is offline, in seconds.
    #[must_use]
    pub fn offline_after(self, offline_after: u64) -> Self {
        Self { offline_after, ..self }
    }

    /// When the holds end.
    #[must_use]
    pub fn holds(&self) -> BTreeMap<String, Option<Seconds>> {
        self.holds.iter().map(|(name, hold)| (name.clone(), hold.until)).collect()
    }

    /// When the windows open.
    #[must_use]
    pub fn windows(&self) -> BTreeMap<String, Weekly> {
        self.windows.iter().map(|(name, window)| (name.clone(), window.weekly.clone())).collect()
    }

    /// What an agent should have, by plugin.
    pub(super) fn wanted(&self, agent: &Agent) -> BTreeMap<String, Wanted> {
        let all = self
            .plugins
            .iter()
            .filter_map(|plugin| Some((plugin.clone(), self.wanted_of(agent, plugin)?)));
        all.take(PLUGINS).collect()
    }

    fn wanted_of(&self, agent: &Agent, plugin: &str) -> Option<Wanted> {
        let decision = decide(&self.timeless, agent, plugin, Seconds(0), &UtcOnly)?;
        let joins = matches!(decision.permission, Permission::Joins { .. });
        let barrier = match decision.permission {
            Permission::Conflict { .. } => Barrier::Conflict,
            Permission::Quarantined(_) => Barrier::Quarantined,
            Permission::NoRelease => Barrier::NoRelease,
            Permission::NoArchive { .. } => Barrier::NoArchive,
            Permission::Paused { .. } => Barrier::Paused,
            Permission::WaitsForWave { .. }
            | Permission::Joins { .. }
            | Permission::Stopped { .. } => Barrier::Wave,
            Permission::Go
            | Permission::Held { .. }
            | Permission::HeldByOwner(_)
            | Permission::OutsideWindow { .. } => Barrier::Gates(self.gates(agent, plugin)),
        };
        let key = (plugin.to_owned(), decision.target);
        let patience = self.patience.get(&key).copied().unwrap_or(0);
        Some(Wanted {
            target: key.1,
            assignment: bounded(&decision.assignment),
            attempt: decision.attempt,
            patience,
            barrier,
            waits: joins || decision.turn.is_some_and(|turn| turn.waits),
            undoes_owners: self.timeless.undoes_owners(&agent.id, &agent.labels),
        })
    }

    fn gates(&self, agent: &Agent, plugin: &str) -> Gates {
        let holds = self.holds.iter().filter(|(_, hold)| {
            hold.plugins.contain(plugin)
                && hold.selector.selects(&agent.id, &agent.labels, hold.own_labels)
        });
        let windows = self.windows.iter().filter(|(_, window)| {
            window.plugins.contain(plugin)
                && window.selector.selects(&agent.id, &agent.labels, window.own_labels)
        });
        Gates {
            holds: holds.map(|(name, _)| name.clone()).take(GATES).collect(),
            by_owner: agent.held_by_owner.contains_key(plugin),
            windows: windows.map(|(name, _)| name.clone()).take(GATES).collect(),
        }
    }

    /// The declared releases that an agent reported as what it has.
    pub(super) fn releases_of<'a>(
        &'a self,
        report: Option<&'a ReportFacts>,
    ) -> impl Iterator<Item = &'a ReleaseName> {
        let reported = report.into_iter().flat_map(|report| &report.plugins);
        reported.filter_map(|(plugin, reported)| {
            let revision = reported.revision.clone()?;
            let name = ReleaseName { plugin: plugin.clone(), revision };
            self.timeless.releases.get_key_value(&name).map(|(name, _)| name)
        })
    }
}

// === impl Wanted ===

impl Wanted {
    /// The revision; `None` where the plugin should be absent.
    #[must_use]
    pub fn revision(&self) -> Option<&str> {
        self.target.revision()
    }
}

// === impl Barrier ===

impl Barrier {
    pub(super) fn mark(&self) -> Mark {
        match self {
            Self::Conflict => Mark::Word(Word::Conflict),
            Self::Quarantined => Mark::Word(Word::Quarantined),
            Self::NoRelease => Mark::Word(Word::NoRelease),
            Self::NoArchive => Mark::Word(Word::NoArchive),
            Self::Wave => Mark::Word(Word::WaitsForWave),
            Self::Paused => Mark::Word(Word::Paused),
            Self::Gates(gates) if *gates == Gates::default() => Mark::Word(Word::Waits),
            Self::Gates(gates) => Mark::Gates(gates.clone()),
        }
    }
}

// === impl Gates ===

impl Gates {
    /// The word at a time. A hold or a window that is not declared any more keeps nothing back.
    #[must_use]
    pub fn word(&self, now: Seconds, doors: &Doors<'_>) -> Word {
        let holds = |name| {
            let until: Option<&Option<Seconds>> = doors.holds.get(name);
            until.is_some_and(|until| until.is_none_or(|until| until > now))
        };
        if self.holds.iter().any(holds) {
            return Word::Held;
        }
        if self.by_owner {
            return Word::HeldByOwner;
        }
        let mut windows = self.windows.iter().filter_map(|name| doors.windows.get(name)).peekable();
        let opens =
            |window: &Weekly| matches!(window.opening(now, doors.zones), Opening::Open { .. });
        if windows.peek().is_none() || windows.any(opens) {
            Word::Waits
        } else {
            Word::OutsideWindow
        }
    }
}

// === impl Mark ===

impl Mark {
    /// The word at a time.
    #[must_use]
    pub fn word(&self, now: Seconds, doors: &Doors<'_>) -> Word {
        match self {
            Self::Word(word) => *word,
            Self::Gates(gates) => gates.word(now, doors),
        }
    }
}
