//! The listener that agents fetch artifacts from, and that operators send them to.
//!
//! ```text
//!   accept ─► a place? ─► [TLS] ─► head, bounded and in time ─► route ─┬─ GET, HEAD ─► download
//!               └ no, and nobody is idle: closed                      └─ PUT ───────► upload
//! ```
//!
//! - `GET` and `HEAD /artifacts/<plugin>/<digest>`: the artifact, if a release of the plugin names
//!   it. The URL is stable. Ranges and conditions are answered as RFC 9110 says; from a bucket the
//!   answer is a redirection to an address that is signed for a while, or the bytes.
//! - `PUT /artifacts/<plugin>/<digest>` with the upload token: keeps what has that digest.
//!
//! Without TLS it listens on loopback and on unix sockets only. It does not know who fetches: a
//! digest cannot be guessed, and those who know one may have the artifact.

mod answer;
mod connection;
mod download;
mod handler;
mod options;
mod route;
mod site;
mod tokens;
mod upload;

use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use guest_agent_serve_kit::listen::Listen;
use guest_agent_serve_kit::lock::lock;
use guest_agent_serve_kit::socket::{Rights, SocketError, SocketFile, bind_unix};
use guest_agent_serve_kit::tls::Clients;
use thiserror::Error;
use tokio::net::{TcpListener, UnixListener};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use crate::net::tls::{LookError, Pair, Purpose};
use connection::Server;
use site::Site;

pub use options::{Delivery, Limits, ListenerOptions};

/// What its certificate is for: every client, over HTTP/1.1.
const PURPOSE: Purpose =
    Purpose { of: "artifacts", clients: Clients::Any, protocols: &[b"http/1.1"] };

/// A running listener. When it is dropped it stops.
#[derive(Debug)]
pub struct ArtifactListener {
    endpoint: String,
    address: Option<SocketAddr>,
    pair: Option<Pair>,
    ending: CancellationToken,
    task: Mutex<Option<JoinHandle<()>>>,
    end: Duration,
}

/// Why a listener could not start.
#[derive(Debug, Error)]
pub enum ListenerError {
    /// Everybody on the way could read and change what is sent.
    #[error(
        "artifacts are not served without TLS on {0}, which other machines reach; give a certificate \
         and a key, or listen on 127.0.0.1"
    )]
    PlaintextOffLoopback(SocketAddr),
    /// The unix socket cannot be served.
    #[error(transparent)]
    Socket(#[from] SocketError),
    /// The address cannot be listened on.
    #[error("failed to listen on {address}")]
    Listen {
        /// The address that was given.
        address: Listen,
        /// The error of the operating system.
        #[source]
        source: io::Error,
    },
    /// The certificate or its key cannot be used.
    #[error("the certificate of the artifact listener cannot be used")]
    Certificate(#[from] LookError),
}

/// A bound socket that is not served yet.
enum Bound {
    Unix(UnixListener, SocketFile),
    Tcp(TcpListener, SocketAddr),
}

// === impl ArtifactListener ===

impl ArtifactListener {
    /// Listens and serves.
    ///
    /// # Errors
    /// See [`ListenerError`].
    pub async fn start(options: ListenerOptions) -> Result<Self, ListenerError> {
        let (limits, files) = (options.limits, options.tls.clone());
        let is_unix = matches!(options.listen, Listen::Unix(_));
        let ending = CancellationToken::new();
        // Whatever fails below, nothing keeps the pair current for nobody.
        let guard = ending.clone().drop_guard();
        let pair = match files.filter(|_| !is_unix) {
            None => None,
            Some(files) => Some(Pair::follow(files, PURPOSE, limits.look, ending.clone()).await?),
        };
        let bound = bind(&options.listen, pair.is_some()).await?;
        let (endpoint, address) = match &bound {
            Bound::Unix(..) => (options.listen.to_string(), None),
            Bound::Tcp(_, at) if pair.is_some() => (format!("https://{at}"), Some(*at)),
            Bound::Tcp(_, at) => (format!("http://{at}"), Some(*at)),
        };
        let secured = pair.as_ref().map(|pair| pair.secured.clone());
        let server = Server::new(limits, secured, Arc::new(Site::new(options)), ending.clone());
        let task = tokio::spawn(async move { serve(&server, bound).await });
        guard.disarm();
        let (task, end) = (Mutex::new(Some(task)), limits.end);
        Ok(Self { endpoint, address, pair, ending, task, end })
    }

    /// Begin of its URLs, with its real port; `unix:/path` on a unix socket.
    #[must_use]
    pub fn endpoint(&self) -> &str {
        &self.endpoint
    }

    /// The address with its real port; `None` on a unix socket.
    #[must_use]
    pub fn address(&self) -> Option<SocketAddr> {
        self.address
    }

    /// Why the certificate cannot be renewed, for people.
    #[must_use]
    pub fn trouble(&self) -> Option<String> {
        self.pair.as_ref()?.trouble.borrow().clone()
    }

    /// The certificate that it serves; `None` without TLS.
    #[must_use]
    pub fn pair(&self) -> Option<&Pair> {
        self.pair.as_ref()
    }

    /// Stops listening, and waits a bounded time for requests to end; those that are left are cut.
    pub async fn shutdown(&self) {
        self.ending.cancel();
        let task = lock(&self.task).take();
        if let Some(mut task) = task
            // Its own deadline passes first.
            && tokio::time::timeout(self.end * 2, &mut task).await.is_err()
        {
            task.abort();
        }
    }
}

impl Drop for ArtifactListener {
    fn drop(&mut self) {
        self.ending.cancel();
    }
}

async fn bind(listen: &Listen, is_secured: bool) -> Result<Bound, ListenerError> {
    let failed = |source| ListenerError::Listen { address: listen.clone(), source };
    match listen {
        Listen::Tcp(address) if !is_secured && !address.ip().is_loopback() => {
            Err(ListenerError::PlaintextOffLoopback(*address))
        }
        Listen::Tcp(address) => {
            let listener = TcpListener::bind(address).await.map_err(failed)?;
            let at = listener.local_addr().map_err(failed)?;
            Ok(Bound::Tcp(listener, at))
        }
        Listen::Unix(path) => {
            let listener = bind_unix(path, Rights::OWNER_ONLY)?;
            Ok(Bound::Unix(listener, SocketFile::of(path)))
        }
    }
}

async fn serve(server: &Server, bound: Bound) {
    match bound {
        Bound::Tcp(listener, _) => server.serve(listener).await,
        Bound::Unix(listener, file) => {
            server.serve(listener).await;
            drop(file);
        }
    }
}
