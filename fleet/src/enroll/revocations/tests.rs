use std::sync::atomic::Ordering;

use bytes::Bytes;

use super::*;
use crate::enroll::fake_ledger::FakeLedger;
use crate::ledger::Write;

async fn write(ledger: &FakeLedger, key: &str, value: Option<Vec<u8>>) {
    let found = ledger.get(Bucket::Agents, key).await.expect("read");
    let expected = found.map_or(Revision::ABSENT, |record| record.revision);
    let write = Write { key: key.to_owned(), expected, value: value.map(Bytes::from) };
    ledger.write(Bucket::Agents, vec![write]).await.expect("written");
    ledger.wake(Bucket::Agents);
}

async fn put(ledger: &FakeLedger, record: AgentRecord) {
    use prost::Message;

    write(ledger, &record.id.clone(), Some(record.encode_to_vec())).await;
}

fn revoked(id: &str) -> AgentRecord {
    AgentRecord { revoked: Some(prost_types::Timestamp::default()), ..AgentRecord::new(id) }
}

#[tokio::test(start_paused = true)]
async fn the_view_follows_the_ledger() {
    let (ledger, view) = (FakeLedger::default(), Revocations::default());
    assert_eq!(view.standing("a", None), Err(Stale), "nothing was read yet");
    put(&ledger, AgentRecord::new("a")).await;
    put(&ledger, revoked("b")).await;
    let quarantined = AgentRecord { quarantine: "two".into(), ..AgentRecord::new("c") };
    put(&ledger, quarantined).await;
    write(&ledger, "d", Some(b"\xff".to_vec())).await;
    view.refresh(&ledger).await.expect("read");
    assert_eq!(view.standing("a", None), Ok(Standing::Good));
    assert_eq!(view.standing("b", None), Ok(Standing::Revoked));
    assert_eq!(view.standing("c", None), Ok(Standing::Quarantined("two".into())));
    assert_eq!(view.standing("d", None), Ok(Standing::Revoked), "a damaged record admits nobody");
    assert_eq!(view.standing("unknown", None), Ok(Standing::Good));
    assert_eq!(lock(&view.view).agents.len(), 3, "of others nothing is kept");
    put(&ledger, AgentRecord::new("b")).await;
    write(&ledger, "c", None).await;
    view.refresh(&ledger).await.expect("read");
    assert_eq!(view.standing("b", None), Ok(Standing::Good));
    assert_eq!(view.standing("c", None), Ok(Standing::Good));
}

#[tokio::test(start_paused = true)]
async fn a_view_that_is_too_old_says_nothing_until_the_ledger_is_back() {
    let (ledger, view) = (Arc::new(FakeLedger::default()), Revocations::default());
    let shutdown = CancellationToken::new();
    let following = tokio::spawn(view.clone().follow(ledger.clone(), shutdown.clone()));
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert_eq!(view.standing("a", None), Ok(Standing::Good));
    ledger.is_away.store(true, Ordering::SeqCst);
    tokio::time::sleep(STALE + Duration::from_secs(2)).await;
    assert_eq!(view.standing("a", None), Err(Stale));
    put_when_back(&ledger).await;
    tokio::time::sleep(Duration::from_secs(2)).await;
    assert_eq!(view.standing("a", None), Ok(Standing::Revoked));
    shutdown.cancel();
    following.await.expect("it ends");
}

async fn put_when_back(ledger: &FakeLedger) {
    ledger.is_away.store(false, Ordering::SeqCst);
    put(ledger, revoked("a")).await;
}
