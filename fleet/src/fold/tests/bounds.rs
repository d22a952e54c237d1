//! What a page costs, and how large records are, in a fleet of twenty thousand.

use std::sync::Arc;
use std::time::Duration;

use guest_fleet_ledger::records::agent::AgentRecord;
use guest_fleet_ledger::{Bucket, MemoryLedger, Revision, SharedLedger, Write, bounds};
use prost::Message;
use tokio_util::sync::CancellationToken;

use super::super::reader::{Index, PAGE_LEAVES};
use super::super::run;
use super::settings;
use super::stand_in::StandIn;

const AGENTS: usize = 20_000;

async fn fleet() -> SharedLedger {
    let ledger: SharedLedger = Arc::new(MemoryLedger::new());
    let all: Vec<usize> = (0..AGENTS).collect();
    for chunk in all.chunks(bounds::BATCH) {
        let writes = chunk.iter().map(|at| {
            let id = format!("agent-{at:06}");
            let mut record = AgentRecord::new(&id);
            record.operator_labels =
                (0..8).map(|at| (format!("key-{at}"), "value".to_owned())).collect();
            if *at == AGENTS - 1 {
                record.operator_labels.insert("last".to_owned(), "yes".to_owned());
            }
            Write {
                key: id,
                expected: Revision::ABSENT,
                value: Some(record.encode_to_vec().into()),
            }
        });
        ledger.write(Bucket::Agents, writes.collect()).await.expect("no fault");
    }
    ledger
}

#[tokio::test(start_paused = true)]
async fn a_page_costs_a_few_records_however_many_agents_there_are() {
    let ledger = fleet().await;
    let settings = settings(1);
    let ending = CancellationToken::new();
    let folding = tokio::spawn(run(ledger.clone(), settings, ending.clone()));
    loop {
        tokio::time::sleep(Duration::from_secs(1)).await;
        let index = Index::open(&*ledger).await.expect("no fault");
        if index.is_some_and(|index| index.as_of().is_some()) {
            break;
        }
    }
    ending.cancel();
    folding.await.expect("it ends");

    let reader = StandIn::new(ledger.clone());
    let mut index = Index::open(&*reader).await.expect("no fault").expect("an index");
    assert!(reader.calls() <= 4, "{}", reader.calls());
    let page = index.page(None, 50, |_, _| true).await.expect("no fault");
    assert_eq!(page.rows.len(), 50);
    assert!(reader.calls() <= 10, "{}", reader.calls());
    let before = reader.calls();
    let next = page.next.expect("there is more");
    assert_eq!(next, "agent-000049");
    let page = index.page(Some(&next), 50, |_, _| true).await.expect("no fault");
    assert_eq!(page.rows[0].0, "agent-000050");
    assert!(reader.calls() - before <= 4);

    // A filter that one agent passes: bounded pages, and the agent is found.
    let (mut after, mut found, mut pages) = (None, Vec::new(), 0);
    loop {
        let before = reader.calls();
        let page = index
            .page(after.as_deref(), 50, |_, row| {
                row.agent.as_ref().is_some_and(|agent| agent.labels.get("last").is_some())
            })
            .await
            .expect("no fault");
        assert!(reader.calls() - before <= PAGE_LEAVES as u64);
        pages += 1;
        found.extend(page.rows.into_iter().map(|(id, _)| id));
        after = page.next;
        if after.is_none() {
            break;
        }
    }
    assert_eq!(found, [format!("agent-{:06}", AGENTS - 1)]);
    assert!(pages > 1, "one page does not read everything");

    let mut next: Option<String> = None;
    loop {
        let page = ledger.scan(Bucket::Index, "", next.as_deref(), 1000).await.expect("no fault");
        for record in page.records {
            assert!(record.value.len() < 1 << 20, "{} has {}", record.key, record.value.len());
        }
        next = page.next;
        if next.is_none() {
            break;
        }
    }
}
