//! What the controller tells of a rollout: audit entries, and a record of how far it is that pages
//! read.

use std::collections::BTreeMap;

use guest_fleet_core::account::fingerprints;
use guest_fleet_core::facets::facets;
use guest_fleet_core::fold::Row;
use guest_fleet_core::gate::Meter;
use guest_fleet_core::progress::{Progress, Stand};
use guest_fleet_core::rollout::{Change, Counts, Decision, Reason, Rollout};
use guest_fleet_core::time::Seconds;
use guest_fleet_ledger::records::progress::{
    FacetPart, FailedPart, FingerprintPart, KeptPart, MeterPart, ProgressRecord, StandPart,
};
use guest_fleet_ledger::records::{Numbered, Versioned};

use crate::configuration::words;

/// Most agents that a record names of each kind.
const NAMED: usize = 20;

/// Most fingerprints of a record.
const FINGERPRINTS: usize = 20;

/// The verb of a change, for the audit entry.
pub(super) fn verb(change: &Change) -> &'static str {
    match change {
        Change::Grant(_) => "rollout grant",
        Change::Close => "rollout close",
        Change::Soak => "rollout soak",
        Change::AskApproval => "rollout ask approval",
        Change::NextWave => "rollout next wave",
        Change::Finish => "rollout finish",
        Change::Halt(_) => "rollout halt",
        Change::GoBack => "rollout go back",
        Change::EndRollback => "rollout end rollback",
    }
}

/// Whether the account of a rollout tells a change. Only the audit record tells the turns of agents and the
/// course of waves.
pub(super) fn is_told(change: &Change) -> bool {
    !matches!(change, Change::Grant(_) | Change::Close | Change::Soak | Change::NextWave)
}

/// Whether the results of a rollout are kept that a change was decided on.
pub(super) fn has_results(change: &Change) -> bool {
    !matches!(change, Change::Grant(_) | Change::Close)
}

/// Whether people look at what this was decided on: nobody counts after an end, and a halt is explained by
/// its counts.
pub(super) fn is_shown(decision: &Decision) -> bool {
    matches!(decision, Decision::Change(Change::Finish | Change::EndRollback | Change::Halt(_)))
}

/// What a change was decided on.
pub(super) fn why(rollout: &Rollout, change: &Change, counts: &Counts) -> String {
    let inputs = format!(
        "wave {} of {}; {} targets, {} given, {} in flight, {} to come; {} installed, {} failed",
        rollout.wave + 1,
        rollout.plan.waves.len(),
        counts.targets,
        counts.given,
        counts.in_flight,
        counts.candidates.len(),
        counts.installs.succeeded,
        counts.installs.failed,
    );
    match change {
        Change::Halt(cause) => format!("{}; {inputs}", words::halt(cause)),
        Change::Grant(grant) => {
            let covered = counts.candidates.iter().filter(|one| grant.covers(one.place)).count();
            format!("the turn of {covered}; {inputs}")
        }
        _ => inputs,
    }
}

/// Why nothing changes, as a sentence.
fn waiting(reason: Reason) -> &'static str {
    match reason {
        Reason::AtRest => "it has ended, or was not started",
        Reason::Person => "a person has to say how it goes on",
        Reason::Granted => "agents whose turn it is have not begun",
        Reason::Drying => "gateways may still act on the former grant",
        Reason::Closed => "its windows are closed",
        Reason::Budget => "as many agents are in flight as the budget allows",
        Reason::Settling => "some agents are in flight",
        Reason::Unreachable => "no agent of the wave can be reached",
        Reason::Soaking => "the wave is watched",
    }
}

/// The record of how far a rollout is.
pub(super) fn record(
    name: &str,
    progress: &Progress,
    decision: &Decision,
    rows: &BTreeMap<String, Row>,
    (served_since, now): (Seconds, Seconds),
) -> ProgressRecord {
    let counts = &progress.counts;
    let meter = |what: &str, meter: Meter| MeterPart {
        what: what.to_owned(),
        failed: meter.failed,
        expected: meter.expected,
        evidence: meter.evidence,
        limit: meter.limit,
    };
    ProgressRecord {
        version: ProgressRecord::VERSION,
        rollout: name.to_owned(),
        at: now.0,
        targets: counts.targets,
        given: counts.given,
        in_flight: counts.in_flight,
        waiting: match decision {
            Decision::Change(_) => String::new(),
            Decision::Wait(reason) => waiting(*reason).to_owned(),
        },
        stands: progress.stands.iter().map(|(stand, count)| stand_part(*stand, *count)).collect(),
        failed: progress.failed.iter().take(NAMED).map(FailedPart::of).collect(),
        failures: u32::try_from(progress.failed.len()).unwrap_or(u32::MAX),
        fingerprints: fingerprints(&progress.failed)
            .into_iter()
            .take(FINGERPRINTS)
            .map(|(text, count)| FingerprintPart { text, count })
            .collect(),
        facets: facets_of(progress, rows),
        meters: vec![
            meter("installations", counts.installs.meter()),
            meter("faults", counts.faults.meter()),
            meter("before and after", counts.before_after.meter()),
        ],
        may_arrive: progress.may_arrive.iter().take(NAMED).cloned().collect(),
        may_arrive_count: u32::try_from(progress.may_arrive.len()).unwrap_or(u32::MAX),
        served_since: served_since.0,
        kept: progress
            .kept
            .iter()
            .map(|it| KeptPart { agent: it.agent.clone(), why: words::permission(&it.why) })
            .collect(),
        ..ProgressRecord::default()
    }
}

fn stand_part(stand: Stand, count: u32) -> StandPart {
    StandPart { stand: stand.number(), count }
}

/// In which properties agents that failed and agents that passed differ most.
fn facets_of(progress: &Progress, rows: &BTreeMap<String, Row>) -> Vec<FacetPart> {
    if progress.failed.is_empty() {
        return Vec::new();
    }
    let failed = progress.failed.iter().map(|failed| (true, &failed.agent));
    let passed = progress.passed.iter().map(|agent| (false, agent));
    let told = failed
        .chain(passed)
        .filter_map(|(is_failed, agent)| Some((is_failed, properties(rows.get(agent)?))));
    let found = facets(told).into_iter();
    found
        .map(|it| FacetPart { key: it.key, value: it.value, failed: it.failed, passed: it.passed })
        .collect()
}

fn properties(row: &Row) -> Vec<(&str, &str)> {
    let mut all = Vec::new();
    if let Some(agent) = &row.agent {
        let labels = &agent.labels;
        for of in [&labels.operator, &labels.token, &labels.own] {
            all.extend(of.iter().map(|(key, value)| (key.as_str(), value.as_str())));
        }
    }
    if let Some(report) = &row.report {
        let facts = [
            ("architecture", &report.architecture),
            ("os", &report.os),
            ("agent version", &report.version),
        ];
        all.extend(facts.map(|(key, value)| (key, value.as_str())));
        for (plugin, found) in &report.plugins {
            all.push(("plugin", plugin));
            all.extend(found.revision.iter().map(|it| (plugin.as_str(), it.as_str())));
        }
    }
    // Labels of several givers may say the same.
    all.sort_unstable();
    all.dedup();
    all
}
