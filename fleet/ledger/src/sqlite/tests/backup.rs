//! Backups, and the way back.

use super::*;

/// Leaves every record as it is.
fn as_it_is(_: Bucket, _: &str, _: &[u8]) -> Option<Bytes> {
    None
}

async fn fill(ledger: &SqliteLedger, name: &str, count: u64) {
    for number in 0..count {
        ledger.write(BUCKET, vec![put(&format!("{name}-{number}"), ABSENT, "")]).await.unwrap();
        ledger.append(Log::Events, name, number, &format!("{number}"), "".into()).await.unwrap();
    }
}

/// Keys and entries of a ledger.
async fn content(ledger: &Arc<SqliteLedger>) -> (Vec<String>, Vec<(String, u64, u64)>) {
    let page = ledger.changes(BUCKET, ABSENT, ABSENT).await.unwrap();
    let shared: SharedLedger = ledger.clone();
    let entries = read_all(&shared, "", 1000).await;
    (
        page.changes.into_iter().map(|it| it.key).collect(),
        entries.into_iter().map(|it| (it.subject, it.number, it.position)).collect(),
    )
}

#[tokio::test(flavor = "multi_thread")]
async fn a_backup_is_restored_with_everything_that_was_in_it() {
    let folder = tempfile::tempdir().unwrap();
    let ledger = open_in(&folder);
    fill(&ledger, "before", 20).await;
    let before = content(&ledger).await;
    let backup = folder.path().join("backup");
    ledger.backup(&backup).await.unwrap();
    assert_eq!(std::fs::metadata(&backup).unwrap().permissions().mode() & 0o777, 0o600);
    fill(&ledger, "after", 5).await;

    let other = folder.path().join("restored").join("ledger");
    restore(&backup, &other, Existing::Refuse, as_it_is).unwrap();
    let restored = SqliteLedger::open(&other).unwrap();
    assert_eq!(content(&restored).await, before);
    // It goes on where the backup was: no revision, number or position is given twice.
    let last = restored.changes(BUCKET, ABSENT, ABSENT).await.unwrap().through;
    let next = restored.write(BUCKET, vec![put("next", ABSENT, "")]).await.unwrap();
    assert!(next > last);
    let appended = restored.append(Log::Events, "before", 20, "next", "".into()).await.unwrap();
    assert_eq!(appended, Appended::New(21));
}

#[tokio::test(flavor = "multi_thread")]
async fn records_are_amended_before_anybody_can_open_the_ledger() {
    fn amend(bucket: Bucket, key: &str, value: &[u8]) -> Option<Bytes> {
        let is_meant = bucket == BUCKET && key == "b";
        is_meant.then(|| [value, b"!"].concat().into())
    }
    let folder = tempfile::tempdir().unwrap();
    let ledger = open_in(&folder);
    for key in ["a", "b", "gone"] {
        ledger.write(BUCKET, vec![put(key, ABSENT, key)]).await.unwrap();
    }
    let found = ledger.get(BUCKET, "gone").await.unwrap().unwrap();
    let deleted = Write { key: "gone".to_owned(), expected: found.revision, value: None };
    ledger.write(BUCKET, vec![deleted]).await.unwrap();
    let backup = folder.path().join("backup");
    ledger.backup(&backup).await.unwrap();

    let other = folder.path().join("restored");
    restore(&backup, &other, Existing::Refuse, amend).unwrap();
    let files: Vec<_> = std::fs::read_dir(folder.path()).unwrap().collect();
    let names: Vec<_> = files.into_iter().map(|it| it.unwrap().file_name()).collect();
    // What the copy was amended with is in it, not beside it.
    assert!(
        !names.iter().any(|name| name.to_string_lossy().contains("restored.part")),
        "{names:?}"
    );
    let restored = SqliteLedger::open(&other).unwrap();
    let values = async |key| restored.get(BUCKET, key).await.unwrap().map(|found| found.value);
    assert_eq!(values("a").await.as_deref(), Some(b"a".as_slice()));
    assert_eq!(values("b").await.as_deref(), Some(b"b!".as_slice()));
    assert_eq!(values("gone").await, None);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_backup_made_while_others_write_is_whole() {
    let folder = tempfile::tempdir().unwrap();
    let ledger = open_in(&folder);
    let writer = {
        let ledger = Arc::clone(&ledger);
        tokio::spawn(async move {
            let mut newest = ABSENT;
            for number in 0..300_u64 {
                let value = number.to_be_bytes();
                let batch = vec![put("a", newest, value), put("b", newest, value)];
                newest = ledger.write(BUCKET, batch).await.unwrap();
            }
        })
    };
    for number in 0..5 {
        let backup = folder.path().join(format!("backup-{number}"));
        ledger.backup(&backup).await.unwrap();
        let other = folder.path().join(format!("ledger-{number}"));
        restore(&backup, &other, Existing::Refuse, as_it_is).unwrap();
        let restored = SqliteLedger::open(&other).unwrap();
        let page = restored.changes(BUCKET, ABSENT, ABSENT).await.unwrap();
        assert!(page.changes.windows(2).all(|it| it[0].value == it[1].value), "{page:?}");
    }
    writer.await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_backup_overwrites_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let ledger = open_in(&folder);
    let taken = folder.path().join("taken");
    std::fs::write(&taken, "mine").unwrap();
    let error = ledger.backup(&taken).await.expect_err("it exists");
    assert!(matches!(error, BackupError::Exists { .. }), "{error}");
    assert_eq!(std::fs::read(&taken).unwrap(), b"mine");
    std::fs::write(folder.path().join("new.part"), "of another one").unwrap();
    let error = ledger.backup(&folder.path().join("new")).await.expect_err("one is under way");
    assert!(error.to_string().contains("new.part exists"), "{error}");
    let error = ledger.backup(&folder.path().join("none/new")).await.expect_err("no folder");
    assert!(matches!(error, BackupError::File { .. }), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_restore_refuses_a_ledger_that_is_there_unless_it_may_replace_it() {
    let folder = tempfile::tempdir().unwrap();
    let ledger = open_in(&folder);
    fill(&ledger, "before", 3).await;
    let backup = folder.path().join("backup");
    ledger.backup(&backup).await.unwrap();
    let before = content(&ledger).await;
    fill(&ledger, "after", 3).await;
    let after = content(&ledger).await;
    let path = ledger.path().to_owned();
    // While it is open, not at all.
    for existing in [Existing::Refuse, Existing::Replace] {
        let error = restore(&backup, &path, existing, as_it_is).expect_err("it is open");
        assert!(matches!(error, RestoreError::InUse { .. }), "{error}");
    }
    ledger.close().await;
    let error = restore(&backup, &path, Existing::Refuse, as_it_is).expect_err("it is there");
    assert!(matches!(error, RestoreError::Exists { .. }), "{error}");
    restore(&backup, &path, Existing::Replace, as_it_is).unwrap();
    assert_eq!(content(&open_in(&folder)).await, before);
    // What was replaced is kept, whole.
    let replaced = SqliteLedger::open(&folder.path().join("ledger.replaced")).unwrap();
    assert_eq!(content(&replaced).await, after);
    let names = std::fs::read_dir(folder.path()).unwrap();
    let left =
        names.filter(|it| it.as_ref().unwrap().file_name().to_string_lossy().ends_with(".part"));
    assert_eq!(left.count(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_damaged_ledger_is_replaced_too() {
    let folder = tempfile::tempdir().unwrap();
    let ledger = open_in(&folder);
    fill(&ledger, "before", 3).await;
    let backup = folder.path().join("backup");
    ledger.backup(&backup).await.unwrap();
    let before = content(&ledger).await;
    ledger.close().await;
    let path = ledger.path().to_owned();
    std::fs::write(&path, vec![0xa5; 20_000]).unwrap();
    std::fs::write(open::beside(&path, "-wal"), "of the old one").unwrap();
    restore(&backup, &path, Existing::Replace, as_it_is).unwrap();
    assert_eq!(content(&open_in(&folder)).await, before);
    assert_eq!(std::fs::read(folder.path().join("ledger.replaced")).unwrap().len(), 20_000);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_no_backup_is_not_restored() {
    let folder = tempfile::tempdir().unwrap();
    let ledger = open_in(&folder);
    fill(&ledger, "before", 200).await;
    let backup = folder.path().join("backup");
    ledger.backup(&backup).await.unwrap();
    let whole = std::fs::read(&backup).unwrap();
    let to = folder.path().join("new");
    let check = |name: &str, bytes: Option<&[u8]>, expected: &str| {
        let from = folder.path().join(name);
        if let Some(bytes) = bytes {
            std::fs::write(&from, bytes).unwrap();
        }
        let error = restore(&from, &to, Existing::Refuse, as_it_is).expect_err("it is refused");
        let text = chain(&error);
        assert!(text.contains(expected), "{name}: {text}");
        assert!(!to.exists(), "{name}");
    };
    check("none", None, "cannot be opened");
    check("empty", Some(b""), "is not a ledger");
    check("text", Some(&b"text".repeat(1000)), "is not a ledger");
    check("half", Some(&whole[..whole.len() / 2]), "damaged");
    let mut damaged = whole.clone();
    let at = whole.len() - 4096 * 2;
    damaged[at..at + 200].fill(0xa5);
    check("damaged", Some(&damaged), "damaged");
    let mut newer = whole.clone();
    newer[60..64].copy_from_slice(&9_u32.to_be_bytes());
    check("newer", Some(&newer), "use the newer program");
    let mut other = whole;
    other[68..72].copy_from_slice(&9_u32.to_be_bytes());
    check("other", Some(&other), "is not a ledger");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_log_that_lost_its_file_is_not_brought_into_what_is_restored() {
    let folder = tempfile::tempdir().unwrap();
    let ledger = open_in(&folder);
    fill(&ledger, "before", 3).await;
    let backup = folder.path().join("backup");
    ledger.backup(&backup).await.unwrap();
    let before = content(&ledger).await;
    fill(&ledger, "after", 3).await;
    // A log with everything in it, as a program leaves it that is killed.
    let to = folder.path().join("restored");
    let log = open::beside(ledger.path(), "-wal");
    assert!(std::fs::copy(log, open::beside(&to, "-wal")).unwrap() > 0);
    restore(&backup, &to, Existing::Refuse, as_it_is).unwrap();
    assert_eq!(content(&SqliteLedger::open(&to).unwrap()).await, before);
}
