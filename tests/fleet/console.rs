//! The console of a fleet in a real browser: `guest-fleet serve` as people run it, Chromium, and axe, which looks for
//! what keeps people from reading a page.

use std::path::PathBuf;
use std::process::Stdio;

use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::{Child, Command};
use tokio::time::timeout;

use crate::browser::Browser;
use crate::{PATIENCE, fleet_program};

/// Declarations of a small fleet. There are no machines, so that nothing but a person moves the rollout.
const DECLARED: &str = r#"
[[release]]
plugin = "monitor"
revision = "1.0"
entry_point = "bin/monitor"
archives = { amd64 = { sha256 = "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa" } }

[[release]]
plugin = "monitor"
revision = "1.1"
entry_point = "bin/monitor"
archives = { amd64 = { sha256 = "bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb" } }

[[assignment]]
name = "monitor-prod"
plugin = "monitor"
revision = "1.0"
select = "env = prod"

[[window]]
name = "nights"
select = "all"
days = ["mon", "tue"]
from = "22:00"
to = "04:00"
zone = "Europe/Zurich"
"#;

/// Every page, and those that ask.
const PAGES: [&str; 13] = [
    "/",
    "/console/rollouts",
    "/console/rollout?of=spring",
    "/console/rollout/abort?of=spring",
    "/console/agents?select=env%20%3D%20prod",
    "/console/releases",
    "/console/assignments",
    "/console/preview?assignment=monitor-prod",
    "/console/diff",
    "/console/holds",
    "/console/hold?name=freeze&select=all&reason=x",
    "/console/enrolment",
    "/console/system",
];

/// A control plane with a console.
pub(crate) struct Served {
    program: PathBuf,
    pub(crate) folder: tempfile::TempDir,
    pub(crate) at: String,
    _server: Child,
}

// === impl Served ===

impl Served {
    async fn start() -> Self {
        Self::with(&["--api-listen", "127.0.0.1:0"]).await
    }

    /// With these options.
    pub(crate) async fn with(options: &[&str]) -> Self {
        let folder = tempfile::Builder::new().prefix("gf-").tempdir_in("/tmp").unwrap();
        let program = fleet_program::path();
        let mut command = Command::new(&program);
        command.arg("--ledger").arg(folder.path().join("fleet.db")).arg("serve");
        command
            .arg("--listen")
            .arg(format!("unix:{}", folder.path().join("agents.sock").display()));
        command.args(options);
        command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .kill_on_drop(true);
        let mut server = command.spawn().unwrap();
        let mut lines = BufReader::new(server.stdout.take().unwrap()).lines();
        let listening = async {
            while let Some(line) = lines.next_line().await.unwrap() {
                if let Some(at) = line.strip_prefix("api ") {
                    return at.to_owned();
                }
            }
            panic!("it ended before it listened");
        };
        let at = timeout(PATIENCE, listening).await.expect("it listens");
        Self { program, folder, at, _server: server }
    }

    /// Runs a verb; returns its document.
    pub(crate) async fn ask(&self, arguments: &[&str]) -> Value {
        let mut command = Command::new(&self.program);
        command
            .arg("--ledger")
            .arg(self.folder.path().join("fleet.db"))
            .arg("--json")
            .args(arguments);
        command.stdin(Stdio::null()).kill_on_drop(true);
        let output = timeout(PATIENCE, command.output()).await.expect("it ends").unwrap();
        assert!(output.status.success(), "{arguments:?}: {output:?}");
        serde_json::from_slice(&output.stdout).unwrap()
    }

    pub(crate) async fn token(&self, role: &str) -> String {
        let made = self.ask(&["access", "token", "create", role, "--role", role]).await;
        made["token"].as_str().unwrap().to_owned()
    }

    pub(crate) async fn declare(&self) {
        let files = self.folder.path().join("declared");
        std::fs::create_dir(&files).unwrap();
        std::fs::write(files.join("fleet.toml"), DECLARED).unwrap();
        self.ask(&["apply", "-f", files.to_str().unwrap()]).await;
        let draft = [
            "rollout",
            "create",
            "spring",
            "--assignment",
            "monitor-prod",
            "--to",
            "1.1",
            "--draft",
        ];
        self.ask(&draft).await;
        self.ask(&["token", "create", "web", "--uses", "20", "--label", "env=prod"]).await;
    }

    /// Logs in as people do.
    async fn log_in(&self, browser: &mut Browser, token: &str) {
        browser.open(&format!("{}/console/login", self.at)).await;
        browser
            .evaluate(&format!("document.getElementById('token').value = {}", json!(token)))
            .await;
        browser.follow("main button").await;
    }
}

#[tokio::test]
async fn people_see_the_fleet_in_a_browser_and_steer_a_rollout() {
    let served = Served::start().await;
    served.declare().await;
    let (viewer, admin) = (served.token("viewer").await, served.token("admin").await);
    let Some(mut browser) = Browser::start("the console of a fleet").await else { return };
    let at = &served.at;

    // Who brings nothing is asked to log in, and comes to the page that was asked for.
    browser.open(&format!("{at}/console/rollout?of=spring")).await;
    assert_eq!(browser.evaluate("location.pathname").await, "/console/login");
    browser.evaluate(&format!("document.getElementById('token').value = {}", json!(viewer))).await;
    browser.follow("main button").await;
    assert_eq!(browser.evaluate("location.pathname").await, "/console/rollout");
    let text = browser.evaluate("document.body.innerText").await.to_string();
    assert!(text.contains("draft") && text.contains("viewer"), "{text}");
    assert_eq!(browser.evaluate("document.querySelectorAll('main a.button').length").await, 0);

    served.log_in(&mut browser, &admin).await;
    browser.until("document.getElementById('live').textContent === 'live'").await;
    looks_right(&mut browser, at).await;

    // What somebody else does is seen without the page being loaded again.
    browser.open(&format!("{at}/console/holds")).await;
    browser.until("document.getElementById('live').textContent === 'live'").await;
    browser.evaluate("window.loadedOnce = true").await;
    served.ask(&["hold", "freeze", "--select", "all", "--reason", "the year ends"]).await;
    browser.until("document.getElementById('page').innerText.includes('the year ends')").await;
    assert_eq!(browser.evaluate("window.loadedOnce").await, true);
    browser.follow("a[href*='end-hold']").await;
    browser.until("document.body.innerText.includes('changes that waited for it')").await;
    browser.follow("main button").await;
    browser.until("document.body.innerText.includes('No change waits for anybody.')").await;

    // A button says what it does before it does it.
    browser.open(&format!("{at}/console/rollout?of=spring")).await;
    browser.follow("a[href*='/abort']").await;
    browser.until("document.body.innerText.includes('Touches no machine.')").await;
    browser.follow("main button").await;
    browser.until("document.querySelector('h1 .pill').textContent === 'aborted'").await;
    let shown = served.ask(&["rollout", "show", "spring"]).await;
    assert_eq!(shown["state"], "aborted", "{shown:#}");
    let audit = served.ask(&["audit", "--limit", "1"]).await;
    assert!(audit.to_string().contains("token/admin"), "{audit:#}");

    // Logged out is logged out.
    browser.follow("header form button").await;
    browser.open(at).await;
    assert_eq!(browser.evaluate("location.pathname").await, "/console/login");
    assert_eq!(browser.complaints(), [""; 0]);
    browser.close().await;
}

/// Every page can be read on a telephone and on a wide screen, in both tastes, and by those who do not see it.
async fn looks_right(browser: &mut Browser, at: &str) {
    let mut is_checked = false;
    for (width, taste) in [(390, "light"), (1920, "dark")] {
        browser.look(width, 900, taste).await;
        for page in PAGES {
            browser.open(&format!("{at}{page}")).await;
            assert_eq!(browser.clipped().await, [""; 0], "{page} at {width}");
            if let Some(found) = browser.axe().await {
                assert_eq!(found, [""; 0], "{page} at {width}, {taste}");
                is_checked = true;
            }
        }
    }
    if !is_checked {
        eprintln!(
            "SKIPPED: axe on the console of a fleet: it is not here; see tests/console/get-axe"
        );
    }
}
