//! Assignments that a person takes to another target by hand, without their files. Pure.

use guest_fleet_core::rollout::{Former, State};
use guest_fleet_core::view::{Assignment, AssignmentRollout, ReleaseName, Target, View};
use guest_fleet_ledger::records::configuration::{ASSIGNMENT, AssignmentRecord};
use prost::Message;
use thiserror::Error;

use super::begin::{self, Changing, Manner, Wish};
use crate::configuration::change::{Becomes, Edit};
use crate::configuration::words;
use crate::declarations::export;

/// An assignment that a person takes to another target.
#[derive(Clone, Debug, PartialEq)]
pub struct ByHand {
    /// Its name.
    pub name: String,
    /// The assignment before.
    pub before: Assignment,
    /// The assignment after.
    pub after: Assignment,
    /// The rollout that takes it there.
    pub rollout: AssignmentRollout,
}

/// Why a rollout that is done is not taken back.
#[derive(Clone, Debug, PartialEq, Error)]
pub enum NoWayBack {
    /// Its assignment was deleted.
    #[error("the assignment {0} was deleted")]
    NoAssignment(String),
    /// Its assignment wants something else since.
    #[error("the assignment {assignment} wants {target} since")]
    Elsewhere {
        /// Name of the assignment.
        assignment: String,
        /// The revision that it wants.
        target: String,
    },
    /// The former release was deleted.
    #[error("there is no release {0} {1} any more")]
    NoRelease(String, String),
    /// The new rollout is refused.
    #[error(transparent)]
    Begin(#[from] begin::Refused),
}

/// The former target of a rollout that is done and had one for all agents: the way back is a new rollout.
#[must_use]
pub fn former(found: &AssignmentRollout) -> Option<&Target> {
    match (&found.rollout.state, &found.rollout.from) {
        (State::Done, Former::All(former)) => Some(former),
        _ => None,
    }
}

/// The new rollout the other way of one that is done, to its former target. `known` is about declarations that stay
/// as they are otherwise.
///
/// # Errors
/// See [`NoWayBack`].
pub fn way_back(
    known: &Changing<'_>,
    assignment: &str,
    found: &AssignmentRollout,
    former: &Target,
) -> Result<ByHand, NoWayBack> {
    let view = known.before;
    let before = view.assignments.get(assignment);
    let before = before.ok_or_else(|| NoWayBack::NoAssignment(assignment.to_owned()))?;
    if before.target != found.rollout.to {
        let (assignment, target) =
            (assignment.to_owned(), words::target(&before.target).to_owned());
        return Err(NoWayBack::Elsewhere { assignment, target });
    }
    if let Target::Revision(revision) = former {
        let (plugin, revision) = (before.plugin.clone(), revision.clone());
        let name = ReleaseName { plugin, revision };
        if !view.releases.contains_key(&name) {
            return Err(NoWayBack::NoRelease(name.plugin, name.revision));
        }
    }
    let after = before.by_hand(former.clone());
    let mut changed = view.clone();
    changed.assignments.insert(assignment.to_owned(), after.clone());
    // Its agents had it a moment ago: a halt elsewhere says nothing against it.
    let manner = Manner { again: true, ..known.manner };
    let changing = Changing { after: &changed, manner, ..*known };
    let name = assignment.to_owned();
    match changing.rollout(assignment, Wish::default())? {
        Some(rollout) => Ok(ByHand { name, before: before.clone(), after, rollout }),
        None => Err(NoWayBack::NoAssignment(name)),
    }
}

// === impl ByHand ===

impl ByHand {
    /// The edits that write it.
    #[must_use]
    pub fn edits(&self, view: &View) -> Vec<Edit> {
        let rollout = begin::edit(&self.name, view, &self.rollout);
        let assignment = (self.before != self.after).then(|| Edit {
            key: format!("{ASSIGNMENT}{}", self.name),
            before: Some(words::assignment(&self.before)),
            after: Some(words::assignment(&self.after)),
            record: Becomes::Bytes(AssignmentRecord::of(&self.after).encode_to_vec().into()),
        });
        [rollout].into_iter().chain(assignment).collect()
    }

    /// The lines that declare it.
    #[must_use]
    pub fn file(&self) -> String {
        export::assignment(&self.name, &self.after)
    }
}
