use std::collections::BTreeMap;
use std::time::Duration;

use super::*;
use crate::laws::races;
use crate::laws::tools::{follow, put, scan_all};
use crate::{Follower, SharedLedger, bounds};

const BUCKET: Bucket = Bucket::Journal;
const ABSENT: Revision = Revision::ABSENT;

async fn make() -> (SharedLedger, ()) {
    (Arc::new(MemoryLedger::new()), ())
}

crate::ledger_laws!(laws, make);

// === what holds under every fault ===

const WILD: Faults =
    Faults { stale: 0.4, ambiguous: 0.3, unavailable: 0.2, latency: Duration::from_millis(20) };

/// Runs a law on ledgers in which everything goes wrong, each in its own way.
async fn under_faults<F: Future<Output = ()>>(law: impl Fn(SharedLedger) -> F) {
    for seed in 0..20 {
        law(Arc::new(MemoryLedger::with_faults(seed, WILD))).await;
    }
}

#[tokio::test(start_paused = true)]
async fn every_increment_counts_once_under_faults() {
    under_faults(races::every_increment_counts_once).await;
}

#[tokio::test(start_paused = true)]
async fn two_writers_of_one_sequence_leave_it_whole_under_faults() {
    under_faults(races::two_writers_of_one_sequence_leave_it_whole).await;
}

#[tokio::test(start_paused = true)]
async fn racing_appenders_leave_no_gap_under_faults() {
    under_faults(races::racing_appenders_leave_no_gap).await;
}

#[tokio::test(start_paused = true)]
async fn a_follower_ends_with_what_is_there_under_faults() {
    under_faults(races::a_follower_ends_with_what_is_there).await;
}

#[tokio::test(start_paused = true)]
async fn what_a_caller_gives_up_on_happens_whole_or_not_under_faults() {
    under_faults(races::what_a_caller_gives_up_on_happens_whole_or_not).await;
}

// === every fault is real: a caller that does not expect it goes wrong ===

/// Counts ten up, one writer alone, and says what is there then. The writer takes what it reads for
/// the truth and `after` for what became of a write whose answer was lost.
async fn naive_count(ledger: &MemoryLedger, after: Fate) -> u8 {
    for _ in 0..10 {
        loop {
            let record = ledger.get(BUCKET, "count").await.unwrap();
            let expected = record.as_ref().map_or(ABSENT, |it| it.revision);
            let count = record.map_or(0, |it| it.value[0]);
            let write = vec![put("count", expected, [count + 1])];
            match ledger.write(BUCKET, write).await {
                Err(WriteError::Ambiguous(_)) if after == Fate::Lost => {}
                Ok(_) | Err(WriteError::Ambiguous(_)) => break,
                Err(error) => panic!("{error}"),
            }
        }
    }
    ledger.land_late();
    ledger.get(BUCKET, "count").await.unwrap().unwrap().value[0]
}

#[tokio::test]
async fn a_lost_write_is_missed_by_who_takes_it_for_written() {
    let ledger = MemoryLedger::new();
    assert_eq!(naive_count(&ledger, Fate::Happened).await, 10);
    let ledger = MemoryLedger::new();
    ledger.script([Fate::Lost]);
    assert_eq!(naive_count(&ledger, Fate::Happened).await, 9);
}

#[tokio::test]
async fn a_write_that_happened_counts_twice_for_who_takes_it_for_lost() {
    let ledger = MemoryLedger::new();
    ledger.script([Fate::Happened]);
    assert_eq!(naive_count(&ledger, Fate::Lost).await, 11);
}

#[tokio::test]
async fn a_late_write_takes_the_place_of_the_one_after_it() {
    for seed in 0..20 {
        let ledger = MemoryLedger::with_faults(seed, Faults::default());
        ledger.script([Fate::Late]);
        let lost = ledger.write(BUCKET, vec![put("key", ABSENT, "late")]).await;
        assert!(matches!(lost, Err(WriteError::Ambiguous(_))), "{lost:?}");
        // It is not there. A caller that believes it never will be is wrong.
        assert_eq!(ledger.get(BUCKET, "key").await.unwrap(), None);
        for key in ["a", "b", "c"] {
            ledger.write(BUCKET, vec![put(key, ABSENT, "")]).await.unwrap();
        }
        let own = ledger.write(BUCKET, vec![put("key", ABSENT, "own")]).await;
        assert!(matches!(own, Err(WriteError::Conflict { .. })), "{own:?}");
        assert_eq!(&ledger.get(BUCKET, "key").await.unwrap().unwrap().value[..], b"late");
    }
}

#[tokio::test]
async fn a_late_append_is_there_twice_for_who_gives_it_a_new_id() {
    let append = async |ledger: &MemoryLedger, last, id| {
        ledger.append(Log::Events, "a.web", last, id, "event".into()).await
    };
    let twice = MemoryLedger::new();
    twice.script([Fate::Late]);
    append(&twice, 0, "try 1").await.unwrap_err();
    assert_eq!(twice.last(Log::Events, "a.web").await.unwrap(), None);
    twice.land_late();
    append(&twice, 1, "try 2").await.unwrap();
    assert_eq!(twice.read(Log::Events, "", 0, 10).await.unwrap().len(), 2);
    // With the same id it is there once, whenever the first one lands.
    for seed in 0..20 {
        let once = MemoryLedger::with_faults(seed, Faults::default());
        once.script([Fate::Late]);
        append(&once, 0, "event").await.unwrap_err();
        append(&once, 0, "event").await.unwrap();
        once.land_late();
        assert_eq!(once.read(Log::Events, "", 0, 10).await.unwrap().len(), 1);
    }
}

#[tokio::test]
async fn a_stale_read_shows_what_was_before() {
    let ledger = MemoryLedger::with_faults(7, Faults { stale: 1.0, ..Faults::default() });
    let mut newest = ABSENT;
    let mut behind = 0;
    for count in 1..=50_u8 {
        newest = ledger.write(BUCKET, vec![put("key", newest, [count])]).await.unwrap();
        ledger
            .append(Log::Events, "a", u64::from(count) - 1, &count.to_string(), "".into())
            .await
            .unwrap();
        let seen = ledger.get(BUCKET, "key").await.unwrap().map_or(0, |it| it.value[0]);
        let scanned = ledger.scan(BUCKET, "", None, 10).await.unwrap();
        let scanned = scanned.records.first().map_or(0, |it| it.value[0]);
        let last = ledger.last(Log::Events, "a").await.unwrap().map_or(0, |it| it.number);
        let read = ledger.read(Log::Events, "", 0, 1000).await.unwrap();
        let read = read.last().map_or(0, |it| it.number);
        for old in [u64::from(seen), u64::from(scanned), last, read] {
            let lag = u64::from(count) - old;
            assert!((1..=LAG).contains(&lag), "{lag} writes behind");
            behind += 1;
        }
        // Changes may be as old, but never before the revision that was asked for.
        let page = ledger.changes(BUCKET, ABSENT, newest).await.unwrap();
        assert_eq!(page.changes[0].value.as_deref(), Some(&[count][..]));
        let page = ledger.changes(BUCKET, ABSENT, ABSENT).await.unwrap();
        assert!(page.through < newest);
    }
    assert_eq!(behind, 200);
}

#[tokio::test]
async fn an_unavailable_ledger_refuses_and_changes_nothing() {
    let ledger = MemoryLedger::new();
    ledger.set_faults(Faults { unavailable: 1.0, ..Faults::default() });
    let written = ledger.write(BUCKET, vec![put("key", ABSENT, "")]).await;
    assert!(matches!(written, Err(WriteError::Refused(_))), "{written:?}");
    let appended = ledger.append(Log::Events, "a", 0, "id", "".into()).await;
    assert!(matches!(appended, Err(WriteError::Refused(_))), "{appended:?}");
    assert!(matches!(ledger.get(BUCKET, "key").await, Err(ReadError::Unavailable(_))));
    ledger.set_faults(Faults::default());
    assert_eq!(ledger.get(BUCKET, "key").await.unwrap(), None);
    assert_eq!(ledger.last(Log::Events, "a").await.unwrap(), None);
}

#[tokio::test(start_paused = true)]
async fn what_a_caller_gives_up_on_may_land_later() {
    let faults = Faults { latency: Duration::from_secs(1), ..Faults::default() };
    let mut landed = 0;
    for seed in 0..40 {
        let ledger = MemoryLedger::with_faults(seed, faults);
        let write = ledger.write(BUCKET, vec![put("key", ABSENT, "")]);
        tokio::time::timeout(Duration::from_micros(1), write).await.unwrap_err();
        ledger.set_faults(Faults::default());
        assert_eq!(ledger.get(BUCKET, "key").await.unwrap(), None);
        ledger.land_late();
        landed += u32::from(ledger.get(BUCKET, "key").await.unwrap().is_some());
    }
    assert!((5..35).contains(&landed), "{landed} of 40 landed");
}

#[tokio::test(start_paused = true)]
async fn the_same_seed_goes_wrong_in_the_same_way() {
    let run = async |seed| {
        let ledger = MemoryLedger::with_faults(seed, WILD);
        let mut seen = Vec::new();
        for number in 0..50 {
            let key = format!("key-{}", number % 5);
            let record = ledger.get(BUCKET, &key).await;
            let expected =
                record.as_ref().map_or(ABSENT, |it| it.as_ref().map_or(ABSENT, |it| it.revision));
            let written = ledger.write(BUCKET, vec![put(&key, expected, [number])]).await;
            seen.push(format!("{record:?} {written:?}"));
        }
        seen
    };
    assert_eq!(run(1).await, run(1).await);
    assert_ne!(run(1).await, run(2).await);
}

// === bounds that need time, or many deletions at the wrong moment ===

#[tokio::test(start_paused = true)]
async fn entries_go_with_their_age_and_a_subject_begins_again() {
    let ledger = MemoryLedger::new();
    let append = async |subject, last, id: &str| {
        ledger.append(Log::Events, subject, last, id, "".into()).await.unwrap()
    };
    append("a", 0, "old").await;
    append("b", 0, "old").await;
    tokio::time::advance(bounds::ENTRY_AGE / 2).await;
    append("b", 1, "young").await;
    tokio::time::advance(bounds::ENTRY_AGE / 2 + Duration::from_secs(1)).await;
    assert_eq!(ledger.last(Log::Events, "a").await.unwrap(), None);
    let entries = ledger.read(Log::Events, "", 0, 10).await.unwrap();
    let found: Vec<_> = entries.iter().map(|it| (it.subject.as_str(), it.number)).collect();
    assert_eq!(found, [("b", 2)]);
    assert_eq!(append("a", 0, "new").await, Appended::New(1));
    assert_eq!(append("b", 2, "new").await, Appended::New(3));
}

#[tokio::test]
async fn a_follower_that_reads_while_deletions_are_forgotten_begins_again() {
    let ledger: SharedLedger = Arc::new(MemoryLedger::new());
    let fill = async |name: &str, count: usize| {
        for round in 0..count.div_ceil(bounds::BATCH) {
            let keys: Vec<String> =
                (0..bounds::BATCH).map(|at| format!("{name}-{round}-{at}")).collect();
            let batch = keys.iter().map(|key| put(key, ABSENT, "")).collect();
            let made = ledger.write(BUCKET, batch).await.unwrap();
            let batch =
                keys.iter().map(|key| Write { key: key.clone(), expected: made, value: None });
            ledger.write(BUCKET, batch.collect()).await.unwrap();
        }
    };
    let batch = (0..1000).map(|at| put(&format!("kept-{at}"), ABSENT, "")).collect();
    let made = ledger.write(BUCKET, batch).await.unwrap();
    fill("before", 11_000).await;
    let mut follower = Follower::new(BUCKET);
    let mut kept = BTreeMap::new();
    // The first page, of a bucket that has forgotten deletions before: that is no reason to begin
    // again.
    assert!(follow(&mut follower, &mut kept, &ledger, ABSENT).await.unwrap());
    assert_eq!(kept.len(), 1000);
    let update = follower.next(&*ledger, ABSENT).await.unwrap();
    assert!(!update.is_reset && update.more);
    // A record of the first page goes, and its deletion is forgotten before the follower reads on.
    let gone = vec![Write { key: "kept-7".to_owned(), expected: made, value: None }];
    ledger.write(BUCKET, gone).await.unwrap();
    fill("meanwhile", 11_000).await;
    while follow(&mut follower, &mut kept, &ledger, ABSENT).await.unwrap() {}
    assert_eq!(kept.len(), 999);
    let found = scan_all(&ledger, BUCKET, "", 1000).await;
    assert!(found.iter().all(|it| kept.contains_key(&it.key)));
}
