//! Events of agents: recorded, then acknowledged.

use std::sync::Arc;

use guest_fleet_ledger::{Faults, Ledger, Log, MemoryLedger};
use guest_fleet_server::orders::{OrderSettings, Orders};
use tonic::Code;

use crate::gateway::client::{Agent, Down, event};
use crate::gateway::start;

#[tokio::test]
async fn an_event_that_cannot_be_recorded_is_asked_for_again() {
    let ledger = MemoryLedger::new();
    let orders = Orders::new(Arc::new(ledger.clone()), OrderSettings::default());
    let gateway = start(orders).await;
    let mut agent = Agent::connect(&gateway).await;
    // It is asked for its plugins when its records were read.
    agent.body().await;
    ledger.set_faults(Faults { unavailable: 1.0, ..Faults::default() });
    agent.send_body("1", event("a")).await;
    assert_eq!(answer_to(&mut agent, "1").await, Some(i32::from(Code::Unavailable)));
    ledger.set_faults(Faults::default());
    agent.send_body("1", event("a")).await;
    assert_eq!(answer_to(&mut agent, "1").await, None);
    // It comes again when its acknowledgement was lost.
    agent.send_body("1", event("a")).await;
    assert_eq!(answer_to(&mut agent, "1").await, None);
    assert_eq!(ledger.read(Log::Events, "", 0, 10).await.unwrap().len(), 1);
}

/// The status in the answer to a message. What the gateway asks meanwhile is not answered.
async fn answer_to(agent: &mut Agent, id: &str) -> Option<i32> {
    loop {
        let frame = agent.next().await.unwrap().expect("the stream is open");
        if let Some(Down::MessageResponse(response)) = frame.r#type
            && frame.message_id == id
        {
            return response.status.map(|status| status.code);
        }
    }
}
