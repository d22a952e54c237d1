//! One HTTP request: find the artifact, apply its faults, judge the conditions, send the body.

use std::sync::Arc;

use axum::body::Body;
use axum::extract::{Request, State};
use axum::response::Response;
use guest_agent_serve_kit::conditions::{self, Answer};
use http::header::{
    ACCEPT_RANGES, ALLOW, CONTENT_LENGTH, CONTENT_RANGE, CONTENT_TYPE, ETAG, HeaderValue,
};
use http::{Method, StatusCode};

use super::body::{self, Plan};
use super::catalog::{Artifact, Catalog};
use super::faults::RequestFaults;

/// Answers every request of the server.
pub(super) async fn answer(State(catalog): State<Arc<Catalog>>, request: Request) -> Response {
    let method = request.method();
    if *method != Method::GET && *method != Method::HEAD {
        let mut response = plain(StatusCode::METHOD_NOT_ALLOWED, "only GET and HEAD\n");
        response.headers_mut().insert(ALLOW, HeaderValue::from_static("GET, HEAD"));
        return response;
    }
    // The query holds the signature of a signed URL; artifacts are found without it.
    let name = request.uri().path().trim_start_matches('/').to_owned();
    let faults = catalog.next_request(&name);
    if !faults.header_delay.is_zero() {
        tokio::select! {
            () = tokio::time::sleep(faults.header_delay) => {}
            () = catalog.shutdown.cancelled() => {}
        }
    }
    if let Some(status) = faults.status {
        catalog.count(&name, |counters| {
            counters.requests += 1;
            counters.faults += 1;
        });
        let status = StatusCode::from_u16(status)
            .ok()
            .filter(|status| (200..600).contains(&status.as_u16()))
            .unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        return plain(status, "injected fault\n");
    }
    match catalog.find(&name).await {
        Ok(Some(artifact)) => send(&catalog, name, &request, artifact, faults),
        Ok(None) => plain(StatusCode::NOT_FOUND, "no such artifact\n"),
        Err(error) => {
            tracing::warn!(artifact = name, %error, "an artifact cannot be read");
            plain(StatusCode::INTERNAL_SERVER_ERROR, "the artifact cannot be read\n")
        }
    }
}

fn send(
    catalog: &Arc<Catalog>,
    name: String,
    request: &Request,
    artifact: Artifact,
    faults: RequestFaults,
) -> Response {
    let Artifact { content, length, etag } = artifact;
    let answer = conditions::answer(request.method(), request.headers(), &etag, length);
    catalog.count(&name, |counters| {
        counters.requests += 1;
        match answer {
            Answer::Part { .. } => counters.partial += 1,
            Answer::NotModified => counters.not_modified += 1,
            Answer::Whole | Answer::Unsatisfiable => {}
        }
    });
    let (status, first, sent) = match answer {
        Answer::Whole => (StatusCode::OK, 0, length),
        Answer::Part { first, last } => (StatusCode::PARTIAL_CONTENT, first, last - first + 1),
        Answer::NotModified => (StatusCode::NOT_MODIFIED, 0, 0),
        Answer::Unsatisfiable => (StatusCode::RANGE_NOT_SATISFIABLE, 0, 0),
    };
    let has_body = matches!(answer, Answer::Whole | Answer::Part { .. });
    let body = if has_body && request.method() == Method::GET {
        let plan = Plan { first, length: sent, faults, shutdown: catalog.shutdown.clone() };
        let catalog = catalog.clone();
        body::stream(content, plan, move |bytes| {
            catalog.count(&name, |counters| counters.bytes += bytes);
        })
    } else {
        Body::empty()
    };

    let mut response = Response::new(body);
    *response.status_mut() = status;
    let headers = response.headers_mut();
    headers.insert(ACCEPT_RANGES, HeaderValue::from_static("bytes"));
    headers.insert(ETAG, header(&etag));
    if has_body {
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/octet-stream"));
        headers.insert(CONTENT_LENGTH, HeaderValue::from(sent));
    }
    match answer {
        Answer::Part { first, last } => {
            headers.insert(CONTENT_RANGE, header(&format!("bytes {first}-{last}/{length}")));
        }
        Answer::Unsatisfiable => {
            headers.insert(CONTENT_RANGE, header(&format!("bytes */{length}")));
        }
        Answer::Whole | Answer::NotModified => {}
    }
    response
}

fn plain(status: StatusCode, text: &'static str) -> Response {
    let mut response = Response::new(Body::from(text));
    *response.status_mut() = status;
    response
}

fn header(text: &str) -> HeaderValue {
    HeaderValue::from_str(text).expect("digits, letters and punctuation of ASCII")
}
