//! A metadata server: the values that a host gives its virtual machine, over plain HTTP on
//! loopback.
//!
//! ```text
//!   set / remove ─► Tree ─┬─► handler: text, JSON, identity tokens
//!   PUT / DELETE ─►       └─► requests that wait for a change
//! ```
//!
//! It speaks the protocol of the Compute Engine metadata server as far as guest-agent uses it: the
//! flavour header, values and directories below `/computeMetadata/v1/`, `alt=json`,
//! `recursive=true`, `wait_for_change=true` with `last_etag` and `timeout_sec`, and identity
//! tokens, which nobody signs. Values are texts at paths such as `instance/attributes/role`; in
//! JSON the path's parts become camel case, except below `attributes`, and texts of digits become
//! numbers.
//!
//! `guest-agent dev` runs the agent against one, with [`MetadataServer::start_writable`], so that
//! attributes can be set with `curl -X PUT`. Tests use it with [`MetadataFaults`]. It serves no
//! facts of the machine that it runs on, and authenticates no client.

mod handler;
mod jwt;
mod shared;
mod tree;

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::Router;
use guest_agent_observe_kit::chain::Chain;
use guest_agent_serve_kit::lock::lock;
use thiserror::Error;
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use shared::Shared;
use tree::Tree;

pub use shared::MetadataFaults;

/// How long a shutdown waits for answers to be sent; requests that wait for a change are cut off.
const SHUTDOWN_GRACE: Duration = Duration::from_secs(2);

/// A running metadata server. Clones are the same one; when the last is dropped it stops.
#[derive(Clone)]
pub struct MetadataServer {
    running: Arc<Running>,
}

struct Running {
    shared: Arc<Shared>,
    address: SocketAddr,
    shutdown: CancellationToken,
    task: Mutex<Option<JoinHandle<()>>>,
}

/// Why a metadata server could not start.
#[derive(Debug, Error)]
pub enum MetadataStartError {
    /// Plaintext would be visible on a network.
    #[error("{0} is not a loopback address")]
    OffLoopback(SocketAddr),
    /// The address cannot be listened on.
    #[error("failed to listen on {address}")]
    Listen {
        /// The address that was given.
        address: SocketAddr,
        /// The error of the operating system.
        #[source]
        source: std::io::Error,
    },
}

// === impl MetadataServer ===

impl MetadataServer {
    /// Starts on a loopback address, without values; port 0 takes a free one.
    ///
    /// # Errors
    /// See [`MetadataStartError`].
    pub async fn start(address: SocketAddr) -> Result<Self, MetadataStartError> {
        Self::bind(address, false).await
    }

    /// Like [`MetadataServer::start`], and takes values from every client that can reach it: `PUT`
    /// sets the value at a path, `DELETE` removes it.
    ///
    /// # Errors
    /// See [`MetadataStartError`].
    pub async fn start_writable(address: SocketAddr) -> Result<Self, MetadataStartError> {
        Self::bind(address, true).await
    }

    /// Sets the four values that identify the machine: numeric project, zone, instance id, and the
    /// name `dev` for the machine type's last part.
    pub fn set_machine(&self, project: &str, zone: &str, instance: &str) {
        self.set("project/numeric-project-id", project);
        self.set("instance/id", instance);
        self.set("instance/zone", &format!("projects/{project}/zones/{zone}"));
        self.set("instance/machine-type", &format!("projects/{project}/machineTypes/dev"));
    }

    /// Sets the value at a path such as `instance/attributes/role`.
    pub fn set(&self, path: &str, value: &str) {
        self.running.shared.set(path, value);
    }

    /// Removes the value at a path and all values below it.
    pub fn remove(&self, path: &str) {
        self.running.shared.remove(path);
    }

    /// Replaces the faults.
    pub fn set_faults(&self, faults: MetadataFaults) {
        *lock(&self.running.shared.faults) = faults;
    }

    /// Sets how long new identity tokens are valid; the default is an hour.
    pub fn set_token_life(&self, life: Duration) {
        *lock(&self.running.shared.token_life) = life;
    }

    /// The requested paths without their queries, oldest first; at most 10,000.
    #[must_use]
    pub fn asked(&self) -> Vec<String> {
        lock(&self.running.shared.asked).clone()
    }

    /// Number of requests for identity tokens.
    #[must_use]
    pub fn tokens_asked(&self) -> usize {
        self.asked().iter().filter(|path| path.ends_with("/identity")).count()
    }

    /// `HOST:PORT`, as `GCE_METADATA_HOST` takes it.
    #[must_use]
    pub fn host(&self) -> String {
        self.running.address.to_string()
    }

    /// The base URL.
    #[must_use]
    pub fn url(&self) -> String {
        format!("http://{}", self.running.address)
    }

    /// The address with its real port.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.running.address
    }

    /// Stops listening, and cuts off requests that wait for a change.
    pub async fn shutdown(&self) {
        self.running.shutdown.cancel();
        let task = lock(&self.running.task).take();
        if let Some(mut task) = task
            && tokio::time::timeout(SHUTDOWN_GRACE, &mut task).await.is_err()
        {
            task.abort();
        }
    }

    async fn bind(address: SocketAddr, writable: bool) -> Result<Self, MetadataStartError> {
        if !address.ip().is_loopback() {
            return Err(MetadataStartError::OffLoopback(address));
        }
        let failed = |source| MetadataStartError::Listen { address, source };
        let listener = TcpListener::bind(address).await.map_err(failed)?;
        let bound = listener.local_addr().map_err(failed)?;
        let shutdown = CancellationToken::new();
        let shared = Arc::new(Shared {
            tree: watch::Sender::new(Tree::default()),
            faults: Mutex::default(),
            token_life: Mutex::new(Duration::from_secs(3600)),
            asked: Mutex::default(),
            writable,
            shutdown: shutdown.clone(),
        });
        let router = Router::new().fallback(handler::answer).with_state(shared.clone());
        let stop = shutdown.clone().cancelled_owned();
        let task = tokio::spawn(async move {
            if let Err(error) = axum::serve(listener, router).with_graceful_shutdown(stop).await {
                tracing::error!(error = %Chain(&error), "the metadata server failed");
            }
        });
        let running = Running { shared, address: bound, shutdown, task: Mutex::new(Some(task)) };
        Ok(Self { running: Arc::new(running) })
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.shutdown.cancel();
    }
}

#[cfg(test)]
mod tests;
