//! What a new owner reads: the rows and the checkpoint of its shard, as they are after its lease.

use std::collections::BTreeMap;

use guest_fleet_core::fold::Row;
use guest_fleet_ledger::records::index::{
    CheckpointRecord, DirectoryRecord, LeafRecord, checkpoint_key, directory_key, leaf_key,
};
use guest_fleet_ledger::records::{self, RecordError};
use guest_fleet_ledger::{Bucket, Change, Ledger, ReadError, Revision};
use thiserror::Error;

use super::leaves::Leaves;
use super::stored;

/// What a shard's part of the index says.
#[derive(Debug)]
pub(super) struct Loaded {
    pub(super) rows: BTreeMap<String, Row>,
    pub(super) leaves: Leaves,
    /// `None` before the index was whole for the first time.
    pub(super) checkpoint: Option<CheckpointRecord>,
    pub(super) checkpoint_revision: Revision,
}

/// Why the index was not loaded.
#[derive(Debug, Error)]
pub(super) enum LoadError {
    #[error("the index was not read")]
    Read(#[source] ReadError),
    #[error("a newer program folds this index")]
    Newer(#[source] RecordError),
}

/// A record of the index that cannot be used.
#[derive(Debug, Error)]
enum Unusable {
    #[error(transparent)]
    Record(#[from] RecordError),
    #[error("the leaf {0} is not there")]
    Missing(u64),
    #[error("there are leaves and no directory")]
    NoDirectory,
}

/// Reads the part of a shard, at least as it is after the revision of the owner's lease: a plain read may
/// be stale, and an owner that folds on what is old would lose what is new.
pub(super) async fn load(
    ledger: &dyn Ledger,
    shard: u32,
    lease: Revision,
) -> Result<Loaded, LoadError> {
    let prefix = format!("{shard:03}/");
    let mut found: BTreeMap<String, Change> = BTreeMap::new();
    let mut after = Revision::ABSENT;
    loop {
        let page = ledger.changes(Bucket::Index, after, lease).await.map_err(LoadError::Read)?;
        for change in page.changes.into_iter().filter(|change| change.key.starts_with(&prefix)) {
            if change.value.is_some() {
                found.insert(change.key.clone(), change);
            } else {
                found.remove(&change.key);
            }
        }
        after = page.through;
        if !page.more {
            break;
        }
    }
    match usable(shard, &found) {
        Ok(loaded) => Ok(loaded),
        Err(Unusable::Record(error @ RecordError::Newer { .. })) => Err(LoadError::Newer(error)),
        Err(problem) => {
            tracing::error!(shard, %problem, "the index is damaged and is made anew");
            Ok(anew(shard, found))
        }
    }
}

fn usable(shard: u32, found: &BTreeMap<String, Change>) -> Result<Loaded, Unusable> {
    let value = |key: &str| {
        let change = found.get(key)?;
        Some((change.revision, change.value.as_ref()?))
    };
    let key = checkpoint_key(shard);
    let (checkpoint_revision, checkpoint) = match value(&key) {
        Some((revision, value)) => (revision, Some(records::decode(&key, value)?)),
        None => (Revision::ABSENT, None),
    };
    let key = directory_key(shard);
    let Some((directory_revision, value_of_directory)) = value(&key) else {
        let is_new = !found.keys().any(|key| key.contains("/leaf/")) && checkpoint.is_none();
        return if is_new {
            let (rows, leaves) = (BTreeMap::new(), Leaves::new(shard));
            Ok(Loaded { rows, leaves, checkpoint: None, checkpoint_revision })
        } else {
            Err(Unusable::NoDirectory)
        };
    };
    let directory: DirectoryRecord = records::decode(&key, value_of_directory)?;
    let mut rows = BTreeMap::new();
    let mut read = Vec::new();
    for entry in directory.leaves {
        let key = leaf_key(shard, entry.number);
        let (revision, value) = value(&key).ok_or(Unusable::Missing(entry.number))?;
        let leaf: LeafRecord = records::decode(&key, value)?;
        for record in leaf.rows {
            let (id, row) = stored::row(record)?;
            rows.insert(id, row);
        }
        read.push((entry.number, entry.first, revision, value.len()));
    }
    if read.first().is_none_or(|(_, first, ..)| !first.is_empty()) {
        return Err(Unusable::NoDirectory);
    }
    let leaves = Leaves::of_parts(shard, directory.next, directory_revision, read);
    Ok(Loaded { rows, leaves, checkpoint, checkpoint_revision })
}

fn anew(shard: u32, found: BTreeMap<String, Change>) -> Loaded {
    let revision = |key: &str| found.get(key).map_or(Revision::ABSENT, |change| change.revision);
    let (directory, checkpoint) = (directory_key(shard), checkpoint_key(shard));
    let leaves = found.values().filter(|change| change.key.contains("/leaf/"));
    let garbage: Vec<_> = leaves.map(|change| (change.key.clone(), change.revision)).collect();
    let numbers = garbage.iter().filter_map(|(key, _)| key.rsplit('/').next()?.parse::<u64>().ok());
    let next = numbers.max().unwrap_or(0).saturating_add(1);
    Loaded {
        rows: BTreeMap::new(),
        leaves: Leaves::anew(shard, next, revision(&directory), garbage),
        checkpoint: None,
        checkpoint_revision: revision(&checkpoint),
    }
}
