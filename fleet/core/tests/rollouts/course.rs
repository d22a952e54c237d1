//! The course of a rollout in a fleet of which the truth is known: what the controller and the gateways
//! do, by the functions that they call.

use std::collections::{BTreeMap, BTreeSet};

use guest_fleet_core::evidence::{Gathering, Seen};
use guest_fleet_core::fingerprint::fingerprint;
use guest_fleet_core::fold::{AgentFacts, Crash, OrderFacts, ReportFacts, Row, Step, silent_after};
use guest_fleet_core::gate::{Failure, Installs, SMALL};
use guest_fleet_core::labels::Labels;
use guest_fleet_core::place::place;
use guest_fleet_core::progress::{Progress, Watch, progress};
use guest_fleet_core::rollout::{
    Candidate, Change, Closed, Counts, Decision, Gives, Has, Plan, Rollout, Stage, State, Strategy,
    Verb, Wish, step,
};
use guest_fleet_core::selector::{OwnLabels, Selector};
use guest_fleet_core::target::{Ordered, Target};
use guest_fleet_core::time::{Seconds, UtcOnly};
use guest_fleet_core::view::{Archive, Assignment, AssignmentRollout, Release, ReleaseName, View};

use crate::world::{self, Agent, BEGAN, Fate, PATIENCE, Truth, World, zone_name};

/// How often the controller looks, in seconds: a block of evidence.
const LOOK: u64 = 10;

/// How long a wave is watched when nobody says otherwise, in seconds.
const SOAK: u64 = 600;

/// How long an agent that did not take up its grant counts as out of reach, in seconds.
const PASSED_OVER: u64 = 600;

/// No rollout of these fleets takes longer, in seconds.
const LONGEST: u64 = 7 * 24 * 3600;

const ASSIGNMENT: &str = "web";
const PLUGIN: &str = "p";
const ROLLOUT: &str = "spring";

/// What became of a rollout.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ended {
    pub(crate) is_halted: bool,
    pub(crate) touched: u32,
    pub(crate) failed: u32,
}

/// How agents are counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Counting {
    /// By what changed, as fast as a simulation of large fleets needs it.
    Changes,
    /// Also as the controller does, by `progress` over the rows of all agents: both have to say the same.
    Compared,
}

pub(crate) struct Course {
    world: World,
    rollout: Rollout,
    counted: Counted,
    rows: Option<Rows>,
    /// When a grant was closed last.
    closed: Seconds,
    looked: Seconds,
}

/// Counts that are brought up to date with each change.
struct Counted {
    counts: Counts,
    gathering: Gathering,
    places: Vec<u64>,
    /// When something was counted anew.
    touched: Seconds,
    changed: BTreeSet<usize>,
    /// Until when agents count as out of reach that did not take up their grant.
    passed: BTreeMap<usize, Seconds>,
}

/// What the ledger shows.
struct Rows {
    view: View,
    ids: Vec<String>,
    at: BTreeMap<String, usize>,
    rows: BTreeMap<String, Row>,
    crashes: BTreeMap<String, Vec<Crash>>,
}

/// Runs a rollout to its end.
pub(crate) fn run(targets: u32, truth: Truth, seed: u64, counting: Counting) -> Ended {
    let mut course = Course::new(targets, truth, seed, counting);
    while course.world.now.since(BEGAN) < LONGEST {
        course.tick();
        match course.rollout.state {
            State::Halted(_) => return course.ended(true),
            State::Done => return course.ended(false),
            _ => {}
        }
    }
    panic!("the rollout has not ended: {:?}", course.rollout.state);
}

fn revision(text: &str) -> Target {
    Target::Revision(text.to_owned())
}

fn seen(
    agent: &Agent,
    order: Option<&world::Order>,
    crashes: usize,
    lost: Option<Seconds>,
) -> Seen {
    Seen {
        zone: zone_name(agent.zone),
        given: order.map(|order| order.made),
        failed: agent.crashes[..crashes].to_vec(),
        lost,
    }
}

/// The failures that counting judges by, the first ones first.
fn failures(world: &World, rollout: &Rollout) -> Vec<Failure> {
    let mut failures: Vec<(Seconds, usize, Failure)> = Vec::new();
    for (at, agent) in world.agents.iter().enumerate() {
        let Some(order) = &agent.order else { continue };
        let crash = agent.crashes.iter().copied().filter(|at| *at >= order.made).min();
        let (what, since) = match (order.fate, crash) {
            (Fate::Failed, _) => ("failed", order.since),
            (Fate::Silent, _) => ("silent", silent_after(order.since, PATIENCE)),
            (Fate::Done | Fate::UnderWay, Some(crash)) => ("crashed", crash),
            (Fate::Done | Fate::UnderWay, None) => continue,
        };
        let fingerprint = fingerprint(what, order.reason);
        let wave = rollout.wave_at(order.made);
        failures.push((since, at, Failure { wave, fingerprint }));
    }
    failures.sort_by_key(|(since, at, _)| (*since, *at));
    failures.into_iter().map(|(_, _, failure)| failure).collect()
}

/// How long a rollout takes where nothing happens, in seconds.
fn duration(plan: &Plan, targets: u32) -> u64 {
    plan.waves.len() as u64 * (SOAK + 80) + u64::from(targets / plan.budget) * 60
}

// === impl Course ===

impl Course {
    fn new(targets: u32, truth: Truth, seed: u64, counting: Counting) -> Self {
        let plan = Plan::usual(targets, SOAK);
        let world = World::new(targets, truth, duration(&plan, targets), seed);
        let mut rollout = Rollout::new(revision("1"), revision("2"), plan);
        rollout.ask(&Verb::Start, BEGAN).expect("it was not started");
        let name = |at| format!("{seed}-{at}");
        let (ids, places) = if counting == Counting::Changes {
            let apart = u64::MAX / u64::from(targets);
            (Vec::new(), (0..u64::from(targets)).map(|at| at * apart).collect())
        } else {
            let mut placed: Vec<(u64, String)> =
                (0..targets).map(|at| (place(ROLLOUT, &name(at)), name(at))).collect();
            placed.sort_unstable();
            let (places, ids): (Vec<u64>, Vec<String>) = placed.into_iter().unzip();
            (ids, places)
        };
        let rows = (counting != Counting::Changes).then(|| Rows::new(ids, &world, &rollout));
        Self {
            counted: Counted::new(&world, places),
            world,
            rollout,
            rows,
            closed: BEGAN,
            looked: BEGAN,
        }
    }

    fn tick(&mut self) {
        let until = self.world.now.plus(LOOK);
        let counted = &mut self.counted;
        self.world.pass(until, |world, at, before| {
            counted.note(world, at, &before);
        });
        let over: Vec<usize> =
            counted.passed.extract_if(.., |_, ends| *ends <= until).map(|(at, _)| at).collect();
        over.into_iter().for_each(|at| counted.reach(&self.world, at));
        if self.may_change() {
            self.look();
        }
        self.take_up();
    }

    /// Whether the controller may come to another decision than at its last look. A block of evidence
    /// counts when it ended.
    fn may_change(&self) -> bool {
        let now = self.world.now;
        let is_news = self.counted.touched.plus(2 * LOOK) > self.looked;
        match self.rollout.state {
            State::Running(Stage::Soaking { since }) => is_news || now.since(since) >= SOAK,
            _ => true,
        }
    }

    fn look(&mut self) {
        let now = self.world.now;
        self.looked = now;
        let counted = &mut self.counted;
        counted.counts.age_of_closed = now.since(self.closed);
        counted.counts.may_take = counted.may_take(&self.rollout);
        counted.gather(self.rows.is_some(), now);
        if counted.counts.targets < SMALL {
            counted.counts.failures = failures(&self.world, &self.rollout);
        }
        if let Some(rows) = &mut self.rows {
            let passed = counted.passed.keys().map(|at| rows.ids[*at].clone()).collect();
            rows.take(&self.world, &mut counted.changed);
            let found = rows.progress(&self.rollout, &passed, now).counts;
            // Larger fleets are not judged by these.
            let is_small = counted.counts.targets < SMALL;
            let failures = if is_small { found.failures } else { Vec::new() };
            let age_of_closed = counted.counts.age_of_closed;
            let mut found = Counts { failures, age_of_closed, ..found };
            let mut own = counted.counts.clone();
            // Those of one second come in the order of ids or of places.
            for failures in [&mut own.failures, &mut found.failures] {
                failures.sort_by_key(|failure| (failure.wave, failure.fingerprint.clone()));
            }
            assert_eq!(own, found, "at {now:?}");
        }
        let decision = step(&self.rollout, &self.counted.counts, now);
        let Decision::Change(change) = decision else { return };
        if change == Change::Close
            && let Some(grant) = self.rollout.grant.clone()
        {
            let covered = self.counted.counts.candidates.iter();
            let covered = covered.filter(|candidate| grant.covers(candidate.place));
            let left: Vec<u64> = covered.map(|candidate| candidate.place).collect();
            for place in left {
                let at = self.counted.places.binary_search(&place).expect("an agent is there");
                self.counted.passed.insert(at, now.plus(PASSED_OVER));
                self.counted.reach(&self.world, at);
            }
        }
        let closings = self.rollout.closings;
        self.rollout.forget_dried(&self.counted.counts);
        self.rollout.change(change, now);
        if self.rollout.closings != closings {
            self.closed = now;
        }
    }

    /// Gateways give connected agents what the rollout wants them to have.
    fn take_up(&mut self) {
        let Some(grant) = self.rollout.grant.clone() else { return };
        let first = self.counted.places.partition_point(|place| *place < grant.first);
        let covered = self.counted.places[first..].iter().take_while(|place| grant.covers(**place));
        let covered = first..first + covered.count();
        for at in covered {
            let agent = &self.world.agents[at];
            let has = if agent.order.is_some() { Has::Given(None) } else { Has::Former };
            let wish = self.rollout.wish(self.counted.places[at], &Labels::default(), has, true);
            if agent.order.is_some() || agent.gone.is_some() || wish != Wish::Have(&self.rollout.to)
            {
                continue;
            }
            self.world.order(at);
            self.counted.give(&self.world, at);
        }
        let counts = &mut self.counted.counts;
        let (agents, places) = (&self.world.agents, &self.counted.places);
        let ends = counts.candidates.partition_point(|candidate| candidate.place <= grant.last);
        let kept: Vec<Candidate> = counts.candidates[..ends]
            .iter()
            .filter(|candidate| {
                places.binary_search(&candidate.place).is_ok_and(|at| agents[at].order.is_none())
            })
            .copied()
            .collect();
        counts.candidates.splice(..ends, kept);
    }

    fn ended(&self, is_halted: bool) -> Ended {
        let given =
            self.world.agents.iter().filter_map(|agent| Some((agent, agent.order.as_ref()?)));
        let is_failed = |(agent, order): &(&Agent, &world::Order)| {
            matches!(order.fate, Fate::Failed | Fate::Silent)
                || agent.crashes.iter().any(|at| *at >= order.made)
        };
        let number = |of: usize| u32::try_from(of).expect("a count of agents");
        Ended {
            is_halted,
            touched: self.counted.counts.given,
            failed: number(given.filter(is_failed).count()),
        }
    }
}

// === impl Counted ===

impl Counted {
    fn new(world: &World, places: Vec<u64>) -> Self {
        let mut gathering = Gathering::new(BEGAN, Seconds(0));
        for of_zone in &world.of_zone {
            let Some(first) = of_zone.first() else { continue };
            let seen = seen(&world.agents[*first], None, 0, None);
            of_zone.iter().for_each(|_| gathering.add(&seen));
        }
        let candidate = |place: &u64| Candidate { place: *place, is_reachable: true };
        let counts = Counts {
            targets: u32::try_from(world.agents.len()).expect("a count of agents"),
            candidates: places.iter().map(candidate).collect(),
            installs: Installs::default(),
            ..Counts::default()
        };
        Self {
            counts,
            gathering,
            places,
            touched: BEGAN,
            changed: BTreeSet::new(),
            passed: BTreeMap::new(),
        }
    }

    /// How many agents a closed grant may still give the new target.
    fn may_take(&self, rollout: &Rollout) -> u32 {
        let Closed::Grant(grant, Gives::New) = &rollout.closed else { return 0 };
        let candidates = &self.counts.candidates;
        let first = candidates.partition_point(|candidate| candidate.place < grant.first);
        let covered = candidates[first..].iter().take_while(|it| grant.covers(it.place)).count();
        u32::try_from(covered).expect("a count of agents")
    }

    fn gather(&mut self, always: bool, now: Seconds) {
        // Nothing that stops a rollout follows from time alone, once a block has ended.
        if always || now.since(self.touched) <= 2 * LOOK {
            let evidence = self.gathering.evidence(now);
            (self.counts.faults, self.counts.before_after) = (evidence.faults, evidence.own);
        }
    }

    /// Something happened to an agent.
    fn note(&mut self, world: &World, at: usize, before: &world::Change) {
        let agent = &world.agents[at];
        self.changed.insert(at);
        let was = seen(agent, before.order.as_ref(), before.crashes, before.lost);
        let is = seen(agent, agent.order.as_ref(), agent.crashes.len(), agent.lost);
        if was != is {
            self.gathering.remove(&was);
            self.gathering.add(&is);
            self.touched = world.now;
        }
        let fate = |order: Option<&world::Order>| order.map(|order| order.fate);
        let (was, is) = (fate(before.order.as_ref()), fate(agent.order.as_ref()));
        if was != is {
            let counts = &mut self.counts;
            counts.in_flight -= u32::from(was == Some(Fate::UnderWay));
            counts.installs.succeeded += u64::from(is == Some(Fate::Done));
            counts.installs.failed += u64::from(is == Some(Fate::Failed));
        }
        if before.lost != agent.lost {
            self.reach(world, at);
        }
    }

    /// An agent was given its order.
    fn give(&mut self, world: &World, at: usize) {
        let agent = &world.agents[at];
        self.changed.insert(at);
        self.gathering.remove(&seen(agent, None, agent.crashes.len(), agent.lost));
        let order = agent.order.as_ref();
        self.gathering.add(&seen(agent, order, agent.crashes.len(), agent.lost));
        self.counts.given += 1;
        self.counts.given_of_wave += 1;
        self.counts.in_flight += 1;
    }

    /// Whether a candidate can be reached, as far as the control plane knows.
    fn reach(&mut self, world: &World, at: usize) {
        let candidates = &mut self.counts.candidates;
        let found = candidates.binary_search_by_key(&self.places[at], |candidate| candidate.place);
        if let Ok(found) = found {
            let is_passed = self.passed.contains_key(&at);
            candidates[found].is_reachable = !is_passed && world.agents[at].lost.is_none();
        }
    }
}

// === impl Rows ===

impl Rows {
    fn new(ids: Vec<String>, world: &World, rollout: &Rollout) -> Self {
        let mut view = View::default();
        for number in ["1", "2"] {
            let name = ReleaseName { plugin: PLUGIN.to_owned(), revision: number.to_owned() };
            let archives = [("amd64".to_owned(), Archive::default())].into();
            view.releases.insert(name, Release { archives, order: Vec::new() });
        }
        let assignment = Assignment {
            plugin: PLUGIN.to_owned(),
            target: rollout.to.clone(),
            selector: Selector::all(),
            own_labels: OwnLabels::Ignored,
            priority: 0,
            attempt: 0,
            strategy: Strategy::default(),
            declared: None,
        };
        view.assignments.insert(ASSIGNMENT.to_owned(), assignment);
        let found = AssignmentRollout::first(ROLLOUT, PLUGIN, rollout.clone());
        view.rollouts.insert(ASSIGNMENT.to_owned(), found);
        let at = ids.iter().cloned().zip(0..).collect();
        let mut rows = Self { view, ids, at, rows: BTreeMap::new(), crashes: BTreeMap::new() };
        rows.take(world, &mut (0..world.agents.len()).collect());
        rows
    }

    fn take(&mut self, world: &World, changed: &mut BTreeSet<usize>) {
        for at in std::mem::take(changed) {
            let (id, agent) = (&self.ids[at], &world.agents[at]);
            self.rows.insert(id.clone(), row(agent));
            if !agent.crashes.is_empty() {
                let crash = |at: &Seconds| Crash { at: *at, ..Crash::default() };
                self.crashes.insert(id.clone(), agent.crashes.iter().map(crash).collect());
            }
        }
        for (id, row) in &mut self.rows {
            let facts = row.agent.take().unwrap_or_default();
            row.agent = Some(facts.seen_at(Some(world.seen(self.at[id]))));
        }
    }

    fn progress(&mut self, rollout: &Rollout, passed: &BTreeSet<String>, now: Seconds) -> Progress {
        if let Some(found) = self.view.rollouts.get_mut(ASSIGNMENT) {
            found.rollout = rollout.clone();
        }
        let watch = Watch {
            view: &self.view,
            assignment: ASSIGNMENT,
            crashes: &self.crashes,
            passed_over: passed,
            patience: &|_| PATIENCE,
            served_since: Seconds(0),
            now,
            zones: &UtcOnly,
        };
        progress(&self.rows, &watch).expect("there is a rollout")
    }
}

fn ordered(target: Target, rollout: &str) -> Ordered {
    Ordered {
        assignment: ASSIGNMENT.to_owned(),
        rollout: rollout.to_owned(),
        ..Ordered::found(target)
    }
}

fn row(agent: &Agent) -> Row {
    let long_ago = Seconds(1);
    let former = OrderFacts::new(ordered(revision("1"), ""), Step::Done, long_ago);
    let order = agent.order.as_ref().map_or(former, |order| {
        let step = match order.fate {
            Fate::UnderWay | Fate::Silent => Step::Begun,
            Fate::Done => Step::Done,
            Fate::Failed => Step::Failed,
        };
        OrderFacts {
            since: order.since,
            reason: order.reason.to_owned(),
            ..OrderFacts::new(ordered(revision("2"), ROLLOUT), step, order.made)
        }
    });
    let mut facts = AgentFacts { since: Some(long_ago), ..AgentFacts::default() };
    facts.labels.operator.insert("zone".to_owned(), zone_name(agent.zone));
    Row {
        agent: Some(facts),
        orders: [(PLUGIN.to_owned(), order)].into(),
        report: Some(ReportFacts { architecture: "amd64".to_owned(), ..ReportFacts::default() }),
        ..Row::default()
    }
}
