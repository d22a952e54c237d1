//! Rows in leaves: records of neighbouring agents, so that a page is one or two records and a batch has
//! few of them. Only plans what is to be written; the owner writes.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound::{Excluded, Included, Unbounded};

use guest_fleet_core::fold::Row;
use guest_fleet_ledger::records::Versioned;
use guest_fleet_ledger::records::index::{
    DirectoryRecord, LeafEntry, LeafRecord, RowRecord, directory_key, leaf_key,
};
use guest_fleet_ledger::{Revision, Write};
use prost::Message;

use super::stored::of_row;

/// A batch is full when its leaves have this many bytes. The row that fills it may be larger.
pub(super) const BATCH_BYTES: usize = 2 << 20;
/// Most leaves of a batch.
const BATCH_LEAVES: usize = 900;
/// Largest leaf by the bytes of the directory: a large fleet gets larger leaves, so that its
/// directory stays one record.
const LIMITS: [(usize, usize); 2] = [(256 << 10, 16 << 10), (512 << 10, 64 << 10)];
const LARGEST: usize = 1 << 20;

/// Where the rows of a shard are.
#[derive(Debug)]
pub(super) struct Leaves {
    shard: u32,
    next: u64,
    /// By the id from which on they have the rows.
    all: BTreeMap<String, Leaf>,
    /// Leaves that do not say what the rows are.
    dirty: BTreeSet<String>,
    /// Bytes of the directory.
    bytes: usize,
    directory: Revision,
    is_directory_dirty: bool,
    /// Leaves that the directory does not have.
    garbage: Vec<(String, Revision)>,
}

#[derive(Clone, Copy, Debug)]
struct Leaf {
    number: u64,
    revision: Revision,
    bytes: usize,
}

/// What one batch writes of the leaves.
#[derive(Debug, Default)]
pub(super) struct Plan {
    pub(super) writes: Vec<Write>,
    /// Bytes of it.
    pub(super) bytes: usize,
    /// Whether nothing is left to write after it.
    pub(super) is_last: bool,
    firsts: Vec<String>,
    has_directory: bool,
}

/// The rows of a new leaf.
struct Piece {
    first: String,
    rows: Vec<RowRecord>,
    bytes: usize,
}

// === impl Leaves ===

impl Leaves {
    /// Leaves of a shard that has none: one for all ids.
    pub(super) fn new(shard: u32) -> Self {
        let mut leaves = Self {
            shard,
            next: 1,
            all: BTreeMap::new(),
            dirty: BTreeSet::new(),
            bytes: 0,
            directory: Revision::ABSENT,
            is_directory_dirty: true,
            garbage: Vec::new(),
        };
        leaves.insert(String::new(), Revision::ABSENT, 0);
        leaves.dirty.insert(String::new());
        leaves
    }

    /// The same, where something is there that cannot be used: it is deleted.
    pub(super) fn anew(
        shard: u32,
        next: u64,
        directory: Revision,
        garbage: Vec<(String, Revision)>,
    ) -> Self {
        let mut leaves = Self { next: next.max(1), ..Self::new(shard) };
        leaves.all.clear();
        leaves.bytes = 0;
        leaves.insert(String::new(), Revision::ABSENT, 0);
        Self { directory, garbage, ..leaves }
    }

    /// Leaves as they were read: number, first id, revision and bytes of each.
    pub(super) fn of_parts(
        shard: u32,
        next: u64,
        directory: Revision,
        read: impl IntoIterator<Item = (u64, String, Revision, usize)>,
    ) -> Self {
        let mut leaves = Self {
            next,
            all: BTreeMap::new(),
            dirty: BTreeSet::new(),
            bytes: 0,
            directory,
            is_directory_dirty: false,
            ..Self::new(shard)
        };
        for (number, first, revision, bytes) in read {
            leaves.bytes += entry_bytes(&first);
            leaves.all.insert(first, Leaf { number, revision, bytes });
        }
        leaves
    }

    /// The row of an agent is another one.
    pub(super) fn touch(&mut self, id: &str) {
        if let Some((first, _)) = self.all.range::<str, _>((Unbounded, Included(id))).next_back() {
            self.dirty.insert(first.clone());
        }
    }

    /// The next batch, planned on the rows.
    pub(super) fn plan(&mut self, rows: &BTreeMap<String, Row>) -> Plan {
        let mut plan = Plan::default();
        while plan.bytes < BATCH_BYTES
            && plan.writes.len() < BATCH_LEAVES
            && let Some(first) = self.dirty.pop_first()
        {
            self.plan_leaf(first, rows, &mut plan);
        }
        let room = BATCH_LEAVES.saturating_sub(plan.writes.len()).min(self.garbage.len());
        for (key, expected) in self.garbage.drain(..room) {
            plan.writes.push(Write { key, expected, value: None });
        }
        if self.is_directory_dirty {
            let value = self.directory_record().encode_to_vec();
            plan.bytes += value.len();
            plan.writes.push(Write {
                key: directory_key(self.shard),
                expected: self.directory,
                value: Some(value.into()),
            });
            plan.has_directory = true;
            self.is_directory_dirty = false;
        }
        plan.is_last = self.dirty.is_empty() && self.garbage.is_empty();
        plan
    }

    /// A batch was written.
    pub(super) fn written(&mut self, plan: &Plan, revision: Revision) {
        for first in &plan.firsts {
            if let Some(leaf) = self.all.get_mut(first) {
                leaf.revision = revision;
            }
        }
        if plan.has_directory {
            self.directory = revision;
        }
    }

    fn plan_leaf(&mut self, first: String, rows: &BTreeMap<String, Row>, plan: &mut Plan) {
        let mut first = first;
        let limit = self.limit();
        let mut all = self.rows_of(&first, rows);
        let bytes: usize = all.iter().map(size).sum();
        if let Some(before) = self.absorbs(&first, bytes, limit, plan) {
            if let Some(leaf) = self.remove(&first)
                && leaf.revision != Revision::ABSENT
            {
                let key = leaf_key(self.shard, leaf.number);
                plan.writes.push(Write { key, expected: leaf.revision, value: None });
            }
            self.dirty.remove(&before);
            all = self.rows_of(&before, rows);
            first = before;
        }
        let until = self.until(&first);
        let mut pieces = pieces(first, all, limit).into_iter().peekable();
        while let Some(piece) = pieces.next() {
            let is_full = plan.bytes >= BATCH_BYTES && !plan.firsts.is_empty();
            let until = if is_full {
                // What follows waits for the next batch, in a leaf that is empty until then.
                self.dirty.insert(piece.first.clone());
                until.clone()
            } else {
                pieces.peek().map(|next| next.first.clone()).or_else(|| until.clone())
            };
            let rows = if is_full { Vec::new() } else { piece.rows };
            self.write(piece.first, until, rows, piece.bytes, plan);
            if is_full {
                return;
            }
        }
    }

    /// The leaf before this one, where both together are small.
    fn absorbs(&self, first: &str, bytes: usize, limit: usize, plan: &Plan) -> Option<String> {
        if bytes >= limit / 4 {
            return None;
        }
        let (before, leaf) = self.all.range::<str, _>((Unbounded, Excluded(first))).next_back()?;
        let is_small = leaf.bytes.saturating_add(bytes) <= limit / 2;
        // A batch writes a record once.
        (is_small && !plan.firsts.contains(before)).then(|| before.clone())
    }

    fn write(
        &mut self,
        first: String,
        until: Option<String>,
        rows: Vec<RowRecord>,
        bytes: usize,
        plan: &mut Plan,
    ) {
        if !self.all.contains_key(&first) {
            self.insert(first.clone(), Revision::ABSENT, bytes);
        }
        let Some(leaf) = self.all.get_mut(&first) else { return };
        leaf.bytes = bytes;
        let record = LeafRecord { version: LeafRecord::VERSION, first: first.clone(), until, rows };
        let value = record.encode_to_vec();
        plan.bytes += value.len();
        plan.writes.push(Write {
            key: leaf_key(self.shard, leaf.number),
            expected: leaf.revision,
            value: Some(value.into()),
        });
        plan.firsts.push(first);
    }

    fn insert(&mut self, first: String, revision: Revision, bytes: usize) {
        self.bytes += entry_bytes(&first);
        self.all.insert(first, Leaf { number: self.next, revision, bytes });
        self.next = self.next.saturating_add(1);
        self.is_directory_dirty = true;
    }

    fn remove(&mut self, first: &str) -> Option<Leaf> {
        self.bytes = self.bytes.saturating_sub(entry_bytes(first));
        self.is_directory_dirty = true;
        self.all.remove(first)
    }

    fn until(&self, first: &str) -> Option<String> {
        self.all.range::<str, _>((Excluded(first), Unbounded)).next().map(|(next, _)| next.clone())
    }

    fn rows_of(&self, first: &str, rows: &BTreeMap<String, Row>) -> Vec<RowRecord> {
        let until = self.until(first);
        let from = rows.range::<str, _>((Included(first), Unbounded));
        let within = from.take_while(|(id, _)| until.as_ref().is_none_or(|until| *id < until));
        within.map(|(id, row)| of_row(id, row)).collect()
    }

    fn limit(&self) -> usize {
        let fits = LIMITS.into_iter().find(|(bytes, _)| self.bytes < *bytes);
        fits.map_or(LARGEST, |(_, limit)| limit)
    }

    fn directory_record(&self) -> DirectoryRecord {
        let entry = |(first, leaf): (&String, &Leaf)| LeafEntry {
            number: leaf.number,
            first: first.clone(),
        };
        DirectoryRecord {
            version: DirectoryRecord::VERSION,
            next: self.next,
            leaves: self.all.iter().map(entry).collect(),
        }
    }
}

/// Rows in pieces of at most `limit` bytes, if no row is larger. They have room to grow where there is
/// more than one.
fn pieces(first: String, rows: Vec<RowRecord>, limit: usize) -> Vec<Piece> {
    let bytes: usize = rows.iter().map(size).sum();
    let target = if bytes > limit { limit / 3 * 2 } else { limit };
    let mut pieces = vec![Piece { first, rows: Vec::new(), bytes: 0 }];
    for row in rows {
        let size = size(&row);
        let is_full = pieces
            .last()
            .is_some_and(|last| !last.rows.is_empty() && last.bytes.saturating_add(size) > target);
        if is_full {
            pieces.push(Piece { first: row.id.clone(), rows: Vec::new(), bytes: 0 });
        }
        if let Some(last) = pieces.last_mut() {
            last.bytes += size;
            last.rows.push(row);
        }
    }
    pieces
}

fn size(row: &RowRecord) -> usize {
    row.encoded_len() + 4
}

fn entry_bytes(first: &str) -> usize {
    first.len() + 12
}
