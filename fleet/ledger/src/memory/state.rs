//! Buckets and logs as they are, and as they were a few writes ago.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use bytes::Bytes;
use tokio::time::Instant;

use crate::{
    Appended, Bucket, Change, Changes, Entry, Log, Page, Record, Revision, Write, WriteError,
    bounds,
};

/// How many writes of a bucket, or appends to a log, a read can be behind.
pub(super) const LAG: u64 = 8;

#[derive(Debug, Default)]
pub(super) struct State {
    buckets: BTreeMap<Bucket, Records>,
    logs: BTreeMap<Log, Entries>,
}

/// One bucket.
#[derive(Debug, Default)]
pub(super) struct Records {
    revision: u64,
    forgotten: u64,
    /// The newest version of every key and those that a stale read may see, oldest first.
    keys: BTreeMap<String, VecDeque<Version>>,
    /// Every key under the revision of its newest version.
    by_revision: BTreeSet<(u64, String)>,
    /// Those of them that are deleted.
    tombstones: BTreeSet<(u64, String)>,
}

#[derive(Clone, Debug)]
struct Version {
    revision: u64,
    value: Option<Bytes>,
}

/// One log.
#[derive(Debug, Default)]
pub(super) struct Entries {
    position: u64,
    all: BTreeMap<u64, (Instant, Entry)>,
    /// Positions of a subject, oldest first.
    subjects: BTreeMap<String, VecDeque<u64>>,
}

// === impl State ===

impl State {
    pub(super) fn records(&mut self, bucket: Bucket) -> &mut Records {
        self.buckets.entry(bucket).or_default()
    }

    pub(super) fn entries(&mut self, log: Log) -> &mut Entries {
        self.logs.entry(log).or_default()
    }
}

// === impl Records ===

impl Records {
    pub(super) fn revision(&self) -> u64 {
        self.revision
    }

    /// The state of a key after a write with this revision.
    fn at(&self, key: &str, revision: u64) -> Option<&Version> {
        self.keys.get(key)?.iter().rev().find(|version| version.revision <= revision)
    }

    pub(super) fn get(&self, key: &str, at: u64) -> Option<Record> {
        let version = self.at(key, at)?;
        let value = version.value.clone()?;
        Some(Record { key: key.to_owned(), revision: Revision(version.revision), value })
    }

    pub(super) fn write(&mut self, batch: &[Write]) -> Result<Revision, WriteError> {
        for write in batch {
            let newest =
                self.get(&write.key, self.revision).map_or(Revision::ABSENT, |it| it.revision);
            if newest != write.expected {
                return Err(WriteError::Conflict { key: write.key.clone() });
            }
        }
        self.revision += 1;
        for write in batch {
            if write.value.is_some() || write.expected != Revision::ABSENT {
                self.put(&write.key, write.value.clone());
            }
        }
        while self.tombstones.len() as u64 > bounds::TOMBSTONES {
            let Some((revision, key)) = self.tombstones.pop_first() else { break };
            self.forgotten = self.forgotten.max(revision);
            self.keys.remove(&key);
            self.by_revision.remove(&(revision, key));
        }
        Ok(Revision(self.revision))
    }

    fn put(&mut self, key: &str, value: Option<Bytes>) {
        let versions = self.keys.entry(key.to_owned()).or_default();
        if let Some(before) = versions.back() {
            let place = (before.revision, key.to_owned());
            self.by_revision.remove(&place);
            self.tombstones.remove(&place);
        }
        let place = (self.revision, key.to_owned());
        if value.is_none() {
            self.tombstones.insert(place.clone());
        }
        self.by_revision.insert(place);
        versions.push_back(Version { revision: self.revision, value });
        // What no stale read can see any more.
        let oldest = self.revision.saturating_sub(LAG);
        while versions.get(1).is_some_and(|second| second.revision <= oldest) {
            versions.pop_front();
        }
    }

    pub(super) fn scan(&self, prefix: &str, next: Option<&str>, limit: usize, at: u64) -> Page {
        let begin = next.map_or_else(String::new, |next| format!("{next}\0"));
        let begin = begin.as_str().max(prefix).to_owned();
        let mut page = Page::default();
        let mut bytes = 0;
        let keys = self.keys.range(begin..).map(|(key, _)| key);
        for key in keys.take_while(|key| key.starts_with(prefix)) {
            let Some(record) = self.get(key, at) else { continue };
            if page.records.len() == limit || bytes >= bounds::PAGE_BYTES {
                page.next = page.records.last().map(|last| last.key.clone());
                break;
            }
            bytes += record.key.len() + record.value.len();
            page.records.push(record);
        }
        page
    }

    /// What changed after a revision, as it was at another one.
    pub(super) fn changes(&self, after: u64, at: u64) -> Changes {
        let mut found: Vec<(&str, &Version)> = self
            .by_revision
            .range((after + 1, String::new())..)
            .filter_map(|(_, key)| Some((key.as_str(), self.at(key, at)?)))
            .filter(|(_, version)| version.revision > after)
            .collect();
        found.sort_by_key(|(_, version)| version.revision);
        let mut page = Changes {
            changes: Vec::new(),
            through: Revision(at),
            more: false,
            forgotten: Revision(self.forgotten),
        };
        let mut bytes = 0;
        for batch in found.chunk_by(|a, b| a.1.revision == b.1.revision) {
            let is_full =
                page.changes.len() + batch.len() > bounds::PAGE || bytes >= bounds::PAGE_BYTES;
            if is_full && let Some(last) = page.changes.last() {
                page.more = true;
                page.through = last.revision;
                break;
            }
            for (key, version) in batch {
                bytes += key.len() + version.value.as_ref().map_or(0, Bytes::len);
                page.changes.push(Change {
                    key: (*key).to_owned(),
                    revision: Revision(version.revision),
                    value: version.value.clone(),
                });
            }
        }
        page
    }
}

// === impl Entries ===

impl Entries {
    pub(super) fn position(&self) -> u64 {
        self.position
    }

    pub(super) fn last(&self, subject: &str, at: u64) -> Option<&Entry> {
        let positions = self.subjects.get(subject)?;
        let position = positions.iter().rev().find(|position| **position <= at)?;
        self.all.get(position).map(|(_, entry)| entry)
    }

    pub(super) fn append(
        &mut self,
        subject: &str,
        last: u64,
        id: &str,
        value: &Bytes,
    ) -> Result<Appended, WriteError> {
        self.expire();
        let newest = self.last(subject, self.position);
        let number = newest.map_or(0, |entry| entry.number);
        if newest.is_some_and(|entry| entry.id == id) {
            return Ok(Appended::Already(number));
        }
        if number != last {
            return Err(WriteError::Conflict { key: subject.to_owned() });
        }
        self.position += 1;
        let entry = Entry {
            subject: subject.to_owned(),
            position: self.position,
            number: number + 1,
            id: id.to_owned(),
            value: value.clone(),
        };
        self.all.insert(self.position, (Instant::now(), entry));
        let positions = self.subjects.entry(subject.to_owned()).or_default();
        positions.push_back(self.position);
        while positions.len() as u64 > bounds::ENTRIES {
            if let Some(oldest) = positions.pop_front() {
                self.all.remove(&oldest);
            }
        }
        Ok(Appended::New(number + 1))
    }

    /// Deletes what is too old.
    pub(super) fn expire(&mut self) {
        let now = Instant::now();
        while let Some(first) = self.all.first_entry()
            && now.duration_since(first.get().0) > bounds::ENTRY_AGE
        {
            let (_, entry) = first.remove();
            if let Some(positions) = self.subjects.get_mut(&entry.subject) {
                positions.pop_front();
                if positions.is_empty() {
                    self.subjects.remove(&entry.subject);
                }
            }
        }
    }

    pub(super) fn read(&self, prefix: &str, after: u64, limit: usize, at: u64) -> Vec<Entry> {
        let mut entries = Vec::new();
        let mut bytes = 0;
        if after >= at {
            return entries;
        }
        let found = self.all.range(after + 1..=at).map(|(_, (_, entry))| entry);
        for entry in found.filter(|entry| entry.subject.starts_with(prefix)) {
            if entries.len() == limit || bytes >= bounds::PAGE_BYTES {
                break;
            }
            bytes += entry.subject.len() + entry.id.len() + entry.value.len();
            entries.push(entry.clone());
        }
        entries
    }
}
