//! Archived agents that connect.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use guest_fleet_ledger::records::agent::AgentRecord;
use guest_fleet_ledger::{Bucket, Ledger, MemoryLedger, Revision, Write};
use guest_fleet_server::enroll::agents;
use guest_fleet_server::orders::{OrderSettings, Orders};
use prost::Message;

use crate::gateway::client::Agent;
use crate::gateway::{AGENT, LONG, start};

const MONTH: Duration = Duration::from_secs(31 * 24 * 3600);

async fn record(ledger: &MemoryLedger) -> AgentRecord {
    let found = ledger.get(Bucket::Agents, AGENT).await.unwrap().expect("an agent");
    AgentRecord::decode(found.value).unwrap()
}

#[tokio::test]
async fn an_agent_that_connects_leaves_the_archive_at_once_and_stays_out_while_it_is_connected() {
    let ledger = Arc::new(MemoryLedger::new());
    let old = SystemTime::now() - MONTH;
    let agent = AgentRecord {
        seen: Some(old.into()),
        archived: Some(SystemTime::now().into()),
        ..AgentRecord::new(AGENT)
    };
    let value = Some(agent.encode_to_vec().into());
    let write = Write { key: AGENT.to_owned(), expected: Revision::ABSENT, value };
    ledger.write(Bucket::Agents, vec![write]).await.unwrap();
    let orders = Orders::new(ledger.clone(), OrderSettings::default());
    let running = tokio::spawn(orders.clone().run());
    let gateway = start(orders.clone()).await;
    let _agent = Agent::connect(&gateway).await;
    let counted = async {
        loop {
            let found = record(&ledger).await;
            if found.archived.is_none() {
                return found;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    let found = tokio::time::timeout(LONG, counted).await.expect("it counts again");
    let seen = SystemTime::try_from(found.seen.expect("it was seen")).unwrap();
    assert!(seen > old + MONTH / 2, "it was seen now");
    // An operator, or a gateway that read an old record, archives it though it is connected.
    agents::archive(&*ledger, &AGENT.parse().unwrap(), SystemTime::now()).await.unwrap();
    let counted = async {
        while record(&ledger).await.archived.is_some() {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(LONG, counted).await.expect("it counts again");
    orders.stop();
    gateway.shutdown().await;
    running.await.unwrap();
}
