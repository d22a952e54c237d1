//! The adapter of HTTP: a route for each row of the table of calls, with protobuf JSON.
//!
//! ```text
//!   GET   path and query ──┐                                             ┌─ 2xx, protobuf JSON
//!   POST  path and body ───┴─► JSON of the request ─► message ─► Api ────┤
//!                                                                        └─ an Error, with its status
//!   GET /v1/watch ─► server-sent events       GET /v1/openapi.json ─► what all of this is
//! ```

use std::collections::BTreeMap;
use std::time::Duration;

use ::http::header::{AUTHORIZATION, CACHE_CONTROL, CONTENT_TYPE, WWW_AUTHENTICATE};
use ::http::request::Parts;
use ::http::{HeaderMap, HeaderValue, Method, StatusCode};
use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::{Path, Request, State};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::routing::{MethodFilter, MethodRouter, on};
use guest_agent_proto::fleet_api as pb;
use guest_agent_proto::fleet_api::fleet_server::FleetServer;
use prost::Message;
use prost_reflect::{DynamicMessage, Kind, MessageDescriptor};
use serde_json::{Map, Value};
use tokio_stream::StreamExt;
use tokio_stream::wrappers::ReceiverStream;
use tonic::Code;

use super::asked::Api;
use super::calls::{self, CALLS, Call};
use super::error::ApiError;
use super::grpc::{From as CameFrom, Service, token};
use super::{openapi, wire};

/// Longest body, in bytes: declarations have room in it.
const BODY_BYTES: usize = 8 << 20;
/// Longest query, in bytes.
const QUERY_BYTES: usize = 16 << 10;
/// How long a request may take until its answer begins; a call has a shorter deadline of its own.
const PATIENCE: Duration = Duration::from_secs(60);
/// Longest problem of JSON that is repeated, in characters.
const PROBLEM: usize = 256;
const JSON: HeaderValue = HeaderValue::from_static("application/json");

/// All routes: HTTP and gRPC. Another part may merge its own into them.
pub fn router(api: Api) -> Router {
    let mut routes: BTreeMap<String, MethodRouter<Api>> = BTreeMap::new();
    for call in CALLS {
        let at = routes.entry(positions(call.path)).or_default();
        *at = route(call, std::mem::take(at));
    }
    let mut router = Router::new();
    for (path, methods) in routes {
        router = router.route(&path, methods.fallback(other_method));
    }
    let grpc = FleetServer::new(Service::new(api.clone())).max_decoding_message_size(BODY_BYTES);
    router
        .route("/v1/watch", on(MethodFilter::GET, watch))
        .route("/v1/openapi.json", on(MethodFilter::GET, description))
        .route("/v1/{*rest}", axum::routing::any(nowhere))
        .with_state(api)
        .route_service("/guest_agent.fleet.api.v1.Fleet/{*rest}", grpc)
        .layer(middleware::from_fn(in_time))
}

fn route(call: &'static Call, methods: MethodRouter<Api>) -> MethodRouter<Api> {
    let filter = match call.method {
        calls::Method::Get => MethodFilter::GET,
        calls::Method::Post => MethodFilter::POST,
    };
    methods.on(
        filter,
        move |State(api): State<Api>, Path(path): Path<Vec<(String, String)>>, request: Request| {
            let values = path.into_iter().map(|(_, value)| value);
            let path = fields(call.path).map(str::to_owned).zip(values).collect();
            answer(call, api, path, request)
        },
    )
}

/// The fields in a path, in their order.
pub(super) fn fields(path: &str) -> impl Iterator<Item = &str> {
    path.split('/').filter_map(|part| part.strip_prefix('{')?.strip_suffix('}'))
}

/// A path with the positions of its fields in the place of their names, which may differ from call to call.
fn positions(path: &str) -> String {
    let parts = path.split('/').enumerate();
    let parts = parts.map(|(at, part)| match part.starts_with('{') {
        true => format!("{{at{at}}}"),
        false => part.to_owned(),
    });
    parts.collect::<Vec<_>>().join("/")
}

async fn answer(
    call: &'static Call,
    api: Api,
    path: Vec<(String, String)>,
    request: Request,
) -> Response {
    match answered(call, &api, path, request).await {
        Ok(body) => ([(CONTENT_TYPE, JSON)], body).into_response(),
        Err(error) => refused(&error),
    }
}

async fn answered(
    call: &'static Call,
    api: &Api,
    path: Vec<(String, String)>,
    request: Request,
) -> Result<Vec<u8>, ApiError> {
    let (head, content) = request.into_parts();
    let (headers, uri) = (&head.headers, &head.uri);
    let from = head.extensions.get::<CameFrom>().copied().unwrap_or_default();
    let principal = api.authenticate(bearer(headers), from.0).await?;
    let key = headers.get("idempotency-key").map(|key| {
        let key = key.to_str().map(str::to_owned);
        key.map_err(|_| ApiError::field("idempotency_key", "it is no text", "send a UUID"))
    });
    let key = key.transpose()?;
    let descriptor = wire::descriptor(call.request).map_err(|error| ApiError::internal(&error))?;
    let mut members = match call.method {
        calls::Method::Get => query(uri.query().unwrap_or_default(), &descriptor)?,
        calls::Method::Post => body(content).await?,
    };
    for (name, value) in path {
        insert(&mut members, &descriptor, &name, value)?;
    }
    if let Some(key) = key.filter(|_| descriptor.get_field_by_name("idempotency_key").is_some()) {
        insert(&mut members, &descriptor, "idempotency_key", key)?;
    }
    let message = message(descriptor, members)?;
    let answer = api.call(&principal, call.rpc, message.encode_to_vec().into()).await?;
    wire::json(&answer).map_err(|error| ApiError::internal(&error))
}

/// The body as the members of an object.
async fn body(content: Body) -> Result<Map<String, Value>, ApiError> {
    let body = axum::body::to_bytes(content, BODY_BYTES).await;
    let body = body.map_err(|_| {
        ApiError::unread(format!("the body has more than {BODY_BYTES} bytes, or broke off"))
    })?;
    if body.iter().all(u8::is_ascii_whitespace) {
        return Ok(Map::new());
    }
    match serde_json::from_slice(&body) {
        Ok(Value::Object(members)) => Ok(members),
        Ok(_) => Err(ApiError::unread("the body is JSON, and not an object")),
        Err(error) => Err(ApiError::unread(format!("the body is no JSON: {}", problem(&error)))),
    }
}

/// The query as the members of an object.
fn query(text: &str, of: &MessageDescriptor) -> Result<Map<String, Value>, ApiError> {
    let mut members = Map::new();
    if text.len() > QUERY_BYTES {
        return Err(ApiError::unread(format!("the query has more than {QUERY_BYTES} bytes")));
    }
    let pairs: Vec<(String, String)> = axum::extract::Query::try_from_uri(
        &format!("/?{text}").parse().map_err(|_| ApiError::unread("the query is no query"))?,
    )
    .map_err(|_| ApiError::unread("the query is no query"))?
    .0;
    for (name, value) in pairs {
        let field = of.get_field_by_json_name(&name).or_else(|| of.get_field_by_name(&name));
        let Some(field) = field else {
            return Err(ApiError::field(&name, "there is no such field", "see /v1/openapi.json"));
        };
        let value = match (field.kind(), value.as_str()) {
            (Kind::Bool, "true" | "") => Value::Bool(true),
            (Kind::Bool, "false") => Value::Bool(false),
            _ => Value::String(value),
        };
        if !field.is_list() {
            members.insert(field.json_name().to_owned(), value);
            continue;
        }
        let all = members.entry(field.json_name()).or_insert_with(|| Value::Array(Vec::new()));
        if let Value::Array(all) = all {
            all.push(value);
        }
    }
    Ok(members)
}

/// What the path says wins over nothing, and has to be what the body says.
fn insert(
    members: &mut Map<String, Value>,
    of: &MessageDescriptor,
    name: &str,
    value: String,
) -> Result<(), ApiError> {
    let json = of.get_field_by_name(name).map(|field| field.json_name().to_owned());
    let json = json.unwrap_or_else(|| name.to_owned());
    let said = [members.remove(name), members.remove(&json)];
    if said.iter().flatten().any(|said| *said != Value::String(value.clone())) {
        return Err(ApiError::field(name, "the path and the body differ", "send it once"));
    }
    members.insert(json, Value::String(value));
    Ok(())
}

fn message(of: MessageDescriptor, members: Map<String, Value>) -> Result<DynamicMessage, ApiError> {
    DynamicMessage::deserialize(of, Value::Object(members))
        .map_err(|error| ApiError::unread(format!("the request is not valid: {}", problem(&error))))
}

/// What is wrong with JSON, on one line of bounded length.
fn problem(error: &serde_json::Error) -> String {
    let text: String = error.to_string().chars().take(PROBLEM).collect();
    crate::cli::text::one_line(&text)
}

fn bearer(headers: &HeaderMap) -> Option<&str> {
    token(headers.get(AUTHORIZATION)?.to_str().ok()?)
}

/// An error as an answer.
fn refused(error: &ApiError) -> Response {
    let message = wire::descriptor("Error").and_then(|descriptor| {
        let mut message = DynamicMessage::new(descriptor);
        // The same .proto file made both.
        drop(message.transcode_from(&error.message()));
        wire::json(&message)
    });
    let headers = [(CONTENT_TYPE, JSON), (CACHE_CONTROL, HeaderValue::from_static("no-store"))];
    let mut response = (error.http(), headers, message.unwrap_or_default()).into_response();
    if error.code == Code::Unauthenticated {
        response.headers_mut().insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
    }
    response
}

async fn watch(State(api): State<Api>, request: Request) -> Response {
    let (head, _) = request.into_parts();
    match watched(&api, &head).await {
        Ok(body) => {
            let kind = HeaderValue::from_static("text/event-stream");
            let store = HeaderValue::from_static("no-store");
            ([(CONTENT_TYPE, kind), (CACHE_CONTROL, store)], body).into_response()
        }
        Err(error) => refused(&error),
    }
}

async fn watched(api: &Api, head: &Parts) -> Result<Body, ApiError> {
    let headers = &head.headers;
    let from = head.extensions.get::<CameFrom>().copied().unwrap_or_default();
    let principal = api.authenticate(bearer(headers), from.0).await?;
    let descriptor = wire::descriptor("WatchRequest").map_err(|it| ApiError::internal(&it))?;
    let mut members = query(head.uri.query().unwrap_or_default(), &descriptor)?;
    // What a browser sends when it connects again.
    if let Some(last) = headers.get("last-event-id").and_then(|last| last.to_str().ok()) {
        members.insert("cursor".to_owned(), Value::String(last.to_owned()));
    }
    let request: pb::WatchRequest =
        message(descriptor, members)?.transcode_to().map_err(|error| ApiError::internal(&error))?;
    let bearer = bearer(headers).unwrap_or_default().to_owned();
    let events = ReceiverStream::new(api.watch(principal, bearer, request)?);
    let events = events.map(|event| Ok::<_, std::convert::Infallible>(sent(event)));
    Ok(Body::from_stream(events))
}

/// An event as a browser takes it.
fn sent(event: Result<pb::WatchEvent, ApiError>) -> Bytes {
    let (name, id, message, of) = match &event {
        Ok(event) if event.changed.is_empty() => return Bytes::from_static(b": alive\n\n"),
        Ok(event) => ("change", event.cursor.clone(), event.encode_to_vec(), "WatchEvent"),
        Err(error) => ("error", String::new(), error.message().encode_to_vec(), "Error"),
    };
    let json = wire::descriptor(of).ok().and_then(|descriptor| {
        let message = DynamicMessage::decode(descriptor, message.as_slice()).ok()?;
        String::from_utf8(wire::json(&message).ok()?).ok()
    });
    let id = if id.is_empty() { id } else { format!("id: {id}\n") };
    format!("event: {name}\n{id}data: {}\n\n", json.unwrap_or_default()).into()
}

async fn description() -> Response {
    ([(CONTENT_TYPE, JSON)], openapi::DOCUMENT).into_response()
}

async fn nowhere() -> Response {
    let reason = "there is no such path";
    refused(&ApiError::new(Code::NotFound, reason, "see docs/fleet-api.md, or /v1/openapi.json"))
}

async fn other_method(method: Method) -> Response {
    let error = ApiError::unread(format!("{method} is not answered at this path"));
    let mut response = refused(&error);
    *response.status_mut() = StatusCode::METHOD_NOT_ALLOWED;
    response
}

/// A request that takes too long until its answer begins is ended.
async fn in_time(request: Request, next: Next) -> Response {
    let answered = tokio::time::timeout(PATIENCE, next.run(request)).await;
    answered.unwrap_or_else(|_elapsed| {
        let fix = "send it faster; whether a change happened is in the audit record";
        refused(&ApiError::new(Code::DeadlineExceeded, "the request took too long", fix))
    })
}
