//! A control plane as people run it, and agents of it.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::Stdio;
use std::time::Instant;

use nix::sys::signal::Signal;
use serde_json::Value;
use tokio::io::{AsyncBufReadExt, BufReader, Lines};
use tokio::process::{Child, ChildStdout, Command};
use tokio::time::{Duration, sleep, timeout};

use crate::fleet_program;
use crate::harness::archive::Archive;
use crate::harness::{Bed, PATIENCE, http, signal};

/// The assignment that gives all agents the plugin `echo`.
pub(super) const ASSIGNMENT: &str = "echo-all";

/// The pause between two looks by a program that has to be started for each.
const LOOK: Duration = Duration::from_millis(200);

/// How long the counts of a page stay as they are, and some more.
const PAGE_PATIENCE: Duration = Duration::from_secs(40);

/// Values by series, as a page has them.
pub(super) type Page = BTreeMap<String, f64>;

/// A process of `guest-fleet serve` with a ledger of its own, and its agents.
pub(super) struct Plane {
    pub(super) beds: Vec<Bed>,
    pub(super) archive: Archive,
    folder: tempfile::TempDir,
    serving: Child,
    /// It prints to this until it ends.
    _lines: Lines<BufReader<ChildStdout>>,
    http: SocketAddr,
}

/// The samples of a page.
fn parsed(page: &str) -> Page {
    let lines = page.lines().filter(|line| !line.starts_with('#') && !line.is_empty());
    lines
        .map(|line| {
            let (series, value) = line.rsplit_once(' ').expect("a sample");
            (series.to_owned(), value.parse().expect("a number"))
        })
        .collect()
}

pub(super) fn release(archive: &Archive, revision: &str) -> String {
    let Archive { url, sha256, entry_point, .. } = archive;
    format!(
        "[[release]]\nplugin = \"echo\"\nrevision = \"{revision}\"\nentry_point = \"{entry_point}\"\n\
         archives.any = {{ sha256 = \"{sha256}\", url = \"{url}\" }}\n"
    )
}

// === impl Plane ===

impl Plane {
    /// A fleet of so many agents, which all have the plugin `echo`.
    pub(super) async fn start(agents: usize, options: &[&str]) -> Self {
        let folder = tempfile::Builder::new().prefix("gf-").tempdir_in("/tmp").unwrap();
        let socket = folder.path().join("gw.sock");
        let mut command = Command::new(fleet_program::path());
        command.arg("--ledger").arg(folder.path().join("ledger.db"));
        command.arg("serve").arg("--listen").arg(format!("unix:{}", socket.display()));
        command.args(["--http-listen", "127.0.0.1:0", "--offline-after", "10"]).args(options);
        let log = std::fs::File::create(folder.path().join("serve.log")).unwrap();
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(log).kill_on_drop(true);
        let mut serving = command.spawn().unwrap();
        let mut lines = BufReader::new(serving.stdout.take().unwrap()).lines();
        let http = timeout(PATIENCE, async {
            loop {
                let line = lines.next_line().await.unwrap().expect("it serves");
                if let Some(http) = line.strip_prefix("http http://") {
                    return http.parse().unwrap();
                }
            }
        });
        let http = http.await.expect("it serves");

        let mut beds = Vec::new();
        for number in 0..agents {
            let set = [
                format!("control_plane.endpoint=unix:{}", socket.display()),
                format!("control_plane.resource=projects/1/zones/test/instances/{number}"),
            ];
            let builder = set.into_iter().fold(Bed::builder().by_hand(), |it, set| it.set(set));
            beds.push(builder.build().await);
        }
        let archive = beds[0].echo().await;
        let plane = Self { beds, archive, folder, serving, _lines: lines, http };
        let assigned = format!(
            "[[assignment]]\nname = \"{ASSIGNMENT}\"\nplugin = \"echo\"\nrevision = \"1\"\nselect = \"all\"\n"
        );
        let declared = release(&plane.archive, "1") + &assigned;
        plane.apply(&declared, &["--at-once", "--reason", "a new fleet"]).await;
        plane
    }

    /// Starts the agents and waits until the fleet counts them as done; returns the page.
    pub(super) async fn calm(&mut self) -> Page {
        for bed in &mut self.beds {
            bed.spawn_agent();
        }
        let agents = self.beds.len();
        self.shows(&["status"], "all agents are done", |status| {
            let plugin = &status["plugins"][0];
            let states = plugin["wanted"]["states"].as_array().into_iter().flatten();
            let well = states
                .filter(|it| ["on_probation", "done"].contains(&it["state"].as_str().unwrap()));
            let well: u64 = well.map(|it| it["agents"].as_u64().unwrap()).sum();
            status["agents"]["connected"] == agents && usize::try_from(well) == Ok(agents)
        })
        .await;
        #[expect(clippy::cast_precision_loss, reason = "a few agents")]
        let all = agents as f64;
        self.page("all agents are done", |page| {
            let of = |state| page.get(&format!("guest_fleet_standings{{state=\"{state}\"}}"));
            let is_ready = |(series, value): (&String, &f64)| {
                !series.starts_with("guest_fleet_ready{") || *value == 1.0
            };
            of("done").zip(of("on_probation")).is_some_and(|(done, new)| done + new == all)
                && page.get("guest_fleet_streams") == Some(&all)
                && page.iter().all(is_ready)
        })
        .await
    }

    /// Declares these texts.
    pub(super) async fn apply(&self, declared: &str, options: &[&str]) {
        let file = self.folder.path().join("fleet.toml");
        std::fs::write(&file, declared).unwrap();
        self.ask(&[&["apply", "-f", file.to_str().unwrap()], options].concat()).await.unwrap();
    }

    /// Runs a verb; returns its document.
    pub(super) async fn ask(&self, arguments: &[&str]) -> Result<Value, String> {
        let mut command = Command::new(fleet_program::path());
        command.arg("--ledger").arg(self.folder.path().join("ledger.db")).arg("--json");
        command.args(arguments).stdin(Stdio::null()).kill_on_drop(true);
        let output = timeout(PATIENCE, command.output()).await.expect("a verb ends").unwrap();
        if !output.status.success() {
            return Err(String::from_utf8_lossy(&output.stderr).into_owned());
        }
        Ok(serde_json::from_slice(&output.stdout).unwrap_or_default())
    }

    /// Waits until a verb shows this.
    pub(super) async fn shows(
        &self,
        arguments: &[&str],
        what: &str,
        is_so: impl Fn(&Value) -> bool,
    ) {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let found = self.ask(arguments).await;
            if found.as_ref().is_ok_and(&is_so) {
                return;
            }
            if Instant::now() > deadline {
                let log = std::fs::read_to_string(self.folder.path().join("serve.log"));
                panic!("not so: {what}: {found:#?}\n{}", log.unwrap_or_default());
            }
            sleep(LOOK).await;
        }
    }

    /// Waits until the page is so; returns it.
    pub(super) async fn page(&self, what: &str, is_so: impl Fn(&Page) -> bool) -> Page {
        let deadline = Instant::now() + PAGE_PATIENCE;
        loop {
            let reply = http::ask(self.http, "GET", "/metrics", &[]).await.unwrap();
            let page = parsed(&reply.body);
            if is_so(&page) {
                return page;
            }
            assert!(Instant::now() < deadline, "not so: {what}: {page:#?}");
            sleep(LOOK).await;
        }
    }

    /// Ends the server, and the agents after it.
    pub(super) async fn finish(mut self) {
        signal(self.serving.id().expect("it serves"), Signal::SIGTERM);
        let ended = timeout(PATIENCE, self.serving.wait()).await.expect("it ends").unwrap();
        assert!(ended.success(), "guest-fleet ended with {ended}");
        for bed in self.beds {
            bed.finish().await;
        }
    }
}

/// The path of a file with this text beside the ledger's folder.
pub(super) fn file(folder: &tempfile::TempDir, name: &str, text: &str) -> PathBuf {
    use std::os::unix::fs::PermissionsExt;

    let path = folder.path().join(name);
    std::fs::write(&path, text).unwrap();
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
    path
}
