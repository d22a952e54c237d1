//! An agent of one's own, in a folder of one's own: no root, no control plane, no network.
//!
//! `check` installs plugins there through the agent's socket, and disturbs them; `dev --plugin` installs the one that
//! somebody works on. The agent is a process of its own,
//! as a service manager would start it, so that it can be killed.

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use guest_agent_actors::ports::Cause;
use guest_agent_proto::local::local_agent_client::LocalAgentClient;
use guest_agent_proto::local::{GetStatusRequest, PluginStatus};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tokio::net::UnixStream;
use tokio::process::{Child, Command};
use tonic::transport::{Channel, Endpoint, Uri};

/// Longest that the agent itself may take for anything.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// How often something is looked at again.
pub const BEAT: Duration = Duration::from_millis(10);

/// The instance that the agent is.
const INSTANCE: &str = "private";

/// What agents have in their environment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Surroundings {
    /// What this process has.
    #[default]
    Usual,
    /// A search path alone.
    Bare,
}

/// How soon the agent gives a plugin up that does not answer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Judgement {
    /// Within a minute.
    #[default]
    Quick,
    /// After a quarter of an hour: somebody may have stopped it with a debugger.
    Slow,
}

/// The agent and its folder, which is deleted at the end.
pub struct PrivateAgent {
    folder: tempfile::TempDir,
    program: PathBuf,
    agent: Option<Child>,
    /// Settings of the configuration file beside the usual ones.
    settings: String,
    surroundings: Surroundings,
    judgement: Judgement,
}

// === impl Judgement ===

impl Judgement {
    /// Time between two checks, and how many without an answer are enough.
    const fn settings(self) -> (&'static str, u32) {
        match self {
            Self::Quick => ("1s", 30),
            Self::Slow => ("10s", 90),
        }
    }
}

// === impl PrivateAgent ===

impl PrivateAgent {
    /// Makes the folder. The agent does not run yet.
    ///
    /// # Errors
    /// The folder cannot be made, or the program of this process is not known.
    pub fn new(judgement: Judgement) -> Result<Self, Cause> {
        use std::os::unix::fs::PermissionsExt;

        let folder = tempfile::Builder::new().prefix("guest-agent-").tempdir()?;
        // A plugin that runs as another user has to reach its own files.
        std::fs::set_permissions(folder.path(), std::fs::Permissions::from_mode(0o755))?;
        let program = std::env::current_exe()?;
        let (settings, surroundings) = (String::new(), Surroundings::default());
        Ok(Self { folder, program, agent: None, settings, surroundings, judgement })
    }

    /// Where everything is.
    #[must_use]
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// The agent's socket.
    #[must_use]
    pub fn socket(&self) -> PathBuf {
        self.folder().join("run/agent.sock")
    }

    /// The socket that plugins call.
    #[must_use]
    pub fn host_socket(&self) -> PathBuf {
        self.folder().join("run/host.sock")
    }

    /// The folder that a plugin has for its own data.
    #[must_use]
    pub fn data_of(&self, plugin: &str) -> PathBuf {
        self.folder().join("state").join(INSTANCE).join("state").join(plugin)
    }

    /// What the agent logged.
    #[must_use]
    pub fn log(&self) -> String {
        std::fs::read(self.folder().join("agent.log"))
            .map(|bytes| String::from_utf8_lossy(&bytes).into_owned())
            .unwrap_or_default()
    }

    /// What the next agent finds: settings in TOML, beside the usual ones, and an environment.
    pub fn set(&mut self, settings: String, surroundings: Surroundings) {
        (self.settings, self.surroundings) = (settings, surroundings);
    }

    /// Starts the agent, and waits until it answers.
    ///
    /// # Errors
    /// It does not start.
    pub async fn start(&mut self) -> Result<(), Cause> {
        let config = self.folder().join("agent.toml");
        std::fs::write(&config, self.config())?;
        let log = std::fs::File::options()
            .create(true)
            .append(true)
            .open(self.folder().join("agent.log"))?;
        let mut agent = Command::new(&self.program);
        if self.surroundings == Surroundings::Bare {
            agent.env_clear().env("PATH", "/usr/local/bin:/usr/bin:/bin");
        }
        // Settings of another agent, which would override the file.
        for (name, _) in std::env::vars_os() {
            if name.to_string_lossy().starts_with("GUEST_AGENT_") {
                agent.env_remove(name);
            }
        }
        let agent = agent
            .args(["run", "--stop-plugins", "--config"])
            .arg(&config)
            .env("GUEST_AGENT_LOG", "info,guest_agent::process::launch=debug")
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log)
            // Ctrl-C at the terminal is for this process, which then stops the agent in its own way.
            .process_group(0)
            .kill_on_drop(true)
            .spawn()?;
        self.agent = Some(agent);
        let answers = async {
            loop {
                if self.plugins().await.is_ok() {
                    return Ok(());
                }
                if let Some(status) =
                    self.agent.as_mut().and_then(|it| it.try_wait().ok().flatten())
                {
                    return Err(status);
                }
                tokio::time::sleep(BEAT).await;
            }
        };
        match tokio::time::timeout(PATIENCE, answers).await {
            Ok(Ok(())) => Ok(()),
            Ok(Err(status)) => Err(self.failed(&format!("the agent ended: {status}"))),
            Err(_elapsed) => Err(self.failed("the agent does not answer")),
        }
    }

    /// Stops the agent and its plugins.
    pub async fn stop(&mut self) {
        let Some(mut agent) = self.agent.take() else { return };
        if let Some(pid) = agent.id().and_then(|pid| i32::try_from(pid).ok()) {
            let _gone_already = kill(Pid::from_raw(pid), Signal::SIGTERM);
        }
        // `kill_on_drop` ends an agent that does not react.
        drop(tokio::time::timeout(PATIENCE, agent.wait()).await);
    }

    /// Kills the agent as a crash would. Its plugins live on.
    ///
    /// # Errors
    /// It cannot be killed.
    pub async fn kill(&mut self) -> Result<(), Cause> {
        match self.agent.take() {
            Some(mut agent) => Ok(agent.kill().await?),
            None => Ok(()),
        }
    }

    /// A client of the agent's socket.
    ///
    /// # Errors
    /// The agent cannot be reached.
    pub async fn client(&self) -> Result<LocalAgentClient<Channel>, Cause> {
        let socket = self.socket();
        let connector = tower::service_fn(move |_: Uri| {
            let socket = socket.clone();
            async move {
                let stream = UnixStream::connect(socket).await?;
                Ok::<_, std::io::Error>(hyper_util::rt::TokioIo::new(stream))
            }
        });
        let channel = Endpoint::from_static("http://agent.local")
            .timeout(PATIENCE)
            .connect_with_connector(connector)
            .await?;
        Ok(LocalAgentClient::new(channel))
    }

    /// All plugins.
    ///
    /// # Errors
    /// The agent cannot be reached.
    pub async fn plugins(&self) -> Result<Vec<PluginStatus>, Cause> {
        let mut client = self.client().await?;
        Ok(client.get_status(GetStatusRequest::default()).await?.into_inner().plugins)
    }

    fn failed(&self, what: &str) -> Cause {
        let log = self.log();
        let lines: Vec<&str> = log.lines().rev().take(5).collect();
        let last: Vec<&str> = lines.into_iter().rev().collect();
        format!("{what}; its last lines: {}", last.join(" | ")).into()
    }

    fn config(&self) -> String {
        let path =
            |name: &str| toml::Value::from(self.folder().join(name).to_string_lossy().into_owned());
        let (interval, failures) = self.judgement.settings();
        format!(
            "[agent]\nstate_dir = {}\nruntime_dir = {}\nlog_dir = {}\nlocal_plugin_dir = {}\n\n\
             [instance]\nid = \"{INSTANCE}\"\nmetadata_url = \"http://127.0.0.1:1\"\n\n\
             [control_plane]\nenabled = false\n\n\
             [plugins]\nprobation = \"1s\"\nhealth_interval = \"{interval}\"\nhealth_failures = {failures}\n\
             restart_max_backoff = \"500ms\"\n\n{}",
            path("state"),
            path("run"),
            path("log"),
            path("local"),
            self.settings,
        )
    }
}
