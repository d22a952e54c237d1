//! Counts of the whole fleet, as the ledger has them: read for a page of metrics, at most every ten seconds.
//!
//! ```text
//!   index: checkpoints ──────────────┐
//!   gateways and their ends ─────────┼─► FleetCounts, kept for ten seconds ─► Snapshot
//!   configuration: rollouts, stops ──┤
//!   progress of rollouts under way ──┘
//! ```
//!
//! It reads the checkpoints of the index, what changed of the configuration, and a record for each gateway and each
//! rollout under way. It reads no record of an agent, so a page costs the same for a fleet of any size. Every process
//! of a fleet counts the same. Where the ledger is away or slow, a page has no counts, two seconds later.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use futures_util::{StreamExt, TryStreamExt, stream};
use guest_fleet_core::fold::Word;
use guest_fleet_core::presence::Presence;
use guest_fleet_core::progress::Stand;
use guest_fleet_core::repair::Stop;
use guest_fleet_core::rollout::{State, StateKind};
use guest_fleet_core::time::Seconds;
use guest_fleet_core::view::{AssignmentRollout, View};
use guest_fleet_ledger::records::progress::{ProgressRecord, progress_key};
use guest_fleet_ledger::records::{self, Numbered};
use guest_fleet_ledger::{Bucket, Ledger, ReadError};
use thiserror::Error;
use tokio::sync::Mutex;
use tokio::time::Instant;

use crate::chain::Chain;
use crate::configuration::Configuration;
use crate::fold::reader::{Index, IndexError};
use crate::gateways::ends;
use crate::gateways::presence::{self, Activity};
use crate::zones::IanaZones;

/// How long counts are shown.
const KEPT: Duration = Duration::from_secs(10);

/// Longest that the ledger may take.
const PATIENCE: Duration = Duration::from_secs(2);

/// Most rollouts that a page shows one by one.
pub(super) const ROLLOUTS: usize = 100;

/// How many records are read at a time.
const AT_A_TIME: usize = 8;

/// The causes for which the orders of an assignment stop by themselves.
const CAUSES: [&str; 3] = ["many_drifted", "ledger_went_back", "unreadable"];

/// Stands of agents on which a rollout failed. Silent ones are counted apart.
const FAILED: [Stand; 4] = [Stand::Crashed, Stand::Failed, Stand::TakenBack, Stand::BackFailed];

/// Reads the counts of a fleet and keeps them for a while. Clones share what is kept.
#[derive(Clone, Debug, Default)]
pub struct FleetReader(Arc<Mutex<Reading>>);

#[derive(Debug, Default)]
struct Reading {
    configuration: Configuration,
    kept: Option<Kept>,
}

#[derive(Debug)]
struct Kept {
    read_at: Instant,
    /// `None` where the ledger could not be read.
    counts: Option<Arc<FleetCounts>>,
}

/// The counts of a fleet.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FleetCounts {
    /// Counts from the index; `None` where nobody counted yet, or the index cannot be read.
    pub agents: Option<AgentCounts>,
    /// Gateways by what they do.
    pub gateways: BTreeMap<Activity, u64>,
    /// The newest rollouts of assignments, by the name of their state.
    pub rollouts: BTreeMap<&'static str, u64>,
    /// Rollouts that have not ended, at most 100: halted ones first, then by name of the assignment.
    pub live: Vec<RolloutCounts>,
    /// Assignments whose orders stopped by themselves, by cause.
    pub stops: BTreeMap<&'static str, u64>,
}

/// Counts of agents.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AgentCounts {
    /// Age of the index when it was read.
    pub age: Duration,
    /// Agents by how present they are.
    pub presences: BTreeMap<Presence, u64>,
    /// Agents by where they stand with a plugin, over all assignments.
    pub standings: BTreeMap<Word, u64>,
}

/// A rollout that has not ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RolloutCounts {
    /// Name of the assignment.
    pub assignment: String,
    /// Name of its state.
    pub state: &'static str,
    /// The wave that it is in, from 1.
    pub wave: usize,
    /// How many waves it has.
    pub waves: usize,
    /// How far it is; `None` where nobody counted yet.
    pub progress: Option<ProgressCounts>,
}

/// How far a rollout is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ProgressCounts {
    /// How many agents it is about.
    pub targets: u32,
    /// How many were given the new target.
    pub given: u32,
    /// Agents that could not do it, went back, or whose plugin crashed since.
    pub failed: u32,
    /// Agents that have not said in time what became of their order.
    pub silent: u32,
}

#[derive(Debug, Error)]
enum CountError {
    #[error(transparent)]
    Read(#[from] ReadError),
    #[error("the ledger did not answer within {PATIENCE:?}")]
    TooSlow,
}

// === impl FleetReader ===

impl FleetReader {
    /// The counts as they are now, or were ten seconds ago; `None` where the ledger did not answer in time.
    pub async fn look(&self, ledger: &dyn Ledger, now: SystemTime) -> Option<Arc<FleetCounts>> {
        let mut reading = self.0.lock().await;
        if let Some(kept) = reading.kept.as_ref().filter(|kept| kept.read_at.elapsed() < KEPT) {
            return kept.counts.clone();
        }
        let found = tokio::time::timeout(PATIENCE, read(ledger, &mut reading.configuration, now));
        let counts = found
            .await
            .unwrap_or(Err(CountError::TooSlow))
            .inspect_err(|error| {
                tracing::debug!(error = %Chain(error), "the fleet was not counted for the metrics");
            })
            .ok()
            .map(Arc::new);
        // A failure is kept, too: pages do not ask a ledger again and again that is away.
        reading.kept = Some(Kept { read_at: Instant::now(), counts: counts.clone() });
        counts
    }
}

async fn read(
    ledger: &dyn Ledger,
    configuration: &mut Configuration,
    now: SystemTime,
) -> Result<FleetCounts, CountError> {
    let agents = agents(ledger, now).await?;
    let mut gateways = zeros(Activity::ALL);
    for gateway in presence::list(ledger).await? {
        raise(&mut gateways, gateway.activity(now), 1);
    }
    let through = configuration.through();
    configuration.catch_up(ledger, through).await?;
    let view = configuration.view();
    let mut rollouts = zeros(StateKind::ALL.map(StateKind::name));
    for (_, found) in newest(view) {
        raise(&mut rollouts, found.rollout.state.name(), 1);
    }
    let live = live(view).into_iter();
    let live: Vec<_> = live.map(|(name, found)| rollout(ledger, name, found)).collect();
    let live = stream::iter(live).buffered(AT_A_TIME).try_collect().await?;
    let mut stops = zeros(CAUSES);
    let repairs = view.repairs.iter().filter(|(name, _)| view.assignments.contains_key(*name));
    for stop in repairs.filter_map(|(_, repair)| repair.stop.as_ref()) {
        raise(&mut stops, cause(stop), 1);
    }
    Ok(FleetCounts { agents, gateways, rollouts, live, stops })
}

async fn agents(ledger: &dyn Ledger, now: SystemTime) -> Result<Option<AgentCounts>, ReadError> {
    let mut index = match Index::open(ledger).await {
        Ok(Some(index)) => index,
        Ok(None) => return Ok(None),
        Err(IndexError::Read(error)) => return Err(error),
        Err(error @ (IndexError::Record(_) | IndexError::Moving)) => {
            tracing::debug!(error = %Chain(&error), "agents were not counted for the metrics");
            return Ok(None);
        }
    };
    index.set_gateways(ends::beats(ledger).await?);
    let Some(as_of) = index.as_of() else { return Ok(None) };
    let now = now.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    let now = Seconds(now.as_secs());
    let counts = index.counts(now, &IanaZones);
    let mut presences = zeros(Presence::ALL);
    presences.extend(counts.agents);
    let mut standings = zeros(Word::ALL);
    for (word, agents) in counts.assignments.into_values().flatten() {
        raise(&mut standings, word, agents);
    }
    let age = Duration::from_secs(now.since(as_of));
    Ok(Some(AgentCounts { age, presences, standings }))
}

/// The newest rollout of each assignment.
fn newest(view: &View) -> impl Iterator<Item = (&String, &AssignmentRollout)> {
    view.rollouts.iter().filter(|(assignment, _)| view.assignments.contains_key(*assignment))
}

/// The rollouts that a page shows one by one.
fn live(view: &View) -> Vec<(&String, &AssignmentRollout)> {
    let mut live: Vec<_> =
        newest(view).filter(|(_, found)| found.rollout.state.is_live()).collect();
    live.sort_by_key(|(_, found)| !matches!(found.rollout.state, State::Halted(_)));
    live.truncate(ROLLOUTS);
    live
}

async fn rollout(
    ledger: &dyn Ledger,
    assignment: &str,
    found: &AssignmentRollout,
) -> Result<RolloutCounts, ReadError> {
    let key = progress_key(assignment);
    let record = ledger.get(Bucket::Index, &key).await?;
    let record = record.map(|record| records::decode::<ProgressRecord>(&key, &record.value));
    let progress = record
        .transpose()
        .unwrap_or_else(|error| {
            tracing::debug!(%error, "a rollout was not counted for the metrics");
            None
        })
        // That of a rollout before this one says nothing of it.
        .filter(|progress| progress.rollout == found.name);
    Ok(RolloutCounts {
        assignment: assignment.to_owned(),
        state: found.rollout.state.name(),
        wave: found.rollout.wave + 1,
        waves: found.rollout.plan.waves.len(),
        progress: progress.as_ref().map(ProgressCounts::of),
    })
}

fn cause(stop: &Stop) -> &'static str {
    let [many_drifted, ledger_went_back, unreadable] = CAUSES;
    match stop {
        Stop::Many { .. } => many_drifted,
        Stop::LedgerWentBack { .. } => ledger_went_back,
        Stop::Unreadable => unreadable,
    }
}

// === impl ProgressCounts ===

impl ProgressCounts {
    fn of(record: &ProgressRecord) -> Self {
        let count = |stands: &[Stand]| {
            let parts = record.stands.iter();
            let parts = parts.filter(|part| stands.iter().any(|it| it.number() == part.stand));
            parts.fold(0, |sum: u32, part| sum.saturating_add(part.count))
        };
        Self {
            targets: record.targets,
            given: record.given,
            failed: count(&FAILED),
            silent: count(&[Stand::Silent]),
        }
    }
}

/// A count of 0 for each, so that a value that no agent has at present is shown as well.
fn zeros<K: Ord>(all: impl IntoIterator<Item = K>) -> BTreeMap<K, u64> {
    all.into_iter().map(|key| (key, 0)).collect()
}

fn raise<K: Ord>(counts: &mut BTreeMap<K, u64>, key: K, by: u64) {
    let count = counts.entry(key).or_default();
    *count = count.saturating_add(by);
}
