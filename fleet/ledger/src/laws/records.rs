//! Laws of records: compare and swap, batches, scans.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::timeout;

use super::tools::{delete, is_conflict, put, scan_all};
use crate::{Bucket, Revision, SharedLedger, WriteError};

const ABSENT: Revision = Revision::ABSENT;

/// A record reads back as it was written.
pub async fn a_record_reads_back_as_it_was_written(ledger: SharedLedger) {
    for (key, value) in [("one", &b"value"[..]), ("empty", b""), ("bytes", &[0, 255, 0])] {
        let revision = ledger.write(Bucket::Agents, vec![put(key, ABSENT, value)]).await.unwrap();
        assert!(revision > ABSENT);
        let record = ledger.get(Bucket::Agents, key).await.unwrap().expect("it was written");
        assert_eq!((record.key.as_str(), record.revision), (key, revision));
        assert_eq!(&record.value[..], value);
    }
    assert_eq!(ledger.get(Bucket::Agents, "two").await.unwrap(), None);
    assert_eq!(ledger.get(Bucket::Journal, "one").await.unwrap(), None, "another bucket");
}

/// A write succeeds only against the newest revision.
pub async fn a_write_succeeds_only_against_the_newest_revision(ledger: SharedLedger) {
    let write = async |expected, value: &str| {
        ledger.write(Bucket::Journal, vec![put("key", expected, value)]).await
    };
    assert!(is_conflict(&write(Revision(7), "made up").await));
    let first = write(ABSENT, "first").await.unwrap();
    assert!(is_conflict(&write(ABSENT, "again").await));
    let second = write(first, "second").await.unwrap();
    assert!(second > first);
    for wrong in [ABSENT, first, Revision(second.0 + 1), Revision(u64::MAX)] {
        assert!(is_conflict(&write(wrong, "stale").await), "{wrong:?}");
    }
    let record = ledger.get(Bucket::Journal, "key").await.unwrap().unwrap();
    assert_eq!((record.revision, &record.value[..]), (second, &b"second"[..]));
}

/// A deleted record is absent and can be made again.
pub async fn a_deleted_record_is_absent_and_can_be_made_again(ledger: SharedLedger) {
    let bucket = Bucket::Configuration;
    let made = ledger.write(bucket, vec![put("key", ABSENT, "1")]).await.unwrap();
    assert!(is_conflict(&ledger.write(bucket, vec![delete("key", ABSENT)]).await));
    let gone = ledger.write(bucket, vec![delete("key", made)]).await.unwrap();
    assert!(gone > made);
    assert_eq!(ledger.get(bucket, "key").await.unwrap(), None);
    assert!(scan_all(&ledger, bucket, "", 10).await.is_empty());
    for stale in [made, gone] {
        assert!(is_conflict(&ledger.write(bucket, vec![put("key", stale, "2")]).await));
    }
    let again = ledger.write(bucket, vec![put("key", ABSENT, "2")]).await.unwrap();
    assert!(again > gone);
    assert_eq!(ledger.get(bucket, "key").await.unwrap().unwrap().revision, again);
}

/// To delete what is absent asserts that it is.
pub async fn to_delete_what_is_absent_asserts_that_it_is(ledger: SharedLedger) {
    let bucket = Bucket::Configuration;
    let batch = vec![delete("absent", ABSENT), put("key", ABSENT, "1")];
    let made = ledger.write(bucket, batch).await.unwrap();
    let page = ledger.changes(bucket, ABSENT, made).await.unwrap();
    assert_eq!(page.changes.len(), 1, "nothing was deleted: {page:?}");
    let batch = vec![delete("key", ABSENT), put("other", ABSENT, "1")];
    assert!(is_conflict(&ledger.write(bucket, batch).await));
    assert_eq!(ledger.get(bucket, "other").await.unwrap(), None);
}

/// A batch happens whole or not at all.
pub async fn a_batch_happens_whole_or_not_at_all(ledger: SharedLedger) {
    let bucket = Bucket::Configuration;
    let keys: Vec<String> = (0..100).map(|number| format!("key-{number:03}")).collect();
    let batch = |expected, value: &str| {
        keys.iter().map(|key| put(key, expected, value)).collect::<Vec<_>>()
    };
    let first = ledger.write(bucket, batch(ABSENT, "first")).await.unwrap();
    for at in [0, 50, 99] {
        let mut wrong = batch(first, "wrong");
        wrong[at].expected = ABSENT;
        match ledger.write(bucket, wrong).await {
            Err(WriteError::Conflict { key }) => assert_eq!(key, keys[at]),
            other => panic!("{other:?}"),
        }
    }
    let records = scan_all(&ledger, bucket, "", 1000).await;
    assert_eq!(records.len(), keys.len());
    for record in records {
        assert_eq!((record.revision, &record.value[..]), (first, &b"first"[..]));
    }
    let second = ledger.write(bucket, batch(first, "second")).await.unwrap();
    for record in scan_all(&ledger, bucket, "", 1000).await {
        assert_eq!((record.revision, &record.value[..]), (second, &b"second"[..]));
    }
}

/// Revisions of a bucket grow and those of others stay.
pub async fn revisions_of_a_bucket_grow_and_those_of_others_stay(ledger: SharedLedger) {
    let mut newest = ABSENT;
    for number in 0..20 {
        let key = format!("key-{number}");
        let revision = ledger.write(Bucket::Agents, vec![put(&key, ABSENT, "")]).await.unwrap();
        assert!(revision > newest);
        newest = revision;
    }
    for bucket in [Bucket::Journal, Bucket::Reports, Bucket::Configuration] {
        let page = ledger.changes(bucket, ABSENT, ABSENT).await.unwrap();
        assert!(page.changes.is_empty() && !page.more, "{bucket:?}");
    }
}

/// Every text is a key.
pub async fn every_text_is_a_key(ledger: SharedLedger) {
    let keys = [
        "a",
        "A",
        "a ",
        " a",
        "ab",
        "a.b",
        "a/b",
        "a*",
        "a>",
        "a%",
        "a_",
        "a'b",
        "a\"b",
        "a\\b",
        "a\0b",
        "a\nb",
        "ä",
        "a\u{308}",
        "日本",
        "🦀",
        "\u{7f}",
        "\u{d7ff}",
        "\u{10ffff}",
        "\u{10ffff}x",
        "null",
        "0",
        "-1",
        "$KV",
        "..",
        ".",
    ];
    let batch = keys.iter().map(|key| put(key, ABSENT, key)).collect();
    ledger.write(Bucket::Reports, batch).await.unwrap();
    for key in keys {
        let record = ledger.get(Bucket::Reports, key).await.unwrap().expect("it was written");
        assert_eq!((record.key.as_str(), &record.value[..]), (key, key.as_bytes()));
    }
    for prefix in keys.iter().chain(&[""]) {
        let found: BTreeSet<String> = scan_all(&ledger, Bucket::Reports, prefix, 3)
            .await
            .into_iter()
            .map(|record| record.key)
            .collect();
        let expected: BTreeSet<String> =
            keys.iter().filter(|key| key.starts_with(prefix)).map(|&key| key.to_owned()).collect();
        assert_eq!(found, expected, "prefix {prefix:?}");
    }
}

/// A scan sees the records of its prefix in pages.
pub async fn a_scan_sees_the_records_of_its_prefix_in_pages(ledger: SharedLedger) {
    let batch = (0..50).flat_map(|number| {
        ["agent/", "agent-", "agents/"].map(|prefix| put(&format!("{prefix}{number}"), ABSENT, ""))
    });
    ledger.write(Bucket::Agents, batch.collect()).await.unwrap();
    for limit in [1, 7, 50, 1000, usize::MAX] {
        let mut keys: Vec<String> = scan_all(&ledger, Bucket::Agents, "agent/", limit)
            .await
            .into_iter()
            .map(|it| it.key)
            .collect();
        keys.sort();
        keys.dedup();
        assert_eq!(keys.len(), 50, "limit {limit}");
        assert!(keys.iter().all(|key| key.starts_with("agent/")));
    }
    let page = ledger.scan(Bucket::Agents, "agent/", None, 7).await.unwrap();
    assert!(page.records.len() <= 7 && page.next.is_some());
    // A limit of nothing would never end.
    assert_eq!(scan_all(&ledger, Bucket::Agents, "agent/", 0).await.len(), 50);
}

/// A scan sees every record that is there throughout.
pub async fn a_scan_sees_every_record_that_is_there_throughout(ledger: SharedLedger) {
    let bucket = Bucket::Agents;
    let stable: BTreeSet<String> = (0..600).map(|number| format!("agent-{number:04}-a")).collect();
    let batch = stable.iter().map(|key| put(key, ABSENT, "stable")).collect();
    ledger.write(bucket, batch).await.unwrap();
    let writer = {
        let ledger = Arc::clone(&ledger);
        tokio::spawn(async move {
            for number in 0_u64..150 {
                let key = format!("agent-{:04}-b", (number * 37) % 600);
                let made = ledger.write(bucket, vec![put(&key, ABSENT, "fleeting")]).await.unwrap();
                ledger.write(bucket, vec![delete(&key, made)]).await.unwrap();
                // A stable record changes, and stays there.
                let key = format!("agent-{:04}-a", (number * 41) % 600);
                let now = ledger.get(bucket, &key).await.unwrap().unwrap();
                ledger.write(bucket, vec![put(&key, now.revision, "changed")]).await.unwrap();
            }
        })
    };
    let mut scans = 0;
    while scans < 3 || !writer.is_finished() {
        let found: BTreeSet<String> =
            scan_all(&ledger, bucket, "agent-", 97).await.into_iter().map(|it| it.key).collect();
        assert!(found.is_superset(&stable), "scan {scans} missed some");
        scans += 1;
    }
    writer.await.expect("the writer ends");
}

/// A watcher is woken by a write and by a wake.
pub async fn a_watcher_is_woken_by_a_write_and_by_a_wake(ledger: SharedLedger) {
    const LONG: Duration = Duration::from_secs(60);
    let mut watcher = ledger.watch(Bucket::Journal);
    watcher.mark_unchanged();
    ledger.write(Bucket::Journal, vec![put("key", ABSENT, "")]).await.unwrap();
    timeout(LONG, watcher.changed()).await.expect("the write wakes it").expect("it lives");
    ledger.wake(Bucket::Journal);
    timeout(LONG, watcher.changed()).await.expect("the wake wakes it").expect("it lives");
}
