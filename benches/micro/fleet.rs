//! A change of a fleet's configuration, as the controller of rollouts makes it, and an agent's order.

use std::cell::{Cell, RefCell};
use std::sync::Arc;
use std::time::Duration;

use guest_agent_proto::agent_controlplane::configure_plugin_states::manifest::Config;
use guest_agent_proto::agent_controlplane::configure_plugin_states::{ConfigurePlugin, Manifest};
use guest_agent_proto::fleet::AgentReport;
use guest_fleet_core::rollout::Strategy;
use guest_fleet_core::selector::{OwnLabels, Selector};
use guest_fleet_core::target::Target;
use guest_fleet_core::view::{ANY_ARCHITECTURE, Archive, Assignment, Release, ReleaseName};
use guest_fleet_ledger::records::configuration::{
    AssignmentRecord, HoldRecord, ReleaseRecord, release_key,
};
use guest_fleet_ledger::{Bucket, Ledger, MemoryLedger, Revision, Write};
use guest_fleet_server::configuration::Configuration;
use guest_fleet_server::configuration::change::{
    Becomes, ChangeError, Decision, Edit, change_under,
};
use guest_fleet_server::orders::{OrderSettings, Orders};
use guest_fleet_sessions::desk::{Desk, OpenSession};
use guest_fleet_sessions::messages;
use prost::Message;
use sha2::{Digest, Sha256};

use super::{Pair, calls};

/// Releases of the fleet.
const RELEASES: usize = 1000;

/// Bytes that are hashed beside it.
const HASHED: usize = 16 << 10;

/// Bytes of the configuration that each agent is ordered.
const CONFIGURED: usize = 64 << 10;

pub(crate) fn pairs() -> Vec<Pair> {
    vec![change(), order()]
}

/// One record is replaced, with its audit entry, in a configuration of a thousand releases that the
/// caller follows. Beside it some bytes are hashed.
fn change() -> Pair {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build();
    let runtime = runtime.expect("a runtime");
    let ledger = MemoryLedger::default();
    runtime.block_on(declare(&ledger));
    let followed =
        RefCell::new(runtime.block_on(Configuration::load(&ledger)).expect("it is read"));
    let decision = Decision {
        who: "the controller".to_owned(),
        from: "here".to_owned(),
        what: "rollout grant".to_owned(),
        why: "a wave is over".to_owned(),
        at: jiff::Timestamp::UNIX_EPOCH,
    };
    let hold = HoldRecord { version: 1, selector: "all".to_owned(), ..HoldRecord::default() };
    let edit = Edit {
        key: "hold/h".to_owned(),
        before: None,
        after: Some("all plugins on all".to_owned()),
        record: Becomes::Bytes(hold.encode_to_vec().into()),
    };
    let own = calls(move || {
        let plan = |_: &Configuration| Ok((vec![edit.clone()], ()));
        let mut followed = followed.borrow_mut();
        let changed = change_under(&ledger, &decision, None, &mut followed, plan);
        let changed: Result<_, ChangeError<std::io::Error>> = runtime.block_on(changed);
        changed.expect("it is changed").entry
    });
    let bytes = vec![0x5a; HASHED];
    let reference = calls(move || Sha256::digest(&bytes));
    Pair { name: "fleet-change", own, reference }
}

/// One agent after another connects, reports, and is ordered one release with a large configuration. Beside
/// it that configuration is hashed.
fn order() -> Pair {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build();
    let runtime = runtime.expect("a runtime");
    let ledger = MemoryLedger::default();
    runtime.block_on(assign(&ledger));
    let orders = Orders::new(Arc::new(ledger), OrderSettings::default());
    runtime.spawn(orders.clone().run());
    runtime.block_on(async {
        while orders.view_age().is_none() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    });
    let agents = Cell::new(0);
    let own = calls(move || {
        agents.set(agents.get() + 1);
        runtime.block_on(ordered(&orders, agents.get()))
    });
    let bytes = vec![0x5a; CONFIGURED];
    let reference = calls(move || Sha256::digest(&bytes));
    Pair { name: "fleet-order", own, reference }
}

/// The message with which an agent that connects is ordered what it should have.
async fn ordered(orders: &Orders, number: u64) -> String {
    let resource = format!("agent-{number}");
    let (session, outgoing) = OpenSession::unserved(&resource, number);
    let session = Arc::new(session);
    orders.opened(session.clone()).await.expect("it is opened");
    let report = AgentReport {
        architecture: "amd64".to_owned(),
        capabilities: vec!["generations".to_owned()],
        ..AgentReport::default()
    };
    let report = messages::pack(messages::AGENT_REPORT, &report);
    orders.received(&resource, Some(number), "report", &report).await.expect("it is taken");
    let message = loop {
        match outgoing.next() {
            Some(sent) if sent.frame.encoded_len() > CONFIGURED => break sent.frame.message_id,
            Some(_) => {}
            None => outgoing.changed().await,
        }
    };
    orders.answered(&session, &message, None).await;
    orders.closed(&session);
    message
}

async fn assign(ledger: &MemoryLedger) {
    let name = ReleaseName { plugin: "plugin".to_owned(), revision: "1".to_owned() };
    let archive = Archive { digest: "ab".repeat(32), url: "https://files.example/a".to_owned() };
    let archives = [(ANY_ARCHITECTURE.to_owned(), archive)].into();
    let config = Some(Config::StringConfig("x".repeat(CONFIGURED)));
    let manifest = Some(Manifest { config, ..Manifest::default() });
    let order = ConfigurePlugin { manifest, ..ConfigurePlugin::default() }.encode_to_vec();
    let release = ReleaseRecord::of(&name, &Release { archives, order });
    let assignment = AssignmentRecord::of(&Assignment {
        plugin: name.plugin.clone(),
        target: Target::Revision(name.revision.clone()),
        selector: Selector::all(),
        own_labels: OwnLabels::Ignored,
        priority: 0,
        attempt: 0,
        strategy: Strategy::default(),
        declared: None,
    });
    let records = [
        (release_key(&name), release.encode_to_vec()),
        ("assignment/all".to_owned(), assignment.encode_to_vec()),
    ];
    let write = |(key, value): (String, Vec<u8>)| {
        let expected = Revision::ABSENT;
        Write { key, expected, value: Some(value.into()) }
    };
    let writes = records.map(write).into();
    ledger.write(Bucket::Configuration, writes).await.expect("they are written");
}

async fn declare(ledger: &MemoryLedger) {
    for number in 0..RELEASES {
        let name = ReleaseName { plugin: format!("plugin-{number}"), revision: "1".to_owned() };
        let archive = Archive { digest: "ab".repeat(32), url: String::new() };
        let archives = [("amd64".to_owned(), archive)].into();
        let record = ReleaseRecord::of(&name, &Release { archives, order: vec![0; 200] });
        let write = Write {
            key: release_key(&name),
            expected: Revision::ABSENT,
            value: Some(record.encode_to_vec().into()),
        };
        ledger.write(Bucket::Configuration, vec![write]).await.expect("it is written");
    }
}
