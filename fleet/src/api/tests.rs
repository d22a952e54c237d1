//! Tests of the API: on a ledger in memory, on SQLite, and over real sockets.

mod bodies;
mod counted;
mod documents;
pub(crate) mod fleet;
mod once;
mod openapi;
mod roles;
mod served;
mod watched;

use std::collections::BTreeMap;
use std::sync::Arc;

use async_trait::async_trait;
use axum::body::Body;
use guest_fleet_core::time::UtcOnly;
use http::{Request, StatusCode};
use jiff::Timestamp;
use serde_json::Value;
use tower::ServiceExt;

use super::Api;
use crate::identity::{Authenticate, Grant, Principal, Refusal, Role};
use crate::ledger::SharedLedger;

/// The time at which calls are made: a Thursday.
pub(crate) fn now() -> Timestamp {
    "2026-01-01T12:00:00Z".parse().expect("a time")
}

/// Tokens, and whose they are.
#[derive(Default)]
struct Tokens(BTreeMap<String, Principal>);

#[async_trait]
impl Authenticate for Tokens {
    async fn authenticate(&self, bearer: &str) -> Result<Principal, Refusal> {
        self.0.get(bearer).cloned().ok_or(Refusal::Unknown)
    }
}

fn principal(name: &str, grants: &[(Role, &str)]) -> Principal {
    let grants = grants.iter().map(|(role, scope)| Grant::parse(*role, scope).expect("a scope"));
    Principal { name: name.to_owned(), from: "a test".to_owned(), grants: grants.collect() }
}

fn admin() -> Principal {
    principal("token/admin", &[(Role::Admin, "all")])
}

/// The API, with the tokens `admin`, and `test`, a viewer of what is labelled so.
pub(crate) fn api(ledger: SharedLedger) -> Api {
    let tokens = [
        ("admin", admin()),
        ("test", principal("token/test", &[(Role::Viewer, "env = test")])),
        ("nothing", principal("token/nothing", &[])),
    ];
    let tokens = tokens.map(|(token, principal)| (token.to_owned(), principal));
    Api::at(ledger, Arc::new(Tokens(tokens.into())), Arc::new(UtcOnly), now)
}

/// Sends a request over HTTP, and returns the status and the JSON of the answer.
async fn send(
    api: &Api,
    method: &str,
    path: &str,
    token: &str,
    body: &[u8],
) -> (StatusCode, Value) {
    let mut request = Request::builder().method(method).uri(path);
    if !token.is_empty() {
        request = request.header("authorization", format!("Bearer {token}"));
    }
    let request = request.body(Body::from(body.to_vec())).expect("a request");
    let answer = super::router(api.clone()).oneshot(request).await.expect("an answer");
    let status = answer.status();
    let body = axum::body::to_bytes(answer.into_body(), 16 << 20).await.expect("a body");
    (status, serde_json::from_slice(&body).unwrap_or(Value::Null))
}

async fn get(api: &Api, path: &str, token: &str) -> (StatusCode, Value) {
    send(api, "GET", path, token, b"").await
}

async fn post(api: &Api, path: &str, token: &str, body: &Value) -> (StatusCode, Value) {
    send(api, "POST", path, token, body.to_string().as_bytes()).await
}
