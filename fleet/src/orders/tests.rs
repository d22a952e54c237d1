//! Two gateways that have streams of one agent: what the former one still does. And what a gateway
//! orders that misses a secret.

use std::sync::Arc;
use std::time::Duration;

use guest_agent_proto::agent_controlplane::PluginEventMessage;
use guest_agent_proto::agent_controlplane::configure_plugin_states::manifest::Config;
use guest_agent_proto::agent_controlplane::configure_plugin_states::{ConfigurePlugin, Manifest};
use guest_agent_proto::fleet::{AgentReport, PluginReport};
use guest_fleet_core::desired::{Decision, Permission};
use guest_fleet_core::journal::{Digests, Order, OrderState};
use guest_fleet_core::repair::Repair;
use guest_fleet_core::rollout::Strategy;
use guest_fleet_core::selector::{OwnLabels, Selector};
use guest_fleet_core::time::Seconds;
use guest_fleet_core::view::{ANY_ARCHITECTURE, Archive, Assignment, Release, ReleaseName, Target};
use guest_fleet_ledger::records::configuration::{AssignmentRecord, ReleaseRecord, release_key};
use guest_fleet_ledger::records::event::subject;
use guest_fleet_ledger::records::gateway::GatewayRecord;
use guest_fleet_ledger::records::journal::{JournalRecord, OrderRecord};
use guest_fleet_ledger::records::repair::{RepairRecord, repair_key};
use guest_fleet_ledger::records::secret::SecretRecord;
use guest_fleet_ledger::{Bucket, Fate, Ledger, Log, MemoryLedger, Revision, Write, records};
use guest_fleet_sessions::desk::{Desk, OpenSession};
use guest_fleet_sessions::messages;
use prost::Message;

use super::{OrderSettings, Orders, UnknownAgents};
use crate::secrets::Secrets;
use crate::secrets::directory::tests::{directory, opened, write};
use crate::secrets::reference::tests::{reference, table};

mod drift;
mod health;

const AGENT: &str = "fleet/1";

/// The first order of an assignment, which came into its state at once.
pub(crate) fn order(target: Target, assignment: &str, state: OrderState, at: Seconds) -> Order {
    let assignment = assignment.to_owned();
    let decision =
        Decision { target, assignment, attempt: 0, permission: Permission::Go, turn: None };
    let body = Digests { sent: [0; 32], declared: [0; 32] };
    Order { declared: None, state, ..Order::new(&decision, &body, 1, at) }
}

fn gateway(ledger: &MemoryLedger) -> Arc<Orders> {
    let settings =
        OrderSettings { unknown_agents: UnknownAgents::TakenIn, ..OrderSettings::default() };
    Orders::new(Arc::new(ledger.clone()), settings)
}

async fn open(gateway: &Orders, stream: u64) -> Arc<OpenSession> {
    let session = Arc::new(OpenSession::unserved(AGENT, stream).0);
    gateway.opened(session.clone()).await.expect("it is opened");
    session
}

/// Whether an event of this id was taken.
async fn tell(gateway: &Orders, session: &OpenSession, id: &str) -> bool {
    let event =
        PluginEventMessage { plugin_name: "monitor".to_owned(), ..PluginEventMessage::default() };
    let body = messages::pack(messages::PLUGIN_EVENT, &event);
    gateway.received(AGENT, Some(session.stream), id, &body).await.is_ok()
}

async fn log(ledger: &MemoryLedger) -> Vec<String> {
    let entries = ledger.read(Log::Events, &subject(AGENT, "monitor"), 0, 100).await;
    entries.expect("it is read").into_iter().map(|entry| entry.id).collect()
}

#[tokio::test(start_paused = true)]
async fn a_session_that_was_replaced_appends_no_event_a_second_time() {
    let ledger = MemoryLedger::new();
    let (former, newer) = (gateway(&ledger), gateway(&ledger));
    let left = open(&former, 1).await;
    let session = open(&newer, 1).await;
    assert!(tell(&newer, &session, "e1").await);
    assert!(tell(&newer, &session, "e2").await);
    // The former gateway stood still with the first event in its hands. Whatever it answers, the event
    // is recorded.
    let _taken_or_refused: bool = tell(&former, &left, "e1").await;
    assert_eq!(log(&ledger).await, ["e1", "e2"]);
    // What is not recorded yet is the newer session's to record, whatever else the agent sent there.
    assert!(!tell(&former, &left, "e3").await);
    assert!(tell(&newer, &session, "e3").await);
    assert_eq!(log(&ledger).await, ["e1", "e2", "e3"]);
}

#[tokio::test(start_paused = true)]
async fn an_event_that_comes_again_on_the_next_stream_is_taken_once() {
    let ledger = MemoryLedger::new();
    let (former, newer) = (gateway(&ledger), gateway(&ledger));
    let left = open(&former, 1).await;
    assert!(tell(&former, &left, "e1").await);
    let session = open(&newer, 1).await;
    assert!(tell(&newer, &session, "e1").await);
    assert!(tell(&newer, &session, "e2").await);
    assert_eq!(log(&ledger).await, ["e1", "e2"]);
}

#[tokio::test(start_paused = true)]
async fn events_that_come_again_after_later_ones_are_taken_once() {
    let ledger = MemoryLedger::new();
    let gateway = gateway(&ledger);
    let left = open(&gateway, 1).await;
    assert!(tell(&gateway, &left, "e1").await);
    assert!(tell(&gateway, &left, "e2").await);
    assert!(tell(&gateway, &left, "e3").await);
    // The agent was killed before it had noted that they were acknowledged.
    let session = open(&gateway, 2).await;
    for id in ["e2", "e3", "e4"] {
        assert!(tell(&gateway, &session, id).await);
    }
    assert_eq!(log(&ledger).await, ["e1", "e2", "e3", "e4"]);
}

async fn put(ledger: &MemoryLedger, key: &str, value: Vec<u8>) {
    let found = ledger.get(Bucket::Configuration, key).await.expect("it is read");
    let expected = found.map_or(Revision::ABSENT, |found| found.revision);
    let write = Write { key: key.to_owned(), expected, value: Some(value.into()) };
    ledger.write(Bucket::Configuration, vec![write]).await.expect("it is written");
}

/// Every agent should have this revision.
async fn wish(ledger: &MemoryLedger, revision: &str) {
    wish_as(ledger, revision, ConfigurePlugin::default()).await;
}

/// Every agent should have this revision, which is ordered like this.
async fn wish_as(ledger: &MemoryLedger, revision: &str, order: ConfigurePlugin) {
    declare(ledger, revision, order, "https://files.example/a").await;
    let assignment = Assignment {
        plugin: "monitor".to_owned(),
        target: Target::Revision(revision.to_owned()),
        selector: Selector::all(),
        own_labels: OwnLabels::Ignored,
        priority: 0,
        attempt: 0,
        strategy: Strategy::default(),
        declared: None,
    };
    put(ledger, "assignment/all", AssignmentRecord::of(&assignment).encode_to_vec()).await;
}

/// A release, with the address of its archive.
async fn declare(ledger: &MemoryLedger, revision: &str, order: ConfigurePlugin, url: &str) {
    let name = ReleaseName { plugin: "monitor".to_owned(), revision: revision.to_owned() };
    let archive = Archive { digest: "ab".repeat(32), url: url.to_owned() };
    let archives = [(ANY_ARCHITECTURE.to_owned(), archive)].into();
    let release = Release { archives, order: order.encode_to_vec() };
    put(ledger, &release_key(&name), ReleaseRecord::of(&name, &release).encode_to_vec()).await;
}

/// The agent reports that it has nothing.
async fn report(gateway: &Orders, session: &OpenSession) {
    report_of(gateway, session, Vec::new()).await;
}

/// The agent reports that it has these plugins.
async fn report_of(gateway: &Orders, session: &OpenSession, plugins: Vec<PluginReport>) {
    let report = AgentReport {
        architecture: "amd64".to_owned(),
        capabilities: vec!["generations".to_owned()],
        plugins,
        ..AgentReport::default()
    };
    let body = messages::pack(messages::AGENT_REPORT, &report);
    gateway.received(AGENT, Some(session.stream), "report", &body).await.expect("it is taken");
}

/// The newest order.
async fn newest(ledger: &MemoryLedger) -> Option<OrderRecord> {
    let found = ledger.get(Bucket::Journal, AGENT).await.expect("it is read")?;
    let journal: JournalRecord = records::decode(AGENT, &found.value).expect("it decodes");
    journal.plugins.get("monitor")?.order.clone()
}

/// The revision of the newest order.
async fn ordered(ledger: &MemoryLedger) -> Option<String> {
    Some(newest(ledger).await?.revision)
}

/// The newest order, once it is another one than before.
async fn next(ledger: &MemoryLedger, generation: u64) -> OrderRecord {
    for _ in 0..1000 {
        match newest(ledger).await {
            Some(order) if order.generation > generation => return order,
            _ => tokio::time::sleep(Duration::from_millis(50)).await,
        }
    }
    panic!("nothing is ordered")
}

/// Everything that is in a ledger.
async fn content(ledger: &MemoryLedger) -> Vec<u8> {
    let mut content = Vec::new();
    for bucket in Bucket::ALL {
        let page = ledger.scan(bucket, "", None, 1000).await.expect("it is read");
        assert_eq!(page.next, None, "all fits into one page");
        page.records.iter().for_each(|record| content.extend_from_slice(&record.value));
    }
    let entries = ledger.read(Log::Events, "", 0, 1000).await.expect("it is read");
    entries.iter().for_each(|entry| content.extend_from_slice(&entry.value));
    content
}

/// Number of the state of an order that is done.
const DONE: u32 = 4;

/// The order of a release whose configuration refers to this secret.
fn refers_to(secret: &str) -> ConfigurePlugin {
    let config = Config::StructConfig(table(&[("password", reference(secret))]));
    let manifest = Some(Manifest { config: Some(config), ..Manifest::default() });
    ConfigurePlugin { manifest, ..ConfigurePlugin::default() }
}

/// The plugin as it is after an order.
fn has(order: &OrderRecord) -> PluginReport {
    PluginReport {
        name: "monitor".to_owned(),
        revision: order.revision.clone(),
        order_digest: order.digest.clone(),
        generation: order.generation,
        ..PluginReport::default()
    }
}

/// Looks at the files twice: a file that is being written is not recorded.
async fn looked_twice(secrets: &Secrets) {
    secrets.refresh().await;
    secrets.refresh().await;
}

/// The heartbeat of the gateway.
async fn own_record(ledger: &MemoryLedger, gateway: &Orders) -> GatewayRecord {
    let own = ledger.get(Bucket::Configuration, gateway.key()).await.expect("it is read");
    records::decode("own", &own.expect("a record").value).expect("decodes")
}

#[tokio::test(start_paused = true)]
async fn a_secret_that_is_missing_or_overwritten_orders_nothing_and_another_version_does() {
    let (ledger, folder) = (MemoryLedger::new(), directory());
    let secrets = opened(folder.path()).await;
    let settings = OrderSettings { secrets: secrets.clone(), ..OrderSettings::default() };
    let gateway = Orders::new(Arc::new(ledger.clone()), settings);
    let renewed = tokio::spawn(gateway.clone().run());
    wish_as(&ledger, "1", refers_to("password@1")).await;
    let session = open(&gateway, 1).await;
    report(&gateway, &session).await;
    tokio::time::sleep(Duration::from_secs(30)).await;
    assert_eq!(ordered(&ledger).await, None);
    let own = own_record(&ledger, &gateway).await;
    assert_eq!(own.secrets_key, secrets.key_name());
    let [missing] = own.missing_secrets.as_slice() else { panic!("{own:?}") };
    assert_eq!(missing.name, "password@1");
    assert!(missing.problem.contains("write one"), "{}", missing.problem);

    write(folder.path(), "password@1", b"hunter22");
    looked_twice(&secrets).await;
    let first = next(&ledger, 0).await;
    assert_eq!(first.revision, "1");
    assert!(String::from_utf8_lossy(&first.body).contains("$secret"));
    gateway.answered(&session, &first.message_id, None).await;
    report_of(&gateway, &session, vec![has(&first)]).await;
    // The same secret is the same order, however often it is looked at; so is another content, which the
    // gateway tells.
    for content in ["hunter22", "hunter23"] {
        write(folder.path(), "password@1", content.as_bytes());
        looked_twice(&secrets).await;
        tokio::time::sleep(Duration::from_secs(60)).await;
        let newest = newest(&ledger).await.map(|it| (it.message_id, it.state));
        assert_eq!(newest, Some((first.message_id.clone(), DONE)));
    }
    let own = own_record(&ledger, &gateway).await;
    let [changed] = own.missing_secrets.as_slice() else { panic!("{own:?}") };
    assert_eq!(changed.name, "password@1");
    assert!(changed.problem.contains("`password@2`"), "{}", changed.problem);

    write(folder.path(), "password@2", b"hunter23");
    looked_twice(&secrets).await;
    wish_as(&ledger, "2", refers_to("password@2")).await;
    let second = next(&ledger, first.generation).await;
    assert_eq!(second.revision, "2");
    // The journal was lost, and a person accepts that: what the agent has is taken over, because its digest is
    // the same.
    gateway.answered(&session, &second.message_id, None).await;
    gateway.closed(&session);
    tokio::time::sleep(Duration::from_secs(1)).await;
    let found = ledger.get(Bucket::Journal, AGENT).await.expect("it is read").expect("a journal");
    let lost = Write { key: AGENT.to_owned(), expected: found.revision, value: None };
    ledger.write(Bucket::Journal, vec![lost]).await.expect("it is written");
    let session = open(&gateway, 2).await;
    report_of(&gateway, &session, vec![has(&second)]).await;
    tokio::time::sleep(Duration::from_secs(30)).await;
    assert!(newest(&ledger).await.is_none(), "nobody accepted it");
    let accepted = Repair { accepted: second.generation, ..Repair::default() };
    put(&ledger, &repair_key("all"), RepairRecord::of(&accepted).encode_to_vec()).await;
    tokio::time::sleep(Duration::from_secs(30)).await;
    let adopted = newest(&ledger).await.expect("it is taken over");
    assert_eq!((&adopted.digest, adopted.generation), (&second.digest, second.generation));
    assert!(adopted.message_id != second.message_id && adopted.body.is_empty());

    let content = content(&ledger).await;
    assert!(!String::from_utf8_lossy(&content).contains("hunter2"));
    gateway.stop();
    renewed.await.expect("it ends");
}

#[tokio::test(start_paused = true)]
async fn gateways_with_other_keys_addresses_and_contents_order_an_agent_nothing_anew() {
    let ledger = MemoryLedger::new();
    wish_as(&ledger, "1", refers_to("password@1")).await;
    declare(&ledger, "1", refers_to("password@1"), "").await;
    let mut ordered: Option<OrderRecord> = None;
    let (key, other_key) = ("0123456789abcdef", "another key of 128 bits");
    for (address, key, content, problems) in [
        ("https://one.example", key, "hunter22", 0),
        ("https://two.example", other_key, "hunter22", 0),
        ("https://one.example", key, "hunter23", 1),
    ] {
        let folder = directory();
        write(folder.path(), ".digest-key", key.as_bytes());
        write(folder.path(), "password@1", content.as_bytes());
        let secrets = opened(folder.path()).await;
        let artifacts = Some(address.to_owned());
        let settings = OrderSettings { secrets, artifacts, ..OrderSettings::default() };
        let gateway = Orders::new(Arc::new(ledger.clone()), settings);
        let renewed = tokio::spawn(gateway.clone().run());
        let session = open(&gateway, 1).await;
        report_of(&gateway, &session, ordered.iter().map(has).collect()).await;
        if ordered.is_none() {
            let first = next(&ledger, 0).await;
            gateway.answered(&session, &first.message_id, None).await;
            report_of(&gateway, &session, vec![has(&first)]).await;
        }
        tokio::time::sleep(Duration::from_secs(60)).await;
        let newest = next(&ledger, 0).await;
        assert_eq!(newest.state, DONE);
        if let Some(former) = &ordered {
            assert_eq!(newest.message_id, former.message_id);
        }
        assert_eq!(own_record(&ledger, &gateway).await.missing_secrets.len(), problems);
        gateway.closed(&session);
        gateway.stop();
        renewed.await.expect("it ends");
        ordered = Some(newest);
    }
    // Each key has its mark of the one content.
    let found = ledger.get(Bucket::Configuration, "secret/password@1").await.expect("it is read");
    let record: SecretRecord =
        records::decode("own", &found.expect("a record").value).expect("decodes");
    assert_eq!(record.marks.len(), 2);
}

#[tokio::test(start_paused = true)]
async fn a_secret_is_recorded_whatever_becomes_of_the_write() {
    for fates in [
        &[Fate::Conflict][..],
        &[Fate::Lost, Fate::Answered, Fate::Lost],
        &[Fate::Happened],
        &[Fate::Late],
    ] {
        let (ledger, folder) = (MemoryLedger::new(), directory());
        write(folder.path(), "password@1", b"hunter22");
        let secrets = opened(folder.path()).await;
        let settings = OrderSettings { secrets, ..OrderSettings::default() };
        let gateway = Orders::new(Arc::new(ledger.clone()), settings);
        wish_as(&ledger, "1", refers_to("password@1")).await;
        gateway.shared.views.renew().await.expect("it is renewed");
        let session = open(&gateway, 1).await;
        report(&gateway, &session).await;
        tokio::time::sleep(Duration::from_secs(1)).await;
        assert_eq!(ordered(&ledger).await, None, "it is not recorded yet");
        ledger.script(fates.iter().copied());
        let renewed = tokio::spawn(gateway.clone().run());
        until_ordered(&ledger, "1").await;
        gateway.stop();
        renewed.await.expect("it ends");
    }
}

#[tokio::test(start_paused = true)]
async fn a_gateway_that_has_nothing_to_do_writes_its_heartbeat_and_no_more() {
    let ledger = MemoryLedger::new();
    let gateways = [gateway(&ledger), gateway(&ledger), gateway(&ledger)];
    let renewed = gateways.each_ref().map(|gateway| tokio::spawn(gateway.clone().run()));
    tokio::time::sleep(Duration::from_secs(10)).await;
    let before = ledger.writes();
    tokio::time::sleep(Duration::from_secs(100)).await;
    let writes = ledger.writes() - before;
    assert!((120..=240).contains(&writes), "{writes} in 100 seconds by three gateways");
    // A change reaches all of them at once.
    wish(&ledger, "1").await;
    tokio::time::sleep(Duration::from_millis(500)).await;
    for gateway in &gateways {
        let known = gateway.shared.views.fresh().expect("it is fresh");
        assert!(known.configuration.view().assignments.contains_key("all"));
    }
    gateways.iter().for_each(|gateway| gateway.stop());
    for renewed in renewed {
        renewed.await.expect("it ends");
    }
}

async fn until_ordered(ledger: &MemoryLedger, revision: &str) {
    for _ in 0..200 {
        if ordered(ledger).await.as_deref() == Some(revision) {
            return;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    panic!("{:?} is ordered, and not {revision}", ordered(ledger).await);
}

#[tokio::test(start_paused = true)]
async fn a_gateway_that_is_behind_takes_no_newer_order_back() {
    let ledger = MemoryLedger::new();
    let (behind, ahead) = (gateway(&ledger), gateway(&ledger));
    wish(&ledger, "1").await;
    behind.shared.views.renew().await.expect("it is renewed");
    wish(&ledger, "2").await;
    ahead.shared.views.renew().await.expect("it is renewed");
    let left = open(&ahead, 1).await;
    report(&ahead, &left).await;
    until_ordered(&ledger, "2").await;

    // The agent comes to a gateway whose view is new enough, and from before that order.
    let session = open(&behind, 1).await;
    report(&behind, &session).await;
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!(ordered(&ledger).await.as_deref(), Some("2"));
    wish(&ledger, "3").await;
    behind.shared.views.renew().await.expect("it is renewed");
    until_ordered(&ledger, "3").await;
}
