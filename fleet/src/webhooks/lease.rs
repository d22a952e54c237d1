//! Who delivers a webhook: the holder of the record of its cursor.
//!
//! A contender takes the record over when its revision did not change for the length of the lease on
//! the contender's own clock. A holder counts from before its last write, and stops where it could
//! not write for that long: so it has stopped before another one begins.

use std::time::{Duration, SystemTime};

use guest_fleet_ledger::records::webhook::{self, WebhookRecord};
use guest_fleet_ledger::records::{self, Versioned};
use guest_fleet_ledger::{Bucket, Revision, SharedLedger, Write};
use prost::Message;
use tokio::time::Instant;

use crate::chain::Chain;

/// Longest that one write may take.
const WRITE: Duration = Duration::from_secs(4);

/// The lease of a webhook, held or not.
pub(super) struct Lease {
    ledger: SharedLedger,
    key: String,
    /// Id of this process.
    holder: String,
    length: Duration,
    seen: Option<(Revision, Instant)>,
}

/// A lease that is held.
#[derive(Debug)]
pub(super) struct Held {
    pub(super) record: WebhookRecord,
    revision: Revision,
    /// Until when, unless it is written again.
    until: Instant,
}

/// Another process delivers now, or may.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Lost;

// === impl Lease ===

impl Lease {
    pub(super) fn new(ledger: SharedLedger, name: &str, length: Duration) -> Self {
        let holder = uuid::Uuid::new_v4().to_string();
        Self { ledger, key: webhook::key(name), holder, length, seen: None }
    }

    /// How often a holder writes, and a contender looks.
    pub(super) fn beat(&self) -> Duration {
        self.length / 5
    }

    /// Takes the lease, if nobody has it.
    pub(super) async fn take(&mut self) -> Option<Held> {
        let found = match self.ledger.get(Bucket::Configuration, &self.key).await {
            Ok(found) => found,
            Err(error) => {
                tracing::debug!(key = self.key, error = %Chain(&error), "a cursor was not read");
                return None;
            }
        };
        let now = Instant::now();
        let (revision, record) = match found {
            None => (Revision::ABSENT, None),
            Some(found) => match records::decode::<WebhookRecord>(&self.key, &found.value) {
                Ok(record) => (found.revision, Some(record)),
                Err(error) => {
                    tracing::error!(%error, "a webhook is not delivered");
                    return None;
                }
            },
        };
        let is_held = record.as_ref().is_some_and(|record| !record.holder.is_empty());
        let is_own = record.as_ref().is_some_and(|record| record.holder == self.holder);
        if is_held && !is_own {
            match self.seen {
                Some((seen, since)) if seen == revision && now - since >= self.length => {}
                Some((seen, _)) if seen == revision => return None,
                _ => {
                    self.seen = Some((revision, now));
                    return None;
                }
            }
        }
        let stamp = Some(SystemTime::now().into());
        let mut record = record.unwrap_or_else(|| WebhookRecord {
            version: WebhookRecord::VERSION,
            since: stamp,
            delivered: stamp,
            ..WebhookRecord::default()
        });
        record.holder.clone_from(&self.holder);
        let mut held = Held { record, revision, until: now };
        self.seen = None;
        self.write(&mut held).await.ok()?;
        (held.until > now).then_some(held)
    }

    /// Writes the record of a lease that is held, as it is now.
    ///
    /// # Errors
    /// Another process has it, or may have it.
    pub(super) async fn write(&self, held: &mut Held) -> Result<(), Lost> {
        let began = Instant::now();
        let value = Some(held.record.encode_to_vec().into());
        let write = Write { key: self.key.clone(), expected: held.revision, value };
        let writing = self.ledger.write(Bucket::Configuration, vec![write]);
        match tokio::time::timeout(WRITE.min(self.length / 2), writing).await {
            Ok(Ok(revision)) => {
                (held.revision, held.until) = (revision, began + self.length);
                return Ok(());
            }
            Ok(Err(error)) => {
                tracing::debug!(key = self.key, error = %Chain(&error), "a cursor was not written");
            }
            Err(_elapsed) => tracing::debug!(key = self.key, "a cursor was not written in time"),
        }
        // It may have been written after all: then it is on top of what this process knows.
        match self.ledger.get(Bucket::Configuration, &self.key).await {
            Ok(Some(found)) if found.revision > held.revision => {
                let record = records::decode::<WebhookRecord>(&self.key, &found.value);
                if record.is_ok_and(|record| record.holder == self.holder) {
                    held.revision = found.revision;
                } else {
                    return Err(Lost);
                }
            }
            _ => {}
        }
        self.check(held)
    }

    /// Whether a lease is held still.
    pub(super) fn check(&self, held: &Held) -> Result<(), Lost> {
        if Instant::now() < held.until { Ok(()) } else { Err(Lost) }
    }

    /// Gives the lease back, with the cursor as it is.
    pub(super) async fn give_back(&self, mut held: Held) {
        held.record.holder.clear();
        // Where it is not written, the others wait for the length of the lease.
        let _given = self.write(&mut held).await;
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use guest_fleet_ledger::{Fate, Faults, MemoryLedger};

    const LENGTH: Duration = Duration::from_secs(15);

    fn lease(ledger: &MemoryLedger) -> Lease {
        Lease::new(Arc::new(ledger.clone()), "pager", LENGTH)
    }

    #[tokio::test(start_paused = true)]
    async fn one_process_holds_it_until_it_stops_writing() {
        let ledger = MemoryLedger::new();
        let (mut first, mut second) = (lease(&ledger), lease(&ledger));
        let mut held = first.take().await.expect("nobody has it");
        held.record.position = 7;
        for _ in 0..10 {
            tokio::time::advance(LENGTH - Duration::from_secs(1)).await;
            first.write(&mut held).await.expect("it is held");
            assert!(second.take().await.is_none(), "it changes");
        }
        tokio::time::advance(LENGTH).await;
        assert_eq!(first.check(&held), Err(Lost), "the holder stops first");
        let taken = second.take().await.expect("it did not change");
        assert_eq!(taken.record.position, 7);
        assert_eq!(first.write(&mut held).await, Err(Lost));
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_given_back_is_taken_at_once() {
        let ledger = MemoryLedger::new();
        let (mut first, mut second) = (lease(&ledger), lease(&ledger));
        let held = first.take().await.expect("nobody has it");
        first.give_back(held).await;
        assert!(second.take().await.is_some());
        assert!(first.take().await.is_none());
    }

    #[tokio::test(start_paused = true)]
    async fn a_write_whose_answer_is_lost_is_known_again() {
        let ledger = MemoryLedger::new();
        let mut lease = lease(&ledger);
        let mut held = lease.take().await.expect("nobody has it");
        ledger.script([Fate::Happened]);
        lease.write(&mut held).await.expect("it is held still");
        lease.write(&mut held).await.expect("the revision is known");
        ledger.set_faults(Faults { unavailable: 1.0, ..Faults::default() });
        lease.write(&mut held).await.expect("until its end");
        tokio::time::advance(LENGTH).await;
        assert_eq!(lease.write(&mut held).await, Err(Lost));
    }
}
