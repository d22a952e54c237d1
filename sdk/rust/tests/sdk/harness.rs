//! What the tests share: a client, a launcher of examples, and waiting with a deadline.

use std::future::Future;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use guest_agent_plugin::Address;
use guest_agent_proto::plugin_comm::guest_agent_plugin_client::GuestAgentPluginClient;
use guest_agent_proto::plugin_comm::{
    ApplyRequest, GetStatusRequest, StartRequest, Status as Answer, StopRequest, apply_request,
    start_request,
};
use tonic::Status;
use tonic::transport::{Channel, Endpoint};

/// Nothing here takes this long unless it is broken.
pub(crate) const PATIENCE: Duration = Duration::from_secs(20);

pub(crate) struct Client(GuestAgentPluginClient<Channel>);

impl Client {
    pub(crate) async fn try_connect(address: &Address) -> Result<Client, tonic::transport::Error> {
        let uri = match address {
            Address::Unix(path) => format!("unix:{}", path.display()),
            Address::Tcp(address) => format!("http://{address}"),
            Address::Loopback { port } => format!("http://127.0.0.1:{port}"),
        };
        let channel = Endpoint::from_shared(uri)?.timeout(PATIENCE).connect().await?;
        Ok(Client(GuestAgentPluginClient::new(channel)))
    }

    pub(crate) async fn connect(address: &Address) -> Client {
        Client::try_connect(address).await.expect("the plugin listens")
    }

    pub(crate) async fn start(&mut self, state: &Path, config: Option<&str>) -> Result<(), Status> {
        let text = |text: &str| start_request::ServiceConfig::StringConfig(text.to_owned());
        let request = StartRequest {
            config: Some(start_request::Config {
                state_directory_path: state.display().to_string(),
            }),
            service_config: config.map(text),
        };
        self.0.start(request).await.map(drop)
    }

    pub(crate) async fn stop(&mut self, cleanup: bool, deadline: Duration) -> Result<(), Status> {
        let deadline = deadline.try_into().expect("a short duration");
        self.0.stop(StopRequest { cleanup, deadline: Some(deadline) }).await.map(drop)
    }

    pub(crate) async fn health(&mut self) -> Result<Answer, Status> {
        self.status(None).await
    }

    pub(crate) async fn ask(&mut self, question: &str) -> Result<Answer, Status> {
        self.status(Some(question.to_owned())).await
    }

    pub(crate) async fn apply(&mut self, config: Option<&str>) -> Result<(), Status> {
        let text = |text: &str| apply_request::ServiceConfig::StringConfig(text.to_owned());
        self.0.apply(ApplyRequest { service_config: config.map(text) }).await.map(drop)
    }

    async fn status(&mut self, data: Option<String>) -> Result<Answer, Status> {
        self.0.get_status(GetStatusRequest { data }).await.map(tonic::Response::into_inner)
    }
}

/// An example as a process of its own, with a directory of its own; killed when dropped.
pub(crate) struct Process {
    pub(crate) directory: tempfile::TempDir,
    child: Child,
}

impl Process {
    /// Launches it like the agent does: its own arguments first, then the agent's.
    pub(crate) fn launch(example: &str, own: &[&str]) -> Process {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let address = format!("--address={}", directory.path().join("plugin.sock").display());
        Process::launch_at(directory, example, own, &["--protocol=unix", &address])
    }

    pub(crate) fn launch_at(
        directory: tempfile::TempDir,
        example: &str,
        own: &[&str],
        agents: &[&str],
    ) -> Process {
        let log = directory.path().join("plugin.log");
        let child = Command::new(example_path(example))
            .args(own)
            .args(agents)
            .arg(format!("--errorlogfile={}", log.display()))
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .expect("the example can be launched");
        Process { directory, child }
    }

    pub(crate) fn state(&self) -> &Path {
        self.directory.path()
    }

    pub(crate) fn socket(&self) -> Address {
        Address::unix(self.state().join("plugin.sock")).expect("a short path")
    }

    pub(crate) fn error_log(&self) -> String {
        std::fs::read_to_string(self.state().join("plugin.log")).expect("there is an error log")
    }

    pub(crate) async fn connect(&self) -> Client {
        let address = self.socket();
        eventually("the plugin listens", || async { Client::try_connect(&address).await.ok() })
            .await
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// The standard output of the example. An example prints less than a pipe holds, unless its
    /// arguments ask for more.
    pub(crate) fn stdout(&mut self) -> ChildStdout {
        self.child.stdout.take().expect("taken once")
    }

    /// How much it has written, to whatever.
    pub(crate) fn bytes_written(&self) -> u64 {
        let io = std::fs::read_to_string(format!("/proc/{}/io", self.pid())).unwrap_or_default();
        let line = io.lines().find_map(|line| line.strip_prefix("wchar: "));
        line.and_then(|count| count.parse().ok()).unwrap_or(0)
    }

    pub(crate) fn terminate(&self) {
        let pid = rustix::process::Pid::from_child(&self.child);
        rustix::process::kill_process(pid, rustix::process::Signal::TERM).expect("it is alive");
    }

    pub(crate) fn is_alive(&mut self) -> bool {
        self.child.try_wait().expect("our child").is_none()
    }

    pub(crate) async fn exit(&mut self) -> ExitStatus {
        let child = std::cell::RefCell::new(&mut self.child);
        eventually("the plugin exits", || async {
            child.borrow_mut().try_wait().expect("our child")
        })
        .await
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // Fails only if it is gone already.
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

/// Calls `ask` until it returns an answer; fails when it returns `None` for too long.
pub(crate) async fn eventually<T, F: Future<Output = Option<T>>>(
    fact: &str,
    mut ask: impl FnMut() -> F,
) -> T {
    let start = Instant::now();
    loop {
        if let Some(answer) = ask().await {
            return answer;
        }
        assert!(start.elapsed() < PATIENCE, "waited too long for: {fact}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// Cargo puts examples next to the directory of the test binaries, and builds them for tests.
fn example_path(name: &str) -> PathBuf {
    let test = std::env::current_exe().expect("a path");
    let profile = test.parent().and_then(Path::parent).expect("target/<profile>/deps/<test>");
    let path = profile.join("examples").join(name);
    assert!(path.exists(), "{} is missing: cargo build --examples", path.display());
    path
}
