//! What can come between, one by one: two gateways with streams of one agent, a process that is
//! stopped, an agent that returns when what it was ordered is not wanted any more.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use guest_agent_proto::agent_communication::StreamAgentMessagesResponse;
use guest_agent_proto::agent_controlplane::PluginEventMessage;
use guest_agent_proto::agent_controlplane::plugin_event_message::PluginEventType;
use guest_agent_proto::fleet::AgentReport;
use guest_agent_proto::rpc;
use guest_fleet_core::rollout::Strategy;
use guest_fleet_core::selector::{OwnLabels, Selector};
use guest_fleet_core::time::{Seconds, UtcOnly};
use guest_fleet_core::view::{
    ANY_ARCHITECTURE, Archive, Assignment, Release, ReleaseName, Target, View,
};
use guest_fleet_ledger::records::configuration::{AssignmentRecord, ReleaseRecord, release_key};
use guest_fleet_ledger::records::event::subject;
use guest_fleet_ledger::records::journal::JournalRecord;
use guest_fleet_ledger::{
    Answer, Bucket, Call, Layer, Layered, Ledger, Log, MemoryLedger, Revision, Verb, Write,
};
use guest_fleet_sessions::desk::{Desk, Guarded, OpenSession, Outgoing};
use guest_fleet_sessions::messages;
use prost::Message;
use tokio::time::Instant;

use super::cut::Cut;
use super::laws::is_order;
use super::on_paused_time;
use super::world::{Shape, World};
use crate::configuration::Configuration;
use crate::orders::{Environment, OrderSettings, Orders, UnknownAgents};

const AGENT: &str = "a-1";

/// Longer than a view may be old.
const STOPPED: Duration = Duration::from_secs(6);

/// A clock that goes on while the process is stopped.
#[derive(Clone)]
struct Clock {
    begun: Instant,
    stopped: Arc<AtomicU64>,
    ids: Arc<AtomicU64>,
}

/// A ledger that takes so long with a journal that the process might as well have been stopped.
struct SlowJournals {
    inner: MemoryLedger,
    clock: Clock,
    /// How many writes of journals are still slow.
    slow: AtomicU64,
    /// How many of them are refused after that, and were not carried out.
    refused: AtomicU64,
}

/// A gateway on a ledger.
struct Gateway {
    orders: Arc<Orders>,
    clock: Clock,
}

/// A stream of the agent, as the gateway's session has it.
struct Stream<'a> {
    orders: &'a Orders,
    session: Arc<OpenSession>,
    outgoing: Outgoing,
}

// === impl Clock ===

impl Clock {
    fn new() -> Self {
        Self { begun: Instant::now(), stopped: Arc::default(), ids: Arc::default() }
    }

    /// The process is stopped for some time, and goes on where it was.
    fn stop(&self) {
        let millis = u64::try_from(STOPPED.as_millis()).unwrap_or(0);
        self.stopped.fetch_add(millis, Ordering::Relaxed);
    }
}

impl Environment for Clock {
    fn wall(&self) -> Seconds {
        Seconds(1_700_000_000 + self.since_boot().as_secs())
    }

    fn since_boot(&self) -> Duration {
        self.begun.elapsed() + Duration::from_millis(self.stopped.load(Ordering::Relaxed))
    }

    fn jittered(&self, longest: Duration) -> Duration {
        longest
    }

    fn id(&self) -> String {
        // Gateways start one after the other, at other moments.
        let number = self.ids.fetch_add(1, Ordering::Relaxed);
        format!("{:?}-{number}", self.begun)
    }
}

// === impl SlowJournals ===

impl SlowJournals {
    fn new(inner: MemoryLedger, clock: Clock) -> Self {
        Self { inner, clock, slow: AtomicU64::new(0), refused: AtomicU64::new(0) }
    }
}

impl Layer for SlowJournals {
    fn below(&self) -> &dyn Ledger {
        &self.inner
    }

    async fn pass<A: Answer>(&self, call: Call<'_>, answer: impl Future<Output = A> + Send) -> A {
        let is_of_journal = (call.verb, call.bucket) == (Verb::Write, Some(Bucket::Journal));
        if is_of_journal && self.slow.load(Ordering::Relaxed) > 0 {
            self.slow.fetch_sub(1, Ordering::Relaxed);
            self.clock.stop();
            if self.refused.load(Ordering::Relaxed) > 0 {
                self.refused.fetch_sub(1, Ordering::Relaxed);
                return A::unreachable("the ledger cannot be reached".into());
            }
        }
        answer.await
    }
}

// === impl Gateway ===

impl Gateway {
    fn start(ledger: Arc<dyn Ledger>, clock: Clock) -> Self {
        let settings = OrderSettings {
            artifacts: Some("https://fleet".to_owned()),
            environment: Arc::new(clock.clone()),
            zones: Arc::new(UtcOnly),
            unknown_agents: UnknownAgents::TakenIn,
            ..OrderSettings::default()
        };
        let orders = Orders::new(ledger, settings);
        tokio::spawn(orders.clone().run());
        Self { orders, clock }
    }

    async fn on(ledger: &MemoryLedger) -> Self {
        // So that no two have one clock.
        pass(1).await;
        Self::start(Arc::new(ledger.clone()), Clock::new())
    }

    /// One on a ledger whose journals can be made slow.
    async fn on_slow_journals() -> (Arc<Layered<SlowJournals>>, Self) {
        let inner = MemoryLedger::new();
        assign(&inner).await;
        let clock = Clock::new();
        let ledger = Arc::new(Layered(SlowJournals::new(inner, clock.clone())));
        (ledger.clone(), Self::start(ledger, clock))
    }

    async fn connect(&self, stream: u64) -> Stream<'_> {
        Stream::open(&self.orders, stream).await
    }
}

// === impl Stream ===

impl<'a> Stream<'a> {
    async fn open(orders: &'a Orders, stream: u64) -> Self {
        let (session, outgoing) = OpenSession::unserved(AGENT, stream);
        let session = Arc::new(session);
        orders.opened(session.clone()).await.expect("the stream is opened");
        Self { orders, session, outgoing }
    }

    /// Says that nothing is there.
    async fn reports(&self) {
        let report = AgentReport {
            architecture: "amd64".to_owned(),
            capabilities: vec!["generations".to_owned()],
            ..AgentReport::default()
        };
        let body = messages::pack(messages::AGENT_REPORT, &report);
        let id = format!("report-{}", self.session.stream);
        let stream = Some(self.session.stream);
        self.orders.received(AGENT, stream, &id, &body).await.expect("it is taken");
    }

    async fn tells(&self, id: &str) -> Result<(), rpc::Status> {
        let event = PluginEventMessage {
            plugin_name: "p".to_owned(),
            revision_id: "1".to_owned(),
            event_type: PluginEventType::PluginStarted.into(),
            ..PluginEventMessage::default()
        };
        let body = messages::pack(messages::PLUGIN_EVENT, &event);
        self.orders.received(AGENT, Some(self.session.stream), id, &body).await
    }

    /// Orders that wait for room in the transport.
    fn queued(&self) -> Vec<Guarded> {
        let all = std::iter::from_fn(|| self.outgoing.next());
        all.filter(|guarded| is_order(&guarded.frame)).collect()
    }

    /// Orders that leave now.
    fn sent(&self) -> Vec<StreamAgentMessagesResponse> {
        let agreed = self.queued().into_iter().filter(|guarded| (guarded.guard)());
        agreed.map(|guarded| guarded.frame).collect()
    }
}

async fn pass(seconds: u64) {
    tokio::time::sleep(Duration::from_secs(seconds)).await;
}

async fn put(ledger: &MemoryLedger, key: &str, value: Option<Vec<u8>>) {
    let found = ledger.get(Bucket::Configuration, key).await.expect("it is read");
    let expected = found.map_or(Revision::ABSENT, |record| record.revision);
    let write = Write { key: key.to_owned(), expected, value: value.map(Bytes::from) };
    ledger.write(Bucket::Configuration, vec![write]).await.expect("it is written");
}

/// Every agent is to have a plugin.
async fn assign(ledger: &MemoryLedger) {
    let name = ReleaseName { plugin: "p".to_owned(), revision: "1".to_owned() };
    let archive = Archive { digest: "ab".repeat(32), url: String::new() };
    let archives = [(ANY_ARCHITECTURE.to_owned(), archive)].into();
    let release = Release { archives, order: Vec::new() };
    put(ledger, &release_key(&name), Some(ReleaseRecord::of(&name, &release).encode_to_vec()))
        .await;
    let assignment = Assignment {
        plugin: "p".to_owned(),
        target: Target::Revision("1".to_owned()),
        selector: Selector::all(),
        own_labels: OwnLabels::Ignored,
        priority: 0,
        attempt: 0,
        strategy: Strategy::default(),
        declared: None,
    };
    let value = AssignmentRecord::of(&assignment).encode_to_vec();
    put(ledger, "assignment/of-p", Some(value)).await;
}

async fn withdraw(ledger: &MemoryLedger) {
    put(ledger, "assignment/of-p", None).await;
}

async fn log(ledger: &MemoryLedger) -> Vec<String> {
    let read = ledger.read(Log::Events, &subject(AGENT, "p"), 0, 100).await;
    read.expect("it is read").into_iter().map(|entry| entry.id).collect()
}

/// An order waits for room in the transport. Meanwhile its gateway does not reach the configuration, which withdraws the
/// order, for longer than a view may be old: only the guard of the view's age keeps the order from the agent.
pub(super) async fn an_order_waits_while_its_view_grows_old() -> Result<(), String> {
    let ledger = MemoryLedger::new();
    assign(&ledger).await;
    let assigned = Configuration::load(&ledger).await.expect("the configuration is read");
    let shape = Shape { processes: 1, folds: false, owners: false, forgets: false, beside: None };
    let world = World::of(0, ledger.clone(), shape);
    world.laws.configures(assigned.view());
    world.start();
    let (_, gateway) = world.any_gateway();
    let stream = Stream::open(&gateway.orders, world.stream()).await;
    world.laws.fenced(AGENT, stream.session.stream);
    stream.reports().await;
    pass(1).await;
    gateway.ledger.cut(Cut::Configuration);
    world.laws.configures(&View::default());
    withdraw(&ledger).await;
    world.laws.configured();
    tokio::time::sleep(STOPPED).await;
    let waiting = stream.queued();
    assert!(!waiting.is_empty(), "no order waits");
    for order in waiting.into_iter().filter(|order| (order.guard)()) {
        world.laws.handed_over(AGENT, stream.session.stream, &order.frame);
    }
    world.end();
    world.laws.broken().map_or(Ok(()), Err)
}

#[test]
fn an_order_does_not_leave_when_its_view_grew_old() {
    assert_eq!(on_paused_time(an_order_waits_while_its_view_grows_old()), Ok(()));
}

#[tokio::test(start_paused = true)]
async fn two_gateways_with_streams_of_one_agent_record_no_event_twice() {
    let ledger = MemoryLedger::new();
    let (first, second) = (Gateway::on(&ledger).await, Gateway::on(&ledger).await);
    let old = first.connect(1).await;
    old.tells("e1").await.expect("it is recorded");
    let new = second.connect(2).await;
    new.tells("e2").await.expect("it is recorded");
    // It was under way on the former stream, and comes again.
    old.tells("e1").await.expect("it is recorded");
    new.tells("e1").await.expect("it is recorded");
    assert_eq!(log(&ledger).await, ["e1", "e2"]);
    // What is new on the former stream does not go behind what it does not know.
    old.tells("e3").await.expect_err("another session took over");
    assert!(old.outgoing.take_end().is_some(), "the former stream goes on");
    new.tells("e3").await.expect("it is recorded");
    assert_eq!(log(&ledger).await, ["e1", "e2", "e3"]);
}

#[tokio::test(start_paused = true)]
async fn an_agent_that_was_killed_may_send_several_events_again() {
    let ledger = MemoryLedger::new();
    let gateway = Gateway::on(&ledger).await;
    let ids: Vec<String> = (0..20).map(|number| format!("e{number}")).collect();
    let stream = gateway.connect(1).await;
    for id in &ids {
        stream.tells(id).await.expect("it is recorded");
    }
    let again = gateway.connect(2).await;
    for id in &ids {
        again.tells(id).await.expect("it is recorded");
    }
    again.tells("new").await.expect("it is recorded");
    let expected: Vec<String> = ids.into_iter().chain(["new".to_owned()]).collect();
    assert_eq!(log(&ledger).await, expected);
}

#[tokio::test(start_paused = true)]
async fn an_order_of_a_process_that_was_stopped_before_it_sent_it_does_not_leave() {
    let ledger = MemoryLedger::new();
    assign(&ledger).await;
    let gateway = Gateway::on(&ledger).await;
    let stream = gateway.connect(1).await;
    stream.reports().await;
    pass(1).await;
    let mut queued = stream.queued();
    let order = queued.pop().expect("an order waits");
    assert!((order.guard)(), "its view is young");
    gateway.clock.stop();
    assert!(!(order.guard)(), "its view is old");
    // With a view that is younger it is sent, as it was recorded.
    pass(5).await;
    let again = stream.sent();
    assert!(again.contains(&order.frame), "{again:?}");
}

#[tokio::test(start_paused = true)]
async fn an_order_of_a_process_that_was_stopped_while_it_recorded_it_does_not_wait_to_leave() {
    let (ledger, gateway) = Gateway::on_slow_journals().await;
    let stream = gateway.connect(1).await;
    ledger.slow.store(1, Ordering::Relaxed);
    stream.reports().await;
    tokio::time::sleep(Duration::from_millis(100)).await;
    assert_eq!(ledger.slow.load(Ordering::Relaxed), 0, "no order was recorded");
    assert!(stream.queued().is_empty(), "the view grew old meanwhile");
    pass(5).await;
    assert!(!stream.sent().is_empty(), "it leaves when the view is younger");
}

#[tokio::test(start_paused = true)]
async fn an_order_whose_write_failed_is_not_recorded_on_a_view_that_grew_old() {
    let (ledger, gateway) = Gateway::on_slow_journals().await;
    let stream = gateway.connect(1).await;
    ledger.slow.store(1, Ordering::Relaxed);
    ledger.refused.store(1, Ordering::Relaxed);
    stream.reports().await;
    // Longer than until a write is made again, and shorter than until the view is renewed.
    tokio::time::sleep(Duration::from_millis(100)).await;
    assert_eq!(ledger.slow.load(Ordering::Relaxed), 0, "no order was to be recorded");
    let ordered = |value: Bytes| {
        let journal = JournalRecord::decode(value).expect("a journal");
        journal.plugins.into_values().filter_map(|entry| entry.order).count()
    };
    let recorded = ledger.inner.peek(Bucket::Journal, AGENT).map_or(0, ordered);
    assert_eq!(recorded, 0, "it was recorded on a view that grew old");
    pass(5).await;
    assert!(!stream.sent().is_empty(), "it is recorded and leaves when the view is younger");
}

#[tokio::test(start_paused = true)]
async fn an_agent_that_returns_after_a_withdrawal_is_not_given_the_order() {
    let ledger = MemoryLedger::new();
    assign(&ledger).await;
    let (first, second) = (Gateway::on(&ledger).await, Gateway::on(&ledger).await);
    let stream = first.connect(1).await;
    stream.reports().await;
    pass(1).await;
    let order = stream.queued().pop().expect("an order waits");
    first.orders.closed(&stream.session);
    withdraw(&ledger).await;
    pass(5).await;
    assert!(!(order.guard)(), "it is not wanted any more");
    let returned = second.connect(2).await;
    returned.reports().await;
    pass(60).await;
    assert!(returned.queued().is_empty(), "the order was withdrawn");
    // Wanted again, it is the same order.
    assign(&ledger).await;
    pass(5).await;
    let sent = returned.sent();
    assert!(sent.contains(&order.frame), "{sent:?}");
}
