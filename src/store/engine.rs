//! The store itself, as plain blocking calls: one sled tree, its files, the quarantine.
//!
//! All tables live in one tree, and the first byte of a key names its table, because sled carries
//! out a batch over one tree wholly or not at all, also across a crash. The quarantine and the
//! store's own records are in it too, so that moving a record into quarantine is one such batch.
//!
//! Every batch also writes the [`Generation`], by which the next opening sees that a database lost
//! data.
//!
//! Runs on the worker's thread only. A call may panic where sled does; the worker catches that and
//! opens the store anew before it trusts it again.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::fs::File;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use guest_agent_actors::error::Chain;
use guest_agent_actors::ports::{
    Durability, Losses, QuarantinedRecord, StorageError, Table, Write,
};

use super::damage;
use super::frame;
use super::generation::{self, Generation, MarkFile, Survey};
use super::quarantine::{self, Index};
use super::table::{table_of_tag, tag};
use crate::store::compaction::Tidy;

/// First byte of the keys of quarantined records; a big-endian number follows.
const QUARANTINE: u8 = b'q';

/// The key of the generation, which is not one of the records that it sums up.
const GENERATION: &[u8] = b"mgeneration";

/// sled keeps a larger record in a file of its own, in bytes.
const OUTSIDE: u64 = 128 << 10;

/// Keys and payloads.
pub(super) type Records = Vec<(Vec<u8>, Vec<u8>)>;

/// An open store.
pub(super) struct Engine {
    db: sled::Db,
    files: Files,
    quarantine: Index,
    set_aside_count: u64,
    lost_stores: usize,
    generation: Generation,
    /// The mark next to the database; `None` if it has to be written anew.
    mark: Option<MarkFile>,
    /// Whether a write is not known to be on the disk.
    dirty: bool,
    /// Bytes of all records, keys included.
    live: u64,
    tidy: Tidy,
}

/// The files behind the database, for the syncs that sled does not do.
struct Files {
    dir: PathBuf,
    data: File,
    /// Large records have files of their own, which never change; these are on the disk already.
    synced_blobs: BTreeSet<OsString>,
}

// === impl Engine ===

impl Engine {
    /// Wraps an open database whose files are in `dir`, and reads every page of it once: damage had
    /// better be found now than when a plugin's state is saved.
    pub(super) fn new(db: sled::Db, dir: &Path) -> Result<(Self, Survey), StorageError> {
        let mut quarantine = Index::new(quarantine::MAX_RECORDS, quarantine::MAX_BYTES);
        let mut survey = Survey::default();
        let mut live = 0;
        for record in db.iter() {
            let (key, value) = record.map_err(failed("read"))?;
            live += size(&key, &value);
            if key == GENERATION {
                let payload = frame::decode(&key, &value).map_err(failed("read"))?;
                survey.recorded = Generation::from_bytes(payload);
                continue;
            }
            survey.records += 1;
            survey.sum = survey.sum.wrapping_add(frame::fingerprint(&key, &value));
            // Nobody reads a record without a table, so nobody would report that it is unreadable.
            let is_read = key.first().is_some_and(|&tag| table_of_tag(tag).is_some());
            survey.unreadable += u64::from(is_read && frame::decode(&key, &value).is_err());
            if let Some((&QUARANTINE, number)) = key.split_first()
                && let Ok(number) = number.try_into()
            {
                quarantine.note(u64::from_be_bytes(number), value.len());
            }
        }
        let files = Files::open(dir).map_err(failed("read"))?;
        // Only counted: an unreadable record must not keep a good store from being used.
        let lost_stores = damage::damaged_paths(dir).map_or(0, |paths| paths.len());
        let number = survey.recorded.unwrap_or_default().number;
        let generation = Generation { number, sum: survey.sum };
        let engine = Self {
            db,
            files,
            quarantine,
            set_aside_count: 0,
            lost_stores,
            generation,
            mark: None,
            dirty: false,
            live,
            tidy: Tidy::default(),
        };
        Ok((engine, survey))
    }

    /// Begins a new generation and marks it, so that every opening leaves a trace.
    pub(super) fn begin(&mut self) -> Result<(), StorageError> {
        self.write(sled::Batch::default(), self.generation.sum)?;
        self.sync_database()?;
        self.write_mark()
    }

    /// Makes everything durable, for the last time.
    pub(super) fn finish(&mut self) -> Result<(), StorageError> {
        self.sync()?;
        self.try_to_mark(1);
        Ok(())
    }

    /// Takes the place of an engine that failed, and keeps its counts.
    pub(super) fn succeed(mut self, failed: u64) -> Self {
        self.set_aside_count += failed;
        self
    }

    /// The folder of the store.
    pub(super) fn dir(&self) -> &Path {
        &self.files.dir
    }

    /// All records of a table that are valid, in key order; the others go into quarantine.
    pub(super) fn load(&mut self, table: Table) -> Result<Records, StorageError> {
        let mut records = Vec::new();
        let mut unreadable = Vec::new();
        for record in self.db.scan_prefix([tag(table)]) {
            let (key, value) = record.map_err(failed("read"))?;
            match frame::decode(&key, &value) {
                Ok(payload) => records.push((key[1..].to_vec(), payload.to_vec())),
                Err(error) => {
                    unreadable.push((key[1..].to_vec(), format!("{}{error}", damage::DAMAGED)));
                }
            }
        }
        for (key, reason) in unreadable {
            self.set_aside(table, &key, &reason)?;
        }
        Ok(records)
    }

    /// The newest valid records of a table below a key, in falling order; the others are left to a
    /// reader of the whole table.
    pub(super) fn newest(
        &mut self,
        table: Table,
        below: Option<&[u8]>,
        most: usize,
    ) -> Result<Records, StorageError> {
        let tag = tag(table);
        let end = below.map_or_else(|| vec![tag + 1], |below| full_key(tag, below));
        let mut records = Vec::new();
        for record in self.db.range(vec![tag]..end).rev() {
            if records.len() >= most {
                break;
            }
            let (key, value) = record.map_err(failed("read"))?;
            if let Ok(payload) = frame::decode(&key, &value) {
                records.push((key[1..].to_vec(), payload.to_vec()));
            }
        }
        Ok(records)
    }

    /// Carries out all writes or none.
    pub(super) fn commit(
        &mut self,
        writes: &[Write],
        durability: Durability,
    ) -> Result<(), StorageError> {
        let changes = writes.iter().map(|write| match write {
            Write::Put { table, key, value } => {
                let key = full_key(tag(*table), key);
                let value = frame::encode(&key, value);
                (key, Some(value))
            }
            Write::Delete { table, key } => (full_key(tag(*table), key), None),
        });
        self.apply(changes.collect())?;
        match durability {
            Durability::Lazy => Ok(()),
            Durability::Durable => {
                self.put_in_order()?;
                self.sync()
            }
        }
    }

    /// Moves a record into quarantine. Succeeds when there is no such record.
    pub(super) fn set_aside(
        &mut self,
        table: Table,
        key: &[u8],
        reason: &str,
    ) -> Result<(), StorageError> {
        let full = full_key(tag(table), key);
        let Some(value) = self.db.get(&full).map_err(failed("read"))? else { return Ok(()) };
        tracing::error!(
            table = ?table,
            key = %String::from_utf8_lossy(&key[..key.len().min(80)]).escape_debug(),
            reason,
            "a record was set aside"
        );
        // The generation only grows, so the number does, whatever was forgotten in between.
        let number = self.quarantine.next_number().max(self.generation.number);
        let record = QuarantinedRecord {
            number,
            table,
            key: key.to_vec(),
            reason: reason.to_owned(),
            at: SystemTime::now(),
        };
        let quarantine_key = full_key(QUARANTINE, &number.to_be_bytes());
        let entry = frame::encode(&quarantine_key, &quarantine::encode(&record, &value));

        self.quarantine.note(number, entry.len());
        let mut changes = BTreeMap::from([(full, None), (quarantine_key, Some(entry))]);
        for evicted in self.quarantine.evict() {
            changes.insert(full_key(QUARANTINE, &evicted.to_be_bytes()), None);
        }
        self.set_aside_count += 1;
        self.apply(changes)?;
        self.sync()
    }

    /// The records in quarantine, oldest first.
    pub(super) fn quarantined(&self) -> Result<Vec<QuarantinedRecord>, StorageError> {
        let mut records = Vec::new();
        for entry in self.db.scan_prefix([QUARANTINE]) {
            let (key, value) = entry.map_err(failed("read"))?;
            let number = key[1..].try_into().map_or(0, u64::from_be_bytes);
            let entry = frame::decode(&key, &value).ok();
            records.extend(entry.and_then(|entry| quarantine::decode(number, entry)));
        }
        Ok(records)
    }

    /// Deletes the records in quarantine; returns how many there were.
    pub(super) fn clear_quarantine(&mut self) -> Result<u64, StorageError> {
        let numbers = self.quarantine.clear();
        let key = |number: &u64| full_key(QUARANTINE, &number.to_be_bytes());
        self.apply(numbers.iter().map(|number| (key(number), None)).collect())?;
        self.sync()?;
        Ok(u64::try_from(numbers.len()).unwrap_or(u64::MAX))
    }

    /// How many records are in quarantine, and how many damaged stores are kept.
    pub(super) fn lost(&self) -> (usize, usize) {
        (self.quarantine.len(), self.lost_stores)
    }

    /// All records in quarantine and all damaged stores that are kept.
    pub(super) fn losses(&mut self) -> Result<Losses, StorageError> {
        let stores = damage::damaged_paths(self.dir()).map_err(failed("read"))?;
        self.lost_stores = stores.len();
        Ok(Losses { records: self.quarantined()?, stores })
    }

    /// How many records were moved into quarantine since the store was opened.
    pub(super) fn set_aside_count(&self) -> u64 {
        self.set_aside_count
    }

    /// Syncs everything that was written so far to the disk.
    pub(super) fn sync(&mut self) -> Result<(), StorageError> {
        if !self.dirty {
            return Ok(());
        }
        self.sync_database()?;
        self.try_to_mark(generation::MARK_EVERY);
        Ok(())
    }

    fn sync_database(&mut self) -> Result<(), StorageError> {
        self.db.flush().map_err(failed("write"))?;
        // sled's flush ends in the page cache, which does not survive a power loss.
        self.files.sync().map_err(failed("sync"))?;
        self.dirty = false;
        Ok(())
    }

    /// Comes before a sync, which makes it durable as well.
    fn put_in_order(&mut self) -> Result<(), StorageError> {
        let len = self.files.data.metadata().map_err(failed("read"))?.len();
        self.tidy.work(&self.db, len, self.live).map_err(failed("write"))
    }

    /// Carries out changes, and the change of the sum that follows from them, in one batch.
    fn apply(&mut self, changes: BTreeMap<Vec<u8>, Option<Vec<u8>>>) -> Result<(), StorageError> {
        if changes.is_empty() {
            return Ok(());
        }
        let mut batch = sled::Batch::default();
        let (mut sum, mut live) = (self.generation.sum, self.live);
        for (key, value) in changes {
            if let Some(old) = self.db.get(&key).map_err(failed("read"))? {
                sum = sum.wrapping_sub(frame::fingerprint(&key, &old));
                live = live.saturating_sub(size(&key, &old));
            }
            match value {
                Some(value) => {
                    sum = sum.wrapping_add(frame::fingerprint(&key, &value));
                    live += size(&key, &value);
                    batch.insert(key, value);
                }
                None => batch.remove(key),
            }
        }
        self.write(batch, sum)?;
        self.live = live;
        Ok(())
    }

    fn write(&mut self, mut batch: sled::Batch, sum: u64) -> Result<(), StorageError> {
        let next = Generation { number: self.generation.number.saturating_add(1), sum };
        batch.insert(GENERATION, frame::encode(GENERATION, &next.to_bytes()));
        self.dirty = true;
        self.db.apply_batch(batch).map_err(failed("write"))?;
        self.generation = next;
        Ok(())
    }

    /// Marks the generation, and syncs the mark if that was not done for so many batches. A mark that
    /// fails does not make committed writes less durable, so the store only tries again later.
    fn try_to_mark(&mut self, age: u64) {
        let number = self.generation.number;
        let marked = match &mut self.mark {
            Some(mark) if mark.age(number) < age => mark.renew(number).map_err(failed("write")),
            Some(_) | None => self.write_mark(),
        };
        if let Err(error) = marked {
            tracing::debug!(error = %Chain(&error), "the store's generation could not be marked");
            self.mark = None;
        }
    }

    fn write_mark(&mut self) -> Result<(), StorageError> {
        let mark = MarkFile::write(&self.files.dir, self.generation.number);
        self.mark = Some(mark.map_err(failed("sync"))?);
        Ok(())
    }

    /// Replaces the bytes of a record.
    #[cfg(test)]
    pub(super) fn put_raw(&mut self, table: Table, key: &[u8], value: &[u8]) {
        self.apply(BTreeMap::from([(full_key(tag(table), key), Some(value.to_vec()))]))
            .expect("written");
    }
}

// === impl Files ===

impl Files {
    fn open(dir: &Path) -> std::io::Result<Self> {
        let data = File::open(dir.join("db"))?;
        let mut files = Self { dir: dir.to_owned(), data, synced_blobs: BTreeSet::new() };
        files.sync_blobs()?;
        // Files that sled itself wrote while it opened, and their names.
        for entry in std::fs::read_dir(dir)? {
            let entry = entry?;
            if entry.file_type()?.is_file() {
                File::open(entry.path())?.sync_all()?;
            }
        }
        File::open(dir)?.sync_all()?;
        Ok(files)
    }

    fn sync(&mut self) -> std::io::Result<()> {
        self.sync_blobs()?;
        self.data.sync_data()
    }

    fn sync_blobs(&mut self) -> std::io::Result<()> {
        let folder = self.dir.join("blobs");
        let mut present = BTreeSet::new();
        let mut is_new = false;
        for entry in std::fs::read_dir(&folder)? {
            let name = entry?.file_name();
            if !self.synced_blobs.contains(&name) {
                is_new = true;
                match File::open(folder.join(&name)) {
                    Ok(file) => file.sync_data()?,
                    // sled frees unused space at its own pace.
                    Err(error) if error.kind() == ErrorKind::NotFound => continue,
                    Err(error) => return Err(error),
                }
            }
            present.insert(name);
        }
        if is_new {
            File::open(&folder)?.sync_all()?;
        }
        self.synced_blobs = present;
        Ok(())
    }
}

/// Bytes of a record in the database's file.
fn size(key: &[u8], value: &[u8]) -> u64 {
    let all = u64::try_from(key.len() + value.len()).unwrap_or(u64::MAX);
    if all < OUTSIDE { all } else { 0 }
}

fn full_key(tag: u8, key: &[u8]) -> Vec<u8> {
    let mut full = Vec::with_capacity(1 + key.len());
    full.push(tag);
    full.extend_from_slice(key);
    full
}

fn failed<E>(action: &'static str) -> impl FnOnce(E) -> StorageError
where
    E: Into<guest_agent_actors::ports::Cause>,
{
    move |error| StorageError { action, cause: error.into() }
}
