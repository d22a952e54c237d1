//! How far a rollout is: what the rows of all agents say of it.

use std::collections::{BTreeMap, BTreeSet};

use crate::account::{Failed, RESULTS, Results, fingerprints};
use crate::desired::{Permission, decide, permission};
use crate::evidence::{Gathering, Seen};
use crate::fingerprint::{cause, fingerprint};
use crate::fold::{Crash, OrderFacts, Row, SEEN_STEP, Step, silent_after};
use crate::gate::Failure;
use crate::labels::Labels;
use crate::place::place;
use crate::rollout::{Candidate, Counts, Has, Rollout, State};
use crate::target::Target;
use crate::time::{Seconds, Zones};
use crate::view::View;
use crate::window::{Opening, Weekly};

/// The label that names an agent's zone.
const ZONE: &str = "zone";

/// How long an agent that can be reached again may take to tell what became of an order, in seconds, beside
/// the step in which it is kept when it was seen.
const ANSWER: u64 = 120;

/// What counting needs beside the rows.
#[derive(Clone, Copy)]
pub struct Watch<'a> {
    /// What operators declared.
    pub view: &'a View,
    /// Name of the assignment whose rollout is counted.
    pub assignment: &'a str,
    /// The crashes of the plugin, by agent.
    pub crashes: &'a BTreeMap<String, Vec<Crash>>,
    /// Agents that did not take up a grant a moment ago, and so count as out of reach.
    pub passed_over: &'a BTreeSet<String>,
    /// How long an order of a target may take, in seconds.
    pub patience: &'a dyn Fn(&Target) -> u64,
    /// Since when agents could tell what became of their orders: before that the control plane was
    /// away, and their silence says nothing.
    pub served_since: Seconds,
    /// What time it is.
    pub now: Seconds,
    /// The time zones.
    pub zones: &'a dyn Zones,
}

/// Where an agent stands in a rollout.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Stand {
    /// It was not its turn yet, and nothing keeps it back.
    Waits,
    /// A hold, a closed window, its quarantine or a conflict keeps it back.
    KeptBack,
    /// The release has no archive for its architecture, or was never declared.
    CannotHave,
    /// It is out of reach.
    Away,
    /// It was ordered, and has not said what became of it.
    UnderWay,
    /// It has the new target.
    Done,
    /// It has the new target, and its plugin crashed since.
    Crashed,
    /// It could not do it.
    Failed,
    /// It had the new target and went back.
    TakenBack,
    /// It has not said in time what became of its order.
    Silent,
    /// It was given the former target again, or keeps it after all.
    Back,
    /// It was given the former target again and could not do it.
    BackFailed,
}

/// An agent that may not be given what comes next.
#[derive(Clone, Debug, PartialEq)]
pub struct Kept {
    /// Id of the agent.
    pub agent: String,
    /// What keeps it back.
    pub why: Permission,
}

/// Most agents that are named of those that are kept back.
pub const KEPT: usize = 20;

/// How far a rollout is.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Progress {
    /// What the rollout's next step depends on. The age of closed grants is the caller's to add.
    pub counts: Counts,
    /// How many agents stand where.
    pub stands: BTreeMap<Stand, u32>,
    /// Agents on which the new target failed, the first ones first.
    pub failed: Vec<Failed>,
    /// The ids of agents that the open grant is about and that have not taken it up.
    pub granted: BTreeSet<String>,
    /// Agents with the new target that did not fail.
    pub passed: BTreeSet<String>,
    /// Agents whose order for the new target may still arrive: it was recorded, and none of them has
    /// said that it has it.
    pub may_arrive: BTreeSet<String>,
    /// The first [`KEPT`] agents that are kept back or cannot have the release, in the order of their
    /// ids.
    pub kept: Vec<Kept>,
}

/// Counts over the rows of all agents; `None` where the assignment has no rollout.
pub fn progress<'a>(
    rows: impl IntoIterator<Item = (&'a String, &'a Row)>,
    watch: &Watch<'_>,
) -> Option<Progress> {
    let found = watch.view.rollouts.get(watch.assignment)?;
    let rollout = &found.rollout;
    let mut progress = Progress::default();
    let mut gathering = Gathering::new(rollout.start(), rollout.resumed);
    for (id, row) in rows {
        if !row.is_counted(watch.now) {
            continue;
        }
        let agent = row.decided_on(id);
        let decision = decide(watch.view, &agent, &found.plugin, watch.now, watch.zones);
        let turn = decision.and_then(|decision| decision.turn);
        if turn.is_none_or(|turn| turn.rollout != found.name || !turn.is_member) {
            continue;
        }
        let has = rollout.has(&found.name, agent.ordered.get(&found.plugin));
        let order = row.orders.get(&found.plugin);
        let back = rollout.back(has).filter(|_| rollout.state == State::RollingBack);
        let next = back.unwrap_or(&rollout.to);
        let one = One {
            watch,
            rollout,
            name: &found.name,
            id,
            row,
            has,
            order,
            may: permission(watch.view, &agent, &found.plugin, next, watch.now, watch.zones),
            is_near: row.is_near(watch.now) && !watch.passed_over.contains(id),
            place: place(&found.name, id),
        };
        one.count(&mut progress, &agent.labels);
        if let Some(seen) = one.seen(&agent.labels) {
            gathering.add(&seen);
        }
    }
    let counts = &mut progress.counts;
    counts.installs.tolerated = rollout.tolerated();
    counts.is_closed = is_closed(&rollout.plan.windows, watch);
    counts.candidates.sort_unstable();
    progress.failed.sort_by(|one, other| (one.at, &one.agent).cmp(&(other.at, &other.agent)));
    counts.failures = progress.failed.iter().map(Failed::failure).collect();
    let evidence = gathering.evidence(watch.now);
    (counts.faults, counts.before_after) = (evidence.faults, evidence.own);
    Some(progress)
}

/// Whether none of the windows is open, where there are any.
fn is_closed(windows: &[Weekly], watch: &Watch<'_>) -> bool {
    let is_open =
        |window: &Weekly| matches!(window.opening(watch.now, watch.zones), Opening::Open { .. });
    !windows.is_empty() && !windows.iter().any(is_open)
}

/// One agent of the rollout.
struct One<'a> {
    watch: &'a Watch<'a>,
    rollout: &'a Rollout,
    name: &'a str,
    id: &'a str,
    row: &'a Row,
    has: Has<'a>,
    order: Option<&'a OrderFacts>,
    /// Whether a change to what comes next may happen now.
    may: Permission,
    is_near: bool,
    place: u64,
}

/// What became of the newest order.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Fate {
    UnderWay,
    Silent,
    Done,
    Failed,
    TakenBack,
}

// === impl One ===

impl One<'_> {
    fn count(&self, progress: &mut Progress, labels: &Labels) {
        let rollout = self.rollout;
        let counts = &mut progress.counts;
        counts.targets += 1;
        let label = rollout.plan.label(rollout.wave);
        let is_of_wave = label.is_none_or(|label| labels.get(&label.key) == Some(&label.value));
        let is_given = self.is_given();
        counts.given += u32::from(is_given);
        counts.given_of_wave += u32::from(is_given && is_of_wave);
        let fate = self.fate();
        let is_back = rollout.state == State::RollingBack;
        let is_of_rollout = is_given || (is_back && self.goes_back());
        let is_in_flight = is_of_rollout && fate == Some(Fate::UnderWay);
        counts.in_flight += u32::from(is_in_flight);
        let is_next = match self.has {
            Has::Given(_) | Has::New | Has::Other(_) if is_back => rollout.back(self.has).is_some(),
            Has::Given(_) | Has::New => false,
            Has::Former | Has::Nothing | Has::Other(_) => !is_back,
        };
        // A release never changes, so what has no archive for an agent never will.
        let can_have = match &self.may {
            Permission::NoArchive { architecture } => architecture.is_empty(),
            _ => true,
        };
        // Whether it can have what comes next says nothing of others where that is not what was granted.
        let could_have = can_have || matches!(self.has, Has::Other(_));
        let may_take = could_have && rollout.may_still_give(self.place, labels, self.has);
        counts.may_take += u32::from(may_take && !is_in_flight);
        if is_next && can_have && (is_back || is_of_wave) {
            let is_reachable = self.is_near && self.may.is_go();
            counts.candidates.push(Candidate { place: self.place, is_reachable });
            if rollout.grant.as_ref().is_some_and(|grant| grant.covers(self.place)) {
                progress.granted.insert(self.id.to_owned());
            }
        }
        if is_given && self.order.is_some_and(|order| order.step == Step::Sent) {
            progress.may_arrive.insert(self.id.to_owned());
        }
        let failure = if is_given { self.failure(fate) } else { None };
        if is_given {
            let installs = &mut counts.installs;
            let counted = self.order.filter(|order| order.since >= rollout.resumed);
            match counted.map(|order| order.step) {
                Some(Step::Done | Step::TakenBack) => installs.succeeded += 1,
                Some(Step::Failed) => installs.failed += 1,
                Some(_) | None => {}
            }
            if failure.is_none() && fate.is_none_or(|fate| fate == Fate::Done) {
                progress.passed.insert(self.id.to_owned());
            }
        }
        let stand = self.stand(fate, failure.as_ref());
        *progress.stands.entry(stand).or_default() += 1;
        let is_kept = matches!(stand, Stand::KeptBack | Stand::CannotHave);
        if is_kept && progress.kept.len() < KEPT {
            progress.kept.push(Kept { agent: self.id.to_owned(), why: self.may.clone() });
        }
        progress.failed.extend(failure.filter(|failure| failure.at >= rollout.resumed));
    }

    /// Whether it was given the new target.
    fn is_given(&self) -> bool {
        matches!(self.has, Has::Given(_) | Has::New)
    }

    /// Whether it was given what it had before, or keeps that after all.
    fn goes_back(&self) -> bool {
        let is_ours = || self.order.is_some_and(|order| order.ordered.rollout == self.name);
        self.has == Has::Former || (matches!(self.has, Has::Other(_)) && is_ours())
    }

    fn fate(&self) -> Option<Fate> {
        let order = self.order?;
        Some(match order.step {
            Step::Sent | Step::Acknowledged | Step::Begun => {
                if self.watch.now >= self.silent_at(order) { Fate::Silent } else { Fate::UnderWay }
            }
            Step::Done | Step::Adopted => Fate::Done,
            Step::Failed => Fate::Failed,
            Step::TakenBack => Fate::TakenBack,
        })
    }

    /// When an order counts as silent.
    fn silent_at(&self, order: &OrderFacts) -> Seconds {
        let since = order.since.max(self.watch.served_since);
        silent_after(since, (self.watch.patience)(order.target()))
    }

    /// The crashes since the newest order, of the revision that was ordered.
    fn crashes(&self) -> impl Iterator<Item = &Crash> {
        let crashes = self.watch.crashes.get(self.id).into_iter().flatten();
        crashes.filter(|crash| self.order.is_some_and(|it| it.led_to(crash.at, &crash.revision)))
    }

    /// The first of them.
    fn crash(&self) -> Option<&Crash> {
        self.crashes().min_by_key(|crash| crash.at)
    }

    fn failure(&self, fate: Option<Fate>) -> Option<Failed> {
        let order = self.order?;
        let crash = self.crash();
        let (what, at) = match fate? {
            Fate::Failed => ("failed", order.since),
            Fate::TakenBack => ("taken back", order.since),
            Fate::Silent => ("silent", self.silent_at(order)),
            Fate::Done | Fate::UnderWay => ("crashed", crash?.at),
        };
        // Where no outcome came, the first crash is the cause.
        let crashes = crash.into_iter().chain(self.crashes()).map(|crash| crash.reason.as_str());
        let (what, reason) = cause(what, &order.reason, crashes);
        Some(Failed {
            agent: self.id.to_owned(),
            wave: self.rollout.wave_at(order.made),
            at,
            fingerprint: fingerprint(what, reason),
            reason: reason.to_owned(),
        })
    }

    fn stand(&self, fate: Option<Fate>, failure: Option<&Failed>) -> Stand {
        let goes_back = self.goes_back();
        match (self.has, fate) {
            (Has::Given(_) | Has::New, fate) => match fate {
                Some(Fate::Failed) => Stand::Failed,
                Some(Fate::TakenBack) => Stand::TakenBack,
                Some(Fate::Silent) => Stand::Silent,
                _ if failure.is_some() => Stand::Crashed,
                Some(Fate::UnderWay) => Stand::UnderWay,
                Some(Fate::Done) | None => Stand::Done,
            },
            (_, Some(Fate::UnderWay)) if goes_back => Stand::UnderWay,
            (_, Some(fate)) if goes_back && !self.rollout.state.is_forward() => match fate {
                Fate::Failed | Fate::TakenBack => Stand::BackFailed,
                Fate::UnderWay | Fate::Silent | Fate::Done => Stand::Back,
            },
            (Has::Former | Has::Other(_) | Has::Nothing, _) => match &self.may {
                Permission::NoArchive { .. } | Permission::NoRelease => Stand::CannotHave,
                _ if !self.is_near => Stand::Away,
                Permission::Go => Stand::Waits,
                _ => Stand::KeptBack,
            },
        }
    }

    /// What it says about crashes, returns and silence; `None` where it is neither reached nor waits.
    fn seen(&self, labels: &Labels) -> Option<Seen> {
        let agent = self.row.agent.as_ref()?;
        let order = self.order.filter(|_| self.is_given());
        // What can never have the release is not like those that get it.
        let is_like = match &self.may {
            Permission::NoArchive { .. } | Permission::NoRelease => false,
            _ => agent.quarantine.is_none(),
        };
        if order.is_none() && !is_like {
            return None;
        }
        let crashes = self.watch.crashes.get(self.id);
        let counts = |crash: &&Crash| {
            order.is_none_or(|order| crash.at < order.made || order.is_for(&crash.revision))
        };
        let mut failed: Vec<Seconds> =
            crashes.into_iter().flatten().filter(counts).map(|it| it.at).collect();
        if let (Some(order), Some(fate)) = (order, self.fate()) {
            failed.extend(self.told_late(order, fate, agent.seen?));
        }
        let own = || labels.own.get(ZONE).map(String::as_str);
        Some(Seen {
            zone: labels.get(ZONE).or_else(own).unwrap_or_default().to_owned(),
            given: order.map(|order| order.made),
            failed,
            lost: Some(agent.away_after()?).filter(|at| *at <= self.watch.now),
        })
    }

    /// When it went back, or should have told what became of its order although it could be reached.
    fn told_late(&self, order: &OrderFacts, fate: Fate, seen: Seconds) -> Option<Seconds> {
        match fate {
            Fate::TakenBack => Some(order.since),
            // An outage is longer than patience at times. It may have been reached again a moment ago.
            Fate::Silent => {
                let at = self.silent_at(order);
                let is_heard = seen >= at && self.watch.now.since(seen) >= SEEN_STEP + ANSWER;
                is_heard.then_some(at)
            }
            Fate::UnderWay | Fate::Done | Fate::Failed => None,
        }
    }
}

// === impl Progress ===

impl Progress {
    /// The results that a rollout keeps of it.
    #[must_use]
    pub fn results(&self, at: Seconds) -> Results {
        let mut fingerprints = fingerprints(&self.failed);
        fingerprints.truncate(RESULTS);
        Results {
            at,
            targets: self.counts.targets,
            given: self.counts.given,
            failures: u32::try_from(self.failed.len()).unwrap_or(u32::MAX),
            fingerprints,
            failed: self.failed.iter().take(RESULTS).cloned().collect(),
        }
    }
}

// === impl Failed ===

impl Failed {
    /// As the gate needs to know it.
    fn failure(&self) -> Failure {
        Failure { wave: self.wave, fingerprint: self.fingerprint.clone() }
    }
}

#[cfg(test)]
mod tests;
