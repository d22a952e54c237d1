//! Answers that are not an artifact.

use axum::body::Body;
use http::header::{CACHE_CONTROL, CONNECTION, CONTENT_TYPE, HeaderValue};
use http::{Response, StatusCode};
use serde_json::json;

/// A refusal: what is wrong, and how it is put right.
pub(super) struct Refusal {
    pub(super) status: StatusCode,
    /// For programs.
    pub(super) code: &'static str,
    pub(super) message: String,
    pub(super) fix: &'static str,
}

impl Refusal {
    pub(super) fn new(
        status: StatusCode,
        code: &'static str,
        message: impl Into<String>,
        fix: &'static str,
    ) -> Self {
        Self { status, code, message: message.into(), fix }
    }

    pub(super) fn response(self) -> Response<Body> {
        let Self { status, code, message, fix } = self;
        json(status, &json!({ "error": { "code": code, "message": message, "fix": fix } }))
    }
}

/// A JSON document with a line break at its end.
pub(super) fn json(status: StatusCode, document: &serde_json::Value) -> Response<Body> {
    let mut response = Response::new(Body::from(format!("{document}\n")));
    *response.status_mut() = status;
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}

/// A header of digits, letters and punctuation.
pub(super) fn header(text: &str) -> HeaderValue {
    HeaderValue::from_str(text).expect("digits, letters and punctuation of ASCII")
}

/// The path does not name an artifact.
pub(super) fn no_path() -> Refusal {
    Refusal::new(
        StatusCode::NOT_FOUND,
        "no_such_path",
        "the path does not name an artifact",
        "use /artifacts/<plugin>/<digest>, where the digest is the SHA-256 in 64 lower-case digits",
    )
}

/// The connection ends with this answer, since there may be a body that nobody reads.
pub(super) fn closing(mut response: Response<Body>) -> Response<Body> {
    response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
    response
}
