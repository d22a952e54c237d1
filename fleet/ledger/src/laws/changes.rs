//! Laws of changes.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use bytes::Bytes;

use super::tools::{changes_all, contents, delete, follow, put};
use crate::{Bucket, Follower, ReadError, Revision, SharedLedger, bounds};

const ABSENT: Revision = Revision::ABSENT;

/// Changes show the newest state of every key once.
pub async fn changes_show_the_newest_state_of_every_key_once(ledger: SharedLedger) {
    let bucket = Bucket::Reports;
    let mut newest = BTreeMap::new();
    let mut middle = ABSENT;
    for round in 0..10_u8 {
        for key in ["a", "b", "c"] {
            let expected = newest.get(key).copied().unwrap_or(ABSENT);
            let write = vec![put(key, expected, [round])];
            newest.insert(key, ledger.write(bucket, write).await.unwrap());
        }
        if round == 4 {
            middle = newest["c"];
        }
    }
    for after in [ABSENT, middle, newest["a"], newest["c"]] {
        let page = ledger.changes(bucket, after, ABSENT).await.unwrap();
        let expected: Vec<(&str, Revision)> =
            newest.iter().filter(|it| *it.1 > after).map(|(key, at)| (*key, *at)).collect();
        let found: Vec<(&str, Revision)> =
            page.changes.iter().map(|it| (it.key.as_str(), it.revision)).collect();
        assert_eq!(found, expected, "after {after:?}");
        assert!(page.changes.iter().all(|it| it.value.as_deref() == Some(&[9][..])));
        assert_eq!((page.more, page.through), (false, newest["c"]));
    }
}

/// Changes come in pages that tear no batch.
pub async fn changes_come_in_pages_that_tear_no_batch(ledger: SharedLedger) {
    let bucket = Bucket::Agents;
    let mut batches = BTreeMap::new();
    for (number, size) in [700, 299, 2, 1000, 1, 999, 1, 1, 998].into_iter().enumerate() {
        let batch = (0..size).map(|at| put(&format!("{number}-{at}"), ABSENT, "")).collect();
        batches.insert(ledger.write(bucket, batch).await.unwrap(), size);
    }
    let (mut after, mut pages) = (ABSENT, 0);
    loop {
        let page = ledger.changes(bucket, after, ABSENT).await.unwrap();
        assert!(page.changes.len() <= bounds::PAGE);
        assert!(page.changes.is_sorted_by_key(|it| it.revision));
        let mut counted: BTreeMap<Revision, usize> = BTreeMap::new();
        for change in &page.changes {
            assert!(change.revision > after && change.revision <= page.through);
            *counted.entry(change.revision).or_default() += 1;
        }
        for (revision, count) in counted {
            assert_eq!(batches.remove(&revision), Some(count), "a batch is torn or comes twice");
        }
        pages += 1;
        assert!(page.through > after);
        after = page.through;
        if !page.more {
            break;
        }
    }
    assert!(batches.is_empty() && pages > 3, "{batches:?} are missing after {pages} pages");
}

/// Changes show deletions.
pub async fn changes_show_deletions(ledger: SharedLedger) {
    let bucket = Bucket::Configuration;
    let made =
        ledger.write(bucket, vec![put("a", ABSENT, ""), put("b", ABSENT, "")]).await.unwrap();
    let gone = ledger.write(bucket, vec![delete("a", made)]).await.unwrap();
    let page = ledger.changes(bucket, made, gone).await.unwrap();
    let found: Vec<_> = page.changes.iter().map(|it| (it.key.as_str(), &it.value)).collect();
    assert_eq!(found, [("a", &None)]);
    assert_eq!((page.through, page.forgotten), (gone, ABSENT));
    let again = ledger.write(bucket, vec![put("a", ABSENT, "new")]).await.unwrap();
    let page = ledger.changes(bucket, made, again).await.unwrap();
    let found: Vec<_> =
        page.changes.iter().map(|it| (it.key.as_str(), it.value.as_deref())).collect();
    assert_eq!(found, [("a", Some(&b"new"[..]))], "the newest state alone");
}

/// Changes reach the revision that was asked for.
pub async fn changes_reach_the_revision_that_was_asked_for(ledger: SharedLedger) {
    let bucket = Bucket::Journal;
    let mut known: BTreeSet<String> = BTreeSet::new();
    let mut after = ABSENT;
    for number in 0..50 {
        let key = format!("key-{number}");
        let written = ledger.write(bucket, vec![put(&key, ABSENT, "")]).await.unwrap();
        let (changes, through) = changes_all(&ledger, bucket, after, written).await;
        known.extend(changes.into_iter().map(|it| it.key));
        assert!(through >= written && known.contains(&key));
        after = through;
    }
}

/// Changes that are not there yet are unavailable.
pub async fn changes_that_are_not_there_yet_are_unavailable(ledger: SharedLedger) {
    let bucket = Bucket::Journal;
    let written = ledger.write(bucket, vec![put("key", ABSENT, "")]).await.unwrap();
    let beyond = Revision(written.0 + 1_000_000);
    for (after, at_least) in [(ABSENT, beyond), (beyond, ABSENT), (beyond, beyond)] {
        let answer = ledger.changes(bucket, after, at_least).await;
        assert!(matches!(answer, Err(ReadError::Unavailable(_))), "{answer:?}");
    }
}

/// Old deletions are forgotten and said to be.
pub async fn old_deletions_are_forgotten_and_said_to_be(ledger: SharedLedger) {
    let bucket = Bucket::Agents;
    let first = ledger.write(bucket, vec![put("stays", ABSENT, "")]).await.unwrap();
    ledger.write(bucket, vec![put("goes", ABSENT, "")]).await.unwrap();
    let mut follower = Follower::new(bucket);
    let mut kept: BTreeMap<String, (Revision, Bytes)> = BTreeMap::new();
    follow(&mut follower, &mut kept, &ledger, ABSENT).await.unwrap();
    let gone = ledger.write(bucket, vec![delete("goes", kept["goes"].0)]).await.unwrap();
    // Exactly as many tombstones as a bucket keeps: nothing is forgotten yet.
    let rounds = bounds::TOMBSTONES / bounds::BATCH as u64;
    for round in 0..rounds {
        let most = bounds::BATCH - usize::from(round == 0);
        let keys: Vec<String> = (0..most).map(|at| format!("{round}-{at}")).collect();
        let batch = keys.iter().map(|key| put(key, ABSENT, "")).collect();
        let made = ledger.write(bucket, batch).await.unwrap();
        ledger.write(bucket, keys.iter().map(|key| delete(key, made)).collect()).await.unwrap();
    }
    let page = ledger.changes(bucket, first, ABSENT).await.unwrap();
    assert_eq!(page.forgotten, ABSENT);
    assert!(page.changes.iter().any(|it| it.key == "goes" && it.value.is_none()));
    // One more, and the oldest goes.
    let made = ledger.write(bucket, vec![put("last", ABSENT, "")]).await.unwrap();
    let last = ledger.write(bucket, vec![delete("last", made)]).await.unwrap();
    let (mut changes, _) = changes_all(&ledger, bucket, first, last).await;
    // A replica that did not delete it yet may show it a moment longer, which the law allows.
    for _ in 0..200 {
        if changes.iter().all(|it| it.key != "goes") {
            break;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
        (changes, _) = changes_all(&ledger, bucket, first, last).await;
    }
    assert!(changes.iter().all(|it| it.key != "goes"));
    assert_eq!(changes.len() as u64, bounds::TOMBSTONES);
    let page = ledger.changes(bucket, first, last).await.unwrap();
    assert!(page.forgotten >= gone && page.forgotten < last, "{:?}", page.forgotten);
    // A reader that was away finds out.
    while follow(&mut follower, &mut kept, &ledger, last).await.unwrap() {}
    assert_eq!(kept, contents(&ledger, bucket).await);
    assert!(kept.contains_key("stays") && !kept.contains_key("goes"));
}
