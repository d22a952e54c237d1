//! The sheet and the script of every page, which come with the program.

use axum::http::{HeaderValue, header};
use axum::response::{IntoResponse, Response};

use crate::headers::headers;

/// Where the sheet is served.
pub const STYLE: &str = "/console/style.css";

/// Where the script is served.
pub const SCRIPT: &str = "/console/script.js";

/// The sheet.
pub async fn style() -> Response {
    asset("text/css; charset=utf-8", include_str!("style.css"))
}

/// The script.
pub async fn script() -> Response {
    asset("text/javascript; charset=utf-8", include_str!("script.js"))
}

fn asset(kind: &'static str, text: &'static str) -> Response {
    // Small, and another one with the next version of the program.
    let kept = (header::CACHE_CONTROL, HeaderValue::from_static("private, max-age=60"));
    (headers(kind), [kept], text).into_response()
}
