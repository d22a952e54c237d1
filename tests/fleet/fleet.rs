//! A fleet at work: gateways, enrolled agents behind the proxy, and what the fleet remembers.

use std::sync::Arc;

use futures_util::future::join_all;
use guest_agent_lab::ArtifactServer;
use guest_fleet_ledger::SharedLedger;
use tokio::sync::Mutex;

use crate::agents::read_deeds;
use crate::checker::Ended;
use crate::control::{Control, Engine, Gateway};
use crate::crowd::{self, Agents, Member};
use crate::harness::{ArchiveSpec, archive};
use crate::nats_cluster::{self, NatsCluster};
use crate::proxy::Proxy;
use crate::wishes::Archive;
use crate::{from_environment, say};

/// One run at a time: each of them needs the whole machine.
pub(crate) static MACHINE: Mutex<()> = Mutex::const_new(());

/// How many there are.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shape {
    pub(crate) gateways: usize,
    /// Processes of played agents, and how many are in each.
    pub(crate) processes: usize,
    pub(crate) each: usize,
    pub(crate) real: usize,
    /// How many seconds apart the two looks at an agent are that tell that it drifted.
    pub(crate) drift_apart: u64,
}

/// The directories of a run.
pub(crate) struct Places {
    /// Of everything with a socket or a program in it.
    pub(crate) whole: tempfile::TempDir,
    /// Of what is synced all the time. No power fails here, so it may be in memory.
    pub(crate) synced: tempfile::TempDir,
}

/// A fleet at work.
pub(crate) struct Fleet {
    pub(crate) control: Arc<Control>,
    pub(crate) gateways: Vec<Gateway>,
    pub(crate) agents: Vec<Agents>,
    pub(crate) members: Vec<Member>,
    pub(crate) proxy: Arc<Proxy>,
    pub(crate) ledger: SharedLedger,
    /// The servers of the ledger, where it has any.
    pub(crate) cluster: Option<NatsCluster>,
    /// An archive of a plugin that works.
    pub(crate) archive: Archive,
    artifacts: ArtifactServer,
}

/// Where the randomness of a run begins.
pub(crate) fn seed() -> u64 {
    from_environment("FLEET_SEED").unwrap_or_else(rand::random)
}

/// A cluster for a ledger; `None` where the servers' program is not here.
pub(crate) async fn nats(places: &Places) -> Option<(Engine, NatsCluster)> {
    let program = nats_cluster::program()?;
    let folder = places.synced.path().to_owned();
    let cluster = tokio::task::spawn_blocking(move || NatsCluster::start(&program, &folder));
    let cluster = cluster.await.unwrap();
    Some((Engine::Nats(cluster.address("fleet")), cluster))
}

// === impl Places ===

impl Places {
    pub(crate) fn new() -> Self {
        let kept = std::env::var_os("FLEET_KEEP").is_some();
        let inside = |folder: &str| {
            let mut builder = tempfile::Builder::new();
            builder.prefix("gf-").disable_cleanup(kept).tempdir_in(folder)
        };
        // Sockets have paths of 107 bytes at most.
        let whole = inside("/tmp").unwrap();
        let synced = inside("/dev/shm").or_else(|_| inside("/tmp")).unwrap();
        Self { whole, synced }
    }
}

// === impl Fleet ===

impl Fleet {
    /// Starts everything; the agents are enrolled and have no order yet.
    pub(crate) async fn start(
        places: &Places,
        engine: Engine,
        cluster: Option<NatsCluster>,
        shape: Shape,
    ) -> Self {
        drop(rustls::crypto::ring::default_provider().install_default());
        let (directory, synced) = (places.whole.path(), places.synced.path());
        let artifacts = ArtifactServer::start(([127, 0, 0, 1], 0).into()).await.unwrap();
        let archive = published(&artifacts, "echo.tar", ArchiveSpec::echo()).await;
        let control = Control::start(directory, engine).await;
        let mut gateways: Vec<_> = (0..shape.gateways)
            .map(|number| Gateway::new(&control, number, shape.drift_apart))
            .collect();
        join_all(gateways.iter_mut().map(Gateway::up)).await;
        say("the gateways are up");

        let groups = shape.processes + shape.real;
        let addresses: Vec<_> = gateways.iter().map(|gateway| gateway.address).collect();
        let proxy = Proxy::start(groups, &addresses).await;
        let members: Vec<Vec<Member>> = (0..groups)
            .map(|group| {
                if group < shape.processes {
                    return crowd::members(synced, group, shape.each);
                }
                crowd::members(directory, group, 1)
            })
            .collect();
        let all: Vec<Member> = members.iter().flatten().cloned().collect();
        // Each lets in so many in a second.
        let servers: Vec<String> =
            gateways.iter().map(|it| format!("https://{}", it.enrolment)).collect();
        crowd::enrol(&control, &servers, &all).await;
        say(format_args!("{} machines are enrolled", all.len()));
        let mut agents: Vec<Agents> = members
            .into_iter()
            .enumerate()
            .map(|(group, mut members)| {
                let endpoint = proxy.endpoint(group);
                if group < shape.processes {
                    return Agents::many(directory, group, &endpoint, members);
                }
                Agents::real(directory, group, &endpoint, members.remove(0))
            })
            .collect();
        agents.iter_mut().for_each(Agents::up);
        Self {
            ledger: control.ledger().await,
            control,
            cluster,
            gateways,
            agents,
            members: all,
            proxy: Arc::new(proxy),
            archive,
            artifacts,
        }
    }

    /// Makes an archive that the agents can fetch.
    pub(crate) async fn publish(&self, name: &str, spec: ArchiveSpec) -> Archive {
        published(&self.artifacts, name, spec).await
    }

    /// Ends the agents; what is known of each by its own files.
    pub(crate) async fn end_agents(&mut self) -> Vec<Ended> {
        let agents = std::mem::take(&mut self.agents).into_iter();
        let ends = join_all(agents.map(Agents::end)).await;
        let ended = ends.into_iter().flatten().map(|(member, last, running)| {
            let deeds = read_deeds(&member.directory);
            Ended { member, last, running, deeds }
        });
        ended.collect()
    }

    /// Waits until the servers of the ledger have everything that they missed.
    pub(crate) async fn heal(&mut self) {
        let Some(cluster) = self.cluster.take() else { return };
        let healthy = tokio::task::spawn_blocking(|| {
            cluster.wait_healthy();
            cluster
        });
        self.cluster = Some(healthy.await.unwrap());
    }
}

async fn published(artifacts: &ArtifactServer, name: &str, spec: ArchiveSpec) -> Archive {
    let archive::Archive { url, sha256, entry_point, .. } =
        archive::publish(artifacts, name, spec).await;
    Archive { url, sha256, entry_point }
}
