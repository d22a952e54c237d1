//! A small fleet: an agent, an assignment, a rollout, a hold and a window in each of two environments.

use std::sync::Arc;
use std::time::Duration;

use guest_fleet_core::time::{Seconds, UtcOnly};
use prost::Message;
use prost_types::Timestamp;
use serde_json::json;
use tokio_util::sync::CancellationToken;

use super::{api, now, post};
use crate::fold::reader::Index;
use crate::fold::{self, Settings};
use crate::ledger::{Bucket, MemoryLedger, Revision, SharedLedger, Write};
use crate::records::agent::AgentRecord;

const DIGEST: &str = "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08";

/// Both environments have everything under names that begin with theirs, so that an answer that says too much is seen.
fn declarations() -> String {
    let of = |env: &str| {
        format!(
            r#"
[[release]]
plugin = "{env}plugin"
revision = "{env}1"
entry_point = "bin/x"
archives.amd64 = {{ sha256 = "{DIGEST}" }}

[[release]]
plugin = "{env}plugin"
revision = "{env}2"
entry_point = "bin/x"
archives.amd64 = {{ sha256 = "{DIGEST}" }}

[[assignment]]
name = "{env}assignment"
plugin = "{env}plugin"
revision = "{env}1"
select = "env = {env}"

[[hold]]
name = "{env}hold"
select = "env = {env} and zone = z"
reason = "because of {env}"

[[window]]
name = "{env}window"
select = "env = {env} and zone = z"
days = ["thu"]
from = "22:00"
to = "04:00"
zone = "UTC"
"#
        )
    };
    format!("{}{}", of("prod"), of("test"))
}

/// The fleet on this ledger, and its index.
pub(super) async fn on(ledger: SharedLedger) -> SharedLedger {
    for env in ["prod", "test"] {
        agent(&ledger, format!("{env}agent"), env).await;
    }
    let api = api(ledger.clone());
    let files = json!({ "files": [{ "name": "all.toml", "content": declarations() }] });
    let (status, answer) = post(&api, "/v1/declarations/apply", "admin", &files).await;
    assert!(status.is_success(), "{answer}");
    for env in ["prod", "test"] {
        let rollout = json!({
            "name": format!("{env}rollout"),
            "assignment": format!("{env}assignment"),
            "to": format!("{env}2"),
        });
        let (status, answer) = post(&api, "/v1/rollouts", "admin", &rollout).await;
        assert!(status.is_success(), "{answer}");
    }
    fold(&ledger, 2).await;
    ledger
}

async fn agent(ledger: &SharedLedger, id: String, env: &str) {
    let at = |seconds| Some(Timestamp { seconds, nanos: 0 });
    let mut record = AgentRecord::new(&id);
    record.operator_labels.insert("env".to_owned(), env.to_owned());
    record.since = at(now().as_second() - 3600);
    record.seen = at(now().as_second() - 60);
    let value = Some(record.encode_to_vec().into());
    let write = Write { key: id, expected: Revision::ABSENT, value };
    ledger.write(Bucket::Agents, vec![write]).await.expect("no fault");
}

/// Adds agents, and folds them.
pub(crate) async fn more(ledger: &SharedLedger, agents: u64) {
    for number in 0..agents {
        agent(ledger, format!("more-{number:04}"), "more").await;
    }
    fold(ledger, agents + 2).await;
}

/// The fleet on a ledger in memory.
pub(crate) async fn in_memory() -> SharedLedger {
    on(Arc::new(MemoryLedger::new())).await
}

/// Folds the index until it has so many agents.
async fn fold(ledger: &SharedLedger, agents: u64) {
    let at = Seconds(u64::try_from(now().as_second()).expect("after 1970"));
    let settings = Settings { wall: Arc::new(move || at), ..Settings::default() };
    let ending = CancellationToken::new();
    let folding = tokio::spawn(fold::run(ledger.clone(), settings, ending.clone()));
    let is_whole = async {
        loop {
            let index = Index::open(&**ledger).await.expect("no fault");
            let is_whole = index.is_some_and(|index| {
                let counts = index.counts(at, &UtcOnly);
                index.as_of().is_some() && counts.agents.values().sum::<u64>() == agents
            });
            if is_whole {
                return;
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(60), is_whole).await.expect("it is folded");
    ending.cancel();
    folding.await.expect("it ends");
}
