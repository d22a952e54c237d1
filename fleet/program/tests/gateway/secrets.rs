//! The program with a secret: it is in the order that an agent gets, and in nothing that the program writes.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::time::Duration;

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

fn declare(path: &Path) {
    let declared = path.join("declared");
    fs::create_dir(&declared).unwrap();
    let release = RELEASE.replace("REVISION", "1");
    let text = format!(
        "{release}config = {{ user = \"u\", password = {{ \"$secret\" = \"db-password\" }} }}\n\n\
         [[assignment]]\nname = \"monitor-prod\"\nplugin = \"monitor\"\nrevision = \"1\"\nselect = \"env = prod\"\n"
    );
    fs::write(declared.join("fleet.toml"), text).unwrap();
}

/// Asks until the answer has these words.
async fn until_explained(path: &Path, words: &str) -> String {
    let asking = async {
        loop {
            let explained = ask(path, &["explain", AGENT, "monitor"]).await;
            if explained.contains(words) {
                return explained;
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
    declare(path);
    let declared = path.join("declared").display().to_string();
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
