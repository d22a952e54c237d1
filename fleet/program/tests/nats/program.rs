//! The program on a ledger on NATS: verbs, the server, a backup and its restore.

use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use tempfile::TempDir;
use tokio::io::{AsyncBufReadExt, BufReader};

use crate::nats::shared;

/// Longer than anything takes; only a failing test waits for all of it.
const LONG: Duration = Duration::from_secs(60);

fn run(ledger: &str, arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_guest-fleet"));
    command.env("GUEST_FLEET_LEDGER", ledger).args(arguments);
    command.output().unwrap()
}

pub(crate) fn succeed(ledger: &str, arguments: &[&str]) -> String {
    let output = run(ledger, arguments);
    let words = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{arguments:?}: {words}");
    String::from_utf8(output.stdout).unwrap()
}

/// Serves until it says that it listens, and ends it with SIGTERM.
pub(crate) async fn serves(ledger: &str, folder: &Path) {
    let mut served = tokio::process::Command::new(env!("CARGO_BIN_EXE_guest-fleet"))
        .env("GUEST_FLEET_LEDGER", ledger)
        .args(["serve", "--listen", &format!("unix:{}/gateway.sock", folder.display())])
        .stdout(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(served.stdout.take().unwrap()).lines();
    let first = tokio::time::timeout(LONG, lines.next_line()).await.expect("it serves in time");
    assert!(first.unwrap().unwrap_or_default().starts_with("listening unix:"));
    let pid = served.id().unwrap().to_string();
    assert!(Command::new("kill").args(["-TERM", &pid]).status().unwrap().success());
    let ended = tokio::time::timeout(LONG, served.wait()).await.expect("it ends in time");
    assert!(ended.unwrap().success());
}

#[tokio::test]
async fn the_program_works_on_a_ledger_on_nats() {
    let Some(cluster) = shared::cluster() else { return };
    let folder = TempDir::new().unwrap();
    let (prefix, _streams) = shared::prefix();
    let ledger = cluster.address(&prefix);
    succeed(&ledger, &["token", "create", "web", "--uses", "3"]);
    let tokens = succeed(&ledger, &["token", "list", "--json"]);
    assert!(tokens.contains("\"web\""), "{tokens}");
    serves(&ledger, folder.path()).await;

    let backup = folder.path().join("fleet.backup").display().to_string();
    succeed(&ledger, &["backup", &backup]);
    let (prefix, _streams) = shared::prefix();
    let other = cluster.address(&prefix);
    succeed(&other, &["restore", &backup]);
    assert_eq!(succeed(&other, &["token", "list", "--json"]), tokens);
    succeed(&other, &["audit", "verify"]);
    serves(&other, folder.path()).await;
    let file = folder.path().join("ledger.db").display().to_string();
    succeed(&file, &["restore", &backup]);
    assert_eq!(succeed(&file, &["token", "list", "--json"]), tokens);

    let again = run(&other, &["restore", &backup]);
    let words = String::from_utf8_lossy(&again.stderr);
    assert!(!again.status.success() && words.contains("has content"), "{words}");
}

#[test]
fn a_wrong_address_says_what_to_write_and_no_secret() {
    let output = run("nats://user:secret@localhost?monitor=localhost:8222", &["token", "list"]);
    let words = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{words}");
    assert!(words.contains("creds=FILE"), "{words}");
}
