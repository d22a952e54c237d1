//! Verbs as a whole: arguments in, text and exit code out, against a fake agent on a real socket.

use std::cell::RefCell;
use std::path::Path;

use guest_agent_actors::model::id::Sha256Digest;
use guest_agent_actors::ports::Cause;
use guest_agent_proto::agent_controlplane::PluginType;
use guest_agent_proto::agent_controlplane::current_plugin_states::StatusValue;
use guest_agent_proto::local::{
    AgentStatus, AskResponse, ConfigureResult, Event, ExitKind, Health, Installation, LastExit,
    Pending, PluginStatus, Progress, Verdict, VerdictLevel,
};
use insta::assert_snapshot;
use jiff::Timestamp;
use tonic::Status;

use super::fake::{FakeAgent, Script, Then, plugins};
use super::*;
use crate::agent::RunArgs;
use crate::config::{LogConfig, MapEnvironment};
use crate::dev::{DevArgs, SamplePluginArgs};
use crate::display::values::Named;
use crate::install::pack::{Compression, Packed};
use crate::process::logs::keeper::KeeperArgs;

mod act;
mod audit;
mod basics;
mod doctor;
mod enroll;
mod explain;
mod help;
mod offline;
mod orders;
mod plan;
mod schemas;
mod shell;
mod status;
mod streams;

const NOW: i64 = 1_900_000_000;

/// What a run of the command line left behind.
struct Ran {
    exit: Exit,
    out: String,
    err: String,
}

/// Records the services that a verb starts.
#[derive(Default)]
struct Recorder {
    runs: RefCell<Vec<RunArgs>>,
    devs: RefCell<Vec<DevArgs>>,
    samples: RefCell<Vec<SamplePluginArgs>>,
    logs: RefCell<Vec<LogConfig>>,
    kept: RefCell<Vec<KeeperArgs>>,
}

impl Recorder {
    /// Services that record their arguments here.
    fn services(&self) -> Services<'_> {
        Services {
            start_logging: Box::new(|log| self.logs.borrow_mut().push(log.clone())),
            check: Box::new(|config| match config.agent.name.as_str() {
                "refused" => Err("the service would refuse it".into()),
                _ => Ok(()),
            }),
            run: Box::new(|args| {
                self.runs.borrow_mut().push(args);
                Ok(())
            }),
            dev: Box::new(|args| {
                self.devs.borrow_mut().push(args);
                Err("the walk ended early".into())
            }),
            sample_plugin: Box::new(|args| {
                self.samples.borrow_mut().push(args);
                Ok(())
            }),
            keep_logs: Box::new(|args| {
                self.kept.borrow_mut().push(args);
                Ok(())
            }),
            pack: Box::new(pack_nothing),
        }
    }
}

/// Writes the first bytes that an archive of this kind has.
fn pack_nothing(_: &Path, out: &Path, compression: Compression) -> Result<Packed, Cause> {
    let bytes: &[u8] = match compression {
        Compression::Gzip => &[0x1f, 0x8b, 8, 0],
        Compression::Zstd => &[0x28, 0xb5, 0x2f, 0xfd],
    };
    std::fs::write(out, bytes)?;
    Ok(Packed { sha256: Sha256Digest::of(bytes), bytes: 2048, entries: 3 })
}

/// A terminal that is being looked at, or none.
#[derive(Clone, Copy)]
enum Looks {
    Plain,
    Terminal(usize),
    /// A person who answers like this.
    Answering(fn() -> std::io::Result<String>),
}

fn ran_with(
    arguments: &[&str],
    environment: &MapEnvironment,
    recorder: &Recorder,
    looks: Looks,
) -> Ran {
    let (mut out, mut err) = (Vec::new(), Vec::new());
    let (width, colour) = match looks {
        Looks::Plain | Looks::Answering(_) => (None, false),
        Looks::Terminal(width) => (Some(width), true),
    };
    let mut console = Console {
        out: &mut out,
        err: &mut err,
        width,
        err_is_terminal: false,
        colour,
        reply: match looks {
            Looks::Plain | Looks::Terminal(_) => None,
            Looks::Answering(answer) => Some(answer),
        },
        now: || Timestamp::from_second(NOW).expect("a time"),
    };
    let arguments = std::iter::once("guest-agent").chain(arguments.iter().copied());
    let exit = main(arguments.map(OsString::from), environment, &recorder.services(), &mut console);
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    Ran { exit, out: text(&out), err: text(&err) }
}

fn ran(arguments: &[&str]) -> Ran {
    ran_with(arguments, &MapEnvironment::default(), &Recorder::default(), Looks::Plain)
}

/// Runs a verb against an agent, whose socket is named by the environment.
fn ran_on(agent: &FakeAgent, arguments: &[&str]) -> Ran {
    ran_looking(agent, arguments, Looks::Plain)
}

fn ran_looking(agent: &FakeAgent, arguments: &[&str], looks: Looks) -> Ran {
    let mut environment = MapEnvironment::default();
    let socket = agent.socket.display().to_string();
    environment.variables.insert("GUEST_AGENT_SOCKET".to_owned(), socket);
    ran_with(arguments, &environment, &Recorder::default(), looks)
}

#[track_caller]
fn json(ran: &Ran) -> serde_json::Value {
    assert_eq!(ran.exit, Exit::Done, "{}", ran.err);
    serde_json::from_str(&ran.out).expect("one JSON document")
}

fn time(ago: i64) -> Option<prost_types::Timestamp> {
    Some(prost_types::Timestamp { seconds: NOW - ago, nanos: 0 })
}

fn plugin(name: &str, revision: &str, state: &str) -> PluginStatus {
    PluginStatus {
        name: name.to_owned(),
        revision: revision.to_owned(),
        state: state.to_owned(),
        kind: "daemon".to_owned(),
        installation: "dynamic".to_owned(),
        state_value: StatusValue::named(state).expect("a state").into(),
        kind_value: PluginType::Daemon.into(),
        installation_value: Installation::Dynamic.into(),
        ..PluginStatus::default()
    }
}

fn running(name: &str) -> PluginStatus {
    PluginStatus {
        pid: Some(4711),
        started_at: time(3 * 3600),
        restarts: 2,
        health: Some(Health { code: 0, results: vec!["fine".to_owned()], at: time(4) }),
        config_hash: "ab12".to_owned(),
        cpu_percent: Some(12.345),
        memory_bytes: Some(10 << 20),
        memory_basis: "working_set".to_owned(),
        resident_bytes: Some(7 << 20),
        address: "unix:/run/x.sock".to_owned(),
        install_path: "/var/lib/x".to_owned(),
        last_exit: Some(LastExit {
            detail: "killed by SIGKILL".to_owned(),
            kind: "signaled".to_owned(),
            kind_value: ExitKind::Signaled.into(),
            code: None,
            signal: Some(9),
            at: time(3 * 3600 + 1),
            ..LastExit::default()
        }),
        ..plugin(name, "1.4", "RUNNING")
    }
}

fn everything() -> Script {
    let mut upgrading = running("upgrading");
    upgrading.pending = Some(Pending {
        revision: "1.5".to_owned(),
        state: "INSTALLING".to_owned(),
        ..Pending::default()
    });
    upgrading.progress = Some(Progress {
        received_bytes: 3 << 20,
        total_bytes: Some(4 << 20),
        attempt: 2,
        held_up: String::new(),
    });
    let mut failed = plugin("failed", "", "INSTALL_FAILED");
    failed.reason =
        "failed to download the archive: the server answered\n\x1b[31m404 and went on about it"
            .to_owned();
    let mut status = plugins([failed, running("metrics"), upgrading]);
    status.agent = Some(AgentStatus {
        version: "0.1.0".to_owned(),
        pid: 12,
        started_at: time(200),
        link: "connected".to_owned(),
        link_connected: true,
        outbox_depth: 2,
        instance_id: "i".to_owned(),
        troubles: Vec::new(),
        http: String::new(),
        http_tls: false,
        http_socket: String::new(),
        hold: None,
        machine: None,
    });
    Script { status: vec![status], ..Script::default() }
}

/// The agent's answer to one order for the plugin `a`, before which it recorded no event.
fn accepted(generation: u64) -> Vec<ConfigureResult> {
    let (name, last_event) = ("a".to_owned(), Some(0));
    vec![ConfigureResult { name, generation, last_event, ..ConfigureResult::default() }]
}
