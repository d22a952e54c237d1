//! A process with many agents. Each has the link, the actors and the store that ship; only its plugins
//! are played.
//!
//! ```text
//!   this test program, once more ─► Seat ─┬─► LinkConfig, certificate ─► link ══ TLS ══► proxy ─► gateway
//!    (many_agents_until_they_are_told_to_end)   ├─► system::start: inbox, generations, outbox, plugins
//!                                         ├─► SledStorage, which `recorder` looks at
//!                                         └─► `plugins`: files and processes that survive the agent
//! ```
//!
//! What an agent did is written line by line into a file of its own ([`deeds`]), which survives a
//! kill. A process that is asked to end waits until its agents have told everything, and writes what
//! their stores know ([`Last`]).

mod deeds;
mod machine;
mod plugins;
mod recorder;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use actix::prelude::*;
use async_trait::async_trait;
use guest_agent::enroll::files::Identity;
use guest_agent::link::{self, LinkConfig, LinkListener};
use guest_agent::net::tls::{ClientCertificate, TlsFiles};
use guest_agent::store::{self, StateLock, StoreFate};
use guest_agent_actors::admission::Gate;
use guest_agent_actors::control_plane::ControlPlaneActor;
use guest_agent_actors::fakes;
use guest_agent_actors::messages::{LinkChanged, ListViews, Received, Save};
use guest_agent_actors::model::event::{SettledEvent, Settlement};
use guest_agent_actors::model::health::HealthPolicy;
use guest_agent_actors::model::view::Activity;
use guest_agent_actors::outbox::{Bounds, Destination};
use guest_agent_actors::plugin::restart::RestartPolicy;
use guest_agent_actors::plugin::state::Policy;
use guest_agent_actors::ports::{
    AlwaysOpen, Durability, InboundMessage, NoCounters, Ports, RandomIds, ServerKind, Storage,
    Table,
};
use guest_agent_actors::records::read_generation;
use guest_agent_actors::system::{self, Settings, System};
use guest_agent_actors::wire::AgentFacts;
use serde::{Deserialize, Serialize};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::{Semaphore, watch};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

pub(crate) use deeds::{Deed, Line, Outcome, read as read_deeds, read_lines};
use machine::{PlayedMachine, WallClock};
use plugins::{Files, Launches, Processes};
pub(crate) use plugins::{break_machine, mend_machine, running};
use recorder::Recorder;

/// Names the file with the [`Spec`] of such a process.
const SPEC: &str = "FLEET_AGENTS";

/// The agents' channel, as it is configured where nothing else is.
const CHANNEL: &str = "compute.googleapis.com/google-guest-agent";

/// Settled events that an agent keeps: more than a run has.
const HISTORY: usize = 20_000;

/// How many agents of a process open their stores at a time, which must not take long.
const OPENING: usize = 8;

/// Longest time in which an agent that ends tells what it has to tell.
const LAST_WORDS: Duration = Duration::from_secs(60);

/// How soon an agent that ends looks at its plugins again.
const LOOK_AGAIN: Duration = Duration::from_millis(100);

/// What such a process does.
#[derive(Serialize, Deserialize)]
pub(crate) struct Spec {
    /// Where the control plane is.
    pub(crate) endpoint: String,
    pub(crate) seats: Vec<Seat>,
}

/// An agent and its directory.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Seat {
    pub(crate) id: String,
    pub(crate) directory: PathBuf,
}

/// What the store of an agent knows at the end.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(crate) struct Last {
    /// Every event, in the order in which they happened.
    pub(crate) events: Vec<Told>,
    /// How many events the control plane has not acknowledged.
    pub(crate) waiting: usize,
    /// The highest generation of each plugin.
    pub(crate) generations: BTreeMap<String, u64>,
}

/// An event that an agent told.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Told {
    pub(crate) seq: u64,
    pub(crate) id: String,
    pub(crate) plugin: String,
    pub(crate) acknowledged: bool,
}

#[test]
#[ignore = "it is the process that the others start"]
fn many_agents_until_they_are_told_to_end() {
    if let Some(file) = std::env::var_os(SPEC) {
        let spec = std::fs::read(file).unwrap();
        run(serde_json::from_slice(&spec).unwrap());
    }
}

/// The command that runs the agents of this file.
pub(crate) fn command(spec: &Path) -> tokio::process::Command {
    let mut command = tokio::process::Command::new(std::env::current_exe().unwrap());
    command
        .args(["agents::many_agents_until_they_are_told_to_end", "--exact", "--ignored"])
        .arg("--nocapture")
        .env(SPEC, spec);
    command
}

/// What an agent knew when its process ended by itself.
pub(crate) fn last(directory: &Path) -> Last {
    let file = directory.join("last.json");
    let bytes = std::fs::read(&file).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
    serde_json::from_slice(&bytes).unwrap()
}

fn run(spec: Spec) {
    // A test that is killed leaves nothing behind.
    rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL)).unwrap();
    tracing_subscriber::fmt()
        .with_env_filter(std::env::var("FLEET_LOG").unwrap_or_else(|_| "warn".to_owned()))
        .with_writer(std::io::stderr)
        .with_ansi(false)
        .init();
    drop(rustls::crypto::ring::default_provider().install_default());
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    actix_rt::System::with_tokio_rt(|| runtime).block_on(async move {
        let mut terminate = signal(SignalKind::terminate()).unwrap();
        let (ending, mut lives) = (CancellationToken::new(), JoinSet::new());
        let opening = Arc::new(Semaphore::new(OPENING));
        for seat in spec.seats {
            lives.spawn_local(live(seat, spec.endpoint.clone(), opening.clone(), ending.clone()));
        }
        tokio::select! {
            _ = terminate.recv() => ending.cancel(),
            ended = lives.join_next() => panic!("an agent ended by itself: {ended:?}"),
        }
        while let Some(ended) = lives.join_next().await {
            ended.unwrap();
        }
    });
}

/// The life of one agent, from what an earlier process left of it.
async fn live(seat: Seat, endpoint: String, opening: Arc<Semaphore>, ending: CancellationToken) {
    let deeds = Arc::new(deeds::Deeds::open(&seat.directory));
    let lock = StateLock::acquire(&seat.directory).unwrap();
    let turn = opening.acquire().await.unwrap();
    let opened = store::open(&lock, &seat.directory.join("store")).await.unwrap();
    drop(turn);
    if !matches!(opened.fate, StoreFate::Fresh | StoreFate::Existing) {
        deeds.note(&Deed::StoreLost(format!("{:?}", opened.fate)));
    }
    let storage: Arc<dyn Storage> = Arc::new(Recorder::new(opened.storage, deeds.clone()));
    let listener = Arc::new(Listener::default());
    let (link, task) = link::connect(link_config(&seat, &endpoint), listener.clone());
    let ports = ports(&seat, storage.clone(), link.clone(), &deeds);
    let system = system::start(ports, settings()).await;
    listener.serve(&system);
    let task = tokio::task::spawn_local(task.run());
    ending.cancelled().await;
    // Where it takes longer, the checker finds what waits.
    drop(tokio::time::timeout(LAST_WORDS, all_acknowledged(&system, &*storage)).await);
    link.close();
    task.await.unwrap();
    // Passes through the store's actor, so that it comes after all earlier writes.
    system.store.send(Save::default()).await.unwrap().unwrap();
    storage.commit(Vec::new(), Durability::Durable).await.unwrap();
    let last = known(&*storage).await;
    let bytes = serde_json::to_vec(&last).unwrap();
    std::fs::write(seat.directory.join("last.json"), bytes).unwrap();
}

/// Waits until no plugin has anything to do and every event is acknowledged.
///
/// A report may end an order in the fleet before the agent has recorded the events of the same
/// step, so an empty outbox alone says little: the plugins are asked first, and the store after them.
async fn all_acknowledged(system: &System, storage: &dyn Storage) {
    let mut depth = system.events.depth.clone();
    loop {
        let views = system.manager.send(ListViews).await.unwrap();
        // Without an answer, plugins of an earlier process are not all back.
        let is_settled =
            views.is_some_and(|views| views.iter().all(|view| view.activity == Activity::Settled));
        // Passes through the store's actor, so that it comes after the writes of settled plugins.
        system.store.send(Save::default()).await.unwrap().unwrap();
        let is_empty = storage.load(Table::Outbox).await.unwrap().is_empty();
        if is_settled && is_empty {
            return;
        }
        drop(tokio::time::timeout(LOOK_AGAIN, depth.changed()).await);
    }
}

/// What a store knows.
async fn known(storage: &dyn Storage) -> Last {
    let mut last =
        Last { waiting: storage.load(Table::Outbox).await.unwrap().len(), ..Last::default() };
    for (key, bytes) in storage.load(Table::History).await.unwrap() {
        let SettledEvent { recorded, how } = SettledEvent::decode(&key, &bytes).unwrap();
        last.events.push(Told {
            seq: recorded.seq,
            id: recorded.id.to_string(),
            plugin: recorded.event.plugin.to_string(),
            acknowledged: how == Settlement::Acknowledged,
        });
    }
    for (key, bytes) in storage.load(Table::Facts).await.unwrap() {
        if let Some((name, newest)) = read_generation(&key, &bytes).unwrap() {
            last.generations.insert(name.to_string(), newest.generation.get());
        }
    }
    last
}

fn link_config(seat: &Seat, endpoint: &str) -> LinkConfig {
    let identity = Identity::below(&seat.directory);
    let client = ClientCertificate { certificate: identity.agent(), key: identity.agent() };
    let tls = TlsFiles { authorities: Some(identity.trust()), client: Some(client) };
    LinkConfig::new(endpoint.parse().unwrap(), &seat.id, CHANNEL).unwrap().with_tls(tls)
}

fn ports(
    seat: &Seat,
    storage: Arc<dyn Storage>,
    link: link::Link,
    deeds: &Arc<deeds::Deeds>,
) -> Ports {
    Ports {
        installer: Arc::new(Files::new(deeds.clone())),
        launcher: Arc::new(Launches(Processes::found(seat, deeds.clone()))),
        rpc: Arc::new(fakes::rpc().0),
        meter: Arc::new(fakes::meter().0),
        storage,
        sweeper: Arc::new(fakes::sweeper().0),
        admission: Arc::new(fakes::admission().0),
        local: Arc::new(fakes::local().0),
        prober: Arc::new(fakes::prober().0),
        link: Arc::new(link),
        machine: Arc::new(PlayedMachine::new(&seat.id)),
        facts: Arc::new(fakes::facts().0),
        counters: Arc::new(NoCounters),
        clock: Arc::new(WallClock),
        pauses: Arc::new(fakes::pauses().0),
        ids: Arc::new(RandomIds),
    }
}

fn settings() -> Settings {
    Settings {
        policy: Policy { restart: RestartPolicy::default(), probation: Duration::from_millis(600) },
        health: HealthPolicy {
            interval: Duration::from_secs(30),
            timeout: Duration::from_secs(30),
            failures: 3,
        },
        agent: AgentFacts { name: "guest-agent".to_owned(), version: "0.0.0".to_owned() },
        destination: Destination::ControlPlane,
        outbox: Bounds { history: HISTORY, ..Bounds::default() },
        gate: Gate::default(),
        service_url: watch::channel("https://fleet.example".into()).1,
        refusing: None,
        labels: Arc::new(BTreeMap::new()),
        windows: Arc::new(AlwaysOpen),
    }
}

// === Listener ===

/// Between the link and the actors, which are made after it; as in the agent's own wiring.
#[derive(Default)]
struct Listener {
    control_plane: OnceLock<Addr<ControlPlaneActor>>,
    link_changed: OnceLock<[Recipient<LinkChanged>; 2]>,
}

impl Listener {
    fn serve(&self, system: &System) {
        drop(self.control_plane.set(system.control_plane.clone()));
        drop(self.link_changed.set([system.link_changed.clone(), system.report.clone()]));
    }

    fn tell(&self, change: &LinkChanged) {
        for receiver in self.link_changed.get().into_iter().flatten() {
            receiver.do_send(change.clone());
        }
    }
}

#[async_trait]
impl LinkListener for Listener {
    async fn received(&self, message: InboundMessage) {
        if let Some(control_plane) = self.control_plane.get() {
            control_plane.send(Received(message)).await.unwrap();
        }
    }

    fn connected(&self, stream: u64, server: ServerKind) {
        self.tell(&LinkChanged::Connected { stream, server });
    }

    fn disconnected(&self, reason: String) {
        self.tell(&LinkChanged::Disconnected { reason: reason.into() });
    }
}
