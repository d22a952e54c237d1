//! The artifact server of tests, of game days and of `guest-agent dev`: plain HTTP on this machine.
//!
//! ```text
//!   publish / publish_file / directory ─► Catalog ─► handler ─► faults ─► body in chunks
//! ```
//!
//! Files come from memory, from single paths or from a directory, and are streamed, never read
//! whole. Each has an ETag made of its SHA-256, so an agent can resume a broken download: Range and
//! If-Range, If-None-Match and HEAD are answered as RFC 9110 says. Faults per artifact and counters
//! are for tests and game days.
//!
//! It has no TLS and no authentication: it listens on loopback or on a unix socket.

mod body;
mod catalog;
mod faults;
mod handler;

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::Router;
use bytes::Bytes;
use guest_agent_observe_kit::chain::Chain;
use guest_agent_serve_kit::lock::lock;
use guest_agent_serve_kit::socket::{Rights, SocketError, SocketFile, bind_unix};
use thiserror::Error;
use tokio::net::TcpListener;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use catalog::Catalog;

pub use catalog::PublishError;
pub use faults::{ArtifactCounters, ArtifactFaults, CutOff, StatusFault};

/// How long a shutdown waits for downloads to end.
const SHUTDOWN_GRACE: Duration = Duration::from_secs(2);

/// A running artifact server. Clones are the same one; when the last is dropped it stops.
#[derive(Clone)]
pub struct ArtifactServer {
    running: Arc<Running>,
}

struct Running {
    catalog: Arc<Catalog>,
    address: Option<SocketAddr>,
    shutdown: CancellationToken,
    task: Mutex<Option<JoinHandle<()>>>,
}

/// Why an artifact server could not start.
#[derive(Debug, Error)]
pub enum ArtifactStartError {
    /// Plaintext would be visible on a network.
    #[error("{0} is not a loopback address")]
    OffLoopback(SocketAddr),
    /// The unix socket cannot be served.
    #[error(transparent)]
    Socket(#[from] SocketError),
    /// The address cannot be listened on.
    #[error("failed to listen on {address}")]
    Listen {
        /// The address that was given.
        address: String,
        /// The error of the operating system.
        #[source]
        source: std::io::Error,
    },
}

// === impl ArtifactServer ===

impl ArtifactServer {
    /// Starts on a loopback address; port 0 takes a free one.
    ///
    /// # Errors
    /// See [`ArtifactStartError`].
    pub async fn start(address: SocketAddr) -> Result<Self, ArtifactStartError> {
        if !address.ip().is_loopback() {
            return Err(ArtifactStartError::OffLoopback(address));
        }
        let failed = |source| ArtifactStartError::Listen { address: address.to_string(), source };
        let listener = TcpListener::bind(address).await.map_err(failed)?;
        let bound = listener.local_addr().map_err(failed)?;
        Ok(Self::serve(listener, Some(bound), None))
    }

    /// Starts on a unix socket, owner-only.
    ///
    /// # Errors
    /// See [`ArtifactStartError`].
    pub async fn start_unix(path: &Path) -> Result<Self, ArtifactStartError> {
        let listener = bind_unix(path, Rights::OWNER_ONLY)?;
        Ok(Self::serve(listener, None, Some(SocketFile::of(path))))
    }

    /// Publishes bytes under a name, replacing an artifact of that name, and returns the URL.
    ///
    /// # Errors
    /// When the name is no artifact name.
    pub fn publish(&self, name: &str, bytes: impl Into<Bytes>) -> Result<String, PublishError> {
        self.running.catalog.publish(name, bytes.into())?;
        Ok(self.url(name))
    }

    /// Publishes a file under a name, replacing an artifact of that name, and returns the URL. The
    /// file is read for each request; replace it by renaming another over it.
    ///
    /// # Errors
    /// When the name is no artifact name or the file cannot be opened now.
    pub fn publish_file(&self, name: &str, path: &Path) -> Result<String, PublishError> {
        self.running.catalog.publish_file(name, path)?;
        Ok(self.url(name))
    }

    /// Serves every regular file in this directory whose name is an artifact name. An artifact that
    /// was published under the same name takes precedence.
    pub fn publish_directory(&self, directory: impl Into<PathBuf>) {
        self.running.catalog.publish_directory(directory.into());
    }

    /// The URL of an artifact of this name, whether the artifact exists or not. On a unix socket it
    /// is only a path.
    pub fn url(&self, name: &str) -> String {
        match self.running.address {
            Some(address) => format!("http://{address}/{name}"),
            None => format!("/{name}"),
        }
    }

    /// The address with its real port; `None` on a unix socket.
    pub fn address(&self) -> Option<SocketAddr> {
        self.running.address
    }

    /// Replaces the faults of an artifact, which need not exist. For tests and game days.
    pub fn set_faults(&self, name: &str, faults: ArtifactFaults) {
        self.running.catalog.set_faults(name, faults);
    }

    /// The request counters of an artifact.
    pub fn counters(&self, name: &str) -> ArtifactCounters {
        self.running.catalog.counters(name)
    }

    /// Stops listening and waits for downloads to end, at most two seconds; stalled and throttled
    /// ones are cut off.
    pub async fn shutdown(&self) {
        self.running.shutdown.cancel();
        let task = lock(&self.running.task).take();
        if let Some(mut task) = task
            && tokio::time::timeout(SHUTDOWN_GRACE, &mut task).await.is_err()
        {
            task.abort();
        }
    }

    fn serve<L>(listener: L, address: Option<SocketAddr>, file: Option<SocketFile>) -> Self
    where
        L: axum::serve::Listener,
        L::Addr: std::fmt::Debug,
    {
        let shutdown = CancellationToken::new();
        let catalog = Arc::new(Catalog::new(shutdown.clone()));
        let router = Router::new().fallback(handler::answer).with_state(catalog.clone());
        let stop = shutdown.clone().cancelled_owned();
        let task = tokio::spawn(async move {
            if let Err(error) = axum::serve(listener, router).with_graceful_shutdown(stop).await {
                tracing::error!(error = %Chain(&error), "the artifact server failed");
            }
            drop(file);
        });
        let running = Running { catalog, address, shutdown, task: Mutex::new(Some(task)) };
        Self { running: Arc::new(running) }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.shutdown.cancel();
    }
}
