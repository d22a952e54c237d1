//! Exports of the audit record, and signed heads in a directory.

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use super::super::audit::export::{LINE_BYTES, export, line, verify as verify_lines};
use super::super::audit::head::{SignedHead, SigningKey};
use super::super::audit::heads::{HEADS, Heads, HeadsError};
use super::super::audit::{AuditError, Verdict};
use super::*;
use crate::observe::figures::Figures;
use crate::records::audit::AuditRecord;

fn words(record: &AuditRecord, bytes: &[u8]) -> Value {
    let line = line(record.number, bytes);
    json!({ "number": line.number, "record": line.record, "who": record.who })
}

async fn lines(ledger: &FakeLedger) -> Vec<Value> {
    let mut lines = Vec::new();
    export(ledger, |record, bytes| {
        lines.push(words(record, bytes));
        Ok::<_, AuditError>(())
    })
    .await
    .expect("exported");
    lines
}

fn check(lines: &[Value], known: &[Known]) -> Verdict {
    let text: String = lines.iter().map(|line| format!("{line}\n")).collect();
    verify_lines(&mut text.as_bytes(), known, words).expect("read")
}

async fn raised(times: u32) -> FakeLedger {
    let ledger = FakeLedger::default();
    for _ in 0..times {
        raise(&ledger).await.expect("raised");
    }
    ledger
}

#[tokio::test]
async fn an_export_is_checked_without_the_ledger_and_no_line_can_be_changed_moved_or_left_out() {
    let ledger = raised(4).await;
    let whole = lines(&ledger).await;
    let verdict = check(&whole, &[]);
    let there = verify(&ledger, &[]).await.expect("read");
    assert_eq!((verdict.newest, &verdict.digest, verdict.checked), (4, &there.digest, 4));
    assert_eq!(verdict.problems, Vec::<String>::new());
    let known = Known { number: 4, digest: verdict.digest };
    assert_eq!(check(&whole, std::slice::from_ref(&known)).problems, Vec::<String>::new());

    let mut lied = whole.clone();
    lied[1]["who"] = json!("mallory");
    assert_eq!(check(&lied, &[]).problems, ["line 2 does not say what the entry 2 says"]);
    let mut more = whole.clone();
    more[1]["note"] = json!("x");
    assert_eq!(check(&more, &[]).problems, ["line 2 does not say what the entry 2 says"]);
    let mut moved = whole.clone();
    moved.swap(1, 2);
    assert!(!check(&moved, &[]).problems.is_empty());
    let mut left_out = whole.clone();
    left_out.remove(1);
    assert_eq!(check(&left_out, &[]).problems, ["entry 3 does not follow entry 1"]);
    // An entry that was written anew, with words that fit.
    let mut forged = whole.clone();
    let bytes = ledger.value(Bucket::Configuration, &audit::key(2)).expect("an entry");
    let mut record = AuditRecord::decode(bytes).expect("an entry");
    record.who = "mallory".to_owned();
    forged[1] = words(&record, &record.encode_to_vec());
    assert_eq!(check(&forged, &[]).problems, ["entry 3 does not follow entry 2"]);
    let cut = &whole[..3];
    assert_eq!(check(cut, &[]).problems, Vec::<String>::new());
    let problems = check(cut, &[known]).problems;
    assert_eq!(
        problems,
        ["entry 4 was written down, and the newest is 3: entries at the end are gone"]
    );
    let other = Known { number: 2, digest: vec![7; 32] };
    let problems = check(&whole, &[other]).problems;
    assert_eq!(problems, ["entry 2 is not the one that was written down"]);
    // The oldest are not kept; a head of one of these says nothing.
    let verdict = check(&whole[2..], &[Known { number: 1, digest: vec![7; 32] }]);
    assert_eq!((verdict.problems, verdict.older), (Vec::new(), vec![1]));
}

#[tokio::test]
async fn lines_that_are_no_entries_are_problems_and_never_read_without_bound() {
    for bad in ["x\n", "{}\n", "[]\n", "\n", "{\"number\":1,\"record\":\"AAAA\"}\n"] {
        let verdict = verify_lines(&mut bad.as_bytes(), &[], words).expect("read");
        assert_eq!(verdict.problems, ["line 1 is not an entry of an audit record"], "{bad}");
    }
    let many = "x\n".repeat(100_000);
    assert_eq!(verify_lines(&mut many.as_bytes(), &[], words).expect("read").problems.len(), 100);
    let endless = std::io::Read::take(std::io::repeat(b'x'), LINE_BYTES * 4);
    let verdict = verify_lines(&mut std::io::BufReader::new(endless), &[], words).expect("read");
    assert!(verdict.problems[0].starts_with("line 1 is longer than"), "{:?}", verdict.problems);
}

fn heads(directory: &tempfile::TempDir) -> Arc<Heads> {
    let path = directory.path().join("key.pem");
    let key = match SigningKey::read(&path) {
        Ok(key) => key,
        Err(_) => {
            SigningKey::create(&path).expect("a key");
            SigningKey::read(&path).expect("a key")
        }
    };
    Arc::new(Heads {
        key,
        directory: directory.path().join("heads"),
        every: Duration::from_secs(3600),
    })
}

#[tokio::test]
async fn signed_heads_are_written_when_the_record_goes_on_and_say_when_it_does_not() {
    let directory = tempfile::tempdir().expect("a directory");
    let ledger = raised(2).await;
    let heads = heads(&directory);
    assert_eq!(heads.clone().write(&ledger).await.expect("written"), Some(2));
    assert_eq!(heads.clone().write(&ledger).await.expect("nothing new"), None);
    raise(&ledger).await.expect("raised");
    assert_eq!(heads.clone().write(&ledger).await.expect("written"), Some(3));
    let path = directory.path().join("heads/head-00000000000000000003.json");
    let head = SignedHead::read(&path).expect("a head");
    head.check(&heads.key.public()).expect("it is right");
    let known = [head.known().expect("a head")];
    assert_eq!(verify(&ledger, &known).await.expect("read").problems, Vec::<String>::new());
    // The end is cut off.
    let second = ledger.value(Bucket::Configuration, &audit::key(2)).expect("an entry");
    let cut = AuditHead { version: 1, number: 2, digest: audit::digest(&second) };
    ledger.put(Bucket::Configuration, AUDIT_HEAD, cut.encode_to_vec());
    let refused = heads.clone().write(&ledger).await;
    assert!(matches!(refused, Err(HeadsError::Gone { written: 3 })), "{refused:?}");
    // All of it was written anew, and is as long, or longer.
    for times in [3, 5] {
        let refused = heads.clone().write(&raised(times).await).await;
        assert!(matches!(refused, Err(HeadsError::Gone { written: 3 })), "{refused:?}");
    }
}

#[tokio::test]
async fn no_more_than_the_newest_heads_are_kept_and_other_files_stay() {
    let directory = tempfile::tempdir().expect("a directory");
    let folder = directory.path().join("heads");
    std::fs::create_dir(&folder).expect("made");
    let named = |number: usize| folder.join(format!("head-{number:020}.json"));
    let count = u32::try_from(HEADS).expect("a number") + 2;
    let ledger = raised(count).await;
    let heads = heads(&directory);
    for number in 1..=HEADS {
        std::fs::write(named(number), "{}").expect("written");
    }
    // The newest has to be one: what goes on is compared with it.
    let key = audit::key(u64::try_from(HEADS).expect("a number"));
    let digest = audit::digest(&ledger.value(Bucket::Configuration, &key).expect("an entry"));
    let at = "2026-01-01T00:00:00Z".parse().expect("a time");
    let head = heads.key.sign(u64::try_from(HEADS).expect("a number"), &digest, at);
    std::fs::write(named(HEADS), serde_json::to_string(&head).expect("text")).expect("written");
    std::fs::write(folder.join("note.txt"), "x").expect("written");
    assert_eq!(heads.clone().write(&ledger).await.expect("written"), Some(count.into()));
    assert!(!named(1).exists() && named(2).exists() && named(HEADS + 2).exists());
    assert!(folder.join("note.txt").exists());
}

#[tokio::test]
async fn the_server_writes_a_head_at_its_start_and_at_its_end() {
    let directory = tempfile::tempdir().expect("a directory");
    let ledger = Arc::new(raised(1).await);
    let named = |number: u64| directory.path().join(format!("heads/head-{number:020}.json"));
    let own = Arc::into_inner(heads(&directory)).expect("nobody else has it");
    let ending = CancellationToken::new();
    let figures = Arc::<Figures>::default();
    let running = tokio::spawn(own.run(ledger.clone(), figures.clone(), ending.clone()));
    let patience = tokio::time::Instant::now() + Duration::from_secs(60);
    while !named(1).exists() {
        assert!(tokio::time::Instant::now() < patience, "no head was written at the start");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    raise(&*ledger).await.expect("raised");
    ending.cancel();
    running.await.expect("it ends");
    assert!(named(2).exists(), "a last head is written");
    assert_eq!(figures.now().audit_heads_failed, 0);

    // What comes in the way of a head is counted.
    let heads = directory.path().join("heads");
    std::fs::remove_dir_all(&heads).expect("removed");
    std::fs::write(&heads, "no directory").expect("written");
    let own = Arc::into_inner(self::heads(&directory)).expect("nobody else has it");
    let ended = CancellationToken::new();
    ended.cancel();
    own.run(ledger, figures.clone(), ended).await;
    assert_eq!(figures.now().audit_heads_failed, 2, "at the start and at the end");
}
