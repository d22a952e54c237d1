//! A control plane with an authority, where machines may enrol.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Stdio;

use serde_json::Value;
use tokio::io::{AsyncBufReadExt, BufReader, Lines};
use tokio::process::{Child, ChildStdout, Command};
use tokio::time::timeout;

use crate::{PATIENCE, fleet_program};

/// Where agents connect after all; nobody connects here.
pub(crate) const GATEWAY: &str = "https://127.0.0.1:7443";

pub(crate) struct Plane {
    pub(crate) folder: tempfile::TempDir,
    /// Fingerprint of the authority.
    pub(crate) fingerprint: String,
    addresses: BTreeMap<String, String>,
    _server: Child,
    /// Kept open as long as it prints.
    _lines: Lines<BufReader<ChildStdout>>,
}

// === impl Plane ===

impl Plane {
    /// Starts `serve`, with these options as well. What listens is known when this returns.
    pub(crate) async fn start(options: &[&str]) -> Self {
        let folder = tempfile::Builder::new().prefix("gf-").tempdir_in("/tmp").unwrap();
        let ca = folder.path().join("ca");
        let made = ask(folder.path(), &["ca", "init", "--dir", ca.to_str().unwrap()]).await;
        let mut serve = fleet(folder.path(), &["serve", "--listen", "127.0.0.1:0"]);
        serve.arg("--ca").arg(&ca);
        serve.args(["--enroll-listen", "127.0.0.1:0", "--gateway-url", GATEWAY]).args(options);
        serve.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null()).kill_on_drop(true);
        let mut server = serve.spawn().unwrap();
        let mut lines = BufReader::new(server.stdout.take().unwrap()).lines();
        let mut addresses = BTreeMap::new();
        // The gateway and the enrolment, and one for each option that listens.
        let expected = 2 + options.iter().filter(|option| option.ends_with("-listen")).count();
        let listening = async {
            while addresses.len() < expected {
                let line = lines.next_line().await.unwrap().expect("it ended before it listened");
                let (what, at) = line.split_once(' ').expect("an address");
                addresses.insert(what.to_owned(), at.to_owned());
            }
        };
        timeout(PATIENCE, listening).await.expect("it listens");
        let fingerprint = made["fingerprint"].as_str().unwrap().to_owned();
        Self { folder, fingerprint, addresses, _server: server, _lines: lines }
    }

    /// Where this listener is.
    pub(crate) fn at(&self, what: &str) -> &str {
        &self.addresses[what]
    }

    /// Runs a verb; returns its document.
    pub(crate) async fn ask(&self, arguments: &[&str]) -> Value {
        ask(self.folder.path(), arguments).await
    }

    /// A join token for some machines.
    pub(crate) async fn token(&self, name: &str) -> String {
        let made = self.ask(&["token", "create", name, "--uses", "5"]).await;
        made["token"].as_str().unwrap().to_owned()
    }

    /// How many agents it has.
    pub(crate) async fn agents(&self) -> usize {
        self.ask(&["agents", "--scan"]).await["agents"].as_array().unwrap().len()
    }
}

fn fleet(folder: &Path, arguments: &[&str]) -> Command {
    let mut command = Command::new(fleet_program::path());
    command.arg("--ledger").arg(folder.join("fleet.db")).args(arguments);
    command
}

async fn ask(folder: &Path, arguments: &[&str]) -> Value {
    let mut command = fleet(folder, &["--json"]);
    command.args(arguments).stdin(Stdio::null()).kill_on_drop(true);
    let output = timeout(PATIENCE, command.output()).await.expect("it ends").unwrap();
    assert!(output.status.success(), "{arguments:?}: {output:?}");
    serde_json::from_slice(&output.stdout).unwrap()
}
