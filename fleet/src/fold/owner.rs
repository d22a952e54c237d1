//! The owner of a shard: takes the lease, loads, folds what changes, writes.

use std::collections::BTreeSet;
use std::time::Duration;

use bytes::Bytes;
use guest_agent_serve_kit::backoff::{Jitter, Schedule};
use guest_fleet_core::fold::{Declared, Effect, Fold, Input, shard_of};
use guest_fleet_ledger::records::Versioned;
use guest_fleet_ledger::records::index::{
    CheckpointRecord, CursorRecord, checkpoint_key, lease_key,
};
use guest_fleet_ledger::{
    Bucket, Follower, Ledger, Log, ReadError, Revision, SharedLedger, Write, WriteError, bounds,
};
use prost::Message;
use thiserror::Error;
use tokio::sync::watch;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::lease::{Lease, Turns};
use super::leaves::{Leaves, Plan};
use super::load::{Loaded, load};
use super::settings::Settings;
use super::{inputs, patience, stored};
use crate::chain::Chain;
use crate::configuration::Configuration;

/// How long changes are collected before they are folded.
const DEBOUNCE: Duration = Duration::from_millis(300);

/// How often it is looked for changes where nothing reports one.
const LOOK: Duration = Duration::from_secs(2);

/// Bytes of the index that are written in a second over a longer time. After a large write the next one
/// waits, so that many changes of one leaf become one write.
const BYTES_PER_SECOND: usize = 1 << 20;

/// Longest such pause.
const PAUSE_MAX: Duration = Duration::from_secs(30);

/// How often a write that was refused is tried again.
const TRIES: u32 = 4;

/// The pauses between these tries.
const PAUSES: Schedule =
    Schedule::doubling(DEBOUNCE, Duration::from_millis(300 << TRIES), Jitter::None);

/// The buckets that are folded, in the order in which they are read.
const BUCKETS: [Bucket; 3] = [Bucket::Agents, Bucket::Journal, Bucket::Reports];

/// Which shard, of how many.
#[derive(Clone, Copy, Debug)]
pub(super) struct Place {
    pub(super) shard: u32,
    pub(super) shards: u32,
}

/// Why an owner does not go on.
#[derive(Debug, Error)]
enum Lost {
    #[error("another process folds this shard, or it is not known what was written")]
    Written(#[source] WriteError),
    #[error("the index was not loaded")]
    Load(#[source] super::load::LoadError),
}

/// How one bucket is followed.
struct Followed {
    follower: Follower,
    /// What the checkpoint says. It stays behind while the bucket is read again from its beginning.
    kept: Option<CursorRecord>,
    /// Keys that were seen since then; what is not among them at the end is gone.
    again: Option<BTreeSet<String>>,
}

/// A shard under a lease.
struct Owner<'a> {
    ledger: &'a dyn Ledger,
    settings: &'a Settings,
    place: Place,
    lease: Lease,
    fold: Fold,
    leaves: Leaves,
    configuration: Configuration,
    declared: Declared,
    followed: [Followed; 3],
    events: u64,
    checkpoint: Revision,
    /// Whether the checkpoint in the ledger says something else.
    is_dirty: bool,
}

/// Folds a shard whenever no other process does.
pub(super) async fn run(
    ledger: SharedLedger,
    settings: Settings,
    place: Place,
    ending: CancellationToken,
) {
    let shard = place.shard;
    let key = lease_key(shard);
    let turns = Turns::new(&*ledger, (Bucket::Index, &key), &settings.jittered, &ending);
    while let Some(lease) = turns.next().await {
        tracing::debug!(shard, "this process folds the index");
        let owning = turns.during(async {
            let mut owner = Owner::load(&*ledger, &settings, place, lease).await?;
            owner.serve(&ending).await?;
            owner.lease.give_back(&*ledger).await;
            Ok::<_, Lost>(())
        });
        let Err(error) = owning.await else { return };
        tracing::info!(shard, error = %Chain(&error), "the index is folded anew");
        let Some(()) = turns.pause(LOOK).await else { return };
    }
}

impl<'a> Owner<'a> {
    async fn load(
        ledger: &'a dyn Ledger,
        settings: &'a Settings,
        place: Place,
        lease: Lease,
    ) -> Result<Self, Lost> {
        let configuration = Configuration::load(ledger).await;
        let configuration =
            configuration.map_err(|error| Lost::Load(super::load::LoadError::Read(error)))?;
        let Loaded { rows, mut leaves, checkpoint, checkpoint_revision } =
            load(ledger, place.shard, lease.revision()).await.map_err(Lost::Load)?;
        let declared = Declared::new(configuration.view(), patience::patience)
            .offline_after(settings.offline_after);
        let mut fold = Fold::of_rows(rows, &declared, (settings.wall)());
        // The rows may be those of older declarations.
        for id in fold.declare(&declared, &declared) {
            leaves.touch(&id);
        }
        let checkpoint = checkpoint.unwrap_or_default();
        // An older program read journals and reports, and kept neither sessions nor faults of them.
        let is_older = checkpoint.offline_after == 0;
        let again = |cursor: Option<CursorRecord>| cursor.filter(|_| !is_older);
        let kept = [checkpoint.agents, again(checkpoint.journal), again(checkpoint.reports)];
        let followed = std::array::from_fn(|at| {
            let (bucket, kept): (Bucket, Option<CursorRecord>) = (BUCKETS[at], kept[at]);
            let follower = kept.map_or_else(
                || Follower::new(bucket),
                |kept| {
                    let (through, forgotten) = (Revision(kept.through), Revision(kept.forgotten));
                    Follower::resumed(bucket, through, forgotten)
                },
            );
            Followed { follower, kept, again: None }
        });
        Ok(Self {
            ledger,
            settings,
            place,
            lease,
            fold,
            leaves,
            configuration,
            declared,
            followed,
            events: checkpoint.events,
            checkpoint: checkpoint_revision,
            is_dirty: true,
        })
    }

    /// Folds until `ending`.
    async fn serve(&mut self, ending: &CancellationToken) -> Result<(), Lost> {
        let all = [Bucket::Configuration, Bucket::Agents, Bucket::Journal, Bucket::Reports];
        let mut changes = all.map(|bucket| self.ledger.watch(bucket));
        let mut not_before = Instant::now();
        let mut is_failing = false;
        loop {
            let mut pause = DEBOUNCE;
            if Instant::now() >= not_before {
                match self.round().await? {
                    Ok(Round { bytes, is_whole }) => {
                        is_failing = false;
                        let millis = bytes.saturating_mul(1000) / BYTES_PER_SECOND;
                        let rest = u64::try_from(millis).map_or(PAUSE_MAX, Duration::from_millis);
                        not_before = Instant::now() + rest.min(PAUSE_MAX);
                        if !is_whole {
                            pause = Duration::ZERO;
                        }
                    }
                    Err(error) => {
                        if !is_failing {
                            tracing::warn!(error = %Chain(&error), "the index was not brought up to date");
                        }
                        is_failing = true;
                        not_before = Instant::now() + (self.settings.jittered)(LOOK);
                    }
                }
            }
            if Instant::now() >= self.lease.due() {
                let renewal = self.lease.renewal();
                self.write(vec![renewal]).await?;
            }
            let begin = not_before.max(Instant::now() + pause);
            let look = (Instant::now() + LOOK).max(not_before).min(self.lease.due());
            tokio::select! {
                biased;
                () = ending.cancelled() => return Ok(()),
                () = tokio::time::sleep_until(look) => {}
                () = async {
                    if !pause.is_zero() {
                        any(&mut changes).await;
                    }
                    tokio::time::sleep_until(begin).await;
                } => {}
            }
        }
    }

    /// Folds a page of everything, and writes what follows.
    async fn round(&mut self) -> Result<Result<Round, ReadError>, Lost> {
        let began = (self.settings.wall)();
        let caught = self.catch_up().await;
        self.fold.advance(began);
        let is_whole = match &caught {
            Ok(is_whole) => *is_whole,
            Err(_) => false,
        };
        let bytes = self.flush(is_whole.then_some(began.0)).await?;
        Ok(caught.map(|is_whole| Round { bytes, is_whole }))
    }

    /// Takes in a page of every source; whether there was no more.
    async fn catch_up(&mut self) -> Result<bool, ReadError> {
        self.redeclare().await?;
        // Events first: an agent's record was there before its events, so it is read after them.
        let entries = self.ledger.read(Log::Events, "", self.events, bounds::PAGE).await?;
        let mut is_whole = entries.is_empty();
        for at in 0..BUCKETS.len() {
            is_whole &= !self.follow(at).await?;
        }
        for entry in &entries {
            self.events = entry.position;
            self.is_dirty = true;
            if let Some((id, input)) = inputs::of_entry(entry) {
                self.apply(&id, input);
            }
        }
        Ok(is_whole)
    }

    async fn redeclare(&mut self) -> Result<(), ReadError> {
        let after = self.configuration.through();
        if self.configuration.catch_up(self.ledger, after).await? {
            let declared = Declared::new(self.configuration.view(), patience::patience)
                .offline_after(self.settings.offline_after);
            if declared != self.declared {
                for id in self.fold.declare(&self.declared, &declared) {
                    self.leaves.touch(&id);
                }
                self.declared = declared;
                self.is_dirty = true;
            }
        }
        Ok(())
    }

    /// Takes in a page of a bucket; whether there is more.
    async fn follow(&mut self, at: usize) -> Result<bool, ReadError> {
        let followed = &mut self.followed[at];
        let update = followed.follower.next(self.ledger, Revision::ABSENT).await?;
        if update.is_reset {
            followed.again = Some(BTreeSet::new());
        }
        for change in update.changes {
            if shard_of(&change.key, self.place.shards) != self.place.shard {
                continue;
            }
            if let (Some(again), Some(_)) = (&mut self.followed[at].again, &change.value) {
                again.insert(change.key.clone());
            }
            let value = change.value.as_deref();
            if let Some(input) = inputs::of_record(BUCKETS[at], &change.key, value) {
                self.apply(&change.key, input);
            }
        }
        if update.more {
            self.keep_cursor(at);
            return Ok(true);
        }
        if let Some(seen) = self.followed[at].again.take() {
            let gone: Vec<String> =
                self.fold.rows().keys().filter(|id| !seen.contains(*id)).cloned().collect();
            for id in gone {
                if let Some(input) = inputs::of_record(BUCKETS[at], &id, None) {
                    self.apply(&id, input);
                }
            }
        }
        self.keep_cursor(at);
        Ok(false)
    }

    fn keep_cursor(&mut self, at: usize) {
        let followed = &mut self.followed[at];
        if followed.again.is_some() {
            return;
        }
        let cursor = CursorRecord {
            through: followed.follower.through().0,
            forgotten: followed.follower.forgotten().unwrap_or_default().0,
        };
        if followed.kept != Some(cursor) {
            followed.kept = Some(cursor);
            self.is_dirty = true;
        }
    }

    fn apply(&mut self, id: &str, input: Input) {
        if self.fold.apply(id, input, &self.declared) == Effect::Row {
            self.leaves.touch(id);
            self.is_dirty = true;
        }
    }

    /// Writes the leaves, and the checkpoint with the last of them; then the index has everything that was
    /// written until `as_of`. Returns the bytes of it.
    async fn flush(&mut self, as_of: Option<u64>) -> Result<usize, Lost> {
        let mut bytes = 0;
        loop {
            let plan = self.leaves.plan(self.fold.rows());
            if let (true, Some(as_of)) = (plan.is_last, as_of) {
                self.lease.set_as_of(as_of);
            }
            if plan.writes.is_empty() && !self.is_dirty {
                return Ok(bytes);
            }
            let mut writes = vec![self.lease.renewal()];
            writes.extend(plan.writes.iter().cloned());
            let has_checkpoint = plan.is_last && self.is_dirty;
            if has_checkpoint {
                writes.push(self.checkpoint());
            }
            bytes += plan.bytes + writes.last().and_then(size).unwrap_or(0);
            let revision = self.write(writes).await?;
            self.taken(&plan, has_checkpoint, revision);
            if plan.is_last {
                return Ok(bytes);
            }
        }
    }

    fn taken(&mut self, plan: &Plan, has_checkpoint: bool, revision: Revision) {
        self.leaves.written(plan, revision);
        if has_checkpoint {
            self.checkpoint = revision;
            self.is_dirty = false;
        }
    }

    fn checkpoint(&self) -> Write {
        let [agents, journal, reports] = [0, 1, 2].map(|at| self.followed[at].kept);
        let mut record = CheckpointRecord {
            version: CheckpointRecord::VERSION,
            agents,
            journal,
            reports,
            events: self.events,
            configuration: self.configuration.through().0,
            ..CheckpointRecord::default()
        };
        stored::set_counts(&mut record, self.fold.counts(), &self.declared);
        let value: Bytes = record.encode_to_vec().into();
        let key = checkpoint_key(self.place.shard);
        Write { key, expected: self.checkpoint, value: Some(value) }
    }

    /// Writes a batch whose first write renews the lease. What was refused did not happen, and is tried
    /// again; after anything else this owner begins again from the ledger.
    async fn write(&mut self, batch: Vec<Write>) -> Result<Revision, Lost> {
        let mut tries = 0;
        loop {
            let begun = Instant::now();
            match self.ledger.write(Bucket::Index, batch.clone()).await {
                Ok(revision) => {
                    self.lease.renewed(revision, begun);
                    return Ok(revision);
                }
                Err(WriteError::Refused(error)) if tries < TRIES => {
                    tries += 1;
                    tracing::debug!(error = %Chain(&*error), "the index is written again");
                    let pause = PAUSES.longest(tries);
                    tokio::time::sleep((self.settings.jittered)(pause)).await;
                }
                Err(error) => return Err(Lost::Written(error)),
            }
        }
    }
}

/// What a round did.
struct Round {
    /// Bytes that were written.
    bytes: usize,
    /// Whether nothing was left to read.
    is_whole: bool,
}

fn size(write: &Write) -> Option<usize> {
    Some(write.value.as_ref()?.len())
}

/// Completes when any of them changes.
async fn any(changes: &mut [watch::Receiver<u64>; 4]) {
    let [a, b, c, d] = changes;
    let changed = async |one: &mut watch::Receiver<u64>| {
        if one.changed().await.is_err() {
            // A ledger that never reports a change is polled.
            std::future::pending::<()>().await;
        }
    };
    tokio::select! {
        () = changed(a) => {}
        () = changed(b) => {}
        () = changed(c) => {}
        () = changed(d) => {}
    }
}
