//! One cluster for all tests that leave its servers alone; each has streams of its own.
//!
//! A runner may give each test a process. The first that asks starts the servers, the others find
//! their ports in a file, and the servers end with the runner.

use std::fs::{self, File};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, LazyLock};
use std::time::{Duration, Instant};

use guest_fleet_ledger::{JetstreamLedger, NatsAddress};
use serde_json::{Value, json};

use crate::nats_cluster::{self, NatsCluster, Shape};

/// How long a server may be unheard by the others.
const AWAY: Duration = Duration::from_secs(10);

static SHARED: LazyLock<Option<NatsCluster>> = LazyLock::new(|| {
    let program = nats_cluster::program()?;
    let owner = owner();
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("nats-{owner}"));
    fs::create_dir_all(&folder).unwrap();
    let lock = File::create(folder.join("lock")).unwrap();
    lock.lock().unwrap();
    let ports = folder.join("ports");
    if let Ok(ports) = fs::read_to_string(&ports) {
        return Some(NatsCluster::join(&ports));
    }
    let shape = Shape { owner: Some(owner), ..Shape::default() };
    let cluster = NatsCluster::start_as(&program, &folder, &shape);
    let servers = cluster.servers();
    // The thread of a test may be one of a runtime, which takes no other.
    std::thread::spawn(move || keep_one(&servers)).join().unwrap();
    fs::write(ports, cluster.ports()).unwrap();
    Some(cluster)
});

/// The process that runs all the tests: nextest, or this one.
fn owner() -> u32 {
    match std::env::var_os("NEXTEST") {
        Some(_) => std::os::unix::process::parent_id(),
        None => std::process::id(),
    }
}

/// The names of the streams of a ledger.
static STREAMS: [&str; 6] = [
    "records-configuration",
    "records-agents",
    "records-journal",
    "records-reports",
    "records-index",
    "log-events",
];

/// Removes the streams of a test when it ends, so that the servers have less to do for the others.
pub(crate) struct Streams(String);

impl Drop for Streams {
    fn drop(&mut self) {
        let (prefix, Some(cluster)) = (self.0.clone(), cluster()) else { return };
        // The thread of a test may be one of a runtime, which takes no other.
        drop(std::thread::spawn(move || remove(&cluster.servers(), &prefix)).join());
    }
}

/// The shared cluster, if there is the program.
pub(crate) fn cluster() -> Option<&'static NatsCluster> {
    SHARED.as_ref()
}

/// A prefix that no other test has.
pub(crate) fn prefix() -> (String, Streams) {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    let prefix = format!("t{}-{number}", std::process::id());
    (prefix.clone(), Streams(prefix))
}

/// An empty ledger on the shared cluster.
pub(crate) async fn ledger() -> Option<(Arc<JetstreamLedger>, Streams)> {
    let cluster = cluster()?;
    let (prefix, streams) = prefix();
    let address: NatsAddress = cluster.address(&prefix).parse().unwrap();
    Some((JetstreamLedger::open(&address).await.unwrap(), streams))
}

/// Makes a stream that stays. With the last stream of an account a nats-server removes the folder of the account's
/// streams, in the background: a stream that is made in this moment has no folder, and the server answers "error
/// creating store for stream" (10049, up to 2.15.2 at least).
fn keep_one(servers: &str) {
    runtime().block_on(async {
        let client = async_nats::connect(servers.split(',').next().unwrap()).await.unwrap();
        let stream = json!({
            "name": "stays", "subjects": ["stays"], "storage": "file", "num_replicas": 3,
            "retention": "limits", "discard": "old",
        });
        create(&client, &stream).await;
    });
}

/// Makes a stream. A server that the others do not hear for a moment, on a busy machine, is waited for, as a ledger does.
pub(crate) async fn create(client: &async_nats::Client, stream: &Value) {
    let subject = format!("$JS.API.STREAM.CREATE.{}", stream["name"].as_str().unwrap());
    let deadline = Instant::now() + AWAY;
    loop {
        let request = client.request(subject.clone(), stream.to_string().into());
        let answer: Value = serde_json::from_slice(&request.await.unwrap().payload).unwrap();
        let error = &answer["error"];
        let is_away = error["description"].as_str().is_some_and(|it| it.contains("peer offline"));
        if !is_away || Instant::now() >= deadline {
            assert!(error.is_null(), "{answer}");
            return;
        }
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap()
}

fn remove(servers: &str, prefix: &str) {
    runtime().block_on(async {
        let client = async_nats::connect(servers.split(',').next().unwrap()).await.unwrap();
        let removals = STREAMS.map(|stream| {
            let subject = format!("$JS.API.STREAM.DELETE.{prefix}-{stream}");
            client.request(subject, "".into())
        });
        // A stream that stays costs the servers a little, and no test its result.
        drop(
            tokio::time::timeout(Duration::from_secs(10), futures_util::future::join_all(removals))
                .await,
        );
    });
}
