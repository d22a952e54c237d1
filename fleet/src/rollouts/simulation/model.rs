//! A model of an agent that keeps generations and sends reports, over the wire as it is. It takes an
//! order once, does it after a while, and tells what became of it; on some the new release is bad.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use guest_agent_proto::agent_communication::{
    MessageBody, StreamAgentMessagesResponse, stream_agent_messages_response,
};
use guest_agent_proto::agent_controlplane::plugin_event_message::PluginEventType;
use guest_agent_proto::agent_controlplane::{
    ConfigurePluginStates, CurrentPluginStates, PluginEventMessage,
};
use guest_agent_proto::fleet::plugin_report::Installation;
use guest_agent_proto::fleet::{AgentReport, PluginReport};
use guest_agent_serve_kit::lock::lock;
use guest_fleet_sessions::messages;
use prost::Message;
use sha2::{Digest, Sha256};
use tokio::sync::Notify;
use tokio::time::Instant;

use super::case::{NEW, PLUGIN, Release};
use crate::orders::GENERATION;
use crate::orders::simulation::google::{reply, send};
use crate::orders::simulation::line::{self, Down, Line, Up};
use crate::orders::simulation::world::World;

/// Longest that an installation takes.
const INSTALLS: Duration = Duration::from_secs(6);

/// How long a new revision is on trial before it crashes.
const TRIAL: Duration = Duration::from_secs(3);

/// Such an agent.
pub(super) struct Model {
    pub(super) id: String,
    /// What becomes of the new release.
    new: Release,
    seen: Mutex<Seen>,
    leaves: Notify,
}

/// What is durable.
#[derive(Default)]
struct Seen {
    is_away: bool,
    /// The revision that is there, and the digest of its order.
    has: (String, Vec<u8>),
    /// What was there before.
    former: (String, Vec<u8>),
    coming: Option<Coming>,
    generation: u64,
    outbox: VecDeque<(String, PluginEventMessage)>,
    /// The gateway of this stream knows what is there.
    is_reported: bool,
    /// The revisions of the orders that it took.
    taken: Vec<String>,
}

struct Coming {
    revision: String,
    digest: Vec<u8>,
    stage: Stage,
    /// When it ends; `None` where it never does.
    due: Option<Instant>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Stage {
    Installing,
    /// It is there and will crash.
    OnTrial,
}

// === impl Model ===

impl Model {
    pub(super) fn start(world: &Arc<World>, id: String, new: Release) -> Arc<Self> {
        let agent = Arc::new(Self { id, new, seen: Mutex::default(), leaves: Notify::new() });
        tokio::spawn(live(world.clone(), agent.clone()));
        agent
    }

    /// The revision that is there.
    pub(super) fn has(&self) -> String {
        lock(&self.seen).has.0.clone()
    }

    /// The revisions of the orders that it took.
    pub(super) fn taken(&self) -> Vec<String> {
        lock(&self.seen).taken.clone()
    }

    /// It goes out of reach.
    pub(super) fn leave(&self) {
        lock(&self.seen).is_away = true;
        self.leaves.notify_one();
    }

    /// Its machine loses everything.
    pub(super) fn forgets(&self, world: &World) {
        world.trace(|| format!("{} LOSES EVERYTHING", self.id));
        world.laws.forgets(&self.id);
        let seen = &mut *lock(&self.seen);
        *seen = Seen { taken: std::mem::take(&mut seen.taken), ..Seen::default() };
        self.leaves.notify_one();
    }

    pub(super) fn come_back(&self) {
        lock(&self.seen).is_away = false;
    }

    /// Takes an order, unless it took it or a newer one before.
    fn ordered(&self, world: &World, id: &str, body: &MessageBody) {
        let generation = body.labels.get(GENERATION).and_then(|text| text.parse().ok());
        let generation: u64 = generation.expect("an order has a generation");
        let any = body.body.as_ref().expect("an order has a body");
        let states = ConfigurePluginStates::decode(any.value.as_slice()).expect("it decodes");
        let [entry] = states.configure_plugins.as_slice() else { panic!("one plugin per order") };
        let revision = entry.plugin.as_ref().expect("a plugin").revision_id.clone();
        let seen = &mut *lock(&self.seen);
        if generation <= seen.generation {
            return;
        }
        world.laws.taken(&self.id, id);
        seen.generation = generation;
        seen.taken.push(revision.clone());
        seen.is_reported = false;
        let never = self.new == Release::NeverAnswers && revision == NEW;
        let due =
            (!never).then(|| Instant::now() + Duration::from_millis(500) + world.delay(INSTALLS));
        seen.tell(world, &revision, PluginEventType::PluginConfigInstall, "");
        let digest = Sha256::digest(&any.value).to_vec();
        seen.coming = Some(Coming { revision, digest, stage: Stage::Installing, due });
    }

    /// Does what is due.
    fn go_on(&self, world: &World) {
        let seen = &mut *lock(&self.seen);
        let is_due = |coming: &mut Coming| coming.due.is_some_and(|due| due <= Instant::now());
        let Some(coming) = seen.coming.take_if(is_due) else { return };
        seen.is_reported = false;
        let Coming { revision, digest, stage, .. } = coming;
        let fate = if revision == NEW { self.new } else { Release::Good };
        world.trace(|| format!("{} goes on with {revision}", self.id));
        match (stage, fate) {
            (Stage::Installing, Release::FailsToInstall) => {
                seen.tell(world, &revision, PluginEventType::PluginInstallFailed, "exit code 3");
            }
            (Stage::Installing, Release::IsTakenBack) => {
                seen.former = std::mem::replace(&mut seen.has, (revision.clone(), digest.clone()));
                seen.tell(world, &revision, PluginEventType::PluginInstalled, "");
                let (stage, due) = (Stage::OnTrial, Some(Instant::now() + TRIAL));
                seen.coming = Some(Coming { revision, digest, stage, due });
            }
            (Stage::Installing, Release::Good | Release::NeverAnswers) => {
                seen.has = (revision.clone(), digest);
                seen.tell(world, &revision, PluginEventType::PluginInstalled, "");
            }
            (Stage::OnTrial, _) => {
                seen.has = seen.former.clone();
                seen.tell(world, &revision, PluginEventType::PluginCrashed, "signal 11");
                seen.tell(world, &revision, PluginEventType::PluginInstallFailed, "it crashed");
            }
        }
    }

    /// When something is due.
    fn due(&self) -> Option<Instant> {
        lock(&self.seen).coming.as_ref()?.due
    }

    fn report(&self) -> AgentReport {
        let seen = lock(&self.seen);
        let coming = seen.coming.as_ref().filter(|coming| coming.stage == Stage::Installing);
        AgentReport {
            architecture: "amd64".to_owned(),
            boot_id: self.id.clone(),
            capabilities: vec!["generations".to_owned()],
            plugins: Vec::from_iter((seen.generation > 0).then(|| PluginReport {
                name: PLUGIN.to_owned(),
                revision: seen.has.0.clone(),
                order_digest: seen.has.1.clone(),
                pending_revision: coming.map(|it| it.revision.clone()).unwrap_or_default(),
                generation: seen.generation,
                installation: Installation::Dynamic.into(),
                ..PluginReport::default()
            })),
            ..AgentReport::default()
        }
    }
}

// === impl Seen ===

impl Seen {
    fn tell(&mut self, world: &World, revision: &str, kind: PluginEventType, details: &str) {
        let event = PluginEventMessage {
            plugin_name: PLUGIN.to_owned(),
            revision_id: revision.to_owned(),
            event_type: kind.into(),
            event_details: Some(details.as_bytes().to_vec()),
            ..PluginEventMessage::default()
        };
        self.outbox.push_back((world.id(), event));
    }
}

/// Connects again and again.
async fn live(world: Arc<World>, agent: Arc<Model>) {
    loop {
        let is_away = lock(&agent.seen).is_away;
        if !is_away && let Some(line) = line::open(&world, &agent.id).await {
            lock(&agent.seen).is_reported = false;
            talk(&world, &agent, line).await;
        }
        agent.go_on(&world);
        tokio::time::sleep(Duration::from_millis(100) + world.time(Duration::from_secs(2))).await;
    }
}

/// One stream, until it breaks.
async fn talk(world: &World, agent: &Model, mut line: Line) {
    let lasts = Duration::from_secs(3) + world.time(Duration::from_secs(40));
    let breaks = async {
        tokio::time::sleep(lasts).await;
        if world.is_calm() {
            std::future::pending::<()>().await;
        }
    };
    tokio::pin!(breaks);
    loop {
        agent.go_on(world);
        if !tells(world, agent, &line).await {
            return;
        }
        let due = agent.due();
        let is_due = async {
            match due {
                Some(due) => tokio::time::sleep_until(due).await,
                None => std::future::pending().await,
            }
        };
        let Down { at, frame } = tokio::select! {
            biased;
            () = agent.leaves.notified() => return,
            () = &mut breaks => return,
            down = line.down.recv() => match down {
                Some(down) => down,
                None => return,
            },
            () = is_due => continue,
        };
        tokio::time::sleep_until(at).await;
        arrived(world, agent, &line, frame).await;
    }
}

async fn arrived(world: &World, agent: &Model, line: &Line, frame: StreamAgentMessagesResponse) {
    let Some(stream_agent_messages_response::Type::MessageBody(body)) = frame.r#type else {
        return;
    };
    if messages::message_type(&body) == messages::CONFIGURE_PLUGIN_STATES {
        agent.ordered(world, &frame.message_id, &body);
        if !world.one_in(10) {
            // A gateway that is gone reads nothing any more.
            drop(line.up.send(Up::Answer { id: frame.message_id, status: None }));
        }
        return;
    }
    let reply = reply(body, CurrentPluginStates::default);
    // The gateway asks again.
    let _is_taken = send(line, &world.id(), reply).await;
}

/// Sends what waits, and a report where something changed; false when the stream is of no use.
async fn tells(world: &World, agent: &Model, line: &Line) -> bool {
    loop {
        let front = lock(&agent.seen).outbox.front().cloned();
        let (id, body) = match front {
            Some((id, event)) => (id, messages::pack(messages::PLUGIN_EVENT, &event)),
            None if lock(&agent.seen).is_reported => return true,
            None => {
                lock(&agent.seen).is_reported = true;
                (world.id(), messages::pack(messages::AGENT_REPORT, &agent.report()))
            }
        };
        let is_event = messages::message_type(&body) == messages::PLUGIN_EVENT;
        if !send(line, &id, body).await {
            lock(&agent.seen).is_reported = false;
            if line.up.is_closed() || world.below(2) == 0 {
                return false;
            }
            tokio::time::sleep(Duration::from_millis(250)).await;
        } else if is_event {
            lock(&agent.seen).outbox.pop_front();
        }
    }
}
