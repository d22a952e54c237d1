//! Which rollouts a change of the declarations begins. Pure.
//!
//! ```text
//!   assignments before, and after ─┐
//!   rows of all agents ────────────┼─► who gets something else ─► nobody: no rollout
//!   the strategy, the defaults ────┘             │
//!   rollouts before ─────────────────────────────┴─► a rollout that takes their place, or a refusal
//! ```

use std::collections::{BTreeMap, BTreeSet};

use guest_fleet_core::account::Account;
use guest_fleet_core::desired::{Agent, Permission, assigned, decide, permission};
use guest_fleet_core::fold::Row;
use guest_fleet_core::place::place;
use guest_fleet_core::rollout::{
    Closed, Former, HaltedRelease, Has, Plan, Rollout, Stage, State, halts, remembered,
};
use guest_fleet_core::selector::OwnLabels;
use guest_fleet_core::time::{Seconds, Zones};
use guest_fleet_core::view::{Assignment, AssignmentRollout, Before, ReleaseName, Target, View};
use guest_fleet_ledger::records::configuration::release_key;
use guest_fleet_ledger::records::rollout::{RolloutRecord, rollout_key};
use prost::Message;
use thiserror::Error;

use crate::configuration::change::{Becomes, Decision, Edit};
use crate::configuration::words;

/// Longest name of a rollout, in bytes.
const NAME_BYTES: usize = 63;

/// How a change goes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Manner {
    /// To all agents together, and not by the strategy.
    pub at_once: bool,
    /// Also with a release that halted a rollout before.
    pub again: bool,
}

/// Why a change is refused.
#[derive(Clone, Debug, PartialEq, Error)]
pub enum Refused {
    /// A person stopped the rollout that it would replace, or that is on its way back.
    #[error("the rollout {name} of it is {state}")]
    UnderWay {
        /// Its name.
        name: String,
        /// Its state.
        state: &'static str,
        /// The verbs that end it.
        ways_out: Vec<&'static str>,
    },
    /// A policy forbids changes at once for some of the agents.
    #[error(
        "the policy {policy} forbids a change at once for {agents} of its agents, such as {first}"
    )]
    Policy {
        /// Its name.
        policy: String,
        /// How many agents.
        agents: usize,
        /// The first of them.
        first: String,
    },
    /// The release halted a rollout, and none was done since.
    #[error("{plugin} {} halted a rollout at {}: {}", words::target(&halted.target), words::time(halted.at), words::cause(&halted.cause))]
    Halted {
        /// The plugin.
        plugin: String,
        /// When and why.
        halted: HaltedRelease,
    },
}

/// A change of declarations, and what is known of agents.
#[derive(Clone, Copy)]
pub struct Changing<'a> {
    /// The declarations before.
    pub before: &'a View,
    /// The declarations after.
    pub after: &'a View,
    /// The rows of all agents.
    pub rows: &'a BTreeMap<String, Row>,
    /// The time.
    pub now: Seconds,
    /// The time zones.
    pub zones: &'a dyn Zones,
    /// How the change goes.
    pub manner: Manner,
    /// Who changes it, and why.
    pub decision: &'a Decision,
}

/// A person's wishes for a rollout beside the strategy.
#[derive(Clone, Debug, Default)]
pub struct Wish {
    /// Its name.
    pub name: Option<String>,
    /// How it goes; without it, as the strategy says.
    pub plan: Option<Plan>,
    /// Whether it is not begun yet.
    pub is_draft: bool,
}

/// A rollout that a change makes, after the name of its assignment.
pub type Made<'a> = (&'a String, AssignmentRollout);

/// The edit that writes a rollout.
#[must_use]
pub fn edit(assignment: &str, before: &View, rollout: &AssignmentRollout) -> Edit {
    Edit {
        key: rollout_key(assignment),
        before: before.rollouts.get(assignment).map(words::rollout),
        after: Some(words::rollout(rollout)),
        record: Becomes::Bytes(RolloutRecord::of(rollout).encode_to_vec().into()),
    }
}

/// The agents that an assignment decides for, whatever rollouts say, without those that are archived.
#[must_use]
pub fn selected<'a>(
    view: &View,
    assignment: &str,
    rows: &'a BTreeMap<String, Row>,
    now: Seconds,
) -> Vec<(&'a String, &'a Row)> {
    let Some(found) = view.assignments.get(assignment) else { return Vec::new() };
    let is_selected = |(id, row): &(&String, &Row)| {
        let counts = row.is_counted(now);
        counts && decides(view, assignment, &found.plugin, &row.decided_on(id))
    };
    rows.iter().filter(is_selected).collect()
}

fn decides(view: &View, assignment: &str, plugin: &str, agent: &Agent) -> bool {
    assigned(view, agent, plugin).iter().any(|(name, _)| *name == assignment)
}

/// The assignments of a view that want something else than they did, or of other agents.
#[must_use]
pub fn changed<'a>(before: &View, after: &'a View) -> Vec<&'a String> {
    let is_same = |name: &String, now: &Assignment| {
        before.assignments.get(name).is_some_and(|was| {
            (&was.target, &was.selector, was.own_labels, was.priority)
                == (&now.target, &now.selector, now.own_labels, now.priority)
        })
    };
    let all = after.assignments.iter();
    all.filter(|(name, now)| !is_same(name, now)).map(|(name, _)| name).collect()
}

// === impl Changing ===

impl Changing<'_> {
    /// The rollout that brings agents to an assignment which came to it by their labels, or because another
    /// assignment does not decide for them any more. `None` where there is no such agent that can be reached.
    #[must_use]
    pub fn joining(&self, assignment: &str) -> Option<AssignmentRollout> {
        let Self { after: view, rows, now, zones, .. } = *self;
        let found = view.assignments.get(assignment)?;
        let joins = |(id, row): &(&String, &Row)| {
            let agent = row.decided_on(id);
            let decision = decide(view, &agent, &found.plugin, now, zones);
            let permission = decision.map(|decision| decision.permission);
            matches!(permission, Some(Permission::Joins { assignment: of }) if of == assignment)
        };
        let all: Vec<_> = rows.iter().filter(joins).collect();
        let is_reachable = |(id, row): &(&String, &Row)| {
            let agent = row.decided_on(id);
            row.is_near(now)
                && permission(view, &agent, &found.plugin, &found.target, now, zones).is_go()
        };
        if !all.iter().any(is_reachable) {
            return None;
        }
        let count = u32::try_from(all.len()).unwrap_or(u32::MAX);
        Some(self.make(assignment, found, (Former::Each, Before::Same), count, Wish::default()))
    }

    /// The rollouts that the change makes, by assignment; refusals by assignment.
    ///
    /// # Errors
    /// See [`Refused`].
    pub fn made(&self) -> Result<Vec<Made<'_>>, Vec<(String, Refused)>> {
        let (mut made, mut refused) = (Vec::new(), Vec::new());
        for (name, found) in self.all() {
            match found {
                Ok(found) => made.extend(found.map(|found| (name, found))),
                Err(error) => refused.push((name.clone(), error)),
            }
        }
        if refused.is_empty() { Ok(made) } else { Err(refused) }
    }

    /// Keys of the releases that agents have to which rollouts are about to give another one: a way back needs
    /// them.
    #[must_use]
    pub fn needs(&self, made: &[Made<'_>]) -> BTreeSet<String> {
        let of_rollout = |(_, found): &Made<'_>| {
            let plugin = found.plugin.clone();
            let former = found.rollout.from.target().cloned();
            let had = self.rows.values().filter_map(|row| row.orders.get(&found.plugin));
            let had = had.map(|order| order.target().clone());
            let targets: Vec<Target> = former.into_iter().chain(had).collect();
            targets.into_iter().filter_map(move |target| {
                let (plugin, revision) = (plugin.clone(), target.revision()?.to_owned());
                Some(release_key(&ReleaseName { plugin, revision }))
            })
        };
        made.iter().flat_map(of_rollout).collect()
    }

    /// The rollouts of all assignments that change, or that decide for more agents because others do.
    fn all(&self) -> Vec<(&String, Result<Option<AssignmentRollout>, Refused>)> {
        let changed: BTreeSet<&String> = changed(self.before, self.after).into_iter().collect();
        let gone = self.before.assignments.iter();
        let gone = gone.filter(|(name, _)| !self.after.assignments.contains_key(*name));
        let of = |name: &&String| self.after.assignments.get(*name).map(|it| it.plugin.as_str());
        let mut plugins: BTreeSet<&str> = changed.iter().filter_map(of).collect();
        plugins.extend(gone.map(|(_, gone)| gone.plugin.as_str()));
        let others = self.after.assignments.iter().filter(|(name, other)| {
            plugins.contains(other.plugin.as_str()) && !changed.contains(name)
        });
        let others = others.map(|(name, other)| (name, self.gains(name, other)));
        changed
            .iter()
            .map(|name| (*name, self.rollout(name, Wish::default())))
            .chain(others)
            .collect()
    }

    /// The rollout of an assignment that stays as it is, and decides for agents for which it did not. Its own
    /// rollout, where that goes on or has stopped, says what becomes of them.
    fn gains(
        &self,
        assignment: &str,
        after: &Assignment,
    ) -> Result<Option<AssignmentRollout>, Refused> {
        let former = self.before.rollouts.get(assignment);
        if former.is_some_and(|former| former.rollout.state != State::Done) {
            return Ok(None);
        }
        let mut waiting = self.waiting(assignment, after);
        waiting.retain(|(id, row)| {
            let agent = row.decided_on(id);
            let comes = !decides(self.before, assignment, &after.plugin, &agent);
            let gets = |view: &View| self.gets(view, &agent, &after.plugin);
            // A conflict with another assignment, or its rollout, kept the agent back.
            comes || gets(self.after).is_some_and(|target| gets(self.before) != Some(target))
        });
        if waiting.is_empty() {
            return Ok(None);
        }
        if self.manner.at_once {
            self.obey(&waiting)?;
        }
        let count = u32::try_from(waiting.len()).unwrap_or(u32::MAX);
        let had = (Former::Each, Before::Same);
        Ok(Some(self.make(assignment, after, had, count, Wish::default())))
    }

    /// The target that an agent gets without a turn in a rollout, if only after a hold or in its window.
    fn gets(&self, view: &View, agent: &Agent, plugin: &str) -> Option<Target> {
        let decision = decide(view, agent, plugin, self.now, self.zones)?;
        let has = agent.ordered.get(plugin).map(|ordered| &ordered.target);
        let is_kept = matches!(
            decision.permission,
            Permission::Conflict { .. }
                | Permission::Joins { .. }
                | Permission::WaitsForWave { .. }
                | Permission::Stopped { .. }
        );
        (!is_kept && has != Some(&decision.target)).then_some(decision.target)
    }

    /// The rollout of an assignment that changes; `None` where no agent gets something else, and nothing of
    /// former rollouts has to be kept.
    ///
    /// # Errors
    /// See [`Refused`].
    pub fn rollout(
        &self,
        assignment: &str,
        wish: Wish,
    ) -> Result<Option<AssignmentRollout>, Refused> {
        let Some(after) = self.after.assignments.get(assignment) else { return Ok(None) };
        let before = self.before.assignments.get(assignment);
        let former = self.before.rollouts.get(assignment);
        let is_same_target = before.is_some_and(|before| before.target == after.target);
        // The one that decides, and not one to what the assignment wanted once.
        let deciding = former.filter(|former| {
            before.is_some_and(|before| former.rollout.to == before.target)
                && former.rollout.state != State::Done
        });
        if let Some(found) = deciding {
            let is_asked = wish.name.is_some();
            match &found.rollout.state {
                // Its agents are those that the assignment selects now; it goes on as it is.
                state if is_same_target && !is_asked && !matches!(state, State::Running(_)) => {
                    return Ok(None);
                }
                State::Paused(_) | State::RollingBack if !is_asked => return Err(under_way(found)),
                _ => {}
            }
        }
        let had = self.had(before, after, deciding);
        let waiting = self.waiting(assignment, after);
        let count = u32::try_from(waiting.len()).unwrap_or(u32::MAX);
        if let Some(halted) = self.halted(after).filter(|_| !self.manner.again) {
            return Err(Refused::Halted { plugin: after.plugin.clone(), halted: halted.clone() });
        }
        if self.manner.at_once {
            self.obey(&waiting)?;
        }
        if count == 0 && former.is_none() && wish.name.is_none() {
            return Ok(None);
        }
        let is_settled = count == 0 && wish.name.is_none();
        if is_settled && is_same_target {
            return Ok(None);
        }
        let mut made = self.make(assignment, after, had, count, wish);
        if is_settled {
            // Nobody has to change: what former rollouts of the assignment came to stays known.
            made.rollout.state = State::Done;
        }
        Ok(Some(made))
    }

    /// The former targets, and the agents that the assignment was about.
    fn had(
        &self,
        before: Option<&Assignment>,
        after: &Assignment,
        deciding: Option<&AssignmentRollout>,
    ) -> (Former, Before) {
        let Some(before) = before else { return (Former::Each, Before::New) };
        let (former, of) = match deciding {
            // A rollout that stopped before its end left its agents with what it began from.
            Some(found) => (found.rollout.from.clone(), found.before.clone()),
            None => {
                let selected = Before::Selected(before.selector.clone(), before.own_labels);
                (Former::All(before.target.clone()), selected)
            }
        };
        match former {
            Former::All(target) if target == after.target => (Former::Each, of),
            former => (former, of),
        }
    }

    /// The agents that wait for what the assignment wants.
    fn waiting(&self, assignment: &str, after: &Assignment) -> Vec<(&String, &Row)> {
        let waits = |(id, row): &(&String, &Row)| {
            let agent = row.decided_on(id);
            let has = agent.ordered.get(&after.plugin).map(|ordered| &ordered.target);
            has != Some(&after.target) && (has.is_some() || after.target != Target::Absent)
        };
        let selected = selected(self.after, assignment, self.rows, self.now).into_iter();
        selected.filter(waits).collect()
    }

    /// Refuses a change at once where a policy forbids it.
    fn obey(&self, waiting: &[(&String, &Row)]) -> Result<(), Refused> {
        let policies = self.before.policies.iter();
        for (name, policy) in policies.filter(|(_, policy)| policy.by_rollout) {
            let is_meant = |(id, row): &&(&String, &Row)| {
                let labels = row.agent.as_ref().map(|agent| &agent.labels);
                labels.is_some_and(|it| policy.selector.selects(id, it, OwnLabels::Ignored))
            };
            let meant: Vec<_> = waiting.iter().filter(is_meant).collect();
            if let Some((first, _)) = meant.first() {
                let (policy, first) = (name.clone(), (*first).clone());
                return Err(Refused::Policy { policy, agents: meant.len(), first });
            }
        }
        Ok(())
    }

    /// How the release halted before, in any rollout of the plugin.
    fn halted(&self, after: &Assignment) -> Option<&HaltedRelease> {
        let of_plugin = self.before.rollouts.values().filter(|it| it.plugin == after.plugin);
        halts(of_plugin.map(|found| &found.rollout), &after.target)
    }

    fn make(
        &self,
        assignment: &str,
        after: &Assignment,
        (from, before): (Former, Before),
        count: u32,
        wish: Wish,
    ) -> AssignmentRollout {
        let former = self.before.rollouts.get(assignment);
        let plan = wish.plan.unwrap_or_else(|| {
            if self.manner.at_once {
                Plan::at_once()
            } else {
                after.strategy.plan(&self.after.defaults, count)
            }
        });
        let mut rollout = Rollout::new(from, after.target.clone(), plan);
        if let Some(former) = former {
            rollout.closed = self.closed(assignment, former);
            rollout.closings = former.rollout.closings.saturating_add(1);
        }
        let of_plugin = self.before.rollouts.values().filter(|it| it.plugin == after.plugin);
        rollout.earlier = remembered(of_plugin.map(|found| &found.rollout));
        rollout.halted = former.map(|former| former.rollout.halted.clone()).unwrap_or_default();
        if !wish.is_draft {
            rollout.began = vec![self.now];
            rollout.state = State::Running(Stage::Reaching);
        }
        let (name, number) = match wish.name {
            Some(name) => (name, former.map_or(0, |former| former.number).saturating_add(1)),
            None => self.name(assignment, former),
        };
        let plugin = after.plugin.clone();
        let mut account = Account::default();
        account.note(self.decision.decided());
        AssignmentRollout { name, plugin, number, before, rollout, account }
    }

    /// Which grants gateways may still act on when a rollout is replaced: none where it is done, its grants have
    /// dried, or all agents took them up. The places of others are not those of the new rollout.
    fn closed(&self, assignment: &str, former: &AssignmentRollout) -> Closed {
        let AssignmentRollout { name, rollout, .. } = former;
        let Rollout { state, grant, closed, .. } = rollout;
        if *state == State::Done || (grant.is_none() && *closed == Closed::Dry) {
            return Closed::Dry;
        }
        let may_act = |(id, row): &(&String, &Row)| {
            let agent = row.decided_on(id);
            let has = rollout.has(name, agent.ordered.get(&former.plugin));
            let place = place(name, id);
            let is_granted = grant.as_ref().is_some_and(|grant| grant.covers(place))
                && !matches!(has, Has::Given(_) | Has::New);
            is_granted || rollout.may_still_give(place, &agent.labels, has)
        };
        let all_took_it = matches!(state, State::Running(_))
            && *closed != Closed::Any
            && !selected(self.before, assignment, self.rows, self.now).iter().any(may_act);
        if all_took_it { Closed::Dry } else { Closed::Any }
    }

    /// A name that no other rollout has, and its number.
    fn name(&self, assignment: &str, former: Option<&AssignmentRollout>) -> (String, u32) {
        let taken: BTreeSet<&str> =
            self.before.rollouts.values().map(|found| found.name.as_str()).collect();
        let mut number = former.map_or(0, |former| former.number);
        loop {
            number = number.saturating_add(1);
            let suffix = format!("-{number}");
            let room = assignment.floor_char_boundary(NAME_BYTES - suffix.len());
            let name = format!("{}{suffix}", assignment[..room].trim_end_matches('-'));
            if !taken.contains(name.as_str()) || number == u32::MAX {
                return (name, number);
            }
        }
    }
}

fn under_way(found: &AssignmentRollout) -> Refused {
    let state = &found.rollout.state;
    let ends = state.verbs().iter().copied().filter(|verb| ["rollback", "abort"].contains(verb));
    Refused::UnderWay { name: found.name.clone(), state: state.name(), ways_out: ends.collect() }
}

#[cfg(test)]
mod tests;
