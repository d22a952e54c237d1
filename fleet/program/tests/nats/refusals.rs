//! What a ledger on NATS refuses to open, each with real servers that are so, and with words that
//! name the server, the reason and the fix.

use std::error::Error;

use guest_fleet_ledger::{Bucket, JetstreamLedger, Ledger, NatsAddress, Revision, Write};
use serde_json::json;
use tempfile::TempDir;

use crate::nats::shared;
use crate::nats_cluster::{self, NatsCluster, Shape};

/// All that the error of an opening says.
pub(crate) async fn refusal(address: &str) -> String {
    let address: NatsAddress = address.parse().unwrap();
    let error = JetstreamLedger::open(&address).await.expect_err("it is refused");
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(error) = source {
        text = format!("{text}: {error}");
        source = error.source();
    }
    text
}

pub(crate) fn says(text: &str, words: &[&str]) {
    for word in words {
        assert!(text.contains(word), "`{word}` is not in: {text}");
    }
}

/// The refusal of servers of another shape.
async fn refusal_of(shape: Shape) -> Option<String> {
    let program = nats_cluster::program()?;
    let folder = TempDir::new().unwrap();
    let cluster = NatsCluster::start_as(&program, folder.path(), &shape);
    Some(refusal(&cluster.address("p")).await)
}

#[tokio::test]
async fn servers_that_do_not_flush_each_write_are_refused() {
    let shape = Shape { sync_interval: None, ..Shape::default() };
    let Some(text) = refusal_of(shape).await else { return };
    says(
        &text,
        &["`n1`", "sync_interval: 120s", "loses acknowledged writes", "sync_interval: always"],
    );
}

#[tokio::test]
async fn a_single_server_is_refused() {
    let Some(text) = refusal_of(Shape { servers: 1, ..Shape::default() }).await else { return };
    says(&text, &["`n1`", "in no cluster", "three servers"]);
}

#[tokio::test]
async fn two_servers_are_refused() {
    let Some(text) = refusal_of(Shape { servers: 2, ..Shape::default() }).await else { return };
    says(&text, &["p-records-", "3 replicas", "three servers"]);
}

#[tokio::test]
async fn servers_that_take_small_messages_alone_are_refused() {
    let Some(text) = refusal_of(Shape { max_payload: None, ..Shape::default() }).await else {
        return;
    };
    says(&text, &["`n1`", "max_payload: 1048576", "max_payload: 8MB"]);
}

#[tokio::test]
async fn servers_without_jetstream_are_refused() {
    let shape = Shape { jetstream: false, servers: 1, ..Shape::default() };
    let Some(text) = refusal_of(shape).await else { return };
    says(&text, &["`n1`", "JetStream off", "store_dir"]);
}

#[tokio::test]
async fn an_account_that_may_not_use_jetstream_is_refused() {
    let more = "accounts { A { users: [{ user: a, password: a }], jetstream: enabled }\n\
                B { users: [{ user: b, password: b }] } }\nno_auth_user: b\n";
    let shape = Shape { more: more.to_owned(), ..Shape::default() };
    let Some(text) = refusal_of(shape).await else { return };
    says(&text, &["JetStream is not there for this login", "for the account"]);
}

#[tokio::test]
async fn what_cannot_be_read_is_refused() {
    let Some(cluster) = shared::cluster() else { return };
    let (prefix, _streams) = shared::prefix();
    // Nobody listens there.
    let address = format!("{}?prefix={prefix}&monitor=127.0.0.1:1", cluster.servers());
    says(
        &refusal(&address).await,
        &["http://127.0.0.1:1/varz", "monitor=", "loses acknowledged writes"],
    );
    // One of three was read.
    let first = cluster.monitoring().split(',').next().unwrap().to_owned();
    let address = format!("{}?prefix={prefix}&monitor={first}", cluster.servers());
    says(&refusal(&address).await, &["keeps a replica of", "were not read", "monitor="]);
}

#[tokio::test]
async fn the_system_account_tells_as_much_as_the_monitoring_pages() {
    let Some(program) = nats_cluster::program() else { return };
    let folder = TempDir::new().unwrap();
    // What docs/fleet-on-nats.md says that a login needs.
    let needed = "publish: [\"guest-fleet.>\", \"$JS.API.STREAM.*.*\", \
                  \"$JS.API.STREAM.MSG.*.*\", \"$JS.API.DIRECT.GET.*\"], \
                  subscribe: [\"_INBOX.>\", \"guest-fleet.wake.*\"]";
    let more = format!(
        "accounts {{ A {{ users: [{{ user: a, password: \"pass a\", permissions: {{ {needed} }} }}], jetstream: enabled }}\n\
                SYS {{ users: [{{ user: s, password: s }}] }} }}\nsystem_account: SYS\n"
    );
    let shape = Shape { more, ..Shape::default() };
    let cluster = NatsCluster::start_as(&program, folder.path(), &shape);
    for (name, password) in [("a", "pass a\n"), ("s", "s")] {
        std::fs::write(folder.path().join(name), password).unwrap();
    }
    let files = folder.path().display();
    let address = |system: &str| {
        format!(
            "{}?user=a&password-file={files}/a&system-user={system}&system-password-file={files}/{system}",
            cluster.servers()
        )
    };
    let parsed: NatsAddress = address("s").parse().unwrap();
    let ledger = JetstreamLedger::open(&parsed).await.unwrap();
    let write = Write { key: "k".into(), expected: Revision::ABSENT, value: Some("v".into()) };
    let made = ledger.write(Bucket::Agents, vec![write]).await.unwrap();
    let delete = Write { key: "k".into(), expected: made, value: None };
    let batch = vec![delete, Write { key: "l".into(), expected: Revision::ABSENT, value: None }];
    let gone = ledger.write(Bucket::Agents, batch).await.unwrap();
    let page = ledger.changes(Bucket::Agents, made, gone).await.unwrap();
    assert_eq!((page.changes.len(), page.through), (1, gone));
    // A login to another account reads nothing.
    says(&refusal(&address("a")).await, &["system-creds="]);
    // Without a login nobody gets in.
    let without = format!("{}?monitor={}", cluster.servers(), cluster.monitoring());
    says(&refusal(&without).await, &["takes the connection", "authorization"]);
}

#[tokio::test]
async fn streams_with_other_settings_are_refused() {
    let Some(cluster) = shared::cluster() else { return };
    let client = async_nats::connect(cluster.servers().split(',').next().unwrap()).await.unwrap();
    for (change, words) in [
        (json!({ "num_replicas": 1 }), ["num_replicas: 1", "3 or more"]),
        (json!({ "max_age": 60_000_000_000_u64 }), ["max_age: 60000000000", "instead of 0"]),
    ] {
        let (prefix, _streams) = shared::prefix();
        let mut config = json!({
            "name": format!("{prefix}-records-agents"), "subjects": [format!("{prefix}.records.agents.>")],
            "storage": "file", "num_replicas": 3, "max_msgs_per_subject": 1, "allow_direct": true,
            "allow_atomic": true, "retention": "limits", "discard": "old",
        });
        for (setting, value) in change.as_object().unwrap() {
            config[setting] = value.clone();
        }
        shared::create(&client, &config).await;
        let text = refusal(&cluster.address(&prefix)).await;
        says(&text, &words);
        says(&text, &[&format!("`{prefix}-records-agents`"), "prefix=", "nats stream edit"]);
    }
}
