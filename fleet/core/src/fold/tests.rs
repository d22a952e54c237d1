//! Laws of the fold over random histories, and what its words are.

use std::collections::BTreeMap;
use std::sync::{Arc, LazyLock};

use proptest::prelude::*;

use super::*;
use crate::desired::{Permission, decide};
use crate::drift::{Drift, Lack, OwnersChange, OwnersKind};
use crate::health::{Cause, Fault, Level};
use crate::labels::Labels;
use crate::presence::Beat;
use crate::repair::{Repair, Stop};
use crate::rollout::{self, Grant, Plan, Rollout, Stage, State};
use crate::selector::{OwnLabels, Selector};
use crate::time::UtcOnly;
use crate::view::{
    Archive, Assignment, AssignmentRollout, Hold, Plugins, Release, Target, View, Window,
};
use crate::window::Weekly;

const START: u64 = 1_767_225_600;
const HOUR: u64 = 3600;
const DAY: u64 = 24 * HOUR;
const AGENTS: [&str; 4] = ["a-1", "a-2", "b-1", "b-2"];
const PLUGIN_NAMES: [&str; 3] = ["log", "metrics", "probe"];
const REVISIONS: [&str; 3] = ["1", "2", "9"];

fn selector(text: &str) -> Selector {
    Selector::parse(text).expect("it parses")
}

fn assignment(plugin: &str, target: Target, selects: &str, priority: i32) -> Assignment {
    Assignment {
        plugin: plugin.to_owned(),
        target,
        selector: selector(selects),
        own_labels: OwnLabels::Ignored,
        priority,
        attempt: 0,
        strategy: rollout::Strategy::default(),
        declared: None,
    }
}

fn revision(revision: &str) -> Target {
    Target::Revision(revision.to_owned())
}

/// Several declarations, from nothing to many.
fn view(which: usize) -> View {
    let mut view = View::default();
    if which == 0 {
        return view;
    }
    for (plugin, number) in [("log", "1"), ("log", "2"), ("metrics", "1"), ("probe", "1")] {
        let name = ReleaseName { plugin: plugin.to_owned(), revision: number.to_owned() };
        let archives = [("amd64".to_owned(), Archive::default())].into();
        view.releases.insert(name, Release { archives, order: vec![1] });
    }
    let mut add = |name: &str, assignment| view.assignments.insert(name.to_owned(), assignment);
    add("log-all", assignment("log", revision("1"), "all", 0));
    add("metrics", assignment("metrics", revision("1"), "env = prod", 0));
    if which >= 2 {
        add("log-prod", assignment("log", revision("2"), "env = prod", 5));
        add("no-probe", assignment("probe", Target::Absent, "all", 0));
        let hold = |selects: &str, until| Hold {
            selector: selector(selects),
            own_labels: OwnLabels::Ignored,
            plugins: Plugins::Named(["log".to_owned()].into()),
            reason: "busy".to_owned(),
            by: "ann".to_owned(),
            until,
        };
        view.holds.insert("freeze".to_owned(), hold("env = prod", Some(Seconds(START + DAY))));
        let weekly = Weekly { days: [true; 7], opens: 120, minutes: 60, zone: "UTC".to_owned() };
        let window = Window {
            selector: selector("env = test"),
            own_labels: OwnLabels::Ignored,
            plugins: Plugins::All,
            weekly,
        };
        view.windows.insert("night".to_owned(), window);
        let mut rollout = Rollout::new(revision("9"), revision("1"), Plan::usual(4, 60));
        rollout.state = State::Running(Stage::Reaching);
        let last = u64::MAX / 2;
        rollout.grant = Some(Grant { label: None, first: 0, last, since: Seconds(START) });
        view.rollouts
            .insert("metrics".to_owned(), AssignmentRollout::first("spring", "metrics", rollout));
        if which >= 3 {
            add("log-other", assignment("log", revision("1"), "env = prod", 5));
            add("metrics-2", assignment("metrics", revision("7"), "env = test", 1));
            view.holds.insert("all".to_owned(), hold("all", None));
        }
        if which >= 4 {
            let stop = Stop::LedgerWentBack { agent: "a-1".to_owned(), generation: 9 };
            let repair = Repair { stop: Some(stop), ..Repair::default() };
            view.repairs.insert("log-all".to_owned(), repair);
        }
    }
    view
}

fn declared(which: usize) -> Arc<Declared> {
    static ALL: LazyLock<[Arc<Declared>; 5]> =
        LazyLock::new(|| std::array::from_fn(|which| Arc::new(declare(which))));
    ALL[which].clone()
}

fn declare(which: usize) -> Declared {
    Declared::new(&view(which), |_, plugin, _| if plugin == "log" { 120 } else { 2 * HOUR })
}

#[derive(Clone, Debug)]
enum Happening {
    Told(&'static str, Box<Input>),
    Declared(usize),
    Passed(u64),
}

fn seconds() -> impl Strategy<Value = Seconds> {
    (0..40 * DAY).prop_map(|offset| Seconds(START - 35 * DAY + offset))
}

fn agent_facts() -> impl Strategy<Value = AgentFacts> {
    let labels = prop_oneof![Just(None), Just(Some("prod")), Just(Some("test"))];
    let times = (prop::option::of(seconds()), prop::option::of(seconds()), seconds());
    (labels, any::<(bool, bool)>(), prop::option::weighted(0.2, seconds()), times).prop_map(
        |(env, (is_ephemeral, is_quarantined), archived, (seen, since, _))| {
            let mut labels = Labels::default();
            labels.operator.extend(env.map(|env| ("env".to_owned(), env.to_owned())));
            let quarantine = is_quarantined.then(|| "two machines".to_owned());
            let facts = AgentFacts {
                labels,
                quarantine,
                archived,
                is_ephemeral,
                since,
                ..AgentFacts::default()
            };
            facts.seen_at(seen)
        },
    )
}

fn step() -> impl Strategy<Value = Step> {
    prop::sample::select(vec![
        Step::Sent,
        Step::Acknowledged,
        Step::Begun,
        Step::Done,
        Step::Adopted,
        Step::Failed,
        Step::TakenBack,
    ])
}

fn plugin() -> impl Strategy<Value = String> {
    prop::sample::select(PLUGIN_NAMES.to_vec()).prop_map(str::to_owned)
}

fn target() -> impl Strategy<Value = Target> {
    let some = prop::sample::select(REVISIONS.to_vec()).prop_map(revision);
    prop_oneof![4 => some, 1 => Just(Target::Absent)]
}

fn drift() -> impl Strategy<Value = Option<Drift>> {
    let change = OwnersChange { kind: OwnersKind::Removed, by: "root".to_owned() };
    let lack = prop::sample::select(vec![Lack::WentBack, Lack::Differs, Lack::ByOwner(change)]);
    prop::option::weighted(0.3, lack.prop_map(|lack| Drift { lack, since: Seconds(START) }))
}

fn orders() -> impl Strategy<Value = BTreeMap<String, OrderFacts>> {
    let order = (target(), 0..2_u32, step(), seconds(), drift()).prop_map(
        |(target, attempt, step, since, drift)| {
            let ordered = Ordered { assignment: "metrics".to_owned(), ..Ordered::found(target) };
            OrderFacts { attempt, generation: 1, drift, ..OrderFacts::new(ordered, step, since) }
        },
    );
    prop::collection::btree_map(plugin(), order, 0..3)
}

fn report() -> impl Strategy<Value = ReportFacts> {
    let revision = prop::option::of(prop::sample::select(REVISIONS.to_vec()));
    let reported = (revision, any::<bool>(), fault());
    let reported = reported.prop_map(|(revision, is_held, fault)| ReportedFacts {
        revision: revision.map(str::to_owned),
        is_held,
        fault,
        ..ReportedFacts::default()
    });
    let plugins = prop::collection::btree_map(plugin(), reported, 0..3);
    (plugins, prop::sample::select(vec!["amd64", "arm64", ""]), any::<bool>()).prop_map(
        |(plugins, architecture, tells_faults)| ReportFacts {
            architecture: architecture.to_owned(),
            plugins,
            tells_faults,
            ..ReportFacts::default()
        },
    )
}

fn fault() -> impl Strategy<Value = Option<Fault>> {
    let level = prop::sample::select(vec![Level::Degraded, Level::Failing]);
    let cause = prop::sample::select(vec![Cause::Unhealthy, Cause::OutOfMemory, Cause::Down]);
    let fault = (level, cause).prop_map(|(level, cause)| {
        let (reason, since) = ("no disk".to_owned(), Some(Seconds(START)));
        Fault { level, cause, reason, since }
    });
    prop::option::weighted(0.4, fault)
}

/// The gateways of sessions: one lives, and one died.
fn session() -> impl Strategy<Value = Option<Session>> {
    let gateway = prop::sample::select(vec!["lives", "died"]);
    let times = (0..600_u64, prop::option::of(0..600_u64));
    let session = (gateway, times).prop_map(|(gateway, (begun, lasted))| Session {
        gateway: gateway.to_owned(),
        begun: Seconds(START + begun),
        ended: lasted.map(|lasted| Seconds(START + begun + lasted)),
    });
    prop::option::weighted(0.7, session)
}

fn input() -> impl Strategy<Value = Input> {
    let event = (plugin(), 1..40_u64, 1..9_u64).prop_map(|(plugin, position, number)| {
        let event = LastEvent { position, number, ..LastEvent::default() };
        let crash = (position % 4 > 0).then(|| Crash {
            at: Seconds(START + position * 60),
            happened: Seconds(START + position * 60),
            count: 1 + u32::from(position % 5 == 0),
            revision: (number % 4 / 3 + 1).to_string(),
            reason: "exit code 3".to_owned(),
        });
        Input::Event { plugin, event, crash }
    });
    prop_oneof![
        5 => prop::option::weighted(0.85, agent_facts()).prop_map(Input::Agent),
        4 => (orders(), session()).prop_map(|(orders, session)| Input::Journal(orders, session)),
        3 => prop::option::weighted(0.8, report()).prop_map(Input::Report),
        1 => event,
    ]
}

fn told() -> impl Strategy<Value = (&'static str, Input)> {
    (prop::sample::select(AGENTS.to_vec()), input())
}

fn history() -> impl Strategy<Value = Vec<Happening>> {
    let happening = prop_oneof![
        8 => told().prop_map(|(agent, input)| Happening::Told(agent, Box::new(input))),
        1 => (0..5_usize).prop_map(Happening::Declared),
        2 => prop_oneof![0..200_u64, 0..3 * HOUR, 0..9 * DAY].prop_map(Happening::Passed),
    ];
    prop::collection::vec(happening, 0..30)
}

/// A fold, the declarations it follows, and the time.
struct Run {
    fold: Fold,
    which: usize,
    now: Seconds,
}

impl Run {
    fn begin() -> Self {
        let mut fold = Fold::default();
        fold.advance(Seconds(START));
        Self { fold, which: 2, now: Seconds(START) }
    }

    fn step(&mut self, happening: &Happening) -> Effect {
        match happening {
            Happening::Told(agent, input) => {
                return self.fold.apply(agent, (**input).clone(), &declared(self.which));
            }
            Happening::Declared(which) => {
                let changed = self.fold.declare(&declared(self.which), &declared(*which));
                assert!(changed.len() <= self.fold.rows().len());
                self.which = *which;
            }
            Happening::Passed(seconds) => {
                self.now = self.now.plus(*seconds);
                self.fold.advance(self.now);
            }
        }
        Effect::Nothing
    }

    fn is_counted_rightly(&self) -> Result<(), TestCaseError> {
        let declared = declared(self.which);
        let recount = count(self.fold.rows(), &declared, self.now);
        prop_assert_eq!(self.fold.counts(), &recount);
        for ahead in [0, 5, 61, 700, 3 * HOUR, 20 * DAY, 60 * DAY] {
            self.words_are_counted(&declared, self.now.plus(ahead))?;
        }
        Ok(())
    }

    /// The counts, without any change of a row, say at a later time what each row says then.
    fn words_are_counted(&self, declared: &Declared, at: Seconds) -> Result<(), TestCaseError> {
        let (holds, windows) = (declared.holds(), declared.windows());
        let doors = Doors { holds: &holds, windows: &windows, zones: &UtcOnly };
        let mut found: BTreeMap<(String, String, Word), u64> = BTreeMap::new();
        let mut present: BTreeMap<Presence, u64> = BTreeMap::new();
        let gateways = [("lives", Beat::Last(at)), ("died", Beat::End(Seconds(START + HOUR)))];
        let gateways = gateways.map(|(gateway, beat)| (gateway.to_owned(), beat)).into();
        let links = Links { gateways, ..Links::default() };
        for (cell, number) in self.fold.counts().at(at) {
            match cell {
                Cell::Assigned { assignment, plugin, mark, .. } => {
                    let key = (assignment, plugin, mark.word(at, &doors));
                    *found.entry(key).or_default() += number;
                }
                Cell::Agents(place) => {
                    *present.entry(place.presence(&links, at)).or_default() += number;
                }
                Cell::Having { .. }
                | Cell::HeldByOwner { .. }
                | Cell::Over
                | Cell::Faulty { .. } => {}
            }
        }
        let mut expected = BTreeMap::new();
        let mut expected_present = BTreeMap::new();
        for row in self.fold.rows().values() {
            if let Some(presence) = row.presence(&links, at) {
                *expected_present.entry(presence).or_default() += 1;
            }
            for (plugin, wanted) in row.wanted.iter().filter(|_| row.agent.is_some()) {
                let word = row.word(plugin, at, &doors);
                let key = (wanted.assignment.clone(), plugin.clone(), word);
                *expected.entry(key).or_default() += 1;
            }
        }
        prop_assert_eq!(found, expected);
        prop_assert_eq!(present, expected_present);
        Ok(())
    }
}

proptest! {
    #[test]
    fn law_counts_equal_a_recount_at_every_step_and_every_later_time(history in history()) {
        let mut run = Run::begin();
        for happening in &history {
            let _effect = run.step(happening);
            run.is_counted_rightly()?;
        }
    }

    #[test]
    fn law_the_same_input_twice_changes_nothing(history in history()) {
        let mut run = Run::begin();
        for happening in &history {
            let _effect = run.step(happening);
            let (rows, counts) = (run.fold.rows().clone(), run.fold.counts().clone());
            let is_time = matches!(happening, Happening::Passed(_));
            if !is_time {
                prop_assert_eq!(run.step(happening), Effect::Nothing);
            }
            prop_assert_eq!(run.fold.rows(), &rows);
            prop_assert_eq!(run.fold.counts(), &counts);
        }
    }

    #[test]
    fn law_inputs_about_different_agents_can_be_exchanged(
        inputs in prop::collection::vec(told(), 0..20),
        order in any::<u64>(),
    ) {
        let mut whole = Run::begin();
        for (agent, input) in &inputs {
            let _effect = whole.step(&Happening::Told(agent, Box::new(input.clone())));
        }
        // The same per agent, agent by agent, in an order that is drawn.
        let mut agents = AGENTS;
        agents.rotate_left(usize::try_from(order % 4).unwrap_or(0));
        if order % 8 > 3 {
            agents.reverse();
        }
        let mut apart = Run::begin();
        for one in agents {
            for (agent, input) in inputs.iter().filter(|(agent, _)| *agent == one) {
                let _effect = apart.step(&Happening::Told(agent, Box::new(input.clone())));
            }
        }
        prop_assert_eq!(whole.fold.rows(), apart.fold.rows());
        prop_assert_eq!(whole.fold.counts(), apart.fold.counts());
    }

    #[test]
    fn law_what_was_kept_and_the_rest_is_the_whole(history in history(), cut in any::<prop::sample::Index>()) {
        let cut = cut.index(history.len() + 1);
        let mut whole = Run::begin();
        let mut part = Run::begin();
        for (at, happening) in history.iter().enumerate() {
            if at == cut {
                let rows = part.fold.rows().clone();
                part.fold = Fold::of_rows(rows, &declared(part.which), part.now);
            }
            let _effects = (whole.step(happening), part.step(happening));
        }
        prop_assert_eq!(whole.fold.rows(), part.fold.rows());
        prop_assert_eq!(whole.fold.counts(), part.fold.counts());
    }

    #[test]
    fn law_deleting_everything_leaves_nothing(history in history()) {
        let mut run = Run::begin();
        for happening in &history {
            let _effect = run.step(happening);
        }
        for agent in AGENTS {
            for input in [Input::Agent(None), Input::Journal(BTreeMap::new(), None), Input::Report(None)] {
                let _effect = run.step(&Happening::Told(agent, Box::new(input)));
            }
        }
        prop_assert!(run.fold.rows().is_empty());
        prop_assert_eq!(run.fold.counts(), &Tally::at_time(run.now));
    }

    /// The words are those of the function that gateways decide by.
    #[test]
    fn law_what_keeps_a_change_back_is_what_decides(history in history(), ahead in 0..9 * DAY) {
        let mut run = Run::begin();
        for happening in &history {
            let _effect = run.step(happening);
        }
        let view = view(run.which);
        let declared = declared(run.which);
        let (holds, windows) = (declared.holds(), declared.windows());
        let doors = Doors { holds: &holds, windows: &windows, zones: &UtcOnly };
        let now = run.now.plus(ahead);
        for (id, row) in run.fold.rows().iter().filter(|(_, row)| row.agent.is_some()) {
            let agent = row.decided_on(id);
            for plugin in PLUGIN_NAMES {
                let decision = decide(&view, &agent, plugin, now, &UtcOnly);
                let wanted = row.wanted.get(plugin);
                let target = decision.as_ref().map(|decision| &decision.target);
                prop_assert_eq!(wanted.map(|wanted| &wanted.target), target);
                let Standing::KeptBack(barrier) = row.standing(plugin) else { continue };
                let word = barrier.mark().word(now, &doors);
                let turn = decision.as_ref().and_then(|decision| decision.turn.as_ref());
                if turn.is_some_and(|turn| turn.waits) && word == Word::WaitsForWave {
                    continue;
                }
                let expected = match decision.map(|decision| decision.permission) {
                    None => Word::NotAssigned,
                    Some(Permission::Go) => Word::Waits,
                    Some(Permission::Conflict { .. }) => Word::Conflict,
                    Some(Permission::Quarantined(_)) => Word::Quarantined,
                    Some(Permission::NoRelease) => Word::NoRelease,
                    Some(Permission::NoArchive { .. }) => Word::NoArchive,
                    Some(
                        Permission::WaitsForWave { .. }
                        | Permission::Joins { .. }
                        | Permission::Stopped { .. },
                    ) => Word::WaitsForWave,
                    Some(Permission::Held { .. }) => Word::Held,
                    Some(Permission::HeldByOwner(_)) => Word::HeldByOwner,
                    Some(Permission::OutsideWindow { .. }) => Word::OutsideWindow,
                    Some(Permission::Paused { .. }) => Word::Paused,
                };
                prop_assert_eq!(word, expected);
            }
        }
    }
}

/// A row of an agent that was seen at `START` and was ordered `log`.
fn ordered(step: Step) -> Fold {
    let mut fold = Fold::default();
    let declared = declared(1);
    let agent = AgentFacts::default().seen_at(Some(Seconds(START)));
    let order = OrderFacts::new(Ordered::found(revision("1")), step, Seconds(START));
    let orders = BTreeMap::from([("log".to_owned(), order)]);
    assert_eq!(fold.apply("a-1", Input::Agent(Some(agent)), &declared), Effect::Row);
    assert_eq!(fold.apply("a-1", Input::Journal(orders, None), &declared), Effect::Row);
    fold
}

#[track_caller]
fn check(step: Step, expected: &[(u64, Word)]) {
    let fold = ordered(step);
    let none = (BTreeMap::new(), BTreeMap::new());
    let doors = Doors { holds: &none.0, windows: &none.1, zones: &UtcOnly };
    for (after, word) in expected {
        let row = &fold.rows()["a-1"];
        assert_eq!(
            row.word("log", Seconds(START + after), &doors),
            *word,
            "{after} s after {step:?}"
        );
    }
}

#[test]
fn a_done_order_of_a_plugin_that_is_failing_is_not_done() {
    let (none, declared) = ((BTreeMap::new(), BTreeMap::new()), declared(1));
    let doors = Doors { holds: &none.0, windows: &none.1, zones: &UtcOnly };
    let later = Seconds(START + HOUR);
    let word = |level, cause, revision: Option<&str>, step| {
        let fault = Fault { level, cause, reason: "x".to_owned(), since: None };
        let reported = ReportedFacts {
            revision: revision.map(str::to_owned),
            fault: Some(fault),
            ..ReportedFacts::default()
        };
        let plugins = BTreeMap::from([("log".to_owned(), reported)]);
        let report = ReportFacts { plugins, tells_faults: true, ..ReportFacts::default() };
        let mut fold = ordered(step);
        let _row = fold.apply("a-1", Input::Report(Some(report)), &declared);
        let faulty =
            Cell::Faulty { plugin: "log".to_owned(), fingerprint: "unhealthy: x".to_owned() };
        let counted = fold.counts().at(later).get(&faulty).copied();
        (fold.rows()["a-1"].word("log", later, &doors), counted)
    };
    let failing = |cause| word(Level::Failing, cause, Some("1"), Step::Done).0;
    assert_eq!(failing(Cause::CrashLoop), Word::CrashLoop);
    assert_eq!(failing(Cause::OutOfMemory), Word::OutOfMemory);
    assert_eq!(failing(Cause::Down), Word::Failing);
    let unhealthy = |revision, step| word(Level::Failing, Cause::Unhealthy, revision, step);
    assert_eq!(unhealthy(Some("1"), Step::Done), (Word::Unhealthy, Some(1)));
    assert_eq!(unhealthy(Some("1"), Step::Adopted), (Word::Unhealthy, Some(1)));
    assert_eq!(unhealthy(None, Step::Done), (Word::Unhealthy, Some(1)));
    // The report is older than the order, or the order says more.
    assert_eq!(unhealthy(Some("2"), Step::Done), (Word::Done, Some(1)));
    assert_eq!(unhealthy(Some("1"), Step::Failed), (Word::Failed, None));
    let degraded = word(Level::Degraded, Cause::Unhealthy, Some("1"), Step::Done);
    assert_eq!(degraded, (Word::Done, None));
}

#[test]
fn of_an_agent_whose_reports_tell_no_faults_events_tell_of_crash_loops() {
    let (none, declared) = ((BTreeMap::new(), BTreeMap::new()), declared(1));
    let doors = Doors { holds: &none.0, windows: &none.1, zones: &UtcOnly };
    let crashed = |revision: &str, tells_faults| {
        let mut fold = ordered(Step::Done);
        let report = ReportFacts { tells_faults, ..ReportFacts::default() };
        let _row = fold.apply("a-1", Input::Report(Some(report)), &declared);
        for at in 1..=4 {
            let event = LastEvent { position: at, number: at, ..LastEvent::default() };
            let crash = Crash {
                at: Seconds(START + HOUR + at * 60),
                happened: Seconds(START + HOUR + at * 60),
                count: 1,
                revision: revision.to_owned(),
                reason: "exit code 3".to_owned(),
            };
            let crash = Some(crash);
            let _row = fold.apply(
                "a-1",
                Input::Event { plugin: "log".to_owned(), event, crash },
                &declared,
            );
        }
        let row = fold.rows()["a-1"].clone();
        [HOUR + 300, HOUR + 120 + 1799, HOUR + 120 + 1800]
            .map(|after| row.word("log", Seconds(START + after), &doors))
    };
    let looping = [Word::CrashLoop, Word::CrashLoop, Word::Done];
    assert_eq!(crashed("1", false), looping, "it ends by itself, when the crashes are long ago");
    assert_eq!(crashed("", false), looping);
    assert_eq!(crashed("2", false), [Word::Done; 3], "another revision crashed");
    assert_eq!(crashed("1", true), [Word::Done; 3], "the agent knows better");
}

#[test]
fn a_failure_counts_by_its_fingerprint_and_a_hold_of_an_owner_by_its_plugin() {
    let declared = declared(1);
    let mut fold = ordered(Step::Failed);
    let agent = AgentFacts::default().seen_at(Some(Seconds(START)));
    let held = ReportedFacts { is_held: true, ..ReportedFacts::default() };
    let plugins = BTreeMap::from([("log".to_owned(), held)]);
    let report = ReportFacts { plugins, ..ReportFacts::default() };
    let _row = fold.apply("a-1", Input::Report(Some(report)), &declared);
    let found = |fold: &Fold| {
        let counts = fold.counts().at(Seconds(START + HOUR));
        let count = |cell| counts.get(&cell).copied().unwrap_or(0);
        let (plugin, fingerprint) = ("log".to_owned(), "failed".to_owned());
        let faulty = Cell::Faulty { plugin: plugin.clone(), fingerprint };
        (count(faulty), count(Cell::HeldByOwner { plugin }), count(Cell::Over))
    };
    assert_eq!(found(&fold), (1, 1, 0));
    let archived = AgentFacts { archived: Some(Seconds(START)), ..agent };
    let _row = fold.apply("a-1", Input::Agent(Some(archived)), &declared);
    assert_eq!(found(&fold), (0, 0, 2), "it left the count");
}

#[test]
fn a_failure_that_begins_with_a_crash_counts_as_that_crash() {
    let declared = declared(1);
    let fingerprint = |step, reason: &str, revision: &str, at: u64| {
        let mut fold = ordered(step);
        let order = fold.rows()["a-1"].orders["log"].clone();
        let orders =
            BTreeMap::from([("log".to_owned(), OrderFacts { reason: reason.to_owned(), ..order })]);
        let _row = fold.apply("a-1", Input::Journal(orders, None), &declared);
        let crash = Crash {
            at: Seconds(at),
            happened: Seconds(at),
            count: 1,
            revision: revision.to_owned(),
            reason: "exit code 3".to_owned(),
        };
        let event = LastEvent { position: 1, number: 1, ..LastEvent::default() };
        let event = Input::Event { plugin: "log".to_owned(), event, crash: Some(crash) };
        let _row = fold.apply("a-1", event, &declared);
        let faulty = |cell| match cell {
            Cell::Faulty { fingerprint, .. } => Some(fingerprint),
            _ => None,
        };
        let counts = fold.counts().at(Seconds(START + HOUR));
        counts.into_keys().find_map(faulty).unwrap_or_default()
    };
    let (back, crashed) = ("exit code 3, while on probation", "crashed: exit code 3");
    assert_eq!(fingerprint(Step::TakenBack, back, "1", START + 5), crashed);
    assert_eq!(fingerprint(Step::Failed, "exit code 3", "1", START + 5), crashed);
    assert_eq!(fingerprint(Step::Failed, "", "", START + 5), crashed, "it does not say which");
    assert_eq!(fingerprint(Step::Failed, "no space", "1", START + 5), "failed: no space");
    // A crash of another revision, or of before the order, is another matter.
    let taken_back = "taken back: exit code 3, while on probation";
    assert_eq!(fingerprint(Step::TakenBack, back, "2", START + 5), taken_back);
    assert_eq!(fingerprint(Step::TakenBack, back, "1", START - 5), taken_back);
}

#[test]
fn an_archive_says_more_than_a_quarantine_and_that_more_than_a_stream() {
    let free = AgentFacts::default().seen_at(Some(Seconds(START)));
    let quarantined = AgentFacts { quarantine: Some("two machines".to_owned()), ..free.clone() };
    let archived = AgentFacts { archived: Some(Seconds(START + DAY)), ..quarantined.clone() };
    for linked in [Presence::Connected, Presence::Disconnected, Presence::NeverSeen] {
        let at = |agent: &AgentFacts, after| agent.presence(linked, Seconds(START + after));
        assert_eq!(at(&free, DAY), linked);
        assert_eq!(at(&quarantined, DAY), Presence::Quarantined);
        assert_eq!(at(&archived, DAY - 1), Presence::Quarantined);
        assert_eq!(at(&archived, DAY), Presence::Archived);
    }
}

#[test]
fn a_done_order_of_which_something_is_lacking_is_not_done() {
    let wanted = ordered(Step::Done).rows()["a-1"].wanted["log"].clone();
    let of = |wanted: &Wanted, lack: Option<Lack>, step| {
        let drift = lack.map(|lack| Drift { lack, since: Seconds(START) });
        let order = OrderFacts::new(Ordered::found(revision("1")), step, Seconds(START));
        Standing::of(Some(wanted), Some(&OrderFacts { drift, ..order }), None)
    };
    let by = |kind| Some(Lack::ByOwner(OwnersChange::new(kind, "")));
    for step in [Step::Done, Step::Adopted, Step::Acknowledged] {
        assert_eq!(of(&wanted, Some(Lack::WentBack), step), Standing::Drifted);
        assert_eq!(of(&wanted, Some(Lack::Differs), step), Standing::Drifted);
        assert_eq!(of(&wanted, by(OwnersKind::Removed), step), Standing::ChangedByOwner);
    }
    assert!(matches!(of(&wanted, None, Step::Done), Standing::Done { .. }));
    // A policy undoes what an order can undo.
    let undone = Wanted { undoes_owners: true, ..wanted };
    assert_eq!(of(&undone, by(OwnersKind::Removed), Step::Done), Standing::Drifted);
    assert_eq!(of(&undone, by(OwnersKind::Stopped), Step::Done), Standing::ChangedByOwner);
}

#[test]
fn what_was_ordered_before_the_ledger_went_back_is_not_called_done() {
    let declared = declared(1);
    let standing = |order: u64, reported: u64| {
        let mut fold = ordered(Step::Done);
        let facts = OrderFacts::new(Ordered::found(revision("1")), Step::Done, Seconds(START));
        let facts = OrderFacts { generation: order, ..facts };
        let found = ReportedFacts { generation: reported, ..ReportedFacts::default() };
        let plugins = BTreeMap::from([("log".to_owned(), found)]);
        let report = ReportFacts { plugins, ..ReportFacts::default() };
        let orders = BTreeMap::from([("log".to_owned(), facts)]);
        let _effect = fold.apply("a-1", Input::Journal(orders, None), &declared);
        let _effect = fold.apply("a-1", Input::Report(Some(report)), &declared);
        fold.rows()["a-1"].standing("log")
    };
    assert!(matches!(standing(5, 5), Standing::Done { .. }));
    assert!(matches!(standing(5, 6), Standing::KeptBack(_)));
    // A row of an older program has no generation, and no fleet gave one of tomorrow's tomorrow.
    assert!(matches!(standing(0, 6), Standing::Done { .. }));
    assert!(matches!(standing(5, u64::MAX), Standing::Done { .. }));
}

#[test]
fn words_begin_and_end_with_their_deadlines() {
    check(Step::Sent, &[(0, Word::Ordered), (119, Word::Ordered), (120, Word::Silent)]);
    check(Step::Acknowledged, &[(0, Word::Acknowledged), (120, Word::Silent)]);
    check(Step::Begun, &[(119, Word::Installing), (120, Word::Silent)]);
    check(Step::Done, &[(0, Word::OnProbation), (29, Word::OnProbation), (30, Word::Done)]);
    check(Step::Adopted, &[(0, Word::Done)]);
    check(Step::Failed, &[(0, Word::Failed), (DAY, Word::Failed)]);
    check(Step::TakenBack, &[(0, Word::TakenBack)]);
    for step in [Step::Sent, Step::Done, Step::Failed] {
        check(step, &[(30 * DAY + 6 * HOUR, Word::Archived), (400 * DAY, Word::Archived)]);
    }
}

#[test]
fn an_agent_that_is_not_seen_is_near_then_away_then_archived_and_comes_back() {
    let mut fold = ordered(Step::Done);
    let found = |fold: &Fold, after| {
        let (row, at) = (&fold.rows()["a-1"], Seconds(START + after));
        (row.is_near(at), row.is_counted(at))
    };
    assert_eq!(found(&fold, AWAY_AFTER - 1), (true, true));
    assert_eq!(found(&fold, AWAY_AFTER), (false, true));
    assert_eq!(found(&fold, 29 * DAY), (false, true));
    assert_eq!(found(&fold, 31 * DAY), (false, false));
    fold.advance(Seconds(START + 31 * DAY));
    let counted = |fold: &Fold, presence| {
        let cell = Cell::Agents(Place::Is(presence));
        fold.counts().now().any(|(found, _)| *found == cell)
    };
    assert!(counted(&fold, Presence::Archived));
    let back = AgentFacts::default().seen_at(Some(Seconds(START + 31 * DAY)));
    assert_eq!(fold.apply("a-1", Input::Agent(Some(back)), &declared(1)), Effect::Row);
    assert_eq!(found(&fold, 31 * DAY), (true, true));
    assert!(counted(&fold, Presence::Disconnected), "it has no session");
}

#[test]
fn an_agent_is_where_its_session_is_and_offline_when_that_ended_a_while_ago() {
    let declared = (*declared(1)).clone().offline_after(60);
    let mut fold = Fold::default();
    let agent = AgentFacts::default().seen_at(Some(Seconds(START)));
    let _row = fold.apply("a-1", Input::Agent(Some(agent.clone())), &declared);
    let mut counted = |session: Option<Session>, quarantine: Option<&str>, after| {
        let quarantine = quarantine.map(str::to_owned);
        let agent = AgentFacts { quarantine, ..agent.clone() };
        let _row = fold.apply("a-1", Input::Agent(Some(agent)), &declared);
        let _row = fold.apply("a-1", Input::Journal(BTreeMap::new(), session), &declared);
        let counts = fold.counts().at(Seconds(START + after)).into_keys();
        let places = counts.filter_map(|cell| match cell {
            Cell::Agents(place) => Some(place),
            _ => None,
        });
        places.collect::<Vec<_>>()
    };
    let session = |ended: Option<u64>| {
        let ended = ended.map(|after| Seconds(START + after));
        Some(Session { gateway: "g".to_owned(), begun: Seconds(START + 50), ended })
    };
    assert_eq!(counted(session(None), None, DAY), [Place::At("g".to_owned())]);
    let ended = session(Some(100));
    assert_eq!(counted(ended.clone(), None, 159), [Place::Is(Presence::Disconnected)]);
    assert_eq!(counted(ended.clone(), None, 160), [Place::Is(Presence::Offline)]);
    assert_eq!(counted(ended.clone(), None, 31 * DAY), [Place::Is(Presence::Archived)]);
    assert_eq!(counted(ended, Some("cloned"), 160), [Place::Is(Presence::Quarantined)]);
    // A clock that went back does not end a session before it began.
    assert_eq!(counted(session(Some(0)), None, 109), [Place::Is(Presence::Disconnected)]);
}

#[test]
fn events_of_one_plugin_count_in_the_order_of_the_log() {
    let mut fold = ordered(Step::Done);
    let declared = declared(1);
    let mut tell = |position, number| {
        let event = LastEvent { position, number, kind: 3, ..LastEvent::default() };
        fold.apply("a-1", Input::Event { plugin: "log".to_owned(), event, crash: None }, &declared)
    };
    assert_eq!(tell(10, 4), Effect::Row);
    assert_eq!(tell(10, 4), Effect::Nothing, "the same again");
    assert_eq!(tell(9, 3), Effect::Nothing, "an older one");
    assert_eq!(tell(20, 8), Effect::Row, "three are missing");
    assert_eq!(tell(30, 1), Effect::Row, "the log forgot the others with their age");
    assert_eq!(fold.rows()["a-1"].events["log"].missed, 3);
    let event = Input::Event { plugin: "log".to_owned(), event: LastEvent::default(), crash: None };
    assert_eq!(fold.apply("nobody", event, &declared), Effect::Nothing);
    assert!(!fold.rows().contains_key("nobody"));
}

#[test]
fn what_a_row_keeps_is_bounded_whatever_comes() {
    let long = "ä".repeat(400);
    assert_eq!(bounded(&long).len(), TEXT_BYTES);
    let many = (0..1000).map(|number| (format!("k{number:04}"), "v".to_owned()));
    let labels = bounded_labels(&many.chain([("a".to_owned(), long.clone())]).collect());
    assert_eq!(labels.len(), LABELS);
    assert!(!labels.contains_key("a"), "a cut value would select something else");
    let mut fold = ordered(Step::Done);
    for number in 0..2 * PLUGINS as u64 {
        let event = LastEvent { position: number + 1, number: 1, ..LastEvent::default() };
        let _effect = fold.apply(
            "a-1",
            Input::Event { plugin: format!("p{number}"), event, crash: None },
            &declared(1),
        );
    }
    assert_eq!(fold.rows()["a-1"].events.len(), PLUGINS);
    let mut view = View::default();
    for number in 0..2 * PLUGINS {
        let one = assignment(&format!("p{number:04}"), Target::Absent, "all", 0);
        view.assignments.insert(format!("a{number}"), one);
    }
    let many = Declared::new(&view, |_, _, _| 60);
    let _changed = fold.declare(&declared(1), &many);
    assert_eq!(fold.rows()["a-1"].wanted.len(), PLUGINS);
    assert_eq!(fold.counts(), &count(fold.rows(), &many, Seconds(0)));
}

#[test]
fn many_agents_have_few_moments_ahead() {
    let mut fold = Fold::default();
    let declared = declared(1);
    for number in 0..5_000_u64 {
        let id = format!("a-{number}");
        let seen = Seconds(START - number * 17);
        let agent = AgentFacts::default().seen_at(Some(seen));
        let _effect = fold.apply(&id, Input::Agent(Some(agent)), &declared);
        let at = Seconds(START - number % 120);
        let order = OrderFacts::new(Ordered::found(revision("1")), Step::Acknowledged, at);
        let orders = BTreeMap::from([("log".to_owned(), order)]);
        let session = Session {
            gateway: "g".to_owned(),
            begun: Seconds(START - DAY),
            ended: (number % 3 > 0).then_some(Seconds(START - number % 120)),
        };
        let _effect = fold.apply(&id, Input::Journal(orders, Some(session)), &declared);
        let event = LastEvent { position: number + 1, number: 1, ..LastEvent::default() };
        let crash = Some(Crash { happened: at, count: 3, ..Crash::default() });
        let _effect =
            fold.apply(&id, Input::Event { plugin: "log".to_owned(), event, crash }, &declared);
    }
    fold.advance(Seconds(START));
    let moments = fold.counts().later().count();
    assert!(moments <= 100, "{moments}");
}
