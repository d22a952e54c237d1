//! The program: what files declare comes to agents, by label, through kill -9 of the server.

use std::fs;
use std::path::Path;
use std::process::Stdio;

use guest_agent_proto::agent_controlplane::configure_plugin_states::ConfigurePlugin;
use guest_agent_proto::agent_controlplane::{
    AgentInfo, ConfigurePluginStates, CurrentPluginStates,
};
use guest_fleet_sessions::messages;
use tokio::io::{AsyncBufReadExt, BufReader, Lines};
use tokio::process::{Child, ChildStdout, Command};
use tonic::transport::Endpoint;

use crate::gateway::client::{Agent, identity, registration, reply};
use crate::gateway::{AGENT, CHANNEL, LONG};

pub(crate) const RELEASE: &str = r#"
[[release]]
plugin = "monitor"
revision = "REVISION"
entry_point = "bin/monitor"
archives.any = { sha256 = "0123456789012345678901234567890123456789012345678901234567890123", url = "https://files.example/monitor.tar.gz" }
"#;

const ASSIGNMENT: &str = r#"
[[assignment]]
name = "monitor-prod"
plugin = "monitor"
revision = "REVISION"
select = "env = prod"
"#;

pub(crate) struct Served {
    child: Child,
    lines: Lines<BufReader<ChildStdout>>,
}

impl Served {
    /// Starts the program with these arguments.
    pub(crate) fn spawn(directory: &Path, arguments: &[&str]) -> Self {
        let mut program = program(directory);
        program.arg("serve").args(arguments);
        Self::of(program)
    }

    /// The same with its log in a file.
    pub(crate) fn spawn_logging(directory: &Path, arguments: &[&str], log: &Path) -> Self {
        let log = fs::File::options().create(true).append(true).open(log).unwrap();
        let mut program = program(directory);
        program.arg("serve").args(arguments).stderr(log);
        Self::of(program)
    }

    fn of(mut program: Command) -> Self {
        let mut child = program.stdout(Stdio::piped()).kill_on_drop(true).spawn().unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        Self { child, lines }
    }

    /// Starts it with a gateway on a unix socket and with artifacts.
    pub(crate) async fn start(directory: &Path) -> Self {
        Self::start_with(directory, &[]).await
    }

    /// With further options.
    pub(crate) async fn start_with(directory: &Path, options: &[&str]) -> Self {
        let listen = format!("unix:{}/cp.sock", directory.display());
        let artifacts = directory.join("artifacts");
        let artifacts = artifacts.to_str().unwrap();
        let usual = ["--listen", &listen, "--artifacts", artifacts];
        let arguments: Vec<&str> = usual.iter().chain(options).copied().collect();
        let mut served = Self::spawn(directory, &arguments);
        served.line("listening unix:").await;
        served.line("artifacts http://127.0.0.1:").await;
        served
    }

    /// Waits for a line that begins like this and returns it.
    pub(crate) async fn line(&mut self, start: &str) -> String {
        loop {
            let line = tokio::time::timeout(LONG, self.lines.next_line()).await.expect(start);
            let line = line.unwrap().expect("it still runs");
            if line.starts_with(start) {
                return line;
            }
        }
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id().unwrap()
    }

    /// Sends SIGTERM.
    pub(crate) async fn terminate(&self) {
        let pid = self.child.id().unwrap().to_string();
        assert!(Command::new("kill").args(["-s", "TERM", &pid]).status().await.unwrap().success());
    }

    pub(crate) async fn stop(mut self) {
        self.terminate().await;
        let status =
            tokio::time::timeout(LONG, self.child.wait()).await.expect("it stops").unwrap();
        assert!(status.success());
    }

    pub(crate) async fn kill(mut self) {
        self.child.kill().await.unwrap();
    }
}

pub(crate) fn program(directory: &Path) -> Command {
    let mut program = Command::new(env!("CARGO_BIN_EXE_guest-fleet"));
    program.arg("--ledger").arg(directory.join("ledger.db"));
    program
}

/// Runs a verb on the ledger; returns what it printed.
pub(crate) async fn ask(directory: &Path, arguments: &[&str]) -> String {
    let output = program(directory).args(arguments).output().await.unwrap();
    let (out, err) = (output.stdout, output.stderr);
    let (out, err) = (String::from_utf8(out).unwrap(), String::from_utf8(err).unwrap());
    assert!(output.status.success(), "{arguments:?}: {out}{err}");
    out
}

pub(crate) async fn declare(directory: &Path, revision: &str) {
    let declared = directory.join("declared");
    fs::create_dir_all(&declared).unwrap();
    let release = RELEASE.replace("REVISION", revision);
    fs::write(declared.join(format!("monitor-{revision}.toml")), release).unwrap();
    fs::write(declared.join("assignments.toml"), ASSIGNMENT.replace("REVISION", revision)).unwrap();
    ask(directory, &["apply", "-f", declared.to_str().unwrap()]).await;
}

/// An agent of the public protocol, with what it has.
pub(crate) struct Machine {
    agent: Agent,
    revision: String,
}

impl Machine {
    pub(crate) async fn connect(directory: &Path, revision: &str) -> Self {
        let endpoint = format!("unix:{}/cp.sock", directory.display());
        let channel = Endpoint::from_shared(endpoint).unwrap().connect().await.unwrap();
        let mut agent = Agent::open(channel, &identity()).await.unwrap();
        assert_eq!(agent.headers.get("guest-agent-fleet").unwrap(), "1");
        agent.send(registration("r", AGENT, CHANNEL)).await;
        assert_eq!(agent.acknowledgement().await.0, "r");
        Self { agent, revision: revision.to_owned() }
    }

    /// Answers what it is asked until an order comes; returns its id, its revision and its generation.
    pub(crate) async fn ordered(&mut self) -> (String, String, u64) {
        let (id, entry, generation, _) = self.order().await;
        (id, entry.plugin.unwrap_or_default().revision_id, generation)
    }

    /// The same with the whole order, and its body as it came.
    pub(crate) async fn order(&mut self) -> (String, ConfigurePlugin, u64, Vec<u8>) {
        loop {
            let frame = self.agent.next().await.unwrap().expect("the stream is open");
            // What it sent itself is acknowledged meanwhile.
            let Some(crate::gateway::client::Down::MessageBody(body)) = frame.r#type else {
                continue;
            };
            let id = frame.message_id;
            let answer = match messages::message_type(&body) {
                messages::GET_AGENT_INFO => {
                    let info =
                        AgentInfo { architecture: "amd64".to_owned(), ..AgentInfo::default() };
                    messages::pack(messages::AGENT_INFO, &info)
                }
                messages::LIST_PLUGIN_STATES => {
                    messages::pack(messages::CURRENT_PLUGIN_STATES, &self.states())
                }
                messages::CONFIGURE_PLUGIN_STATES => {
                    let states: ConfigurePluginStates = messages::unpack(&body).unwrap();
                    let [entry] = states.configure_plugins.as_slice() else {
                        panic!("one plugin in {states:?}")
                    };
                    let plugin = entry.plugin.as_ref().unwrap();
                    assert_eq!(plugin.name, "monitor");
                    let generation = body.labels["fleet-generation"].parse().unwrap();
                    let bytes = body.body.clone().unwrap_or_default().value;
                    return (id, entry.clone(), generation, bytes);
                }
                other => panic!("{other} was not expected"),
            };
            self.agent.answer(&id, None).await;
            self.agent.send_body(&format!("to-{id}"), reply(&body.labels, answer)).await;
        }
    }

    /// Acknowledges an order and does it.
    pub(crate) async fn does(&mut self, id: &str, revision: &str) {
        self.agent.answer(id, None).await;
        self.revision = revision.to_owned();
        for kind in [1, 3] {
            let event = guest_agent_proto::agent_controlplane::PluginEventMessage {
                plugin_name: "monitor".to_owned(),
                revision_id: revision.to_owned(),
                event_type: kind,
                ..Default::default()
            };
            let body = messages::pack(messages::PLUGIN_EVENT, &event);
            let event_id = format!("{id}-{kind}");
            self.agent.send_body(&event_id, body).await;
            self.acknowledged(&event_id).await;
        }
    }

    /// Waits until a message was taken; answers what comes meanwhile.
    async fn acknowledged(&mut self, id: &str) {
        loop {
            let frame = self.agent.next().await.unwrap().expect("the stream is open");
            match frame.r#type {
                Some(crate::gateway::client::Down::MessageResponse(_))
                    if frame.message_id == id =>
                {
                    return;
                }
                Some(crate::gateway::client::Down::MessageBody(_)) => {
                    self.agent.answer(&frame.message_id, None).await;
                }
                _ => {}
            }
        }
    }

    fn states(&self) -> CurrentPluginStates {
        use guest_agent_proto::agent_controlplane::current_plugin_states::DaemonPluginState;
        let state = DaemonPluginState {
            name: "monitor".to_owned(),
            current_revision_id: self.revision.clone(),
            ..DaemonPluginState::default()
        };
        let there = (!self.revision.is_empty()).then_some(state);
        CurrentPluginStates {
            daemon_plugin_states: there.into_iter().collect(),
            ..CurrentPluginStates::default()
        }
    }
}

#[tokio::test]
async fn what_files_declare_comes_to_the_agents_of_a_label_through_kills_of_the_server() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path();
    let served = Served::start(path).await;
    declare(path, "1").await;
    // It is not selected before an operator labels it.
    let mut machine = Machine::connect(path, "").await;
    ask(path, &["agent", "label", AGENT, "env=prod"]).await;
    let (id, revision, first) = machine.ordered().await;
    assert_eq!(revision, "1");
    machine.does(&id, "1").await;

    // Killed with an order on its way: the same order comes again, under its own id.
    declare(path, "2").await;
    let (id, revision, second) = machine.ordered().await;
    assert_eq!(revision, "2");
    assert!(second > first);
    served.kill().await;
    let served = Served::start(path).await;
    let mut machine = Machine::connect(path, "1").await;
    assert_eq!(machine.ordered().await, (id.clone(), "2".to_owned(), second));
    machine.does(&id, "2").await;
    let explained = ask(path, &["explain", AGENT, "monitor"]).await;
    assert!(explained.contains("monitor-prod") && explained.contains("done"), "{explained}");

    // Stopped and started again, nothing is ordered that is there: the next order is what changes.
    served.stop().await;
    let served = Served::start(path).await;
    let mut machine = Machine::connect(path, "2").await;
    declare(path, "3").await;
    assert_eq!(machine.ordered().await.1, "3");
    served.stop().await;
}

#[tokio::test]
async fn a_lost_ledger_is_made_again_from_files_and_what_runs_is_left_alone() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path();
    let served = Served::start(path).await;
    declare(path, "1").await;
    // What an agent has already is taken over: the first order is the next change.
    let mut machine = Machine::connect(path, "1").await;
    ask(path, &["agent", "label", AGENT, "env=prod"]).await;
    let done = async {
        loop {
            let explained = ask(path, &["explain", AGENT, "monitor"]).await;
            if explained.contains("done") {
                return;
            }
            tokio::time::sleep(std::time::Duration::from_millis(100)).await;
        }
    };
    tokio::select! {
        () = done => {}
        order = machine.ordered() => panic!("{order:?} was ordered, and it was there"),
        () = tokio::time::sleep(LONG) => panic!("it was never taken over"),
    }
    declare(path, "2").await;
    assert_eq!(machine.ordered().await.1, "2");
    served.stop().await;
}

#[tokio::test]
async fn a_signal_drains_the_gateway_and_what_is_there_is_listed() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path();
    let mut served = Served::start(path).await;
    let mut machine = Machine::connect(path, "").await;
    let headers = &machine.agent.headers;
    assert_eq!(headers.get("agent-communication-message-rate-limit").unwrap(), "3000");
    assert_eq!(headers.get("agent-communication-bandwidth-limit").unwrap(), "67108864");
    let pid = format!("\"pid\": {}", served.child.id().unwrap());
    let listed = async {
        loop {
            let listed = ask(path, &["gateways", "--json"]).await;
            if listed.contains(&pid) && listed.contains("\"serving\"") {
                return;
            }
            tokio::time::sleep(std::time::Duration::from_millis(100)).await;
        }
    };
    tokio::time::timeout(LONG, listed).await.expect("it is listed");
    served.terminate().await;
    let status = machine.agent.end().await.expect("a status");
    let trailer = status.metadata().get("guest-agent-retry-after").expect("the trailer");
    let seconds: u64 = trailer.to_str().unwrap().parse().unwrap();
    // It is alone: agents come back when the next one listens.
    assert!((5..=60).contains(&seconds), "{seconds}");
    served.line("drained 1").await;
    let ended = tokio::time::timeout(LONG, served.child.wait()).await.expect("it ends").unwrap();
    assert!(ended.success());
    let listed = ask(path, &["gateways", "--json"]).await;
    assert!(listed.contains("\"gateways\": []"), "{listed}");
}

#[tokio::test]
async fn a_bad_command_line_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    let run = async |arguments: &[&str]| {
        let output = program(directory.path()).args(arguments).output().await.unwrap();
        (output.status.code(), String::from_utf8(output.stderr).unwrap())
    };
    assert_eq!(run(&["serve"]).await.0, Some(2));
    assert_eq!(run(&["serve", "--listen", "nowhere"]).await.0, Some(2));
    let (code, text) = run(&["serve", "--listen", "0.0.0.0:0"]).await;
    assert_eq!(code, Some(1));
    assert!(text.contains("not a loopback address"), "{text}");
    let (code, text) = run(&["explain", "nobody", "nothing"]).await;
    assert_eq!(code, Some(1));
    assert!(text.contains("nobody"), "{text}");
}
