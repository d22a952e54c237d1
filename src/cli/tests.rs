//! Verbs as a whole: arguments in, text and exit code out, against a fake agent on a real socket.

use std::cell::RefCell;
use std::path::Path;

use guest_agent_actors::id::Sha256Digest;
use guest_agent_actors::ports::Cause;
use guest_agent_proto::local::{
    AgentStatus, AskResponse, ConfigureResult, Event, Health, LastExit, Pending, PluginStatus,
    Progress,
};
use insta::assert_snapshot;
use jiff::Timestamp;
use tonic::Status;

use super::fake::{FakeAgent, Script, Then, plugins};
use super::pack::{Compression, Packed};
use super::*;
use crate::config::{LogConfig, MapEnvironment};

const NOW: i64 = 1_900_000_000;

/// What a run of the command line left behind.
struct Ran {
    exit: Exit,
    out: String,
    err: String,
}

/// Records what it was asked to start.
#[derive(Default)]
struct Recorder {
    runs: RefCell<Vec<RunArgs>>,
    devs: RefCell<Vec<DevArgs>>,
    samples: RefCell<Vec<SamplePluginArgs>>,
    logs: RefCell<Vec<LogConfig>>,
}

impl Services for Recorder {
    fn start_logging(&self, log: &LogConfig) {
        self.logs.borrow_mut().push(log.clone());
    }

    fn run(&self, args: RunArgs) -> Result<(), Cause> {
        self.runs.borrow_mut().push(args);
        Ok(())
    }

    fn dev(&self, args: DevArgs) -> Result<(), Cause> {
        self.devs.borrow_mut().push(args);
        Err("the walk ended early".into())
    }

    fn sample_plugin(&self, args: SamplePluginArgs) -> Result<(), Cause> {
        self.samples.borrow_mut().push(args);
        Ok(())
    }

    fn pack(&self, _dir: &Path, out: &Path, compression: Compression) -> Result<Packed, Cause> {
        let bytes: &[u8] = match compression {
            Compression::Gzip => &[0x1f, 0x8b, 8, 0],
            Compression::Zstd => &[0x28, 0xb5, 0x2f, 0xfd],
        };
        std::fs::write(out, bytes)?;
        Ok(Packed { sha256: Sha256Digest::of(bytes), bytes: 2048, entries: 3 })
    }
}

/// A terminal that is being looked at, or none.
#[derive(Clone, Copy)]
enum Looks {
    Plain,
    Terminal(usize),
}

fn ran_with(
    arguments: &[&str],
    environment: &MapEnvironment,
    services: &dyn Services,
    looks: Looks,
) -> Ran {
    let (mut out, mut err) = (Vec::new(), Vec::new());
    let (width, colour) = match looks {
        Looks::Plain => (None, false),
        Looks::Terminal(width) => (Some(width), true),
    };
    let mut console = Console {
        out: &mut out,
        err: &mut err,
        width,
        err_is_terminal: false,
        colour,
        now: || Timestamp::from_second(NOW).expect("a time"),
    };
    let arguments = std::iter::once("guest-agent").chain(arguments.iter().copied());
    let exit = main(arguments.map(OsString::from), environment, services, &mut console);
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
        address: "unix:/run/x.sock".to_owned(),
        install_path: "/var/lib/x".to_owned(),
        last_exit: Some(LastExit {
            kind: "signaled".to_owned(),
            code: None,
            signal: Some(9),
            at: time(3 * 3600 + 1),
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
    upgrading.progress =
        Some(Progress { received_bytes: 3 << 20, total_bytes: Some(4 << 20), attempt: 2 });
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
    });
    Script { status: vec![status], ..Script::default() }
}

// === status ===

#[test]
fn the_status_is_a_table() {
    let agent = FakeAgent::start(everything());
    let ran = ran_on(&agent, &["status"]);
    assert_eq!(ran.exit, Exit::Done);
    assert_snapshot!(ran.out);
}

#[test]
fn the_table_fits_the_terminal_and_is_coloured_there() {
    let agent = FakeAgent::start(everything());
    let ran = ran_looking(&agent, &["status"], Looks::Terminal(80));
    assert_snapshot!(ran.out.replace('\x1b', "^"));
    let long = "x".repeat(60);
    let mut script = everything();
    script.status[0].plugins.push(plugin(&long, &long, "EXECUTION_COMPLETED"));
    let agent = FakeAgent::start(script);
    for width in [40, 60, 80, 120] {
        let ran = ran_looking(&agent, &["status"], Looks::Terminal(width));
        for line in ran.out.lines() {
            let mut plain = line.to_owned();
            for code in ["\x1b[32m", "\x1b[33m", "\x1b[31m", "\x1b[2m", "\x1b[0m"] {
                plain = plain.replace(code, "");
            }
            assert!(plain.chars().count() <= width, "{width}: {plain:?}");
        }
    }
}

#[test]
fn one_plugin_is_shown_in_detail() {
    let agent = FakeAgent::start(everything());
    let ran = ran_on(&agent, &["status", "upgrading"]);
    assert_snapshot!(ran.out);
}

#[test]
fn no_plugins_are_no_error() {
    let agent = FakeAgent::start(Script::default());
    let ran = ran_on(&agent, &["status"]);
    assert_eq!((ran.exit, ran.out.as_str()), (Exit::Done, "no plugins\n"));
    assert_eq!(json(&ran_on(&agent, &["status", "--json"])), serde_json::json!([]));
}

#[test]
fn the_field_names_of_the_status_never_change() {
    let agent = FakeAgent::start(everything());
    let status = json(&ran_on(&agent, &["status", "--json"]));
    let names = |value: &serde_json::Value| -> Vec<String> {
        value.as_object().expect("an object").keys().cloned().collect()
    };
    let mut expected = [
        "name",
        "revision",
        "state",
        "kind",
        "installation",
        "pid",
        "started_at",
        "restarts",
        "last_exit",
        "health",
        "pending",
        "config_hash",
        "cpu_percent",
        "memory_bytes",
        "address",
        "install_path",
    ];
    expected.sort_unstable();
    for plugin in status.as_array().expect("an array") {
        assert_eq!(names(plugin), expected);
    }
    let upgrading = &status[2];
    assert_eq!(names(&upgrading["last_exit"]), ["at", "code", "kind", "signal"]);
    assert_eq!(names(&upgrading["health"]), ["at", "code", "results"]);
    assert_eq!(names(&upgrading["pending"]), ["error", "revision", "state"]);
    assert_eq!(upgrading["started_at"], "2030-03-17T14:46:40Z");
    assert_eq!(upgrading["last_exit"]["code"], serde_json::Value::Null);
    let failed = &status[0];
    for absent in ["revision", "pid", "started_at", "last_exit", "health", "pending", "address"] {
        assert_eq!(failed[absent], serde_json::Value::Null, "{absent}");
    }
}

#[test]
fn watching_prints_every_change_and_ends_with_the_agent() {
    let status = vec![plugins([plugin("a", "1", "STARTING")]), plugins([running("a")])];
    let agent = FakeAgent::start(Script { status, ..Script::default() });
    let ran = ran_on(&agent, &["status", "--watch", "--json"]);
    assert_eq!(ran.exit, Exit::Unreachable);
    let states: Vec<_> = ran
        .out
        .lines()
        .map(|line| serde_json::from_str::<serde_json::Value>(line).expect("one object per line"))
        .map(|status| status[0]["state"].clone())
        .collect();
    assert_eq!(states, ["STARTING", "RUNNING"]);
    let ran = ran_looking(&agent, &["status", "--watch"], Looks::Terminal(80));
    assert_eq!(ran.out.matches("\x1b[H\x1b[J").count(), 2, "a terminal is redrawn");
}

// === errors ===

#[test]
fn an_unknown_plugin_is_answered_with_its_nearest_neighbour() {
    let agent = FakeAgent::start(everything());
    for verb in ["status", "restart", "events", "logs", "remove"] {
        let ran = ran_on(&agent, &[verb, "metrisc"]);
        assert_eq!(ran.exit, Exit::Failed, "{verb}");
        assert_eq!(
            ran.err, "guest-agent: there is no plugin metrisc\n  try: did you mean metrics?\n",
            "{verb}"
        );
    }
}

#[test]
fn a_missing_agent_is_exit_code_3_with_advice() {
    let ran = ran(&["status", "--socket", "/nonexistent/agent.sock"]);
    assert_eq!(ran.exit.code(), 3);
    assert_snapshot!(ran.err);
}

#[test]
fn a_socket_that_nobody_listens_on_is_told_apart() {
    let folder = tempfile::tempdir().expect("a temporary directory");
    let socket = folder.path().join("agent.sock");
    drop(std::os::unix::net::UnixListener::bind(&socket).expect("a socket"));
    let ran = ran(&["status", "--socket", &socket.display().to_string()]);
    assert_eq!(ran.exit, Exit::Unreachable);
    assert!(ran.err.contains("nothing listens on"), "{}", ran.err);
}

#[test]
fn the_socket_comes_from_the_flag_then_the_variable_then_the_configuration() {
    let named = |ran: &Ran, path: &str| assert!(ran.err.contains(path), "{}", ran.err);
    let setting = "agent.runtime_dir=/nonexistent/set";
    named(&ran(&["status", "--set", setting]), "/nonexistent/set/agent.sock");
    let mut environment = MapEnvironment::default();
    let variables = &mut environment.variables;
    variables.insert("GUEST_AGENT_SOCKET".to_owned(), "/nonexistent/variable".to_owned());
    let with =
        |arguments: &[&str]| ran_with(arguments, &environment, &Recorder::default(), Looks::Plain);
    named(&with(&["status", "--set", setting]), "/nonexistent/variable");
    named(&with(&["status", "--socket", "/nonexistent/flag"]), "/nonexistent/flag");
    named(&ran(&["status"]), "/run/guest-agent/agent.sock");
}

#[test]
fn usage_errors_are_exit_code_2_and_help_is_not() {
    for wrong in [
        &["no-such-verb"][..],
        &["install"],
        &["install", "a"],
        &["install", "a", "-f", "x"],
        &["install", "-f", "x", "--timeout", "5"],
        &["status", "a", "--nonsense"],
        &["wait", "a", "--state", "HAPPY"],
        &["wait", "../a"],
        &["logs"],
        &["events", "--since", "yesterday"],
        &["run", "--set", "agent.name"],
        &["run", "--socket", "/x"],
        &["pack", "/", "-o", "/x.tar.gz", "--entry-point", "/abs"],
    ] {
        let ran = ran(wrong);
        assert_eq!(ran.exit.code(), 2, "{wrong:?}: {}", ran.err);
        assert!(!ran.err.is_empty() && ran.out.is_empty(), "{wrong:?}");
    }
    for right in [&["--help"][..], &["--version"], &["install", "--help"], &["config", "--help"]] {
        let ran = ran(right);
        assert_eq!((ran.exit, ran.err.as_str()), (Exit::Done, ""), "{right:?}");
    }
}

#[test]
fn the_flags_of_all_verbs_agree_with_each_other() {
    Arguments::command().debug_assert();
}

#[test]
fn the_help_lists_the_verbs_and_hides_the_sample_plugin() {
    let ran = ran(&["--help"]);
    assert_snapshot!(ran.out);
}

// === install, remove, restart ===

const DIGEST: &str = "000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f";

const INSTALL: [&str; 10] = [
    "install",
    "a",
    "--revision",
    "2",
    "--url",
    "https://x/a.tar.gz",
    "--sha256",
    DIGEST,
    "--entry-point",
    "bin/a",
];

fn install(more: &[&'static str]) -> Vec<&'static str> {
    INSTALL.iter().chain(more).copied().collect()
}

fn accepted(generation: u64) -> Vec<ConfigureResult> {
    vec![ConfigureResult { name: "a".to_owned(), error: String::new(), generation }]
}

fn settled(revision: &str, state: &str) -> PluginStatus {
    PluginStatus { generation: 7, ..plugin("a", revision, state) }
}

#[test]
fn flags_become_an_order() {
    let agent = FakeAgent::start(Script { configure: accepted(7), ..Script::default() });
    let ran =
        ran_on(&agent, &install(&["--arg=-v", "--arg", "--x=1", "--config-json", r#"{"k":1}"#]));
    assert_eq!((ran.exit, ran.out.as_str()), (Exit::Done, "a: accepted as order 7\n"));
    let asked = agent.asked().configure;
    let order = &asked[0].orders.as_ref().expect("orders").configure_plugins[0];
    assert_eq!(order.action, 1);
    let plugin = order.plugin.as_ref().expect("a plugin");
    assert_eq!((plugin.name.as_str(), plugin.revision_id.as_str()), ("a", "2"));
    assert_eq!(plugin.gcs_signed_url, "https://x/a.tar.gz");
    assert_eq!(plugin.checksum, DIGEST);
    assert_eq!(plugin.entry_point, "bin/a");
    assert_eq!(plugin.arguments, ["-v", "--x=1"]);
    assert!(order.manifest.as_ref().is_some_and(|manifest| manifest.config.is_some()));
}

#[test]
fn waiting_for_an_installation_ends_when_it_runs() {
    let mut starting = settled("", "STARTING");
    starting.busy = true;
    let status = vec![
        plugins([]),
        plugins([PluginStatus { generation: 6, ..settled("2", "RUNNING") }]),
        plugins([starting]),
        plugins([settled("2", "RUNNING")]),
    ];
    let agent = FakeAgent::start(Script {
        status,
        then: Then::Stay,
        configure: accepted(7),
        ..Script::default()
    });
    let ran = ran_on(&agent, &install(&["--wait"]));
    assert_eq!((ran.exit, ran.out.as_str()), (Exit::Done, "a: RUNNING\n"), "{}", ran.err);
    let outcome = json(&ran_on(&agent, &install(&["--wait", "--json"])));
    let expected = serde_json::json!(
        [{"name": "a", "generation": 7, "state": "RUNNING", "error": null}]
    );
    assert_eq!(outcome, expected);
}

#[test]
fn a_failed_installation_is_exit_code_1_with_the_reason() {
    let mut failed = settled("", "INSTALL_FAILED");
    failed.reason = "failed to verify the archive: the digest differs".to_owned();
    let agent = FakeAgent::start(Script {
        status: vec![plugins([failed])],
        then: Then::Stay,
        configure: accepted(7),
        ..Script::default()
    });
    let ran = ran_on(&agent, &install(&["--wait"]));
    assert_eq!(ran.exit.code(), 1);
    assert_snapshot!(ran.err);
}

#[test]
fn an_installation_that_takes_too_long_is_exit_code_4() {
    let mut busy = settled("", "INSTALLING");
    busy.busy = true;
    let agent = FakeAgent::start(Script {
        status: vec![plugins([busy])],
        then: Then::Stay,
        configure: accepted(7),
        ..Script::default()
    });
    let ran = ran_on(&agent, &install(&["--wait", "--timeout", "200ms"]));
    assert_eq!(ran.exit.code(), 4);
    assert_snapshot!(ran.err);
}

#[test]
fn an_agent_that_ends_during_the_wait_is_exit_code_3() {
    let agent = FakeAgent::start(Script { configure: accepted(7), ..Script::default() });
    assert_eq!(ran_on(&agent, &install(&["--wait"])).exit.code(), 3);
}

#[test]
fn a_refused_order_says_why_and_the_others_go_on() {
    let folder = tempfile::tempdir().expect("a temporary directory");
    let file = folder.path().join("orders.json");
    let text = r#"{"configure_plugins":[{"plugin":{"name":"a","revision_id":"2"}},{"plugin":{"name":"b"}}]}"#;
    std::fs::write(&file, text).expect("a file");
    let refused = ConfigureResult {
        name: "b".to_owned(),
        error: "it has no archive".to_owned(),
        generation: 0,
    };
    let agent = FakeAgent::start(Script {
        status: vec![plugins([settled("2", "RUNNING")])],
        then: Then::Stay,
        configure: accepted(7).into_iter().chain([refused]).collect(),
        ..Script::default()
    });
    let ran = ran_on(&agent, &["install", "--wait", "-f", &file.display().to_string()]);
    assert_eq!((ran.exit, ran.out.as_str()), (Exit::Failed, "a: RUNNING\n"));
    assert_eq!(ran.err, "guest-agent: b: the agent refused the order: it has no archive\n");
}

#[test]
fn removing_waits_until_the_plugin_is_gone() {
    let mut stopping = settled("2", "STOPPING");
    stopping.busy = true;
    let status = vec![plugins([stopping]), plugins([]), plugins([settled("2", "RUNNING")])];
    let agent = FakeAgent::start(Script {
        status,
        then: Then::Stay,
        configure: accepted(7),
        ..Script::default()
    });
    let ran = ran_on(&agent, &["remove", "a", "--wait"]);
    assert_eq!((ran.exit, ran.out.as_str()), (Exit::Done, "a: REMOVED\n"), "{}", ran.err);
    let asked = agent.asked().configure;
    assert_eq!(asked[0].orders.as_ref().expect("orders").configure_plugins[0].action, 2);
}

#[test]
fn restarting_waits_until_the_plugin_runs_again() {
    let agent = FakeAgent::start(Script {
        status: vec![plugins([settled("2", "RUNNING")])],
        then: Then::Stay,
        restart: Some(7),
        ..Script::default()
    });
    let ran = ran_on(&agent, &["restart", "a"]);
    assert_eq!(ran.out, "a: restart accepted as order 7\n");
    assert_eq!(ran_on(&agent, &["restart", "a", "--wait"]).out, "a: RUNNING\n");
}

// === wait ===

#[test]
fn waiting_for_a_state_ends_with_it() {
    let agent = FakeAgent::start(Script {
        status: vec![plugins([]), plugins([settled("2", "CRASHED")]), plugins([running("a")])],
        then: Then::Stay,
        ..Script::default()
    });
    let ran = ran_on(&agent, &["wait", "a"]);
    assert_eq!((ran.exit, ran.out.as_str()), (Exit::Done, "a: RUNNING\n"));
    assert_eq!(ran_on(&agent, &["wait", "a", "--state", "crashed"]).exit, Exit::Done);
    let ran = ran_on(&agent, &["wait", "a", "--state", "STOPPED", "--timeout", "100ms"]);
    assert_eq!(ran.exit, Exit::TimedOut);
    assert_eq!(ran.err, "guest-agent: a was not as wanted within 100ms\n  it is RUNNING\n");
}

#[test]
fn waiting_for_a_code_asks_until_it_comes() {
    let answer = |code| Ok(AskResponse { code, results: vec!["warming up".to_owned()] });
    let agent = FakeAgent::start(Script {
        ask: [Err(Status::failed_precondition("it does not run")), answer(1), answer(5)].into(),
        ..Script::default()
    });
    let ran = ran_on(&agent, &["wait", "a", "--status-code", "5", "--request", "-ready?"]);
    assert_eq!((ran.exit, ran.out.as_str()), (Exit::Done, "a: answers 5\n"), "{}", ran.err);
    let asked = agent.asked().ask;
    assert_eq!(asked.len(), 3);
    assert_eq!(asked[0].data.as_deref(), Some("-ready?"));
    let timed = ran_on(&agent, &["wait", "a", "--status-code", "0", "--timeout", "100ms"]);
    assert_eq!(timed.exit, Exit::TimedOut);
    assert!(timed.err.contains("it answered with code 5: warming up"), "{}", timed.err);
}

// === events and logs ===

fn happened() -> Script {
    let event = |seq, kind: &str, details: &str, delivered| Event {
        seq,
        id: format!("id-{seq}"),
        at: Some(prost_types::Timestamp { seconds: NOW, nanos: 250_000_000 }),
        plugin: "metrics".to_owned(),
        revision: "1.4".to_owned(),
        r#type: kind.to_owned(),
        details: details.to_owned(),
        delivered,
    };
    Script {
        events: vec![
            event(1, "PLUGIN_STARTED", "", true),
            event(2, "PLUGIN_CRASHED", "exited with code 3\nlast words", false),
        ],
        logs: vec![b"one\n".to_vec(), b"tw\xffo\n".to_vec()],
        ..everything()
    }
}

#[test]
fn events_are_lines() {
    let agent = FakeAgent::start(happened());
    let ran = ran_on(&agent, &["events", "metrics", "--since", "10m"]);
    assert_eq!(ran.exit, Exit::Done);
    assert_snapshot!(ran.out);
    let asked = agent.asked().events;
    assert_eq!(asked[0].since, time(600));
    assert_eq!((asked[0].name.as_str(), asked[0].follow), ("metrics", false));
}

#[test]
fn the_field_names_of_events_never_change() {
    let agent = FakeAgent::start(happened());
    let ran = ran_on(&agent, &["events", "--json", "--since", "2030-03-17T00:00:00Z"]);
    let lines: Vec<&str> = ran.out.lines().collect();
    assert_eq!(lines.len(), 2, "one object per line");
    assert_eq!(
        lines[1],
        r#"{"seq":2,"id":"id-2","at":"2030-03-17T17:46:40.25Z","plugin":"metrics","revision":"1.4","type":"PLUGIN_CRASHED","details":"exited with code 3\nlast words","delivered":false}"#
    );
}

#[test]
fn following_ends_with_the_agent() {
    let agent = FakeAgent::start(happened());
    let ran = ran_on(&agent, &["events", "--follow"]);
    assert_eq!((ran.exit, ran.out.lines().count()), (Exit::Unreachable, 2));
    assert_eq!(ran_on(&agent, &["logs", "metrics", "--follow"]).exit, Exit::Unreachable);
}

#[test]
fn logs_are_passed_on() {
    let agent =
        FakeAgent::start(Script { logs: vec![b"one\n".to_vec(), b"two\n".to_vec()], ..happened() });
    let ran = ran_on(&agent, &["logs", "metrics", "-n", "5"]);
    assert_eq!((ran.exit, ran.out.as_str()), (Exit::Done, "one\ntwo\n"));
    assert_eq!(agent.asked().logs[0].lines, 5);
    let ran = ran_on(&agent, &["logs", "metrics", "--json"]);
    assert_eq!(ran.out, "{\"data\":\"one\\n\"}\n{\"data\":\"two\\n\"}\n");
}

// === pack ===

fn tree(executables: &[&str]) -> tempfile::TempDir {
    use std::os::unix::fs::PermissionsExt;

    let folder = tempfile::tempdir().expect("a temporary directory");
    let dir = folder.path().join("my-plugin");
    std::fs::create_dir(&dir).expect("a directory");
    std::fs::write(dir.join("README"), "text").expect("a file");
    for name in executables {
        std::fs::write(dir.join(name), "#!/bin/sh\n").expect("a file");
        let mode = std::fs::Permissions::from_mode(0o755);
        std::fs::set_permissions(dir.join(name), mode).expect("a mode");
    }
    folder
}

fn pack(folder: &tempfile::TempDir, more: &[&str]) -> Ran {
    let dir = folder.path().join("my-plugin").display().to_string();
    let out = folder.path().join("out.tar.gz").display().to_string();
    let arguments = [&["pack", &dir, "-o", &out], more].concat();
    ran(&arguments)
}

#[test]
fn what_is_packed_can_be_installed() {
    let folder = tree(&["serve"]);
    let packed = pack(&folder, &["--arg", "-v"]);
    assert_eq!(packed.exit, Exit::Done, "{}", packed.err);
    let place = folder.path().display().to_string();
    assert_snapshot!(packed.out.replace(&place, "PLACE"));
    let archive = folder.path().join("out.tar.gz");
    let order = std::fs::read_to_string(order::order_beside(&archive)).expect("the order");
    assert_snapshot!("packed_order", order.replace(&place, "/PLACE"));

    let agent = FakeAgent::start(Script { configure: accepted(7), ..Script::default() });
    let ran = ran_on(&agent, &["install", "-f", &archive.display().to_string()]);
    assert_eq!(ran.exit, Exit::Done, "{}", ran.err);
    let asked = agent.asked().configure;
    let order = &asked[0].orders.as_ref().expect("orders").configure_plugins[0];
    let plugin = order.plugin.as_ref().expect("a plugin");
    assert_eq!((plugin.name.as_str(), plugin.entry_point.as_str()), ("my-plugin", "serve"));
    assert_eq!(plugin.gcs_signed_url, format!("file://{}", archive.display()));
}

#[test]
fn the_entry_point_must_be_clear() {
    let none = pack(&tree(&[]), &[]);
    assert_eq!(none.exit, Exit::Usage);
    assert!(none.err.contains("there is no executable"), "{}", none.err);
    let folder = tree(&["one", "two"]);
    let many = pack(&folder, &[]);
    assert!(many.err.contains("one, two"), "{}", many.err);
    assert_eq!(pack(&folder, &["--entry-point", "two"]).exit, Exit::Done);
    let text = pack(&folder, &["--entry-point", "README"]);
    assert!(text.err.contains("not an executable file"), "{}", text.err);
}

#[test]
fn an_archive_is_not_written_into_what_it_packs() {
    let folder = tree(&["serve"]);
    let dir = folder.path().join("my-plugin");
    let (dir, out) = (dir.display().to_string(), dir.join("x.tar.gz").display().to_string());
    assert_eq!(ran(&["pack", &dir, "-o", &out]).exit, Exit::Usage);
}

// === config ===

#[test]
fn the_configuration_is_shown_with_its_origins() {
    let ran = ran(&["config", "show", "--set", "agent.name=x", "--set", "plugins.probation=1m"]);
    assert_eq!(ran.exit, Exit::Done);
    assert_snapshot!(ran.out);
}

#[test]
fn the_effective_configuration_can_be_used_as_one() {
    let folder = tempfile::tempdir().expect("a temporary directory");
    let file = folder.path().join("a.toml");
    let shown = ran(&["config", "show", "--effective", "--set", "agent.name=x"]);
    std::fs::write(&file, &shown.out).expect("a file");
    let file = file.display().to_string();
    let again = json(&ran(&["config", "show", "--config", &file, "--json"]));
    let entries = again.as_array().expect("an array");
    assert!(entries.iter().all(|entry| entry["origin"] == file.as_str()));
    assert!(entries.iter().any(|entry| entry["key"] == "agent.name" && entry["value"] == "\"x\""));
}

#[test]
fn mistakes_in_the_configuration_are_listed() {
    assert_eq!(ran(&["config", "check"]).out, "the configuration is good\n");
    let ran = ran(&["config", "check", "--set", "agent.nmae=x", "--set", "plugins.probtion=1s"]);
    assert_eq!(ran.exit, Exit::Failed);
    assert_snapshot!(ran.err);
}

// === run, dev, sample-plugin ===

#[test]
fn run_starts_the_service_with_the_checked_configuration() {
    let services = Recorder::default();
    let mut environment = MapEnvironment::default();
    environment.variables.insert("GUEST_AGENT_LOG".to_owned(), "debug".to_owned());
    let arguments = ["run", "--set", "agent.state_dir=/tmp/x", "--stop-plugins"];
    let ran = ran_with(&arguments, &environment, &services, Looks::Plain);
    assert_eq!(ran.exit, Exit::Done, "{}", ran.err);
    let runs = services.runs.borrow();
    assert_eq!(runs[0].config.agent.state_dir, Path::new("/tmp/x"));
    assert!(runs[0].stop_plugins);
    assert_eq!(runs[0].sources.set, ["agent.state_dir=/tmp/x"]);
    assert_eq!(services.logs.borrow()[0].level, "debug");
}

#[test]
fn run_does_not_start_with_a_bad_configuration() {
    let services = Recorder::default();
    let arguments = ["run", "--set", "plugins.probation=forever"];
    let ran = ran_with(&arguments, &MapEnvironment::default(), &services, Looks::Plain);
    assert_eq!(ran.exit, Exit::Failed);
    assert!(services.runs.borrow().is_empty() && services.logs.borrow().is_empty());
}

#[test]
fn dev_passes_its_flags_and_reports_its_failure() {
    let services = Recorder::default();
    let arguments = ["dev", "--once", "--plugins", "3", "--dir", "/tmp/d"];
    let ran = ran_with(&arguments, &MapEnvironment::default(), &services, Looks::Plain);
    assert_eq!((ran.exit, ran.err.as_str()), (Exit::Failed, "guest-agent: the walk ended early\n"));
    let expected = DevArgs { once: true, plugins: 3, dir: Some("/tmp/d".into()) };
    assert_eq!(services.devs.borrow()[0], expected);
}

#[test]
fn a_sample_plugin_gets_every_argument_untouched() {
    let services = Recorder::default();
    let own = ["--json", "--help", "x", "--", "--address=/x", "--set"];
    let arguments = [&["sample-plugin"][..], &own].concat();
    let ran = ran_with(&arguments, &MapEnvironment::default(), &services, Looks::Plain);
    assert_eq!(ran.exit, Exit::Done, "{}", ran.err);
    assert_eq!(services.samples.borrow()[0].args, own);
}
