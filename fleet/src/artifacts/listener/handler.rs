//! One request: what it is about, and who answers it.

use std::sync::Arc;

use axum::body::Body;
use http::header::{ALLOW, HeaderValue};
use http::{Method, Request, Response, StatusCode};
use hyper::body::{Body as _, Incoming};

use super::answer::{Refusal, closing, no_path};
use super::site::Site;
use super::{download, route, upload};

/// Answers a request.
pub(super) async fn answer(site: &Arc<Site>, request: Request<Incoming>) -> Response<Body> {
    let found = route::artifact(request.uri().path());
    let found = found.map(|(plugin, digest)| (plugin.to_owned(), digest));
    if *request.method() == Method::PUT {
        return upload::answer(site, found.map(|(_, digest)| digest), request).await;
    }
    if *request.method() != Method::GET && *request.method() != Method::HEAD {
        let refusal = Refusal::new(
            StatusCode::METHOD_NOT_ALLOWED,
            "method_not_allowed",
            "artifacts are fetched with GET or HEAD and sent with PUT",
            "use one of these methods",
        );
        let mut response = closing(refusal.response());
        response.headers_mut().insert(ALLOW, HeaderValue::from_static("GET, HEAD, PUT"));
        return response;
    }
    if !request.body().is_end_stream() {
        let refusal = Refusal::new(
            StatusCode::BAD_REQUEST,
            "body_not_allowed",
            "a request for an artifact has no body",
            "send it without a body",
        );
        return closing(refusal.response());
    }
    match found {
        Some((plugin, digest)) => download::answer(site, &plugin, digest, &request).await,
        None => no_path().response(),
    }
}
