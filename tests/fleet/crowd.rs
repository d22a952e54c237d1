//! The agents: processes with many played ones, and a few real ones.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::time::Duration;

use futures_util::stream::{self, StreamExt};
use guest_agent::enroll::files::Identity;
use guest_agent::enroll::join::{Join, join};
use guest_agent::enroll::request::Trust;
use rand::rngs::StdRng;
use rand::seq::IteratorRandom;
use serde_json::Value;
use tokio::time::Instant;

use crate::PATIENCE;
use crate::agents::{self, Last, Seat, Spec, Told};
use crate::control::Control;
use crate::harness::{processes, signal};
use crate::process::Running;
use crate::wishes::SITES;

/// How many machines enrol at a time.
const AT_ONCE: usize = 16;

/// The pause before one of them tries again.
const PAUSE: Duration = Duration::from_millis(200);

/// Longest time in which a process of agents ends.
const ENDING: Duration = Duration::from_secs(120);

/// Who an agent is.
#[derive(Clone, Debug)]
pub(crate) struct Member {
    pub(crate) id: String,
    pub(crate) site: &'static str,
    pub(crate) directory: PathBuf,
}

/// What agents run in.
pub(crate) enum Host {
    /// A process with many played agents.
    Many { spec: PathBuf, log: PathBuf, members: Vec<Member> },
    /// A real one.
    Real { config: PathBuf, log: PathBuf, member: Member },
}

/// A process of agents, or what is to become one.
pub(crate) struct Agents {
    pub(crate) name: String,
    host: Host,
    running: Option<Running>,
    /// The agents that lost everything, by id.
    lost: BTreeSet<String>,
}

/// The members of a group, whose site follows from their number.
pub(crate) fn members(directory: &Path, group: usize, count: usize) -> Vec<Member> {
    let member = |number: usize| Member {
        id: format!("fleet/{group}/{number:03}"),
        site: SITES[number % SITES.len()],
        directory: directory.join(format!("{group}/{number:03}/state")),
    };
    (0..count).map(member).collect()
}

/// Makes machines agents of the fleet, with the token of their site.
pub(crate) async fn enrol(control: &Control, servers: &[String], members: &[Member]) {
    let fingerprint = control.fingerprint().await.parse().unwrap();
    let mut tokens = BTreeMap::new();
    for site in SITES {
        let (name, label) = (format!("site-{site}"), format!("site={site}"));
        let uses = members.len().to_string();
        let create = ["token", "create", &name, "--uses", &uses, "--label", &label];
        let made = control.ask(&create).await.unwrap();
        tokens.insert(site, made["token"].as_str().unwrap().to_owned());
    }
    let joining = members.iter().zip(servers.iter().cycle()).map(|(member, server)| {
        let wanted = Join {
            server: server.clone(),
            trust: Trust::Fingerprint(fingerprint),
            token: tokens[member.site].clone(),
            id: Some(member.id.clone()),
        };
        async move {
            std::fs::create_dir_all(&member.directory).unwrap();
            let identity = Identity::below(&member.directory);
            let deadline = Instant::now() + PATIENCE;
            // The server closes connections that come too fast.
            while let Err(error) = join(&identity, &wanted).await {
                assert!(Instant::now() < deadline, "{} is not enrolled: {error:?}", member.id);
                tokio::time::sleep(PAUSE).await;
            }
        }
    });
    stream::iter(joining).buffer_unordered(AT_ONCE).collect::<Vec<()>>().await;
}

// === impl Agents ===

impl Agents {
    /// A process with all of these.
    pub(crate) fn many(
        directory: &Path,
        group: usize,
        endpoint: &str,
        members: Vec<Member>,
    ) -> Self {
        let seats = members
            .iter()
            .map(|member| Seat { id: member.id.clone(), directory: member.directory.clone() });
        let spec = Spec { endpoint: endpoint.to_owned(), seats: seats.collect() };
        let name = format!("agents-{group}");
        let file = directory.join(format!("{name}.json"));
        std::fs::write(&file, serde_json::to_vec(&spec).unwrap()).unwrap();
        let log = directory.join(format!("{name}.log"));
        Self {
            name,
            host: Host::Many { spec: file, log, members },
            running: None,
            lost: BTreeSet::new(),
        }
    }

    /// A real one.
    pub(crate) fn real(directory: &Path, number: usize, endpoint: &str, member: Member) -> Self {
        let name = format!("real-{number}");
        let config = directory.join(format!("{name}.toml"));
        std::fs::write(&config, real_config(&member, endpoint)).unwrap();
        let log = directory.join(format!("{name}.log"));
        Self {
            name,
            host: Host::Real { config, log, member },
            running: None,
            lost: BTreeSet::new(),
        }
    }

    pub(crate) fn up(&mut self) {
        let (command, log) = match &self.host {
            Host::Many { spec, log, .. } => (agents::command(spec), log),
            Host::Real { config, log, .. } => {
                let mut command = real_program();
                command.arg("run").arg("--config").arg(config);
                (command, log)
            }
        };
        self.running = Some(Running::start(command, log));
    }

    pub(crate) fn running(&self) -> &Running {
        self.running.as_ref().unwrap()
    }

    /// Whether it runs as it should: nothing but this test ends it.
    pub(crate) fn check(&mut self) {
        if let Some(status) = self.running.as_mut().and_then(Running::ended) {
            panic!("{} ended by itself: {status}: see its log", self.name);
        }
    }

    pub(crate) async fn kill(&mut self) {
        self.check();
        self.running.take().unwrap().kill().await;
    }

    /// A played agent that lost nothing so far loses everything but its identity, where fewer than `most` did; its
    /// id. The process must not run.
    pub(crate) fn lose(&mut self, most: usize, dice: &mut StdRng) -> Option<String> {
        let Host::Many { members, .. } = &self.host else { return None };
        if self.lost.len() >= most {
            return None;
        }
        let whole = members.iter().filter(|member| !self.lost.contains(&member.id));
        let member = whole.choose(dice)?;
        let identity = Identity::below(&member.directory);
        for entry in std::fs::read_dir(&member.directory).unwrap() {
            let path = entry.unwrap().path();
            if path == identity.folder() {
                continue;
            }
            let is_folder = path.is_dir();
            let removed = if is_folder {
                std::fs::remove_dir_all(&path)
            } else {
                std::fs::remove_file(&path)
            };
            removed.unwrap();
        }
        let id = member.id.clone();
        self.lost.insert(id.clone());
        Some(id)
    }

    /// The agents that lost everything, by id.
    pub(crate) fn lost(&self) -> impl Iterator<Item = &String> {
        self.lost.iter()
    }

    /// Whether it is a real one.
    pub(crate) fn is_real(&self) -> bool {
        matches!(self.host, Host::Real { .. })
    }

    pub(crate) fn members(&self) -> &[Member] {
        match &self.host {
            Host::Many { members, .. } => members,
            Host::Real { member, .. } => std::slice::from_ref(member),
        }
    }

    /// Ends the process; what its agents knew and what they have of plugins, by agent.
    pub(crate) async fn end(mut self) -> Vec<(Member, Last, BTreeMap<String, String>)> {
        self.check();
        match &self.host {
            Host::Many { .. } => {
                let status = self.running.take().unwrap().end(ENDING).await;
                assert!(status.success(), "{} ended with {status}", self.name);
                let members = self.members().iter();
                members
                    .map(|member| {
                        let directory = &member.directory;
                        (member.clone(), agents::last(directory), agents::running(directory))
                    })
                    .collect()
            }
            Host::Real { member, .. } => {
                let (last, running) = real_state(member).await;
                let member = member.clone();
                let status = self.running.take().unwrap().end(ENDING).await;
                assert!(status.success(), "{} ended with {status}", self.name);
                vec![(member, last, running)]
            }
        }
    }
}

impl Drop for Agents {
    fn drop(&mut self) {
        // An agent that lives would start its plugins again.
        self.running = None;
        if let Host::Real { member, .. } = &self.host {
            for pid in processes::all_below(&member.directory).into_keys() {
                signal(pid, nix::sys::signal::Signal::SIGKILL);
            }
        }
    }
}

// === real agents ===

fn real_program() -> tokio::process::Command {
    let mut command = tokio::process::Command::new(env!("CARGO_BIN_EXE_guest-agent"));
    command.env_clear();
    for kept in ["PATH", "HOME", "LANG", "TZ"] {
        if let Some(value) = std::env::var_os(kept) {
            command.env(kept, value);
        }
    }
    command
}

fn socket(member: &Member) -> PathBuf {
    member.directory.with_file_name("run").join("agent.sock")
}

fn real_config(member: &Member, endpoint: &str) -> String {
    let identity = Identity::below(&member.directory);
    let text = |path: &Path| toml::Value::from(path.to_str().unwrap()).to_string();
    let beside = |name: &str| text(&member.directory.with_file_name(name));
    let (agent, trust) = (text(&identity.agent()), text(&identity.trust()));
    let (id, state) = (&member.id, text(&member.directory));
    format!(
        "[agent]\nstate_dir = {state}\nruntime_dir = {}\nlog_dir = {}\nlocal_plugin_dir = {}\n\
         [instance]\nmetadata_url = \"none\"\nid = \"{}\"\n\
         [control_plane]\nendpoint = \"{endpoint}\"\nresource = \"{id}\"\nauth = \"mtls\"\n\
         client_cert = {agent}\nclient_key = {agent}\nca_file = {trust}\n\
         [plugins]\nprobation = \"1s\"\nhealth_interval = \"30s\"\nhealth_timeout = \"30s\"\n",
        beside("run"),
        beside("log"),
        beside("local"),
        id.replace('/', "-"),
    )
}

pub(crate) async fn real_verb(member: &Member, arguments: &[&str]) -> Result<String, String> {
    let mut command = real_program();
    command.env("GUEST_AGENT_SOCKET", socket(member)).args(arguments).kill_on_drop(true);
    let output = tokio::time::timeout(ENDING, command.output()).await.unwrap().unwrap();
    let (out, err) = (output.stdout, output.stderr);
    if !output.status.success() {
        return Err(String::from_utf8_lossy(&err).into_owned());
    }
    Ok(String::from_utf8(out).unwrap())
}

/// What a real agent knows, once it has told everything.
async fn real_state(member: &Member) -> (Last, BTreeMap<String, String>) {
    let deadline = Instant::now() + ENDING;
    let events = loop {
        let said = real_verb(member, &["events", "--json"]).await.unwrap();
        let lines = said.lines().map(|line| serde_json::from_str(line).unwrap());
        let events: Vec<Told> = lines.map(|event: Value| told(&event)).collect();
        let all = events.iter().all(|event| event.acknowledged);
        if all || Instant::now() > deadline {
            break events;
        }
        tokio::time::sleep(Duration::from_millis(200)).await;
    };
    let said = real_verb(member, &["status", "--json"]).await.unwrap();
    let status: Value = serde_json::from_str(&said).unwrap();
    let plugins = status["plugins"].as_array().unwrap().iter();
    let running = plugins.map(|plugin| {
        let text = |key: &str| plugin[key].as_str().unwrap_or_default().to_owned();
        let state = text("state");
        let revision = if state == "RUNNING" { text("revision") } else { state };
        (text("name"), revision)
    });
    let waiting = events.iter().filter(|event| !event.acknowledged).count();
    (Last { events, waiting, ..Last::default() }, running.collect())
}

fn told(event: &Value) -> Told {
    Told {
        seq: event["seq"].as_u64().unwrap(),
        id: event["id"].as_str().unwrap().to_owned(),
        plugin: event["plugin"].as_str().unwrap().to_owned(),
        acknowledged: event["delivered"].as_bool().unwrap(),
    }
}
