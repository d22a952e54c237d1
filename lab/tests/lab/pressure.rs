//! Agents that send too much, and a ledger that is slower than what comes.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use guest_agent_proto::agent_communication::MessageBody;
use guest_agent_proto::rpc;
use guest_agent_serve_kit::listen::Listen;
use guest_fleet_sessions::admission::Anyone;
use guest_fleet_sessions::desk::{Desk, OpenSession};
use guest_fleet_sessions::{Gateway, Limits, RateLimits};
use tokio::sync::{Notify, Semaphore};
use tonic::{Code, Status};

use crate::client::{Agent, CHANNEL, LONG, channel, event, registration};

/// A ledger that takes as many messages as a test lets it.
struct Slow {
    may: Semaphore,
    waiting: Mutex<BTreeSet<String>>,
    changed: Notify,
}

impl Slow {
    fn new(may: usize) -> Arc<Self> {
        let waiting = Mutex::default();
        Arc::new(Self { may: Semaphore::new(may), waiting, changed: Notify::new() })
    }

    async fn waits(&self, number: usize) {
        let wait = async {
            loop {
                let changed = self.changed.notified();
                if self.waiting.lock().unwrap().len() == number {
                    return;
                }
                changed.await;
            }
        };
        tokio::time::timeout(LONG, wait).await.expect("they wait");
    }
}

#[async_trait]
impl Desk for Slow {
    async fn opened(&self, _: Arc<OpenSession>) -> Result<(), Status> {
        Ok(())
    }

    async fn received(
        &self,
        resource: &str,
        _: Option<u64>,
        _: &str,
        _: &MessageBody,
    ) -> Result<(), rpc::Status> {
        self.waiting.lock().unwrap().insert(resource.to_owned());
        self.changed.notify_waiters();
        self.may.acquire().await.unwrap().forget();
        self.waiting.lock().unwrap().remove(resource);
        Ok(())
    }

    async fn answered(&self, _: &OpenSession, _: &str, _: Option<&rpc::Status>) {}

    fn closed(&self, _: &OpenSession) {}
}

async fn gateway(desk: Arc<Slow>, limits: Limits, rates: RateLimits) -> Gateway {
    Gateway::builder(desk, Arc::new(Anyone))
        .listen(Listen::Tcp("127.0.0.1:0".parse().unwrap()))
        .limits(limits)
        .rate_limits(rates)
        .start()
        .await
        .unwrap()
}

async fn connect(gateway: &Gateway, resource: &str) -> Agent {
    let metadata = [
        ("agent-communication-resource-id", resource),
        ("agent-communication-channel-id", CHANNEL),
    ];
    let mut agent = Agent::open(channel(gateway).await, &metadata).await.unwrap();
    agent.send(registration("r", resource, CHANNEL)).await;
    assert_eq!(agent.acknowledgement().await, ("r".to_owned(), None));
    agent
}

fn code(status: Option<&rpc::Status>) -> i32 {
    status.map_or(0, |status| status.code)
}

#[tokio::test]
async fn messages_that_the_ledger_does_not_keep_up_with_are_refused_and_taken_later() {
    let desk = Slow::new(0);
    let limits = Limits { waiting_messages: 2, ..Limits::default() };
    let server = gateway(desk.clone(), limits, RateLimits::default()).await;
    let mut first = connect(&server, "vm-1").await;
    let mut second = connect(&server, "vm-2").await;
    let mut third = connect(&server, "vm-3").await;
    first.send_body("1", event("1")).await;
    second.send_body("2", event("2")).await;
    desk.waits(2).await;
    third.send_body("3", event("3")).await;
    let (id, status) = third.acknowledgement().await;
    let status = status.expect("it is refused");
    assert_eq!((id.as_str(), status.code), ("3", i32::from(Code::ResourceExhausted)));
    assert!(status.message.contains("slower"), "{status:?}");
    // With room again the same message is taken.
    desk.may.add_permits(3);
    assert_eq!(first.acknowledgement().await, ("1".to_owned(), None));
    assert_eq!(second.acknowledgement().await, ("2".to_owned(), None));
    third.send_body("3", event("3")).await;
    assert_eq!(third.acknowledgement().await, ("3".to_owned(), None));
    server.shutdown().await;
}

#[tokio::test]
async fn the_bytes_that_wait_are_bounded_too() {
    let desk = Slow::new(0);
    let limits = Limits { waiting_bytes: 64 << 10, ..Limits::default() };
    let server = gateway(desk.clone(), limits, RateLimits::default()).await;
    let mut large = connect(&server, "vm-1").await;
    let mut small = connect(&server, "vm-2").await;
    // Larger than all of the room: it waits alone.
    large.send_body("1", event(&"x".repeat(1 << 20))).await;
    desk.waits(1).await;
    small.send_body("2", event("2")).await;
    assert_eq!(code(small.acknowledgement().await.1.as_ref()), i32::from(Code::ResourceExhausted));
    desk.may.add_permits(2);
    assert_eq!(large.acknowledgement().await, ("1".to_owned(), None));
    small.send_body("2", event("2")).await;
    assert_eq!(small.acknowledgement().await, ("2".to_owned(), None));
    server.shutdown().await;
}

#[tokio::test]
async fn an_agent_that_floods_is_refused_and_another_one_is_not_slowed() {
    const FLOOD: usize = 2000;
    let desk = Slow::new(1_000_000);
    let rates = RateLimits { messages_per_minute: Some(10), bytes_per_minute: None };
    let server = gateway(desk, Limits::default(), rates).await;
    let mut flooding = connect(&server, "vm-1").await;
    let mut other = connect(&server, "vm-2").await;
    let refused = Arc::new(Mutex::new(0_usize));
    let counted = refused.clone();
    let flood = tokio::spawn(async move {
        let mut taken = 0;
        for number in 0..FLOOD {
            flooding.send_body(&number.to_string(), event("x")).await;
            let status = flooding.acknowledgement().await.1;
            match code(status.as_ref()) {
                0 => taken += 1,
                code => {
                    assert_eq!(code, i32::from(Code::ResourceExhausted));
                    *counted.lock().unwrap() += 1;
                    // What is asked for is twice the limit at most, and what came back meanwhile.
                    assert!((20..60).contains(&taken), "{taken}");
                }
            }
        }
    });
    let begins = async {
        while *refused.lock().unwrap() == 0 {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(LONG, begins).await.expect("the flood is refused");
    // The flood gets an answer each 50 ms: the other one has all of its own while few of them come.
    for number in 0..10 {
        let before = *refused.lock().unwrap();
        let id = format!("other-{number}");
        other.send_body(&id, event("x")).await;
        assert_eq!(other.acknowledgement().await, (id, None));
        let meanwhile = *refused.lock().unwrap() - before;
        assert!(meanwhile < FLOOD / 10, "{meanwhile} answers of the flood came before one");
    }
    assert!(!flood.is_finished(), "a flood is slow");
    flood.abort();
    server.shutdown().await;
}

#[tokio::test]
async fn who_opens_another_stream_has_not_more_to_send_for_it() {
    let desk = Slow::new(1_000_000);
    let rates = RateLimits { messages_per_minute: Some(1), bytes_per_minute: None };
    let server = gateway(desk, Limits::default(), rates).await;
    let mut codes = Vec::new();
    for number in 0..4 {
        let mut agent = connect(&server, "vm-1").await;
        agent.send_body(&number.to_string(), event("x")).await;
        codes.push(code(agent.acknowledgement().await.1.as_ref()));
    }
    let exhausted = i32::from(Code::ResourceExhausted);
    assert_eq!(codes, [0, 0, exhausted, exhausted]);
    server.shutdown().await;
}
