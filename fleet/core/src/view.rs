//! What operators declared, as plain data: the view that every decision is made on.

use std::collections::{BTreeMap, BTreeSet};

use crate::account::Account;
use crate::drift::{Lack, Leave};
use crate::labels::Labels;
use crate::repair::Repair;
use crate::rollout::{Rollout, Strategy};
use crate::selector::{OwnLabels, Selector};
use crate::time::Seconds;
use crate::window::Weekly;

pub use crate::target::{Ordered, Target};

/// Everything that operators declared.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct View {
    /// Releases by plugin and revision.
    pub releases: BTreeMap<ReleaseName, Release>,
    /// Assignments by name.
    pub assignments: BTreeMap<String, Assignment>,
    /// Holds by name.
    pub holds: BTreeMap<String, Hold>,
    /// Windows by name.
    pub windows: BTreeMap<String, Window>,
    /// Rollouts, by the name of their assignment.
    pub rollouts: BTreeMap<String, AssignmentRollout>,
    /// How changes go where their assignment says nothing.
    pub defaults: Strategy,
    /// Rules about changes, by name: of the servers' own configuration, and not declared.
    pub policies: BTreeMap<String, Policy>,
    /// How it goes on with drifted agents, by the name of their assignment. Not declared.
    pub repairs: BTreeMap<String, Repair>,
}

/// A rule about changes of some agents.
#[derive(Clone, Debug, PartialEq)]
pub struct Policy {
    /// Which agents it is about, by labels that operators and tokens gave.
    pub selector: Selector,
    /// No change reaches these agents at once: changes go by rollouts alone.
    pub by_rollout: bool,
    /// Changes by people on the machines are drift like any other.
    pub undoes_owners: bool,
}

/// The rollout of an assignment. It decides while it leads to what the assignment wants, also after
/// it ended.
#[derive(Clone, Debug, PartialEq)]
pub struct AssignmentRollout {
    /// Its name: it salts the places of agents.
    pub name: String,
    /// Name of the plugin.
    pub plugin: String,
    /// How many rollouts the assignment had up to this one.
    pub number: u32,
    /// Which agents the assignment was about before.
    pub before: Before,
    /// The rollout.
    pub rollout: Rollout,
    /// Who decided about it, and what came of it.
    pub account: Account,
}

/// Which agents an assignment was about before it changed. A new machine among them gets the former target
/// until its turn comes.
#[derive(Clone, Debug, Default, PartialEq)]
pub enum Before {
    /// The same as now.
    #[default]
    Same,
    /// These.
    Selected(Selector, OwnLabels),
    /// None: the assignment is new.
    New,
}

/// Plugin and revision.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ReleaseName {
    /// Name of the plugin.
    pub plugin: String,
    /// Revision of the plugin.
    pub revision: String,
}

/// A revision of a plugin that can be ordered. It never changes.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Release {
    /// The archives, by architecture in Go style; [`ANY_ARCHITECTURE`] fits all.
    pub archives: BTreeMap<String, Archive>,
    /// The order without its archive: opaque here.
    pub order: Vec<u8>,
}

/// The key of an archive that every architecture takes.
pub const ANY_ARCHITECTURE: &str = "any";

/// An archive of a release.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Archive {
    /// SHA-256, in lower-case hexadecimal digits.
    pub digest: String,
    /// Where it is; empty where the fleet's own artifact server has it under its digest.
    pub url: String,
}

/// Which agents should run what.
#[derive(Clone, Debug, PartialEq)]
pub struct Assignment {
    /// Name of the plugin.
    pub plugin: String,
    /// What the agents should have of it.
    pub target: Target,
    /// Which agents it is about.
    pub selector: Selector,
    /// Whether `self.` labels may select here.
    pub own_labels: OwnLabels,
    /// Of several assignments of one plugin that select an agent, the one with the highest decides.
    pub priority: i32,
    /// Raised by an operator to have an order that failed given again.
    pub attempt: u32,
    /// How its changes go.
    pub strategy: Strategy,
    /// The target in the files that a person took the assignment away from by hand: as long as they name it,
    /// they change nothing. `None` where the files decide.
    pub declared: Option<Target>,
}

/// Which plugins a hold or a window is about.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Plugins {
    /// All.
    #[default]
    All,
    /// These.
    Named(BTreeSet<String>),
}

/// Changes wait while it is there.
#[derive(Clone, Debug, PartialEq)]
pub struct Hold {
    /// Which agents it is about.
    pub selector: Selector,
    /// Whether `self.` labels may select here.
    pub own_labels: OwnLabels,
    /// Which plugins it is about.
    pub plugins: Plugins,
    /// Why.
    pub reason: String,
    /// Who set it.
    pub by: String,
    /// When it ends by itself.
    pub until: Option<Seconds>,
}

/// Changes happen only while it, or another window of the same agent and plugin, is open.
#[derive(Clone, Debug, PartialEq)]
pub struct Window {
    /// Which agents it is about.
    pub selector: Selector,
    /// Whether `self.` labels may select here.
    pub own_labels: OwnLabels,
    /// Which plugins it is about.
    pub plugins: Plugins,
    /// When it is open.
    pub weekly: Weekly,
}

// === impl View ===

impl View {
    /// What is let be done about an agent and a plugin of an assignment that drifted.
    #[must_use]
    pub fn leave(&self, assignment: &str, agent: &str) -> Leave {
        self.repairs.get(assignment).map(|repair| repair.leave(agent)).unwrap_or_default()
    }

    /// Whether the fleet mends what an agent lacks.
    #[must_use]
    pub fn mends(&self, lack: &Lack, id: &str, labels: &Labels) -> bool {
        lack.is_mended(self.undoes_owners(id, labels))
    }

    /// Whether a policy undoes what people on the machine of an agent change.
    #[must_use]
    pub fn undoes_owners(&self, id: &str, labels: &Labels) -> bool {
        self.policies.values().any(|policy| {
            policy.undoes_owners && policy.selector.selects(id, labels, OwnLabels::Ignored)
        })
    }
}

// === impl AssignmentRollout ===

impl AssignmentRollout {
    /// The first rollout of an assignment that stays about the same agents, and of which nothing came yet.
    #[must_use]
    pub fn first(name: &str, plugin: &str, rollout: Rollout) -> Self {
        Self {
            name: name.to_owned(),
            plugin: plugin.to_owned(),
            number: 1,
            before: Before::Same,
            rollout,
            account: Account::default(),
        }
    }
}

// === impl Before ===

impl Before {
    /// Whether an agent was among them, which is now.
    #[must_use]
    pub fn selects(&self, id: &str, labels: &Labels) -> bool {
        match self {
            Self::Same => true,
            Self::Selected(selector, own_labels) => selector.selects(id, labels, *own_labels),
            Self::New => false,
        }
    }
}

// === impl Plugins ===

impl Plugins {
    /// Whether a plugin is among them.
    #[must_use]
    pub fn contain(&self, plugin: &str) -> bool {
        match self {
            Self::All => true,
            Self::Named(names) => names.contains(plugin),
        }
    }
}

// === impl Assignment ===

impl Assignment {
    /// The assignment once files declare this. Their target changes nothing where a person took the assignment
    /// to another one by hand and the files still name the target from before that.
    #[must_use]
    pub fn redeclared(&self, declared: &Self) -> Self {
        let after = Self { attempt: self.attempt, declared: None, ..declared.clone() };
        if self.declared.as_ref() != Some(&declared.target) || self.plugin != declared.plugin {
            return after;
        }
        Self { target: self.target.clone(), declared: self.declared.clone(), ..after }
    }

    /// The assignment when a person takes it to a target by hand.
    #[must_use]
    pub fn by_hand(&self, target: Target) -> Self {
        let in_files = self.declared.as_ref().unwrap_or(&self.target);
        let declared = (*in_files != target).then(|| in_files.clone());
        Self { target, declared, ..self.clone() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn assignment(revision: &str) -> Assignment {
        Assignment {
            plugin: "p".to_owned(),
            target: target(revision),
            selector: Selector::all(),
            own_labels: OwnLabels::Ignored,
            priority: 0,
            attempt: 0,
            strategy: Strategy::default(),
            declared: None,
        }
    }

    fn target(revision: &str) -> Target {
        Target::Revision(revision.to_owned())
    }

    fn wants(found: &Assignment) -> (Target, Option<Target>) {
        (found.target.clone(), found.declared.clone())
    }

    #[test]
    fn a_file_decides_again_once_it_says_something_else() {
        let file = assignment("1");
        let by_hand = Assignment { attempt: 3, ..file.clone() }.by_hand(target("2"));
        assert_eq!(wants(&by_hand), (target("2"), Some(target("1"))));
        // Other parts of the assignment are the file's all along.
        let redeclared = by_hand.redeclared(&Assignment { priority: 7, ..file.clone() });
        assert_eq!(wants(&redeclared), wants(&by_hand));
        assert_eq!((redeclared.priority, redeclared.attempt), (7, 3));
        for revision in ["2", "3"] {
            let decided = by_hand.redeclared(&assignment(revision));
            assert_eq!(wants(&decided), (target(revision), None));
        }
        let other = Assignment { plugin: "q".to_owned(), ..file.clone() };
        assert_eq!(wants(&by_hand.redeclared(&other)), (target("1"), None));
        // By hand and further by hand, it is still the file that is behind; and back to it again.
        assert_eq!(wants(&by_hand.by_hand(target("4"))), (target("4"), Some(target("1"))));
        assert_eq!(wants(&by_hand.by_hand(target("1"))), (target("1"), None));
    }
}
