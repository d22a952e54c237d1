//! Agents as the public one is, against the program: they acknowledge first and may forget, report an
//! installation of what they have as a failure, echo labels, and send no report of their own.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use guest_agent_proto::agent_communication::{MessageBody, StreamAgentMessagesResponse};
use guest_agent_proto::agent_controlplane::configure_plugin_states::Action;
use guest_agent_proto::agent_controlplane::current_plugin_states::{
    DaemonPluginState, Status, StatusValue,
};
use guest_agent_proto::agent_controlplane::plugin_event_message::PluginEventType;
use guest_agent_proto::agent_controlplane::{
    AgentInfo, ConfigurePluginStates, CurrentPluginStates, PluginEventMessage,
};
use guest_fleet_sessions::messages;
use tokio::task::JoinSet;
use tonic::transport::Endpoint;

use crate::gateway::binary::{Served, ask};
use crate::gateway::client::{Agent, Down, registration, reply};
use crate::gateway::{CHANNEL, LONG};

/// How often an order is given at most: once, and three times more to an agent that forgets.
const GIVEN: usize = 4;

/// What an agent does to an order, every first time that it comes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Habit {
    /// Nothing: it is an honest agent.
    Does,
    /// It restarts before it acknowledges.
    RestartsFirst,
    /// It acknowledges, and restarts without having done it.
    ForgetsAcknowledged,
    /// It acknowledges, says that it begins, and restarts without having done it.
    ForgetsBegun,
    /// It does it, and restarts without having acknowledged it.
    DoesUnheard,
    /// It acknowledges and does it, and its events are lost.
    DoesSilently,
    /// It acknowledges and forgets, every time.
    ForgetsAlways,
}

const HABITS: [Habit; 7] = [
    Habit::Does,
    Habit::RestartsFirst,
    Habit::ForgetsAcknowledged,
    Habit::ForgetsBegun,
    Habit::DoesUnheard,
    Habit::DoesSilently,
    Habit::ForgetsAlways,
];

/// What is left of a stream after a message.
#[derive(PartialEq, Eq)]
enum Stream {
    Goes,
    Breaks,
}

/// Ends the agent's half of the stream, and waits until the server has read what was sent.
async fn half_close(agent: Agent) {
    let Agent { out, mut inbound, .. } = agent;
    drop(out);
    let read = async { while let Ok(Some(_)) = inbound.message().await {} };
    drop(tokio::time::timeout(Duration::from_secs(1), read).await);
}

struct Machine {
    id: String,
    habit: Habit,
    /// The revision of the one plugin.
    revision: Option<String>,
    /// Orders, and how often each came.
    orders: BTreeMap<(u64, String), usize>,
    sent: u64,
    /// What an agent like this must not be ordered.
    wrong: Vec<String>,
}

// === impl Machine ===

impl Machine {
    fn start(directory: &Path, habit: Habit, tasks: &mut JoinSet<()>) -> Arc<Mutex<Self>> {
        let machine = Arc::new(Mutex::new(Self {
            id: format!("projects/1/zones/z/instances/{habit:?}"),
            habit,
            revision: None,
            orders: BTreeMap::new(),
            sent: 0,
            wrong: Vec::new(),
        }));
        let endpoint = format!("unix:{}/cp.sock", directory.display());
        tasks.spawn(live(endpoint, machine.clone()));
        machine
    }

    fn id(&mut self) -> String {
        self.sent += 1;
        format!("{:?}-{}", self.habit, self.sent)
    }

    fn event(&mut self, kind: PluginEventType, revision: &str, details: &str) -> MessageBody {
        let event = PluginEventMessage {
            plugin_name: "monitor".to_owned(),
            revision_id: revision.to_owned(),
            event_type: kind.into(),
            event_details: Some(details.as_bytes().to_vec()),
            ..PluginEventMessage::default()
        };
        messages::pack(messages::PLUGIN_EVENT, &event)
    }

    /// Name, revision and status, and nothing else.
    fn states(&self) -> CurrentPluginStates {
        let state = |revision: &String| DaemonPluginState {
            name: "monitor".to_owned(),
            current_revision_id: revision.clone(),
            current_plugin_status: Some(Status {
                status: StatusValue::Running.into(),
                ..Status::default()
            }),
            ..DaemonPluginState::default()
        };
        CurrentPluginStates {
            daemon_plugin_states: self.revision.iter().map(state).collect(),
            ..CurrentPluginStates::default()
        }
    }

    /// Takes an order: whether it is acknowledged, the events that it leads to, and what comes of the
    /// stream.
    fn ordered(&mut self, body: &MessageBody) -> (bool, Vec<MessageBody>, Stream) {
        let states: ConfigurePluginStates = messages::unpack(body).unwrap();
        let [entry] = states.configure_plugins.as_slice() else {
            panic!("one plugin in {states:?}")
        };
        let plugin = entry.plugin.as_ref().unwrap();
        assert_eq!(plugin.name, "monitor");
        let (revision, action) = (plugin.revision_id.clone(), entry.action());
        let wanted = (action == Action::Install).then(|| revision.clone());
        if wanted == self.revision {
            self.wrong.push(format!("{action:?} {revision} of what is so already"));
        }
        let generation = body.labels["fleet-generation"].parse().unwrap();
        let times = self.orders.entry((generation, format!("{action:?} {revision}"))).or_default();
        *times += 1;
        let habit = if *times == 1 || self.habit == Habit::ForgetsAlways {
            self.habit
        } else {
            Habit::Does
        };
        let (begins, ends) = match action {
            Action::Remove => (PluginEventType::PluginConfigRemove, PluginEventType::PluginRemoved),
            _ => (PluginEventType::PluginConfigInstall, PluginEventType::PluginInstalled),
        };
        let begun = self.event(begins, &revision, "");
        match habit {
            Habit::RestartsFirst => (false, Vec::new(), Stream::Breaks),
            Habit::ForgetsAcknowledged | Habit::ForgetsAlways => (true, Vec::new(), Stream::Breaks),
            Habit::ForgetsBegun => (true, vec![begun], Stream::Breaks),
            Habit::DoesUnheard => {
                self.revision = wanted;
                (false, Vec::new(), Stream::Breaks)
            }
            Habit::DoesSilently => {
                self.revision = wanted;
                (true, Vec::new(), Stream::Breaks)
            }
            Habit::Does if wanted == self.revision => {
                let failed = match action {
                    Action::Remove => PluginEventType::PluginRemoveFailed,
                    _ => PluginEventType::PluginInstallFailed,
                };
                (true, vec![self.event(failed, &revision, "it is so already")], Stream::Goes)
            }
            Habit::Does => {
                self.revision = wanted;
                let done = self.event(ends, &revision, "");
                (true, vec![begun, done], Stream::Goes)
            }
        }
    }
}

/// Connects again and again.
async fn live(endpoint: String, machine: Arc<Mutex<Machine>>) {
    loop {
        if let Ok(channel) = Endpoint::from_shared(endpoint.clone()).unwrap().connect().await {
            // However it ends, the next stream comes.
            let _ended = stream(channel, &machine).await;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

async fn stream(
    channel: tonic::transport::Channel,
    machine: &Mutex<Machine>,
) -> Result<(), tonic::Status> {
    let id = machine.lock().unwrap().id.clone();
    let metadata = [
        ("authentication", "Bearer token"),
        ("agent-communication-resource-id", id.as_str()),
        ("agent-communication-channel-id", CHANNEL),
    ];
    let mut agent = Agent::open(channel, &metadata).await?;
    agent.send(registration("r", &id, CHANNEL)).await;
    while let Some(StreamAgentMessagesResponse { message_id, r#type }) =
        agent.inbound.message().await?
    {
        let Some(Down::MessageBody(body)) = r#type else { continue };
        let (is_acknowledged, answers, stream) = match messages::message_type(&body) {
            messages::GET_AGENT_INFO => {
                let info = AgentInfo { architecture: "amd64".to_owned(), ..AgentInfo::default() };
                let info = messages::pack(messages::AGENT_INFO, &info);
                (true, vec![reply(&body.labels, info)], Stream::Goes)
            }
            messages::LIST_PLUGIN_STATES => {
                let states = machine.lock().unwrap().states();
                let states = messages::pack(messages::CURRENT_PLUGIN_STATES, &states);
                (true, vec![reply(&body.labels, states)], Stream::Goes)
            }
            messages::CONFIGURE_PLUGIN_STATES => machine.lock().unwrap().ordered(&body),
            other => panic!("{other} was not expected"),
        };
        // It acknowledges everything at once.
        if is_acknowledged {
            agent.answer(&message_id, None).await;
        }
        for answer in answers {
            let id = machine.lock().unwrap().id();
            agent.send_body(&id, answer).await;
        }
        if stream == Stream::Breaks {
            // What was sent leaves before the stream ends.
            half_close(agent).await;
            return Ok(());
        }
    }
    Ok(())
}

const DECLARED: &str = r#"
[[assignment]]
name = "monitor"
plugin = "monitor"
WANTED
select = "all"
"#;

async fn declare(directory: &Path, wanted: &str) {
    let declared = directory.join("declared");
    fs::create_dir_all(&declared).unwrap();
    for revision in ["1", "2"] {
        let release = crate::gateway::binary::RELEASE.replace("REVISION", revision);
        fs::write(declared.join(format!("monitor-{revision}.toml")), release).unwrap();
    }
    fs::write(declared.join("assignments.toml"), DECLARED.replace("WANTED", wanted)).unwrap();
    let declared = declared.to_str().unwrap();
    ask(directory, &["apply", "-f", declared, "--at-once", "--reason", "habits, not waves"]).await;
}

/// Waits until every machine has the revision; one that always forgets is only told of it.
async fn all_have(machines: &[Arc<Mutex<Machine>>], step: &str, revision: Option<&str>) {
    let late = Instant::now() + LONG;
    loop {
        let waiting: Vec<String> = machines
            .iter()
            .filter_map(|machine| {
                let machine = machine.lock().unwrap();
                let is_there = machine.revision.as_deref() == revision;
                (!is_there && machine.habit != Habit::ForgetsAlways).then(|| {
                    format!("{:?} {:?} {:?}", machine.habit, machine.revision, machine.orders)
                })
            })
            .collect();
        if waiting.is_empty() {
            return;
        }
        assert!(Instant::now() < late, "{step}: {waiting:#?}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// Waits until the server knows that the machine is where it should be.
async fn is_known(directory: &Path, machine: &Mutex<Machine>, step: &str) {
    let id = machine.lock().unwrap().id.clone();
    let late = Instant::now() + LONG;
    loop {
        let explained = ask(directory, &["explain", &id, "monitor"]).await;
        if explained.contains("done") {
            return;
        }
        assert!(Instant::now() < late, "{step}: {explained}");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

#[tokio::test]
async fn agents_that_forget_converge_and_are_never_ordered_what_they_have() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path();
    // Instead of a minute.
    let options = ["--repeat-after", "1"];
    let mut served = Served::start_with(path, &options).await;
    let mut tasks = JoinSet::new();
    let machines = HABITS.map(|habit| Machine::start(path, habit, &mut tasks));
    for (step, wanted, revision, is_killed) in [
        ("install", "revision = \"1\"", Some("1"), false),
        ("upgrade", "revision = \"2\"", Some("2"), true),
        ("roll back", "revision = \"1\"", Some("1"), false),
        ("remove", "absent = true", None, true),
        ("install again", "revision = \"2\"", Some("2"), false),
    ] {
        declare(path, wanted).await;
        if is_killed {
            // Whatever is on its way.
            served.kill().await;
            served = Served::start_with(path, &options).await;
        }
        all_have(&machines, step, revision).await;
        for machine in &machines {
            if machine.lock().unwrap().habit != Habit::ForgetsAlways {
                is_known(path, machine, step).await;
            }
        }
    }
    // Wanted differently before it came about.
    declare(path, "revision = \"1\"").await;
    declare(path, "revision = \"2\"").await;
    for machine in &machines {
        if machine.lock().unwrap().habit != Habit::ForgetsAlways {
            is_known(path, machine, "back").await;
        }
    }
    all_have(&machines, "back", Some("2")).await;
    tasks.abort_all();
    served.stop().await;
    for machine in &machines {
        let machine = machine.lock().unwrap();
        assert!(machine.wrong.is_empty(), "{:?}: {:?}", machine.habit, machine.wrong);
        for (order, times) in &machine.orders {
            assert!(*times <= GIVEN, "{:?} was given {order:?} {times} times", machine.habit);
        }
    }
}
