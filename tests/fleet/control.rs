//! The control plane: `guest-fleet` as people run it, and its gateways.

use std::net::{SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use guest_fleet_ledger::{JetstreamLedger, SharedLedger, SqliteLedger};
use serde_json::Value;
use tokio::net::TcpStream;
use tokio::time::Instant;

use crate::process::Running;
use crate::{PATIENCE, fleet_program, say};

/// The pause between two looks.
const BEAT: Duration = Duration::from_millis(50);

/// Longest that a verb may take: the program has a deadline of its own.
const VERB: Duration = Duration::from_secs(150);

/// Where the fleet remembers.
#[derive(Clone, Debug)]
pub(crate) enum Engine {
    /// A file.
    Sqlite(PathBuf),
    /// The address of a cluster.
    Nats(String),
}

/// A control plane in a directory.
pub(crate) struct Control {
    program: PathBuf,
    engine: Engine,
    directory: PathBuf,
}

/// A process that serves agents, or would if it were up.
pub(crate) struct Gateway {
    control: Arc<Control>,
    name: String,
    pub(crate) address: SocketAddr,
    /// Where machines enrol.
    pub(crate) enrolment: SocketAddr,
    drift_apart: u64,
    running: Option<Running>,
}

/// A port that nobody else takes meanwhile: it is below those that the system gives to connections.
fn free_address() -> SocketAddr {
    for _ in 0..100 {
        let address = SocketAddr::from(([127, 0, 0, 1], rand::random_range(20_000..32_000)));
        if TcpListener::bind(address).is_ok() {
            return address;
        }
    }
    panic!("no port of this machine is free");
}

// === impl Control ===

impl Control {
    /// A fleet with an authority of its own.
    pub(crate) async fn start(directory: &Path, engine: Engine) -> Arc<Self> {
        let control = Arc::new(Self {
            program: fleet_program::path(),
            engine,
            directory: directory.to_owned(),
        });
        let ca = control.ca();
        control.ask(&["ca", "init", "--dir", ca.to_str().unwrap()]).await.unwrap();
        control
    }

    fn ca(&self) -> PathBuf {
        self.directory.join("ca")
    }

    /// Runs a verb until it succeeds, or is refused in words that say that it was done already: the
    /// answer to an earlier try was lost. Then there is no document.
    pub(crate) async fn insist(&self, arguments: &[&str], done: Option<&str>) -> Value {
        let deadline = Instant::now() + PATIENCE;
        loop {
            match self.ask(arguments).await {
                Ok(document) => return document,
                Err(why) if done.is_some_and(|done| why.contains(done)) => return Value::Null,
                Err(why) => {
                    say(format_args!("again: {why}"));
                    assert!(Instant::now() < deadline, "{why}");
                    tokio::time::sleep(BEAT * 10).await;
                }
            }
        }
    }

    /// The file of what is wished for.
    pub(crate) fn declarations(&self) -> PathBuf {
        self.directory.join("fleet.toml")
    }

    /// SHA-256 of the authority's certificate.
    pub(crate) async fn fingerprint(&self) -> String {
        let ca = self.ca();
        let shown = self.ask(&["ca", "show", "--dir", ca.to_str().unwrap()]).await.unwrap();
        shown["fingerprint"].as_str().unwrap().to_owned()
    }

    fn command(&self) -> tokio::process::Command {
        let mut command = tokio::process::Command::new(&self.program);
        match &self.engine {
            Engine::Sqlite(file) => command.arg("--ledger").arg(file),
            Engine::Nats(address) => command.arg("--ledger").arg(address),
        };
        command
    }

    /// Runs a verb; returns the documents that it printed, one or an array of them.
    pub(crate) async fn ask(&self, arguments: &[&str]) -> Result<Value, String> {
        let mut command = self.command();
        command.arg("--json").args(arguments).kill_on_drop(true);
        let output = tokio::time::timeout(VERB, command.output()).await;
        let output = output.map_err(|_| format!("{arguments:?} does not end"))?.unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        if !output.status.success() {
            let why = String::from_utf8_lossy(&output.stderr);
            return Err(format!("{arguments:?}: {}: {text}{why}", output.status));
        }
        if let Ok(document) = serde_json::from_str(&text) {
            return Ok(document);
        }
        text.lines()
            .map(|line| {
                serde_json::from_str::<Value>(line).map_err(|error| format!("{line}: {error}"))
            })
            .collect()
    }

    /// What the fleet remembers, read beside it.
    pub(crate) async fn ledger(&self) -> SharedLedger {
        match &self.engine {
            Engine::Sqlite(file) => SqliteLedger::open(file).unwrap(),
            Engine::Nats(address) => {
                JetstreamLedger::open(&address.parse().unwrap()).await.unwrap()
            }
        }
    }
}

// === impl Gateway ===

impl Gateway {
    /// A gateway that is not up yet.
    pub(crate) fn new(control: &Arc<Control>, number: usize, drift_apart: u64) -> Self {
        Self {
            control: control.clone(),
            drift_apart,
            name: format!("gateway-{number}"),
            address: free_address(),
            enrolment: free_address(),
            running: None,
        }
    }

    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// Starts it and waits until it takes connections. One that ends by itself, because it cannot
    /// reach its ledger, is started again.
    pub(crate) async fn up(&mut self) {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let running = self.running.get_or_insert_with(|| {
                let mut command = self.control.command();
                command.arg("serve").arg("--ca").arg(self.control.ca());
                command.arg("--listen").arg(self.address.to_string());
                command.arg("--enroll-listen").arg(self.enrolment.to_string());
                command.arg("--drift-apart").arg(self.drift_apart.to_string());
                let log = self.control.directory.join(format!("{}.log", self.name));
                Running::start(command, &log)
            });
            if TcpStream::connect(self.address).await.is_ok() {
                return;
            }
            if let Some(status) = running.ended() {
                say(format_args!("{} ended by itself: {status}", self.name));
                self.running = None;
                tokio::time::sleep(BEAT * 10).await;
            }
            assert!(Instant::now() < deadline, "{} does not come up", self.name);
            tokio::time::sleep(BEAT).await;
        }
    }

    pub(crate) fn running(&self) -> &Running {
        self.running.as_ref().unwrap()
    }

    pub(crate) async fn kill(&mut self) {
        self.running.take().unwrap().kill().await;
    }

    pub(crate) async fn end(mut self) {
        let status = self.running.take().unwrap().end(PATIENCE).await;
        assert!(status.success(), "{} ended with {status}", self.name);
    }
}
