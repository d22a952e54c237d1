//! Answers of the server, as JSON.

use axum::Json;
use axum::response::{IntoResponse, Response};
use guest_agent_proto::enrolment::{Problem, Refused};
use http::{HeaderValue, StatusCode, header};
use serde::Serialize;

use crate::chain::Chain;
use crate::enroll::admit::Refusal;

/// An answer that nobody keeps: it is for one client and one moment.
pub(super) fn granted(answer: impl Serialize) -> Response {
    uncached((StatusCode::OK, Json(answer)).into_response())
}

/// An answer that is no success.
pub(super) fn refused(refusal: &Refusal) -> Response {
    let (status, code) = refusal.code();
    let shown = if status.is_server_error() {
        tracing::error!(error = %Chain(refusal), "a request could not be served");
        // What is wrong inside is for the log alone.
        "the request cannot be served now".to_owned()
    } else {
        tracing::info!(error = %Chain(refusal), code, "a request was refused");
        Chain(refusal).to_string()
    };
    let mut response = problem(status, code, &shown, refusal.fix());
    if status == StatusCode::SERVICE_UNAVAILABLE {
        response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from_static("60"));
    }
    response
}

/// An answer that says what is wrong.
pub(super) fn problem(status: StatusCode, code: &str, message: &str, fix: &str) -> Response {
    let error = Problem { code: code.to_owned(), message: message.to_owned(), fix: fix.to_owned() };
    uncached((status, Json(Refused { error })).into_response())
}

fn uncached(mut response: Response) -> Response {
    response.headers_mut().insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}
