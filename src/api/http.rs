//! HTTP on `api.http_listen`: health for load balancers and orchestrators, pages for people.
//!
//! ```text
//!   listener ─► connections (counted, with deadlines) ─► gate ─► routes ─► the local socket's layer
//!   bound again with backoff           host, tokens, headers ┘        └ [`Site`]
//! ```
//!
//! Nothing that the agent is for depends on it: an address that is taken is told in the log and by
//! `doctor`, and tried again. [`router`] is the one place where pages are put together; what a request
//! may do is decided in `http::gate` before any of them sees it.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::extract::DefaultBodyLimit;
use axum::http::StatusCode;
use axum::{Router, middleware};
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use crate::api::local::{HttpHealth, LocalApi};
use crate::config::Config;
use crate::net::backoff::{Backoff, Jitter, Schedule};
use crate::observe::metrics::Sources;

pub mod access;
mod access_check;
mod connections;
mod console;
mod health;
mod metrics;
pub mod refusal;
mod session;
mod site;
mod write_timeout;

use access::{Desk, Keys};
use connections::Limits;
use refusal::Refusal;
use session::Sessions;
pub use site::{Reach, Site};

/// Largest body of a request, in bytes, where a route does not allow more.
const BODY_MAX: usize = 64 << 10;

/// The waits before an address is tried again.
const WAITS: Schedule =
    Schedule::doubling(Duration::from_millis(500), Duration::from_secs(60), Jitter::UpperHalf);

/// Serves HTTP where the configuration says.
pub struct Http {
    /// What pages show.
    pub api: LocalApi,
    /// What its metrics are made of.
    pub sources: Sources,
    /// Followed: the address and the tokens are taken up without a restart.
    pub config: watch::Receiver<Arc<Config>>,
    /// Told how it fares.
    pub health: watch::Sender<HttpHealth>,
    /// Ends it.
    pub ending: CancellationToken,
}

/// All pages.
pub fn router(site: Site) -> Router {
    Router::new()
        .merge(health::routes())
        .merge(console::routes(&site))
        .merge(metrics::routes())
        .fallback(async || Refusal::new(StatusCode::NOT_FOUND, "there is no such page"))
        .layer(DefaultBodyLimit::max(BODY_MAX))
        .layer(middleware::from_fn_with_state(site.clone(), access_check::guard))
        .with_state(site)
}

// === impl Http ===

impl Http {
    /// Serves until it is ended. Goes on through whatever keeps it from doing so.
    pub async fn serve(mut self) {
        let (desk, sessions) = (Arc::new(Desk::default()), Arc::new(Sessions::default()));
        let mut backoff = Backoff::new(WAITS);
        loop {
            let config = self.config.borrow_and_update().clone();
            let address = config.api.http_listen;
            self.use_keys(&desk, &config).await;
            let Some(address) = address else {
                self.health.send_modify(|health| health.at = None);
                backoff.reset();
                tokio::select! {
                    changed = self.config.changed() => if changed.is_err() { return },
                    () = self.ending.cancelled() => return,
                }
                continue;
            };
            match TcpListener::bind(address).await {
                Ok(listener) => {
                    backoff.reset();
                    self.listen(listener, address, &desk, &sessions).await;
                }
                Err(error) => {
                    let wait = backoff.next(rand::random());
                    let trouble = format!(
                        "nothing is served over HTTP: {address} cannot be listened on: {error}; see \
                         who has it with `ss -ltnp`, or change api.http_listen"
                    );
                    warn!(%address, %error, next_try_in = ?wait, "cannot listen; goes on without HTTP");
                    self.health.send_modify(|health| {
                        health.at = None;
                        health.troubles.push(trouble);
                    });
                    tokio::select! {
                        () = tokio::time::sleep(wait) => {}
                        changed = self.config.changed() => if changed.is_err() { return },
                        () = self.ending.cancelled() => return,
                    }
                }
            }
            if self.ending.is_cancelled() {
                return;
            }
        }
    }

    /// Serves one listener until another is wanted.
    async fn listen(
        &mut self,
        listener: TcpListener,
        address: SocketAddr,
        desk: &Arc<Desk>,
        sessions: &Arc<Sessions>,
    ) {
        let at = listener.local_addr().unwrap_or(address);
        self.health.send_modify(|health| health.at = Some(at));
        info!(%at, "serves HTTP");
        let ending = self.ending.child_token();
        let site = Site {
            api: self.api.clone(),
            sources: self.sources.clone(),
            desk: desk.clone(),
            sessions: sessions.clone(),
            reach: if at.ip().is_loopback() { Reach::Loopback } else { Reach::Network },
            ending: ending.clone(),
        };
        let serving = connections::serve(listener, router(site), Limits::default(), ending.clone());
        let moved = async {
            loop {
                if self.config.changed().await.is_err() {
                    return;
                }
                let config = self.config.borrow_and_update().clone();
                if config.api.http_listen != Some(address) {
                    return;
                }
                self.use_keys(desk, &config).await;
            }
        };
        tokio::pin!(serving);
        tokio::select! {
            () = &mut serving => return,
            () = moved => {}
        }
        // Before the next one may have the same port.
        ending.cancel();
        serving.await;
        // Read again at the top.
        self.config.mark_changed();
    }

    async fn use_keys(&self, desk: &Desk, config: &Config) {
        let keys = Keys::read(&config.api).await;
        for trouble in keys.troubles() {
            warn!("{trouble}");
        }
        self.health.send_modify(|health| health.troubles = keys.troubles().to_vec());
        desk.use_keys(keys);
    }
}
