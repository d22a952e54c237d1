//! A ledger moves from a file to NATS and back, and nothing old is taken for new.

use std::collections::BTreeMap;

use bytes::Bytes;
use guest_fleet_ledger::{
    Appended, Bucket, Existing, Follower, JetstreamLedger, Ledger, Log, NatsAddress, Revision,
    SqliteLedger, Write, WriteError, bounds, restore,
};
use tempfile::TempDir;

use crate::nats::shared;

const ABSENT: Revision = Revision::ABSENT;

fn put(key: &str, expected: Revision, value: &str) -> Write {
    Write { key: key.into(), expected, value: Some(value.to_owned().into()) }
}

/// Leaves every record as it is.
fn as_it_is(_: Bucket, _: &str, _: &[u8]) -> Option<Bytes> {
    None
}

/// Changes one record of the configuration.
fn amended(bucket: Bucket, key: &str, _: &[u8]) -> Option<Bytes> {
    (bucket == Bucket::Configuration && key == "ä\n").then(|| "amended".into())
}

async fn records(ledger: &dyn Ledger, bucket: Bucket) -> BTreeMap<String, String> {
    let mut found = BTreeMap::new();
    let mut next: Option<String> = None;
    loop {
        let page = ledger.scan(bucket, "", next.as_deref(), bounds::PAGE).await.unwrap();
        for record in page.records {
            found.insert(record.key, String::from_utf8(record.value.to_vec()).unwrap());
        }
        next = page.next;
        if next.is_none() {
            return found;
        }
    }
}

async fn entries(ledger: &dyn Ledger, after: u64) -> Vec<(String, u64, u64, String)> {
    let mut found = Vec::new();
    let mut after = after;
    loop {
        let page = ledger.read(Log::Events, "", after, 7).await.unwrap();
        let Some(last) = page.last() else { return found };
        after = last.position;
        found.extend(page.into_iter().map(|it| (it.subject, it.position, it.number, it.id)));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_ledger_moves_from_a_file_to_nats_and_back() {
    let Some(cluster) = shared::cluster() else { return };
    let folder = TempDir::new().unwrap();
    let file = SqliteLedger::open(&folder.path().join("one.db")).unwrap();
    let batch = (0..1000).map(|at| put(&format!("agent/{at}"), ABSENT, "v")).collect();
    let made = file.write(Bucket::Agents, batch).await.unwrap();
    let gone = Write { key: "agent/7".into(), expected: made, value: None };
    let newest = file.write(Bucket::Agents, vec![gone]).await.unwrap();
    file.write(Bucket::Configuration, vec![put("ä\n", ABSENT, "w")]).await.unwrap();
    for number in 0..30 {
        for subject in ["a.web", "b.web"] {
            let id = format!("{subject}-{number}");
            file.append(Log::Events, subject, number, &id, "e".into()).await.unwrap();
        }
    }
    let (agents, all) = (records(&*file, Bucket::Agents).await, entries(&*file, 0).await);
    assert_eq!((agents.len(), all.len()), (999, 60));
    file.backup(&folder.path().join("one.backup")).await.unwrap();
    // What happens after the backup is lost.
    let lost = file.write(Bucket::Agents, vec![put("lost", ABSENT, "")]).await.unwrap();
    file.append(Log::Events, "a.web", 30, "lost", "".into()).await.unwrap();

    let (prefix, _streams) = shared::prefix();
    let address: NatsAddress = cluster.address(&prefix).parse().unwrap();
    JetstreamLedger::restore(&address, &folder.path().join("one.backup"), amended).await.unwrap();
    let ledger = JetstreamLedger::open(&address).await.unwrap();
    assert_eq!(records(&*ledger, Bucket::Agents).await, agents);
    assert_eq!(
        records(&*ledger, Bucket::Configuration).await.get("ä\n"),
        Some(&"amended".to_owned())
    );
    // Entries are where they were, and a cursor in the middle of them still is.
    assert_eq!(entries(&*ledger, 0).await, all);
    assert_eq!(entries(&*ledger, all[29].1).await, all[30..]);
    assert!(entries(&*ledger, all[59].1).await.is_empty());
    // The next entry follows in number, and its position is above that of the lost one.
    let last = ledger.append(Log::Events, "a.web", 30, "next", "".into()).await.unwrap();
    assert_eq!(last, Appended::New(31));
    let after = entries(&*ledger, all[59].1).await;
    assert_eq!(after.len(), 1);
    assert!(after[0].1 > all[59].1 + 1, "{after:?}");
    // No revision that somebody may still know is right, and none is given again.
    let record = ledger.get(Bucket::Agents, "agent/1").await.unwrap().unwrap();
    assert!(record.revision > lost && lost > newest);
    for stale in [made, newest, lost] {
        let written = ledger.write(Bucket::Agents, vec![put("agent/1", stale, "stale")]).await;
        assert!(matches!(written, Err(WriteError::Conflict { .. })), "{written:?}");
    }
    // The answer to a reader of the lost time says that deletions may be missing.
    let page = ledger.changes(Bucket::Agents, lost, ABSENT).await.unwrap();
    assert!(page.forgotten > lost, "{page:?}");
    // Nobody restores over it.
    let again =
        JetstreamLedger::restore(&address, &folder.path().join("one.backup"), as_it_is).await;
    let error = format!("{:?}", again.unwrap_err());
    assert!(error.contains("NotEmpty"), "{error}");

    // And back: the file has the same, and goes on above.
    let gone = Write {
        key: "agent/8".into(),
        expected: ledger.get(Bucket::Agents, "agent/8").await.unwrap().unwrap().revision,
        value: None,
    };
    ledger.write(Bucket::Agents, vec![gone]).await.unwrap();
    let copy = folder.path().join("two.backup");
    ledger.backup(&copy).await.unwrap();
    assert!(ledger.backup(&copy).await.is_err(), "it is there already");
    let two = folder.path().join("two.db");
    restore(&copy, &two, Existing::Refuse, as_it_is).unwrap();
    let file = SqliteLedger::open(&two).unwrap();
    assert_eq!(records(&*file, Bucket::Agents).await, records(&*ledger, Bucket::Agents).await);
    assert_eq!(entries(&*file, 0).await, entries(&*ledger, 0).await);
    let mut follower = Follower::new(Bucket::Agents);
    let mut through = ABSENT;
    loop {
        let update = follower.next(&*file, ABSENT).await.unwrap();
        through = through.max(update.through);
        if !update.more {
            break;
        }
    }
    assert!(through > record.revision);
    let written = file.write(Bucket::Agents, vec![put("new", ABSENT, "")]).await.unwrap();
    assert!(written > through);
    let appended = file.append(Log::Events, "c.web", 0, "id", "".into()).await.unwrap();
    assert_eq!(appended, Appended::New(1));
    let last = file.last(Log::Events, "c.web").await.unwrap().unwrap();
    assert!(last.position > after[0].1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_empty_ledger_is_backed_up_and_restored() {
    let Some((ledger, _streams)) = shared::ledger().await else { return };
    let folder = TempDir::new().unwrap();
    let copy = folder.path().join("empty.backup");
    ledger.backup(&copy).await.unwrap();
    let cluster = shared::cluster().unwrap();
    let (prefix, _streams) = shared::prefix();
    let address: NatsAddress = cluster.address(&prefix).parse().unwrap();
    JetstreamLedger::restore(&address, &copy, as_it_is).await.unwrap();
    let ledger = JetstreamLedger::open(&address).await.unwrap();
    assert!(records(&*ledger, Bucket::Agents).await.is_empty());
    let written = ledger.write(Bucket::Agents, vec![put("k", ABSENT, "")]).await.unwrap();
    let page = ledger.changes(Bucket::Agents, ABSENT, written).await.unwrap();
    assert_eq!((page.changes.len(), page.through), (1, written));
}
