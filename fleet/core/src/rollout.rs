//! A rollout: the states in which an assignment goes from one target to another.
//!
//! ```text
//!   Draft ─► Running ⇄ Paused ──┬─► Halted ─► RollingBack ─► RolledBack
//!              │  └─────────────┘      │  ▲
//!              ▼                       │  └─ the gate, or a person
//!             Done                     └─► Running (with a reason) | Aborted
//! ```
//!
//! Every agent has a place: a hash of its id, salted per rollout. The only thing that a rollout moves
//! is its [`Grant`]: a range of places. An agent is given the new target when its place is in the
//! grant, and keeps it; all others keep the former one. So the budget is a property of the record
//! alone: a grant holds at most as many agents without the new target as may be in flight beside
//! those that are, whether they can be reached or not. An agent that comes back, or whose hold ends,
//! waits until a grant comes to its place.
//!
//! A grant that was closed may still be acted on for [`DRY`] seconds, by gateways that do not know. The
//! rollout remembers it as [`Closed`], and agents that it covers and that do not have what it gave take of
//! the budget like those in flight. So the next grant, forth or back, opens at once where the budget has
//! room beside them, and waits until the closed one has dried where it has none.
//!
//! [`step`] is pure and total: from what is recorded and what is counted follows what changes.

mod closed;
mod history;
mod strategy;
mod verbs;
mod waves;
mod written;

#[cfg(test)]
mod model;
#[cfg(test)]
mod tests;

use crate::gate::{self, Halt};
use crate::labels::Labels;
use crate::target::{Ordered, Target};
use crate::time::Seconds;

pub use closed::{Closed, Gives};
pub use history::{HALTS, HaltedRelease, Past, REMEMBERED, halts, remembered};
pub use strategy::{Strategy, StrategyWave};
pub use verbs::{Refused, StateKind, Verb};
pub use waves::{Label, OnHalt, Plan, Size, WAVES, Wave};
pub use written::reach_all;

/// How long after a grant was closed an agent may still be given what it gave, in seconds: twice the age
/// up to which gateways act on a view.
pub const DRY: u64 = 10;

/// How long a grant stays open for agents that do not take it up, in seconds.
pub const PATIENCE: u64 = 60;

/// A rollout, as it is recorded.
#[derive(Clone, Debug, PartialEq)]
pub struct Rollout {
    /// What agents have before.
    pub from: Former,
    /// What they should have.
    pub to: Target,
    /// How it goes.
    pub plan: Plan,
    /// Where it is.
    pub state: State,
    /// The wave it is in, from 0.
    pub wave: usize,
    /// Whose turn it is.
    pub grant: Option<Grant>,
    /// Grants that were closed and that gateways may still act on.
    pub closed: Closed,
    /// How often rollouts of the assignment closed a grant: what is closed now is not what was closed before,
    /// however alike the two are.
    pub closings: u32,
    /// Raised when a person resumes it after a halt.
    pub epoch: u32,
    /// When that was: what failed before is not held against it again.
    pub resumed: Seconds,
    /// When each wave began that has begun.
    pub began: Vec<Seconds>,
    /// What earlier rollouts of the plugin came to, as it was known when this one was made.
    pub earlier: Vec<Past>,
    /// What this one came to, where later ones should know.
    pub past: Option<Past>,
    /// Releases that halted rollouts of the assignment, and that none has finished with since.
    pub halted: Vec<HaltedRelease>,
    /// Whether orders name the rollout that gives them, so that agents which had the new target before
    /// differ from those that it gave it. Records of older programs do not say so.
    pub marks_orders: bool,
}

/// The targets of agents before a rollout reaches them, which are those of the way back as well.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Former {
    /// All the same: the assignment wanted it before.
    All(Target),
    /// Each its own, from whichever assignment that came. Such a rollout brings agents to an assignment
    /// that is new, or whose target stays the same.
    Each,
}

/// The states of a rollout.
#[derive(Clone, Debug, PartialEq)]
pub enum State {
    /// It was not started.
    Draft,
    /// It goes on.
    Running(Stage),
    /// It waits for a person; agents that were given the new target go on.
    Paused(Stage),
    /// It stopped itself, or a person did. No order for the new target leaves.
    Halted(Cause),
    /// The agents that have the new target are given the former one.
    RollingBack,
    /// They have it.
    RolledBack,
    /// All agents that could be reached have the new target.
    Done,
    /// A person ended it where it was.
    Aborted,
}

/// Where a wave is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// Agents are given the new target.
    Reaching,
    /// All that could be reached settled; problems may still show.
    Soaking {
        /// Since when.
        since: Seconds,
    },
    /// A person has to approve the next wave.
    Approval,
}

/// Why a rollout halted.
#[derive(Clone, Debug, PartialEq)]
pub enum Cause {
    /// The gate.
    Gate(Halt),
    /// A person, and why.
    Person(String),
    /// The ledger was restored from a copy: what happened since then is not known.
    Restored,
}

/// Agents whose turn it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Grant {
    /// Only agents with this label, where the wave is one of a label.
    pub label: Option<Label>,
    /// The first place.
    pub first: u64,
    /// The last place.
    pub last: u64,
    /// Since when.
    pub since: Seconds,
}

/// An agent that a grant can still be about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Candidate {
    /// Its place.
    pub place: u64,
    /// Whether an order would reach it now and may be given: it is connected, not held, and in its
    /// window.
    pub is_reachable: bool,
}

/// The counts over the agents that the assignment selects, without archived ones and without agents that had
/// the new target before the rollout.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Counts {
    /// All of them.
    pub targets: u32,
    /// Those that were given the new target and have not left it since.
    pub given: u32,
    /// Those of the wave's label that were given it; of all where the wave has no label.
    pub given_of_wave: u32,
    /// Orders of this rollout, there and back, that did not settle. Silence settles one.
    pub in_flight: u32,
    /// Those that were not given it, by place; only those of the wave's label, where it has one. While
    /// the rollout goes back: those that have it.
    pub candidates: Vec<Candidate>,
    /// Agents that closed grants cover and that lack the target which these gave, without those in flight.
    pub may_take: u32,
    /// For how long it was known which grants are closed when the counts were begun, in seconds on monotonic
    /// clocks.
    pub age_of_closed: u64,
    /// Failures in waves, for a small fleet.
    pub failures: Vec<gate::Failure>,
    /// Whether the windows of the plan are closed, so that no agent's turn begins.
    pub is_closed: bool,
    /// What became of installations.
    pub installs: gate::Installs,
    /// Crashes, returns and silence beside those of agents without the new target.
    pub faults: gate::Faults,
    /// The same against the time before.
    pub before_after: gate::BeforeAfter,
}

/// What becomes of a rollout now.
#[derive(Clone, Debug, PartialEq)]
pub enum Decision {
    /// The record changes.
    Change(Change),
    /// It does not, and why.
    Wait(Reason),
}

/// A change of the record.
#[derive(Clone, Debug, PartialEq)]
pub enum Change {
    /// It is these agents' turn.
    Grant(Grant),
    /// It is nobody's turn any more.
    Close,
    /// All of the wave that could be reached settled.
    Soak,
    /// A person has to approve the next wave.
    AskApproval,
    /// The next wave begins.
    NextWave,
    /// The last wave ended.
    Finish,
    /// The gate stops it.
    Halt(Halt),
    /// It goes back by itself after the gate stopped it.
    GoBack,
    /// All agents that could be reached have the former target.
    EndRollback,
}

/// Why nothing changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// It was not started, or has ended.
    AtRest,
    /// A person has to say how it goes on.
    Person,
    /// Agents whose turn it is have not taken it.
    Granted,
    /// Gateways may still act on closed grants, and the budget has no room beside them.
    Drying,
    /// Its windows are closed.
    Closed,
    /// As many are in flight as may be.
    Budget,
    /// Some are in flight.
    Settling,
    /// Nobody of the wave can be reached.
    Unreachable,
    /// Problems may still show.
    Soaking,
}

/// What one agent was ordered last; where no order is known, what it has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Has<'a> {
    /// The new target, which the rollout gave it in place of this; `None` where that is not known.
    Given(Option<&'a Target>),
    /// The new target, which it had before.
    New,
    /// The former one.
    Former,
    /// Something else, such as the target of a rollout that this one replaced.
    Other(&'a Target),
    /// Nothing is known of it.
    Nothing,
}

/// What the rollout wants of one agent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wish<'a> {
    /// The agent should have this.
    Have(&'a Target),
    /// The agent keeps this; no order leaves.
    Stay(&'a Target),
}

/// Decides what becomes of a rollout.
#[must_use]
pub fn step(rollout: &Rollout, counts: &Counts, now: Seconds) -> Decision {
    match &rollout.state {
        State::Draft | State::RolledBack | State::Done | State::Aborted => {
            Decision::Wait(Reason::AtRest)
        }
        State::Halted(Cause::Gate(_)) if rollout.plan.on_halt == OnHalt::GoBack => {
            Decision::Change(Change::GoBack)
        }
        State::Halted(_) => Decision::Wait(Reason::Person),
        State::RollingBack => {
            reach(rollout, counts, u32::MAX, now).unwrap_or(Decision::Change(Change::EndRollback))
        }
        State::Running(stage) | State::Paused(stage) => match (judge(counts), stage) {
            (Some(halt), _) => Decision::Change(Change::Halt(halt)),
            (None, _) if matches!(rollout.state, State::Paused(_)) => {
                Decision::Wait(Reason::Person)
            }
            (None, Stage::Approval) => Decision::Wait(Reason::Person),
            (None, Stage::Reaching) => reaching(rollout, counts, now),
            (None, Stage::Soaking { since }) => soaking(rollout, counts, *since, now),
        },
    }
}

fn judge(counts: &Counts) -> Option<Halt> {
    if counts.targets < gate::SMALL {
        gate::by_counts(&counts.failures)
    } else {
        gate::by_tests(&counts.installs, &counts.faults, &counts.before_after)
    }
}

fn reaching(rollout: &Rollout, counts: &Counts, now: Seconds) -> Decision {
    // There is nobody to change.
    if counts.targets == 0 && rollout.grant.is_none() {
        return Decision::Change(Change::Finish);
    }
    if counts.is_closed && rollout.grant.is_none() && !counts.candidates.is_empty() {
        return Decision::Wait(Reason::Closed);
    }
    let left = rollout.plan.goal(rollout.wave, counts.targets).saturating_sub(counts.given);
    let left = if rollout.plan.label(rollout.wave).is_some() { u32::MAX } else { left };
    if let Some(decision) = reach(rollout, counts, left, now) {
        return decision;
    }
    // A wave in which nobody was reached proves nothing.
    if counts.given_of_wave == 0 && !counts.candidates.is_empty() {
        return Decision::Wait(Reason::Unreachable);
    }
    Decision::Change(Change::Soak)
}

/// Moves the grant over the candidates, within the budget and at most `left` of them. `None` when
/// nobody else can be reached, nothing is in flight and no closed grant can be acted on.
fn reach(rollout: &Rollout, counts: &Counts, left: u32, now: Seconds) -> Option<Decision> {
    let open = rollout.grant.as_ref();
    // The candidates are sorted by place.
    let first_of = |grant: &Grant| {
        let at = counts.candidates.partition_point(|candidate| candidate.place < grant.first);
        counts.candidates.get(at)
    };
    if let Some(grant) = open
        && first_of(grant).is_some_and(|candidate| grant.covers(candidate.place))
    {
        let is_over = now.since(grant.since) >= PATIENCE;
        return Some(if is_over {
            Decision::Change(Change::Close)
        } else {
            Decision::Wait(Reason::Granted)
        });
    }
    let Some(may_take) = rollout.may_take(counts) else {
        return Some(Decision::Wait(Reason::Drying));
    };
    let left = left.saturating_sub(may_take);
    let room = rollout.plan.budget.saturating_sub(counts.in_flight).saturating_sub(may_take);
    let most = usize::try_from(room.min(left)).unwrap_or(usize::MAX);
    if let Some((first, last)) = range(&counts.candidates, most) {
        let label = match rollout.state {
            State::RollingBack => None,
            _ => rollout.plan.label(rollout.wave).cloned(),
        };
        return Some(Decision::Change(Change::Grant(Grant { label, first, last, since: now })));
    }
    let someone = left > 0 && counts.candidates.iter().any(|candidate| candidate.is_reachable);
    if counts.in_flight == 0 && may_take == 0 {
        None
    } else if someone && counts.in_flight >= rollout.plan.budget {
        Some(Decision::Wait(Reason::Budget))
    } else if may_take > 0 {
        Some(Decision::Wait(Reason::Drying))
    } else {
        Some(Decision::Wait(Reason::Settling))
    }
}

/// The first range of places that begins and ends with an agent that can be reached and has at most
/// `most` candidates.
fn range(candidates: &[Candidate], most: usize) -> Option<(u64, u64)> {
    let begin = candidates.iter().position(|candidate| candidate.is_reachable)?;
    let within: Vec<&Candidate> = candidates.iter().skip(begin).take(most).collect();
    let last = within.iter().rev().find(|candidate| candidate.is_reachable)?;
    Some((within.first()?.place, last.place))
}

fn soaking(rollout: &Rollout, counts: &Counts, since: Seconds, now: Seconds) -> Decision {
    let wave = rollout.plan.waves.get(rollout.wave);
    if now.since(since) < wave.map_or(0, |wave| wave.soak) {
        return Decision::Wait(Reason::Soaking);
    }
    let is_last = rollout.wave + 1 >= rollout.plan.waves.len() || counts.given >= counts.targets;
    Decision::Change(if is_last {
        Change::Finish
    } else if wave.is_some_and(|wave| wave.needs_approval) {
        Change::AskApproval
    } else {
        Change::NextWave
    })
}

// === impl Rollout ===

impl Rollout {
    /// A rollout that was not started. Nothing was granted before it: where it takes the place of another one,
    /// that has to be said of `closed`, and `closings` go on.
    #[must_use]
    pub fn new(from: impl Into<Former>, to: Target, plan: Plan) -> Self {
        Self {
            from: from.into(),
            to,
            plan,
            state: State::Draft,
            wave: 0,
            grant: None,
            closed: Closed::Dry,
            closings: 0,
            epoch: 0,
            resumed: Seconds(0),
            began: Vec::new(),
            earlier: Vec::new(),
            past: None,
            halted: Vec::new(),
            marks_orders: true,
        }
    }

    /// Carries a change out.
    pub fn change(&mut self, change: Change, now: Seconds) {
        self.close();
        match change {
            Change::Grant(grant) => self.grant = Some(grant),
            Change::Close => {}
            Change::Soak => self.state = State::Running(Stage::Soaking { since: now }),
            Change::AskApproval => self.state = State::Running(Stage::Approval),
            Change::NextWave => {
                self.next_wave(now);
            }
            Change::Finish => {
                self.halted.retain(|halted| halted.target != self.to);
                self.state = State::Done;
            }
            Change::Halt(halt) => self.halt(Cause::Gate(halt), now),
            Change::GoBack => self.state = State::RollingBack,
            Change::EndRollback => self.state = State::RolledBack,
        }
    }

    fn next_wave(&mut self, now: Seconds) {
        self.wave += 1;
        self.began.push(now);
        self.state = State::Running(Stage::Reaching);
    }

    /// When it began; the beginning of time where it did not.
    #[must_use]
    pub fn start(&self) -> Seconds {
        self.began.first().copied().unwrap_or_default()
    }

    /// The wave in which something happened; the first where it was before all of them.
    #[must_use]
    pub fn wave_at(&self, at: Seconds) -> usize {
        self.began.partition_point(|began| *began <= at).saturating_sub(1)
    }

    /// How an agent stands to the two targets. `ordered` is its newest order, or what it has where no
    /// order is known; `name` is the name of the rollout.
    #[must_use]
    pub fn has<'a>(&self, name: &str, ordered: Option<&'a Ordered>) -> Has<'a> {
        let Some(ordered) = ordered else { return Has::Nothing };
        let target = &ordered.target;
        if *target == self.to {
            let is_given = !self.marks_orders || ordered.rollout == name;
            return if is_given { Has::Given(ordered.replaced.as_ref()) } else { Has::New };
        }
        match &self.from {
            Former::All(from) if from == target => Has::Former,
            Former::All(_) | Former::Each => Has::Other(target),
        }
    }

    /// Whether it is about an agent.
    #[must_use]
    pub fn is_about(&self, has: Has<'_>, is_new: bool) -> bool {
        match (&self.from, has) {
            (Former::Each, Has::New) => false,
            (Former::Each, Has::Nothing) => !is_new,
            (Former::All(_), Has::New) => {
                matches!(self.state, State::RollingBack | State::RolledBack)
            }
            _ => true,
        }
    }

    /// Whether it is an agent's turn, as far as its place and its labels say.
    #[must_use]
    pub fn grants(&self, place: u64, labels: &Labels) -> bool {
        self.grant.as_ref().is_some_and(|grant| grant.is_for(place, labels))
    }

    /// Its wish for an agent at this place. `is_new` is whether an agent without an order is a new machine
    /// that the assignment was about before it changed.
    #[must_use]
    pub fn wish<'a>(&'a self, place: u64, labels: &Labels, has: Has<'a>, is_new: bool) -> Wish<'a> {
        use Has::{Former as IsFormer, Given, New, Nothing, Other};

        let is_granted = self.grants(place, labels);
        if self.state == State::RollingBack
            && is_granted
            && let Some(back) = self.back(has)
        {
            return Wish::Have(back);
        }
        let is_forward = matches!(self.state, State::Running(_) | State::Paused(_));
        match (&self.state, &self.from, has) {
            (State::Running(_), _, IsFormer | Other(_) | Nothing) if is_granted => {
                Wish::Have(&self.to)
            }
            (State::Done, ..) | (_, Former::Each, New) => Wish::Have(&self.to),
            (_, _, Given(_) | New) if is_forward => Wish::Have(&self.to),
            // An agent that came to the assignment by the change that the rollout makes.
            (_, _, Nothing) if !is_new => Wish::Stay(&Target::Absent),
            (_, Former::Each, Nothing) => Wish::Have(&self.to),
            // Nothing is removed where nothing was ordered.
            (_, Former::All(Target::Absent), Nothing) => Wish::Stay(&Target::Absent),
            // It was out of reach on the way back; or it is a new machine that has the new target in its image.
            (State::RolledBack, Former::All(from), Given(_)) => Wish::Have(from),
            (State::RolledBack, Former::All(from), New) if is_new => Wish::Have(from),
            (_, Former::All(from), IsFormer | Nothing) => Wish::Have(from),
            (_, _, Given(_) | New) => Wish::Stay(&self.to),
            (_, _, Other(target)) => Wish::Stay(target),
            // Where each agent has its own, none has the former one.
            (_, Former::Each, IsFormer) => Wish::Stay(&Target::Absent),
        }
    }

    /// The target of an agent on the way back; `None` where it keeps its own.
    #[must_use]
    pub fn back<'a>(&'a self, has: Has<'a>) -> Option<&'a Target> {
        match (&self.from, has) {
            (Former::All(from), Has::Given(_) | Has::New | Has::Other(_)) => Some(from),
            (Former::Each, Has::Given(replaced)) => replaced,
            (Former::All(_) | Former::Each, _) => None,
        }
    }
}

// === impl Former ===

impl Former {
    /// The one target of all agents before; `None` where each has its own.
    #[must_use]
    pub fn target(&self) -> Option<&Target> {
        match self {
            Self::All(target) => Some(target),
            Self::Each => None,
        }
    }
}

impl From<Target> for Former {
    fn from(target: Target) -> Self {
        Self::All(target)
    }
}

// === impl Grant ===

impl Grant {
    /// Whether a place is in it.
    #[must_use]
    pub fn covers(&self, place: u64) -> bool {
        (self.first..=self.last).contains(&place)
    }

    /// Whether it is the turn of an agent with this place and these labels.
    #[must_use]
    pub fn is_for(&self, place: u64, labels: &Labels) -> bool {
        let has = |label: &Label| labels.get(&label.key) == Some(&label.value);
        self.covers(place) && self.label.as_ref().is_none_or(has)
    }
}
