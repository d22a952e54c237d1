//! One cluster for all tests that leave its servers alone; each has streams of its own.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, LazyLock, OnceLock, mpsc};
use std::time::Duration;

use guest_fleet::ledger::{JetstreamLedger, NatsAddress};
use tempfile::TempDir;

use crate::nats_cluster::{self, NatsCluster};

struct Shared {
    cluster: NatsCluster,
    cleaner: mpsc::Sender<String>,
    _folder: TempDir,
}

static SHARED: LazyLock<Option<Shared>> = LazyLock::new(|| {
    let program = nats_cluster::program()?;
    let folder = TempDir::new().unwrap();
    let cluster = NatsCluster::start(&program, folder.path());
    let servers = cluster.servers();
    let (cleaner, prefixes) = mpsc::channel();
    std::thread::spawn(move || clean(&servers, &prefixes));
    Some(Shared { cluster, cleaner, _folder: folder })
});

/// The names of the streams of a ledger.
static STREAMS: [&str; 5] =
    ["records-configuration", "records-agents", "records-journal", "records-reports", "log-events"];

/// Removes the streams of a test when it ends, so that the servers have less to do for the others.
pub(crate) struct Streams(String);

impl Drop for Streams {
    fn drop(&mut self) {
        if let Some(shared) = &*SHARED {
            drop(shared.cleaner.send(self.0.clone()));
        }
    }
}

/// The shared cluster, if there is the program.
pub(crate) fn cluster() -> Option<&'static NatsCluster> {
    SHARED.as_ref().map(|shared| &shared.cluster)
}

/// A prefix that no other test has.
pub(crate) fn prefix() -> (String, Streams) {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let prefix = format!("t{}", NEXT.fetch_add(1, Ordering::Relaxed));
    (prefix.clone(), Streams(prefix))
}

/// An empty ledger on the shared cluster.
pub(crate) async fn ledger() -> Option<(Arc<JetstreamLedger>, Streams)> {
    let cluster = cluster()?;
    let (prefix, streams) = prefix();
    let address: NatsAddress = cluster.address(&prefix).parse().unwrap();
    Some((JetstreamLedger::open(&address).await.unwrap(), streams))
}

fn clean(servers: &str, prefixes: &mpsc::Receiver<String>) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let client = OnceLock::new();
    while let Ok(prefix) = prefixes.recv() {
        runtime.block_on(async {
            if client.get().is_none() {
                drop(
                    client.set(
                        async_nats::connect(servers.split(',').next().unwrap()).await.unwrap(),
                    ),
                );
            }
            for stream in STREAMS {
                let subject = format!("$JS.API.STREAM.DELETE.{prefix}-{stream}");
                let asked = client.get().unwrap().request(subject, "".into());
                // What stays costs the servers a little, and no test its result.
                drop(tokio::time::timeout(Duration::from_secs(10), asked).await);
            }
        });
    }
}
