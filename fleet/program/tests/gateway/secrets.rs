//! The program with a secret: it is in the order that an agent gets, and in nothing that the program writes.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::time::Duration;

use guest_agent_proto::agent_controlplane::configure_plugin_states::ConfigurePlugin;
use guest_agent_proto::agent_controlplane::configure_plugin_states::manifest::Config;
use prost::Message;
use prost_types::value::Kind;

use crate::gateway::binary::{Machine, RELEASE, Served, ask, program};
use crate::gateway::observe::get;
use crate::gateway::{AGENT, LONG};

/// Long and strange enough to be nowhere by accident.
const SECRET: &str = "correct-horse-battery-staple-0123456789";

fn write(folder: &Path, name: &str, content: &str) {
    let path = folder.join(name);
    fs::write(&path, content).unwrap();
    fs::set_permissions(path, fs::Permissions::from_mode(0o600)).unwrap();
}

/// Writes a release whose configuration has this secret, and its assignment; returns the directory.
fn declare(path: &Path, revision: &str, secret: &str) -> String {
    let declared = path.join("declared");
    fs::create_dir_all(&declared).unwrap();
    let release = RELEASE.replace("REVISION", revision);
    let release = format!(
        "{release}config = {{ user = \"u\", password = {{ \"$secret\" = \"{secret}\" }} }}\n"
    );
    fs::write(declared.join(format!("monitor-{revision}.toml")), release).unwrap();
    let assignment = format!(
        "[[assignment]]\nname = \"monitor-prod\"\nplugin = \"monitor\"\nrevision = \"{revision}\"\n\
         select = \"env = prod\"\n"
    );
    fs::write(declared.join("assignment.toml"), assignment).unwrap();
    declared.display().to_string()
}

async fn until_explained(path: &Path, words: &str) -> String {
    until_said(path, &["explain", AGENT, "monitor"], words).await
}

/// Asks until the answer has these words.
async fn until_said(path: &Path, verb: &[&str], words: &str) -> String {
    let asking = async {
        loop {
            let said = ask(path, verb).await;
            if said.contains(words) {
                return said;
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    };
    tokio::time::timeout(LONG, asking).await.unwrap_or_else(|_| panic!("`{words}` is never said"))
}

/// Files below a folder that have the secret in them, and how many were looked at.
fn with_secret(folder: &Path) -> (Vec<String>, usize) {
    let (mut found, mut looked) = (Vec::new(), 0);
    for entry in fs::read_dir(folder).unwrap() {
        let entry = entry.unwrap();
        let kind = entry.file_type().unwrap();
        if kind.is_dir() {
            let (below, count) = with_secret(&entry.path());
            found.extend(below);
            looked += count;
        } else if kind.is_file() {
            looked += 1;
            let content = fs::read(entry.path()).unwrap();
            if content.windows(SECRET.len()).any(|part| part == SECRET.as_bytes()) {
                found.push(entry.path().display().to_string());
            }
        }
    }
    (found, looked)
}

#[tokio::test]
async fn a_secret_reaches_the_agent_and_nothing_else() {
    let (directory, kept) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let (path, secrets) = (directory.path(), kept.path());
    write(secrets, ".digest-key", "0123456789abcdef0123456789abcdef");
    let listen = format!("unix:{}/cp.sock", path.display());
    let folder = secrets.display().to_string();
    let arguments = ["--listen", &listen, "--secrets", &folder, "--log-level", "trace"];
    let arguments = [&arguments[..], &["--http-listen", "127.0.0.1:0"]].concat();
    let log = path.join("log");
    let mut served = Served::spawn_logging(path, &arguments, &log);
    served.line("listening unix:").await;
    let declared = declare(path, "1", "db-password");
    ask(path, &["apply", "-f", &declared]).await;
    let mut machine = Machine::connect(path, "").await;
    ask(path, &["agent", "label", AGENT, "env=prod"]).await;

    // The gateway orders nothing without the secret, and `explain` says why.
    let explained = tokio::select! {
        explained = until_explained(path, "waits for the secret `db-password`") => explained,
        order = machine.order() => panic!("{:?} was ordered", order.0),
    };
    assert!(explained.contains("there is no file of this name"), "{explained}");
    write(secrets, "db-password", &format!("{SECRET}\n"));
    let (id, entry, generation, bytes) = machine.order().await;
    let config = entry.manifest.and_then(|manifest| manifest.config);
    let Some(Config::StructConfig(config)) = config else { panic!("no table") };
    assert_eq!(config.fields["password"].kind, Some(Kind::StringValue(SECRET.to_owned())));
    assert_eq!(config.fields["user"].kind, Some(Kind::StringValue("u".to_owned())));
    assert!(config.encoded_len() < bytes.len());

    // Killed before it was acknowledged: the same bytes come again, though the journal has others.
    served.kill().await;
    let mut served = Served::spawn_logging(path, &arguments, &log);
    served.line("listening unix:").await;
    let http = served.line("http http://").await;
    let mut machine = Machine::connect(path, "").await;
    let again = machine.order().await;
    assert_eq!((again.0.as_str(), again.2), (id.as_str(), generation));
    assert!(again.3 == bytes, "the same bytes come again");
    machine.does(&id, "1").await;
    until_explained(path, "done").await;

    let exported = ask(path, &["export"]).await;
    assert!(exported.contains("\"$secret\" = \"db-password\""), "{exported}");
    let mut told = exported;
    for verb in [
        &["audit", "--json"][..],
        &["explain", AGENT, "monitor", "--json"],
        &["agent", AGENT, "--json"],
        &["gateways", "--json"],
        &["secret", "status", "db-password", "--json"],
        &["diff", "-f", &declared],
    ] {
        let output = program(path).args(verb).output().await.unwrap();
        told.push_str(&String::from_utf8_lossy(&output.stdout));
        told.push_str(&String::from_utf8_lossy(&output.stderr));
    }
    told.push_str(&get(http.trim_start_matches("http http://"), "/metrics").await);
    assert!(told.contains("guest_fleet_") && !told.contains(SECRET));
    let backup = path.join("backup").display().to_string();
    ask(path, &["backup", &backup]).await;
    let (found, looked) = with_secret(path);
    assert!(found.is_empty() && looked >= 4, "{found:?} of {looked}");
    assert!(fs::metadata(&log).unwrap().len() > 0);
    served.stop().await;
    // What the ledger wrote at its end, as well.
    assert_eq!(with_secret(path).0, Vec::<String>::new());
    assert_eq!(with_secret(secrets).0.len(), 1, "it would be found");
}

fn password(entry: ConfigurePlugin) -> Option<Kind> {
    let config = entry.manifest.and_then(|manifest| manifest.config);
    let Some(Config::StructConfig(mut config)) = config else { panic!("no table") };
    config.fields.remove("password").and_then(|value| value.kind)
}

#[tokio::test]
async fn a_secret_is_rotated_by_a_declaration_and_never_by_its_file() {
    let (directory, kept) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let (path, secrets) = (directory.path(), kept.path());
    write(secrets, ".digest-key", "0123456789abcdef0123456789abcdef");
    write(secrets, "db-password@1", "first");
    let folder = secrets.display().to_string();
    let served = Served::start_with(path, &["--secrets", &folder]).await;
    let declared = declare(path, "1", "db-password@1");
    ask(path, &["apply", "-f", &declared]).await;
    let mut machine = Machine::connect(path, "").await;
    ask(path, &["agent", "label", AGENT, "env=prod"]).await;
    let (id, entry, first, _) = machine.order().await;
    assert_eq!(password(entry), Some(Kind::StringValue("first".to_owned())));
    machine.does(&id, "1").await;
    until_explained(path, "done").await;

    // A gateway tells of it, also one that never saw the former content, and orders nobody anything.
    write(secrets, "db-password@1", "second");
    let status = ["secret", "status", "db-password"];
    until_said(path, &status, "its file has another content").await;
    served.kill().await;
    let served = Served::start_with(path, &["--secrets", &folder]).await;
    let told = until_said(path, &status, "its file has another content").await;
    assert!(told.contains("write this one as `db-password@2` and declare that"), "{told}");
    let mut machine = Machine::connect(path, "1").await;
    let has =
        |version: u32| format!("{AGENT}  monitor  db-password@{version}  db-password@{version}");
    let there = has(1);
    tokio::select! {
        said = until_said(path, &status, &there) => drop(said),
        order = machine.order() => panic!("{:?} was ordered", order.0),
    }

    write(secrets, "db-password@2", "second");
    declare(path, "2", "db-password@2");
    ask(path, &["apply", "-f", &declared, "--reason", "TICKET-8"]).await;
    let (id, entry, second, _) = machine.order().await;
    assert!(second > first, "it is the next order after the first: {second}");
    assert_eq!(entry.plugin.as_ref().map(|plugin| plugin.revision_id.as_str()), Some("2"));
    assert_eq!(password(entry), Some(Kind::StringValue("second".to_owned())));
    machine.does(&id, "2").await;
    until_explained(path, "done").await;
    until_said(path, &status, "db-password@2  on probation").await;
    assert!(ask(path, &["rollout", "list"]).await.contains("monitor-prod"));
    assert!(ask(path, &["audit"]).await.contains("TICKET-8"));
    served.stop().await;
}

#[tokio::test]
async fn a_directory_without_a_key_is_refused_with_the_command_that_makes_one() {
    let directory = tempfile::tempdir().unwrap();
    let folder = directory.path().display().to_string();
    let arguments = ["serve", "--listen", "127.0.0.1:0", "--secrets", &folder];
    let output = program(directory.path()).args(arguments).output().await.unwrap();
    let words = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{words}");
    assert!(words.contains(&folder) && words.contains("head -c 32 /dev/urandom"), "{words}");
}
