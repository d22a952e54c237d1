//! A model of a public agent: it acknowledges first and may forget, does whatever comes last, fails
//! a repeated installation of what is there, echoes labels, and sends no report.

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
use guest_agent_serve_kit::lock::lock;
use guest_fleet_core::view::Target;
use guest_fleet_sessions::messages;
use prost::Message;
use tokio::sync::oneshot;
use tokio::time::Instant;

use super::line::{self, Down, Line, Up};
use super::world::World;

/// How long an acknowledgement is awaited.
const ACKNOWLEDGEMENT: Duration = Duration::from_secs(5);

/// Such an agent.
#[derive(Clone, Debug)]
pub(super) struct Google {
    pub(super) id: String,
    /// Revision by plugin.
    plugins: BTreeMap<String, String>,
    outbox: VecDeque<(String, PluginEventMessage)>,
    /// Plugin and id of every event, in order.
    pub(super) events: Vec<(String, String)>,
}

// === impl Google ===

impl Google {
    pub(super) fn start(world: &Arc<World>, id: &str) -> Arc<Mutex<Self>> {
        let agent = Arc::new(Mutex::new(Self {
            id: id.to_owned(),
            plugins: BTreeMap::new(),
            outbox: VecDeque::new(),
            events: Vec::new(),
        }));
        tokio::spawn(live(world.clone(), agent.clone()));
        agent
    }

    /// What it has, for people.
    pub(super) fn shown(&self) -> String {
        format!("{:?}", self.plugins)
    }

    pub(super) fn has(&self, plugin: &str, target: &Target) -> bool {
        match (target, self.plugins.get(plugin)) {
            (Target::Absent, found) => found.is_none(),
            (Target::Revision(revision), found) => found == Some(revision),
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
        if world.one_in(4) {
            return world.trace(|| format!("{} forgets an order", self.id));
        }
        world.trace(|| format!("{} does {} {}", self.id, plugin.name, plugin.revision_id));
        if entry.action() == Action::Remove {
            self.plugins.remove(&plugin.name);
            self.tell(world, &plugin.name, "", PluginEventType::PluginConfigRemove);
            return self.tell(world, &plugin.name, "", PluginEventType::PluginRemoved);
        }
        let (name, revision) = (&plugin.name, &plugin.revision_id);
        if self.plugins.get(name) == Some(revision) {
            return self.tell(world, name, revision, PluginEventType::PluginInstallFailed);
        }
        self.plugins.insert(name.clone(), revision.clone());
        self.tell(world, name, revision, PluginEventType::PluginConfigInstall);
        self.tell(world, name, revision, PluginEventType::PluginInstalled);
    }

    fn list(&self) -> CurrentPluginStates {
        let state = |(name, revision): (&String, &String)| DaemonPluginState {
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

/// Connects again and again. Its streams do not overlap: what was under way is lost.
async fn live(world: Arc<World>, agent: Arc<Mutex<Google>>) {
    let id = lock(&agent).id.clone();
    loop {
        if let Some(line) = line::open(&world, &id).await {
            let lasts = Duration::from_secs(2) + world.time(Duration::from_secs(30));
            let until = (!world.is_calm()).then(|| Instant::now() + lasts);
            talk(&world, &agent, line, until).await;
        }
        tokio::time::sleep(world.time(Duration::from_secs(2))).await;
    }
}

/// One stream, until it breaks.
async fn talk(world: &World, agent: &Mutex<Google>, mut line: Line, until: Option<Instant>) {
    loop {
        if !tells(world, agent, &line).await {
            return;
        }
        let breaks = async {
            match until {
                Some(until) => tokio::time::sleep_until(until).await,
                None => std::future::pending().await,
            }
        };
        let Down { at, frame } = tokio::select! {
            biased;
            () = breaks => return,
            down = line.down.recv() => match down {
                Some(down) => down,
                None => return,
            },
        };
        tokio::time::sleep_until(at).await;
        if !arrived(world, agent, &line, frame).await {
            return;
        }
    }
}

async fn arrived(
    world: &World,
    agent: &Mutex<Google>,
    line: &Line,
    frame: StreamAgentMessagesResponse,
) -> bool {
    let Some(stream_agent_messages_response::Type::MessageBody(body)) = frame.r#type else {
        return true;
    };
    if messages::message_type(&body) == messages::CONFIGURE_PLUGIN_STATES {
        if !world.one_in(10) {
            drop(line.up.send(Up::Answer { id: frame.message_id, status: None }));
        }
        lock(agent).ordered(world, &body);
        return true;
    }
    let reply = reply(body, || lock(agent).list());
    // The gateway asks again.
    let _is_taken = send(line, &world.id(), reply).await;
    true
}

/// What an agent answers to the questions of a gateway, with the labels of the question.
pub(crate) fn reply(body: MessageBody, list: impl FnOnce() -> CurrentPluginStates) -> MessageBody {
    let mut reply = match messages::message_type(&body) {
        messages::LIST_PLUGIN_STATES => messages::pack(messages::CURRENT_PLUGIN_STATES, &list()),
        messages::GET_AGENT_INFO => {
            let info = AgentInfo { architecture: "amd64".to_owned(), ..AgentInfo::default() };
            messages::pack(messages::AGENT_INFO, &info)
        }
        other => panic!("agents are not sent {other}"),
    };
    for (label, value) in body.labels {
        reply.labels.entry(label).or_insert(value);
    }
    reply
}

/// Sends what waits; false when the stream is of no use.
async fn tells(world: &World, agent: &Mutex<Google>, line: &Line) -> bool {
    while let Some((id, event)) = { lock(agent).outbox.front().cloned() } {
        let body = messages::pack(messages::PLUGIN_EVENT, &event);
        if !send(line, &id, body).await {
            if world.below(2) == 0 {
                return false;
            }
            tokio::time::sleep(Duration::from_millis(250)).await;
            continue;
        }
        lock(agent).outbox.pop_front();
    }
    true
}

/// Sends a body and waits for its acknowledgement; whether it came.
pub(crate) async fn send(line: &Line, id: &str, body: MessageBody) -> bool {
    let (done, answer) = oneshot::channel();
    if line.up.send(Up::Body { id: id.to_owned(), body, done }).is_err() {
        return false;
    }
    matches!(tokio::time::timeout(ACKNOWLEDGEMENT, answer).await, Ok(Ok(Ok(()))))
}
