//! All actors on fakes, wired as the real agent wires them, with an agent that can be crashed.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use tokio::task::LocalSet;

use crate::admission::Gate;
use crate::fakes::{
    AdmissionHandle, ClockHandle, CountedIds, CountersHandle, FactsHandle, Fate, InstallerHandle,
    LauncherHandle, LinkHandle, LocalHandle, MachineHandle, MeterHandle, ProberHandle, RpcHandle,
    StorageHandle, SweeperHandle, admission, clock, facts, installer, launcher, link, local,
    machine, meter, prober, rpc, storage, sweeper,
};
use crate::messages::{
    LinkChanged, ListPlugins, Listed, OrderOutcome, Received, Submission, Submit, SubmitError,
};
use crate::model::audit::Asker;
use crate::model::health::HealthPolicy;
use crate::model::view::PluginView;
use crate::outbox::{Bounds, Destination};
use crate::plugin::state::Policy;
use crate::ports::{ControlLink, InboundMessage, Ports, Receipt, ServerKind};
use crate::system::{Settings, System, start};
use crate::wire::AgentFacts;

/// The pause between two checks of a wait: short at first, longer when the wait takes long.
const LOOKS: (Duration, Duration) = (Duration::from_millis(20), Duration::from_millis(500));

/// Everything that an agent does not take with it when it dies.
pub struct World {
    /// Files.
    pub installer: InstallerHandle,
    /// Processes.
    pub launcher: LauncherHandle,
    /// What plugins answer.
    pub rpc: RpcHandle,
    /// What processes use.
    pub meter: MeterHandle,
    /// Records.
    pub storage: StorageHandle,
    /// What is cleared away.
    pub sweeper: SweeperHandle,
    /// The admission plugin that judges each deployment.
    pub admission: AdmissionHandle,
    /// Plugins that came with the machine.
    pub local: LocalHandle,
    /// Sockets of what plugins offer.
    pub prober: ProberHandle,
    /// The control plane.
    pub link: LinkHandle,
    /// The machine.
    pub machine: MachineHandle,
    /// What rules are weighed by.
    pub facts: FactsHandle,
    /// What was counted.
    pub counters: CountersHandle,
    /// The time of day.
    pub clock: ClockHandle,
    ports: Ports,
}

/// A world with at most one agent in it.
pub struct Harness {
    /// The fakes, which outlive the agents.
    pub world: World,
    /// The settings of the next agent.
    pub settings: Settings,
    life: Option<RunningAgent>,
}

struct RunningAgent {
    actors: LocalSet,
    system: System,
}

// === impl World ===

impl World {
    fn new() -> Self {
        let (fake_installer, installer) = installer();
        let (fake_launcher, launcher) = launcher();
        let (fake_rpc, rpc) = rpc();
        let (fake_meter, meter) = meter();
        let (fake_storage, storage) = storage();
        let (fake_sweeper, sweeper) = sweeper();
        let (fake_admission, admission) = admission();
        let (fake_local, local) = local();
        let (fake_prober, prober) = prober();
        let (fake_link, link) = link();
        let (fake_machine, machine) = machine(launcher.clone());
        let (fake_counters, counters) = super::counters::counters();
        let (fake_clock, clock) = clock();
        let (fake_facts, facts) = facts();
        let ports = Ports {
            installer: Arc::new(fake_installer),
            launcher: Arc::new(fake_launcher),
            rpc: Arc::new(fake_rpc),
            meter: Arc::new(fake_meter),
            storage: Arc::new(fake_storage),
            sweeper: Arc::new(fake_sweeper),
            admission: Arc::new(fake_admission),
            local: Arc::new(fake_local),
            prober: Arc::new(fake_prober),
            link: Arc::new(fake_link),
            machine: Arc::new(fake_machine),
            facts: Arc::new(fake_facts),
            counters: Arc::new(fake_counters),
            clock: Arc::new(fake_clock),
            ids: Arc::new(CountedIds::default()),
        };
        Self {
            installer,
            launcher,
            rpc,
            meter,
            storage,
            sweeper,
            admission,
            local,
            prober,
            link,
            machine,
            facts,
            counters,
            clock,
            ports,
        }
    }

    /// From now on all fakes ask `fate` what they do, where nothing is scripted.
    pub fn set_fate(&self, fate: &Arc<dyn Fate>) {
        let deciders = [
            self.installer.fate(),
            self.launcher.fate(),
            self.rpc.fate(),
            self.meter.fate(),
            self.storage.fate(),
            self.link.fate(),
        ];
        deciders.iter().for_each(|decider| decider.set(fate.clone()));
    }

    /// What no agent may ever do to its world: run two processes of a plugin, run what is not on
    /// disk, or change the same files from two sides.
    #[must_use]
    pub fn mistakes(&self) -> Vec<String> {
        let mut mistakes = self.launcher.mistakes();
        mistakes.extend(self.installer.mistakes());
        for (name, revision) in self.launcher.all_alive() {
            if !self.installer.on_disk(&name).contains(&revision) {
                mistakes.push(format!("{name} {revision} runs but is not on disk"));
            }
        }
        mistakes
    }
}

// === impl Harness ===

impl Harness {
    /// A world in which no agent runs yet.
    #[must_use]
    pub fn asleep() -> Self {
        let settings = Settings {
            policy: Policy::default(),
            health: HealthPolicy {
                interval: Duration::from_secs(10),
                timeout: Duration::from_secs(2),
                failures: 3,
            },
            agent: AgentFacts { name: "guest-agent".to_owned(), version: "1.2.3".to_owned() },
            destination: Destination::ControlPlane,
            outbox: Bounds::default(),
            gate: Gate::default(),
            service_url: tokio::sync::watch::channel("https://control.example".into()).1,
            refusing: None,
            labels: Arc::new(BTreeMap::from([("rack".to_owned(), "7".to_owned())])),
        };
        Self { world: World::new(), settings, life: None }
    }

    /// A world with an agent that is connected to its control plane.
    pub async fn awake() -> Self {
        let mut harness = Self::asleep();
        harness.wake().await;
        harness.connect().await;
        harness
    }

    /// From the next agent on, this is the connection to the control plane. [`World::link`] is not
    /// asked any more.
    pub fn use_link(&mut self, link: Arc<dyn ControlLink>) {
        self.world.ports.link = link;
    }

    /// Whether there is an agent.
    #[must_use]
    pub const fn is_awake(&self) -> bool {
        self.life.is_some()
    }

    /// Starts an agent on whatever the one before it left. It is not connected.
    ///
    /// # Panics
    /// When an agent runs already.
    pub async fn wake(&mut self) {
        assert!(self.life.is_none(), "an agent runs already");
        self.world.launcher.next_life();
        let actors = LocalSet::new();
        let (ports, settings) = (self.world.ports.clone(), self.settings.clone());
        let system = actors.run_until(start(ports, settings)).await;
        self.life = Some(RunningAgent { actors, system });
    }

    /// The agent was killed, in the middle of its work.
    pub fn crash(&mut self) {
        self.world.link.disconnect();
        self.life = None;
        self.world.storage.revive();
    }

    /// A crash, and another machine in the place of this one, on which nothing is. Its connection and its ids
    /// are those of the former.
    pub fn replace_machine(&mut self) {
        self.crash();
        let (link, ids) = (self.world.ports.link.clone(), self.world.ports.ids.clone());
        self.world = World::new();
        (self.world.ports.link, self.world.ports.ids) = (link, ids);
    }

    /// A crash, another agent, and a new stream for it.
    pub async fn crash_and_wake(&mut self) {
        self.crash();
        self.wake().await;
        self.connect().await;
    }

    /// The actors of the agent, if there is one. They run while [`Harness::run`] does.
    #[must_use]
    pub fn system(&self) -> Option<&System> {
        self.life.as_ref().map(|life| &life.system)
    }

    /// The actor that ended, if one that there is one of has: the agent has to start again.
    #[must_use]
    pub fn ended(&self) -> Option<&'static str> {
        self.life.as_ref()?.system.ended().now_or_never()
    }

    /// Lets the actors run while `work` does.
    ///
    /// # Panics
    /// When no agent runs.
    pub async fn run<F: Future>(&self, work: impl FnOnce(&System) -> F) -> F::Output {
        let RunningAgent { actors, system } = self.life.as_ref().expect("an agent runs");
        actors.run_until(work(system)).await
    }

    /// A new stream is registered, of a server that announces nothing.
    pub async fn connect(&self) {
        self.connect_to(ServerKind::Public).await;
    }

    /// A new stream is registered.
    pub async fn connect_to(&self, server: ServerKind) {
        let stream = self.world.link.connect();
        self.link_changed(LinkChanged::Connected { stream, server }).await;
    }

    /// The stream ends.
    pub async fn disconnect(&self) {
        self.world.link.disconnect();
        self.link_changed(LinkChanged::Disconnected { reason: "a test".into() }).await;
    }

    async fn link_changed(&self, change: LinkChanged) {
        self.run(|system| system.report.send(change.clone()))
            .await
            .expect("the report actor lives");
        self.run(|system| system.link_changed.send(change)).await.expect("the outbox lives");
    }

    /// The control plane sends a message on the newest stream. Answers when the agent dealt with it
    /// as far as the stream is concerned.
    pub async fn receive(&self, message_id: &str, labels: &[(&str, &str)], body: Vec<u8>) {
        let labels: BTreeMap<String, String> =
            labels.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
        let receipt =
            Receipt { stream: self.world.link.stream(), message_id: message_id.to_owned() };
        let message = InboundMessage { receipt, labels, body };
        self.run(|system| system.control_plane.send(Received(message)))
            .await
            .expect("the control-plane actor lives");
    }

    /// A user of this machine gives orders.
    ///
    /// # Errors
    /// When they could not be decoded or made durable.
    pub async fn submit(&self, submission: Submission) -> Result<Vec<OrderOutcome>, SubmitError> {
        self.submit_as(None, submission).await
    }

    /// The same, by somebody whom the audit record is to name.
    ///
    /// # Errors
    /// When they could not be decoded or made durable.
    pub async fn submit_as(
        &self,
        asker: Option<Asker>,
        submission: Submission,
    ) -> Result<Vec<OrderOutcome>, SubmitError> {
        let submit = Submit { submission, asker, traceparent: None };
        let submitted = self.run(|system| system.control_plane.send(submit)).await;
        Ok(submitted.expect("the control-plane actor lives")?.outcomes)
    }

    /// What the manager lists.
    pub async fn list(&self) -> Vec<Listed> {
        self.run(|system| system.manager.send(ListPlugins)).await.expect("the manager lives")
    }

    /// What one plugin looks like.
    pub async fn view(&self, name: &str) -> Option<Arc<PluginView>> {
        let listed = self.list().await;
        listed.into_iter().map(|plugin| plugin.view).find(|view| view.name.as_str() == name)
    }

    /// Lets this much time pass.
    pub async fn pass(&self, time: Duration) {
        self.run(|_| tokio::time::sleep(time)).await;
    }

    /// Waits until the fakes and the roster are as they should be.
    ///
    /// # Panics
    /// When they are not within `limit`, or when the agent made a mistake in its world.
    #[track_caller]
    pub fn until(
        &self,
        what: &str,
        limit: Duration,
        mut holds: impl FnMut(&World, &[Listed]) -> bool,
    ) -> impl Future<Output = ()> {
        let caller = std::panic::Location::caller();
        async move {
            let began = tokio::time::Instant::now();
            loop {
                let listed = self.list().await;
                let mistakes = self.world.mistakes();
                assert!(mistakes.is_empty(), "{caller}: {mistakes:#?}");
                if holds(&self.world, &listed) {
                    return;
                }
                assert!(
                    began.elapsed() < limit,
                    "{caller}: not within {limit:?}: {what}; there is {:#?}",
                    listed.iter().map(|plugin| in_short(&plugin.view)).collect::<Vec<_>>()
                );
                self.pass((began.elapsed() / 20).clamp(LOOKS.0, LOOKS.1)).await;
            }
        }
    }
}

/// A plugin on one line.
fn in_short(view: &PluginView) -> String {
    let PluginView { name, revision, state, reason, pending, generation, .. } = view;
    format!("{name} {revision} {state:?} {reason:?} order {} pending {pending:?}", generation.0)
}
