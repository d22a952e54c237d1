//! The controller: takes the lease, counts, decides, writes.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use guest_fleet_core::progress::{Progress, Watch, progress};
use guest_fleet_core::repair::Pace;
use guest_fleet_core::rollout::{Change, Decision as Step, Reason, Rollout, State, step};
use guest_fleet_core::time::{Seconds, Zones};
use guest_fleet_core::view::AssignmentRollout;
use guest_fleet_ledger::records::configuration::ASSIGNMENT;
use guest_fleet_ledger::records::journal::JournalRecord;
use guest_fleet_ledger::records::progress::{ProgressRecord, progress_key};
use guest_fleet_ledger::records::rollout::rollout_key;
use guest_fleet_ledger::records::{self, Versioned};
use guest_fleet_ledger::{Bucket, Ledger, ReadError, Revision, SharedLedger, Write, WriteError};
use prost::Message;
use thiserror::Error;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::begin::{Changing, Manner};
use super::known::Known;
use super::rows::Rows;
use super::{begin, tidy, told};
use crate::chain::Chain;
use crate::configuration::change::{ChangeError, Changed, Decision, Edit, change_under};
use crate::configuration::{Configuration, words};
use crate::fold::lease::{Lease, Turns};
use crate::fold::patience::patience;
use crate::fold::{Jitter, Wall, by_chance, by_clock};
use crate::gateways::needs::Needs;
use crate::simulated::removed::{self, Guard};
use crate::zones::IanaZones;

/// Key of the lease, in the bucket of the configuration: rollouts are there.
pub(super) const LEASE: &str = "controller/lease";

/// Key of the record that a controller writes to the bucket of journals before it reads it. No agent has
/// this id.
pub(super) const BARRIER: &str = "!controller";

/// How often a rollout is looked at while one goes on.
const BEAT: Duration = Duration::from_millis(500);

/// How often it is looked whether one began, where nothing reports a change.
const LOOK: Duration = Duration::from_secs(2);

/// Shortest time between two records of how far a rollout is, unless it waits for closed grants.
const TELL: Duration = Duration::from_secs(2);

/// For how long an agent that did not take up its grant counts as out of reach.
const PASSED_OVER: Duration = Duration::from_secs(600);

/// After so long without a count the control plane was away: agents could not tell what became of
/// their orders, and have their whole time again.
const GAP: u64 = 60;

/// How soon it is looked again for agents that join an assignment, where none of them could be reached.
const JOIN_AGAIN: Duration = Duration::from_secs(10);

/// How often outdated records are looked for.
const TIDY: Duration = Duration::from_secs(600);

/// Longest that one round may take before the controller begins anew.
const ROUND: Duration = Duration::from_secs(60);

/// How rollouts are moved.
#[derive(Clone)]
pub struct Settings {
    /// The time of day.
    pub wall: Wall,
    /// The time zones.
    pub zones: Arc<dyn Zones + Send + Sync>,
    /// So that processes do not act together.
    pub jittered: Jitter,
    /// When drifted agents are ordered again.
    pub pace: Pace,
}

/// Why a controller does not go on.
#[derive(Debug, Error)]
pub(super) enum Lost {
    #[error("the ledger was not read")]
    Read(#[from] ReadError),
    #[error("another process moves rollouts, or it is not known what was written")]
    Written(#[source] WriteError),
    #[error("a rollout was not changed")]
    Change(#[source] ChangeError<Moved>),
    #[error("a round took longer than {ROUND:?}")]
    TimedOut,
    #[error("the answer to a write was lost")]
    Doubtful,
}

/// A time in which rollouts were counted without a gap of [`GAP`] seconds.
#[derive(Clone, Copy)]
struct Served {
    since: Seconds,
    until: Seconds,
}

/// Somebody changed the rollout since it was counted.
#[derive(Clone, Copy, Debug, Error)]
#[error("the rollout was changed meanwhile")]
pub(super) struct Moved;

/// A controller under its lease.
pub(super) struct Controller<'a> {
    pub(super) ledger: &'a dyn Ledger,
    pub(super) settings: &'a Settings,
    lease: Lease,
    pub(super) configuration: Configuration,
    pub(super) rows: Option<Rows>,
    /// Rows are needed for drifted agents.
    pub(super) mends: bool,
    barrier: Revision,
    /// By assignment: the closed grants of its rollout.
    known: BTreeMap<String, Known>,
    /// By assignment: until when agents count as out of reach.
    passed_over: BTreeMap<String, BTreeMap<String, Instant>>,
    /// By assignment: when the controller last wrote how far its rollout is, and the revision of that.
    told: BTreeMap<String, (Instant, Revision)>,
    /// By assignment: since when, and until when, its agents could tell what became of their orders.
    served: BTreeMap<String, Served>,
    /// When gateways were asked last which assignments agents wait to join.
    asked: Option<Instant>,
    /// By assignment: when nobody was found that joins it.
    without: BTreeMap<String, Instant>,
    /// When outdated records were looked for, or that began to be due.
    tidied: Instant,
}

/// Moves rollouts whenever no other process does, until `ending`.
pub async fn run(ledger: SharedLedger, settings: Settings, ending: CancellationToken) {
    let place = (Bucket::Configuration, LEASE);
    let turns = Turns::new(&*ledger, place, &settings.jittered, &ending);
    while let Some(lease) = turns.next().await {
        tracing::debug!("this process moves rollouts");
        let mut controller = Controller::new(&*ledger, &settings, lease);
        let Err(error) = turns.during(controller.serve(&ending)).await else {
            return controller.lease.give_back(&*ledger).await;
        };
        tracing::info!(error = %Chain(&error), "rollouts are looked at anew");
        let Some(()) = turns.pause(LOOK).await else { return };
    }
}

// === impl Settings ===

impl Default for Settings {
    fn default() -> Self {
        Self {
            wall: by_clock(),
            zones: Arc::new(IanaZones),
            jittered: by_chance(),
            pace: Pace::default(),
        }
    }
}

// === impl Controller ===

impl<'a> Controller<'a> {
    fn new(ledger: &'a dyn Ledger, settings: &'a Settings, lease: Lease) -> Self {
        Self {
            ledger,
            settings,
            lease,
            configuration: Configuration::default(),
            rows: None,
            mends: false,
            barrier: Revision::ABSENT,
            known: BTreeMap::new(),
            passed_over: BTreeMap::new(),
            told: BTreeMap::new(),
            served: BTreeMap::new(),
            asked: None,
            without: BTreeMap::new(),
            tidied: Instant::now(),
        }
    }

    async fn serve(&mut self, ending: &CancellationToken) -> Result<(), Lost> {
        let mut changes = self.ledger.watch(Bucket::Configuration);
        loop {
            let moves =
                tokio::time::timeout(ROUND, self.round()).await.unwrap_or(Err(Lost::TimedOut))?;
            if Instant::now() >= self.lease.due() {
                self.renew(Vec::new()).await?;
            }
            self.tidy().await?;
            let pause = if moves { BEAT } else { LOOK };
            let wakes = async {
                if moves || changes.changed().await.is_err() {
                    std::future::pending::<()>().await;
                }
                // Heartbeats of gateways change the bucket as well.
                tokio::time::sleep(BEAT).await;
            };
            tokio::select! {
                biased;
                () = ending.cancelled() => return Ok(()),
                () = tokio::time::sleep(pause) => {}
                () = wakes => {}
            }
        }
    }

    /// Looks at every rollout once; whether one may move without a person.
    async fn round(&mut self) -> Result<bool, Lost> {
        let at_least = self.configuration.through().max(self.lease.revision());
        self.configuration.catch_up(self.ledger, at_least).await?;
        self.ask().await?;
        self.note_closed();
        let live: Vec<String> = self
            .configuration
            .view()
            .rollouts
            .iter()
            .filter(|(name, found)| is_watched(&found.rollout) && !self.is_paused(name))
            .map(|(name, _)| name.clone())
            .collect();
        if live.is_empty() {
            if !self.mends {
                self.rows = None;
            }
            self.passed_over.clear();
            return Ok(false);
        }
        for assignment in &live {
            self.take_over(assignment).await?;
        }
        let begun = Instant::now();
        self.count().await?;
        for assignment in live {
            self.look_at(&assignment, begun).await?;
        }
        Ok(self.configuration.view().rollouts.values().any(|found| moves(&found.rollout)))
    }

    /// Decides what gateways ask for their agents.
    async fn ask(&mut self) -> Result<(), Lost> {
        if self.asked.is_some_and(|asked| asked.elapsed() < LOOK) {
            return Ok(());
        }
        self.asked = Some(Instant::now());
        let needs = Needs::load(self.ledger).await?;
        self.repair(&needs).await?;
        self.join(needs.joins).await
    }

    /// Begins rollouts for agents that came to an assignment by their labels, or because another one does
    /// not decide for them any more. Gateways tell which assignments these are.
    async fn join(&mut self, mut joined: BTreeSet<String>) -> Result<(), Lost> {
        self.without.retain(|_, since| since.elapsed() < JOIN_AGAIN);
        joined.retain(|name| !self.without.contains_key(name) && !self.is_paused(name));
        if joined.is_empty() {
            return Ok(());
        }
        let rows = Rows::load(self.ledger).await?;
        for assignment in joined {
            let now = (self.settings.wall)();
            let decision = &Self::decision(
                "rollout begin",
                format!(
                    "agents came to the assignment {assignment}, by their labels or because another one does \
                     not decide for them any more"
                ),
                now,
            );
            let view = self.configuration.view();
            let made = Changing {
                before: view,
                after: view,
                rows: &rows,
                now,
                zones: &*self.settings.zones,
                manner: Manner::default(),
                decision,
            }
            .joining(&assignment);
            let Some(made) = made else {
                self.without.insert(assignment, Instant::now());
                continue;
            };
            let edit = begin::edit(&assignment, view, &made);
            self.write(&assignment, &made.name, decision, edit).await?;
        }
        Ok(())
    }

    /// Deletes outdated records. Whatever hinders that, rollouts go on.
    async fn tidy(&mut self) -> Result<(), Lost> {
        if self.tidied.elapsed() < TIDY {
            return Ok(());
        }
        self.tidied = Instant::now();
        let now = (self.settings.wall)();
        match tidy::outdated(self.ledger, &self.configuration, now).await {
            Ok(outdated) if outdated.is_empty() => Ok(()),
            Ok(outdated) => self.renew(outdated).await,
            Err(error) => {
                tracing::warn!(error = %Chain(&error), "outdated records were not read");
                Ok(())
            }
        }
    }

    /// Notes since when it is known which grants of each rollout are closed.
    fn note_closed(&mut self) {
        let rollouts = &self.configuration.view().rollouts;
        self.known.retain(|name, known| rollouts.get(name).is_some_and(|it| known.is_of(it)));
        self.told.retain(|name, _| rollouts.contains_key(name));
        self.served.retain(|name, _| rollouts.contains_key(name));
        for (name, found) in rollouts {
            self.known.entry(name.clone()).or_insert_with(|| Known::now(found));
        }
    }

    /// Goes on from what the controller before this one told of a rollout.
    async fn take_over(&mut self, assignment: &str) -> Result<(), Lost> {
        let found = self.configuration.view().rollouts.get(assignment);
        let (Some(found), None) = (found, self.served.get(assignment)) else { return Ok(()) };
        let key = progress_key(assignment);
        let told = self.ledger.get(Bucket::Index, &key).await?;
        // What cannot be read is written anew: agents have their whole time again, and closed grants dry.
        let told = told.and_then(|it| records::decode::<ProgressRecord>(&key, &it.value).ok());
        let Some(told) = told.filter(|told| told.rollout == found.name) else { return Ok(()) };
        let served = Served { since: Seconds(told.served_since), until: Seconds(told.at) };
        self.served.insert(assignment.to_owned(), served);
        if let Some(known) = self.known.get_mut(assignment) {
            known.goes_on_from(&told);
        }
        Ok(())
    }

    /// Brings the rows up to date, at least to this moment.
    async fn count(&mut self) -> Result<(), Lost> {
        let rollouts = self.configuration.view().rollouts.values();
        let live = rollouts.filter(|found| is_watched(&found.rollout));
        let plugins: BTreeSet<String> = live.map(|found| found.plugin.clone()).collect();
        let rows = self.rows.get_or_insert_with(Rows::new);
        rows.catch_up_reports(self.ledger).await?;
        self.barrier = write_barrier(self.ledger, self.barrier).await?;
        rows.keep_crashes_of(plugins);
        Ok(rows.catch_up_journals(self.ledger, self.barrier).await?)
    }

    async fn look_at(&mut self, assignment: &str, begun: Instant) -> Result<(), Lost> {
        let now = (self.settings.wall)();
        let Some(found) = self.configuration.view().rollouts.get(assignment).cloned() else {
            return Ok(());
        };
        let served_since = self.served_since(assignment, now);
        let Some(mut progress) = self.progress(assignment, &found, served_since, now) else {
            return Ok(());
        };
        let age = self.known.get(assignment).map(|known| known.age(begun));
        progress.counts.age_of_closed = age.unwrap_or_default().as_secs();
        let decision = step(&found.rollout, &progress.counts, now);
        if let Step::Change(change) = &decision {
            self.change(assignment, &found, change, &progress, now).await?;
        }
        self.tell(assignment, &found, &progress, &decision, (served_since, now)).await
    }

    /// Since when the agents of a rollout could tell what became of their orders.
    fn served_since(&mut self, assignment: &str, now: Seconds) -> Seconds {
        let known = self.served.get(assignment);
        let goes_on = known.filter(|served| now.since(served.until) < GAP);
        let since = goes_on.map_or(now, |served| served.since);
        self.served.insert(assignment.to_owned(), Served { since, until: now });
        since
    }

    fn progress(
        &mut self,
        assignment: &str,
        found: &AssignmentRollout,
        served_since: Seconds,
        now: Seconds,
    ) -> Option<Progress> {
        let rows = self.rows.as_ref()?;
        let passed = self.passed_over.entry(assignment.to_owned()).or_default();
        passed.retain(|_, until| *until > Instant::now());
        let passed_over: BTreeSet<String> = passed.keys().cloned().collect();
        let none = BTreeMap::new();
        let view = self.configuration.view();
        progress(
            rows.all(),
            &Watch {
                view,
                assignment,
                crashes: rows.crashes(&found.plugin).unwrap_or(&none),
                passed_over: &passed_over,
                patience: &|target| patience(view, &found.plugin, target),
                served_since,
                now,
                zones: &*self.settings.zones,
            },
        )
    }

    /// Writes a change of a rollout. What somebody else changed meanwhile is looked at in the next round.
    async fn change(
        &mut self,
        assignment: &str,
        found: &AssignmentRollout,
        change: &Change,
        progress: &Progress,
        now: Seconds,
    ) -> Result<(), Lost> {
        let mut after = found.clone();
        after.rollout.forget_dried(&progress.counts);
        after.rollout.change(change.clone(), now);
        after.rollout.remember(&found.name, &progress.counts.installs);
        if told::has_results(change) {
            after.account.results = Some(progress.results(now));
        }
        let why = told::why(&found.rollout, change, &progress.counts);
        let decision = Self::decision(told::verb(change), why, now);
        if told::is_told(change) {
            after.account.note(decision.decided());
        }
        let edit = begin::edit(assignment, self.configuration.view(), &after);
        let is_written = self.write(assignment, &found.name, &decision, edit).await?;
        if is_written && matches!(change, Change::Close) {
            self.pass_over(assignment, progress);
        }
        Ok(())
    }

    /// A decision of the controller.
    pub(super) fn decision(what: &str, why: String, now: Seconds) -> Decision {
        Decision {
            who: "the controller".to_owned(),
            from: rustix::system::uname().nodename().to_string_lossy().into_owned(),
            what: what.to_owned(),
            why,
            at: words::timestamp(now),
        }
    }

    /// Writes a record of an assignment, or of its rollout, under the lease. False where somebody else changed
    /// it, or the assignment, since it was looked at.
    pub(super) async fn write(
        &mut self,
        assignment: &str,
        rollout: &str,
        decision: &Decision,
        edit: Edit,
    ) -> Result<bool, Lost> {
        let assignment_key = format!("{ASSIGNMENT}{assignment}");
        let looked_at = [rollout_key(assignment), assignment_key, edit.key.clone()];
        let looked_at = looked_at.map(|key| (self.configuration.revision(&key), key));
        let renewal = self.lease.renewal();
        let begun = Instant::now();
        let plan = |configuration: &Configuration| {
            let is_same =
                looked_at.iter().all(|(revision, key)| configuration.revision(key) == *revision);
            if is_same || removed::is(Guard::RevisionOfRollout) {
                Ok((vec![edit.clone()], ()))
            } else {
                Err(Moved)
            }
        };
        let under = (!removed::is(Guard::LeaseOfRollouts)).then_some(&renewal);
        let changed =
            change_under(self.ledger, decision, under, &mut self.configuration, plan).await;
        match changed {
            Ok(Changed { revision: Some(revision), .. }) => {
                if under.is_some() {
                    self.lease.renewed(revision, begun);
                }
                // The change read the records that others wrote meanwhile.
                self.note_closed();
                tracing::info!(
                    rollout,
                    change = decision.what,
                    why = decision.why,
                    "the controller decides"
                );
                Ok(true)
            }
            // Its answer was lost: the lease has another revision than this controller knows.
            Ok(Changed { .. }) => Err(Lost::Doubtful),
            Err(ChangeError::Refused(Moved)) => Ok(false),
            Err(error) => Err(Lost::Change(error)),
        }
    }

    /// Agents that had a minute and did not begin are taken for out of reach for a while, so that the
    /// rollout goes on with others.
    fn pass_over(&mut self, assignment: &str, progress: &Progress) {
        if removed::is(Guard::PassingOver) {
            return;
        }
        let until = Instant::now() + PASSED_OVER;
        let passed = self.passed_over.entry(assignment.to_owned()).or_default();
        passed.extend(progress.granted.iter().map(|agent| (agent.clone(), until)));
    }

    /// Tells how far a rollout is. Best effort: the controller that comes next decides nothing by it but how
    /// long it waits.
    async fn tell(
        &mut self,
        assignment: &str,
        found: &AssignmentRollout,
        progress: &Progress,
        decision: &Step,
        times: (Seconds, Seconds),
    ) -> Result<(), Lost> {
        let told = self.told.get(assignment).copied();
        // A process that is restarted again and again tells how long it waited, too.
        let is_drying = *decision == Step::Wait(Reason::Drying);
        let is_due = is_drying || told.is_none_or(|(at, _)| at.elapsed() >= TELL);
        let Some(rows) = self.rows.as_ref().filter(|_| is_due || told::is_shown(decision)) else {
            return Ok(());
        };
        let mut record = told::record(&found.name, progress, decision, rows.all(), times);
        if let Some(known) = self.known.get(assignment) {
            known.tell(&mut record);
        }
        let key = progress_key(assignment);
        let expected = match told {
            Some((_, revision)) => revision,
            None => {
                let found = self.ledger.get(Bucket::Index, &key).await?;
                found.map_or(Revision::ABSENT, |found| found.revision)
            }
        };
        let write = Write { key, expected, value: Some(record.encode_to_vec().into()) };
        match self.ledger.write(Bucket::Index, vec![write]).await {
            Ok(revision) => {
                self.told.insert(assignment.to_owned(), (Instant::now(), revision));
            }
            Err(error) => {
                self.told.remove(assignment);
                tracing::debug!(error = %Chain(&error), "it was not told how far a rollout is");
            }
        }
        Ok(())
    }

    /// Renews the lease, together with other writes.
    pub(super) async fn renew(&mut self, mut batch: Vec<Write>) -> Result<(), Lost> {
        let begun = Instant::now();
        batch.push(self.lease.renewal());
        let written = self.ledger.write(Bucket::Configuration, batch).await;
        let revision = written.map_err(Lost::Written)?;
        self.lease.renewed(revision, begun);
        Ok(())
    }
}

/// Writes a record to the bucket of journals, so that everything is read that was there before. `expected` is the
/// revision that the record had last.
async fn write_barrier(ledger: &dyn Ledger, mut expected: Revision) -> Result<Revision, Lost> {
    let record = JournalRecord { version: JournalRecord::VERSION, ..JournalRecord::default() };
    let value = Some(record.encode_to_vec().into());
    for _ in 0..3 {
        let write = Write { key: BARRIER.to_owned(), expected, value: value.clone() };
        match ledger.write(Bucket::Journal, vec![write]).await {
            Ok(revision) => return Ok(revision),
            Err(WriteError::Conflict { .. } | WriteError::Ambiguous(_)) => {
                let found = ledger.get(Bucket::Journal, BARRIER).await?;
                expected = found.map_or(Revision::ABSENT, |found| found.revision);
            }
            Err(error) => return Err(Lost::Written(error)),
        }
    }
    Err(Lost::Doubtful)
}

/// Whether a rollout was started and has not ended.
fn is_watched(rollout: &Rollout) -> bool {
    rollout.state.is_live() && !rollout.began.is_empty()
}

/// Whether it may move without a person.
fn moves(rollout: &Rollout) -> bool {
    is_watched(rollout) && matches!(rollout.state, State::Running(_) | State::RollingBack)
}

#[cfg(test)]
mod tests;
