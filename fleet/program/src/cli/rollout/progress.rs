//! How far a rollout is, as a document and as lines.

use guest_fleet_core::account::{Failed, Results};
use guest_fleet_core::progress::Stand;
use guest_fleet_core::time::Seconds;
use guest_fleet_ledger::records::Numbered;
use guest_fleet_ledger::records::progress::{FingerprintPart, ProgressRecord};
use guest_fleet_server::configuration::words;
use schemars::JsonSchema;
use serde::Serialize;

use super::super::document::Time;

/// How far a rollout is.
#[derive(Debug, Serialize, JsonSchema)]
pub struct ProgressJson {
    /// Seconds since it was counted.
    pub age_seconds: u64,
    /// When it was counted.
    #[schemars(with = "Time")]
    pub as_of: String,
    /// In which properties agents that failed and agents that passed differ most.
    pub facets: Vec<FacetJson>,
    /// The first agents on which it failed.
    pub failed: Vec<FailedJson>,
    /// On how many it failed.
    pub failures: u32,
    /// The fingerprints of the failures, the most frequent first.
    pub fingerprints: Vec<FingerprintJson>,
    /// How many were given the new release.
    pub given: u32,
    /// How many are under way.
    pub in_flight: u32,
    /// The first agents that are kept back or cannot have the release.
    pub kept: Vec<KeptJson>,
    /// The first agents at which an order for the new release may still arrive.
    pub may_arrive: Vec<String>,
    /// How many there are.
    pub may_arrive_count: u32,
    /// The results of the tests of the gate.
    pub meters: Vec<MeterJson>,
    /// How many agents stand where.
    pub stands: Vec<StandJson>,
    /// How many agents it is about.
    pub targets: u32,
    /// Why nothing changes now.
    pub waiting: Option<String>,
}

/// The results of a rollout.
#[derive(Debug, Serialize, JsonSchema)]
pub struct ResultsJson {
    /// When the agents were counted.
    #[schemars(with = "Time")]
    pub as_of: String,
    /// The first agents on which it failed.
    pub failed: Vec<FailedJson>,
    /// On how many it failed.
    pub failures: u32,
    /// The fingerprints of the failures, the most frequent first.
    pub fingerprints: Vec<FingerprintJson>,
    /// How many were given the new release.
    pub given: u32,
    /// How many agents it was about.
    pub targets: u32,
}

/// How many agents stand somewhere.
#[derive(Debug, Serialize, JsonSchema)]
pub struct StandJson {
    /// How many.
    pub agents: u32,
    /// Where.
    pub stand: String,
}

/// An agent on which it failed.
#[derive(Debug, Serialize, JsonSchema)]
pub struct FailedJson {
    /// Its id.
    pub agent: String,
    /// When.
    #[schemars(with = "Time")]
    pub at: String,
    /// The fingerprint of the failure: the same for failures of the same cause.
    pub fingerprint: String,
    /// The reason, as the agent told it.
    pub reason: String,
    /// The wave, from 1.
    pub wave: u32,
}

/// An agent that may not be given what comes next.
#[derive(Debug, Serialize, JsonSchema)]
pub struct KeptJson {
    /// Its id.
    pub agent: String,
    /// The hold, the window or the rollout that keeps it back, and until when.
    pub why: String,
}

/// The fingerprint of failures: the same for failures of the same cause.
#[derive(Debug, Serialize, JsonSchema)]
pub struct FingerprintJson {
    /// How many have it.
    pub agents: u32,
    /// The fingerprint.
    pub fingerprint: String,
}

/// A property of agents.
#[derive(Debug, Serialize, JsonSchema)]
pub struct FacetJson {
    /// How many failed agents have it.
    pub failed: u32,
    /// Which property.
    pub key: String,
    /// How many passed agents have it.
    pub passed: u32,
    /// Its value.
    pub value: String,
}

/// The result of a test of the gate.
#[derive(Debug, Serialize, JsonSchema)]
pub struct MeterJson {
    /// Logarithm of the e-value.
    pub evidence: f64,
    /// How many would have failed of themselves.
    pub expected: f64,
    /// How many failed.
    pub failed: u64,
    /// The evidence at which the rollout halts.
    pub limit: f64,
    /// Of what.
    pub of: String,
}

fn stand(stand: Stand) -> &'static str {
    match stand {
        Stand::Waits => "waits for its wave",
        Stand::KeptBack => "kept back",
        Stand::CannotHave => "without a release for it",
        Stand::Away => "out of reach",
        Stand::UnderWay => "under way",
        Stand::Done => "done",
        Stand::Crashed => "crashed",
        Stand::Failed => "failed",
        Stand::TakenBack => "taken back",
        Stand::Silent => "silent",
        Stand::Back => "back",
        Stand::BackFailed => "failed to go back",
    }
}

/// The lines about failures.
fn failure_lines(fingerprints: &[FingerprintJson], failed: &[FailedJson]) -> Vec<String> {
    let prints = fingerprints.iter().map(|print| {
        let FingerprintJson { agents, fingerprint } = print;
        format!("  failed    {agents} × {fingerprint}")
    });
    let failed = failed.iter().take(5).map(|failed| {
        let FailedJson { agent, wave, reason, .. } = failed;
        format!("            {agent} (wave {wave}): {reason}")
    });
    prints.chain(failed).collect()
}

// === impl FailedJson ===

impl FailedJson {
    fn of(failed: &Failed) -> Self {
        Self {
            agent: failed.agent.clone(),
            at: words::time(failed.at),
            fingerprint: failed.fingerprint.clone(),
            // A silent agent gives no reason; its fingerprint says that it is silent.
            reason: match failed.reason.as_str() {
                "" => failed.fingerprint.clone(),
                reason => reason.to_owned(),
            },
            wave: u32::try_from(failed.wave).unwrap_or(u32::MAX).saturating_add(1),
        }
    }
}

// === impl FingerprintJson ===

impl FingerprintJson {
    fn of(part: FingerprintPart) -> Self {
        Self { agents: part.count, fingerprint: part.text }
    }
}

// === impl ResultsJson ===

impl ResultsJson {
    /// The results as a document.
    pub(super) fn of(results: &Results) -> Self {
        let fingerprints = results.fingerprints.iter();
        let fingerprint = |(text, count): &(String, u32)| FingerprintJson {
            agents: *count,
            fingerprint: text.clone(),
        };
        Self {
            as_of: words::time(results.at),
            failed: results.failed.iter().map(FailedJson::of).collect(),
            failures: results.failures,
            fingerprints: fingerprints.map(fingerprint).collect(),
            given: results.given,
            targets: results.targets,
        }
    }

    pub(super) fn lines(&self) -> Vec<String> {
        let mut lines = vec![
            format!("  agents    {} of {} given", self.given, self.targets),
            format!("  as of     {}", self.as_of),
        ];
        lines.extend(failure_lines(&self.fingerprints, &self.failed));
        lines
    }
}

// === impl ProgressJson ===

impl ProgressJson {
    /// The record as a document.
    pub(super) fn of(record: ProgressRecord, now: Seconds) -> Self {
        Self {
            age_seconds: now.since(Seconds(record.at)),
            as_of: words::time(Seconds(record.at)),
            facets: record
                .facets
                .into_iter()
                .map(|it| FacetJson {
                    failed: it.failed,
                    key: it.key,
                    passed: it.passed,
                    value: it.value,
                })
                .collect(),
            failed: record.failed.into_iter().map(|it| FailedJson::of(&it.failed())).collect(),
            failures: record.failures,
            fingerprints: record.fingerprints.into_iter().map(FingerprintJson::of).collect(),
            given: record.given,
            in_flight: record.in_flight,
            kept: record
                .kept
                .into_iter()
                .map(|it| KeptJson { agent: it.agent, why: it.why })
                .collect(),
            may_arrive: record.may_arrive,
            may_arrive_count: record.may_arrive_count,
            meters: record
                .meters
                .into_iter()
                .map(|it| MeterJson {
                    evidence: it.evidence,
                    expected: it.expected,
                    failed: it.failed,
                    limit: it.limit,
                    of: it.what,
                })
                .collect(),
            stands: record
                .stands
                .iter()
                .filter_map(|it| {
                    let stand = stand(Stand::of_number(it.stand)?).to_owned();
                    Some(StandJson { agents: it.count, stand })
                })
                .collect(),
            targets: record.targets,
            waiting: (!record.waiting.is_empty()).then_some(record.waiting),
        }
    }

    pub(super) fn lines(&self) -> Vec<String> {
        let stands = self.stands.iter().map(|it| format!("{} {}", it.agents, it.stand));
        let mut lines = vec![
            format!("  agents    {} of {} given", self.given, self.targets),
            format!("  stand     {}", stands.collect::<Vec<_>>().join(", ")),
            format!("  as of     {}", self.as_of),
        ];
        if let Some(waiting) = &self.waiting {
            lines.push(format!("  now       {waiting}"));
        }
        lines.extend(failure_lines(&self.fingerprints, &self.failed));
        for facet in &self.facets {
            let FacetJson { key, value, failed, passed } = facet;
            lines.push(format!(
                "  differ    {key} {value}: {failed} failed have it, {passed} passed do"
            ));
        }
        for meter in self.meters.iter().filter(|meter| meter.failed > 0) {
            let MeterJson { of, failed, expected, evidence, limit } = meter;
            lines.push(format!(
                "  {of}: {failed} failed, {expected:.1} expected; evidence {evidence:.1} of {limit:.1}"
            ));
        }
        for kept in &self.kept {
            lines.push(format!("  kept back {}: {}", kept.agent, kept.why));
        }
        if self.may_arrive_count > 0 {
            let first = self.may_arrive.join(", ");
            lines.push(format!(
                "  arrives   at {} it may still arrive: {first}",
                self.may_arrive_count
            ));
        }
        lines
    }
}
