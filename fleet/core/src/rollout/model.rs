//! Every course of a rollout in a small fleet.
//!
//! Agents come and go, take up what is granted on a view that may be old, and settle or fail; the
//! controller counts at one moment and decides at a later one; a person stops, resumes and goes back
//! at any time. `stateright` visits every state that such a fleet can get into.

use std::hash::{Hash, Hasher};

use stateright::{Checker, HasDiscoveries, Model, Property};

use super::{
    Candidate, Closed, Counts, DRY, Decision, Has, PATIENCE, Plan, Rollout, Size, Stage, State,
    Verb, Wave, Wish, step,
};
use crate::gate::Failure;
use crate::labels::Labels;
use crate::target::Target;
use crate::time::Seconds;

const BUDGET: usize = 2;

/// Older records with a grant on which gateways may still act; others order nothing, and more of these would
/// add nothing but states.
const OLD: usize = 2;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Agent {
    /// Its newest order is the new target.
    is_given: bool,
    is_in_flight: bool,
    is_reachable: bool,
}

#[derive(Clone, Debug, PartialEq)]
struct Fleet {
    agents: Vec<Agent>,
    rollout: Rollout,
    /// Records on which a gateway may still act.
    old: Vec<Rollout>,
    /// What the controller counted, and whether no gateway acted on a closed grant any more.
    counted: Option<(Vec<Agent>, bool)>,
    failed: usize,
    now: Seconds,
    /// How often agents may still come and go, fail, and people ask.
    changes: u8,
    failures: u8,
    asks: u8,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Act {
    Count,
    Decide,
    Order(usize, usize),
    Settle(usize),
    Fail(usize),
    ComeOrGo(usize),
    Dry,
    Wait,
    Ask(usize),
}

struct Small;

// The numbers of the gate are equal or not, which is all that is needed here.
impl Eq for Fleet {}

impl Hash for Fleet {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.old.iter().for_each(|record| gives(record).hash(state));
        let Rollout { wave, epoch, .. } = self.rollout;
        let closed = match &self.rollout.closed {
            Closed::Dry => None,
            Closed::Grant(grant, gives) => Some((grant.first, grant.last, Some(*gives))),
            Closed::Any => Some((0, u64::MAX, None)),
        };
        (self.rollout.state.name(), wave, epoch, gives(&self.rollout), closed).hash(state);
        (&self.agents, &self.counted, self.failed, self.now.0).hash(state);
        (self.changes, self.failures, self.asks).hash(state);
    }
}

/// What agents are given by a record: whether it is on the way back, and whose turn it is.
fn gives(record: &Rollout) -> (bool, Option<(u64, u64)>) {
    let grant = record.grant.as_ref().map(|grant| (grant.first, grant.last));
    (record.state == State::RollingBack, grant)
}

fn verbs() -> [Verb; 4] {
    [
        Verb::Pause,
        Verb::Resume { reason: "known".to_owned() },
        Verb::Halt { reason: "a look".to_owned() },
        Verb::RollBack,
    ]
}

fn place(agent: usize) -> u64 {
    agent as u64 * 10
}

fn count(agents: &[Agent], is_dry: bool, fleet: &Fleet) -> Counts {
    let number = |is: fn(&&Agent) -> bool| u32::try_from(agents.iter().filter(is).count()).unwrap();
    let is_back = fleet.rollout.state == State::RollingBack;
    let candidates = agents.iter().enumerate().filter(|(_, agent)| agent.is_given == is_back);
    let may_take = |(at, agent): &(usize, &Agent)| {
        let may = |has| fleet.rollout.may_still_give(place(*at), &Labels::default(), has);
        !agent.is_in_flight && may(agent.has())
    };
    let may_take = agents.iter().enumerate().filter(may_take).count();
    Counts {
        targets: number(|_| true),
        given: number(|agent| agent.is_given),
        given_of_wave: number(|agent| agent.is_given),
        in_flight: number(|agent| agent.is_in_flight),
        candidates: candidates
            .map(|(at, agent)| Candidate { place: place(at), is_reachable: agent.is_reachable })
            .collect(),
        may_take: u32::try_from(may_take).unwrap(),
        age_of_closed: if is_dry { DRY } else { 0 },
        failures: vec![
            Failure { wave: 1, fingerprint: "exit 1".to_owned() };
            if fleet.rollout.epoch == 0 { fleet.failed } else { 0 }
        ],
        ..Counts::default()
    }
}

fn fleet(waves: Vec<Wave>) -> Fleet {
    let plan = Plan { waves, budget: u32::try_from(BUDGET).unwrap(), ..Plan::default() };
    let [from, to] = ["1", "2"].map(|text| Target::Revision(text.to_owned()));
    let mut rollout = Rollout::new(from, to, plan);
    rollout.ask(&Verb::Start, Seconds(0)).unwrap();
    let agent = Agent { is_given: false, is_in_flight: false, is_reachable: true };
    let away = Agent { is_reachable: false, ..agent };
    Fleet {
        agents: vec![agent, away, agent],
        rollout,
        old: Vec::new(),
        counted: None,
        failed: 0,
        now: Seconds(0),
        changes: 2,
        failures: 1,
        asks: 2,
    }
}

impl Agent {
    fn has(self) -> Has<'static> {
        if self.is_given { Has::Given(None) } else { Has::Former }
    }
}

impl Fleet {
    fn wishes(&self, record: usize, agent: usize) -> bool {
        let record = self.old.get(record).unwrap_or(&self.rollout);
        let Agent { is_given, is_reachable, .. } = self.agents[agent];
        let has = self.agents[agent].has();
        let wish = record.wish(place(agent), &Labels::default(), has, true);
        let other = if is_given { record.from.target() } else { Some(&record.to) };
        is_reachable && other.is_some_and(|other| wish == Wish::Have(other))
    }

    fn replace(&mut self, before: Rollout) {
        // Counts that were begun before the grant was closed know nothing of how long that is ago.
        if before.closings != self.rollout.closings
            && let Some((_, is_dry)) = &mut self.counted
        {
            *is_dry = false;
        }
        if before.grant.is_some() && before != self.rollout {
            self.old.push(before);
            self.old.sort_by_key(gives);
            self.old.dedup_by_key(|record| gives(record));
        }
    }

    fn act(&mut self, act: Act) {
        match act {
            Act::Count => self.counted = Some((self.agents.clone(), self.old.is_empty())),
            Act::Decide => {
                let Some((agents, is_dry)) = self.counted.clone() else { return };
                let counts = count(&agents, is_dry, self);
                if let Decision::Change(change) = step(&self.rollout, &counts, self.now) {
                    let before = self.rollout.clone();
                    self.rollout.forget_dried(&counts);
                    self.rollout.change(change, self.now);
                    self.replace(before);
                }
            }
            Act::Order(_, agent) => {
                let agent = &mut self.agents[agent];
                agent.is_given = !agent.is_given;
                agent.is_in_flight = true;
            }
            Act::Settle(agent) => self.agents[agent].is_in_flight = false,
            Act::Fail(agent) => {
                self.agents[agent].is_in_flight = false;
                self.failed += 1;
                self.failures -= 1;
            }
            Act::ComeOrGo(agent) => {
                self.agents[agent].is_reachable ^= true;
                self.changes -= 1;
            }
            Act::Dry => self.old.clear(),
            Act::Wait => self.now.0 += PATIENCE,
            Act::Ask(verb) => {
                let before = self.rollout.clone();
                self.asks -= 1;
                if self.rollout.ask(&verbs()[verb], self.now).is_ok() {
                    self.replace(before);
                }
            }
        }
    }

    /// Without faults and people, and with everybody reachable, it ends or waits for a person.
    fn settles(&self) -> bool {
        let mut fleet = self.clone();
        fleet.agents.iter_mut().for_each(|agent| agent.is_reachable = true);
        for _ in 0..60 {
            fleet.act(Act::Dry);
            for agent in 0..fleet.agents.len() {
                if fleet.wishes(usize::MAX, agent) {
                    fleet.act(Act::Order(usize::MAX, agent));
                }
                fleet.act(Act::Settle(agent));
            }
            fleet.act(Act::Count);
            fleet.act(Act::Wait);
            fleet.act(Act::Decide);
            let all = |is_given| fleet.agents.iter().all(|agent| agent.is_given == is_given);
            let has_settled = match &fleet.rollout.state {
                State::Done => all(true),
                State::RolledBack => all(false),
                State::Halted(_) | State::Paused(_) => true,
                _ => false,
            };
            if has_settled {
                return true;
            }
        }
        false
    }
}

impl Model for Small {
    type State = Fleet;
    type Action = Act;

    fn init_states(&self) -> Vec<Fleet> {
        let wave = |size| Wave { size, soak: 1, needs_approval: false };
        let plans =
            [vec![wave(Size::Count(1)), wave(Size::Percent(100))], vec![wave(Size::Percent(100))]];
        plans.map(fleet).to_vec()
    }

    fn actions(&self, fleet: &Fleet, acts: &mut Vec<Act>) {
        let agents = 0..fleet.agents.len();
        for agent in agents {
            for record in 0..=fleet.old.len() {
                if fleet.wishes(record, agent) {
                    acts.push(Act::Order(record, agent));
                }
            }
            if fleet.agents[agent].is_in_flight {
                acts.push(Act::Settle(agent));
                if fleet.failures > 0 {
                    acts.push(Act::Fail(agent));
                }
            }
            if fleet.changes > 0 {
                acts.push(Act::ComeOrGo(agent));
            }
        }
        acts.push(Act::Count);
        if fleet.old.len() < OLD {
            acts.push(Act::Decide);
        }
        if !fleet.old.is_empty() {
            acts.push(Act::Dry);
        }
        if fleet.rollout.grant.is_some()
            || matches!(fleet.rollout.state, State::Running(Stage::Soaking { .. }))
        {
            acts.push(Act::Wait);
        }
        if fleet.asks > 0 && fleet.old.len() < OLD {
            acts.extend((0..verbs().len()).map(Act::Ask));
        }
    }

    fn next_state(&self, fleet: &Fleet, act: Act) -> Option<Fleet> {
        let mut next = fleet.clone();
        next.act(act);
        // A state differs by its time only as far as patience goes.
        if let Some(grant) = &mut next.rollout.grant {
            let waited = next.now.since(grant.since).min(PATIENCE);
            grant.since = Seconds(0);
            next.now = Seconds(waited);
        }
        if let State::Running(Stage::Soaking { since }) = &mut next.rollout.state {
            let waited = next.now.since(*since).min(PATIENCE);
            *since = Seconds(0);
            next.now = Seconds(waited);
        } else if next.rollout.grant.is_none() {
            next.now = Seconds(0);
        }
        Some(next)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always("the budget is kept", |_, fleet: &Fleet| {
                fleet.agents.iter().filter(|agent| agent.is_in_flight).count() <= BUDGET
            }),
            Property::always("it ends, or waits for a person", |_, fleet: &Fleet| fleet.settles()),
            Property::sometimes("done", |_, fleet: &Fleet| fleet.rollout.state == State::Done),
            Property::sometimes("rolled back", |_, fleet: &Fleet| {
                fleet.rollout.state == State::RolledBack
            }),
            Property::sometimes("halted", |_, fleet: &Fleet| {
                matches!(fleet.rollout.state, State::Halted(_))
            }),
        ]
    }
}

#[test]
fn every_course_of_a_rollout_keeps_its_budget_and_ends() {
    let failed = HasDiscoveries::AnyFailures;
    let checker = Small.checker().threads(2).finish_when(failed).spawn_bfs().join();
    checker.assert_properties();
    assert!(checker.unique_state_count() > 100_000, "{}", checker.unique_state_count());
}
