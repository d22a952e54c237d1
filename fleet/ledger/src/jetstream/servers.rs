//! What the servers of a cluster are set to, and whether that keeps what they acknowledge.
//!
//! ```text
//!   monitoring pages (/varz) ─┐
//!   system account (VARZ)  ───┴─► facts of each server ─► judged: version, JetStream, disk, sizes, cluster
//! ```

use std::time::Duration;

use async_nats::Client;
use bytes::Bytes;
use futures_util::StreamExt;
use futures_util::future::join_all;
use http_body_util::{BodyExt, Full, Limited};
use hyper_util::client::legacy::Client as HttpClient;
use hyper_util::rt::TokioExecutor;
use serde_json::Value;
use thiserror::Error;
use tokio::time::timeout;

use super::envelope;
use crate::bounds;

/// The oldest server that was tried with the laws.
const OLDEST: (u64, u64) = (2, 15);

/// What the largest message takes: a value, its names, and the headers.
const PAYLOAD: u64 = (bounds::VALUE_BYTES + envelope::OVERHEAD + (16 << 10)) as u64;

/// How long one page has, and how long the servers of the system account are silent when all of
/// them have answered.
const PAGE: Duration = Duration::from_secs(5);
const SILENCE: Duration = Duration::from_secs(1);

/// A replica answers its leader every second.
const LATELY: Duration = Duration::from_secs(3);

/// Most bytes of one page, and most servers that answer.
const BYTES: usize = 1 << 20;
const SERVERS: usize = 1024;

/// What one server says of itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Facts {
    name: String,
    version: String,
    jetstream: bool,
    clustered: bool,
    sync_always: bool,
    /// Nanoseconds.
    sync_interval: u64,
    max_payload: u64,
}

/// Why the servers are refused.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum ServerError {
    /// Nothing could be read of any server.
    #[error(
        "the settings of no server can be read, and the default of NATS loses acknowledged writes with the power: {problem}; \
         {fix}"
    )]
    Unread {
        /// What failed, page by page.
        problem: String,
        /// What to do.
        fix: &'static str,
    },
    /// A server that keeps a part of the ledger is up, and its settings were not read.
    #[error(
        "server `{server}` keeps a replica of `{stream}`, and its settings were not read{problem}: add its monitoring page \
         to `monitor=` of the address"
    )]
    NotRead {
        /// Name of the server.
        server: String,
        /// Name of the stream.
        stream: String,
        /// What failed, page by page.
        problem: String,
    },
    /// A server has no JetStream.
    #[error(
        "server `{server}` has JetStream off: add a block `jetstream {{ store_dir: … }}` to its configuration"
    )]
    NoJetStream {
        /// Name of the server.
        server: String,
    },
    /// A server is alone.
    #[error(
        "server `{server}` is in no cluster, so that there is one copy of the ledger: run three servers with a block \
         `cluster {{ … }}`, or use a file (SQLite) on one machine"
    )]
    Alone {
        /// Name of the server.
        server: String,
    },
    /// A server is too old.
    #[error("server `{server}` is nats-server {version}, and {}.{} is needed: update it", OLDEST.0, OLDEST.1)]
    Old {
        /// Name of the server.
        server: String,
        /// Its version.
        version: String,
    },
    /// A server acknowledges what is not on its disk.
    #[error(
        "server `{server}` has `sync_interval: {seconds}s`, so that it loses acknowledged writes with the power: set \
         `sync_interval: always` in its block `jetstream`"
    )]
    Sync {
        /// Name of the server.
        server: String,
        /// Its interval.
        seconds: u64,
    },
    /// A server takes smaller messages than the ledger has.
    #[error(
        "server `{server}` has `max_payload: {found}`, and {PAYLOAD} are needed: set `max_payload: 8MB`"
    )]
    Payload {
        /// Name of the server.
        server: String,
        /// Its bound, in bytes.
        found: u64,
    },
}

/// What was read, and what could not be.
#[derive(Debug, Default)]
pub(super) struct Read {
    pub(super) facts: Vec<Facts>,
    pub(super) problems: Vec<String>,
}

// === impl Read ===

impl Read {
    fn add(&mut self, from: &str, page: Result<Value, String>) {
        let facts = page.and_then(|page| {
            Facts::of(&page).ok_or_else(|| "it is not the page /varz of a nats-server".to_owned())
        });
        match facts {
            Ok(facts) => self.facts.push(facts),
            Err(problem) => self.problems.push(format!("{from}: {problem}")),
        }
    }

    /// Whether the servers that were read keep what they acknowledge.
    pub(super) fn judge(&self, fix: &'static str) -> Result<(), ServerError> {
        if self.facts.is_empty() {
            let problem = self.problems.join("; ");
            let problem =
                if problem.is_empty() { "no server answered".to_owned() } else { problem };
            return Err(ServerError::Unread { problem, fix });
        }
        self.facts.iter().try_for_each(Facts::judge)
    }

    /// Whether every server that has a replica of a stream was read; false where one was not that takes
    /// no part at the moment. `info` is what JetStream says of the stream.
    pub(super) fn judge_replicas(&self, stream: &str, info: &Value) -> Result<bool, ServerError> {
        let mut all_read = true;
        for (server, takes_part) in replicas(info) {
            if self.facts.iter().any(|facts| facts.name == server) {
                continue;
            }
            if !takes_part {
                all_read = false;
                continue;
            }
            let problem = match self.problems.as_slice() {
                [] => String::new(),
                problems => format!(" ({})", problems.join("; ")),
            };
            return Err(ServerError::NotRead { server, stream: stream.to_owned(), problem });
        }
        Ok(all_read)
    }
}

// === impl Facts ===

impl Facts {
    /// From a page `/varz`.
    fn of(page: &Value) -> Option<Self> {
        let text = |name: &str| Some(page[name].as_str()?.chars().take(200).collect::<String>());
        let config = &page["jetstream"]["config"];
        Some(Self {
            name: text("server_name")?,
            version: text("version")?,
            jetstream: config.is_object(),
            clustered: page["cluster"]["name"].as_str().is_some_and(|name| !name.is_empty()),
            sync_always: config["sync_always"].as_bool().unwrap_or(false),
            sync_interval: config["sync_interval"].as_u64().unwrap_or(0),
            max_payload: page["max_payload"].as_u64()?,
        })
    }

    fn judge(&self) -> Result<(), ServerError> {
        let server = self.name.clone();
        if !self.is_new_enough() {
            return Err(ServerError::Old { server, version: self.version.clone() });
        }
        if !self.jetstream {
            return Err(ServerError::NoJetStream { server });
        }
        if !self.sync_always {
            let seconds = Duration::from_nanos(self.sync_interval).as_secs();
            return Err(ServerError::Sync { server, seconds });
        }
        if self.max_payload < PAYLOAD {
            return Err(ServerError::Payload { server, found: self.max_payload });
        }
        if !self.clustered {
            return Err(ServerError::Alone { server });
        }
        Ok(())
    }

    fn is_new_enough(&self) -> bool {
        let mut parts = self.version.split(['.', '-']).map(|part| part.parse::<u64>().ok());
        match (parts.next().flatten(), parts.next().flatten()) {
            (Some(major), Some(minor)) => (major, minor) >= OLDEST,
            _ => false,
        }
    }
}

/// Servers with a replica of a stream, and whether each takes part: the leader got something from it
/// lately. One that died is current for some seconds more.
fn replicas(info: &Value) -> Vec<(String, bool)> {
    let cluster = &info["cluster"];
    let mut found = Vec::new();
    found.extend(cluster["leader"].as_str().map(|leader| (leader.to_owned(), true)));
    for replica in cluster["replicas"].as_array().into_iter().flatten() {
        if let Some(name) = replica["name"].as_str() {
            let is_offline = replica["offline"].as_bool().unwrap_or(false);
            let is_current = replica["current"].as_bool().unwrap_or(false);
            // Nanoseconds since then; 0 where the leader got nothing from it yet.
            let active = Duration::from_nanos(replica["active"].as_u64().unwrap_or(0));
            let is_active = if active.is_zero() { is_current } else { active < LATELY };
            found.push((name.to_owned(), !is_offline && is_active));
        }
    }
    found
}

/// Reads the monitoring pages at these hosts and ports.
pub(super) async fn from_monitoring(hosts: &[String]) -> Read {
    let pages = hosts.iter().map(async |host| {
        let page = timeout(PAGE, page(host)).await;
        let late = |_| Err(format!("it did not answer within {} s", PAGE.as_secs()));
        (host, page.unwrap_or_else(late))
    });
    let mut read = Read::default();
    for (host, page) in join_all(pages).await {
        read.add(&format!("http://{host}/varz"), page);
    }
    read
}

async fn page(host: &str) -> Result<Value, String> {
    let client = HttpClient::builder(TokioExecutor::new()).build_http::<Full<Bytes>>();
    let address =
        format!("http://{host}/varz").parse().map_err(|_| "it is no address".to_owned())?;
    let answer = client.get(address).await.map_err(|error| causes(&error))?;
    if !answer.status().is_success() {
        return Err(format!("it answers {}", answer.status()));
    }
    let body = Limited::new(answer.into_body(), BYTES).collect().await;
    let body = body.map_err(|error| error.to_string())?.to_bytes();
    serde_json::from_slice(&body).map_err(|error| error.to_string())
}

/// Asks all servers over a connection to the system account.
pub(super) async fn from_system_account(client: &Client) -> Read {
    let mut read = Read::default();
    let inbox = client.new_inbox();
    let answers = match client.subscribe(inbox.clone()).await {
        Ok(answers) => answers,
        Err(error) => {
            read.problems.push(error.to_string());
            return read;
        }
    };
    let asked = client.publish_with_reply("$SYS.REQ.SERVER.PING.VARZ", inbox, Bytes::new()).await;
    if let Err(error) = asked {
        read.problems.push(error.to_string());
        return read;
    }
    let mut answers = answers.take(SERVERS);
    let mut patience = PAGE;
    while let Ok(Some(answer)) = timeout(patience, answers.next()).await {
        patience = SILENCE;
        if answer.status.is_some() {
            read.problems.push("the login does not reach the system account".to_owned());
            break;
        }
        let page: Result<Value, _> = serde_json::from_slice(&answer.payload);
        let page = page.map_err(|error| error.to_string());
        read.add("the system account", page.map(|mut page| page["data"].take()));
    }
    read
}

/// An error with its causes: that a connection was refused is in the last of them.
fn causes(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        text = format!("{text}: {cause}");
        source = cause.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn page(change: impl FnOnce(&mut Value)) -> Read {
        let mut page = json!({
            "server_name": "a", "version": "2.15.2", "max_payload": 8 << 20, "cluster": { "name": "c" },
            "jetstream": { "config": { "sync_always": true, "sync_interval": 120_000_000_000_u64 } },
        });
        change(&mut page);
        let mut read = Read::default();
        read.add("http://a:8222/varz", Ok(page));
        read
    }

    #[test]
    fn a_server_is_refused_with_its_name_the_reason_and_the_fix() {
        assert_eq!(page(|_| {}).judge(""), Ok(()));
        type Case = (fn(&mut Value), &'static [&'static str]);
        let cases: [Case; 7] = [
            (|it| it["version"] = "2.14.9".into(), &["`a`", "2.14.9", "2.15", "update"]),
            (|it| it["version"] = "new".into(), &["`a`", "new", "update"]),
            (|it| it["jetstream"] = json!({}), &["`a`", "JetStream off", "store_dir"]),
            (
                |it| it["jetstream"]["config"]["sync_always"] = false.into(),
                &["`a`", "120s", "sync_interval: always"],
            ),
            (|it| it["max_payload"] = 1_048_576.into(), &["`a`", "1048576", "8MB"]),
            (|it| it["cluster"] = json!({}), &["`a`", "no cluster", "three servers"]),
            (|it| *it = json!({ "server_name": "a" }), &["http://a:8222/varz", "/varz"]),
        ];
        for (change, words) in cases {
            let error = page(change).judge("fix").unwrap_err().to_string();
            assert!(words.iter().all(|word| error.contains(word)), "{error}");
        }
    }

    #[test]
    fn newer_servers_are_taken() {
        for version in ["2.15.0", "2.16.1-beta.2", "3.0.0"] {
            assert_eq!(page(|it| it["version"] = version.into()).judge(""), Ok(()), "{version}");
        }
    }

    #[test]
    fn every_server_with_a_replica_that_takes_part_has_to_be_read() {
        let read = page(|_| {});
        let judge = |replica: Value| {
            let mut info = json!({ "cluster": { "leader": "a", "replicas": [replica] } });
            info["cluster"]["replicas"][0]["name"] = "b".into();
            read.judge_replicas("s", &info)
        };
        for silent in [
            json!({ "current": true, "active": 1, "offline": true }),
            json!({ "current": true, "active": 4_000_000_000_u64 }),
            json!({ "current": false, "active": 0 }),
        ] {
            assert_eq!(judge(silent), Ok(false));
        }
        for takes_part in
            [json!({ "current": true, "active": 0 }), json!({ "current": false, "active": 9 })]
        {
            let error = judge(takes_part).unwrap_err().to_string();
            assert!(error.contains("`b`") && error.contains("monitor="), "{error}");
        }
        assert_eq!(read.judge_replicas("s", &json!({ "cluster": { "leader": "a" } })), Ok(true));
    }
}
