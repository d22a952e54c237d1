//! Laws of logs.

use super::tools::{is_conflict, read_all};
use crate::{Appended, Entry, Log, SharedLedger, bounds};

async fn append(ledger: &SharedLedger, subject: &str, last: u64, id: &str) -> Appended {
    let value = format!("value of {id}").into();
    ledger.append(Log::Events, subject, last, id, value).await.unwrap()
}

/// Entries are numbered without a gap.
pub async fn entries_are_numbered_without_a_gap(ledger: SharedLedger) {
    assert_eq!(ledger.last(Log::Events, "a.web").await.unwrap(), None);
    for number in 0..50 {
        let appended = append(&ledger, "a.web", number, &format!("id-{number}")).await;
        assert_eq!(appended, Appended::New(number + 1));
        let last = ledger.last(Log::Events, "a.web").await.unwrap().unwrap();
        assert_eq!((last.number, last.id), (number + 1, format!("id-{number}")));
        assert_eq!(&last.value[..], format!("value of id-{number}").as_bytes());
    }
    let entries = read_all(&ledger, "", 1000).await;
    let numbers: Vec<u64> = entries.iter().map(|it| it.number).collect();
    assert_eq!(numbers, (1..=50).collect::<Vec<_>>());
    assert!(entries.is_sorted_by(|a, b| a.position < b.position));
}

/// The same id again is the same entry.
pub async fn the_same_id_again_is_the_same_entry(ledger: SharedLedger) {
    assert_eq!(append(&ledger, "a.web", 0, "one").await, Appended::New(1));
    assert_eq!(append(&ledger, "a.web", 1, "two").await, Appended::New(2));
    for last in [0, 1, 2, 3, u64::MAX] {
        assert_eq!(append(&ledger, "a.web", last, "two").await, Appended::Already(2));
    }
    // Only the last entry is compared: the caller that asks for an older one is stale.
    let older = ledger.append(Log::Events, "a.web", 0, "one", "".into()).await;
    assert!(is_conflict(&older), "{older:?}");
    assert_eq!(read_all(&ledger, "", 10).await.len(), 2);
}

/// An append after another entry than the last conflicts.
pub async fn an_append_after_another_entry_than_the_last_conflicts(ledger: SharedLedger) {
    let wrong = ledger.append(Log::Events, "a.web", 1, "one", "".into()).await;
    assert!(is_conflict(&wrong), "{wrong:?}");
    for number in 0..3 {
        append(&ledger, "a.web", number, &format!("id-{number}")).await;
    }
    for last in [0, 1, 2, 4, u64::MAX] {
        let wrong = ledger.append(Log::Events, "a.web", last, "new", "".into()).await;
        assert!(is_conflict(&wrong), "{last}: {wrong:?}");
    }
    assert_eq!(append(&ledger, "a.web", 3, "new").await, Appended::New(4));
}

/// A subject keeps its newest entries.
pub async fn a_subject_keeps_its_newest_entries(ledger: SharedLedger) {
    let beyond = bounds::ENTRIES + 7;
    append(&ledger, "b.web", 0, "of another subject").await;
    for number in 0..beyond {
        append(&ledger, "a.web", number, &format!("id-{number}")).await;
    }
    let numbers: Vec<u64> =
        read_all(&ledger, "a.", 1000).await.iter().map(|it| it.number).collect();
    assert_eq!(numbers, (beyond - bounds::ENTRIES + 1..=beyond).collect::<Vec<_>>());
    assert_eq!(read_all(&ledger, "b.", 1000).await.len(), 1, "others keep theirs");
    assert_eq!(append(&ledger, "a.web", beyond, "next").await, Appended::New(beyond + 1));
}

/// A log is read in pages from a position.
pub async fn a_log_is_read_in_pages_from_a_position(ledger: SharedLedger) {
    for number in 0..20 {
        for subject in ["a.web", "a.db", "ab.web", "b.web"] {
            append(&ledger, subject, number, &format!("{subject}-{number}")).await;
        }
    }
    let all = read_all(&ledger, "", 1000).await;
    assert_eq!(all.len(), 80);
    assert!(all.is_sorted_by(|a, b| a.position < b.position));
    for (prefix, limit) in [("", 7), ("a.", 7), ("a", 1000), ("a.web", 1), ("c", 5), ("", 0)] {
        let expected: Vec<Entry> =
            all.iter().filter(|it| it.subject.starts_with(prefix)).cloned().collect();
        assert_eq!(read_all(&ledger, prefix, limit).await, expected, "{prefix:?} by {limit}");
    }
    let page = ledger.read(Log::Events, "", all[9].position, 5).await.unwrap();
    assert_eq!(page, all[10..15]);
    let end = ledger.read(Log::Events, "", all[79].position, 5).await.unwrap();
    assert!(end.is_empty());
    assert!(ledger.read(Log::Events, "a", u64::MAX, 5).await.unwrap().is_empty());
}

/// Subjects do not disturb each other.
pub async fn subjects_do_not_disturb_each_other(ledger: SharedLedger) {
    for subject in ["a", "A", "a ", "a\0", "ä", "a%", "🦀.web", "a'b"] {
        for number in 0..3 {
            // The same ids everywhere.
            let appended = append(&ledger, subject, number, &format!("id-{number}")).await;
            assert_eq!(appended, Appended::New(number + 1), "{subject:?}");
        }
        let last = ledger.last(Log::Events, subject).await.unwrap().unwrap();
        assert_eq!((last.subject.as_str(), last.number), (subject, 3));
    }
}
