//! The answer to a request that is not carried out.

use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};

/// A status and a sentence that says why, and what would help.
pub(super) fn refuse(status: StatusCode, why: &'static str) -> Response {
    let mut response = (status, format!("{why}\n")).into_response();
    if status == StatusCode::SERVICE_UNAVAILABLE {
        response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from_static("1"));
    }
    response
}

/// To a page of the console's own, with a cookie.
pub(super) fn redirect(to: &str, cookie: Option<&str>) -> Response {
    let mut response = StatusCode::SEE_OTHER.into_response();
    for (name, value) in [(header::LOCATION, Some(to)), (header::SET_COOKIE, cookie)] {
        if let Some(Ok(value)) = value.map(HeaderValue::from_str) {
            response.headers_mut().insert(name, value);
        }
    }
    response
}
