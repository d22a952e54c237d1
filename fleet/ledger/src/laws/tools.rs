//! What the laws are written with.

use std::collections::BTreeMap;

use bytes::Bytes;

use crate::{
    Bucket, Change, Entry, Follower, Log, ReadError, Record, Revision, SharedLedger, Write,
    WriteError, bounds,
};

/// A write of a value.
pub(crate) fn put(key: &str, expected: Revision, value: impl AsRef<[u8]>) -> Write {
    let value = Some(Bytes::copy_from_slice(value.as_ref()));
    Write { key: key.to_owned(), expected, value }
}

/// A write that deletes.
pub(crate) fn delete(key: &str, expected: Revision) -> Write {
    Write { key: key.to_owned(), expected, value: None }
}

/// All records with a prefix, page by page.
pub(crate) async fn scan_all(
    ledger: &SharedLedger,
    bucket: Bucket,
    prefix: &str,
    limit: usize,
) -> Vec<Record> {
    let mut records = Vec::new();
    let mut next: Option<String> = None;
    loop {
        let page = ledger.scan(bucket, prefix, next.as_deref(), limit).await.expect("a page");
        records.extend(page.records);
        next = page.next;
        if next.is_none() {
            return records;
        }
    }
}

/// All changes after a revision, page by page, and the revision they reach.
pub(crate) async fn changes_all(
    ledger: &SharedLedger,
    bucket: Bucket,
    mut after: Revision,
    at_least: Revision,
) -> (Vec<Change>, Revision) {
    let mut changes = Vec::new();
    loop {
        let page = ledger.changes(bucket, after, at_least).await.expect("changes");
        assert!(page.through >= after, "changes go backwards");
        changes.extend(page.changes);
        after = page.through;
        if !page.more {
            return (changes, after);
        }
    }
}

/// All entries of a log with a prefix, page by page.
pub(crate) async fn read_all(ledger: &SharedLedger, prefix: &str, limit: usize) -> Vec<Entry> {
    let mut entries: Vec<Entry> = Vec::new();
    loop {
        let after = entries.last().map_or(0, |last| last.position);
        let page = ledger.read(Log::Events, prefix, after, limit).await.expect("a page");
        if page.is_empty() {
            return entries;
        }
        entries.extend(page);
    }
}

/// Everything in a bucket, by key.
pub(crate) async fn contents(
    ledger: &SharedLedger,
    bucket: Bucket,
) -> BTreeMap<String, (Revision, Bytes)> {
    let records = scan_all(ledger, bucket, "", bounds::PAGE).await;
    records.into_iter().map(|it| (it.key, (it.revision, it.value))).collect()
}

pub(crate) fn is_conflict<T>(result: &Result<T, WriteError>) -> bool {
    matches!(result, Err(WriteError::Conflict { .. }))
}

/// Reads until the ledger answers. How often is bounded.
pub(crate) async fn patiently<T, F>(mut read: impl FnMut() -> F) -> T
where
    F: Future<Output = Result<T, ReadError>>,
{
    for _ in 0..10_000 {
        match read().await {
            Ok(answer) => return answer,
            Err(ReadError::Unavailable(_)) => tokio::task::yield_now().await,
            Err(error) => panic!("{error}"),
        }
    }
    panic!("the ledger did not answer 10,000 times");
}

/// A follower of a bucket that keeps what it is given.
pub(crate) async fn follow(
    follower: &mut Follower,
    kept: &mut BTreeMap<String, (Revision, Bytes)>,
    ledger: &SharedLedger,
    at_least: Revision,
) -> Result<bool, ReadError> {
    let update = follower.next(&**ledger, at_least).await?;
    if update.is_reset {
        kept.clear();
    }
    for change in update.changes {
        match change.value {
            Some(value) => drop(kept.insert(change.key, (change.revision, value))),
            None => drop(kept.remove(&change.key)),
        }
    }
    Ok(update.more)
}
