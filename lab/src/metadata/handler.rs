//! One HTTP request to the metadata server.

use std::sync::Arc;
use std::time::Duration;

use axum::body::{self, Body};
use axum::extract::{Request, State};
use axum::response::Response;
use guest_agent_serve_kit::lock::lock;
use http::header::{CONTENT_TYPE, ETAG, HeaderValue};
use http::{HeaderMap, Method, StatusCode};

use super::jwt;
use super::shared::Shared;
use super::tree::Found;

const BASE: &str = "/computeMetadata/v1/";
const FLAVOR: &str = "metadata-flavor";
const IDENTITY: &str = "instance/service-accounts/default/identity";

/// Longest wait for a change; also the wait when the request gives no time.
const LONGEST_WAIT: Duration = Duration::from_secs(300);

/// Largest value that a PUT may set, in bytes.
const VALUE_MAX: usize = 256 << 10;

/// The path and query of a request.
struct Asked {
    path: String,
    query: String,
}

/// Answers every request of the server.
pub(super) async fn answer(State(shared): State<Arc<Shared>>, request: Request) -> Response {
    let shutdown = shared.shutdown.clone();
    tokio::select! {
        response = respond(&shared, request) => response,
        () = shutdown.cancelled() => plain(StatusCode::SERVICE_UNAVAILABLE, "it stops\n"),
    }
}

async fn respond(shared: &Shared, request: Request) -> Response {
    let (parts, content) = request.into_parts();
    let Some(path) = parts.uri.path().strip_prefix(BASE) else {
        return flavored(plain(StatusCode::NOT_FOUND, "computeMetadata/\n"));
    };
    if !is_one_of_ours(&parts.headers) {
        return flavored(plain(StatusCode::FORBIDDEN, "Missing Metadata-Flavor:Google header.\n"));
    }
    let asked =
        Asked { path: unescaped(path), query: parts.uri.query().unwrap_or_default().to_owned() };
    shared.note(&asked.path);
    let faults = lock(&shared.faults).clone();
    tokio::time::sleep(faults.delay).await;
    if let Some(status) = faults.status.and_then(|status| StatusCode::from_u16(status).ok()) {
        return flavored(plain(status, "injected fault\n"));
    }
    let mut response = match parts.method {
        Method::GET => read(shared, &asked, faults.impatient).await,
        Method::PUT | Method::DELETE if shared.writable => {
            write(shared, &parts.method, &asked, content).await
        }
        _ => plain(StatusCode::METHOD_NOT_ALLOWED, "not here\n"),
    };
    if let Some(garbage) = faults.garbage {
        *response.body_mut() = Body::from(garbage);
    }
    if let Some(huge) = faults.huge {
        *response.body_mut() = Body::from(vec![b'7'; huge]);
    }
    if faults.without_etag {
        response.headers_mut().remove(ETAG);
    }
    if faults.without_flavor { response } else { flavored(response) }
}

async fn read(shared: &Shared, asked: &Asked, impatient: bool) -> Response {
    if asked.path == IDENTITY {
        let Some(audience) = asked.parameter("audience") else {
            return plain(StatusCode::BAD_REQUEST, "non-empty audience parameter required\n");
        };
        let instance = match shared.tree.borrow().find("instance/id") {
            Some(Found::Value(id)) => id,
            _ => String::new(),
        };
        let life = *lock(&shared.token_life);
        return plain(StatusCode::OK, jwt::token(&unescaped(audience), &instance, life));
    }
    if asked.parameter("wait_for_change") == Some("true") && !impatient {
        let known = asked.parameter("last_etag").unwrap_or_default().to_owned();
        let seconds = asked.parameter("timeout_sec").and_then(|text| text.parse().ok());
        let patience = seconds.map_or(LONGEST_WAIT, Duration::from_secs).min(LONGEST_WAIT);
        let mut tree = shared.tree.subscribe();
        let changed = tree.wait_for(|tree| tree.etag(&asked.path) != known);
        // When nothing has changed in time, the answer is the value that the client knows.
        drop(tokio::time::timeout(patience, changed).await);
    }
    let tree = shared.tree.borrow();
    let as_json = asked.parameter("alt") == Some("json");
    let deep = asked.parameter("recursive") == Some("true");
    let mut response = match tree.find(&asked.path) {
        None => return plain(StatusCode::NOT_FOUND, "not found\n"),
        Some(Found::Directory(_)) if deep || as_json => {
            let value = tree.json(&asked.path).unwrap_or_default();
            json(value.to_string())
        }
        Some(Found::Directory(names)) => plain(StatusCode::OK, names.join("\n") + "\n"),
        Some(Found::Value(_)) if as_json => {
            json(tree.json(&asked.path).unwrap_or_default().to_string())
        }
        Some(Found::Value(value)) => plain(StatusCode::OK, value),
    };
    if let Ok(etag) = HeaderValue::from_str(&tree.etag(&asked.path)) {
        response.headers_mut().insert(ETAG, etag);
    }
    response
}

async fn write(shared: &Shared, method: &Method, asked: &Asked, content: Body) -> Response {
    if *method == Method::DELETE {
        let gone = shared.remove(&asked.path);
        let status = if gone { StatusCode::OK } else { StatusCode::NOT_FOUND };
        return plain(status, "");
    }
    let Ok(value) = body::to_bytes(content, VALUE_MAX).await else {
        return plain(StatusCode::PAYLOAD_TOO_LARGE, "the value is too large\n");
    };
    match std::str::from_utf8(&value) {
        Ok(value) => {
            shared.set(&asked.path, value);
            plain(StatusCode::OK, "")
        }
        Err(_) => plain(StatusCode::BAD_REQUEST, "the value is not UTF-8\n"),
    }
}

// === impl Asked ===

impl Asked {
    /// A parameter of the query that is not empty, as it is written.
    fn parameter(&self, name: &str) -> Option<&str> {
        let pairs = self.query.split('&').filter_map(|pair| pair.split_once('='));
        let mut values = pairs.filter(|(key, _)| *key == name).map(|(_, value)| value);
        values.next().filter(|value| !value.is_empty())
    }
}

/// The header refuses requests that a client was tricked into sending, such as a browser's.
fn is_one_of_ours(headers: &HeaderMap) -> bool {
    headers.get(FLAVOR).is_some_and(|value| value == "Google")
}

fn flavored(mut response: Response) -> Response {
    response.headers_mut().insert(FLAVOR, HeaderValue::from_static("Google"));
    response
}

fn plain(status: StatusCode, text: impl Into<Body>) -> Response {
    let mut response = Response::new(text.into());
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/text"));
    response
}

fn json(text: String) -> Response {
    let mut response = plain(StatusCode::OK, text);
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}

/// Decodes the percent escapes of a URL; other text stays as it is.
fn unescaped(text: &str) -> String {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((&first, behind)) = rest.split_first() {
        let escape = (first == b'%').then(|| behind.get(..2)).flatten();
        let code = escape.and_then(|digits| std::str::from_utf8(digits).ok());
        match code.and_then(|digits| u8::from_str_radix(digits, 16).ok()) {
            Some(byte) => {
                bytes.push(byte);
                rest = &behind[2..];
            }
            None => {
                bytes.push(first);
                rest = behind;
            }
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}
