//! Tests a plugin without an agent: calls it as guest-agent does, over a real socket.
//!
//! ```
//! # use guest_agent_plugin::{Plugin, PluginError, StartContext, async_trait};
//! use guest_agent_plugin::testing::Tested;
//! # struct Greeter;
//! # #[async_trait]
//! # impl Plugin for Greeter {
//! #     async fn start(&self, _: StartContext) -> Result<(), PluginError> { Ok(()) }
//! # }
//!
//! # #[tokio::main]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let mut tested = Tested::new(Greeter).await?;
//! tested.start(Some("hello".into())).await?;
//! assert_eq!(tested.health().await?.code, 0);
//! tested.stop(guest_agent_plugin::Cleanup::Keep).await?;
//! # Ok(())
//! # }
//! ```

use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use guest_agent_proto::plugin_comm::guest_agent_plugin_client::GuestAgentPluginClient;
use guest_agent_proto::plugin_comm::{
    ApplyRequest, GetStatusRequest, StartRequest, StopRequest, apply_request, start_request,
};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tonic::Status;
use tonic::transport::{Channel, Endpoint};

use crate::{Address, Cleanup, Plugin, PluginStatus, ServeError, Server, ServiceConfig, VmEvent};

/// Longer than any call takes of a plugin that is not broken.
const PATIENCE: Duration = Duration::from_secs(30);

/// The deadline of a stop.
const STOP: prost_types::Duration = prost_types::Duration { seconds: 10, nanos: 0 };

/// A plugin that is being served on a socket of its own, and an agent that calls it. Dropping it
/// stops the plugin without waiting for it.
pub struct Tested {
    folder: Folder,
    client: GuestAgentPluginClient<Channel>,
    end: Option<oneshot::Sender<()>>,
    served: JoinHandle<Result<(), ServeError>>,
}

/// A folder of a test, removed with the value.
struct Folder(PathBuf);

// === impl Tested ===

impl Tested {
    /// Serves a plugin. It is not started yet.
    ///
    /// # Errors
    ///
    /// If a folder or a socket cannot be made.
    pub async fn new<P: Plugin>(plugin: P) -> io::Result<Tested> {
        let folder = Folder::new()?;
        let address = Address::unix(folder.0.join("plugin.sock")).map_err(io::Error::other)?;
        let server = Server::bind(plugin, &address).map_err(io::Error::other)?;
        let (end, ended) = oneshot::channel::<()>();
        let served = tokio::spawn(server.run_until(async {
            // A sender that was dropped ends it as well.
            drop(ended.await);
        }));
        let target = format!("unix:{}", folder.0.join("plugin.sock").display());
        let endpoint = Endpoint::from_shared(target).map_err(io::Error::other)?;
        let channel = endpoint.timeout(PATIENCE).connect().await.map_err(io::Error::other)?;
        let client = GuestAgentPluginClient::new(channel);
        Ok(Tested { folder, client, end: Some(end), served })
    }

    /// The plugin's own directory.
    pub fn state_directory(&self) -> PathBuf {
        self.folder.0.join("state")
    }

    /// Starts the plugin.
    ///
    /// # Errors
    ///
    /// The status of the call, as the agent receives it.
    pub async fn start(&mut self, config: Option<ServiceConfig>) -> Result<(), Status> {
        let state_directory_path = self.state_directory().display().to_string();
        let service_config = config.map(|config| match config {
            ServiceConfig::String(text) => start_request::ServiceConfig::StringConfig(text),
            ServiceConfig::Struct(fields) => start_request::ServiceConfig::StructConfig(fields),
        });
        let config = Some(start_request::Config { state_directory_path });
        self.client.start(StartRequest { config, service_config }).await.map(drop)
    }

    /// Hands over a configuration.
    ///
    /// # Errors
    ///
    /// The status of the call, as the agent receives it.
    pub async fn apply(&mut self, config: Option<ServiceConfig>) -> Result<(), Status> {
        let service_config = config.map(|config| match config {
            ServiceConfig::String(text) => apply_request::ServiceConfig::StringConfig(text),
            ServiceConfig::Struct(fields) => apply_request::ServiceConfig::StructConfig(fields),
        });
        self.client.apply(ApplyRequest { service_config }).await.map(drop)
    }

    /// Sends news about the VM.
    ///
    /// # Errors
    ///
    /// The status of the call, as the agent receives it.
    pub async fn vm_event(&mut self, event: &VmEvent) -> Result<(), Status> {
        let news = serde_json::json!({ "Command": "VmEvent", "Event": event.name() });
        self.apply(Some(ServiceConfig::String(news.to_string()))).await
    }

    /// Makes a health check.
    ///
    /// # Errors
    ///
    /// The status of the call, as the agent receives it.
    pub async fn health(&mut self) -> Result<PluginStatus, Status> {
        self.status(None).await
    }

    /// Asks a question.
    ///
    /// # Errors
    ///
    /// The status of the call, as the agent receives it.
    pub async fn ask(&mut self, question: &str) -> Result<PluginStatus, Status> {
        self.status(Some(question.to_owned())).await
    }

    async fn status(&mut self, data: Option<String>) -> Result<PluginStatus, Status> {
        let answer = self.client.get_status(GetStatusRequest { data }).await?.into_inner();
        Ok(PluginStatus { code: answer.code, results: answer.results })
    }

    /// Stops the plugin as the agent does.
    ///
    /// # Errors
    ///
    /// The status of the call, as the agent receives it.
    pub async fn stop(&mut self, cleanup: Cleanup) -> Result<(), Status> {
        let cleanup = cleanup == Cleanup::Remove;
        self.client.stop(StopRequest { cleanup, deadline: Some(STOP) }).await.map(drop)
    }

    /// Stops the plugin as SIGTERM does, unless it has been stopped, and waits for its end.
    ///
    /// # Errors
    ///
    /// [`ServeError`], as `serve` returns it.
    pub async fn ended(mut self) -> Result<(), ServeError> {
        drop(self.end.take());
        match (&mut self.served).await {
            Ok(served) => served,
            Err(error) => Err(ServeError::Stop(error.into())),
        }
    }
}

// === impl Folder ===

impl Folder {
    fn new() -> io::Result<Folder> {
        static MADE: AtomicU64 = AtomicU64::new(0);
        let name = || {
            let number = MADE.fetch_add(1, Ordering::Relaxed);
            format!("plugin-{}-{number}", std::process::id())
        };
        let mut builder = std::fs::DirBuilder::new();
        builder.mode(0o700);
        // One that exists may be another user's, or a former process's of the same number.
        let path = loop {
            let path = std::env::temp_dir().join(name());
            match builder.create(&path) {
                Ok(()) => break path,
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                Err(error) => return Err(error),
            }
        };
        let folder = Folder(path);
        builder.create(Path::new(&folder.0).join("state"))?;
        Ok(folder)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        // What stays is in the folder for temporary files.
        drop(std::fs::remove_dir_all(&self.0));
    }
}
