use bytes::Bytes;
use guest_fleet_ledger::{Faults, MemoryLedger, Revision, Write};

use super::*;

/// Nothing can be read or written.
const AWAY: Faults =
    Faults { stale: 0.0, ambiguous: 0.0, unavailable: 1.0, latency: Duration::ZERO };

async fn write(ledger: &MemoryLedger, key: &str, value: Option<Vec<u8>>) {
    let found = ledger.get(Bucket::Agents, key).await.expect("read");
    let expected = found.map_or(Revision::ABSENT, |record| record.revision);
    let write = Write { key: key.to_owned(), expected, value: value.map(Bytes::from) };
    ledger.write(Bucket::Agents, vec![write]).await.expect("written");
    ledger.wake(Bucket::Agents);
}

async fn put(ledger: &MemoryLedger, record: AgentRecord) {
    use prost::Message;

    write(ledger, &record.id.clone(), Some(record.encode_to_vec())).await;
}

fn revoked(id: &str) -> AgentRecord {
    AgentRecord { revoked: Some(prost_types::Timestamp::default()), ..AgentRecord::new(id) }
}

#[tokio::test(start_paused = true)]
async fn the_view_follows_the_ledger() {
    let (ledger, view) = (MemoryLedger::new(), Revocations::default());
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
    assert_eq!(
        view.standing("d", None),
        Ok(Standing::Unreadable),
        "a damaged record admits nobody"
    );
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
    let (ledger, view) = (Arc::new(MemoryLedger::new()), Revocations::default());
    let shutdown = CancellationToken::new();
    let following = tokio::spawn(view.clone().follow(ledger.clone(), shutdown.clone()));
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert_eq!(view.standing("a", None), Ok(Standing::Good));
    ledger.set_faults(AWAY);
    tokio::time::sleep(STALE + Duration::from_secs(2)).await;
    assert_eq!(view.standing("a", None), Err(Stale));
    put_when_back(&ledger).await;
    tokio::time::sleep(Duration::from_secs(2)).await;
    assert_eq!(view.standing("a", None), Ok(Standing::Revoked));
    shutdown.cancel();
    following.await.expect("it ends");
}

async fn put_when_back(ledger: &MemoryLedger) {
    ledger.set_faults(Faults::default());
    put(ledger, revoked("a")).await;
}
