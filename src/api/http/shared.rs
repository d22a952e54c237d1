//! What the listeners of HTTP share: tokens, sessions, and the pages.

use std::sync::Arc;

use axum::extract::DefaultBodyLimit;
use axum::http::StatusCode;
use axum::{Router, middleware};
use guest_agent_serve_kit::connection_counters::ConnectionCounters;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tracing::warn;

use super::access::{Keys, TokenStore};
use super::refusal::Refusal;
use super::scheme::Scheme;
use super::session::Sessions;
use super::site::{Reach, Site};
use super::{access_check, console, health, metrics};
use crate::api::local::{HttpHealth, LocalApi};
use crate::config::Config;
use crate::net::certificates::Certificates;
use crate::net::levels::Levels;
use crate::observe::metrics::{Sources, TokenExpiries};
use crate::process::launch::ProcessLauncher;

/// Largest body of a request, in bytes, where a route does not allow more.
const BODY_MAX: usize = 64 << 10;

/// What the listeners share.
pub(super) struct Shared {
    pub(super) api: LocalApi,
    pub(super) sources: Sources,
    pub(super) config: watch::Receiver<Arc<Config>>,
    pub(super) tokens: Arc<TokenStore>,
    pub(super) sessions: Arc<Sessions>,
    pub(super) health: watch::Sender<HttpHealth>,
    pub(super) expiries: watch::Sender<TokenExpiries>,
    pub(super) launcher: Arc<ProcessLauncher>,
    pub(super) levels: Arc<Levels>,
    pub(super) counters: ConnectionCounters,
    pub(super) certificates: Certificates,
}

/// All pages.
pub(super) fn router(site: Site) -> Router {
    Router::new()
        .merge(health::routes())
        .merge(console::routes(&site))
        .merge(metrics::routes())
        .fallback(async || Refusal::new(StatusCode::NOT_FOUND, "this page does not exist"))
        .layer(DefaultBodyLimit::max(BODY_MAX))
        .layer(middleware::from_fn_with_state(site.clone(), access_check::check))
        .with_state(site)
}

// === impl Shared ===

impl Shared {
    /// What the pages of a listener are made from.
    pub(super) fn site(&self, reach: Reach, scheme: Scheme, ending: CancellationToken) -> Site {
        Site {
            api: self.api.clone(),
            sources: self.sources.clone(),
            config: self.config.clone(),
            tokens: self.tokens.clone(),
            sessions: self.sessions.clone(),
            reach,
            scheme,
            ending,
        }
    }

    /// Puts the configured tokens into force.
    pub(super) async fn use_keys(&self, config: &Config) {
        let keys = Keys::read(&config.api).await;
        self.expiries.send_replace(keys.expiries());
        let troubles = self.tokens.use_keys(keys);
        for trouble in &troubles {
            warn!("{trouble}");
        }
        self.health.send_modify(|health| health.token_troubles = troubles);
    }

    /// Reports tokens that have ended meanwhile, and those that will soon.
    pub(super) fn report_ends(&self) {
        let Some((before, now)) = self.tokens.look_again() else { return };
        for trouble in now.iter().filter(|trouble| !before.contains(trouble)) {
            warn!("{trouble}");
        }
        self.health.send_modify(|health| {
            health.token_troubles.retain(|trouble| !before.contains(trouble));
            health.token_troubles.extend(now);
        });
    }
}
