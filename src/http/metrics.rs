//! `/metrics`: what there is to measure, in the formats that Prometheus reads.
//!
//! ```text
//!   manager, outbox, link, tally, /proc/self ─► Snapshot ─► figures (catalogue) ─┬─► page ─► OpenMetrics ─┬─►
//!                                                                                │     0.0.4 ◄─ plain ────┘
//!                                                                                └─► `crate::telemetry` (OTLP)
//! ```
//!
//! A scrape disturbs nobody: usage is what was sampled last, all else is in memory but a handful of files
//! on the agent itself and the machine.

use std::sync::Arc;

use actix::Recipient;
use axum::Router;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use guest_agent_actors::outbox::WeighBacklog;
use guest_agent_actors::registry::view::RegistryView;

use super::Site;
use super::refusal::Refusal;
use crate::control_link::Link;
use crate::tally::Counts;

pub mod catalogue;
pub(crate) mod figures;
mod own;
mod page;
mod plain;
pub(crate) mod snapshot;

use snapshot::Snapshot;

/// Where numbers come from that nothing else on HTTP shows.
#[derive(Clone)]
pub struct Sources {
    /// Says how much waits for the control plane.
    pub backlog: Recipient<WeighBacklog>,
    /// Counts what the actors do.
    pub counts: Arc<Counts>,
    /// What plugins offer each other.
    pub offers: RegistryView,
    /// Counts its connections.
    pub link: Link,
}

pub(super) fn routes() -> Router<Site> {
    Router::new().route("/metrics", get(metrics))
}

async fn metrics(State(site): State<Site>, headers: HeaderMap) -> Response {
    let Ok(page) = page::render(Snapshot::take(&site.api, &site.sources).await) else {
        let why = "the metrics could not be written";
        return Refusal::new(StatusCode::INTERNAL_SERVER_ERROR, why).into_response();
    };
    let (kind, page) = if takes_open_metrics(&headers) {
        ("application/openmetrics-text; version=1.0.0; charset=utf-8", page)
    } else {
        ("text/plain; version=0.0.4; charset=utf-8", plain::plain(&page))
    };
    ([(header::CONTENT_TYPE, kind), (header::VARY, "accept")], page).into_response()
}

/// Whether a client takes OpenMetrics. Everybody else gets what Prometheus has always read, which a
/// person can read as well.
fn takes_open_metrics(headers: &HeaderMap) -> bool {
    let accepted = headers.get_all(header::ACCEPT).iter().filter_map(|value| value.to_str().ok());
    accepted.flat_map(|value| value.split(',')).any(|range| {
        let mut parts = range.split(';').map(str::trim);
        let is_it = parts
            .next()
            .is_some_and(|kind| kind.eq_ignore_ascii_case("application/openmetrics-text"));
        let is_refused = parts.any(|parameter| {
            let quality = parameter.strip_prefix("q=").map(str::parse::<f32>);
            matches!(quality, Some(Ok(quality)) if quality <= 0.0)
        });
        is_it && !is_refused
    })
}

#[cfg(test)]
pub(crate) mod tests;
