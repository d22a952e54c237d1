//! The command line against a real agent: what is printed, in which form, and with which exit code.

use std::path::{Path, PathBuf};
use std::process::Stdio;

use serde_json::Value;
use tokio::io::{AsyncBufReadExt, BufReader, Lines};
use tokio::process::{Child, ChildStdout, Command};

use crate::harness::{Bed, contract, orders, plugins};

mod outputs;

/// The fields of a plugin's status that scripts rely on.
const STATUS_FIELDS: [&str; 30] = [
    "limits",
    "limit_override",
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
    "memory_basis",
    "resident_bytes",
    "address",
    "install_path",
    "not_enforced",
    "verdict",
    "cause",
    "reason",
    "since",
    "until",
    "help",
    "trial_ends",
    "trigger",
    "hold",
];

const EVENT_FIELDS: [&str; 8] =
    ["seq", "id", "at", "plugin", "revision", "type", "details", "delivered"];

fn json(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or_else(|error| panic!("{error}: {text}"))
}

#[track_caller]
fn check_fields(object: &Value, fields: &[&str]) {
    let mut found: Vec<_> = object.as_object().unwrap().keys().map(String::as_str).collect();
    let mut expected = fields.to_vec();
    found.sort_unstable();
    expected.sort_unstable();
    assert_eq!(found, expected);
}

/// Makes a folder with a plugin's program in it.
fn plugin_folder(bed: &Bed, name: &str, program: &str) -> PathBuf {
    use std::os::unix::fs::PermissionsExt;

    let folder = bed.dir().join(name);
    std::fs::create_dir_all(&folder).unwrap();
    let script = format!("#!/bin/sh\nexec '{}' \"$@\"\n", plugins::program(program).display());
    std::fs::write(folder.join("run"), script).unwrap();
    std::fs::set_permissions(folder.join("run"), std::fs::Permissions::from_mode(0o755)).unwrap();
    folder
}

fn text(path: &Path) -> String {
    path.display().to_string()
}

/// A command that runs until it is stopped, read line by line.
pub(crate) struct Following {
    _child: Child,
    arguments: Vec<String>,
    lines: Lines<BufReader<ChildStdout>>,
}

impl Following {
    pub(crate) fn start(bed: &Bed, arguments: &[&str]) -> Self {
        let mut child = Command::new(env!("CARGO_BIN_EXE_guest-agent"))
            .args(arguments)
            .env("GUEST_AGENT_SOCKET", bed.socket())
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let arguments = arguments.iter().map(|&word| word.to_owned()).collect();
        Self { _child: child, arguments, lines }
    }

    /// The next line that contains a text.
    pub(crate) async fn next_with(&mut self, bed: &Bed, wanted: &str) -> String {
        let search = async {
            loop {
                let line = self.lines.next_line().await.unwrap().expect("the command still prints");
                let arguments: Vec<&str> = self.arguments.iter().map(String::as_str).collect();
                contract::check(&arguments, &line);
                if line.contains(wanted) {
                    return line;
                }
            }
        };
        let found = tokio::time::timeout(crate::harness::PATIENCE, search).await;
        bed.check(&format!("a line with {wanted:?} is printed"), found)
    }
}

#[tokio::test]
async fn a_plugin_is_packed_installed_watched_and_removed() {
    let bed = Bed::new().await;
    let folder = plugin_folder(&bed, "greeter", "trouble_plugin");
    let archive = text(&bed.dir().join("greeter.tar.gz"));
    let packed =
        bed.cli(&["pack", &text(&folder), "-o", &archive, "--revision", "1", "--json"]).await.ok();
    let packed = json(&packed);
    assert_eq!((&packed["name"], &packed["revision"]), (&"greeter".into(), &"1".into()));

    let said = bed.cli(&["install", "-f", &archive, "--wait"]).await.ok();
    assert_eq!(said, "greeter: RUNNING\n");

    let status = json(&bed.cli(&["status", "--json"]).await.ok());
    let [plugin] = status["plugins"].as_array().unwrap().as_slice() else { panic!("{status}") };
    check_fields(plugin, &STATUS_FIELDS);
    let pid = bed.running("greeter", "1").await.pid.unwrap();
    for (field, value) in [
        ("name", Value::from("greeter")),
        ("revision", "1".into()),
        ("state", "RUNNING".into()),
        ("kind", "daemon".into()),
        ("installation", "dynamic".into()),
        ("pid", pid.into()),
        ("restarts", 0.into()),
        ("last_exit", Value::Null),
        ("pending", Value::Null),
        ("config_hash", Value::Null),
        ("install_path", text(&bed.plugin_dir("greeter").join("1")).into()),
    ] {
        assert_eq!(plugin[field], value, "{field}");
    }
    let people = bed.cli(&["status"]).await.ok();
    assert!(people.contains("greeter") && people.contains("RUNNING"), "{people}");

    bed.ask("greeter", "log first").await;
    bed.ask("greeter", "log second").await;
    assert_eq!(bed.cli(&["logs", "greeter", "-n", "1"]).await.ok(), "second\n");

    let events = bed.cli(&["events", "greeter", "--json"]).await.ok();
    let events: Vec<Value> = events.lines().map(json).collect();
    events.iter().for_each(|event| check_fields(event, &EVENT_FIELDS));
    let kinds: Vec<_> = events.iter().map(|event| event["type"].as_str().unwrap()).collect();
    assert_eq!(kinds, ["PLUGIN_CONFIG_INSTALL", "PLUGIN_STARTED", "PLUGIN_INSTALLED"]);

    bed.cli(&["restart", "greeter", "--wait"]).await.ok();
    assert_ne!(bed.running("greeter", "1").await.pid.unwrap(), pid);

    let said = bed.cli(&["remove", "greeter", "--wait"]).await.ok();
    assert_eq!(said, "greeter: REMOVED\n");
    assert_eq!(bed.cli(&["status", "--json=array"]).await.ok().trim(), "[]");
    bed.finish().await;
}

#[tokio::test]
async fn paths_with_spaces_and_worse_are_installed_from() {
    let bed = Bed::new().await;
    let odd = bed.dir().join("50% off? größe #1");
    std::fs::create_dir_all(&odd).unwrap();
    let folder = plugin_folder(&bed, "a folder with spaces", "echo_plugin");
    let archive = text(&odd.join("my plugin.tar.zst"));
    bed.cli(&[
        "pack",
        &text(&folder),
        "-o",
        &archive,
        "--zstd",
        "--name",
        "odd",
        "--revision",
        "1",
    ])
    .await
    .ok();
    // By the order, whose URL `pack` wrote; by the directory that holds both.
    bed.cli(&["install", "-f", &format!("{archive}.json"), "--wait"]).await.ok();
    bed.running("odd", "1").await;
    bed.cli(&["remove", "odd", "--wait"]).await.ok();
    bed.cli(&["install", "-f", &text(&odd), "--wait"]).await.ok();
    bed.running("odd", "1").await;
    bed.finish().await;
}

#[tokio::test]
async fn logs_and_events_can_be_followed() {
    let bed = Bed::new().await;
    let trouble = bed.trouble().await;
    bed.configure(vec![orders::install("t", "1", &trouble).order()]).await;
    bed.running("t", "1").await;
    bed.ask("t", "log old news").await;
    let mut logs = Following::start(&bed, &["logs", "t", "--follow", "-n", "1"]);
    logs.next_with(&bed, "old news").await;
    bed.ask("t", "log fresh news").await;
    logs.next_with(&bed, "fresh news").await;

    let mut events = Following::start(&bed, &["events", "--follow", "--json", "t"]);
    events.next_with(&bed, "PLUGIN_INSTALLED").await;
    bed.tell("t", "exit 5").await;
    let line = events.next_with(&bed, "PLUGIN_CRASHED").await;
    check_fields(&json(&line), &EVENT_FIELDS);
    // The same process of the reader sees the next agent process, too.
    bed.status_where("t", "it runs again", |it| it.state == "RUNNING" && it.restarts == 1).await;
    bed.ask("t", "log second life").await;
    logs.next_with(&bed, "second life").await;
    bed.finish().await;
}

#[tokio::test]
async fn waiting_ends_when_the_plugin_is_as_wanted() {
    let bed = Bed::new().await;
    let trouble = bed.trouble().await;
    // Begun before the plugin is there.
    let mut early = Following::start(&bed, &["wait", "t", "--state", "running"]);
    bed.configure(vec![orders::install("t", "1", &trouble).order()]).await;
    early.next_with(&bed, "RUNNING").await;
    let said = bed.cli(&["wait", "t", "--status-code", "0", "--request", "echo hi"]).await;
    assert!(said.ok().contains("answers 0"));
    let said = bed.cli(&["wait", "t", "--status-code", "1", "--request", "nonsense"]).await;
    assert!(said.ok().contains("answers 1"));
    bed.cli(&["wait", "t", "--status-code", "0"]).await.ok();
    bed.finish().await;
}

#[tokio::test]
async fn what_goes_wrong_has_its_exit_code_and_its_reason() {
    let bed = Bed::new().await;
    let echo = bed.echo().await;
    bed.configure(vec![orders::install("metrics", "1", &echo).order()]).await;
    bed.running("metrics", "1").await;

    for verb in ["status", "restart", "remove", "logs", "events"] {
        let said = bed.cli(&[verb, "metrisc"]).await;
        assert_eq!(said.code, 1, "{verb}");
        assert!(said.stderr.contains("did you mean metrics?"), "{verb}: {}", said.stderr);
    }

    let nowhere = text(&bed.dir().join("nowhere.sock"));
    let said = bed.cli(&["status", "--socket", &nowhere]).await;
    assert_eq!(said.code, 3, "{}", said.stderr);

    let said = bed.cli(&["wait", "metrics", "--state", "CRASHED", "--timeout", "200ms"]).await;
    assert_eq!(said.code, 4, "{}", said.stderr);
    assert!(said.stderr.contains("it is RUNNING"), "{}", said.stderr);

    let wrong = "ab".repeat(32);
    let install = |name: &'static str| {
        let (url, sum, entry) = (echo.url.clone(), wrong.clone(), echo.entry_point.clone());
        [
            "install".to_owned(),
            name.to_owned(),
            "--revision=2".to_owned(),
            format!("--url={url}"),
            format!("--sha256={sum}"),
            format!("--entry-point={entry}"),
            "--wait".to_owned(),
        ]
    };
    for name in ["fresh", "metrics"] {
        let arguments = install(name);
        let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
        let said = bed.cli(&arguments).await;
        assert_eq!(said.code, 1, "{name}: {}", said.stderr);
        assert!(said.stderr.contains("checksum"), "{name}: {}", said.stderr);
        assert!(said.stdout.is_empty(), "{}", said.stdout);
    }
    let status = bed.running("metrics", "1").await;
    assert_eq!(status.pending.unwrap().revision, "2");
    bed.finish().await;
}

#[tokio::test]
async fn the_command_line_says_when_the_agent_is_away() {
    let mut bed = Bed::new().await;
    bed.stop_agent().await;
    for arguments in [&["status"][..], &["events"], &["wait", "x"], &["restart", "x"]] {
        let said = bed.cli(arguments).await;
        assert_eq!(said.code, 3, "{arguments:?}: {}", said.stderr);
        assert!(said.stderr.contains("not reachable"), "{}", said.stderr);
    }
    bed.finish().await;
}

#[tokio::test]
async fn dev_walks_through_a_whole_life() {
    let mut dev = Command::new(env!("CARGO_BIN_EXE_guest-agent"));
    dev.args(["dev", "--once"]).stdin(Stdio::null()).kill_on_drop(true);
    let patience = crate::harness::PATIENCE * 3;
    let ran = tokio::time::timeout(patience, dev.output()).await.expect("it ends").unwrap();
    let (out, err) = (String::from_utf8_lossy(&ran.stdout), String::from_utf8_lossy(&ran.stderr));
    assert!(ran.status.success(), "{out}{err}");
    for step in ["install", "crash", "agent crash", "upgrade", "bad upgrade", "remove"] {
        assert!(out.lines().any(|line| line.trim_start().starts_with(step)), "{step}: {out}");
    }
    assert!(out.contains("all steps succeeded"), "{out}");
}

#[tokio::test]
async fn dev_takes_everything_with_it_when_it_is_interrupted() {
    use nix::sys::signal::{Signal, kill};

    for (flags, signal, code) in [
        (&["--once"][..], Signal::SIGINT, 1),
        (&[], Signal::SIGINT, 0),
        (&["--plugins=2"], Signal::SIGHUP, 0),
    ] {
        let dir = tempfile::tempdir().unwrap();
        let mut dev = Command::new(env!("CARGO_BIN_EXE_guest-agent"));
        dev.arg("dev").args(flags).arg("--dir").arg(dir.path());
        dev.stdin(Stdio::null()).stdout(Stdio::piped()).kill_on_drop(true);
        dev.env("GUEST_AGENT__AGENT__RUNTIME_DIR", "/of/another/agent");
        let mut dev = dev.spawn().unwrap();
        let mut lines = BufReader::new(dev.stdout.take().unwrap()).lines();
        // It packs the whole program first, which a busy machine takes a while for.
        let patience = crate::harness::PATIENCE * 3;
        let line = tokio::time::timeout(patience, lines.next_line()).await;
        line.expect("it begins").unwrap().expect("a line");
        let socket = dir.path().join("run/agent.sock");
        assert!(socket.exists(), "the agent runs");
        let pid = nix::unistd::Pid::from_raw(dev.id().unwrap().try_into().unwrap());
        kill(pid, signal).unwrap();
        let ended = tokio::time::timeout(crate::harness::PATIENCE, dev.wait()).await;
        let ended = ended.expect("it ends").unwrap();
        assert_eq!(ended.code(), Some(code), "{flags:?}");
        assert!(!socket.exists(), "{flags:?}: the agent was left behind");
    }
}

#[tokio::test]
async fn nothing_is_delivered_where_nobody_could_have_acknowledged_it() {
    let mut bed = Bed::builder().set("control_plane.enabled=false").build().await;
    bed.spawn_agent();
    bed.until("the agent answers", async || bed.try_status().await.ok().map(|_| ())).await;
    let echo = bed.echo().await;
    bed.configure_locally(vec![orders::install("echo", "1", &echo).order()]).await;
    bed.running("echo", "1").await;
    let events = bed.cli(&["events", "echo", "--json"]).await.ok();
    assert!(events.lines().count() >= 3, "{events}");
    assert!(events.lines().all(|line| json(line)["delivered"] == false), "{events}");
    // It is no lack: there is nobody to deliver to.
    let text = bed.cli(&["events", "echo"]).await.ok();
    assert!(!text.contains("not delivered"), "{text}");
    bed.finish().await;
}

#[tokio::test]
async fn a_script_that_follows_is_told_when_an_event_is_delivered() {
    let bed = Bed::new().await;
    let mut followed = Following::start(&bed, &["events", "--follow", "--json"]);
    let archive = bed.echo().await;
    bed.configure(vec![orders::install("echo", "1", &archive).order()]).await;
    followed.next_with(&bed, "\"PLUGIN_STARTED\"").await;
    // It listens now, so it gets the next event before the control plane does.
    bed.configure(vec![orders::install("late", "1", &archive).order()]).await;
    let first = json(&followed.next_with(&bed, "\"late\"").await);
    assert_eq!(first["delivered"], false);
    let again = json(&followed.next_with(&bed, first["id"].as_str().unwrap()).await);
    assert_eq!((&again["delivered"], &again["seq"]), (&true.into(), &first["seq"]));
    assert!(first.get("delivered_at").is_none(), "{first}");
    let at = |field: &Value| field.as_str().unwrap().parse::<jiff::Timestamp>().unwrap();
    assert!(at(&again["delivered_at"]) >= at(&first["at"]), "{again}");
    bed.finish().await;
}
