//! HTTP on `api.http_listen`: health for load balancers and orchestrators, pages for people.
//!
//! ```text
//!   listener ─► connections (counted, with deadlines) ─► access_check ─► routes ─► local API
//!   bound again with backoff           host, tokens, headers ┘                └ [`Site`]
//! ```
//!
//! The agent does its work without HTTP: when its address is taken, the log and `doctor` say so,
//! and the agent tries again. [`router`] is the one place where pages are put together;
//! `access_check` decides what a request may do before a page gets it.

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
use crate::observe::metrics::{Sources, TokenExpiries};

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

use access::{Keys, TokenStore};
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
    /// Cancelled when the server is to end.
    pub ending: CancellationToken,
}

/// All pages.
pub fn router(site: Site) -> Router {
    Router::new()
        .merge(health::routes())
        .merge(console::routes(&site))
        .merge(metrics::routes())
        .fallback(async || Refusal::new(StatusCode::NOT_FOUND, "this page does not exist"))
        .layer(DefaultBodyLimit::max(BODY_MAX))
        .layer(middleware::from_fn_with_state(site.clone(), access_check::check))
        .with_state(site)
}

// === impl Http ===

impl Http {
    /// Serves until `ending` is cancelled. A failure to listen is no end: the server tries again.
    pub async fn serve(mut self) {
        let (tokens, sessions) = (Arc::new(TokenStore::default()), Arc::new(Sessions::default()));
        let mut backoff = Backoff::new(WAITS);
        loop {
            let config = self.config.borrow_and_update().clone();
            let address = config.api.http_listen;
            self.use_keys(&tokens, &config).await;
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
                    self.listen(listener, address, &tokens, &sessions).await;
                }
                Err(error) => {
                    let wait = backoff.next(rand::random());
                    let trouble = format!(
                        "HTTP is off: the agent cannot listen on {address}: {error}; see with `ss \
                         -ltnp` which process does, or change api.http_listen"
                    );
                    warn!(
                        %address, %error, next_try_in = ?wait,
                        "cannot listen; continues without HTTP"
                    );
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
        tokens: &Arc<TokenStore>,
        sessions: &Arc<Sessions>,
    ) {
        let at = listener.local_addr().unwrap_or(address);
        self.health.send_modify(|health| health.at = Some(at));
        info!(%at, "serves HTTP");
        let ending = self.ending.child_token();
        let site = Site {
            api: self.api.clone(),
            sources: self.sources.clone(),
            config: self.config.clone(),
            tokens: tokens.clone(),
            sessions: sessions.clone(),
            reach: if at.ip().is_loopback() { Reach::Loopback } else { Reach::Network },
            ending: ending.clone(),
        };
        let serving = connections::serve(listener, router(site), Limits::default(), ending.clone());
        let moved = async {
            loop {
                tokio::select! {
                    changed = self.config.changed() => if changed.is_err() { return },
                    () = tokens.time_passes() => {
                        self.report_ends(tokens);
                        continue;
                    }
                }
                let config = self.config.borrow_and_update().clone();
                if config.api.http_listen != Some(address) {
                    return;
                }
                self.use_keys(tokens, &config).await;
            }
        };
        tokio::pin!(serving);
        tokio::select! {
            () = &mut serving => return,
            () = moved => {}
        }
        // The next listener may have the same port.
        ending.cancel();
        serving.await;
        // Read again at the top.
        self.config.mark_changed();
    }

    async fn use_keys(&self, tokens: &TokenStore, config: &Config) {
        let keys = Keys::read(&config.api).await;
        self.expiries.send_replace(keys.expiries());
        let troubles = tokens.use_keys(keys);
        for trouble in &troubles {
            warn!("{trouble}");
        }
        self.health.send_modify(|health| health.troubles = troubles);
    }

    /// Reports tokens that have ended meanwhile, and those that will soon.
    fn report_ends(&self, tokens: &TokenStore) {
        let Some((before, now)) = tokens.look_again() else { return };
        for trouble in now.iter().filter(|trouble| !before.contains(trouble)) {
            warn!("{trouble}");
        }
        self.health.send_modify(|health| {
            health.troubles.retain(|trouble| !before.contains(trouble));
            health.troubles.extend(now);
        });
    }
}
