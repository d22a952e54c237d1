//! `/metrics`: the page of metrics, in the format that the client reads.

use axum::Router;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;

use super::refusal::Refusal;
use super::site::Site;
use crate::observe::metrics::page::{self, Format};
use crate::observe::metrics::snapshot::Snapshot;

pub(super) fn routes() -> Router<Site> {
    Router::new().route("/metrics", get(metrics))
}

async fn metrics(State(site): State<Site>, headers: HeaderMap) -> Response {
    let (kind, format) = if takes_open_metrics(&headers) {
        ("application/openmetrics-text; version=1.0.0; charset=utf-8", Format::OpenMetrics)
    } else {
        ("text/plain; version=0.0.4; charset=utf-8", Format::Prometheus)
    };
    let Ok(page) = page::render(Snapshot::take(&site.sources).await, format) else {
        let why = "the metrics could not be written";
        return Refusal::new(StatusCode::INTERNAL_SERVER_ERROR, why).into_response();
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
mod tests {
    use super::*;

    #[test]
    fn clients_get_the_format_that_they_read() {
        let takes = |accept: &'static str| {
            let value = axum::http::HeaderValue::from_static(accept);
            takes_open_metrics(&[(header::ACCEPT, value)].into_iter().collect())
        };
        let prometheus = "application/openmetrics-text;version=1.0.0;q=0.5,\
                          application/openmetrics-text;version=0.0.1;q=0.4,\
                          text/plain;version=0.0.4;q=0.3,*/*;q=0.2";
        assert!(takes(prometheus));
        assert!(takes("Application/OpenMetrics-Text"));
        assert!(!takes("application/openmetrics-text;q=0, text/plain"));
        assert!(!takes("text/html,application/xhtml+xml,*/*;q=0.8"));
        assert!(!takes_open_metrics(&HeaderMap::new()));
    }
}
