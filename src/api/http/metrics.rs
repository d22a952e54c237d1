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
    let accepted = headers.get_all(header::ACCEPT).iter().filter_map(|value| value.to_str().ok());
    let format = Format::accepted(accepted);
    let Ok(page) = page::render(Snapshot::take(&site.sources).await, format) else {
        let why = "the metrics could not be written";
        return Refusal::new(StatusCode::INTERNAL_SERVER_ERROR, why).into_response();
    };
    let kind = (header::CONTENT_TYPE, format.content_type());
    ([kind, (header::VARY, "accept")], page).into_response()
}
