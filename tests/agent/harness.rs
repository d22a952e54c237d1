//! A bed: one agent, its control plane and its artifact server in a directory of their own.
//!
//! ```text
//!   test ─► Bed ─┬─► ControlPlane (unix socket)  ◄── link ──┐
//!                ├─► ArtifactServer (loopback)   ◄── HTTP ──┤
//!                ├─► agent.sock                  ───────────► guest-agent run ─► plugins
//!                └─► guest-agent <verb> (`cli`)
//! ```
//!
//! Beds share nothing, so tests run beside each other. Nothing here waits without a deadline, and a
//! wait that fails says what was waited for and shows the end of the agent's log. A test ends with
//! [`Bed::finish`], which takes everything down through the front door and complains about whatever
//! is left: a plugin, a process, a socket, a half-unpacked archive, a panic in the log.
//!
//! The modules of `harness/`: `archive` makes archives, good and bad; `contract` holds JSON to its schemas; `fleet` decides on orders; `http` asks for pages; `orders`
//! writes orders; `observe` gives them and watches what becomes of them; `inspect` looks behind the
//! agent's doors; `plugins` finds the programs of the plugin SDK's examples; `processes` finds what
//! runs; `promtool` is Prometheus' own tool. Kinds of events are the contract's numbers: 1 install ordered, 2 remove ordered, 3
//! installed, 4 started, 5 removed, 6 stopped, 7 crashed, 8 install failed, 9 start failed, 10
//! remove failed, 11 apply ordered, 12 applied, 13 apply failed.

pub(crate) mod archive;
pub(crate) mod contract;
pub(crate) mod fleet;
pub(crate) mod http;
pub(crate) mod inspect;
pub(crate) mod observe;
pub(crate) mod orders;
pub(crate) mod plugins;
pub(crate) mod processes;
pub(crate) mod promtool;

use std::fmt::Display;
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};
use std::time::{Duration, Instant};

use guest_agent_lab::{self as lab, AgentConnection, ArtifactServer, ControlPlane, Timings};
use guest_fleet_sessions::Gateway;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tokio::process::{Child, Command};
use tonic::Status;

use fleet::Fleet;

pub(crate) use archive::{Archive, ArchiveSpec};

/// How the agent of a bed is known to its control plane.
pub(crate) const RESOURCE: &str = "projects/1/zones/test/instances/test";

/// The instance id of a bed's agent.
pub(crate) const INSTANCE: &str = "test";

/// Longest that anything may take. Far longer than it does: the machine may be busy.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);

/// How often a condition is looked at again.
pub(crate) const BEAT: Duration = Duration::from_millis(10);

/// Verbs of the command line that give orders.
const ORDERS: [&str; 3] = ["apply", "install", "remove"];

/// How much of the agent's log is shown with a failure, in lines.
const LAST_WORDS: usize = 60;

/// The settings of a bed that are not the agent's defaults: quick, so that tests are.
/// Archives come from their server every time, so that what happens on the way happens. A plugin that
/// answers late is not what a test is about, unless it says so: the machine may be busy.
const SETTINGS: [&str; 7] = [
    "instance.id=test",
    "install.cache_max_bytes=0",
    "control_plane.auth=none",
    "plugins.probation=1s",
    "plugins.health_interval=500ms",
    "plugins.health_timeout=30s",
    "plugins.restart_max_backoff=1s",
];

/// The agent, the servers and the folders of one test.
pub(crate) struct Bed {
    dir: PathBuf,
    /// Deletes the directory at the end.
    _temporary: tempfile::TempDir,
    /// The control plane; replaced when it is restarted.
    pub(crate) control_plane: ControlPlane,
    /// The gateway that the agent connects to: the control plane's, or that of a fleet.
    pub(crate) gateway: Gateway,
    /// The fleet that decides on orders, and what it has recorded, which outlives the control plane;
    /// `None` where tests give orders by hand alone.
    fleet: Option<Fleet>,
    /// Where archives are downloaded from.
    pub(crate) artifacts: ArtifactServer,
    announces_fleet: bool,
    settings: Vec<String>,
    flags: Vec<String>,
    variables: Vec<(String, String)>,
    /// The agent's program.
    program: PathBuf,
    agent: Option<Child>,
    finished: bool,
}

/// A bed that is being described.
#[derive(Default)]
pub(crate) struct Builder {
    by_hand: bool,
    announces_fleet: bool,
    settings: Vec<String>,
    flags: Vec<String>,
    variables: Vec<(String, String)>,
}

/// What a command line said.
#[derive(Debug)]
pub(crate) struct Said {
    /// The exit code; -1 for a death by signal.
    pub(crate) code: i32,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

// === impl Builder ===

impl Builder {
    /// The control plane announces no fleet, and sends only the orders that a test gives it.
    pub(crate) fn by_hand(mut self) -> Self {
        self.by_hand = true;
        self
    }

    /// The control plane announces a fleet, and sends only the orders that a test gives it.
    pub(crate) fn announces_fleet(mut self) -> Self {
        self.by_hand = true;
        self.announces_fleet = true;
        self
    }

    /// Sets a configuration key of the agent, as `--set` takes it.
    pub(crate) fn set(mut self, setting: impl Into<String>) -> Self {
        self.settings.push(setting.into());
        self
    }

    /// Adds a flag to `guest-agent run`.
    pub(crate) fn flag(mut self, flag: impl Into<String>) -> Self {
        self.flags.push(flag.into());
        self
    }

    /// Sets a variable in the environment of the agent and of the command line.
    pub(crate) fn variable(mut self, name: &str, value: impl Into<String>) -> Self {
        self.variables.push((name.to_owned(), value.into()));
        self
    }

    /// Makes the bed. The agent does not run yet.
    pub(crate) async fn build(self) -> Bed {
        let temporary = short_temporary_directory();
        let dir = temporary.path().canonicalize().unwrap();
        let fleet = (!self.by_hand).then(Fleet::new);
        let builder = control_plane(&dir, fleet.as_ref(), self.announces_fleet);
        let control_plane = builder.start().await.expect("a control plane can listen in the bed");
        let artifacts = ArtifactServer::start(([127, 0, 0, 1], 0).into()).await.unwrap();
        std::fs::write(dir.join("agent.toml"), agent_config(&dir)).unwrap();
        let settings = SETTINGS.map(str::to_owned).into_iter().chain(self.settings).collect();
        Bed {
            dir,
            _temporary: temporary,
            gateway: control_plane.gateway().clone(),
            control_plane,
            fleet,
            announces_fleet: self.announces_fleet,
            artifacts,
            settings,
            flags: self.flags,
            variables: self.variables,
            program: program(),
            agent: None,
            finished: false,
        }
    }

    /// Makes the bed and starts its agent; returns when the agent is connected.
    pub(crate) async fn start(self) -> Bed {
        let mut bed = self.build().await;
        bed.start_agent().await;
        bed
    }
}

// === impl Bed: its life ===

impl Bed {
    /// A bed with a running, connected agent and the usual settings.
    pub(crate) async fn new() -> Self {
        Self::builder().start().await
    }

    /// A bed to be described.
    pub(crate) fn builder() -> Builder {
        Builder::default()
    }

    /// From now on, the agent and the command line run this program.
    pub(crate) fn use_program(&mut self, program: &Path) {
        self.program = program.to_owned();
    }

    /// Starts the agent and waits until the control plane and the local socket have it.
    pub(crate) async fn start_agent(&mut self) {
        let before = self.gateway.connection(RESOURCE);
        self.spawn_agent();
        self.until("the agent answers on its socket", async || {
            self.try_status().await.ok().map(|_| ())
        })
        .await;
        let connected = match before {
            None => self.gateway.wait_connected(RESOURCE, PATIENCE).await,
            Some(old) => self.gateway.wait_reconnected(RESOURCE, &old, PATIENCE).await,
        };
        self.check("the agent connects to its control plane", connected);
    }

    /// Starts the agent and waits for nothing.
    pub(crate) fn spawn_agent(&mut self) {
        assert!(self.agent.is_none(), "the agent of this bed runs already");
        let log = self.dir.join("agent.log");
        let log = std::fs::File::options().create(true).append(true).open(log).unwrap();
        let mut command = self.command();
        command.arg("run").arg("--config").arg(self.dir.join("agent.toml"));
        for setting in &self.settings {
            command.arg("--set").arg(setting);
        }
        command.args(&self.flags).stderr(log).process_group(0).kill_on_drop(true);
        self.agent = Some(command.spawn().unwrap());
    }

    /// Sets a configuration key for the agents that are started from now on.
    pub(crate) fn set(&mut self, setting: impl Into<String>) {
        self.settings.push(setting.into());
    }

    /// What the agents that are started from now on have in their environment beside the usual.
    pub(crate) fn set_environment(&mut self, variables: Vec<(String, String)>) {
        self.variables = variables;
    }

    /// How the agent ended, if it did by itself. A next one can be started then.
    pub(crate) fn agent_ended(&mut self) -> Option<ExitStatus> {
        let status = self.agent.as_mut()?.try_wait().unwrap()?;
        self.agent = None;
        Some(status)
    }

    /// Kills the agent as a crash or the OOM killer would. Its plugins live on.
    pub(crate) async fn kill_agent(&mut self) {
        let mut agent = self.agent.take().expect("the agent runs");
        agent.kill().await.unwrap();
        let gone = self.gateway.wait_disconnected(RESOURCE, PATIENCE).await;
        self.check("the control plane notices that the agent is gone", gone);
    }

    /// Kills the agent, and does not wait until the control plane notices it.
    pub(crate) async fn kill_agent_only(&mut self) {
        let mut agent = self.agent.take().expect("the agent runs");
        agent.kill().await.unwrap();
    }

    /// Asks the agent to stop and waits until it has. Its plugins live on.
    pub(crate) async fn stop_agent(&mut self) -> ExitStatus {
        let mut agent = self.agent.take().expect("the agent runs");
        signal(agent.id().expect("it was not waited for"), Signal::SIGTERM);
        match tokio::time::timeout(PATIENCE, agent.wait()).await {
            Ok(status) => status.unwrap(),
            Err(_) => self.fail("the agent does not stop on SIGTERM"),
        }
    }

    /// Waits until the agent ends by itself.
    pub(crate) async fn agent_ends(&mut self) -> ExitStatus {
        let mut agent = self.agent.take().expect("the agent runs");
        match tokio::time::timeout(PATIENCE, agent.wait()).await {
            Ok(status) => status.unwrap(),
            Err(_) => self.fail("the agent does not end"),
        }
    }

    /// Stops a process by a signal, and waits until the kernel shows that.
    pub(crate) async fn freeze(&self, pid: u32) {
        signal(pid, Signal::SIGSTOP);
        self.until("it is stopped", async || {
            let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
            stat.contains(") T ").then_some(())
        })
        .await;
    }

    /// The pid of the running agent.
    pub(crate) fn agent_pid(&self) -> u32 {
        self.agent.as_ref().and_then(Child::id).expect("the agent runs")
    }

    /// Has the agent connect to another control plane, which sends only the orders that a test gives it.
    pub(crate) fn use_control_plane(&mut self, control_plane: ControlPlane) {
        self.fleet = None;
        self.gateway = control_plane.gateway().clone();
        self.control_plane = control_plane;
    }

    /// Stops the control plane; the fleet's ledger stays.
    pub(crate) async fn stop_control_plane(&mut self) {
        self.control_plane.shutdown().await;
        if let Some(fleet) = &self.fleet {
            fleet.stop();
        }
    }

    /// Starts the control plane again on the same socket and ledger.
    pub(crate) async fn start_control_plane(&mut self) {
        if let Some(fleet) = &mut self.fleet {
            fleet.start().await;
        }
        let builder = control_plane(&self.dir, self.fleet.as_ref(), self.announces_fleet);
        let started = builder.after(&self.control_plane).start().await;
        let control_plane = self.check("the control plane starts again", started);
        self.gateway = control_plane.gateway().clone();
        self.control_plane = control_plane;
    }

    /// Ends the link with a gRPC code and waits until the agent is back.
    pub(crate) async fn cut_link(&self, code: lab::Code) -> AgentConnection {
        let before = self.gateway.connection(RESOURCE);
        let before = self.check("the agent is connected", before.ok_or("it is not"));
        let status = Status::new(code, "disconnected by the operator");
        let cut = self.gateway.disconnect(RESOURCE, &status);
        self.check("the link is cut", cut.then_some(()).ok_or("it is not connected"));
        let back = self.gateway.wait_reconnected(RESOURCE, &before, PATIENCE).await;
        self.check("the agent reconnects", back)
    }

    /// Removes every plugin, stops the agent and checks that nothing is left of either.
    pub(crate) async fn finish(self) {
        self.finish_after(async |_| {}).await;
    }

    /// The same, with a last look at what a stopped agent leaves.
    pub(crate) async fn finish_after(mut self, look: impl AsyncFnOnce(&Self)) {
        if self.agent.is_none() {
            self.spawn_agent();
        }
        self.stand_down().await;
        self.until("every plugin can be removed", async || {
            let plugins = self.try_status().await.ok()?.plugins;
            if plugins.is_empty() {
                return Some(());
            }
            let settled = plugins.iter().filter(|plugin| plugin.state != "STOPPING");
            let orders: Vec<_> = settled.map(|plugin| orders::remove(&plugin.name)).collect();
            if !orders.is_empty() {
                self.configure_locally(orders).await;
                tokio::time::sleep(BEAT * 10).await;
            }
            None
        })
        .await;
        let status = self.stop_agent().await;
        self.finished = true;
        if !status.success() {
            self.fail(format_args!("the agent ended with {status}"));
        }
        look(&self).await;
        if let Some(left) = self.leftovers() {
            self.fail(format_args!("something is left behind: {left}"));
        }
        if let Some(line) = self.log().lines().find(|line| line.contains("panicked")) {
            self.fail(format_args!("the agent panicked: {line}"));
        }
        self.control_plane.shutdown().await;
        self.gateway.shutdown().await;
        self.artifacts.shutdown().await;
    }

    /// What is there that should not be when no plugin is.
    fn leftovers(&self) -> Option<String> {
        let processes = processes::all_below(&self.state_root());
        if let Some((pid, variables)) = processes.first_key_value() {
            let name = variables.get("GUEST_AGENT_PLUGIN").cloned().unwrap_or_default();
            return Some(format!("process {pid} of {name:?}"));
        }
        let folders = [
            self.state_root().join("plugins"),
            self.state_root().join("state"),
            self.dir.join("run"),
            self.dir.join("run/plugins"),
        ];
        let entries = folders.iter().flat_map(|folder| listing(folder));
        let mut left = entries.filter(|path| *path != self.dir.join("run/plugins"));
        left.next().map(|path| path.display().to_string())
    }
}

// === impl Bed: places ===

impl Bed {
    /// The directory that everything of this bed is in.
    pub(crate) fn dir(&self) -> &Path {
        &self.dir
    }

    /// `<state_dir>/<instance id>`.
    pub(crate) fn state_root(&self) -> PathBuf {
        self.dir.join("state").join(INSTANCE)
    }

    /// Where the revisions of a plugin are.
    pub(crate) fn plugin_dir(&self, plugin: &str) -> PathBuf {
        self.state_root().join("plugins").join(plugin)
    }

    /// The plugin's own data.
    pub(crate) fn plugin_state(&self, plugin: &str) -> PathBuf {
        self.state_root().join("state").join(plugin)
    }

    /// What the plugin printed.
    pub(crate) fn plugin_output(&self, plugin: &str) -> String {
        let log = self.dir.join("log/plugins").join(format!("{plugin}.log"));
        std::fs::read_to_string(log).unwrap_or_default()
    }

    /// The agent's own socket.
    pub(crate) fn socket(&self) -> PathBuf {
        self.dir.join("run/agent.sock")
    }

    /// The log of all lives of the agent.
    pub(crate) fn log(&self) -> String {
        std::fs::read_to_string(self.dir.join("agent.log")).unwrap_or_default()
    }

    /// The names in the folder of a plugin, sorted; empty when the folder does not exist.
    pub(crate) fn plugin_files(&self, plugin: &str) -> Vec<String> {
        let files = listing(&self.plugin_dir(plugin));
        let names = files.iter().filter_map(|path| Some(path.file_name()?.to_str()?.to_owned()));
        // The record for an agent without a store is written beside what these steps are about.
        let mut names: Vec<_> = names.filter(|name| !name.starts_with(".adopt")).collect();
        names.sort();
        names
    }
}

// === impl Bed: waiting and failing ===

impl Bed {
    /// Waits until a condition gives something.
    pub(crate) async fn until<T>(
        &self,
        what: &str,
        condition: impl AsyncFnMut() -> Option<T>,
    ) -> T {
        self.within(PATIENCE, what, condition).await
    }

    /// Waits until a condition gives something, for so long.
    pub(crate) async fn within<T>(
        &self,
        patience: Duration,
        what: &str,
        mut condition: impl AsyncFnMut() -> Option<T>,
    ) -> T {
        let deadline = Instant::now() + patience;
        loop {
            // An agent that is stuck does not answer.
            let looked = tokio::time::timeout_at(deadline.into(), condition()).await;
            if let Ok(Some(found)) = looked {
                return found;
            }
            if Instant::now() > deadline {
                self.fail(format_args!("not so within {patience:?}: {what}"));
            }
            tokio::time::sleep(BEAT).await;
        }
    }

    /// The value, or the end of the test.
    pub(crate) fn check<T, E: Display>(&self, what: &str, result: Result<T, E>) -> T {
        match result {
            Ok(value) => value,
            Err(error) => self.fail(format_args!("not so: {what}: {error}")),
        }
    }

    /// Ends the test. The agent's last words are shown when the bed is dropped.
    pub(crate) fn fail(&self, problem: impl Display) -> ! {
        panic!("{problem}")
    }
}

impl Drop for Bed {
    fn drop(&mut self) {
        if let Some(agent) = &mut self.agent {
            // Before the plugins: it would start them again.
            drop(agent.start_kill());
        }
        for pid in processes::all_below(&self.state_root()).into_keys() {
            signal(pid, Signal::SIGKILL);
        }
        if std::thread::panicking() {
            let log = self.log();
            let lines: Vec<&str> = log.lines().collect();
            eprintln!("--- the agent's last words ---");
            for line in &lines[lines.len().saturating_sub(LAST_WORDS)..] {
                eprintln!("{line}");
            }
        } else {
            assert!(self.finished, "a test has to end with `Bed::finish`");
        }
    }
}

// === impl Bed: the command line ===

impl Bed {
    /// Runs the binary as a client of this bed's agent. What it prints as JSON has to be as its schema
    /// says.
    pub(crate) async fn cli(&self, arguments: &[&str]) -> Said {
        if ORDERS.iter().any(|verb| arguments.first() == Some(verb)) {
            self.stand_down().await;
        }
        let mut command = self.command();
        command.args(arguments).stdout(Stdio::piped()).stderr(Stdio::piped()).kill_on_drop(true);
        let ran = tokio::time::timeout(PATIENCE, command.output()).await;
        let output = self.check(&format!("`guest-agent {}` ends", arguments.join(" ")), ran);
        let output = output.unwrap();
        let stdout = String::from_utf8_lossy(&output.stdout).into_owned();
        contract::check(arguments, &stdout);
        Said {
            code: output.status.code().unwrap_or(-1),
            stdout,
            stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
        }
    }

    fn command(&self) -> Command {
        let mut command = Command::new(&self.program);
        command.env_clear().stdin(Stdio::null()).stdout(Stdio::null());
        for kept in ["PATH", "HOME", "LANG", "TZ", "GUEST_AGENT_TEST_AGENT"] {
            if let Some(value) = std::env::var_os(kept) {
                command.env(kept, value);
            }
        }
        command.env("GUEST_AGENT_SOCKET", self.socket());
        command.envs(self.variables.iter().map(|(name, value)| (name, value)));
        command
    }
}

// === impl Said ===

impl Said {
    /// What was printed, if the exit code is 0.
    #[track_caller]
    pub(crate) fn ok(self) -> String {
        assert_eq!(self.code, 0, "stdout: {}\nstderr: {}", self.stdout, self.stderr);
        self.stdout
    }
}

/// Sends a signal to a process of the bed; a process that has ended is ignored.
pub(crate) fn signal(pid: u32, signal: Signal) {
    if let Ok(pid) = i32::try_from(pid) {
        let _gone_already = kill(Pid::from_raw(pid), signal);
    }
}

/// Copies a program. Another process does it: a child that this one begins at the same moment would
/// inherit the open file, and a program that is open for writing cannot be executed.
pub(crate) fn copy_program(from: &Path, to: &Path) {
    let copied = std::process::Command::new("cp").arg(from).arg(to).status().unwrap();
    assert!(copied.success(), "cp {} {}: {copied}", from.display(), to.display());
}

/// The agent's program, or what a virtual machine has in its place.
pub(crate) fn program() -> PathBuf {
    let given = std::env::var_os("GUEST_AGENT_TEST_PROGRAM");
    given.unwrap_or_else(|| env!("CARGO_BIN_EXE_guest-agent").into()).into()
}

/// The paths in a folder; none when there is no such folder.
pub(crate) fn listing(folder: &Path) -> Vec<PathBuf> {
    let Ok(entries) = std::fs::read_dir(folder) else { return Vec::new() };
    entries.filter_map(|entry| Some(entry.ok()?.path())).collect()
}

/// Sockets have paths of 107 bytes at most, so a long TMPDIR is not used.
fn short_temporary_directory() -> tempfile::TempDir {
    let mut builder = tempfile::Builder::new();
    builder.prefix("ga-");
    let usual = std::env::temp_dir();
    if usual.as_os_str().len() <= 30 {
        builder.tempdir_in(usual)
    } else {
        builder.tempdir_in("/tmp")
    }
    .expect("a temporary directory can be made")
}

/// The control plane of a bed, which does not run yet.
fn control_plane(dir: &Path, fleet: Option<&Fleet>, announces_fleet: bool) -> lab::Builder {
    // A message is sent again when its acknowledgement is late, and late it is when all tests sync
    // the disk at once. Then the agent would rightly obey twice.
    let timings = Timings { acknowledgement: PATIENCE / 3, ..Timings::default() };
    let builder = ControlPlane::builder().listen_unix(dir.join("cp.sock")).timings(timings);
    match fleet {
        Some(fleet) => builder.desk(fleet.desk()).announces_fleet(true),
        None => builder.announces_fleet(announces_fleet),
    }
}

fn agent_config(dir: &Path) -> String {
    let path = |name: &str| toml::Value::from(dir.join(name).to_string_lossy().into_owned());
    let endpoint = format!("unix:{}", dir.join("cp.sock").display());
    format!(
        "[agent]\nstate_dir = {}\nruntime_dir = {}\nlog_dir = {}\nlocal_plugin_dir = {}\n\n\
         [instance]\nmetadata_url = \"none\"\n\n\
         [control_plane]\nendpoint = {}\nresource = \"{RESOURCE}\"\nauth = \"none\"\n",
        path("state"),
        path("run"),
        path("log"),
        path("local"),
        toml::Value::from(endpoint),
    )
}
