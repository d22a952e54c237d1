//! Agents as they are: all actors of the agent, with its inbox, its outbox, its generations and its
//! reports, on fakes for files, processes and records. They are killed in the middle of a commit or
//! between two, and start again on what was durable.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use actix::Recipient;
use guest_agent_actors::fakes::{
    Answer, Committing, Fact, Fate, Harness, InstallerHandle, LauncherHandle, StorageHandle,
};
use guest_agent_actors::messages::{LinkChanged, ListPlugins, Received, Submission, Submit};
use guest_agent_actors::model::act::Act;
use guest_agent_actors::model::event::StoredEvent;
use guest_agent_actors::model::origin::Origin;
use guest_agent_actors::ports::{InboundMessage, Receipt, ServerKind, Table, Write};
use guest_agent_actors::records::{InboxContent, InboxEntry};
use guest_agent_actors::system::System;
use guest_agent_proto::agent_communication::stream_agent_messages_response;
use guest_agent_proto::agent_controlplane::ConfigurePluginStates;
use guest_agent_proto::agent_controlplane::configure_plugin_states::{
    Action, ConfigurePlugin, Plugin,
};
use guest_agent_serve_kit::lock::lock;
use guest_fleet_core::view::Target;
use prost::Message;
use tokio::sync::mpsc;
use tokio::time::Instant;

use super::line::{self, Down, Line};
use super::link::Link;
use super::operator::PLUGINS;
use super::world::World;
use crate::orders::GENERATION;
use crate::simulated::removed::{self, Guard};

/// How long a new revision is on trial.
const PROBATION: Duration = Duration::from_secs(6);

/// How often processes are asked how they are: seldom, because they are always well.
const HEALTH: Duration = Duration::from_secs(300);

/// Longest pause of an owner.
const OWNER: Duration = Duration::from_secs(20);

/// How long frames of a stream that the agent has left still arrive.
const LINGER: Duration = Duration::from_secs(10);

/// What a run sees of such an agent from outside.
pub(crate) struct Ours {
    pub(crate) id: String,
    witness: Arc<Witness>,
}

/// What is seen of a machine from outside.
#[derive(Clone)]
struct Machine {
    installer: InstallerHandle,
    launcher: LauncherHandle,
}

/// Sees what really happens in the agent, and decides what goes wrong with it.
struct Witness {
    world: Arc<World>,
    agent: String,
    machine: Mutex<Machine>,
    seen: Mutex<Seen>,
}

#[derive(Default)]
struct Seen {
    /// Plugin and id of every event, in the order in which they became durable.
    events: Vec<(String, String)>,
    known: BTreeSet<String>,
    /// Those of a machine that is gone: they may have been sent or not.
    lost: BTreeSet<String>,
    /// Plugins that the owner of the machine stopped.
    stopped: BTreeSet<String>,
    /// Plugins that the owner removed, and that no order of the fleet is about since.
    removed: BTreeSet<String>,
}

// === impl Ours ===

impl Ours {
    /// Starts an agent, on the local set that is running.
    pub(crate) fn start(world: &Arc<World>, id: &str) -> Self {
        let mut harness = Harness::asleep();
        harness.settings.policy.probation = PROBATION;
        harness.settings.health.interval = HEALTH;
        let witness = Arc::new(Witness {
            world: world.clone(),
            agent: id.to_owned(),
            machine: Mutex::new(Machine::of(&harness)),
            seen: Mutex::default(),
        });
        witness.clone().watches(&harness);
        let link = Arc::new(Link::new(world.clone()));
        harness.use_link(link.clone());
        let ours = Self { id: id.to_owned(), witness: witness.clone() };
        tokio::task::spawn_local(lives(world.clone(), harness, link, witness));
        ours
    }

    /// Whether it has what is wanted of a plugin.
    pub(crate) fn has(&self, plugin: &str, target: &Target) -> bool {
        let Machine { installer, launcher } = lock(&self.witness.machine).clone();
        let running = launcher.alive(plugin);
        let there = installer.on_disk(plugin);
        match target {
            Target::Absent => running.is_empty() && there.is_empty(),
            // What an owner removed stays away.
            Target::Revision(_) if lock(&self.witness.seen).removed.contains(plugin) => {
                running.is_empty() && there.is_empty()
            }
            // It is there, and waits for its owner.
            Target::Revision(revision) if lock(&self.witness.seen).stopped.contains(plugin) => {
                there.contains(revision)
            }
            Target::Revision(revision) => {
                matches!(running.as_slice(), [(_, found)] if found == revision)
            }
        }
    }

    /// What it has, for people.
    pub(crate) fn shown(&self) -> String {
        let Machine { installer, launcher } = lock(&self.witness.machine).clone();
        let there: Vec<_> =
            PLUGINS.iter().map(|plugin| (plugin, installer.on_disk(plugin))).collect();
        let Seen { stopped, removed, .. } = &*lock(&self.witness.seen);
        let alive = launcher.all_alive();
        format!("{alive:?} of {there:?}, stopped {stopped:?}, removed {removed:?}")
    }

    /// Plugin and id of every event, in order.
    pub(crate) fn events(&self) -> Vec<(String, String)> {
        lock(&self.witness.seen).events.clone()
    }

    /// Ids of events that may have been lost with a machine.
    pub(crate) fn lost(&self) -> BTreeSet<String> {
        lock(&self.witness.seen).lost.clone()
    }

    /// What no agent may do to its machine.
    pub(crate) fn mistakes(&self) -> Vec<String> {
        lock(&self.witness.machine).mistakes()
    }
}

// === impl Machine ===

impl Machine {
    fn of(harness: &Harness) -> Self {
        let (installer, launcher) = (&harness.world.installer, &harness.world.launcher);
        Self { installer: installer.clone(), launcher: launcher.clone() }
    }

    fn mistakes(&self) -> Vec<String> {
        let mut mistakes = self.launcher.mistakes();
        mistakes.extend(self.installer.mistakes());
        mistakes
    }
}

/// Lives, dies, and lives again.
async fn lives(world: Arc<World>, mut harness: Harness, link: Arc<Link>, witness: Arc<Witness>) {
    loop {
        harness.wake().await;
        let Some(system) = harness.system() else { return };
        let lasts = Duration::from_secs(5) + world.time(Duration::from_secs(60));
        let dies = dies(&world, &harness.world.storage, Instant::now() + lasts);
        let connects = connects(&world, system, &link, &witness.agent);
        let owner = owner(&world, system, &witness);
        let life = async {
            tokio::select! {
                biased;
                () = dies => {}
                () = connects => {}
                () = owner => {}
            }
        };
        harness.run(|_| life).await;
        world.trace(|| format!("{} is killed", witness.agent));
        link.hang_up();
        if world.shape.forgets && world.one_in(3) {
            harness.replace_machine();
            witness.clone().begins_anew(&harness);
        } else {
            harness.crash();
        }
        tokio::time::sleep(world.time(Duration::from_secs(5))).await;
    }
}

/// Ends when the agent is to be killed.
async fn dies(world: &World, storage: &StorageHandle, at: Instant) {
    let ages = async {
        tokio::time::sleep_until(at).await;
        if world.is_calm() {
            std::future::pending::<()>().await;
        }
    };
    tokio::select! {
        biased;
        // In a commit.
        () = storage.crashed() => {}
        () = ages => {}
    }
}

/// Connects again and again.
async fn connects(world: &Arc<World>, system: &System, link: &Arc<Link>, agent: &str) {
    loop {
        if let Some(line) = line::open(world, agent).await {
            serve(world, system, link, line).await;
        }
        tokio::time::sleep(world.time(Duration::from_secs(2))).await;
    }
}

/// One stream, until it breaks.
async fn serve(world: &Arc<World>, system: &System, link: &Arc<Link>, line: Line) {
    let Line { stream, up, down } = line;
    link.attach(stream, up);
    tell(system, LinkChanged::Connected { stream, server: ServerKind::Fleet }).await;
    let doors =
        (system.control_plane.clone().recipient(), system.control_plane.clone().recipient());
    let mut reader = tokio::task::spawn_local(read(doors, link.clone(), stream, down));
    let lasts = Duration::from_secs(2) + world.time(Duration::from_secs(30));
    let breaks = async {
        tokio::time::sleep(lasts).await;
        if world.is_calm() {
            std::future::pending::<()>().await;
        }
        if world.one_in(3) {
            // Nothing arrives, and neither side knows.
            link.darken(stream);
            tokio::time::sleep(world.time(Duration::from_secs(8))).await;
        }
    };
    let is_lingering = tokio::select! {
        biased;
        ended = &mut reader => { drop(ended); false }
        () = breaks => world.one_in(2),
    };
    link.detach(stream);
    tell(system, LinkChanged::Disconnected { reason: "the stream broke".into() }).await;
    if is_lingering {
        // What is under way on it arrives beside what comes on the next one.
        let over = tokio::time::sleep(world.time(LINGER));
        tokio::task::spawn_local(async move {
            over.await;
            reader.abort();
        });
    } else {
        reader.abort();
    }
}

/// Tells the actors of a stream, as the link does.
async fn tell(system: &System, change: LinkChanged) {
    // They live as long as the agent.
    let _is_told = system.report.send(change.clone()).await;
    let _is_told = system.link_changed.send(change).await;
}

/// Reads a stream until the gateway ends it, one message after the other.
async fn read(
    (to, person): (Recipient<Received>, Recipient<Submit>),
    link: Arc<Link>,
    stream: u64,
    mut down: mpsc::UnboundedReceiver<Down>,
) {
    while let Some(Down { at, frame }) = down.recv().await {
        tokio::time::sleep_until(at).await;
        let Some(stream_agent_messages_response::Type::MessageBody(body)) = frame.r#type else {
            continue;
        };
        if link.is_dark(stream) {
            continue;
        }
        let mut labels: BTreeMap<String, String> = body.labels.into_iter().collect();
        if removed::is(Guard::Generations) {
            labels.remove(GENERATION);
        }
        let is_order = labels.contains_key(GENERATION);
        let receipt = Receipt { stream, message_id: frame.message_id };
        let body = body.body.map(|any| any.value).unwrap_or_default();
        if to.send(Received(InboundMessage { receipt, labels, body })).await.is_err() {
            return;
        }
        if is_order && removed::is(Guard::OwnerStopped) {
            for name in PLUGINS.iter().filter_map(|plugin| plugin.parse().ok()) {
                let submission = Submission::Asked(name, Act::Start);
                person.do_send(Submit { submission, asker: None, traceparent: None });
            }
        }
    }
}

/// The owner of the machine stops a plugin now and then, starts it again, or removes it.
async fn owner(world: &World, system: &System, witness: &Witness) {
    loop {
        if !world.shape.owners {
            return std::future::pending().await;
        }
        let pause = if world.is_calm() { Duration::ZERO } else { world.time(OWNER) };
        tokio::time::sleep(Duration::from_secs(4) + pause).await;
        if !world.is_calm() {
            let plugin = PLUGINS[usize::try_from(world.below(2)).unwrap_or(0)];
            let Ok(name) = plugin.parse() else { continue };
            let submission = if world.below(4) == 0 {
                world.trace(|| format!("the owner of {} removes {plugin}", witness.agent));
                Submission::Configure(removal(plugin))
            } else {
                let was_stopped = lock(&witness.seen).stopped.remove(plugin);
                let act = if was_stopped { Act::Start } else { Act::Stop("the owner".into()) };
                world.trace(|| format!("the owner of {}: {plugin} {act:?}", witness.agent));
                Submission::Asked(name, act)
            };
            let submit = Submit { submission, asker: None, traceparent: None };
            if !matches!(system.control_plane.send(submit).await, Ok(Ok(_))) {
                continue;
            }
            // What was asked before is carried out by then.
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
        // An agent that was killed may have it on record that a plugin is stopped, or not.
        let Ok(listed) = system.manager.send(ListPlugins).await else { continue };
        let stopped = listed.iter().filter(|listed| listed.view.stopped.is_some());
        let stopped = stopped.map(|listed| listed.view.name.to_string()).collect();
        lock(&witness.seen).stopped = stopped;
    }
}

/// An order to remove a plugin.
fn removal(plugin: &str) -> Vec<u8> {
    let order = ConfigurePlugin {
        action: Action::Remove.into(),
        plugin: Some(Plugin { name: plugin.to_owned(), ..Plugin::default() }),
        ..ConfigurePlugin::default()
    };
    ConfigurePluginStates { configure_plugins: vec![order] }.encode_to_vec()
}

// === impl Witness ===

impl Witness {
    fn watches(self: Arc<Self>, harness: &Harness) {
        let fate: Arc<dyn Fate> = self;
        harness.world.set_fate(&fate);
    }

    /// The machine lost everything.
    fn begins_anew(self: Arc<Self>, harness: &Harness) {
        self.world.trace(|| format!("{} LOSES EVERYTHING", self.agent));
        for mistake in lock(&self.machine).mistakes() {
            self.world.laws.breaks(format!("{}: {mistake}", self.agent));
        }
        *lock(&self.machine) = Machine::of(harness);
        let seen = &mut *lock(&self.seen);
        seen.lost.clone_from(&seen.known);
        seen.stopped.clear();
        seen.removed.clear();
        self.world.laws.forgets(&self.agent);
        self.clone().watches(harness);
    }

    fn committed(&self, writes: &[Write]) {
        for write in writes {
            let Write::Put { table, key, value } = write else { continue };
            match table {
                Table::Outbox => {
                    let Ok(event) = StoredEvent::decode(key, value) else { continue };
                    let (plugin, id) = (event.event.plugin.to_string(), event.id.to_string());
                    let seen = &mut *lock(&self.seen);
                    if seen.known.insert(id.clone()) {
                        seen.events.push((plugin, id));
                    }
                }
                Table::Inbox => {
                    let Ok(entry) = InboxEntry::decode(value) else { continue };
                    self.ordered(&entry);
                    if let (Origin::ControlPlane, Some(trace)) = (entry.origin, entry.trace) {
                        self.world.laws.taken(&self.agent, &trace.message_id);
                    }
                }
                Table::Plugins | Table::History | Table::Facts | Table::Registry | Table::Audit => {
                }
            }
        }
    }

    /// Notes of whose plugins the owner decides, and of whose the fleet.
    fn ordered(&self, entry: &InboxEntry) {
        let InboxContent::Configure(body) = &entry.content else { return };
        let Ok(states) = ConfigurePluginStates::decode(body.as_slice()) else { return };
        let removed = &mut lock(&self.seen).removed;
        for order in states.configure_plugins {
            let name = order.plugin.as_ref().map(|plugin| plugin.name.clone()).unwrap_or_default();
            if entry.origin == Origin::Local && order.action() == Action::Remove {
                removed.insert(name);
            } else {
                removed.remove(&name);
            }
        }
    }

    fn started(&self, plugin: &str) {
        self.world.trace(|| format!("{} starts {plugin}", self.agent));
        if lock(&self.seen).stopped.contains(plugin) {
            let agent = &self.agent;
            self.world
                .laws
                .breaks(format!("{agent} started {plugin}, which its owner had stopped"));
        }
    }
}

impl Fate for Witness {
    fn answer(&self, what: &'static str, _name: &str) -> Answer {
        if matches!(what, "download" | "launch" | "remove") && self.world.one_in(3) {
            return Answer::Late(self.world.time(Duration::from_secs(4)));
        }
        Answer::Succeed
    }

    fn commit(&self, _writes: &[Write]) -> Committing {
        if !self.world.one_in(60) {
            return Committing::Succeed;
        }
        match self.world.below(3) {
            0 => Committing::DieBefore,
            1 => Committing::DieAfter,
            _ => Committing::Late(self.world.time(Duration::from_millis(800))),
        }
    }

    fn happened(&self, fact: Fact<'_>) {
        match fact {
            Fact::Committed(writes, _) => self.committed(writes),
            Fact::Spawned(spec, _) => self.started(spec.name.as_str()),
            // The stop goes with the plugin.
            Fact::Deleted(plugin, None) => drop(lock(&self.seen).stopped.remove(plugin)),
            Fact::Installed(_)
            | Fact::Deleted(_, Some(_))
            | Fact::Started(..)
            | Fact::LaunchFailed(_)
            | Fact::Ended(..)
            | Fact::Limited(..)
            | Fact::Applied(..)
            | Fact::Heard(_)
            | Fact::Confirmed(_)
            | Fact::Acknowledged(_) => {}
        }
    }
}
