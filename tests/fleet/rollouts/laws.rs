//! What has to be true of rollouts, whatever was damaged: by the agents' own records, against the
//! journals, `rollout show` and the audit record.

use std::collections::{BTreeMap, BTreeSet};

use guest_fleet_core::journal::{Order, OrderState};
use guest_fleet_core::view::Target;
use guest_fleet_ledger::records::journal::JournalRecord;
use guest_fleet_server::orders::AGE_MAX;
use serde_json::Value;

use super::havoc::Frozen;
use super::orders::{Life, most_in_flight};
use super::steer::{Look, PLUGIN, standing};
use crate::control::Control;

/// How long a frame may take from a gateway that handed it over until its agent has it on disk, in
/// milliseconds: through the proxy and the store of one of a thousand agents, on two cores that do
/// everything else as well.
const WAY: u64 = 3000;

/// Times of orders are whole seconds.
const SECOND: u64 = 1000;

/// The newest orders, by agent.
pub(super) fn orders(journals: &BTreeMap<String, JournalRecord>) -> BTreeMap<String, Order> {
    let of = |(id, journal): (&String, &JournalRecord)| {
        let entry = journal.plugins.get(PLUGIN)?.entry(id).unwrap();
        Some((id.clone(), entry.order?))
    };
    journals.iter().filter_map(of).collect()
}

/// Orders for this revision.
fn of_revision<'a>(
    orders: &'a BTreeMap<String, Order>,
    revision: &'a str,
) -> impl Iterator<Item = (&'a String, &'a Order)> {
    orders
        .iter()
        .filter(move |(_, order)| matches!(&order.target, Target::Revision(of) if of == revision))
}

/// No more orders were in flight than the budget allows, there and back: as agents saw it, and as the
/// journals have it. An agent takes an order after it was recorded and tells of its end before that is
/// recorded, and times of journals are shortened to the seconds that are certain; so what is
/// counted here is never more than what was in flight.
pub(super) fn within_budget(
    lives: &[Life],
    orders: &BTreeMap<String, Order>,
    (since, until): (u64, u64),
    budget: usize,
) -> Vec<String> {
    let taken = lives
        .iter()
        .flat_map(|life| &life.orders)
        .filter(|order| (since..until).contains(&order.taken));
    let seen = most_in_flight(taken.map(|order| (order.taken, order.settled)));
    let recorded =
        orders.values().filter(|order| (since..until).contains(&(order.made.0 * SECOND)));
    let recorded = most_in_flight(recorded.map(|order| {
        let until = order.state.is_settled().then_some(order.since.0 * SECOND);
        ((order.made.0 + 1) * SECOND, until)
    }));
    crate::say(format_args!("{seen} orders were in flight at one time, by journals {recorded}"));
    let most = seen.max(recorded);
    let is_kept = most <= budget;
    if is_kept { Vec::new() } else { vec![format!("{most} in flight, and {budget} may be")] }
}

/// No order for the revision was made or taken once every view was younger than the halt.
///
/// A gateway looks at the age of its view before it records an order and before it hands it over. One that
/// is stopped after such a look goes on with it when it is let go on, so what was stopped at that moment
/// has until then.
pub(super) fn none_after_halt(
    lives: &[Life],
    orders: &BTreeMap<String, Order>,
    revision: &str,
    halted: u64,
    frozen: &[Frozen],
) -> Vec<String> {
    let last = halted + u64::try_from(AGE_MAX.as_millis()).unwrap();
    let over_it = frozen.iter().filter(|(from, until)| *from <= last && *until > last);
    let last = over_it.map(|(_, until)| *until).max().unwrap_or(last);
    let mut problems = Vec::new();
    for (id, order) in of_revision(orders, revision) {
        if order.made.0 * SECOND > last + SECOND {
            problems.push(format!("{id}: halted at {halted}, {order:?}"));
        }
    }
    for life in lives {
        let orders = life.orders.iter().filter(|order| order.revision == revision);
        // An order has a higher number than the one before, also where both are of one second.
        let is_late = |made: u64| made * SECOND > last + 2 * SECOND;
        let late = orders
            .filter(|order| order.taken > last + WAY || order.generation.is_some_and(is_late));
        problems.extend(late.map(|order| format!("{}: halted at {halted}, {order:?}", life.id)));
    }
    problems
}

/// Everybody runs this revision.
pub(super) fn all_run(lives: &[Life], revision: &str) -> Vec<String> {
    let others = lives.iter().filter(|life| life.runs.as_deref() != Some(revision));
    others.map(|life| format!("{} runs {:?}", life.id, life.runs)).collect()
}

/// Who was not ordered the revision was not touched: no process was started anew.
pub(super) fn others_untouched(before: &[Life], after: &[Life], revision: &str) -> Vec<String> {
    let mut problems = Vec::new();
    for (before, after) in before.iter().zip(after) {
        assert_eq!(before.id, after.id);
        let is_same = before.launched == after.launched && before.pid == after.pid;
        if !after.was_ordered(revision) && !is_same {
            problems.push(format!("{before:?} became {after:?}"));
        }
    }
    problems
}

/// What `rollout show` counts of a rollout at rest is what the agents say.
pub(super) fn counted(
    shown: &Value,
    lives: &[Life],
    orders: &BTreeMap<String, Order>,
    revision: &str,
) -> Vec<String> {
    let progress = &shown["progress"];
    let count = |key: &str| progress[key].as_u64().unwrap_or_default();
    let number = |of: usize| u64::try_from(of).unwrap();
    let taken: BTreeSet<&str> = lives
        .iter()
        .filter(|life| life.was_ordered(revision))
        .map(|life| life.id.as_str())
        .collect();
    let failed: BTreeSet<&str> = lives
        .iter()
        .filter(|life| life.has_failed(revision))
        .map(|life| life.id.as_str())
        .collect();
    // Orders that were recorded and went with their stream: a halted rollout sends none again.
    let lost = of_revision(orders, revision)
        .filter(|(id, order)| order.state == OrderState::Sent && !taken.contains(id.as_str()));
    let lost = number(lost.count());
    let (given, failures) = (number(taken.len()) + lost, number(failed.len()));
    let equal = [
        ("targets", count("targets"), number(lives.len())),
        ("given", count("given"), given),
        ("in flight", count("in_flight"), lost),
        ("may arrive", count("may_arrive_count"), lost),
        ("failures", count("failures"), failures),
        ("failed", standing(shown, &["failed", "taken back", "crashed"]), failures),
        ("under way", standing(shown, &["under way"]), lost),
        ("done", standing(shown, &["done"]), given - failures - lost),
        (
            "others",
            standing(shown, &["waits for its wave", "out of reach"]),
            number(lives.len()) - given,
        ),
    ];
    let differ = equal.into_iter().filter(|(_, counted, is)| counted != is);
    let mut problems: Vec<String> =
        differ.map(|(what, counted, is)| format!("{what}: {counted} counted, {is} are")).collect();
    for named in progress["failed"].as_array().into_iter().flatten() {
        if !named["agent"].as_str().is_some_and(|agent| failed.contains(agent)) {
            problems.push(format!("it did not fail: {named}"));
        }
    }
    let prints = progress["fingerprints"].as_array().into_iter().flatten();
    let prints: u64 = prints.map(|print| print["agents"].as_u64().unwrap()).sum();
    if prints != failures {
        problems.push(format!("{prints} have a fingerprint, and {failures} failed"));
    }
    problems
}

/// Each move is in the audit record once: every entry begins with what the one before ended with, those of
/// the controller say on what they were decided, and what was seen of the record is there.
pub(super) async fn audited(
    control: &Control,
    seen: &[Look],
    moves: &[(&str, usize)],
) -> Vec<String> {
    let mut problems = Vec::new();
    let listed = control.ask(&["audit", "list", "--limit", "10000"]).await.unwrap();
    let mut last: Option<String> = None;
    let (mut found, mut afters) = (BTreeMap::<String, usize>::new(), BTreeSet::new());
    for entry in listed.as_array().unwrap().iter().rev() {
        let changes = entry["changes"].as_array().unwrap().iter();
        let mut of_it = changes.filter(|it| it["kind"] == "rollout" && it["name"] == PLUGIN);
        let Some(change) = of_it.next() else { continue };
        if change["before"].as_str() != last.as_deref() {
            problems.push(format!("{entry} follows {last:?}"));
        }
        last = change["after"].as_str().map(str::to_owned);
        afters.extend(last.clone());
        let what = entry["what"].as_str().unwrap();
        *found.entry(what.to_owned()).or_default() += 1;
        let why = entry["why"].as_str().unwrap();
        let has_inputs = [" of ", " targets, ", " given, ", " in flight, ", " installed, "];
        let is_told = has_inputs.iter().all(|part| why.contains(part));
        if entry["who"] == "the controller" && !is_told {
            problems.push(format!("it does not say on what it was decided: {entry}"));
        }
    }
    for (what, times) in moves {
        let is = found.get(*what).copied().unwrap_or_default();
        if is != *times {
            problems.push(format!("{what} is there {is} times, and happened {times} times"));
        }
    }
    for look in seen {
        let after = guest_fleet_server::configuration::words::rollout(&look.found);
        if !afters.contains(&after) {
            problems.push(format!("it was seen, and is in no entry: {after}"));
        }
    }
    let entries: usize = found.values().sum();
    if seen.len() > entries {
        problems.push(format!("{} records were seen, and {entries} entries are there", seen.len()));
    }
    crate::say(format_args!("{entries} moves, {} of them seen: {found:?}", seen.len()));
    problems
}
