//! An agent that lacks what it was ordered, and one that knows more than the ledger.

use std::collections::BTreeSet;

use guest_agent_proto::agent_communication::stream_agent_messages_response::Type;
use guest_agent_proto::agent_controlplane::current_plugin_states::DaemonPluginState;
use guest_agent_proto::agent_controlplane::{AgentInfo, CurrentPluginStates};
use guest_agent_proto::fleet::OwnersChange;
use guest_agent_proto::fleet::owners_change::Kind;
use guest_fleet_ledger::records::agent::{AgentRecord, Boot};
use guest_fleet_ledger::records::repair::DriftPart;
use guest_fleet_sessions::desk::Outgoing;

use super::*;

/// A gateway, and an agent that is done with revision 1.
struct Scene {
    ledger: MemoryLedger,
    gateway: Arc<Orders>,
    session: Arc<OpenSession>,
    frames: Outgoing,
    order: OrderRecord,
    stream: u64,
}

impl Scene {
    async fn done() -> Self {
        let ledger = MemoryLedger::new();
        wish(&ledger, "1").await;
        let gateway = gateway(&ledger);
        tokio::spawn(gateway.clone().run());
        let (session, frames) = Self::connected(&gateway, 1).await;
        report(&gateway, &session).await;
        let order = next(&ledger, 0).await;
        let mut scene = Self { ledger, gateway, session, frames, order, stream: 1 };
        scene.carries_out().await;
        scene
    }

    async fn connected(gateway: &Orders, stream: u64) -> (Arc<OpenSession>, Outgoing) {
        let (session, frames) = OpenSession::unserved(AGENT, stream);
        let session = Arc::new(session);
        gateway.opened(session.clone()).await.expect("it is opened");
        (session, frames)
    }

    /// The agent comes back on another stream.
    async fn comes_back(&mut self) {
        self.stream += 1;
        self.gateway.closed(&self.session);
        (self.session, self.frames) = Self::connected(&self.gateway, self.stream).await;
    }

    /// The agent carries out its newest order, and says so.
    async fn carries_out(&mut self) {
        self.order = newest(&self.ledger).await.expect("an order");
        self.gateway.answered(&self.session, &self.order.message_id, None).await;
        self.reports(vec![has(&self.order)]).await;
        assert_eq!(newest(&self.ledger).await.map(|order| order.state), Some(DONE));
    }

    async fn reports(&self, plugins: Vec<PluginReport>) {
        report_of(&self.gateway, &self.session, plugins).await;
    }

    /// Answers what was asked last with a list of these plugins and revisions; whether anything was asked.
    async fn lists(&self, plugins: &[(&str, &str)]) -> bool {
        let mut asked = None;
        while let Some(guarded) = self.frames.next() {
            let Some(Type::MessageBody(body)) = guarded.frame.r#type else { continue };
            if messages::message_type(&body) == messages::LIST_PLUGIN_STATES {
                asked = body.labels.get(messages::REQUEST_ID).cloned();
            }
        }
        let Some(request) = asked else { return false };
        let states = plugins.iter().map(|(name, revision)| DaemonPluginState {
            name: (*name).to_owned(),
            current_revision_id: (*revision).to_owned(),
            ..DaemonPluginState::default()
        });
        let states = CurrentPluginStates {
            daemon_plugin_states: states.collect(),
            ..CurrentPluginStates::default()
        };
        let mut body = messages::pack(messages::CURRENT_PLUGIN_STATES, &states);
        body.labels.insert(messages::REQUEST_ID.to_owned(), request);
        let stream = Some(self.session.stream);
        self.gateway.received(AGENT, stream, "list", &body).await.expect("it is taken");
        true
    }

    async fn drift(&self) -> Option<DriftPart> {
        newest(&self.ledger).await?.drift
    }

    /// The fleet lets the newest order be given again.
    async fn lets(&self) {
        let leave = [(AGENT.to_owned(), self.order.generation)].into();
        self.put_repair(Repair { leave, ..Repair::default() }).await;
    }

    async fn put_repair(&self, repair: Repair) {
        let record = RepairRecord::of(&repair).encode_to_vec();
        put(&self.ledger, &repair_key("all"), record).await;
    }

    async fn needs(&self) -> GatewayRecord {
        own_record(&self.ledger, &self.gateway).await
    }
}

async fn seconds(seconds: u64) {
    tokio::time::sleep(Duration::from_secs(seconds)).await;
}

#[tokio::test(start_paused = true)]
async fn an_agent_that_lost_everything_is_ordered_again_after_two_looks_and_with_leave() {
    let mut scene = Scene::done().await;
    scene.comes_back().await;
    scene.reports(Vec::new()).await;
    assert!(scene.lists(&[]).await, "it is asked when it comes");
    seconds(59).await;
    assert!(!scene.lists(&[]).await, "nothing is asked before a minute is over");
    assert_eq!(scene.drift().await, None);
    seconds(2).await;
    // An answer that says what the report said tells that no other report is on its way.
    assert!(scene.lists(&[]).await, "it is asked once more");
    let drift = scene.drift().await.expect("it drifted");
    assert_eq!(drift.lack, 1, "its generations are gone");
    seconds(5).await;
    assert_eq!(scene.needs().await.drifted, ["all"]);
    seconds(600).await;
    assert_eq!(newest(&scene.ledger).await.expect("an order").generation, scene.order.generation);

    scene.lets().await;
    let again = next(&scene.ledger, scene.order.generation).await;
    assert_eq!((again.revision.as_str(), again.drift.is_none()), ("1", true));
    assert_ne!(again.message_id, scene.order.message_id);
    scene.carries_out().await;
    seconds(5).await;
    assert_eq!(scene.needs().await.drifted, [""; 0]);
}

#[tokio::test(start_paused = true)]
async fn what_comes_back_before_the_second_look_has_not_drifted() {
    let mut scene = Scene::done().await;
    scene.comes_back().await;
    let lacks = || vec![PluginReport { revision: "0".to_owned(), ..has(&scene.order) }];
    // Two reports that lack it, and one between them that does not.
    scene.reports(lacks()).await;
    seconds(40).await;
    scene.reports(vec![has(&scene.order)]).await;
    scene.reports(lacks()).await;
    seconds(40).await;
    scene.reports(lacks()).await;
    assert_eq!(scene.drift().await, None);
    seconds(21).await;
    // A list that shows what the report does not is older or newer: a report will tell.
    assert!(scene.lists(&[("monitor", "1")]).await);
    assert_eq!(scene.drift().await, None);
    scene.reports(lacks()).await;
    seconds(61).await;
    scene.reports(lacks()).await;
    assert_eq!(scene.drift().await.map(|drift| drift.lack), Some(2));
    // It ends with its cause.
    scene.reports(vec![has(&scene.order)]).await;
    assert_eq!(scene.drift().await, None);
}

#[tokio::test(start_paused = true)]
async fn what_a_person_on_the_machine_did_is_shown_at_once_and_asks_for_nothing() {
    let scene = Scene::done().await;
    let change = |kind: Kind| OwnersChange { kind: kind.into(), by: "root".to_owned(), at: None };
    let stopped = PluginReport { owners_changes: vec![change(Kind::Stopped)], ..has(&scene.order) };
    scene.reports(vec![stopped]).await;
    let drift = scene.drift().await.expect("it is recorded");
    assert_eq!((drift.lack, drift.change, drift.by.as_str()), (3, 5, "root"));
    let removed = PluginReport {
        name: "monitor".to_owned(),
        generation: scene.order.generation,
        owners_changes: vec![change(Kind::Stopped), change(Kind::Removed)],
        ..PluginReport::default()
    };
    scene.reports(vec![removed]).await;
    assert_eq!(scene.drift().await.map(|drift| drift.change), Some(1));
    seconds(5).await;
    assert_eq!(scene.needs().await.drifted, [""; 0]);
    // It started it, or installed it, again.
    scene.reports(vec![has(&scene.order)]).await;
    assert_eq!(scene.drift().await, None);
}

#[tokio::test(start_paused = true)]
async fn a_report_without_room_for_a_plugin_says_nothing_of_it() {
    let mut scene = Scene::done().await;
    scene.comes_back().await;
    for _ in 0..3 {
        let report = AgentReport {
            architecture: "amd64".to_owned(),
            capabilities: vec!["generations".to_owned()],
            plugins_left_out: 1,
            ..AgentReport::default()
        };
        let body = messages::pack(messages::AGENT_REPORT, &report);
        let stream = Some(scene.session.stream);
        scene.gateway.received(AGENT, stream, "report", &body).await.expect("it is taken");
        seconds(100).await;
    }
    assert_eq!(scene.drift().await, None);
}

#[tokio::test(start_paused = true)]
async fn an_order_that_the_agent_had_and_forgot_is_ordered_again_as_well() {
    let mut scene = Scene::done().await;
    wish(&scene.ledger, "2").await;
    let order = next(&scene.ledger, scene.order.generation).await;
    scene.gateway.answered(&scene.session, &order.message_id, None).await;
    // On the stream on which it was given, a report may be from before.
    for _ in 0..3 {
        scene.reports(vec![has(&scene.order)]).await;
        seconds(61).await;
    }
    assert_eq!(scene.drift().await, None);
    scene.comes_back().await;
    for _ in 0..2 {
        scene.reports(vec![has(&scene.order)]).await;
        seconds(61).await;
    }
    assert_eq!(scene.drift().await.map(|drift| drift.lack), Some(1));
    scene.order = order;
    scene.lets().await;
    let again = next(&scene.ledger, scene.order.generation).await;
    assert_eq!(again.revision, "2");
}

/// Puts the record of a bucket back to what it was.
async fn restore(ledger: &MemoryLedger, before: &[u8]) {
    let found = ledger.get(Bucket::Journal, AGENT).await.expect("it is read").expect("a journal");
    let value = Some(before.to_vec().into());
    let write = Write { key: AGENT.to_owned(), expected: found.revision, value };
    ledger.write(Bucket::Journal, vec![write]).await.expect("it is written");
}

/// An agent that is enrolled since long before its orders.
async fn enrolled_long_ago(ledger: &MemoryLedger) {
    let found = ledger.get(Bucket::Agents, AGENT).await.expect("it is read").expect("an agent");
    let mut record: AgentRecord = records::decode(AGENT, &found.value).expect("it decodes");
    record.since = Some(std::time::UNIX_EPOCH.into());
    let value = Some(record.encode_to_vec().into());
    let write = Write { key: AGENT.to_owned(), expected: found.revision, value };
    ledger.write(Bucket::Agents, vec![write]).await.expect("it is written");
}

#[tokio::test(start_paused = true)]
async fn nothing_is_ordered_where_the_ledger_went_back_until_a_person_accepts_that() {
    let mut scene = Scene::done().await;
    enrolled_long_ago(&scene.ledger).await;
    let yesterday = scene.ledger.get(Bucket::Journal, AGENT).await.expect("it is read");
    let yesterday = yesterday.expect("a journal").value;
    wish(&scene.ledger, "2").await;
    next(&scene.ledger, scene.order.generation).await;
    scene.carries_out().await;
    let today = scene.order.clone();
    scene.gateway.stop();
    restore(&scene.ledger, &yesterday).await;
    wish(&scene.ledger, "1").await;

    scene.gateway = gateway(&scene.ledger);
    tokio::spawn(scene.gateway.clone().run());
    scene.comes_back().await;
    scene.reports(vec![has(&today)]).await;
    seconds(300).await;
    let old = newest(&scene.ledger).await.expect("yesterday's order");
    assert_eq!((old.revision.as_str(), old.drift), ("1", None), "a later order is no drift");
    let needs = scene.needs().await;
    let [unknown] = needs.unknown.as_slice() else { panic!("{needs:?}") };
    assert_eq!((unknown.assignment.as_str(), unknown.agent.as_str()), ("all", AGENT));
    assert_eq!((unknown.generation, needs.drifted.len()), (today.generation, 0));

    scene.put_repair(Repair { accepted: today.generation, ..Repair::default() }).await;
    let ordered = next(&scene.ledger, today.generation).await;
    assert_eq!(ordered.revision, "1");
    seconds(5).await;
    assert_eq!(scene.needs().await.unknown, []);
}

#[tokio::test(start_paused = true)]
async fn generations_of_another_fleet_keep_nothing_back() {
    let ledger = MemoryLedger::new();
    wish(&ledger, "1").await;
    let gateway = gateway(&ledger);
    tokio::spawn(gateway.clone().run());
    let (session, _frames) = Scene::connected(&gateway, 1).await;
    let foreign = PluginReport {
        name: "monitor".to_owned(),
        revision: "7".to_owned(),
        generation: 1_000_000,
        ..PluginReport::default()
    };
    report_of(&gateway, &session, vec![foreign]).await;
    assert_eq!(next(&ledger, 1_000_000).await.revision, "1");
}

#[tokio::test(start_paused = true)]
async fn an_agent_that_sent_reports_before_and_sends_none_now_is_looked_at_and_ordered() {
    let mut scene = Scene::done().await;
    let found = scene.ledger.get(Bucket::Agents, AGENT).await.expect("it is read");
    let found = found.expect("an agent");
    let mut record: AgentRecord = records::decode(AGENT, &found.value).expect("it decodes");
    record.boots = vec![Boot { id: "b".to_owned(), seen: None }];
    let value = Some(record.encode_to_vec().into());
    let write = Write { key: AGENT.to_owned(), expected: found.revision, value };
    scene.ledger.write(Bucket::Agents, vec![write]).await.expect("it is written");
    scene.comes_back().await;
    let info = AgentInfo { architecture: "amd64".to_owned(), ..AgentInfo::default() };
    let body = messages::pack(messages::AGENT_INFO, &info);
    let stream = Some(scene.session.stream);
    scene.gateway.received(AGENT, stream, "info", &body).await.expect("it is taken");
    let mut asked = 0;
    for _ in 0..300 {
        asked += u32::from(scene.lists(&[]).await);
        seconds(1).await;
    }
    assert!((2..=4).contains(&asked), "{asked}");
    assert_eq!(scene.drift().await.map(|drift| drift.lack), Some(2));
    wish(&scene.ledger, "2").await;
    assert_eq!(next(&scene.ledger, scene.order.generation).await.revision, "2");
}

#[tokio::test(start_paused = true)]
async fn a_long_text_about_a_person_is_one_drift_however_often_it_is_reported() {
    let scene = Scene::done().await;
    let mut revisions = BTreeSet::new();
    for _ in 0..3 {
        let change = OwnersChange { kind: Kind::Stopped.into(), by: "x".repeat(400), at: None };
        let stopped = PluginReport { owners_changes: vec![change], ..has(&scene.order) };
        scene.reports(vec![stopped]).await;
        seconds(7).await;
        let found = scene.ledger.get(Bucket::Journal, AGENT).await.expect("it is read");
        revisions.insert(found.expect("a journal").revision);
    }
    assert_eq!(revisions.len(), 1, "{revisions:?}");
}

#[tokio::test(start_paused = true)]
async fn what_a_person_stopped_is_not_done_by_a_retry_either() {
    let scene = Scene::done().await;
    let change = OwnersChange { kind: Kind::Stopped.into(), by: "root".to_owned(), at: None };
    let stopped = PluginReport { owners_changes: vec![change], ..has(&scene.order) };
    scene.reports(vec![stopped]).await;
    let key = "assignment/all";
    let found = scene.ledger.get(Bucket::Configuration, key).await.expect("it is read");
    let mut record: AssignmentRecord =
        records::decode(key, &found.expect("it is there").value).expect("it decodes");
    record.attempt = 1;
    put(&scene.ledger, key, record.encode_to_vec()).await;
    seconds(20).await;
    let adopted = newest(&scene.ledger).await.expect("an order");
    assert_eq!((adopted.attempt, adopted.generation), (1, scene.order.generation));
    assert_eq!(adopted.drift.map(|drift| (drift.lack, drift.change)), Some((3, 5)));
}

#[tokio::test(start_paused = true)]
async fn an_agent_in_quarantine_pauses_nothing() {
    let mut scene = Scene::done().await;
    enrolled_long_ago(&scene.ledger).await;
    scene.comes_back().await;
    let order = scene.order.clone();
    let claims = |generation| vec![PluginReport { generation, ..has(&order) }];
    scene.reports(claims(order.generation + 9)).await;
    seconds(5).await;
    assert_eq!(scene.needs().await.unknown.len(), 1);
    let found = scene.ledger.get(Bucket::Agents, AGENT).await.expect("it is read");
    let found = found.expect("an agent");
    let mut record: AgentRecord = records::decode(AGENT, &found.value).expect("it decodes");
    record.quarantine = "two machines".to_owned();
    let value = Some(record.encode_to_vec().into());
    let write = Write { key: AGENT.to_owned(), expected: found.revision, value };
    scene.ledger.write(Bucket::Agents, vec![write]).await.expect("it is written");
    scene.comes_back().await;
    scene.reports(claims(order.generation + 9)).await;
    seconds(5).await;
    assert_eq!(scene.needs().await.unknown, []);
}
