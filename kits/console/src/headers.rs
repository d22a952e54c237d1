//! The headers that restrict what a browser does with a page.

use axum::http::{HeaderName, HeaderValue, header};

/// What a page may load and do: nothing that is not the server's own. There is no inline script or
/// style, so text that ends up as markup is not carried out either.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src data:; \
    connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'";

/// The headers of everything that a console serves.
#[must_use]
pub fn headers(kind: &'static str) -> [(HeaderName, HeaderValue); 2] {
    [
        (header::CONTENT_TYPE, HeaderValue::from_static(kind)),
        (header::CONTENT_SECURITY_POLICY, HeaderValue::from_static(POLICY)),
    ]
}
