//! HTTP on `api.http_listen` and `api.http_socket`: health for load balancers and orchestrators, pages
//! for people.
//!
//! ```text
//!   address (TLS: handshake) ─┬─► connections (counted, with deadlines) ─► access_check ─► routes ─► local API
//!   unix (socket_peer) ───────┘                              host, tokens, headers ┘         └ [`Site`]
//!      └ listening: bound again with backoff, and elsewhere when the configuration changes
//! ```
//!
//! The agent does its work without HTTP: when its address is taken, the log and `doctor` say so,
//! and the agent tries again. `shared::router` is the one place where pages are put together;
//! `access_check` decides what a request may do before a page gets it.

use std::sync::Arc;

use guest_agent_serve_kit::connection_counters::ConnectionCounters;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::api::local::{HttpHealth, LocalApi};
use crate::config::Config;
use crate::net::certificates::Certificates;
use crate::net::levels::Levels;
use crate::observe::metrics::{Sources, TokenExpiries};
use crate::process::launch::ProcessLauncher;

pub mod access;
mod access_check;
mod address;
mod connections;
mod console;
mod handshake;
mod health;
mod listening;
mod metrics;
pub mod refusal;
mod scheme;
mod session;
mod shared;
mod site;
mod socket_peer;
mod unix;

use address::Address;
use shared::Shared;
pub use site::{Reach, Site};
use unix::Unix;

/// Serves HTTP where the configuration says.
pub struct Http {
    /// The layer behind the local socket, which pages show.
    pub api: LocalApi,
    /// What metrics are made from.
    pub sources: Sources,
    /// The configuration in effect: a new address and new tokens are taken up without a restart.
    pub config: watch::Receiver<Arc<Config>>,
    /// Gets the state of the server.
    pub health: watch::Sender<HttpHealth>,
    /// Gets the ends of tokens.
    pub expiries: watch::Sender<TokenExpiries>,
    /// Knows the processes of plugins.
    pub launcher: Arc<ProcessLauncher>,
    /// Who may do what over the agent's own socket, and so over that of HTTP.
    pub levels: Arc<Levels>,
    /// Counts connections.
    pub counters: ConnectionCounters,
    /// Gets the end of the certificate.
    pub certificates: Certificates,
    /// Cancelled when the server is to end.
    pub ending: CancellationToken,
}

// === impl Http ===

impl Http {
    /// Serves until `ending` is cancelled. A failure to listen is no end: the server tries again.
    pub async fn serve(self) {
        let Self { api, sources, mut config, health, .. } = self;
        let Self { expiries, launcher, levels, counters, certificates, ending, .. } = self;
        let (tokens, sessions) = Default::default();
        let shared = Shared {
            api,
            sources,
            config: config.clone(),
            tokens,
            sessions,
            health,
            expiries,
            launcher,
            levels,
            counters,
            certificates,
        };
        let first = config.borrow_and_update().clone();
        shared.use_keys(&first).await;
        // Tokens are in force before a listener that needs them is opened.
        let (with_keys, seen) = watch::channel(first);
        let following = async {
            loop {
                tokio::select! {
                    changed = config.changed() => if changed.is_err() { return },
                    () = ending.cancelled() => return,
                    () = shared.tokens.time_passes() => {
                        shared.report_ends();
                        continue;
                    }
                }
                let now = config.borrow_and_update().clone();
                shared.use_keys(&now).await;
                with_keys.send_replace(now);
            }
        };
        let (address, unix) = (Address(&shared), Unix(&shared));
        tokio::join!(
            following,
            listening::keep(&address, seen.clone(), ending.clone()),
            listening::keep(&unix, seen.clone(), ending.clone()),
        );
    }
}
