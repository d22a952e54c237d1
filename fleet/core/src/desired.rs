//! What an agent should run, and why, or why not yet: the one function that gateways, `explain` and
//! previews call.

use std::collections::{BTreeMap, BTreeSet};

use crate::labels::Labels;
use crate::place::place;
use crate::rollout::{Has, Wish};
use crate::time::{Seconds, Zones};
use crate::view::{ANY_ARCHITECTURE, Assignment, ReleaseName, Target, View};
use crate::window::Opening;

#[cfg(test)]
mod tests;

/// What a decision needs to know of an agent.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Agent {
    /// Id of the agent.
    pub id: String,
    /// Its labels.
    pub labels: Labels,
    /// Its architecture in Go style; empty while it has not said.
    pub architecture: String,
    /// Why it gets no orders: two machines use its identity.
    pub quarantine: Option<String>,
    /// Plugins that the machine's owner holds, by name.
    pub held_by_owner: BTreeMap<String, OwnersHold>,
    /// What it was ordered last, see [`ordered`]; what came with the machine is not among that. Rollouts look
    /// there.
    pub ordered: BTreeMap<String, Target>,
}

/// A hold that a person set on the machine, or maintenance windows of the machine that are closed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OwnersHold {
    /// Who set it.
    pub by: String,
    /// Why.
    pub reason: String,
    /// When it ends by itself.
    pub until: Option<Seconds>,
    /// Whether it is windows; nobody set it then, and a window opens at its end.
    pub is_window: bool,
}

/// What is decided for one plugin.
#[derive(Clone, Debug, PartialEq)]
pub struct Decision {
    /// What the agent should have of it.
    pub target: Target,
    /// Name of the assignment that decides.
    pub assignment: String,
    /// The assignment's attempt.
    pub attempt: u32,
    /// Whether a change may happen now.
    pub permission: Permission,
    /// The rollout that has a say; `None` where there is no rollout.
    pub turn: Option<Turn>,
}

/// What a rollout says about an agent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Turn {
    /// Name of the rollout.
    pub rollout: String,
    /// What it leads to.
    pub to: Target,
    /// The state of the rollout, as it is called.
    pub state: &'static str,
    /// Whether the agent waits for its turn: it will be given what the rollout leads to, and was not
    /// yet.
    pub waits: bool,
}

/// Whether a change may happen now; the first that applies.
#[derive(Clone, Debug, PartialEq)]
pub enum Permission {
    /// It may.
    Go,
    /// Two assignments of the same priority want different things.
    Conflict {
        /// Name of the other assignment.
        with: String,
    },
    /// Two machines use the agent's identity.
    Quarantined(String),
    /// The release was never declared.
    NoRelease,
    /// The release has no archive for the agent's architecture.
    NoArchive {
        /// The agent's architecture; empty while it has not said.
        architecture: String,
    },
    /// A hold of the fleet.
    Held {
        /// Name of the hold.
        hold: String,
        /// Who set it.
        by: String,
        /// Why.
        reason: String,
        /// When it ends by itself.
        until: Option<Seconds>,
    },
    /// A hold that a person set on the machine.
    HeldByOwner(OwnersHold),
    /// Its windows are closed.
    OutsideWindow {
        /// Name of the window that opens first.
        window: String,
        /// When; `None` when it never does, or its time zone is unknown.
        next: Option<Seconds>,
    },
    /// It was not its turn in a rollout yet, and it keeps what it has.
    WaitsForWave {
        /// Name of the rollout.
        rollout: String,
    },
    /// A rollout gave it the new target and has stopped: it keeps what came of that.
    Stopped {
        /// Name of the rollout.
        rollout: String,
        /// The state of the rollout, as it is called.
        state: &'static str,
    },
}

/// The target of the newest order, by plugin; of plugins without an order, the revision that was reported.
#[must_use]
pub fn ordered(
    reported: impl IntoIterator<Item = (String, String)>,
    orders: impl IntoIterator<Item = (String, Target)>,
) -> BTreeMap<String, Target> {
    let reported = reported.into_iter();
    let mut ordered: BTreeMap<String, Target> =
        reported.map(|(plugin, revision)| (plugin, Target::Revision(revision))).collect();
    ordered.extend(orders);
    ordered
}

/// Decides for every plugin that an assignment gives the agent. A plugin that none mentions is not
/// in the answer: absence orders nothing.
#[must_use]
pub fn desired(
    view: &View,
    agent: &Agent,
    now: Seconds,
    zones: &dyn Zones,
) -> BTreeMap<String, Decision> {
    let plugins: BTreeSet<&str> =
        view.assignments.values().map(|assignment| assignment.plugin.as_str()).collect();
    plugins
        .into_iter()
        .filter_map(|plugin| Some((plugin.to_owned(), decide(view, agent, plugin, now, zones)?)))
        .collect()
}

/// Decides for one plugin; `None` when no assignment gives it to the agent.
#[must_use]
pub fn decide(
    view: &View,
    agent: &Agent,
    plugin: &str,
    now: Seconds,
    zones: &dyn Zones,
) -> Option<Decision> {
    let selecting = view.assignments.iter().filter(|(_, assignment)| {
        assignment.plugin == plugin
            && assignment.selector.selects(&agent.id, &agent.labels, assignment.own_labels)
    });
    let mut deciding: Vec<(&String, &Assignment)> = selecting.collect();
    let highest = deciding.iter().map(|(_, assignment)| assignment.priority).max()?;
    deciding.retain(|(_, assignment)| assignment.priority == highest);
    let (name, assignment) = *deciding.first()?;
    // Several that want the same agree; the highest attempt is the newest wish of an operator.
    let other = deciding.iter().find(|(_, other)| other.target != assignment.target);
    let attempt = deciding.iter().map(|(_, assignment)| assignment.attempt).max().unwrap_or(0);
    let decided = |target: &Target, permission, turn| Decision {
        target: target.clone(),
        assignment: name.clone(),
        attempt,
        permission,
        turn,
    };
    if let Some((with, _)) = other {
        let permission = Permission::Conflict { with: (*with).clone() };
        return Some(decided(&assignment.target, permission, None));
    }
    let usual = |target: &Target| permission(view, agent, plugin, target, now, zones);
    // A rollout to something else is about what the assignment wanted before.
    let rollout = deciding.iter().find_map(|(name, _)| view.rollouts.get(*name));
    let Some(found) = rollout.filter(|found| found.rollout.to == assignment.target) else {
        return Some(decided(&assignment.target, usual(&assignment.target), None));
    };
    let rollout = &found.rollout;
    let has = rollout.has(agent.ordered.get(plugin));
    let wish = rollout.wish(place(&found.name, &agent.id), &agent.labels, has);
    let is_new = wish == Wish::Have(&rollout.to) || has == Has::New;
    let turn = Turn {
        rollout: found.name.clone(),
        to: rollout.to.clone(),
        state: rollout.state.name(),
        waits: !is_new && rollout.state.is_forward(),
    };
    let (target, permission) = match wish {
        Wish::Have(target) => (target, usual(target)),
        Wish::Stay(target) if has == Has::New => {
            let (rollout, state) = (turn.rollout.clone(), turn.state);
            (target, Permission::Stopped { rollout, state })
        }
        Wish::Stay(target) => (target, Permission::WaitsForWave { rollout: turn.rollout.clone() }),
    };
    Some(decided(target, permission, Some(turn)))
}

/// Whether a change to a target may happen now, whatever rollouts say.
#[must_use]
pub fn permission(
    view: &View,
    agent: &Agent,
    plugin: &str,
    target: &Target,
    now: Seconds,
    zones: &dyn Zones,
) -> Permission {
    if let Some(quarantine) = &agent.quarantine {
        return Permission::Quarantined(quarantine.clone());
    }
    if let Target::Revision(revision) = target {
        let name = ReleaseName { plugin: plugin.to_owned(), revision: revision.clone() };
        let Some(release) = view.releases.get(&name) else { return Permission::NoRelease };
        let archives = &release.archives;
        if !archives.contains_key(&agent.architecture) && !archives.contains_key(ANY_ARCHITECTURE) {
            return Permission::NoArchive { architecture: agent.architecture.clone() };
        }
    }
    held(view, agent, plugin, now)
        .or_else(|| outside_window(view, agent, plugin, now, zones))
        .unwrap_or(Permission::Go)
}

fn held(view: &View, agent: &Agent, plugin: &str, now: Seconds) -> Option<Permission> {
    let is_over = |until: Option<Seconds>| until.is_some_and(|until| until <= now);
    let fleet = view.holds.iter().find(|(_, hold)| {
        !is_over(hold.until)
            && hold.plugins.contain(plugin)
            && hold.selector.selects(&agent.id, &agent.labels, hold.own_labels)
    });
    if let Some((name, hold)) = fleet {
        return Some(Permission::Held {
            hold: name.clone(),
            by: hold.by.clone(),
            reason: hold.reason.clone(),
            until: hold.until,
        });
    }
    // The machine's own clock ends its hold; it is over when the agent says so.
    agent.held_by_owner.get(plugin).map(|hold| Permission::HeldByOwner(hold.clone()))
}

fn outside_window(
    view: &View,
    agent: &Agent,
    plugin: &str,
    now: Seconds,
    zones: &dyn Zones,
) -> Option<Permission> {
    let mut first: Option<(&String, Option<Seconds>)> = None;
    for (name, window) in &view.windows {
        let is_about = window.plugins.contain(plugin)
            && window.selector.selects(&agent.id, &agent.labels, window.own_labels);
        if !is_about {
            continue;
        }
        let next = match window.weekly.opening(now, zones) {
            Opening::Open { .. } => return None,
            Opening::Closed { next } => next,
            Opening::UnknownZone => None,
        };
        let is_earlier = first.is_none_or(|(_, earliest)| match (next, earliest) {
            (Some(next), Some(earliest)) => next < earliest,
            (Some(_), None) => true,
            (None, _) => false,
        });
        if is_earlier {
            first = Some((name, next));
        }
    }
    first.map(|(window, next)| Permission::OutsideWindow { window: window.clone(), next })
}

// === impl Permission ===

impl Permission {
    /// Whether a change may happen now.
    #[must_use]
    pub fn is_go(&self) -> bool {
        *self == Self::Go
    }
}
