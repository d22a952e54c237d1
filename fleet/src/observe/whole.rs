//! What the whole fleet is, as the ledger says: read for a page of metrics, at most every ten seconds.
//!
//! ```text
//!   index (checkpoints) ──┐
//!   gateway/<id> ─────────┼─► WholeFleet, kept for ten seconds ─► Snapshot
//!   rollout/<assignment> ─┘
//! ```
//!
//! It reads checkpoints and a record for each gateway and rollout, and no record of an agent, so a page costs the same
//! for a fleet of any size. Every process of a fleet says the same. A ledger that is away or slow makes a page without
//! it, two seconds later.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use guest_fleet_core::fold::{Presence, Word};
use guest_fleet_core::rollout::{Stage, State};
use guest_fleet_core::time::Seconds;
use thiserror::Error;
use tokio::sync::Mutex;

use crate::chain::Chain;
use crate::fold::reader::{Index, IndexError};
use crate::fold::stored::PRESENCES;
use crate::gateway::presence;
use crate::ledger::{Bucket, Ledger, ReadError, bounds};
use crate::records::progress::{ProgressRecord, progress_key};
use crate::records::rollout::{ROLLOUT, RolloutRecord};
use crate::records::{self, RecordError};
use crate::zones::IanaZones;

/// How long what was read is shown.
const KEPT: Duration = Duration::from_secs(10);
/// Longest that the ledger may take.
const PATIENCE: Duration = Duration::from_secs(2);
/// Most rollouts that are looked at.
const ROLLOUTS: usize = 10_000;
/// Most rollouts under way whose failures are counted.
const UNDER_WAY: usize = 200;

/// States of gateways.
const GATEWAY_STATES: [&str; 3] = ["serving", "draining", "silent"];
/// States of rollouts.
const ROLLOUT_STATES: [&str; 10] = [
    "draft",
    "running",
    "soaking",
    "waiting_for_approval",
    "paused",
    "halted",
    "rolling_back",
    "rolled_back",
    "done",
    "aborted",
];
/// Those in which a rollout has not ended, and has begun.
const LIVE: [&str; 6] =
    ["running", "soaking", "waiting_for_approval", "paused", "halted", "rolling_back"];

/// Reads it, and keeps it for a while. Clones are the same.
#[derive(Clone, Debug, Default)]
pub struct Whole(Arc<Mutex<Option<Kept>>>);

#[derive(Debug)]
struct Kept {
    read_at: Instant,
    fleet: Option<Arc<WholeFleet>>,
}

/// The whole fleet in numbers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct WholeFleet {
    /// Agents by how present they are; nothing where nobody counted yet.
    pub agents: BTreeMap<&'static str, u64>,
    /// Agents by where they stand with an assignment, over all assignments.
    pub standings: BTreeMap<&'static str, u64>,
    /// Everything that was written until then is counted; `None` where nobody counted yet.
    pub counted_at: Option<SystemTime>,
    /// Gateways by what they do.
    pub gateways: BTreeMap<&'static str, u64>,
    /// Rollouts by their state.
    pub rollouts: BTreeMap<&'static str, u64>,
    /// Agents on which rollouts failed that have not ended.
    pub rollout_failures: u64,
}

#[derive(Debug, Error)]
enum WholeError {
    #[error(transparent)]
    Index(#[from] IndexError),
    #[error(transparent)]
    Read(#[from] ReadError),
    #[error("a record cannot be read")]
    Record(#[from] RecordError),
    #[error("the ledger did not answer within {PATIENCE:?}")]
    TooSlow,
}

// === impl Whole ===

impl Whole {
    /// The fleet as it is now, or was ten seconds ago; `None` where the ledger did not say it in time.
    pub async fn look(&self, ledger: &dyn Ledger, now: SystemTime) -> Option<Arc<WholeFleet>> {
        let mut kept = self.0.lock().await;
        if let Some(kept) = kept.as_ref().filter(|kept| kept.read_at.elapsed() < KEPT) {
            return kept.fleet.clone();
        }
        let reading = tokio::time::timeout(PATIENCE, read(ledger, now));
        let found = reading.await.unwrap_or(Err(WholeError::TooSlow));
        let fleet = found
            .inspect_err(|error| {
                tracing::debug!(error = %Chain(error), "metrics of the whole fleet are left out");
            })
            .ok()
            .map(Arc::new);
        // A failure is kept, too: the ledger is not asked again by every page while it is away.
        *kept = Some(Kept { read_at: Instant::now(), fleet: fleet.clone() });
        fleet
    }
}

async fn read(ledger: &dyn Ledger, now: SystemTime) -> Result<WholeFleet, WholeError> {
    let mut fleet = WholeFleet::default();
    if let Some(index) = Index::open(ledger).await?
        && let Some(as_of) = index.as_of()
    {
        let since = now.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let counts = index.counts(Seconds(since.as_secs()), &IanaZones);
        fleet.counted_at = Some(SystemTime::UNIX_EPOCH + Duration::from_secs(as_of.0));
        let presences = PRESENCES
            .map(|one| (presence_name(one), counts.agents.get(&one).copied().unwrap_or_default()));
        fleet.agents = presences.into();
        fleet.standings = ALERTED.map(|word| (word_name(word), 0)).into();
        for (word, count) in counts.assignments.values().flatten() {
            let sum = fleet.standings.entry(word_name(*word)).or_default();
            *sum = sum.saturating_add(*count);
        }
    }
    fleet.gateways = GATEWAY_STATES.map(|state| (state, 0)).into();
    for gateway in presence::list(ledger).await? {
        let is_old = gateway.age(now).is_none_or(|age| age >= presence::OLD);
        let state = match (is_old, gateway.record.is_draining) {
            (true, _) => "silent",
            (false, true) => "draining",
            (false, false) => "serving",
        };
        *fleet.gateways.entry(state).or_default() += 1;
    }
    rollouts(ledger, &mut fleet).await?;
    Ok(fleet)
}

async fn rollouts(ledger: &dyn Ledger, fleet: &mut WholeFleet) -> Result<(), WholeError> {
    fleet.rollouts = ROLLOUT_STATES.map(|state| (state, 0)).into();
    let (mut next, mut seen, mut live) = (None::<String>, 0, Vec::new());
    loop {
        let page =
            ledger.scan(Bucket::Configuration, ROLLOUT, next.as_deref(), bounds::PAGE).await?;
        for read in page.records {
            seen += 1;
            let record: RolloutRecord = records::decode(&read.key, &read.value)?;
            let found = record.rollout(&read.key)?;
            let state = rollout_state(&found.rollout.state);
            *fleet.rollouts.entry(state).or_default() += 1;
            if LIVE.contains(&state) && live.len() < UNDER_WAY {
                let assignment = read.key.strip_prefix(ROLLOUT).unwrap_or_default();
                live.push((progress_key(assignment), found.name));
            }
        }
        next = page.next;
        if next.is_none() || seen >= ROLLOUTS {
            break;
        }
    }
    for (key, name) in live {
        let Some(found) = ledger.get(Bucket::Index, &key).await? else { continue };
        let progress: ProgressRecord = records::decode(&key, &found.value)?;
        // It may still be that of the rollout before.
        if progress.rollout == name {
            fleet.rollout_failures += u64::from(progress.failures);
        }
    }
    Ok(())
}

fn rollout_state(state: &State) -> &'static str {
    match state {
        State::Draft => "draft",
        State::Running(Stage::Reaching) => "running",
        State::Running(Stage::Soaking { .. }) => "soaking",
        State::Running(Stage::Approval) => "waiting_for_approval",
        State::Paused(_) => "paused",
        State::Halted(_) => "halted",
        State::RollingBack => "rolling_back",
        State::RolledBack => "rolled_back",
        State::Done => "done",
        State::Aborted => "aborted",
    }
}

fn presence_name(presence: Presence) -> &'static str {
    match presence {
        Presence::Present => "present",
        Presence::Away => "away",
        Presence::NeverSeen => "never_seen",
        Presence::Quarantined => "quarantined",
        Presence::Archived => "archived",
    }
}

/// Those that alerts are about are there from the start.
const ALERTED: [Word; 6] =
    [Word::Conflict, Word::NoRelease, Word::NoArchive, Word::Failed, Word::TakenBack, Word::Silent];

/// As `guest-fleet explain` names it in JSON.
pub(crate) fn word_name(word: Word) -> &'static str {
    match word {
        Word::NotAssigned => "not_assigned",
        Word::Archived => "archived",
        Word::Quarantined => "quarantined",
        Word::Conflict => "conflict",
        Word::NoRelease => "no_release",
        Word::NoArchive => "no_archive",
        Word::Held => "held",
        Word::HeldByOwner => "held_by_owner",
        Word::OutsideWindow => "outside_window",
        Word::WaitsForWave => "waits_for_wave",
        Word::Waits => "waits",
        Word::Ordered => "ordered",
        Word::Acknowledged => "acknowledged",
        Word::Installing => "installing",
        Word::OnProbation => "on_probation",
        Word::Done => "done",
        Word::Failed => "failed",
        Word::TakenBack => "taken_back",
        Word::Silent => "silent",
    }
}
