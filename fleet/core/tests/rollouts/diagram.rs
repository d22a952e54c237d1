//! Draws the machine of a rollout.
//!
//! The arrows are not written down anywhere: they are found by letting everything happen in every
//! state that a rollout gets into.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use guest_fleet_core::gate::Failure;
use guest_fleet_core::rollout::{
    Candidate, Change, Counts, DRY, Decision, OnHalt, PATIENCE, Plan, Rollout, Size, Stage, State,
    Verb, Wave, step,
};
use guest_fleet_core::target::Target;
use guest_fleet_core::time::Seconds;

use crate::page::is_up_to_date;

/// Longer than any wave is watched, and than a grant stays open.
const LATER: u64 = PATIENCE + 1;

/// What an arrow is called that a rollout takes by itself.
fn label(change: &Change, before: &State) -> &'static str {
    match change {
        Change::Finish if *before == State::Running(Stage::Reaching) => "nobody is left",
        Change::Grant(_) => "next agents",
        Change::Close => "not taken up",
        Change::Soak => "all settled",
        Change::AskApproval => "watched, needs approval",
        Change::NextWave => "watched, next wave",
        Change::Finish => "watched, last wave",
        Change::Halt(_) => "the gate",
        Change::GoBack => "auto_back",
        Change::EndRollback => "all went back",
    }
}

fn verbs() -> Vec<Verb> {
    // A verb that is new is one that this list has to have.
    let all = [
        Verb::Start,
        Verb::Pause,
        Verb::Resume { reason: String::new() },
        Verb::Resume { reason: "known".to_owned() },
        Verb::Halt { reason: "a look".to_owned() },
        Verb::RollBack,
        Verb::Approve,
        Verb::Abort,
    ];
    for verb in &all {
        match verb {
            Verb::Start
            | Verb::Pause
            | Verb::Resume { .. }
            | Verb::Halt { .. }
            | Verb::RollBack
            | Verb::Approve
            | Verb::Abort => {}
        }
    }
    all.into()
}

/// What may be counted: nobody, some that wait, some in flight, all that were given it, failures.
fn counted() -> Vec<Counts> {
    let near = |place| Candidate { place, is_reachable: true };
    let away = Candidate { place: 10, is_reachable: false };
    let base = Counts { targets: 4, age_of_closed: DRY, ..Counts::default() };
    let failure = Failure { wave: 0, fingerprint: "exit code 3".to_owned() };
    let mut all = vec![Counts { targets: 0, ..base.clone() }];
    for candidates in [vec![near(10), near(20)], vec![away, near(20)], vec![away], Vec::new()] {
        for (given, in_flight) in [(0, 0), (2, 2), (2, 0), (4, 0)] {
            for failures in [Vec::new(), vec![failure.clone()]] {
                let candidates = candidates.clone();
                let given_of_wave = given;
                all.push(Counts {
                    given,
                    given_of_wave,
                    in_flight,
                    candidates,
                    failures,
                    ..base.clone()
                });
            }
        }
    }
    all
}

/// A state, by what can happen in it.
fn kind(rollout: &Rollout) -> String {
    let Rollout { state, wave, grant, plan, .. } = rollout;
    let stage = match state {
        State::Paused(stage) | State::Running(stage) => match stage {
            Stage::Reaching => "reaching",
            Stage::Soaking { .. } => "soaking",
            Stage::Approval => "approval",
        },
        State::Draft
        | State::Halted(_)
        | State::RollingBack
        | State::RolledBack
        | State::Done
        | State::Aborted => "",
    };
    format!("{} {stage} {wave} {} {:?}", state.name(), grant.is_some(), plan.on_halt)
}

/// One arrow: from, what happened, to.
type Arrow = (&'static str, String, &'static str);

/// What can happen, and the verbs that each state allows.
struct Found {
    arrows: BTreeSet<Arrow>,
    allowed: BTreeMap<&'static str, BTreeSet<&'static str>>,
}

fn of_two() -> Plan {
    Plan { budget: 2, ..Plan::default() }
}

fn explore() -> Found {
    let wave = |size, needs_approval| Wave { size, soak: 60, needs_approval };
    let waves = vec![
        wave(Size::Count(1), false),
        wave(Size::Percent(50), true),
        wave(Size::Percent(100), false),
    ];
    let [from, to] = ["1", "2"].map(|text| Target::Revision(text.to_owned()));
    let mut ahead =
        vec![Rollout::new(from.clone(), to.clone(), Plan { waves: waves.clone(), ..of_two() })];
    let goes_back = Plan { waves, on_halt: OnHalt::GoBack, ..of_two() };
    ahead.push(Rollout::new(from, to, goes_back));
    let (mut seen, counted) = (BTreeSet::new(), counted());
    let mut found = Found { arrows: BTreeSet::new(), allowed: BTreeMap::new() };
    let mut now = Seconds(1_000);
    while let Some(rollout) = ahead.pop() {
        if !seen.insert(kind(&rollout)) {
            continue;
        }
        now = now.plus(2 * LATER);
        let before = rollout.state.name();
        let allowed = found.allowed.entry(before).or_default();
        for verb in verbs() {
            let mut after = rollout.clone();
            if after.ask(&verb, now).is_ok() {
                allowed.insert(verb.name());
                found.arrows.insert((before, format!("`{}`", verb.name()), after.state.name()));
                ahead.push(after);
            }
        }
        for (counts, at) in
            counted.iter().flat_map(|counts| [(counts, now), (counts, now.plus(LATER))])
        {
            if let Decision::Change(change) = step(&rollout, counts, at) {
                let mut after = rollout.clone();
                after.change(change.clone(), at);
                found.arrows.insert((
                    before,
                    label(&change, &rollout.state).to_owned(),
                    after.state.name(),
                ));
                ahead.push(after);
            }
        }
    }
    assert!(seen.len() > 20, "only {} kinds of states were found", seen.len());
    found
}

/// The name of a state as Mermaid takes it.
fn id(state: &str) -> String {
    state
        .split(' ')
        .map(|word| {
            let (first, rest) = word.split_at(1);
            first.to_uppercase() + rest
        })
        .collect()
}

fn drawing(found: &Found) -> String {
    let mut text = "\n```mermaid\nstateDiagram-v2\n    direction LR\n".to_owned();
    for state in found.allowed.keys().filter(|state| state.contains(' ')) {
        writeln!(text, "    state \"{state}\" as {}", id(state)).expect("it is text");
    }
    text += "    [*] --> Draft\n";
    let mut lines: BTreeMap<(&str, &str), Vec<&str>> = BTreeMap::new();
    for (from, what, to) in &found.arrows {
        lines.entry((from, to)).or_default().push(what.trim_matches('`'));
    }
    for ((from, to), labels) in lines {
        let labels = labels.join(", ");
        writeln!(text, "    {} --> {}: {labels}", id(from), id(to)).expect("it is text");
    }
    let leads_on: BTreeSet<&str> = found.arrows.iter().map(|(from, _, _)| *from).collect();
    for state in found.allowed.keys().filter(|state| !leads_on.contains(*state)) {
        writeln!(text, "    {} --> [*]", id(state)).expect("it is text");
    }
    text + "```\n\n"
}

fn table(found: &Found) -> String {
    let mut text =
        "\n| state | what a person can do | what happens by itself |\n|---|---|---|\n".to_owned();
    for (state, verbs) in &found.allowed {
        let verbs: Vec<String> = verbs.iter().map(|verb| format!("`{verb}`")).collect();
        let own: Vec<String> = found
            .arrows
            .iter()
            .filter(|(from, what, _)| from == state && !what.starts_with('`'))
            .map(|(_, what, to)| if to == state { what.clone() } else { format!("{what}: {to}") })
            .collect();
        let or_nothing = |all: Vec<String>, by: &str| {
            if all.is_empty() { "nothing".to_owned() } else { all.join(by) }
        };
        let (verbs, own) = (or_nothing(verbs, ", "), or_nothing(own, "; "));
        writeln!(text, "| {state} | {verbs} | {own} |").expect("it is text");
    }
    text + "\n"
}

#[test]
fn the_page_shows_the_machine_as_it_is() {
    let found = explore();
    is_up_to_date("fleet-rollouts.md", "the states", &drawing(&found));
    is_up_to_date("fleet-rollouts.md", "what happens in each", &table(&found));
}

#[test]
fn a_state_names_the_verbs_that_it_allows() {
    let found = explore();
    let name_of = |names: &[&'static str]| names.iter().copied().collect::<BTreeSet<_>>();
    let stages = [Stage::Reaching, Stage::Soaking { since: Seconds(1) }, Stage::Approval];
    let cause = guest_fleet_core::rollout::Cause::Person("a look".to_owned());
    let mut states = vec![State::Draft, State::Halted(cause), State::RollingBack];
    states.extend([State::RolledBack, State::Done, State::Aborted]);
    states.extend(stages.map(State::Running));
    states.extend(stages.map(State::Paused));
    let names: BTreeSet<&str> = states.iter().map(State::name).collect();
    assert_eq!(found.allowed.keys().copied().collect::<BTreeSet<_>>(), names);
    for state in states {
        assert_eq!(found.allowed[state.name()], name_of(state.verbs()), "{}", state.name());
    }
}
