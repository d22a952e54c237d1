//! What an agent should run, and why, or why not yet: the one function that gateways, `explain` and
//! previews call.

use std::collections::{BTreeMap, BTreeSet};

use crate::labels::Labels;
use crate::place::place;
use crate::repair::Repair;
use crate::rollout::{Former, Has, State, Wish};
use crate::time::{Seconds, Zones};
use crate::view::{
    ANY_ARCHITECTURE, Assignment, AssignmentRollout, Ordered, ReleaseName, Target, View,
};
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
    /// Its newest orders, see [`ordered`]; plugins that came with the machine are not among them. Rollouts look
    /// there.
    pub ordered: BTreeMap<String, Ordered>,
}

/// A hold that a person set on the machine.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OwnersHold {
    /// Who set it.
    pub by: String,
    /// Why.
    pub reason: String,
    /// When it ends by itself.
    pub until: Option<Seconds>,
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
    /// Whether the rollout is about the agent. An agent that had the new target before has nothing to wait
    /// for, and neither has one that is new to a target which does not change.
    pub is_member: bool,
    /// Whether the rollout gives what was decided, forth or back.
    pub gives: bool,
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
    /// It came to the assignment by its labels, or because another assignment does not decide for it any more:
    /// a rollout begins for such agents.
    Joins {
        /// Name of the assignment.
        assignment: String,
    },
    /// Agents know orders of the assignment that the ledger does not: it went back, and what it wants is old.
    /// No order of the assignment is given until a person resumes.
    Paused {
        /// Name of the assignment.
        assignment: String,
    },
    /// A rollout gave it the new target and has stopped: it keeps what came of that.
    Stopped {
        /// Name of the rollout.
        rollout: String,
        /// The state of the rollout, as it is called.
        state: &'static str,
    },
}

/// The newest order, by plugin; of plugins without an order, the revision that was reported.
#[must_use]
pub fn ordered(
    reported: impl IntoIterator<Item = (String, String)>,
    orders: impl IntoIterator<Item = (String, Ordered)>,
) -> BTreeMap<String, Ordered> {
    let found = |(plugin, revision)| (plugin, Ordered::found(Target::Revision(revision)));
    let mut ordered: BTreeMap<String, Ordered> = reported.into_iter().map(found).collect();
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
    let mut decision = Deciding { view, agent, plugin, now, zones }.decide(i32::MAX)?;
    // A hold or a window is from before the ledger went back as well.
    let is_let = matches!(
        decision.permission,
        Permission::Go
            | Permission::Held { .. }
            | Permission::HeldByOwner(_)
            | Permission::OutsideWindow { .. }
    );
    if is_let && let Some(assignment) = paused(view, agent, plugin, &decision.assignment) {
        decision.permission = Permission::Paused { assignment };
    }
    Some(decision)
}

/// The assignment whose orders are paused, of the one that decided and those above it: the agent may follow it
/// because a rollout of those says so.
fn paused(view: &View, agent: &Agent, plugin: &str, decided: &str) -> Option<String> {
    if !view.repairs.values().any(Repair::is_paused) {
        return None;
    }
    let above = assigned(view, agent, plugin).into_iter().map(|(name, _)| name.as_str());
    let mut names = above.chain([decided]);
    names.find(|name| view.repairs.get(*name).is_some_and(Repair::is_paused)).map(str::to_owned)
}

/// The assignments that decide for an agent and a plugin, whatever rollouts say: several where those of the
/// highest priority are more than one.
#[must_use]
pub fn assigned<'a>(
    view: &'a View,
    agent: &Agent,
    plugin: &str,
) -> Vec<(&'a String, &'a Assignment)> {
    assigned_up_to(view, agent, plugin, i32::MAX)
}

fn assigned_up_to<'a>(
    view: &'a View,
    agent: &Agent,
    plugin: &str,
    most: i32,
) -> Vec<(&'a String, &'a Assignment)> {
    let selecting = view.assignments.iter().filter(|(_, assignment)| {
        assignment.plugin == plugin
            && assignment.priority <= most
            && assignment.selector.selects(&agent.id, &agent.labels, assignment.own_labels)
    });
    let mut deciding: Vec<(&String, &Assignment)> = selecting.collect();
    let highest = deciding.iter().map(|(_, assignment)| assignment.priority).max();
    deciding.retain(|(_, assignment)| Some(assignment.priority) == highest);
    deciding
}

/// A decision that is being made.
#[derive(Clone, Copy)]
struct Deciding<'a> {
    view: &'a View,
    agent: &'a Agent,
    plugin: &'a str,
    now: Seconds,
    zones: &'a dyn Zones,
}

impl Deciding<'_> {
    /// Decides by the assignments whose priority is at most this one.
    fn decide(&self, most: i32) -> Option<Decision> {
        let deciding = assigned_up_to(self.view, self.agent, self.plugin, most);
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
        // A rollout to something else is about what the assignment wanted before.
        let leads_here = |found: &&AssignmentRollout| found.rollout.to == assignment.target;
        let rollouts = deciding.iter().filter_map(|(name, _)| self.view.rollouts.get(*name));
        let found =
            rollouts.filter(leads_here).min_by_key(|found| found.rollout.state == State::Done);
        if found.is_none_or(|found| found.rollout.state == State::Done)
            && self.joins(&deciding, &assignment.target)
        {
            let has = self.agent.ordered.get(self.plugin).map(|ordered| &ordered.target);
            let permission = Permission::Joins { assignment: name.clone() };
            return Some(decided(has.unwrap_or(&Target::Absent), permission, None));
        }
        let Some(found) = found else {
            let target = &assignment.target;
            return Some(decided(target, self.permission(target), None));
        };
        let rollout = &found.rollout;
        let has = rollout.has(&found.name, self.agent.ordered.get(self.plugin));
        let (id, labels) = (&self.agent.id, &self.agent.labels);
        let place = place(&found.name, id);
        let is_new = self.is_new() && found.before.selects(id, labels);
        let wish = rollout.wish(place, labels, has, is_new);
        let is_given = matches!(has, Has::Given(_));
        let has_it = is_given || has == Has::New;
        let is_member = rollout.is_about(has, is_new);
        let turn = Turn {
            rollout: found.name.clone(),
            to: rollout.to.clone(),
            state: rollout.state.name(),
            waits: !has_it && wish != Wish::Have(&rollout.to) && rollout.state.is_forward(),
            is_member,
            gives: is_member
                && matches!(wish, Wish::Have(_))
                && (is_given || rollout.grants(place, labels)),
        };
        let (target, permission) = match wish {
            Wish::Have(target) => {
                let is_back = rollout.state == State::RollingBack && turn.gives;
                let decision = decided(target, self.permission(target), Some(turn));
                let below = is_back.then(|| self.wants_below(assignment.priority, target));
                return Some(match below.flatten() {
                    Some((assignment, attempt)) => Decision { assignment, attempt, ..decision },
                    None => decision,
                });
            }
            Wish::Stay(target) if has_it => {
                let (rollout, state) = (turn.rollout.clone(), turn.state);
                (target, Permission::Stopped { rollout, state })
            }
            Wish::Stay(target) => {
                let most = assignment.priority.checked_sub(1);
                let below = most.filter(|_| rollout.from == Former::Each);
                if let Some(below) = below.and_then(|most| self.decide(most))
                    && self.follows(&below)
                {
                    return Some(Decision { turn: Some(turn), ..below });
                }
                (target, Permission::WaitsForWave { rollout: turn.rollout.clone() })
            }
        };
        Some(decided(target, permission, Some(turn)))
    }

    /// The assignment below and its attempt, where those below all want this target: an agent that goes back
    /// to it follows them again.
    fn wants_below(&self, priority: i32, target: &Target) -> Option<(String, u32)> {
        let most = priority.checked_sub(1)?;
        let below = assigned_up_to(self.view, self.agent, self.plugin, most);
        let is_wanted = below.iter().all(|(_, below)| below.target == *target);
        let attempt = below.iter().map(|(_, below)| below.attempt).max()?;
        let (name, _) = below.first().filter(|_| is_wanted)?;
        Some(((*name).clone(), attempt))
    }

    /// Whether the agent follows the assignments below until its turn comes: a new machine gets what they
    /// want, and one that has that already keeps it. Their changes reach the others when they decide again.
    fn follows(&self, below: &Decision) -> bool {
        let has = self.agent.ordered.get(self.plugin);
        let is_theirs =
            has.is_none_or(|has| has.target == below.target && has.assignment == below.assignment);
        let is_settled = below.turn.as_ref().is_none_or(|turn| turn.state == State::Done.name());
        let waits = matches!(
            below.permission,
            Permission::Joins { .. } | Permission::Conflict { .. } | Permission::Stopped { .. }
        );
        is_theirs && is_settled && !waits
    }

    /// Whether the agent comes to assignments that have settled from elsewhere, so that a change there would
    /// be one that nobody rolled out.
    fn joins(&self, deciding: &[(&String, &Assignment)], target: &Target) -> bool {
        match self.agent.ordered.get(self.plugin) {
            Some(ordered) if ordered.target == *target => false,
            Some(ordered) if ordered.is_ordered() => {
                deciding.iter().all(|(name, _)| **name != ordered.assignment)
            }
            None if *target == Target::Absent => false,
            Some(_) | None => !self.is_new(),
        }
    }

    /// Whether the agent is new: no operator gave it labels, or it was never ordered anything. An
    /// assignment to a new machine is no change.
    fn is_new(&self) -> bool {
        let agent = self.agent;
        agent.labels.operator.is_empty() || !agent.ordered.values().any(Ordered::is_ordered)
    }

    fn permission(&self, target: &Target) -> Permission {
        permission(self.view, self.agent, self.plugin, target, self.now, self.zones)
    }
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
