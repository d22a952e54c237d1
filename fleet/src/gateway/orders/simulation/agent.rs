//! A model of an agent: connects, does what it is ordered, and tells of it.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use guest_agent_proto::agent_communication::{
    MessageBody, StreamAgentMessagesResponse, stream_agent_messages_response,
};
use guest_agent_proto::agent_controlplane::configure_plugin_states::Action;
use guest_agent_proto::agent_controlplane::current_plugin_states::DaemonPluginState;
use guest_agent_proto::agent_controlplane::plugin_event_message::PluginEventType;
use guest_agent_proto::agent_controlplane::{
    AgentInfo, ConfigurePluginStates, CurrentPluginStates, PluginEventMessage,
};
use guest_agent_proto::fleet::{AgentReport, PluginReport};
use guest_fleet_core::view::Target;
use prost::Message;
use sha2::{Digest, Sha256};
use tokio::time::Instant;

use super::world::World;
use crate::gateway::core::SessionHandle;
use crate::gateway::desk::{Desk, OpenSession};
use crate::gateway::messages;
use crate::gateway::orders::{GENERATION, Orders};
use crate::lock::lock;

/// How an agent treats orders.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Habits {
    /// It keeps generations, and an order that it acknowledged is not lost.
    Ours,
    /// It acknowledges first, may forget, and reports nothing by itself.
    Forgetful,
}

#[derive(Clone, Debug)]
pub(super) struct SimAgent {
    pub(super) id: String,
    habits: Habits,
    /// Revision and digest of the order, by plugin.
    plugins: BTreeMap<String, (String, [u8; 32])>,
    generations: BTreeMap<String, u64>,
    outbox: VecDeque<(String, PluginEventMessage)>,
    /// Plugin and id of every event, in order.
    pub(super) events: Vec<(String, String)>,
    is_reported: bool,
}

/// A frame that is in the transport.
struct Flying {
    at: Instant,
    frame: StreamAgentMessagesResponse,
}

// === impl SimAgent ===

impl SimAgent {
    pub(super) fn start(world: Arc<World>, id: String, habits: Habits) -> Arc<Mutex<Self>> {
        let agent = Arc::new(Mutex::new(Self {
            id,
            habits,
            plugins: BTreeMap::new(),
            generations: BTreeMap::new(),
            outbox: VecDeque::new(),
            events: Vec::new(),
            is_reported: false,
        }));
        tokio::spawn(live(world, agent.clone()));
        agent
    }

    /// What it has, for people.
    pub(super) fn shown(&self) -> String {
        let plugins: Vec<_> =
            self.plugins.iter().map(|(name, (revision, _))| format!("{name} {revision}")).collect();
        format!("{plugins:?}, generations {:?}", self.generations)
    }

    pub(super) fn has(&self, plugin: &str, target: &Target) -> bool {
        match target {
            Target::Absent => !self.plugins.contains_key(plugin),
            Target::Revision(revision) => {
                self.plugins.get(plugin).is_some_and(|(found, _)| found == revision)
            }
        }
    }

    fn tell(&mut self, world: &World, plugin: &str, revision: &str, kind: PluginEventType) {
        world.trace(|| format!("{} tells {plugin} {revision} {kind:?}", self.id));
        let id = world.id();
        self.events.push((plugin.to_owned(), id.clone()));
        let event = PluginEventMessage {
            plugin_name: plugin.to_owned(),
            revision_id: revision.to_owned(),
            event_type: kind.into(),
            ..PluginEventMessage::default()
        };
        self.outbox.push_back((id, event));
    }

    /// Does an order that arrived.
    fn ordered(&mut self, world: &World, body: &MessageBody) {
        let any = body.body.as_ref().expect("an order has a body");
        let states = ConfigurePluginStates::decode(any.value.as_slice()).expect("it decodes");
        let [entry] = states.configure_plugins.as_slice() else { panic!("one plugin per order") };
        let plugin = entry.plugin.as_ref().expect("a plugin");
        let generation: u64 = body.labels[GENERATION].parse().expect("a number");
        if self.habits == Habits::Ours {
            let highest = self.generations.entry(plugin.name.clone()).or_insert(0);
            if generation <= *highest {
                return;
            }
            *highest = generation;
        } else if !world.is_calm() && world.below(4) == 0 {
            world.trace(|| format!("{} forgets an order", self.id));
            return;
        }
        self.is_reported = false;
        world.trace(|| format!("{} does {} {}", self.id, plugin.name, plugin.revision_id));
        if entry.action() == Action::Remove {
            self.plugins.remove(&plugin.name);
            self.tell(world, &plugin.name, "", PluginEventType::PluginConfigRemove);
            return self.tell(world, &plugin.name, "", PluginEventType::PluginRemoved);
        }
        let (name, revision) = (&plugin.name, &plugin.revision_id);
        let is_there = self.plugins.get(name).is_some_and(|(found, _)| found == revision);
        if is_there && self.habits == Habits::Forgetful {
            // As public agents do.
            return self.tell(world, name, revision, PluginEventType::PluginInstallFailed);
        }
        let digest = Sha256::digest(&any.value).into();
        self.plugins.insert(name.clone(), (revision.clone(), digest));
        self.tell(world, name, revision, PluginEventType::PluginConfigInstall);
        self.tell(world, name, revision, PluginEventType::PluginInstalled);
    }

    fn report(&self) -> MessageBody {
        let names = self.plugins.keys().chain(self.generations.keys());
        let names: std::collections::BTreeSet<&String> = names.collect();
        let plugins = names.into_iter().map(|name| {
            let (revision, digest) = self.plugins.get(name).cloned().unwrap_or_default();
            PluginReport {
                name: name.clone(),
                order_digest: if revision.is_empty() { Vec::new() } else { digest.to_vec() },
                revision,
                generation: self.generations.get(name).copied().unwrap_or(0),
                ..PluginReport::default()
            }
        });
        let report = AgentReport {
            architecture: "amd64".to_owned(),
            capabilities: vec!["generations".to_owned()],
            plugins: plugins.collect(),
            ..AgentReport::default()
        };
        messages::pack(messages::AGENT_REPORT, &report)
    }

    fn list(&self) -> CurrentPluginStates {
        let state = |(name, (revision, _)): (&String, &(String, [u8; 32]))| DaemonPluginState {
            name: name.clone(),
            current_revision_id: revision.clone(),
            ..DaemonPluginState::default()
        };
        CurrentPluginStates {
            daemon_plugin_states: self.plugins.iter().map(state).collect(),
            ..CurrentPluginStates::default()
        }
    }
}

/// Connects again and again.
async fn live(world: Arc<World>, agent: Arc<Mutex<SimAgent>>) {
    let id = lock(&agent).id.clone();
    let mut flying = Vec::new();
    loop {
        let at = usize::try_from(world.below(2)).unwrap_or(0);
        let gateway = lock(&world.gateways)[at].orders.clone();
        let handle = Arc::new(SessionHandle::new("channel".into(), world.stream()));
        let session = Arc::new(OpenSession::new(id.as_str().into(), handle.clone()));
        world.trace(|| format!("{id} connects to gateway {at}"));
        lock(&agent).is_reported = false;
        if gateway.opened(session.clone()).await.is_ok() {
            world.fenced(&id, session.stream);
            let lasts = Duration::from_secs(2) + world.time(Duration::from_secs(30));
            let until = (!world.is_calm()).then(|| Instant::now() + lasts);
            talk(&world, &agent, &gateway, &session, &handle, &mut flying, until).await;
        }
        let is_ours = lock(&agent).habits == Habits::Ours;
        if is_ours && !world.is_calm() && world.below(2) == 0 {
            // The gateway does not notice for some time that the connection is gone.
            tokio::spawn(half_open(world.clone(), agent.clone(), gateway, session, handle));
        } else {
            gateway.closed(&session);
        }
        if lock(&agent).habits == Habits::Forgetful {
            // Its streams do not overlap: what was on its way is lost.
            flying.clear();
        }
        tokio::time::sleep(world.time(Duration::from_secs(2))).await;
    }
}

/// A stream that the agent has left: what it carries may still arrive, and nothing is answered.
async fn half_open(
    world: Arc<World>,
    agent: Arc<Mutex<SimAgent>>,
    gateway: Arc<Orders>,
    session: Arc<OpenSession>,
    handle: Arc<SessionHandle>,
) {
    let until = Instant::now() + Duration::from_secs(5) + world.time(Duration::from_secs(15));
    while Instant::now() < until && world.lives(&gateway) && handle.next_raw().is_ok() {
        while let Some(guarded) = handle.next_guarded() {
            if (guarded.guard)() {
                watched(&world, &session, &guarded.frame);
                if let Some(stream_agent_messages_response::Type::MessageBody(body)) =
                    &guarded.frame.r#type
                    && messages::message_type(body) == messages::CONFIGURE_PLUGIN_STATES
                {
                    lock(&agent).ordered(&world, body);
                }
            }
        }
        drop(tokio::time::timeout(Duration::from_millis(500), handle.changed()).await);
    }
    gateway.closed(&session);
}

/// One stream, until it breaks.
async fn talk(
    world: &Arc<World>,
    agent: &Arc<Mutex<SimAgent>>,
    gateway: &Arc<Orders>,
    session: &OpenSession,
    handle: &SessionHandle,
    flying: &mut Vec<Flying>,
    until: Option<Instant>,
) {
    loop {
        if until.is_some_and(|until| Instant::now() >= until) || handle.next_raw().is_err() {
            return;
        }
        while let Some(guarded) = handle.next_guarded() {
            if (guarded.guard)() {
                watched(world, session, &guarded.frame);
                let delay = world.time(Duration::from_secs(2));
                // What is sent on one stream arrives in order.
                let last = flying.last().map_or_else(Instant::now, |last| last.at);
                flying.push(Flying { at: last.max(Instant::now() + delay), frame: guarded.frame });
            }
        }
        let (due, later) = flying.drain(..).partition(|flying| flying.at <= Instant::now());
        *flying = later;
        for Flying { frame, .. } in due {
            arrived(world, agent, gateway, session, frame).await;
        }
        if !tells(world, agent, gateway, session).await {
            return;
        }
        // An idle agent looks seldom; one whose frames are under way, when the next one arrives.
        let idle = Duration::from_millis(200) + world.time(Duration::from_secs(1));
        let arrives = flying.first().map(|next| next.at.saturating_duration_since(Instant::now()));
        let pause = arrives.map_or(idle, |arrives| idle.min(arrives));
        drop(tokio::time::timeout(pause, handle.changed()).await);
        if !world.lives(gateway) {
            return;
        }
    }
}

/// Orders that leave are held against the configuration.
fn watched(world: &World, session: &OpenSession, frame: &StreamAgentMessagesResponse) {
    let Some(stream_agent_messages_response::Type::MessageBody(body)) = &frame.r#type else {
        return;
    };
    if messages::message_type(body) != messages::CONFIGURE_PLUGIN_STATES {
        return;
    }
    let any = body.body.as_ref().expect("an order has a body");
    let states = ConfigurePluginStates::decode(any.value.as_slice()).expect("it decodes");
    let entry = &states.configure_plugins[0];
    let plugin = entry.plugin.as_ref().expect("a plugin");
    let target = match entry.action() {
        Action::Remove => Target::Absent,
        _ => Target::Revision(plugin.revision_id.clone()),
    };
    let generation = body.labels[GENERATION].parse().expect("a number");
    world.gives(&session.resource, session.stream, generation);
    world.handed_over(&session.resource, &plugin.name, &target);
}

async fn arrived(
    world: &World,
    agent: &Arc<Mutex<SimAgent>>,
    gateway: &Arc<Orders>,
    session: &OpenSession,
    frame: StreamAgentMessagesResponse,
) {
    let Some(stream_agent_messages_response::Type::MessageBody(body)) = frame.r#type else {
        return;
    };
    let is_ours = lock(agent).habits == Habits::Ours;
    let reply = match messages::message_type(&body) {
        messages::CONFIGURE_PLUGIN_STATES => {
            if is_ours {
                lock(agent).ordered(world, &body);
            }
            gateway.answered(session, &frame.message_id, None).await;
            if !is_ours {
                lock(agent).ordered(world, &body);
            }
            return;
        }
        messages::LIST_PLUGIN_STATES => {
            messages::pack(messages::CURRENT_PLUGIN_STATES, &lock(agent).list())
        }
        messages::GET_AGENT_INFO => {
            let info = AgentInfo { architecture: "amd64".to_owned(), ..AgentInfo::default() };
            messages::pack(messages::AGENT_INFO, &info)
        }
        other => panic!("agents are not sent {other}"),
    };
    let mut reply = reply;
    for (label, value) in body.labels {
        reply.labels.entry(label).or_insert(value);
    }
    // The gateway asks again.
    let _is_taken = send(gateway, session, &world.id(), &reply).await;
}

/// Sends what waits; false when the stream is of no use.
async fn tells(
    world: &World,
    agent: &Arc<Mutex<SimAgent>>,
    gateway: &Arc<Orders>,
    session: &OpenSession,
) -> bool {
    let report = {
        let agent = lock(agent);
        (agent.habits == Habits::Ours && !agent.is_reported).then(|| agent.report())
    };
    if let Some(report) = report {
        lock(agent).is_reported = true;
        if send(gateway, session, &world.id(), &report).await.is_err() {
            lock(agent).is_reported = false;
            return false;
        }
    }
    while let Some((id, event)) = { lock(agent).outbox.front().cloned() } {
        let body = messages::pack(messages::PLUGIN_EVENT, &event);
        if send(gateway, session, &id, &body).await.is_err() {
            return world.below(2) == 0;
        }
        lock(agent).outbox.pop_front();
    }
    true
}

async fn send(
    gateway: &Arc<Orders>,
    session: &OpenSession,
    id: &str,
    body: &MessageBody,
) -> Result<(), ()> {
    let stream = Some(session.stream);
    gateway.received(&session.resource, stream, id, body).await.map_err(drop)
}
