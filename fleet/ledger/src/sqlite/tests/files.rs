//! Files that are opened, and files that are not.

use super::*;

fn mode(path: &std::path::Path) -> u32 {
    std::fs::metadata(path).unwrap().permissions().mode() & 0o777
}

/// Makes a file that only its owner can use.
fn write(path: &std::path::Path, content: &[u8]) {
    std::fs::write(path, content).unwrap();
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600)).unwrap();
}

/// Opens what has to be refused; the text of the error with its causes.
#[track_caller]
fn refusal(path: &std::path::Path) -> (OpenError, String) {
    let error = SqliteLedger::open(path).expect_err("it is refused");
    let text = chain(&error);
    assert!(text.contains(&*path.to_string_lossy()), "{text} does not name the file");
    (error, text)
}

/// A ledger with a record and an entry, closed.
async fn filled(folder: &TempDir) -> PathBuf {
    let ledger = open_in(folder);
    for number in 0..300 {
        let write = put(&format!("key-{number}"), ABSENT, vec![b'v'; 500]);
        ledger.write(BUCKET, vec![write]).await.unwrap();
    }
    for number in 0..50 {
        let id = format!("id-{number}");
        ledger.append(Log::Events, "a.web", number, &id, vec![b'e'; 500].into()).await.unwrap();
    }
    ledger.close().await;
    ledger.path().to_owned()
}

#[tokio::test(flavor = "multi_thread")]
async fn only_the_owner_can_use_what_is_made() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("new").join("fleet").join("ledger");
    let ledger = SqliteLedger::open(&path).unwrap();
    ledger.write(BUCKET, vec![put("key", ABSENT, "")]).await.unwrap();
    assert_eq!(mode(path.parent().unwrap()), 0o700);
    assert_eq!(mode(&folder.path().join("new")), 0o700);
    for ending in ["", "-wal", "-shm", ".lock"] {
        assert_eq!(mode(&open::beside(&path, ending)), 0o600, "{ending}");
    }
}

#[test]
fn a_file_that_others_can_use_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("ledger");
    drop(SqliteLedger::open(&path).unwrap());
    for mode in [0o640, 0o604, 0o666] {
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
        let (error, text) = refusal(&path);
        assert!(matches!(error, OpenError::Mode { .. }) && text.contains("chmod 600"), "{text}");
    }
}

#[test]
fn what_is_no_file_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("ledger");
    std::fs::create_dir(&path).unwrap();
    let (_, text) = refusal(&path);
    assert!(text.contains("is a folder"), "{text}");
}

#[test]
fn a_file_of_another_program_is_refused_and_stays_as_it_is() {
    let folder = tempfile::tempdir().unwrap();
    let text_file = folder.path().join("notes.txt");
    write(&text_file, "dear diary\n".repeat(1000).as_bytes());
    let database = folder.path().join("other.db");
    Connection::open(&database).unwrap().execute_batch("CREATE TABLE notes (text)").unwrap();
    std::fs::set_permissions(&database, std::fs::Permissions::from_mode(0o600)).unwrap();
    for path in [text_file, database] {
        let before = std::fs::read(&path).unwrap();
        let (error, text) = refusal(&path);
        assert!(matches!(error, OpenError::NotALedger { .. }), "{text}");
        assert_eq!(std::fs::read(&path).unwrap(), before);
    }
}

#[test]
fn a_ledger_of_a_newer_program_is_refused_and_stays_as_it_is() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("ledger");
    drop(SqliteLedger::open(&path).unwrap());
    let connection = open::connect(&path).unwrap();
    connection.pragma_update(None, "user_version", schema::VERSION + 1).unwrap();
    let (error, text) = refusal(&path);
    assert!(matches!(error, OpenError::Newer { found: 2, known: 1, .. }), "{text}");
    assert!(text.contains("use the newer program"), "{text}");
}

#[test]
fn a_folder_that_cannot_be_made_is_named() {
    let folder = tempfile::tempdir().unwrap();
    write(&folder.path().join("file"), b"");
    let path = folder.path().join("file").join("ledger");
    match SqliteLedger::open(&path).expect_err("it is refused") {
        OpenError::Folder { path, .. } => assert_eq!(path, folder.path().join("file")),
        other => panic!("{other}"),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_empty_file_becomes_a_ledger() {
    let folder = tempfile::tempdir().unwrap();
    write(&folder.path().join("ledger"), b"");
    let ledger = open_in(&folder);
    ledger.write(BUCKET, vec![put("key", ABSENT, "")]).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn several_can_open_a_new_file_at_once() {
    for _ in 0..10 {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("ledger");
        let openers: Vec<_> = (0..4)
            .map(|_| {
                let path = path.clone();
                tokio::task::spawn_blocking(move || SqliteLedger::open(&path))
            })
            .collect();
        for (number, opener) in openers.into_iter().enumerate() {
            let ledger = opener.await.unwrap().expect("it opens");
            ledger.write(BUCKET, vec![put(&format!("{number}"), ABSENT, "")]).await.unwrap();
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_ledger_of_version_1_is_read() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("ledger");
    write(&path, b"");
    let fixture = include_str!("../fixtures/version-1.sql");
    Connection::open(&path).unwrap().execute_batch(fixture).unwrap();
    let ledger: SharedLedger = SqliteLedger::open(&path).unwrap();
    let record = ledger.get(Bucket::Configuration, "assignment/web").await.unwrap().unwrap();
    assert_eq!((record.revision, &record.value[..]), (Revision(2), &b"\x08\x01web"[..]));
    assert_eq!(ledger.get(Bucket::Configuration, "assignment/gone").await.unwrap(), None);
    let page = ledger.changes(Bucket::Configuration, ABSENT, Revision(3)).await.unwrap();
    let found: Vec<_> =
        page.changes.iter().map(|it| (it.key.as_str(), it.value.is_some())).collect();
    assert_eq!(found, [("assignment/web", true), ("assignment/gone", false)]);
    let entries = read_all(&ledger, "", 10).await;
    let found: Vec<_> =
        entries.iter().map(|it| (it.subject.as_str(), it.number, it.position)).collect();
    assert_eq!(found, [("vm-1.web", 4, 7), ("vm-1.web", 5, 9)]);
    let appended = ledger.append(Log::Events, "vm-1.web", 5, "event-6", "".into()).await.unwrap();
    assert_eq!(appended, Appended::New(6));
    assert_eq!(ledger.last(Log::Events, "vm-1.web").await.unwrap().unwrap().position, 12);
    let write = vec![put("assignment/gone", ABSENT, "back")];
    assert_eq!(ledger.write(Bucket::Configuration, write).await.unwrap(), Revision(4));
}

/// Uses every verb; an error is as good as an answer.
async fn use_it(ledger: &SqliteLedger) {
    for bucket in Bucket::ALL {
        drop(ledger.get(bucket, "key-1").await);
        drop(ledger.scan(bucket, "", None, 1000).await);
        drop(ledger.changes(bucket, ABSENT, ABSENT).await);
        drop(ledger.write(bucket, vec![put("new", ABSENT, "")]).await);
    }
    drop(ledger.last(Log::Events, "a.web").await);
    drop(ledger.read(Log::Events, "", 0, 1000).await);
    drop(ledger.read(Log::Events, "a", 0, 1000).await);
    drop(ledger.append(Log::Events, "a.web", 50, "new", "".into()).await);
    ledger.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_truncated_file_gives_errors_and_no_panic() {
    let folder = tempfile::tempdir().unwrap();
    let path = filled(&folder).await;
    let whole = std::fs::read(&path).unwrap();
    let mut refused = 0;
    for length in [1, 50, 99, 100, 512, 4095, 4096, 4097, whole.len() / 2, whole.len() - 1] {
        let cut = folder.path().join(format!("cut-{length}"));
        write(&cut, &whole[..length]);
        match SqliteLedger::open(&cut) {
            Ok(ledger) => use_it(&ledger).await,
            Err(error) => {
                refused += 1;
                let text = chain(&error);
                assert!(text.contains("cut-"), "{text}");
            }
        }
    }
    assert!(refused >= 5, "{refused} were refused");
}

#[tokio::test(flavor = "multi_thread")]
async fn flipped_bytes_give_errors_and_no_panic() {
    let folder = tempfile::tempdir().unwrap();
    let path = filled(&folder).await;
    let whole = std::fs::read(&path).unwrap();
    let mut state = 1_u64;
    let mut random = move || {
        state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        usize::try_from(state >> 33).unwrap()
    };
    for round in 0..60 {
        let mut bytes = whole.clone();
        for _ in 0..1 + random() % 40 {
            // Every second time in the first pages: the header and the tables' own description.
            let range = if round % 2 == 0 { 8192 } else { bytes.len() };
            let at = random() % range;
            bytes[at] = random().to_le_bytes()[0];
        }
        let damaged = folder.path().join("damaged");
        for ending in ["-wal", "-shm"] {
            drop(std::fs::remove_file(open::beside(&damaged, ending)));
        }
        write(&damaged, &bytes);
        if let Ok(ledger) = SqliteLedger::open(&damaged) {
            use_it(&ledger).await;
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_damaged_page_is_an_error_that_says_what_to_do() {
    let folder = tempfile::tempdir().unwrap();
    let path = filled(&folder).await;
    let mut bytes = std::fs::read(&path).unwrap();
    // Every page but the first, which has the description of the tables.
    for page in bytes.chunks_mut(4096).skip(1) {
        page.fill(0xa5);
    }
    write(&path, &bytes);
    let error = match SqliteLedger::open(&path) {
        Err(error) => chain(&error),
        Ok(ledger) => {
            let read = ledger.get(BUCKET, "key-1").await.expect_err("it is damaged");
            assert!(matches!(read, ReadError::Damaged { .. }), "{read:?}");
            let written = ledger.write(BUCKET, vec![put("new", ABSENT, "")]).await;
            assert!(matches!(written, Err(WriteError::Refused(_))), "{written:?}");
            assert!(ledger.failed().is_cancelled(), "nothing more is written to it");
            chain(&read)
        }
    };
    assert!(error.contains("restore a backup"), "{error}");
}
