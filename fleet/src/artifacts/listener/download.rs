//! An artifact on its way to an agent.

use axum::body::Body;
use guest_agent_serve_kit::conditions::{self, Answer};
use http::header::{
    ACCEPT_RANGES, CACHE_CONTROL, CONTENT_LENGTH, CONTENT_RANGE, CONTENT_TYPE, ETAG, HeaderValue,
    LOCATION, X_CONTENT_TYPE_OPTIONS,
};
use http::{Method, Request, Response, StatusCode};

use super::answer::{Refusal, header};
use super::options::Delivery;
use super::site::Site;
use crate::artifacts::digest::Digest;
use crate::artifacts::store::{Fetch, Part, Stat, StoreError};
use crate::chain::Chain;

/// An artifact never changes under its digest.
const FOR_EVER: &str = "public, max-age=31536000, immutable";
/// A signed address is good for a while, and for its client.
const NOT_KEPT: &str = "private, no-store";

/// Answers a GET or a HEAD.
pub(super) async fn answer<B: Sync>(
    site: &Site,
    plugin: &str,
    digest: Digest,
    request: &Request<B>,
) -> Response<Body> {
    if !site.known.is_known(plugin, &digest) {
        return Refusal::new(
            StatusCode::NOT_FOUND,
            "artifact_not_named",
            format!("no release of {plugin} names the artifact {digest}"),
            "apply a release that names it, and try again in a few seconds",
        )
        .response();
    }
    match find(site, digest, request).await {
        Ok(Some(response)) => response,
        Ok(None) => Refusal::new(
            StatusCode::NOT_FOUND,
            "artifact_missing",
            format!("a release names the artifact {digest}, but it is not in the store"),
            "upload it with `guest-fleet artifact push`",
        )
        .response(),
        Err(error) => {
            tracing::error!(error = %Chain(&error), "an artifact cannot be read");
            Refusal::new(
                StatusCode::SERVICE_UNAVAILABLE,
                "store_failed",
                format!("the artifact {digest} cannot be read now"),
                "try again; the log of guest-fleet says what is wrong with its store",
            )
            .response()
        }
    }
}

async fn find<B: Sync>(
    site: &Site,
    digest: Digest,
    request: &Request<B>,
) -> Result<Option<Response<Body>>, StoreError> {
    let Some(stat) = site.store.stat(&digest).await? else { return Ok(None) };
    let etag = format!("\"{digest}\"");
    let (method, headers) = (request.method(), request.headers());
    let answer = conditions::answer(method, headers, &etag, stat.length);
    if let Delivery::Redirect(lifetime) = site.delivery
        && answer != Answer::NotModified
    {
        let fetch = if *method == Method::HEAD { Fetch::Headers } else { Fetch::Bytes };
        if let Some(address) = site.store.address(&digest, fetch, lifetime).await? {
            // Range and conditions are for the bucket, which has tags of its own.
            return Ok(Some(redirection(&address)));
        }
    }
    let whole = Part { first: 0, length: stat.length };
    let (status, part) = match answer {
        Answer::Whole => (StatusCode::OK, Some(whole)),
        Answer::Part { first, last } => {
            let part = Part { first, length: last - first + 1 };
            (StatusCode::PARTIAL_CONTENT, Some(part))
        }
        Answer::NotModified => (StatusCode::NOT_MODIFIED, None),
        Answer::Unsatisfiable => (StatusCode::RANGE_NOT_SATISFIABLE, None),
    };
    let body = match part.filter(|_| *method == Method::GET) {
        None => Body::empty(),
        Some(part) => {
            let wanted = (part != whole).then_some(part);
            let Some(bytes) = site.store.open(&digest, wanted).await? else { return Ok(None) };
            Body::from_stream(bytes)
        }
    };
    let mut response = Response::new(body);
    *response.status_mut() = status;
    describe(&mut response, &stat, &etag, answer, part);
    Ok(Some(response))
}

fn describe(
    response: &mut Response<Body>,
    stat: &Stat,
    etag: &str,
    answer: Answer,
    part: Option<Part>,
) {
    let headers = response.headers_mut();
    headers.insert(ETAG, header(etag));
    headers.insert(ACCEPT_RANGES, HeaderValue::from_static("bytes"));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static(FOR_EVER));
    if let Some(part) = part {
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/octet-stream"));
        headers.insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
        headers.insert(CONTENT_LENGTH, HeaderValue::from(part.length));
    }
    let length = stat.length;
    match answer {
        Answer::Part { first, last } => {
            headers.insert(CONTENT_RANGE, header(&format!("bytes {first}-{last}/{length}")));
        }
        Answer::Unsatisfiable => {
            headers.insert(CONTENT_RANGE, header(&format!("bytes */{length}")));
        }
        Answer::Whole | Answer::NotModified => {}
    }
}

fn redirection(address: &str) -> Response<Body> {
    let mut response = Response::new(Body::empty());
    *response.status_mut() = StatusCode::TEMPORARY_REDIRECT;
    let headers = response.headers_mut();
    headers.insert(LOCATION, header(address));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static(NOT_KEPT));
    response
}
