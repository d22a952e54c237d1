//! What has to be true once it is calm: what agents did and told by their own files, against the
//! journal, the events and the audit record of the fleet.

use std::collections::{BTreeMap, BTreeSet};

use guest_fleet_core::journal::OrderState;
use guest_fleet_core::view::Target;
use guest_fleet_ledger::records::agent::AgentRecord;
use guest_fleet_ledger::records::event::subject;
use guest_fleet_ledger::records::journal::JournalRecord;
use guest_fleet_ledger::{Bucket, Ledger, Log, ReadError, bounds, records};

use crate::agents::{Deed, Last, Told, running};
use crate::chaos::Held;
use crate::control::Control;
use crate::crowd::Member;
use crate::wishes::{PLUGINS, Wishes};

/// Most problems that are shown.
const SHOWN: usize = 40;

/// What is known of an agent at the end, by its own files.
pub(crate) struct Ended {
    pub(crate) member: Member,
    pub(crate) last: Last,
    /// The revisions that run.
    pub(crate) running: BTreeMap<String, String>,
    /// What a played agent did; real ones keep no such file.
    pub(crate) deeds: Vec<Deed>,
}

/// The journals of all agents.
pub(crate) async fn journals(
    ledger: &dyn Ledger,
) -> Result<BTreeMap<String, JournalRecord>, ReadError> {
    let mut journals = BTreeMap::new();
    let mut next = None;
    loop {
        let page = ledger.scan(Bucket::Journal, "", next.as_deref(), bounds::PAGE).await?;
        for record in page.records {
            let journal = records::decode(&record.key, &record.value).unwrap();
            journals.insert(record.key, journal);
        }
        next = page.next;
        if next.is_none() {
            return Ok(journals);
        }
    }
}

/// Orders that are not done, or are not what is wished.
pub(crate) fn undone<'a>(
    members: impl IntoIterator<Item = &'a Member>,
    wishes: &Wishes,
    journals: &BTreeMap<String, JournalRecord>,
) -> Vec<String> {
    let mut problems = Vec::new();
    for member in members {
        for plugin in PLUGINS {
            let Some(wished) = wishes.of(member.site, plugin) else { continue };
            let wished = wished.map_or(Target::Absent, Target::Revision);
            let entry = journals.get(&member.id).and_then(|journal| journal.plugins.get(plugin));
            let order = entry.and_then(|entry| entry.entry(&member.id).unwrap().order);
            let is_done = order.as_ref().is_some_and(|order| {
                order.target == wished && matches!(order.state, OrderState::Done { .. })
            });
            if !is_done {
                let is = order.map(|order| format!("{:?} {}", order.target, order.state));
                problems.push(format!("{} {plugin}: {wished:?} is wished, {is:?}", member.id));
            }
        }
    }
    problems
}

/// Played agents that lost everything and do not run again what is wished.
pub(crate) fn lacking(members: &[Member], lost: &BTreeSet<String>, wishes: &Wishes) -> Vec<String> {
    let mut problems = Vec::new();
    for member in members.iter().filter(|member| lost.contains(&member.id)) {
        let running = running(&member.directory);
        for plugin in PLUGINS {
            let Some(wished) = wishes.of(member.site, plugin) else { continue };
            let runs = running.get(plugin);
            if runs != wished.as_ref() {
                let id = &member.id;
                problems.push(format!(
                    "{id} {plugin}: {wished:?} is wished, {runs:?} runs since a loss"
                ));
            }
        }
    }
    problems
}

/// Fails with all problems.
pub(crate) fn none(what: &str, problems: &[String]) {
    let shown = &problems[..problems.len().min(SHOWN)];
    assert!(problems.is_empty(), "{what}: {} problems: {shown:#?}", problems.len());
}

/// Each agent runs what is wished, and its highest generation is that of the newest order.
pub(crate) fn as_wished(
    ended: &[Ended],
    lost: &BTreeSet<String>,
    wishes: &Wishes,
    journals: &BTreeMap<String, JournalRecord>,
) -> Vec<String> {
    let mut problems = Vec::new();
    for Ended { member, last, running, deeds } in ended {
        for plugin in PLUGINS {
            let wished = wishes.of(member.site, plugin).unwrap();
            let runs = running.get(plugin).cloned();
            if runs != wished {
                problems
                    .push(format!("{} {plugin}: {wished:?} is wished, {runs:?} runs", member.id));
            }
            let entry = &journals[&member.id].plugins[plugin];
            let kept = last.generations.get(plugin).copied().unwrap_or_default();
            // An agent that lost everything lacks nothing of a plugin that should be absent.
            let is_forgotten = lost.contains(&member.id) && wished.is_none() && kept == 0;
            if !deeds.is_empty() && kept != entry.generation && !is_forgotten {
                let (id, given) = (&member.id, entry.generation);
                problems.push(format!("{id} {plugin}: generation {given} was given, {kept} kept"));
            }
        }
    }
    problems
}

/// No order was taken after a newer one, and no store was lost.
pub(crate) fn taken_in_order(ended: &[Ended]) -> Vec<String> {
    let mut problems = Vec::new();
    for Ended { member, deeds, .. } in ended {
        let mut taken: BTreeMap<&str, u64> = BTreeMap::new();
        for deed in deeds {
            if let Deed::Taken { plugin, generation } = deed {
                let before = taken.insert(plugin, *generation).unwrap_or_default();
                if before >= *generation {
                    let id = &member.id;
                    problems.push(format!("{id} took {plugin} {generation} after {before}"));
                }
            }
            if let Deed::StoreLost(how) = deed {
                problems.push(format!("{}: {how}", member.id));
            }
        }
    }
    problems
}

/// No order was carried out after a newer one. Wishes never go back to an earlier revision.
pub(crate) fn carried_out_in_order(ended: &[Ended]) -> Vec<String> {
    let mut problems = Vec::new();
    for Ended { member, deeds, .. } in ended {
        // Until a new revision is installed the one before is started, where it does not run.
        let (mut installed, mut launched) = (BTreeMap::new(), BTreeMap::new());
        for deed in deeds {
            match deed {
                Deed::Installing { plugin, revision } => {
                    let before = installed.insert(plugin, revision);
                    if before.is_some_and(|before| before > revision) {
                        problems.push(format!("{}: {deed:?} after {before:?}", member.id));
                    }
                }
                Deed::Launched { plugin, revision } => {
                    let before = launched.insert(plugin, revision);
                    if before.is_some_and(|before| before > revision) {
                        problems.push(format!("{}: {deed:?} after {before:?}", member.id));
                    }
                }
                Deed::Taken { .. }
                | Deed::Told { .. }
                | Deed::Crashed { .. }
                | Deed::Stopped { .. }
                | Deed::Removed { .. }
                | Deed::StoreLost(_) => {}
            }
        }
    }
    problems
}

/// No order was made while its plugin was held. A generation is the second in which an order was made.
pub(crate) fn held(ended: &[Ended], holds: &[Held]) -> Vec<String> {
    // The oldest view on which orders leave, and orders of one second that count up from it.
    const SLACK: u64 = 5 + 3;

    let mut problems = Vec::new();
    for Ended { member, deeds, .. } in ended {
        for deed in deeds {
            let Deed::Taken { plugin, generation } = deed else { continue };
            let of_it = holds.iter().filter(|hold| hold.plugin == plugin);
            let broken = of_it.filter(|hold| {
                *generation > hold.from + SLACK
                    && hold.until.is_none_or(|until| *generation < until)
            });
            problems.extend(broken.map(|hold| format!("{}: {deed:?} in {hold:?}", member.id)));
        }
    }
    problems
}

/// No event was lost, none came twice, and all came in order.
pub(crate) async fn events(
    ended: impl IntoIterator<Item = &Ended>,
    ledger: &dyn Ledger,
) -> Vec<String> {
    let mut problems = Vec::new();
    for Ended { member, last, .. } in ended {
        let id = &member.id;
        if last.waiting > 0 {
            problems.push(format!("{id}: {} events were never acknowledged", last.waiting));
        }
        let numbers: Vec<u64> = last.events.iter().map(|event| event.seq).collect();
        if !numbers.is_sorted_by(|one, next| one + 1 == *next) {
            problems.push(format!("{id}: its own record has gaps: {numbers:?}"));
        }
        let plugins: BTreeSet<&str> = last.events.iter().map(|it| it.plugin.as_str()).collect();
        for plugin in plugins {
            let told = last.events.iter().filter(|event| event.plugin == plugin);
            let told: Vec<&Told> = told.collect();
            let entries = entries(ledger, &subject(id, plugin)).await;
            let is_whole = entries.is_sorted_by(|one, next| one.0 + 1 == next.0)
                && entries.last().is_none_or(|last| last.0 == told.len() as u64);
            let kept = told.len().min(usize::try_from(bounds::ENTRIES).unwrap());
            let ids = told[told.len() - kept..].iter().map(|event| event.id.as_str());
            if !is_whole || !ids.eq(entries.iter().map(|entry| entry.1.as_str())) {
                let told: Vec<&str> = told.iter().map(|event| short(&event.id)).collect();
                let entries: Vec<_> =
                    entries.iter().map(|entry| (entry.0, short(&entry.1))).collect();
                problems
                    .push(format!("{id} told of {plugin} {told:?}, and the log has {entries:?}"));
            }
        }
    }
    problems
}

/// The first part of an id, which is enough for people.
fn short(id: &str) -> &str {
    id.split('-').next().unwrap_or(id)
}

/// Number and id of all entries of a subject.
async fn entries(ledger: &dyn Ledger, subject: &str) -> Vec<(u64, String)> {
    let (mut entries, mut after) = (Vec::new(), 0);
    loop {
        let page = ledger.read(Log::Events, subject, after, bounds::PAGE).await.unwrap();
        let Some(last) = page.last() else { return entries };
        after = last.position;
        // Another plugin's name may begin like this one.
        let own = page.into_iter().filter(|entry| entry.subject == subject);
        entries.extend(own.map(|entry| (entry.number, entry.id)));
    }
}

/// Every change is in the audit record, once and in order, and the record is whole.
pub(crate) async fn audit(control: &Control, changes: &[u64]) -> Vec<String> {
    let mut problems = Vec::new();
    if let Err(why) = control.ask(&["audit", "verify"]).await {
        problems.push(why);
    }
    let listed = control.ask(&["audit", "list", "--limit", "10000"]).await.unwrap();
    let numbers: Vec<u64> = listed
        .as_array()
        .unwrap()
        .iter()
        .rev()
        .map(|entry| entry["number"].as_u64().unwrap())
        .collect();
    if !numbers.is_sorted_by(|one, next| one + 1 == *next) || numbers.first() != Some(&1) {
        problems.push(format!("the audit record has gaps: {numbers:?}"));
    }
    if !changes.is_sorted_by(|one, next| one < next) {
        problems.push(format!("changes were recorded out of order: {changes:?}"));
    }
    let missing: Vec<_> = changes.iter().filter(|number| !numbers.contains(number)).collect();
    if !missing.is_empty() {
        problems.push(format!("changes are not in the audit record: {missing:?}"));
    }
    problems
}

/// Every agent is known with the label of its site, and none is taken for a copy of another.
pub(crate) async fn known(
    control: &Control,
    members: &[&Member],
    ledger: &dyn Ledger,
) -> Vec<String> {
    let mut problems = Vec::new();
    let listed = control.ask(&["agents", "--limit", "100000"]).await.unwrap();
    let agents = listed["agents"].as_array().unwrap();
    if agents.len() != members.len() {
        problems.push(format!("{} agents are listed, {} are there", agents.len(), members.len()));
    }
    let listed: BTreeMap<&str, _> =
        agents.iter().map(|agent| (agent["id"].as_str().unwrap(), agent)).collect();
    for member in members {
        let Some(agent) = listed.get(member.id.as_str()) else {
            problems.push(format!("{} is not listed", member.id));
            continue;
        };
        if !agent["quarantine"].is_null() || agent["labels"]["site"] != member.site {
            problems.push(format!("{agent}"));
        }
        let record = ledger.get(Bucket::Agents, &member.id).await.unwrap().unwrap();
        let record: AgentRecord = records::decode(&record.key, &record.value).unwrap();
        if record.certificates.len() != 1 {
            problems.push(format!("{} has {} certificates", member.id, record.certificates.len()));
        }
    }
    problems
}

/// What `explain` says of some agents is what their journals say.
pub(crate) async fn explained(
    control: &Control,
    members: &[&Member],
    wishes: &Wishes,
) -> Vec<String> {
    let mut problems = Vec::new();
    for member in members {
        for plugin in PLUGINS {
            let said = control.ask(&["explain", &member.id, plugin]).await.unwrap();
            let wished = wishes.of(member.site, plugin).unwrap();
            let state = said["order"]["state"].as_str().unwrap_or_default();
            let is_so = said["desired"]["revision"].as_str() == wished.as_deref()
                && said["order"]["revision"].as_str() == wished.as_deref()
                && state.starts_with("done");
            if !is_so {
                problems.push(format!("{} {plugin}: {wished:?} is wished: {said}", member.id));
            }
        }
    }
    problems
}
