//! What all calls share: the streams, how far this process has seen each, and who watches.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use guest_agent_serve_kit::lock::lock;
use tokio::sync::{Mutex, Notify};

use super::api::{Api, CallError, Patience, Stored};
use super::envelope::Content;
use super::graves::Graves;
use super::names::{self, Prefix};
use crate::watchers::Watchers;
use crate::{Bucket, Log, ReadError};

/// How long a read waits for a replica to have what this process has seen.
const FRESH: Duration = Duration::from_secs(10);

/// Revisions of a bucket that are remembered.
const GIVEN: usize = 1024;

/// A stream, and how far this process has seen it.
#[derive(Debug)]
pub(super) struct Stream {
    pub(super) name: String,
    /// What its subjects begin with.
    pub(super) base: String,
    /// The newest sequence that this process knows of.
    floor: AtomicU64,
    /// The newest sequence that the replica which answers has shown.
    shown: AtomicU64,
}

/// What is known of one bucket.
#[derive(Debug)]
pub(super) struct Records {
    pub(super) stream: Stream,
    pub(super) graves: Mutex<Graves>,
    /// Somebody has to be told that the bucket changed.
    pub(super) changed: Notify,
    /// Revisions that this process was given, the newest of them.
    given: std::sync::Mutex<BTreeSet<u64>>,
}

/// What is known of one log.
#[derive(Debug)]
pub(super) struct Entries {
    pub(super) stream: Stream,
    /// The last restored position that was read, and its sequence.
    pub(super) hint: std::sync::Mutex<(u64, u64)>,
}

#[derive(Debug)]
pub(super) struct Engine {
    pub(super) api: Api,
    pub(super) prefix: Prefix,
    pub(super) watchers: Watchers,
    records: [Records; Bucket::ALL.len()],
    entries: [Entries; Log::ALL.len()],
}

// === impl Stream ===

impl Stream {
    fn new(name: String, base: String) -> Self {
        Self { name, base, floor: AtomicU64::new(0), shown: AtomicU64::new(0) }
    }

    /// This process knows of a message with this sequence.
    pub(super) fn saw(&self, seq: u64) {
        self.floor.fetch_max(seq, Ordering::SeqCst);
    }

    pub(super) fn floor(&self) -> u64 {
        self.floor.load(Ordering::SeqCst)
    }

    /// A subject for the engine's own messages.
    pub(super) fn own(&self, name: &str) -> String {
        format!("{}.{name}", self.base)
    }
}

// === impl Records ===

impl Records {
    /// A batch ends at this revision.
    pub(super) fn gave(&self, revision: u64) {
        let mut given = lock(&self.given);
        given.insert(revision);
        if given.len() > GIVEN {
            given.pop_first();
        }
    }

    /// Whether it is known that no batch reaches over this number.
    pub(super) fn is_given(&self, revision: u64) -> bool {
        lock(&self.given).contains(&revision)
    }
}

// === impl Engine ===

impl Engine {
    pub(super) fn new(api: Api, prefix: Prefix) -> Self {
        let records = Bucket::ALL.map(|bucket| Records {
            stream: Stream::new(prefix.stream_of_bucket(bucket), prefix.subjects_of_bucket(bucket)),
            graves: Mutex::default(),
            changed: Notify::new(),
            given: std::sync::Mutex::default(),
        });
        let entries = Log::ALL.map(|log| Entries {
            stream: Stream::new(prefix.stream_of_log(log), prefix.subjects_of_log(log)),
            hint: std::sync::Mutex::default(),
        });
        Self { api, prefix, watchers: Watchers::new(), records, entries }
    }

    pub(super) fn records(&self, bucket: Bucket) -> &Records {
        &self.records[bucket as usize]
    }

    pub(super) fn entries(&self, log: Log) -> &Entries {
        &self.entries[log as usize]
    }

    /// Another server answers from now on: what it has is not known.
    pub(super) fn reconnected(&self) {
        let streams = self.records.iter().map(|it| &it.stream);
        for stream in streams.chain(self.entries.iter().map(|it| &it.stream)) {
            stream.shown.store(0, Ordering::SeqCst);
        }
        self.watchers.changed_elsewhere();
    }

    /// The last message of a key or a subject of a log, as the leader has it. A message that is of
    /// another one is damaged.
    pub(super) async fn last(
        &self,
        stream: &Stream,
        key: &str,
    ) -> Result<Option<(Stored, Content, u64)>, ReadError> {
        let subject = names::subject_of(&stream.base, key);
        let stored = self.api.last(&stream.name, &subject).await.map_err(unavailable)?;
        let Some(stored) = stored else { return Ok(None) };
        stream.saw(stored.seq);
        let (content, place) = stored.content()?;
        let of = match &content {
            Content::Value { key, .. } | Content::Tombstone { key, .. } => Some(key),
            Content::Entry(entry) => Some(&entry.subject),
            Content::Marker | Content::Forgotten(_) | Content::Grave(_) => None,
        };
        if of.map(String::as_str) != Some(key) {
            return Err(stored.damaged("it is of another key than its subject"));
        }
        let revision = place.revision(stored.seq);
        Ok(Some((stored, content, revision)))
    }

    /// Waits until the replica that answers pages has shown what this process knows of. Where it does
    /// not come to that, pages are stale, which a read may be.
    pub(super) async fn refresh(&self, stream: &Stream) -> Result<(), ReadError> {
        let floor = stream.floor();
        if stream.shown.load(Ordering::SeqCst) >= floor {
            return Ok(());
        }
        let mut patience = Patience::new(FRESH);
        loop {
            // The newest message of a stream is always there: a replica that has come as far has a
            // message from there on. Of a log all entries may have gone with their age.
            let page = self.api.page(&stream.name, None, floor, 1, 1).await;
            if !page.map_err(unavailable)?.messages.is_empty() || !patience.wait().await {
                stream.shown.fetch_max(floor, Ordering::SeqCst);
                return Ok(());
            }
        }
    }
}

pub(super) fn unavailable(error: CallError) -> ReadError {
    ReadError::Unavailable(Box::new(error))
}
