//! A lease: who may write a part of the ledger, such as a shard's part of the index.
//!
//! A contender takes a lease over when its revision did not change for [`Lease::TTL`] on the contender's
//! own monotonic clock, or at once when it sees that the owner's process is gone, by compare-and-swap.
//! Everything that an owner writes replaces the lease in the same batch, so an owner that was paused, or that
//! another took for dead, writes nothing any more.

use std::time::Duration;

use guest_fleet_ledger::records::index::LeaseRecord;
use guest_fleet_ledger::records::{self, Versioned};
use guest_fleet_ledger::{Bucket, Ledger, ReadError, Revision, Write};
use prost::Message;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::process;
use super::settings::Jitter;
use crate::chain::Chain;

/// How often a contender looks, at most.
const LOOK: Duration = Duration::from_millis(2500);

/// A lease that was taken.
#[derive(Debug)]
pub(crate) struct Lease {
    bucket: Bucket,
    key: String,
    record: LeaseRecord,
    revision: Revision,
    written: Instant,
}

/// The turns of this process at a lease, until it is ending.
pub(crate) struct Turns<'a> {
    ledger: &'a dyn Ledger,
    /// The bucket and the key of the lease.
    place: (Bucket, &'a str),
    jittered: &'a Jitter,
    ending: &'a CancellationToken,
    /// Id of this process.
    owner: String,
}

// === impl Turns ===

impl<'a> Turns<'a> {
    pub(crate) fn new(
        ledger: &'a dyn Ledger,
        place: (Bucket, &'a str),
        jittered: &'a Jitter,
        ending: &'a CancellationToken,
    ) -> Self {
        Self { ledger, place, jittered, ending, owner: uuid::Uuid::new_v4().to_string() }
    }

    /// Waits for the lease and takes it; `None` when the process is ending.
    pub(crate) async fn next(&self) -> Option<Lease> {
        Lease::take(self.ledger, self.place, self.jittered, &self.owner, self.ending).await
    }

    /// Does the work of a turn, which shall stop when the process is ending. It is given up [`Lease::TTL`] / 2
    /// later: the ledger may never answer. A write that was begun is carried out or not, whole.
    pub(crate) async fn during<E>(
        &self,
        work: impl Future<Output = Result<(), E>>,
    ) -> Result<(), E> {
        tokio::select! {
            biased;
            worked = work => worked,
            () = async { self.ending.cancelled().await; tokio::time::sleep(Lease::TTL / 2).await } => Ok(()),
        }
    }

    /// Pauses after a turn that did not go well; `None` when the process is ending.
    pub(crate) async fn pause(&self, pause: Duration) -> Option<()> {
        self.ending.run_until_cancelled(tokio::time::sleep((self.jittered)(pause))).await
    }
}

// === impl Lease ===

impl Lease {
    /// How long a lease that does not change is respected, where the process of its owner may be alive.
    pub(crate) const TTL: Duration = Duration::from_secs(10);

    /// Waits for the lease, which is a record of the place that it guards, and takes it; `None` when
    /// the process is ending.
    pub(super) async fn take(
        ledger: &dyn Ledger,
        (bucket, key): (Bucket, &str),
        jittered: &Jitter,
        owner: &str,
        ending: &CancellationToken,
    ) -> Option<Self> {
        let mut watched: Option<(Revision, Instant)> = None;
        let mut is_failing = false;
        loop {
            match ledger.get(bucket, key).await {
                Ok(found) => {
                    is_failing = false;
                    let revision = found.as_ref().map_or(Revision::ABSENT, |it| it.revision);
                    let read = found.map(|it| records::decode::<LeaseRecord>(key, &it.value));
                    match read.transpose() {
                        Ok(record) => {
                            let record = record.unwrap_or_default();
                            let is_free = record.owner.is_empty() || record.owner == owner;
                            let since = match watched {
                                Some((seen, since)) if seen == revision => since,
                                _ => Instant::now(),
                            };
                            watched = Some((revision, since));
                            let is_gone = || record.process.as_ref().is_some_and(process::is_gone);
                            let is_over = since.elapsed() >= Self::TTL;
                            let taken = if is_free || is_over || is_gone() {
                                Self::swap(ledger, (bucket, key), owner, record.as_of, revision)
                                    .await
                            } else {
                                None
                            };
                            if taken.is_some() {
                                return taken;
                            }
                        }
                        Err(error) => tracing::error!(%error, "a lease cannot be taken"),
                    }
                }
                Err(error) if !is_failing => {
                    is_failing = true;
                    tracing::warn!(key, error = %Chain(&error), "a lease was not read");
                }
                Err(_) => {}
            }
            tokio::select! {
                biased;
                () = ending.cancelled() => return None,
                () = tokio::time::sleep(jittered(LOOK)) => {}
            }
        }
    }

    async fn swap(
        ledger: &dyn Ledger,
        (bucket, key): (Bucket, &str),
        owner: &str,
        as_of: u64,
        expected: Revision,
    ) -> Option<Self> {
        let record = LeaseRecord {
            version: LeaseRecord::VERSION,
            owner: owner.to_owned(),
            host: rustix::system::uname().nodename().to_string_lossy().into_owned(),
            pid: std::process::id(),
            as_of,
            process: process::own(),
        };
        let key = key.to_owned();
        let mut lease = Self { bucket, key, record, revision: expected, written: Instant::now() };
        let written = Instant::now();
        // Where it is not known whether this happened, the next look finds it and takes it again.
        let revision = ledger.write(bucket, vec![lease.renewal()]).await.ok()?;
        lease.revision = revision;
        lease.written = written;
        Some(lease)
    }

    /// The revision of the newest write.
    pub(crate) fn revision(&self) -> Revision {
        self.revision
    }

    /// The write that has to be in every batch.
    pub(crate) fn renewal(&self) -> Write {
        Write {
            key: self.key.clone(),
            expected: self.revision,
            value: Some(self.record.encode_to_vec().into()),
        }
    }

    /// The index contains everything that was written until then.
    pub(super) fn set_as_of(&mut self, as_of: u64) {
        self.record.as_of = self.record.as_of.max(as_of);
    }

    /// A batch with the renewal was written; it was begun at that moment.
    pub(crate) fn renewed(&mut self, revision: Revision, begun: Instant) {
        self.revision = revision;
        self.written = begun;
    }

    /// Whether no other process has it yet, by the clock of this one.
    pub(crate) fn is_held(&self) -> bool {
        self.written.elapsed() < Self::TTL
    }

    /// When it should be renewed at the latest.
    pub(crate) fn due(&self) -> Instant {
        self.written + Self::TTL / 4
    }

    /// Gives it back, so that the next owner need not wait. Best effort.
    pub(crate) async fn give_back(mut self, ledger: &dyn Ledger) {
        self.record.owner.clear();
        let renewal = self.renewal();
        let written = ledger.write(self.bucket, vec![renewal]);
        drop(tokio::time::timeout(Self::TTL / 4, written).await);
    }
}

/// The number of shards: as it is recorded, or as many as are asked for where nothing is.
pub(super) async fn shards(ledger: &dyn Ledger, wanted: u32) -> Result<u32, ReadError> {
    use guest_fleet_ledger::records::index::{SHAPE, ShapeRecord};

    let record = ShapeRecord { version: ShapeRecord::VERSION, shards: wanted };
    let write = Write {
        key: SHAPE.to_owned(),
        expected: Revision::ABSENT,
        value: Some(record.encode_to_vec().into()),
    };
    // It conflicts where there is one. Which one holds is read, not concluded.
    let written = ledger.write(Bucket::Index, vec![write]).await;
    let found = ledger.get(Bucket::Index, SHAPE).await?;
    let Some(found) = found else {
        let source = written.err().map_or_else(|| "the answer is old".into(), Into::into);
        return Err(ReadError::Unavailable(source));
    };
    let shape: ShapeRecord = records::decode(SHAPE, &found.value)
        .map_err(|error| ReadError::Unavailable(Box::new(error)))?;
    Ok(shape.shards.clamp(1, super::settings::SHARDS_MAX))
}
