//! Pictures of the console of a fleet, for the book and for people who change it: `just screenshots`.
//!
//! The fleet is `guest-fleet dev`: ten real agents, a release that all took and one that halted in its second wave.

use std::path::{Path, PathBuf};
use std::process::Stdio;

use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, BufReader, Lines};
use tokio::process::{Child, ChildStdout, Command};
use tokio::time::{Duration, Instant, sleep, timeout};

use crate::browser::Browser;
use crate::{PATIENCE, fleet_program};

/// What the book shows: the name of the picture, its page, and how far down it goes.
const PICTURES: [(&str, &str, u64); 12] = [
    ("fleet-now", "/", 700),
    ("fleet-rollout", "/console/rollout?of=summer", 1300),
    ("fleet-rollback", "/console/rollout/rollback?of=summer", 700),
    ("fleet-agents", "/console/agents?select=kernel%20%3D%205.15", 700),
    ("fleet-agent", "/console/agent?of=web-04", 700),
    ("fleet-releases", "/console/releases", 700),
    (
        "fleet-preview",
        "/console/preview?assignment=web&to=2&name=autumn&waves=ring%3Dcanary%20ring%3Dearly%20100%25",
        700,
    ),
    ("fleet-holds", "/console/holds", 700),
    (
        "fleet-hold",
        "/console/hold?name=quarter-end&select=ring%20%3D%20main&reason=the%20quarter%20closes",
        700,
    ),
    ("fleet-enrolment", "/console/enrolment", 700),
    ("fleet-audit", "/console/audit?check=yes", 640),
    ("fleet-system", "/console/system", 700),
];

struct Dev {
    dir: PathBuf,
    console: String,
    process: Child,
    /// Kept open as long as it prints.
    _lines: Lines<BufReader<ChildStdout>>,
    _place: tempfile::TempDir,
}

// === impl Dev ===

impl Dev {
    async fn start() -> Self {
        let place = tempfile::Builder::new().prefix("gs-").tempdir_in("/tmp").unwrap();
        let dir = place.path().join("fleet");
        let mut command = Command::new(fleet_program::path());
        command.args(["dev", "--agent", env!("CARGO_BIN_EXE_guest-agent"), "--dir"]).arg(&dir);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).kill_on_drop(true);
        let mut process = command.spawn().unwrap();
        let mut lines = BufReader::new(process.stdout.take().unwrap()).lines();
        let starting = async {
            loop {
                let line = lines.next_line().await.unwrap().expect("it ended before it was ready");
                if let Some((_, console)) = line.split_once("log in at the console, ") {
                    return console.to_owned();
                }
            }
        };
        let console = timeout(PATIENCE * 3, starting).await.expect("it gets ready");
        Self { dir, console, process, _lines: lines, _place: place }
    }

    async fn ask(&self, arguments: &[&str]) -> Value {
        let mut command = Command::new(fleet_program::path());
        command.arg("--ledger").arg(self.dir.join("ledger.db")).arg("--json").args(arguments);
        command.stdin(Stdio::null()).kill_on_drop(true);
        let output = timeout(PATIENCE, command.output()).await.expect("it ends").unwrap();
        assert!(output.status.success(), "{arguments:?}: {output:?}");
        serde_json::from_slice(&output.stdout).unwrap()
    }

    /// Begins a rollout in the order of the rings, and waits until it is in this state.
    async fn roll_out(&self, name: &str, to: &str, state: &str) {
        let waves = ["--wave", "ring=canary", "--wave", "ring=early", "--wave", "100%"];
        let what = ["rollout", "create", name, "--assignment", "web", "--to", to, "--soak", "3s"];
        self.ask(&[&what[..], &waves].concat()).await;
        let deadline = Instant::now() + PATIENCE;
        loop {
            let shown = self.ask(&["rollout", "show", name]).await;
            let failed = shown["progress"]["failures"].as_u64().unwrap_or_default();
            if shown["state"] == state && (state != "halted" || failed == 2) {
                return;
            }
            assert!(Instant::now() < deadline, "{shown:#}");
            sleep(Duration::from_millis(300)).await;
        }
    }
}

#[tokio::test]
#[ignore = "makes pictures, proves nothing"]
async fn pictures_of_the_console() {
    let Some(mut browser) = Browser::start("pictures of a fleet").await else { return };
    let mut dev = Dev::start().await;
    dev.roll_out("spring", "2", "done").await;
    dev.roll_out("summer", "3", "halted").await;
    dev.ask(&["token", "create", "web", "--uses", "20", "--label", "env=prod"]).await;
    dev.ask(&["hold", "freeze", "--select", "ring = main", "--reason", "TICKET-7: a migration"])
        .await;
    let made = dev.ask(&["access", "token", "create", "alice", "--role", "admin"]).await;
    // The folds count what just happened.
    sleep(Duration::from_secs(8)).await;

    let target = std::env::var_os("CARGO_TARGET_DIR").unwrap_or_else(|| "target".into());
    let folder = Path::new(&target).join("screenshots");
    std::fs::create_dir_all(&folder).unwrap();
    let of = |name: &str| folder.join(format!("{name}.png"));
    let at = dev.console.clone();
    browser.look_sharply(1080, 320, "light", 1.0).await;
    browser.open(&format!("{at}/console/login")).await;
    browser.picture(&of("fleet-login"), 320).await;
    let token = json!(made["token"]);
    browser.evaluate(&format!("document.getElementById('token').value = {token}")).await;
    browser.follow("main button").await;
    for (name, page, height) in PICTURES {
        browser.open(&format!("{at}{page}")).await;
        let title = browser.evaluate("document.title").await;
        eprintln!("{name}: {title}");
        browser.picture(&of(name), height).await;
    }
    browser.look(390, 900, "dark").await;
    browser.open(&at).await;
    browser.picture(&folder.join("phone-of-a-fleet.png"), u64::MAX).await;
    eprintln!("the pictures are in {}", folder.display());
    browser.close().await;
    nix::sys::signal::kill(
        nix::unistd::Pid::from_raw(dev.process.id().unwrap().try_into().unwrap()),
        nix::sys::signal::Signal::SIGINT,
    )
    .unwrap();
    timeout(PATIENCE, dev.process.wait()).await.expect("it ends").unwrap();
}
