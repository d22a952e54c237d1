//! Records, in memory. They survive the agent, as far as they were durable.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use async_trait::async_trait;
use tokio::sync::watch;

use crate::fakes::Shared;
use crate::fakes::fate::{Committing, Decider, Fact};
use crate::ports::{
    Durability, Losses, QuarantinedRecord, Storage, StorageError, StoreHealth, Table, Write,
};

type Records = BTreeMap<(Table, Vec<u8>), Vec<u8>>;

/// A store in memory.
pub struct FakeStorage(StorageHandle);

/// Makes a [`FakeStorage`] fail, and reads what is in it.
#[derive(Clone)]
pub struct StorageHandle(Shared<Disk>);

/// Where in a commit the agent dies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CrashPoint {
    /// Nothing of the commit was written.
    Before,
    /// All of it was written, and the caller got no answer.
    After,
}

#[derive(Default)]
struct Disk {
    records: Records,
    durable: Records,
    /// Written, and lost when the agent dies before the next durable commit.
    unsynced: Vec<Write>,
    commits: usize,
    durable_commits: usize,
    failing: bool,
    unreadable: bool,
    slow_reads: Duration,
    slow_commits: Duration,
    crash: Option<(usize, CrashPoint)>,
    crashed: bool,
    aside: Vec<(Table, Vec<u8>, String)>,
    /// How many records were in quarantine before it was cleared.
    forgotten: u64,
    health: watch::Sender<StoreHealth>,
    fate: Decider,
    lost_stores: Vec<String>,
}

/// A store with nothing in it.
#[must_use]
pub fn storage() -> (FakeStorage, StorageHandle) {
    let handle = StorageHandle(Shared::new(Disk::default()));
    (FakeStorage(handle.clone()), handle)
}

// === impl StorageHandle ===

impl StorageHandle {
    /// What the agent reads and writes, for who reads it as well.
    #[must_use]
    pub fn port(&self) -> Arc<dyn Storage> {
        Arc::new(FakeStorage(self.clone()))
    }

    /// From now on commits fail, or do not.
    pub fn set_failing(&self, failing: bool) {
        self.0.with(|disk| {
            disk.failing = failing;
            disk.show_health();
        });
    }

    /// From now on reads fail, or do not.
    pub fn set_unreadable(&self, unreadable: bool) {
        self.0.with(|disk| {
            disk.unreadable = unreadable;
            disk.show_health();
        });
    }

    /// From now on a read takes this long.
    pub fn set_slow_reads(&self, time: Duration) {
        self.0.with(|disk| disk.slow_reads = time);
    }

    /// Commits take this long from now on.
    pub fn set_slow_commits(&self, time: Duration) {
        self.0.with(|disk| disk.slow_commits = time);
    }

    /// The store stops answering at its `commit`-th commit, counted from 1: what was begun stays
    /// begun, as when the agent is killed.
    pub fn crash_at(&self, commit: usize, point: CrashPoint) {
        self.0.with(|disk| disk.crash = Some((commit, point)));
    }

    /// Whether the moment set by [`Self::crash_at`] came.
    #[must_use]
    pub fn has_crashed(&self) -> bool {
        self.0.with(|disk| disk.crashed)
    }

    /// The store answers again, with what was durable.
    pub fn revive(&self) {
        self.0.with(|disk| {
            disk.crashed = false;
            disk.crash = None;
            disk.unsynced.clear();
            disk.records = disk.durable.clone();
        });
    }

    pub(super) fn fate(&self) -> Decider {
        self.0.with(|disk| disk.fate.clone())
    }

    /// Resolves when the moment set by [`Self::crash_at`], or drawn by a fate, has come.
    pub async fn crashed(&self) {
        self.0.until(|disk| disk.crashed.then_some(())).await;
    }

    /// A record as it is on the disk.
    #[must_use]
    pub fn read(&self, table: Table, key: &[u8]) -> Option<Vec<u8>> {
        self.0.with(|disk| disk.records.get(&(table, key.to_vec())).cloned())
    }

    /// Commits so far, those that failed included.
    #[must_use]
    pub fn commits(&self) -> usize {
        self.0.with(|disk| disk.commits)
    }

    /// The number of commits so far that a caller waited for.
    #[must_use]
    pub fn durable_commits(&self) -> usize {
        self.0.with(|disk| disk.durable_commits)
    }

    /// The keys in a table.
    #[must_use]
    pub fn keys(&self, table: Table) -> Vec<Vec<u8>> {
        self.0.with(|disk| {
            disk.records.keys().filter(|(of, _)| *of == table).map(|(_, key)| key.clone()).collect()
        })
    }

    /// Puts a record where an earlier agent process could have left it.
    pub fn plant(&self, table: Table, key: &[u8], value: &[u8]) {
        self.0.with(|disk| {
            disk.records.insert((table, key.to_vec()), value.to_vec());
            disk.durable.insert((table, key.to_vec()), value.to_vec());
        });
    }

    /// An earlier store is known to have been lost as a whole.
    pub fn lose_store(&self, path: &str) {
        self.0.with(|disk| {
            disk.lost_stores.push(path.to_owned());
            disk.show_health();
        });
    }

    /// The records that were set aside, with the reasons.
    #[must_use]
    pub fn aside(&self) -> Vec<(Table, Vec<u8>, String)> {
        self.0.with(|disk| disk.aside.clone())
    }
}

// === impl Disk ===

impl Disk {
    fn show_health(&self) {
        self.health.send_replace(StoreHealth {
            records: self.aside.len(),
            stores: self.lost_stores.len(),
            trouble: (self.failing || self.unreadable).then(|| FULL.into()),
        });
    }

    fn write(&mut self, writes: Vec<Write>, durability: Durability) {
        self.unsynced.extend(writes.iter().cloned());
        carry_out(&mut self.records, writes);
        if durability == Durability::Durable {
            carry_out(&mut self.durable, std::mem::take(&mut self.unsynced));
        }
    }
}

fn carry_out(records: &mut Records, writes: Vec<Write>) {
    for write in writes {
        match write {
            Write::Put { table, key, value } => records.insert((table, key), value),
            Write::Delete { table, key } => records.remove(&(table, key)),
        };
    }
}

const FULL: &str = "no space left on device";

fn failed(action: &'static str) -> StorageError {
    StorageError { action, cause: FULL.into() }
}

// === impl FakeStorage ===

#[async_trait]
impl Storage for FakeStorage {
    async fn load(&self, table: Table) -> Result<Vec<(Vec<u8>, Vec<u8>)>, StorageError> {
        let time = self.0.0.until(|disk| (!disk.crashed).then_some(disk.slow_reads)).await;
        if !time.is_zero() {
            tokio::time::sleep(time).await;
        }
        self.0.0.with(|disk| {
            if disk.unreadable {
                return Err(failed("read"));
            }
            let of_it = disk.records.iter().filter(|((of, _), _)| *of == table);
            Ok(of_it.map(|((_, key), value)| (key.clone(), value.clone())).collect())
        })
    }

    async fn commit(&self, writes: Vec<Write>, durability: Durability) -> Result<(), StorageError> {
        // A commit lets others run before it is done, as a real one does.
        tokio::task::yield_now().await;
        let (mut time, fate) = self.0.0.with(|disk| (disk.slow_commits, disk.fate.clone()));
        let verdict = fate.get().map_or(Committing::Succeed, |fate| fate.commit(&writes));
        if let Committing::Late(more) = verdict {
            time += more;
        }
        if !time.is_zero() {
            tokio::time::sleep(time).await;
        }
        let facts = writes.clone();
        let result = self.0.0.with(|disk| {
            if disk.crashed {
                return None;
            }
            disk.commits += 1;
            if durability == Durability::Durable {
                disk.durable_commits += 1;
            }
            let now = disk.commits;
            let crash = match verdict {
                Committing::DieBefore => Some((now, CrashPoint::Before)),
                Committing::DieAfter => Some((now, CrashPoint::After)),
                Committing::Succeed | Committing::Late(_) | Committing::Fail => disk.crash,
            };
            match crash {
                Some((at, CrashPoint::Before)) if at == disk.commits => {
                    disk.crashed = true;
                    return None;
                }
                Some((at, CrashPoint::After)) if at == disk.commits => {
                    disk.write(writes, durability);
                    disk.crashed = true;
                    return None;
                }
                Some(_) | None => {}
            }
            if disk.failing || verdict == Committing::Fail {
                return Some(Err(failed("write")));
            }
            disk.write(writes, durability);
            Some(Ok(()))
        });
        let written =
            matches!(result, Some(Ok(()))) || (result.is_none() && verdict == Committing::DieAfter);
        if written {
            fate.happened(Fact::Committed(&facts, durability));
        }
        match result {
            Some(result) => result,
            None => std::future::pending().await,
        }
    }

    async fn set_aside(
        &self,
        table: Table,
        key: Vec<u8>,
        reason: String,
    ) -> Result<(), StorageError> {
        self.0.0.with(|disk| {
            disk.records.remove(&(table, key.clone()));
            disk.durable.remove(&(table, key.clone()));
            disk.unsynced.retain(|write| match write {
                Write::Put { table: of, key: k, .. } | Write::Delete { table: of, key: k } => {
                    (*of, k) != (table, &key)
                }
            });
            disk.aside.push((table, key, reason));
            disk.show_health();
        });
        Ok(())
    }

    async fn losses(&self) -> Result<Losses, StorageError> {
        self.0.0.with(|disk| {
            if disk.unreadable {
                return Err(failed("read"));
            }
            let aside = disk.aside.iter().cloned().zip(disk.forgotten..);
            let records = aside.map(|((table, key, reason), number)| {
                let at = SystemTime::UNIX_EPOCH;
                QuarantinedRecord { number, table, key, reason, at }
            });
            Ok(Losses { records: records.collect(), stores: disk.lost_stores.clone() })
        })
    }

    async fn clear_quarantine(&self) -> Result<u64, StorageError> {
        self.0.0.with(|disk| {
            if disk.failing {
                return Err(failed("write"));
            }
            let cleared = u64::try_from(disk.aside.len()).unwrap_or(u64::MAX);
            disk.aside.clear();
            disk.forgotten += cleared;
            disk.show_health();
            Ok(cleared)
        })
    }

    fn health(&self) -> watch::Receiver<StoreHealth> {
        self.0.0.with(|disk| disk.health.subscribe())
    }
}
