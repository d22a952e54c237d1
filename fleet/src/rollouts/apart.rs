//! Where the fleet does not follow its files, though to apply them changes nothing: a person took an assignment
//! elsewhere by hand, or its rollout has stopped. Pure.

use guest_fleet_core::account::Decided;
use guest_fleet_core::rollout::{Former, Rollout, State};
use guest_fleet_core::view::{Assignment, AssignmentRollout, Target, View};
use guest_fleet_ledger::records::rollout::rollout_key;

use crate::configuration::change::Edit;
use crate::configuration::words;
use crate::declarations::set::Declarations;

/// An assignment that the fleet does not follow as its file says.
#[derive(Clone, Debug, PartialEq)]
pub struct Apart {
    /// Name of the assignment.
    pub assignment: String,
    /// The target in the files.
    pub declared: Target,
    /// The target that the ledger has for the assignment.
    pub wanted: Target,
    /// Name and state of the rollout of the assignment; `None` where it has none.
    pub rollout: Option<(String, &'static str)>,
    /// Sentences: the difference, and the ways to end it.
    pub text: String,
}

/// The declared assignments that the fleet does not follow, though these edits, which apply the files, do not
/// change what it follows instead.
#[must_use]
pub fn apart(declared: &Declarations, view: &View, edits: &[Edit]) -> Vec<Apart> {
    let all = declared.assignments.iter();
    let found = all.filter_map(|(name, declared)| {
        let key = rollout_key(name);
        let stays = |_: &&AssignmentRollout| edits.iter().all(|edit| edit.key != key);
        let rollout = view.rollouts.get(name).filter(stays);
        one(name, &declared.value, view.assignments.get(name)?, rollout)
    });
    found.collect()
}

fn one(
    name: &str,
    declared: &Assignment,
    before: &Assignment,
    rollout: Option<&AssignmentRollout>,
) -> Option<Apart> {
    let after = before.redeclared(declared);
    if after.target != before.target {
        return None;
    }
    let rollout = rollout.filter(|found| found.rollout.to == after.target);
    let text = match (&after.declared, rollout) {
        (Some(in_files), rollout) => by_hand(name, in_files, &after.target, rollout),
        (None, Some(rollout)) => stopped(name, rollout)?,
        (None, None) => return None,
    };
    Some(Apart {
        assignment: name.to_owned(),
        declared: declared.target.clone(),
        wanted: after.target,
        rollout: rollout.map(|found| (found.name.clone(), found.rollout.state.name())),
        text,
    })
}

fn by_hand(
    assignment: &str,
    in_files: &Target,
    target: &Target,
    rollout: Option<&AssignmentRollout>,
) -> String {
    let (files, fleet) = (words::target(in_files), words::target(target));
    let by = rollout.and_then(|found| found.account.decisions.first());
    // A later rollout to the same target may have another cause, such as labels.
    let by = by.filter(|by| ["rollout create", "rollout rollback"].contains(&by.what.as_str()));
    let by = by.map_or_else(
        || "a person".to_owned(),
        |Decided { who, what, why, at }| {
            let why = if why.is_empty() { String::new() } else { format!(": {why}") };
            format!("{who} (`{what}`, {}{why})", words::time(*at))
        },
    );
    let mut ways = vec![format!("write {fleet} into the files")];
    if let Some(AssignmentRollout { name, rollout, .. }) = rollout {
        let state = rollout.state.name();
        if is_back(rollout, in_files) {
            let go = if rollout.state == State::RolledBack { "went back" } else { "go back" };
            return format!(
                "the files say {files} for the assignment {assignment}, and the rollout {name} to {fleet}, which {by} \
                 began by hand, is {state}{}: agents {go} to {files}, as the files say",
                because(rollout)
            );
        }
        let verbs = match rollout.state {
            State::Draft | State::Paused(_) | State::Halted(_) => rollout.state.verbs(),
            State::Aborted => &[],
            // Where each agent had its own, the way back is not about all agents.
            State::Done if rollout.from == Former::Each => &[],
            _ => &["rollback"],
        };
        ways.extend(verbs.iter().map(|verb| format!("`guest-fleet rollout {verb} {name}`")));
        if matches!(rollout.state, State::Draft | State::Aborted) || rollout.from == Former::Each {
            ways.push(format!(
                "`guest-fleet rollout create NAME --assignment {assignment} --to {files}`"
            ));
        }
        ways[0] = format!("the rollout {name} is {state}; {}", ways[0]);
    }
    format!(
        "the files say {files} for the assignment {assignment}, and {by} took it to {fleet}. To apply the files \
         changes nothing there until they say something else than {files}: {}",
        ways.join(", or ")
    )
}

/// Whether a rollout gave, or gives, its agents the target in the files again.
fn is_back(rollout: &Rollout, in_files: &Target) -> bool {
    let is_back = matches!(rollout.state, State::RollingBack | State::RolledBack);
    is_back && rollout.from.target() == Some(in_files)
}

/// Why a rollout halted, in brackets; empty where it did not.
fn because(rollout: &Rollout) -> String {
    words::halted(rollout).map_or_else(String::new, |cause| format!(" ({cause})"))
}

/// `None` where the rollout goes on, or has reached its end.
fn stopped(assignment: &str, found: &AssignmentRollout) -> Option<String> {
    let AssignmentRollout { name, rollout, .. } = found;
    let to = words::target(&rollout.to);
    let former = rollout.from.target().map_or_else(
        || "what they had before".to_owned(),
        |former| words::target(former).to_owned(),
    );
    let ways = |verbs: &[&str]| {
        let ways = verbs.iter().map(|verb| format!("`guest-fleet rollout {verb} {name}`"));
        ways.collect::<Vec<_>>().join(", ")
    };
    let again = || {
        format!(
            "declare another revision, or begin again: `guest-fleet rollout create NAME --assignment {assignment} \
             --to {to} --again --reason TEXT`"
        )
    };
    let (fleet, way) = match &rollout.state {
        State::Running(_) | State::Done => return None,
        State::Draft => ("nobody has it yet".to_owned(), ways(rollout.state.verbs())),
        State::Paused(_) | State::Halted(_) => {
            (format!("agents that do not have it keep {former}"), ways(rollout.state.verbs()))
        }
        State::RollingBack => {
            (format!("agents go back to {former}"), "wait for its end".to_owned())
        }
        State::RolledBack => (format!("agents went back to {former}"), again()),
        State::Aborted => (format!("agents that did not have it keep {former}"), again()),
    };
    Some(format!(
        "the files say {to} for the assignment {assignment}, and the rollout {name} to it is {}{}: {fleet}. To \
         apply the files changes nothing there: {way}",
        rollout.state.name(),
        because(rollout)
    ))
}
