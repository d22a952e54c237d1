//! Every bound of the contract, met and exceeded.

use bytes::Bytes;

use super::tools::{put, read_all, scan_all};
use crate::{Appended, Bucket, Log, Revision, SharedLedger, Write, WriteError, bounds};

const ABSENT: Revision = Revision::ABSENT;
const BUCKET: Bucket = Bucket::Configuration;

fn text(length: usize) -> String {
    "k".repeat(length)
}

fn value(length: usize) -> Bytes {
    vec![7; length].into()
}

fn write(key: &str, value: Bytes) -> Write {
    Write { key: key.to_owned(), expected: ABSENT, value: Some(value) }
}

fn many(count: usize) -> Vec<Write> {
    (0..count).map(|number| put(&format!("many-{number}"), ABSENT, "")).collect()
}

/// A batch with this many bytes, keys and values together.
fn heavy(bytes: usize) -> Vec<Write> {
    let half = bytes / 2;
    vec![write("heavy-a", value(half - 7)), write("heavy-b", value(bytes - half - 7))]
}

/// What is at a bound is taken.
pub async fn what_is_at_a_bound_is_taken(ledger: SharedLedger) {
    let longest = text(bounds::KEY_BYTES);
    for batch in [
        vec![write(&longest, value(1))],
        vec![write("large", value(bounds::VALUE_BYTES))],
        many(bounds::BATCH),
        heavy(bounds::BATCH_BYTES),
    ] {
        let written = ledger.write(BUCKET, batch.clone()).await.unwrap();
        for write in batch {
            let record = ledger.get(BUCKET, &write.key).await.unwrap().expect("it was written");
            assert_eq!((record.revision, Some(record.value)), (written, write.value));
        }
    }
    let large = value(bounds::VALUE_BYTES);
    let appended = ledger.append(Log::Events, &longest, 0, &longest, large.clone()).await.unwrap();
    assert_eq!(appended, Appended::New(1));
    let last = ledger.last(Log::Events, &longest).await.unwrap().unwrap();
    assert_eq!((last.id, last.value), (longest, large));
}

/// What is beyond a bound is refused and changes nothing.
pub async fn what_is_beyond_a_bound_is_refused_and_changes_nothing(ledger: SharedLedger) {
    let before = ledger.write(BUCKET, vec![put("before", ABSENT, "")]).await.unwrap();
    let too_long = text(bounds::KEY_BYTES + 1);
    let too_large = value(bounds::VALUE_BYTES + 1);
    let beyond = [
        (vec![write(&too_long, value(1))], Some(bounds::KEY_BYTES)),
        (vec![write("ok", value(1)), write("large", too_large.clone())], Some(bounds::VALUE_BYTES)),
        (many(bounds::BATCH + 1), Some(bounds::BATCH)),
        (heavy(bounds::BATCH_BYTES + 1), Some(bounds::BATCH_BYTES)),
        (vec![], None),
        (vec![write("", value(1))], None),
        (vec![write("twice", value(1)), write("twice", value(2))], None),
    ];
    for (batch, bound) in beyond {
        match (ledger.write(BUCKET, batch).await, bound) {
            (Err(WriteError::TooLarge { bound, size, .. }), Some(expected)) => {
                assert_eq!((bound, size), (expected, expected + 1));
            }
            (Err(WriteError::Refused(_)), None) => {}
            (other, bound) => panic!("{other:?} for the bound {bound:?}"),
        }
    }
    let entries = [
        (too_long.as_str(), "id", value(1), Some(bounds::KEY_BYTES)),
        ("subject", too_long.as_str(), value(1), Some(bounds::KEY_BYTES)),
        ("subject", "id", too_large, Some(bounds::VALUE_BYTES)),
        ("", "id", value(1), None),
        ("subject", "", value(1), None),
    ];
    for (subject, id, value, bound) in entries {
        match (ledger.append(Log::Events, subject, 0, id, value).await, bound) {
            (Err(WriteError::TooLarge { bound, .. }), Some(expected)) => {
                assert_eq!(bound, expected);
            }
            (Err(WriteError::Refused(_)), None) => {}
            (other, bound) => panic!("{other:?} for the bound {bound:?}"),
        }
    }
    let page = ledger.changes(BUCKET, ABSENT, before).await.unwrap();
    assert_eq!((page.through, page.changes.len()), (before, 1), "nothing was written");
    assert!(read_all(&ledger, "", 10).await.is_empty());
    // To ask for what cannot be there is no error.
    assert_eq!(ledger.get(BUCKET, &too_long).await.unwrap(), None);
    assert_eq!(ledger.last(Log::Events, &too_long).await.unwrap(), None);
    assert!(scan_all(&ledger, BUCKET, &too_long, 10).await.is_empty());
}

/// Pages have a bound.
pub async fn pages_have_a_bound(ledger: SharedLedger) {
    for round in 0..3 {
        let batch = (0..bounds::BATCH).map(|at| put(&format!("{round}-{at}"), ABSENT, ""));
        ledger.write(Bucket::Agents, batch.collect()).await.unwrap();
    }
    let page = ledger.scan(Bucket::Agents, "", None, usize::MAX).await.unwrap();
    assert!(page.records.len() <= bounds::PAGE && page.next.is_some());
    assert_eq!(scan_all(&ledger, Bucket::Agents, "", usize::MAX).await.len(), 3 * bounds::BATCH);
    // Five of the largest values are more than a page takes.
    for number in 0..5 {
        let large = value(bounds::VALUE_BYTES);
        ledger.write(BUCKET, vec![write(&format!("{number}"), large.clone())]).await.unwrap();
        ledger.append(Log::Events, "large", number, &format!("{number}"), large).await.unwrap();
    }
    let most = bounds::PAGE_BYTES + bounds::BATCH_BYTES;
    let page = ledger.scan(BUCKET, "", None, usize::MAX).await.unwrap();
    assert!(page.next.is_some());
    assert!(page.records.iter().map(|it| it.value.len()).sum::<usize>() <= most);
    assert_eq!(scan_all(&ledger, BUCKET, "", usize::MAX).await.len(), 5);
    let page = ledger.changes(BUCKET, ABSENT, ABSENT).await.unwrap();
    assert!(page.more && page.changes.len() < 5);
    let rest = ledger.changes(BUCKET, page.through, ABSENT).await.unwrap();
    assert!(!rest.more);
    assert_eq!(page.changes.len() + rest.changes.len(), 5);
    let page = ledger.read(Log::Events, "", 0, usize::MAX).await.unwrap();
    assert!(page.iter().map(|it| it.value.len()).sum::<usize>() <= most);
    assert_eq!(read_all(&ledger, "", usize::MAX).await.len(), 5);
}
