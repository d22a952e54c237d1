//! The index as it is read: pages in the order of ids, and counts. A page costs a bounded number of
//! records, however many agents there are.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use guest_fleet_core::fold::{Cell, Doors, Row, Tally, Word};
use guest_fleet_core::presence::{Beat, Links, Presence};
use guest_fleet_core::time::{Seconds, Zones};
use guest_fleet_core::view::ReleaseName;
use guest_fleet_core::window::Weekly;
use guest_fleet_ledger::records::index::{
    CheckpointRecord, DirectoryRecord, LeafRecord, LeaseRecord, SHAPE, ShapeRecord, checkpoint_key,
    directory_key, leaf_key, lease_key,
};
use guest_fleet_ledger::records::{self, RecordError, Versioned};
use guest_fleet_ledger::{Bucket, Ledger, ReadError};
use thiserror::Error;

use super::settings::SHARDS_MAX;
use super::stored;

/// Most leaves that one page reads. A page of a filter that few agents pass ends here, and the next begins
/// where it ended.
pub const PAGE_LEAVES: usize = 64;

/// How often a leaf is looked for again that an owner moves meanwhile.
const TRIES: u32 = 5;

/// Pause before that, times the number of tries.
const PAUSE: Duration = Duration::from_millis(20);

/// The index at one moment.
pub struct Index<'a> {
    ledger: &'a dyn Ledger,
    shards: Vec<Shard>,
    holds: BTreeMap<String, Option<Seconds>>,
    windows: BTreeMap<String, Weekly>,
    links: Links,
}

struct Shard {
    number: u32,
    as_of: Option<Seconds>,
    is_owned: bool,
    counts: Tally<Cell>,
    left_out: u64,
    directory: DirectoryRecord,
}

/// For how long an agent may have no stream before it is offline, in seconds, as the process says that folds the
/// index; `None` where none does.
///
/// # Errors
/// The ledger, or the index in it, cannot be read.
pub async fn offline_after(ledger: &dyn Ledger) -> Result<Option<u64>, IndexError> {
    let checkpoint = read::<CheckpointRecord>(ledger, &checkpoint_key(0)).await?;
    Ok(checkpoint.map(|checkpoint| checkpoint.offline_after).filter(|after| *after > 0))
}

/// Some agents in the order of their ids.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RowsPage {
    /// Ids and rows.
    pub rows: Vec<(String, Row)>,
    /// The id after which the next page begins; `None` at the end. There may be a next page that has nothing.
    pub next: Option<String>,
}

/// How many agents stand where.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Agents by how present they are.
    pub agents: BTreeMap<Presence, u64>,
    /// By assignment.
    pub assignments: BTreeMap<String, BTreeMap<Word, u64>>,
    /// By what is wanted: plugin, and revision or `None` for nothing.
    pub wanted: BTreeMap<(String, Option<String>), BTreeMap<Word, u64>>,
    /// Agents that reported a declared release as what they have, without archived ones.
    pub having: BTreeMap<ReleaseName, u64>,
    /// Agents on which a plugin is failing, or an order for it failed, by plugin and fingerprint.
    pub faulty: BTreeMap<(String, String), u64>,
    /// Agents of which a person on the machine holds a plugin, by plugin.
    pub held_by_owner: BTreeMap<String, u64>,
    /// How many counts there was no room for.
    pub left_out: u64,
}

/// Why the index cannot be read.
#[derive(Debug, Error)]
pub enum IndexError {
    /// The ledger cannot be read.
    #[error(transparent)]
    Read(#[from] ReadError),
    /// A record of the index cannot be read.
    #[error("the index cannot be read")]
    Record(#[from] RecordError),
    /// It changes faster than it is read.
    #[error("the index changes faster than it can be read: try again")]
    Moving,
}

// === impl Index ===

impl<'a> Index<'a> {
    /// Reads what pages and counts begin with; `None` where no index was made yet.
    ///
    /// # Errors
    /// The ledger, or the index in it, cannot be read.
    pub async fn open(ledger: &'a dyn Ledger) -> Result<Option<Self>, IndexError> {
        let Some(shape) = read::<ShapeRecord>(ledger, SHAPE).await? else { return Ok(None) };
        let mut index = Self {
            ledger,
            shards: Vec::new(),
            holds: BTreeMap::new(),
            windows: BTreeMap::new(),
            links: Links::default(),
        };
        for number in 0..shape.shards.clamp(1, SHARDS_MAX) {
            let key = checkpoint_key(number);
            let Some(checkpoint) = read::<CheckpointRecord>(ledger, &key).await? else {
                return Ok(None);
            };
            let lease = read::<LeaseRecord>(ledger, &lease_key(number)).await?.unwrap_or_default();
            let directory = read::<DirectoryRecord>(ledger, &directory_key(number)).await?;
            index.holds.extend(stored::holds(&checkpoint));
            index.windows.extend(stored::windows(&checkpoint));
            if checkpoint.offline_after > 0 {
                index.links.offline_after = checkpoint.offline_after;
            }
            index.shards.push(Shard {
                number,
                as_of: (lease.as_of > 0).then_some(Seconds(lease.as_of)),
                is_owned: !lease.owner.is_empty(),
                counts: stored::counts(&key, &checkpoint)?,
                left_out: checkpoint.left_out,
                directory: directory.unwrap_or_default(),
            });
        }
        Ok(Some(index))
    }

    /// Everything that was written until then is in it; `None` before it was whole for the first time.
    #[must_use]
    pub fn as_of(&self) -> Option<Seconds> {
        self.shards.iter().map(|shard| shard.as_of).min().flatten()
    }

    /// Whether every shard has an owner that did not give it back. It may have died.
    #[must_use]
    pub fn is_owned(&self) -> bool {
        self.shards.iter().all(|shard| shard.is_owned)
    }

    /// How many leaves there are.
    #[cfg(test)]
    pub(super) fn leaves(&self) -> usize {
        self.shards.iter().map(|shard| shard.directory.leaves.len()).sum()
    }

    /// When holds end and windows open, as the index knows it.
    #[must_use]
    pub fn doors<'b>(&'b self, zones: &'b dyn Zones) -> Doors<'b> {
        Doors { holds: &self.holds, windows: &self.windows, zones }
    }

    /// Takes in the gateways. They have to be read after the index: its counts name none that came later, so those
    /// that are not known have no agents any more.
    pub fn set_gateways(&mut self, gateways: BTreeMap<String, Beat>) {
        self.links.gateways = gateways;
    }

    /// The gateways, and when an agent is offline.
    #[must_use]
    pub fn links(&self) -> &Links {
        &self.links
    }

    /// The same as values of their own.
    #[must_use]
    pub fn hours(&self) -> (BTreeMap<String, Option<Seconds>>, BTreeMap<String, Weekly>) {
        (self.holds.clone(), self.windows.clone())
    }

    /// How many agents are present how at a time.
    pub(crate) fn presences(&self, now: Seconds) -> BTreeMap<Presence, u64> {
        let mut counts = BTreeMap::new();
        for (cell, number) in self.shards.iter().flat_map(|shard| shard.counts.at(now)) {
            if let Cell::Agents(place) = cell {
                *counts.entry(place.presence(&self.links, now)).or_default() += number;
            }
        }
        counts
    }

    /// How many agents stand where at a time.
    #[must_use]
    pub fn counts(&self, now: Seconds, zones: &dyn Zones) -> Counts {
        let mut counts = Counts::default();
        let doors = self.doors(zones);
        for shard in &self.shards {
            counts.left_out += shard.left_out;
            for (cell, number) in shard.counts.at(now) {
                match cell {
                    Cell::Agents(place) => {
                        let presence = place.presence(&self.links, now);
                        *counts.agents.entry(presence).or_default() += number;
                    }
                    Cell::Assigned { assignment, plugin, revision, mark } => {
                        let word = mark.word(now, &doors);
                        let by_name = counts.assignments.entry(assignment).or_default();
                        *by_name.entry(word).or_default() += number;
                        let by_target = counts.wanted.entry((plugin, revision)).or_default();
                        *by_target.entry(word).or_default() += number;
                    }
                    Cell::Having { release, archived: false } => {
                        *counts.having.entry(release).or_default() += number;
                    }
                    Cell::Faulty { plugin, fingerprint } => {
                        *counts.faulty.entry((plugin, fingerprint)).or_default() += number;
                    }
                    Cell::HeldByOwner { plugin } => {
                        *counts.held_by_owner.entry(plugin).or_default() += number;
                    }
                    Cell::Having { archived: true, .. } | Cell::Over => {}
                }
            }
        }
        counts
    }

    /// The same from as many pages as that takes: one that looks at much and finds little is followed by the
    /// next.
    ///
    /// # Errors
    /// The ledger, or the index in it, cannot be read.
    pub async fn rows(
        &mut self,
        after: Option<&str>,
        limit: usize,
        is_wanted: impl Fn(&str, &Row) -> bool,
    ) -> Result<RowsPage, IndexError> {
        let mut found = RowsPage { rows: Vec::new(), next: after.map(str::to_owned) };
        while found.rows.len() < limit {
            let left = limit - found.rows.len();
            let page = self.page(found.next.as_deref(), left, &is_wanted).await?;
            found.rows.extend(page.rows);
            found.next = page.next;
            if found.next.is_none() {
                break;
            }
        }
        Ok(found)
    }

    /// At most `limit` agents that pass `is_wanted`, in the order of their ids, after one of them. Agents
    /// without a record of their own are not shown.
    ///
    /// # Errors
    /// The ledger, or the index in it, cannot be read.
    pub async fn page(
        &mut self,
        after: Option<&str>,
        limit: usize,
        is_wanted: impl Fn(&str, &Row) -> bool,
    ) -> Result<RowsPage, IndexError> {
        // The least id above.
        let from = after.map_or_else(String::new, |after| format!("{after}\0"));
        let mut streams: Vec<Stream> = self.shards.iter().map(|_| Stream::new(&from)).collect();
        let mut page = RowsPage::default();
        let mut seen: Option<String> = after.map(str::to_owned);
        let mut leaves = 0;
        loop {
            for (shard, stream) in self.shards.iter_mut().zip(&mut streams) {
                while stream.rows.is_empty()
                    && let Some(from) = stream.from.clone()
                {
                    if leaves == PAGE_LEAVES {
                        // What other shards have before this is not known: go on after what was seen.
                        page.next = seen;
                        return Ok(page);
                    }
                    leaves += 1;
                    stream.take(shard.leaf(self.ledger, &from).await?, &from)?;
                }
            }
            let heads = streams.iter_mut().filter(|stream| !stream.rows.is_empty());
            let least = heads.min_by(|a, b| a.head().cmp(&b.head()));
            let Some((id, row)) = least.and_then(|stream| stream.rows.pop_front()) else {
                return Ok(page);
            };
            if row.agent.is_some() && is_wanted(&id, &row) {
                if page.rows.len() == limit {
                    page.next = seen;
                    return Ok(page);
                }
                page.rows.push((id.clone(), row));
            }
            seen = Some(id);
        }
    }
}

/// The rows of one shard, leaf by leaf.
struct Stream {
    rows: VecDeque<(String, Row)>,
    /// Where the next leaf begins; `None` at the end.
    from: Option<String>,
}

impl Stream {
    fn new(from: &str) -> Self {
        Self { rows: VecDeque::new(), from: Some(from.to_owned()) }
    }

    fn head(&self) -> Option<&str> {
        self.rows.front().map(|(id, _)| id.as_str())
    }

    fn take(&mut self, leaf: LeafRecord, from: &str) -> Result<(), RecordError> {
        for record in leaf.rows.into_iter().filter(|record| record.id.as_str() >= from) {
            self.rows.push_back(stored::row(record)?);
        }
        self.from = leaf.until;
        Ok(())
    }
}

// === impl Shard ===

impl Shard {
    /// The leaf that has an id. An owner may split or merge leaves meanwhile: then the directory is read
    /// again.
    async fn leaf(&mut self, ledger: &dyn Ledger, id: &str) -> Result<LeafRecord, IndexError> {
        for tries in 1..=TRIES {
            let after = self.directory.leaves.partition_point(|leaf| leaf.first.as_str() <= id);
            let entry = after.checked_sub(1).and_then(|at| self.directory.leaves.get(at));
            if let Some(entry) = entry {
                let key = leaf_key(self.number, entry.number);
                if let Some(leaf) = read::<LeafRecord>(ledger, &key).await?
                    && leaf.first.as_str() <= id
                    && leaf.until.as_deref().is_none_or(|until| id < until)
                {
                    return Ok(leaf);
                }
            }
            tokio::time::sleep(PAUSE * tries).await;
            let directory = read::<DirectoryRecord>(ledger, &directory_key(self.number)).await?;
            self.directory = directory.unwrap_or_default();
        }
        Err(IndexError::Moving)
    }
}

async fn read<R: Versioned>(ledger: &dyn Ledger, key: &str) -> Result<Option<R>, IndexError> {
    let found = ledger.get(Bucket::Index, key).await?;
    Ok(found.map(|found| records::decode(key, &found.value)).transpose()?)
}
