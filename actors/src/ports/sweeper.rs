//! The port that deletes files that nothing refers to any more.
//!
//! One mistake is much worse than the other: a file that stays is a nuisance, a file that is
//! deleted and was needed is an outage. So the adapter deletes by a *reference set*, which it asks
//! for again for every single plugin, after it stopped installations of that plugin. When the set
//! is unknown, the adapter deletes nothing.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;

use async_trait::async_trait;

use crate::model::id::{PluginName, RevisionId};

/// Looks for files that nothing refers to, and deletes them.
#[async_trait]
pub trait Sweeper: Send + Sync {
    /// One bounded run over everything that the agent keeps on disk. A run that is dropped stops
    /// after the file it is at.
    async fn sweep(&self, manner: SweepManner, references: Arc<dyn ReferenceSet>) -> SweepReport;

    /// Resolves when all processes have ended because of which the last run that deleted left
    /// something: the next one can delete it. Never resolves when there were none.
    async fn freed(&self) {
        std::future::pending().await
    }
}

/// Provides the reference set.
#[async_trait]
pub trait ReferenceSet: Send + Sync {
    /// The files that must stay, as of now. `None` when they are unknown, and then no file may be
    /// deleted.
    async fn now(&self) -> Option<References>;
}

/// Whether a run deletes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum SweepManner {
    /// It only reports what it would delete.
    Pretend,
    /// It deletes.
    Delete,
}

/// The files that must stay.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct References {
    /// Every plugin on the roster, with the revisions that run, are current, are being installed,
    /// are about to take over, or may be returned to.
    pub plugins: BTreeMap<PluginName, BTreeSet<RevisionId>>,
    /// Plugins whose record could not be read: all of their files stay.
    pub lost: BTreeSet<PluginName>,
    /// Whether these are all plugins of the machine.
    pub known: Known,
}

/// Whether every plugin of this machine is known.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Known {
    /// All of them: a name that is not here is of a removed plugin.
    All,
    /// Perhaps not: a missing name may belong to a plugin whose record was lost.
    #[default]
    Some,
}

/// Which files of one plugin are needed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Claim {
    /// Only these revisions are needed.
    Revisions(BTreeSet<RevisionId>),
    /// The needed files are not known, for this reason.
    Unknown(&'static str),
    /// The plugin is removed.
    Nothing,
}

/// The result of one run.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SweepReport {
    /// Its items, at most [`SWEEP_ITEMS_MAX`].
    pub items: Vec<SweepItem>,
    /// Whether a bound ended the run before it had looked at every file.
    pub unfinished: bool,
}

/// Most items of one report.
pub const SWEEP_ITEMS_MAX: usize = 1000;

/// One entry that the run found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SweepItem {
    /// Its path.
    pub path: String,
    /// Its fate.
    pub fate: SweepFate,
    /// Why, as a fragment.
    pub why: String,
}

/// The fate of an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum SweepFate {
    /// It was deleted.
    Deleted,
    /// It would be deleted, if the run were not a dry run.
    WouldDelete,
    /// It stays: it is not the agent's, or the owner is unknown.
    LeftAlone,
    /// The next run deals with it.
    Postponed,
    /// Its deletion failed.
    Failed,
}

// === impl References ===

impl References {
    /// Which files of a plugin are needed.
    #[must_use]
    pub fn of(&self, name: &PluginName) -> Claim {
        if self.lost.contains(name) {
            return Claim::Unknown("the plugin's record is unreadable");
        }
        match (self.plugins.get(name), self.known) {
            (Some(revisions), _) => Claim::Revisions(revisions.clone()),
            (None, Known::Some) => {
                Claim::Unknown("records of plugins were lost, and it may be of one of those")
            }
            (None, Known::All) => Claim::Nothing,
        }
    }
}

// === impl SweepReport ===

impl SweepReport {
    /// Adds an item, unless there are too many.
    pub fn push(&mut self, path: impl Into<String>, fate: SweepFate, why: impl Into<String>) {
        if self.items.len() < SWEEP_ITEMS_MAX {
            self.items.push(SweepItem { path: path.into(), fate, why: why.into() });
        } else {
            self.unfinished = true;
        }
    }

    /// How many items have that fate.
    #[must_use]
    pub fn count(&self, fate: SweepFate) -> usize {
        self.items.iter().filter(|item| item.fate == fate).count()
    }
}

impl fmt::Display for SweepFate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Deleted => "deleted",
            Self::WouldDelete => "would delete",
            Self::LeftAlone => "left alone",
            Self::Postponed => "postponed",
            Self::Failed => "failed",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(text: &str) -> PluginName {
        text.parse().expect("a name")
    }

    #[test]
    fn a_plugin_that_may_have_been_lost_keeps_everything() {
        let revisions = BTreeSet::from(["1".parse().expect("a revision")]);
        let mut references = References {
            plugins: BTreeMap::from([(name("a"), revisions.clone())]),
            lost: BTreeSet::new(),
            known: Known::All,
        };
        assert_eq!(references.of(&name("a")), Claim::Revisions(revisions.clone()));
        assert_eq!(references.of(&name("b")), Claim::Nothing);
        references.known = Known::Some;
        assert_eq!(references.of(&name("a")), Claim::Revisions(revisions));
        assert!(matches!(references.of(&name("b")), Claim::Unknown(_)));
        // Also if it was installed again since: the lost record may refer to other revisions.
        references.lost.insert(name("a"));
        assert!(matches!(references.of(&name("a")), Claim::Unknown(_)));
        assert!(matches!(References::default().of(&name("x")), Claim::Unknown(_)));
    }

    #[test]
    fn a_report_is_bounded() {
        let mut report = SweepReport::default();
        for number in 0..=SWEEP_ITEMS_MAX {
            report.push(number.to_string(), SweepFate::LeftAlone, "odd");
        }
        assert_eq!(report.items.len(), SWEEP_ITEMS_MAX);
        assert!(report.unfinished);
    }
}
