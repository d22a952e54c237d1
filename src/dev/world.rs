//! A control plane, an artifact server, a metadata server and an agent, all on this machine.

use std::error::Error;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use guest_agent_actors::ports::Cause;
use guest_agent_lab::{ArtifactServer, ControlPlane, MetadataServer};
use guest_agent_proto::agent_controlplane::ConfigurePluginStates;
use guest_agent_proto::agent_controlplane::configure_plugin_states::{
    Action, ConfigurePlugin, Manifest, Plugin,
};
use guest_agent_proto::local::local_agent_client::LocalAgentClient;
use guest_agent_proto::local::{GetStatusRequest, PluginStatus};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tokio::net::UnixStream;
use tokio::process::{Child, Command};
use tonic::transport::{Channel, Endpoint, Uri};

use crate::install::pack::{Compression, Packed, pack};

/// The agent's resource id for the control plane.
pub(super) const RESOURCE: &str = "projects/0/zones/local/instances/dev";

/// Longest that any one step may take.
pub(super) const PATIENCE: Duration = Duration::from_secs(60);

/// Everything `dev` consists of.
pub(super) struct World {
    dir: PathBuf,
    /// Removes the directory at the end, unless an argument names one.
    _temporary: Option<tempfile::TempDir>,
    program: PathBuf,
    pub(super) control_plane: ControlPlane,
    artifacts: ArtifactServer,
    metadata: MetadataServer,
    sample: Sample,
    agent: Option<Child>,
}

/// The sample plugin's archive.
struct Sample {
    url: String,
    packed: Packed,
}

// === impl World ===

impl World {
    /// Starts the servers and packs the sample plugin. The agent is not started yet.
    pub(super) async fn build(dir: Option<PathBuf>) -> Result<Self, Cause> {
        let (dir, temporary) = match dir {
            Some(dir) => {
                std::fs::create_dir_all(&dir)?;
                (dir.canonicalize()?, None)
            }
            None => {
                let temporary = tempfile::Builder::new().prefix("guest-agent-").tempdir()?;
                (temporary.path().to_owned(), Some(temporary))
            }
        };
        let program = std::env::current_exe()?;
        let control_plane =
            ControlPlane::builder().listen_unix(dir.join("control-plane.sock")).start().await?;
        let artifacts = ArtifactServer::start(([127, 0, 0, 1], 0).into()).await?;

        let metadata = MetadataServer::start_writable(([127, 0, 0, 1], 0).into()).await?;
        metadata.set_machine("0", "local", "dev");

        let folder = dir.join("sample");
        std::fs::create_dir_all(&folder)?;
        std::fs::copy(&program, folder.join("guest-agent"))?;
        let archive = dir.join("sample.tar.zst");
        let packing = archive.clone();
        let packed =
            tokio::task::spawn_blocking(move || pack(&folder, &packing, Compression::Zstd))
                .await??;
        let url = artifacts.publish_file("sample.tar.zst", &archive)?;
        let config = agent_config(&dir, &metadata.url());
        std::fs::write(dir.join("agent.toml"), config)?;
        Ok(Self {
            dir,
            _temporary: temporary,
            program,
            control_plane,
            artifacts,
            metadata,
            sample: Sample { url, packed },
            agent: None,
        })
    }

    pub(super) fn dir(&self) -> &Path {
        &self.dir
    }

    pub(super) fn program(&self) -> &Path {
        &self.program
    }

    pub(super) fn socket(&self) -> PathBuf {
        self.dir.join("run/agent.sock")
    }

    /// Where custom attributes of the machine are set.
    pub(super) fn attributes_url(&self) -> String {
        format!("{}/computeMetadata/v1/instance/attributes", self.metadata.url())
    }

    /// Size of the sample plugin's archive, in bytes.
    pub(super) fn archive_size(&self) -> u64 {
        self.sample.packed.bytes
    }

    /// Starts the agent as a process of its own, the way a service manager would.
    pub(super) fn start_agent(&mut self) -> Result<(), Cause> {
        let log =
            std::fs::File::options().create(true).append(true).open(self.dir.join("agent.log"))?;
        let mut agent = Command::new(&self.program);
        // Settings of another agent, which would override the file.
        for (name, _) in std::env::vars_os() {
            if name.to_string_lossy().starts_with("GUEST_AGENT__") {
                agent.env_remove(name);
            }
        }
        let agent = agent
            .args(["run", "--stop-plugins", "--config"])
            .arg(self.dir.join("agent.toml"))
            .env("GUEST_AGENT_LOG", "info")
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log)
            // Ctrl-C at the terminal is for `dev`, which then stops the agent in its own way.
            .process_group(0)
            .kill_on_drop(true)
            .spawn()?;
        self.agent = Some(agent);
        Ok(())
    }

    /// Kills the agent as a crash or the OOM killer would.
    pub(super) async fn kill_agent(&mut self) -> Result<(), Cause> {
        if let Some(agent) = &mut self.agent {
            agent.kill().await?;
        }
        Ok(())
    }

    pub(super) async fn connected(&self) -> Result<(), Cause> {
        self.control_plane.gateway().wait_connected(RESOURCE, PATIENCE).await?;
        Ok(())
    }

    /// An order for a revision of the sample plugin.
    pub(super) fn install(&self, name: &str, revision: &str, flags: &[&str]) -> ConfigurePlugin {
        let mut arguments = vec!["sample-plugin".to_owned()];
        arguments.extend(flags.iter().map(|&flag| flag.to_owned()));
        ConfigurePlugin {
            action: Action::Install.into(),
            plugin: Some(Plugin {
                name: name.to_owned(),
                revision_id: revision.to_owned(),
                gcs_signed_url: self.sample.url.clone(),
                entry_point: "guest-agent".to_owned(),
                arguments,
                checksum: self.sample.packed.sha256.to_string(),
            }),
            manifest: Some(Manifest { start_attempt_count: 2, ..Manifest::default() }),
        }
    }

    pub(super) async fn configure(&self, orders: Vec<ConfigurePlugin>) -> Result<(), Cause> {
        let states = ConfigurePluginStates { configure_plugins: orders };
        self.control_plane.configure(RESOURCE, &states)?.wait(PATIENCE).await?;
        Ok(())
    }

    /// The status of a plugin, from the agent's own socket.
    pub(super) async fn plugin(&self, name: &str) -> Result<Option<PluginStatus>, Cause> {
        let mut client = LocalAgentClient::new(dial(self.socket()).await?);
        let status = client.get_status(GetStatusRequest::default()).await?.into_inner();
        Ok(status.plugins.into_iter().find(|plugin| plugin.name == name))
    }

    /// Shows the end of the agent's log beside an error.
    pub(super) fn explain(&self, error: &(dyn Error + 'static)) {
        eprintln!("\nfailed: {}", guest_agent_actors::error::Chain(error));
        let log = std::fs::read_to_string(self.dir.join("agent.log")).unwrap_or_default();
        let lines: Vec<&str> = log.lines().collect();
        eprintln!("the last lines of the agent's log:");
        for line in &lines[lines.len().saturating_sub(30)..] {
            eprintln!("  {line}");
        }
    }

    /// Stops everything. The agent takes its plugins with it.
    pub(super) async fn end(mut self) {
        if let Some(mut agent) = self.agent.take() {
            let pid = agent.id().and_then(|pid| i32::try_from(pid).ok());
            if let Some(pid) = pid {
                let _gone_already = kill(Pid::from_raw(pid), Signal::SIGTERM);
            }
            // `kill_on_drop` ends an agent that does not react.
            drop(tokio::time::timeout(PATIENCE, agent.wait()).await);
        }
        self.control_plane.shutdown().await;
        self.artifacts.shutdown().await;
        self.metadata.shutdown().await;
    }
}

fn agent_config(dir: &Path, metadata_url: &str) -> String {
    let path = |name: &str| toml::Value::from(dir.join(name).to_string_lossy().into_owned());
    let endpoint = format!("unix:{}", dir.join("control-plane.sock").display());
    format!(
        "# Written by `guest-agent dev`.\n\
         [agent]\n\
         state_dir = {}\n\
         runtime_dir = {}\n\
         log_dir = {}\n\
         local_plugin_dir = {}\n\n\
         [instance]\n\
         id = \"dev\"\n\
         metadata_url = \"{metadata_url}\"\n\n\
         [control_plane]\n\
         endpoint = {}\n\
         resource = \"{RESOURCE}\"\n\
         auth = \"none\"\n\n\
         [plugins]\n\
         # Short, so that an upgrade can be watched to its end.\n\
         probation = \"2s\"\n",
        path("state"),
        path("run"),
        path("log"),
        path("local"),
        toml::Value::from(endpoint),
    )
}

async fn dial(socket: PathBuf) -> Result<Channel, tonic::transport::Error> {
    let connector = tower::service_fn(move |_: Uri| {
        let socket = socket.clone();
        async move {
            Ok::<_, std::io::Error>(hyper_util::rt::TokioIo::new(
                UnixStream::connect(socket).await?,
            ))
        }
    });
    Endpoint::from_static("http://agent.local")
        .timeout(PATIENCE)
        .connect_with_connector(connector)
        .await
}
