use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use rusqlite::{Connection, ffi};
use tempfile::TempDir;

use super::*;
use crate::laws::tools::{delete, put, read_all};
use crate::{Layer, Layered, SharedLedger, bounds};

mod backup;
mod files;

const BUCKET: Bucket = Bucket::Configuration;
const ABSENT: Revision = Revision::ABSENT;
const LONG: Duration = Duration::from_secs(60);

async fn make() -> (SharedLedger, TempDir) {
    let folder = tempfile::tempdir().expect("a folder");
    let ledger = SqliteLedger::open(&folder.path().join("ledger")).expect("it opens");
    (ledger, folder)
}

crate::ledger_laws!(laws, make);

/// Two ledgers on one file, as two processes have them. Every call goes to the other one than the
/// call before.
struct Twin {
    ledgers: [Arc<SqliteLedger>; 2],
    calls: AtomicUsize,
}

impl Layer for Twin {
    fn below(&self) -> &dyn Ledger {
        &*self.ledgers[self.calls.fetch_add(1, Ordering::Relaxed) % 2]
    }

    fn wake(&self, bucket: Bucket) {
        self.ledgers[0].wake(bucket);
    }

    fn watch(&self, bucket: Bucket) -> watch::Receiver<u64> {
        self.ledgers[0].watch(bucket)
    }
}

async fn make_twin() -> (SharedLedger, TempDir) {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("ledger");
    let open = || SqliteLedger::open(&path).expect("it opens");
    (Arc::new(Layered(Twin { ledgers: [open(), open()], calls: AtomicUsize::new(0) })), folder)
}

crate::ledger_laws!(laws_of_two_processes, make_twin);

fn open_in(folder: &TempDir) -> Arc<SqliteLedger> {
    SqliteLedger::open(&folder.path().join("ledger")).expect("it opens")
}

/// Text of an error with its causes.
fn chain(error: &dyn std::error::Error) -> String {
    guest_agent_observe_kit::chain::Chain(error).to_string()
}

// === commits that fail ===

/// Sends two writes and an append, and lets them wait so that one commit takes several. Whether each
/// was answered with `Ambiguous`.
async fn of_a_group(ledger: &Arc<SqliteLedger>) -> [bool; 3] {
    // Another connection holds the writer up until all three are in the queue.
    let other = open::connect(ledger.path()).unwrap();
    other.execute_batch("BEGIN IMMEDIATE").unwrap();
    let room = ledger.room.available_permits();
    let first = tokio::spawn({
        let ledger = Arc::clone(ledger);
        async move { ledger.write(BUCKET, vec![put("first", ABSENT, "")]).await }
    });
    let second = tokio::spawn({
        let ledger = Arc::clone(ledger);
        async move { ledger.write(BUCKET, vec![put("second", ABSENT, "")]).await }
    });
    let third = tokio::spawn({
        let ledger = Arc::clone(ledger);
        async move { ledger.append(Log::Events, "a", 0, "id", "".into()).await }
    });
    while room - ledger.room.available_permits() < 3 * room::LEAST / room::UNIT {
        tokio::task::yield_now().await;
    }
    other.execute_batch("COMMIT").unwrap();
    let is_ambiguous = |error: Option<WriteError>| matches!(error, Some(WriteError::Ambiguous(_)));
    [
        is_ambiguous(first.await.unwrap().err()),
        is_ambiguous(second.await.unwrap().err()),
        is_ambiguous(third.await.unwrap().err()),
    ]
}

#[tokio::test(flavor = "multi_thread")]
async fn a_failed_commit_is_ambiguous_for_all_in_it_and_the_next_one_works() {
    let folder = tempfile::tempdir().unwrap();
    let ledger = open_in(&folder);
    *lock(&ledger.faults.before) = Some(ffi::SQLITE_FULL);
    assert_eq!(of_a_group(&ledger).await, [true; 3]);
    assert!(!ledger.failed().is_cancelled(), "a full disk is no damage");
    *lock(&ledger.faults.before) = None;
    let page = ledger.changes(BUCKET, ABSENT, ABSENT).await.unwrap();
    assert!(page.changes.is_empty(), "{page:?}");
    ledger.write(BUCKET, vec![put("later", ABSENT, "")]).await.expect("the next one works");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_commit_that_fails_after_it_happened_is_ambiguous_too() {
    let folder = tempfile::tempdir().unwrap();
    let ledger = open_in(&folder);
    *lock(&ledger.faults.after) = Some(ffi::SQLITE_FULL);
    let written = ledger.write(BUCKET, vec![put("key", ABSENT, "")]).await;
    assert!(matches!(written, Err(WriteError::Ambiguous(_))), "{written:?}");
    assert!(ledger.get(BUCKET, "key").await.unwrap().is_some(), "it happened");
    *lock(&ledger.faults.after) = None;
    let again = ledger.write(BUCKET, vec![put("key", ABSENT, "")]).await;
    assert!(matches!(again, Err(WriteError::Conflict { .. })), "{again:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn after_an_error_of_the_disk_nothing_is_written_any_more_and_reads_go_on() {
    let folder = tempfile::tempdir().unwrap();
    let ledger = open_in(&folder);
    let failed = ledger.failed();
    ledger.write(BUCKET, vec![put("before", ABSENT, "")]).await.unwrap();
    *lock(&ledger.faults.before) = Some(ffi::SQLITE_IOERR_FSYNC);
    let written = ledger.write(BUCKET, vec![put("key", ABSENT, "")]).await;
    assert!(matches!(written, Err(WriteError::Ambiguous(_))), "{written:?}");
    timeout(LONG, failed.cancelled()).await.expect("the server learns of it");
    for _ in 0..3 {
        match ledger.write(BUCKET, vec![put("later", ABSENT, "")]).await {
            Err(WriteError::Refused(error)) => {
                assert!(error.to_string().contains("start the program again"))
            }
            other => panic!("{other:?}"),
        }
    }
    let appended = ledger.append(Log::Events, "a", 0, "id", "".into()).await;
    assert!(matches!(appended, Err(WriteError::Refused(_))), "{appended:?}");
    assert!(ledger.get(BUCKET, "before").await.unwrap().is_some());
    drop(ledger);
    let ledger = open_in(&folder);
    ledger.write(BUCKET, vec![put("later", ABSENT, "")]).await.expect("a new process writes");
}

// === others that have the file open ===

#[tokio::test(flavor = "multi_thread")]
async fn a_watcher_is_woken_by_a_write_of_another_process() {
    let folder = tempfile::tempdir().unwrap();
    let (server, other) = (open_in(&folder), open_in(&folder));
    let mut watcher = server.watch(BUCKET);
    for number in 0..3 {
        watcher.mark_unchanged();
        other.write(BUCKET, vec![put(&format!("{number}"), ABSENT, "")]).await.unwrap();
        timeout(LONG, watcher.changed()).await.expect("it is woken").unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_write_is_refused_where_another_process_does_not_end() {
    let folder = tempfile::tempdir().unwrap();
    let ledger = open_in(&folder);
    let other = open::connect(ledger.path()).unwrap();
    other.execute_batch("BEGIN IMMEDIATE").unwrap();
    let written = ledger.write(BUCKET, vec![put("key", ABSENT, "")]).await;
    match written {
        Err(error @ WriteError::Refused(_)) => {
            assert!(chain(&error).contains("database is locked"), "{}", chain(&error));
        }
        other => panic!("{other:?}"),
    }
    assert!(ledger.get(BUCKET, "key").await.unwrap().is_none(), "reads go on");
    other.execute_batch("COMMIT").unwrap();
    ledger.write(BUCKET, vec![put("key", ABSENT, "")]).await.expect("it works again");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_write_that_finds_no_room_in_the_queue_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let ledger = open_in(&folder);
    let all = u32::try_from(room::ALL).unwrap();
    let taken = Arc::clone(&ledger.room).acquire_many_owned(all).await.unwrap();
    let written = ledger.write(BUCKET, vec![put("key", ABSENT, "")]).await;
    match written {
        Err(error @ WriteError::Refused(_)) => {
            assert!(chain(&error).contains("the queue was full for 5 s"), "{}", chain(&error));
        }
        other => panic!("{other:?}"),
    }
    drop(taken);
    ledger.write(BUCKET, vec![put("key", ABSENT, "")]).await.expect("there is room");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_waits_is_written_before_the_ledger_is_closed() {
    let folder = tempfile::tempdir().unwrap();
    let ledger = open_in(&folder);
    let writes: Vec<_> = (0..500)
        .map(|number| {
            let ledger = Arc::clone(&ledger);
            tokio::spawn(async move {
                ledger.write(BUCKET, vec![put(&format!("{number}"), ABSENT, "")]).await
            })
        })
        .collect();
    ledger.close().await;
    let mut written = 0_usize;
    for write in writes {
        match write.await.unwrap() {
            Ok(_) => written += 1,
            Err(WriteError::Refused(_)) => {}
            Err(error) => panic!("{error}"),
        }
    }
    let after = ledger.write(BUCKET, vec![put("after", ABSENT, "")]).await;
    assert!(matches!(after, Err(WriteError::Refused(_))), "{after:?}");
    drop(ledger);
    let page = open_in(&folder).changes(BUCKET, ABSENT, ABSENT).await.unwrap();
    assert_eq!(page.changes.len(), written);
}

// === what grows, and what stops it ===

#[tokio::test(flavor = "multi_thread")]
async fn entries_go_with_their_age_and_a_subject_begins_again() {
    let folder = tempfile::tempdir().unwrap();
    let seconds = Arc::new(AtomicU64::new(1_000_000_000));
    let clock = Arc::clone(&seconds);
    let options = SqliteOptions::with_clock(move || {
        SystemTime::UNIX_EPOCH + Duration::from_secs(clock.load(Ordering::SeqCst))
    });
    let ledger = SqliteLedger::open_with(&folder.path().join("ledger"), options).unwrap();
    let append = async |subject: &str, last, id: &str| {
        ledger.append(Log::Events, subject, last, id, "".into()).await.unwrap()
    };
    append("a", 0, "old").await;
    append("b", 0, "old").await;
    seconds.fetch_add(bounds::ENTRY_AGE.as_secs() / 2, Ordering::SeqCst);
    append("b", 1, "young").await;
    // The clock is set back, and the entry is not taken for older than the one it follows.
    let now = seconds.swap(1, Ordering::SeqCst);
    append("b", 2, "younger").await;
    seconds.store(now + bounds::ENTRY_AGE.as_secs() / 2 + 1, Ordering::SeqCst);
    append("c", 0, "new").await;
    let shared: SharedLedger = ledger.clone();
    let found: Vec<_> =
        read_all(&shared, "", 10).await.into_iter().map(|it| (it.subject, it.number)).collect();
    let expected =
        [("b", 2), ("b", 3), ("c", 1)].map(|(subject, number)| (subject.to_owned(), number));
    assert_eq!(found, expected);
    assert_eq!(append("a", 0, "new").await, Appended::New(1));
    assert_eq!(append("b", 3, "new").await, Appended::New(4));
}

#[tokio::test(flavor = "multi_thread")]
async fn the_log_that_is_written_ahead_stays_small() {
    let folder = tempfile::tempdir().unwrap();
    let ledger = open_in(&folder);
    let value = vec![1; 256 << 10];
    let mut newest = ABSENT;
    let mut largest = 0;
    for _ in 0..200 {
        newest = ledger.write(BUCKET, vec![put("key", newest, &value)]).await.unwrap();
        let size = std::fs::metadata(folder.path().join("ledger-wal")).map_or(0, |it| it.len());
        largest = largest.max(size);
    }
    assert!(largest < 16 << 20, "{largest} bytes of 50 MiB that were written");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_deleted_record_gives_its_room_back_to_others() {
    let folder = tempfile::tempdir().unwrap();
    let ledger = open_in(&folder);
    let value = vec![1; 1 << 20];
    for number in 0..40 {
        let key = format!("{number}");
        let made = ledger.write(BUCKET, vec![put(&key, ABSENT, &value)]).await.unwrap();
        ledger.write(BUCKET, vec![delete(&key, made)]).await.unwrap();
    }
    ledger.close().await;
    let size = std::fs::metadata(ledger.path()).unwrap().len();
    assert!(size < 8 << 20, "{size} bytes for nothing");
}

#[tokio::test(flavor = "multi_thread")]
async fn tombstones_are_counted_as_they_come_and_go() {
    let folder = tempfile::tempdir().unwrap();
    let ledger = open_in(&folder);
    let mut newest = [ABSENT; 4];
    for round in 0..20 {
        let at = (round * 7) % 4;
        let key = format!("key-{at}");
        let is_there = newest[at] != ABSENT;
        let write = if is_there { delete(&key, newest[at]) } else { put(&key, ABSENT, "") };
        let revision = ledger.write(BUCKET, vec![write, delete("absent", ABSENT)]).await.unwrap();
        newest[at] = if is_there { ABSENT } else { revision };
        let (counted, there): (i64, i64) = open::connect(ledger.path())
            .unwrap()
            .query_row(
                "SELECT tombstones, (SELECT count(*) FROM records WHERE value IS NULL)
                 FROM buckets WHERE bucket = ?1",
                [schema::number_of_bucket(BUCKET)],
                |row| Ok((row.get(0)?, row.get(1)?)),
            )
            .unwrap();
        assert_eq!(counted, there, "round {round}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_operation_that_fails_in_the_middle_leaves_nothing_and_takes_no_others_with_it() {
    let folder = tempfile::tempdir().unwrap();
    let ledger = open_in(&folder);
    let trigger = "CREATE TRIGGER fails BEFORE INSERT ON records WHEN NEW.key = 'fails'
                   BEGIN SELECT RAISE(ABORT, 'it fails'); END";
    let other = open::connect(ledger.path()).unwrap();
    other.execute_batch(trigger).unwrap();
    // All of them wait for the other connection, and most are in one commit.
    other.execute_batch("BEGIN IMMEDIATE").unwrap();
    let room = ledger.room.available_permits();
    let writes: Vec<_> = (0..9)
        .map(|number| {
            let ledger = Arc::clone(&ledger);
            let key = format!("{number}");
            let last = if number % 3 == 0 { "fails".to_owned() } else { format!("last-{number}") };
            let batch = vec![put(&key, ABSENT, ""), put(&last, ABSENT, "")];
            tokio::spawn(async move { ledger.write(BUCKET, batch).await })
        })
        .collect();
    while room - ledger.room.available_permits() < 9 * room::LEAST / room::UNIT {
        tokio::task::yield_now().await;
    }
    other.execute_batch("COMMIT").unwrap();
    for (number, write) in writes.into_iter().enumerate() {
        match write.await.unwrap() {
            Ok(_) => assert!(number % 3 != 0),
            Err(error @ WriteError::Refused(_)) => {
                assert!(number % 3 == 0 && chain(&error).contains("it fails"), "{error}");
            }
            Err(error) => panic!("{error}"),
        }
        let record = ledger.get(BUCKET, &number.to_string()).await.unwrap();
        assert_eq!(record.is_some(), number % 3 != 0, "{number}");
    }
}
