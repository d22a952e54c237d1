//! The paths of the server, and how a request is read.

use std::time::{Duration, SystemTime};

use axum::Router;
use axum::body::Body;
use axum::extract::State;
use axum::response::Response;
use axum::routing::{get, post};
use bytes::Bytes;
use guest_agent_proto::enrolment::{self, EnrollRequest, RenewRequest};
use guest_agent_serve_kit::front::PeerInfo;
use http::{HeaderMap, StatusCode, header};
use http_body_util::{BodyExt, LengthLimitError, Limited};
use serde::de::DeserializeOwned;

use super::answer::{granted, problem, refused};
use crate::enroll::admit::{Enrolment, Refusal};
use crate::enroll::certificate::AgentCertificate;
use crate::telemetry::figures::Asked;

/// Largest body of a request, in bytes.
const BODY_BYTES: usize = 64 << 10;

#[derive(Clone)]
struct Context {
    enrolment: Enrolment,
    peer: PeerInfo,
    body: Duration,
}

// === impl Context ===

impl Context {
    /// The answer to a request for a certificate, which is counted.
    fn answered(&self, asked: Asked, answer: Result<enrolment::Granted, Refusal>) -> Response {
        let figures = self.enrolment.figures();
        match answer {
            Ok(answer) => {
                figures.certificate(asked);
                granted(answer)
            }
            Err(refusal) => {
                figures.certificate_refused(asked, refusal.code().1);
                refused(&refusal)
            }
        }
    }
}

/// The routes for one connection.
pub(super) fn routes(enrolment: Enrolment, peer: PeerInfo, body: Duration) -> Router {
    Router::new()
        .route(enrolment::ENROLL, post(enroll))
        .route(enrolment::RENEW, post(renew))
        .route(enrolment::TRUST, get(trust))
        .fallback(|| async {
            let fix = "use POST /v1/enroll, POST /v1/renew or GET /v1/trust";
            problem(StatusCode::NOT_FOUND, "not_found", "there is nothing at this path", fix)
        })
        .method_not_allowed_fallback(|| async {
            let fix = "use POST /v1/enroll, POST /v1/renew or GET /v1/trust";
            let message = "the path does not take this method";
            problem(StatusCode::METHOD_NOT_ALLOWED, "bad_method", message, fix)
        })
        .with_state(Context { enrolment, peer, body })
}

async fn enroll(State(context): State<Context>, headers: HeaderMap, body: Body) -> Response {
    let request: EnrollRequest = match read(body, context.body).await {
        Ok(request) => request,
        Err(response) => return *response,
    };
    let bearer = headers
        .get(header::AUTHORIZATION)
        .and_then(|value| value.to_str().ok())
        .and_then(|value| value.strip_prefix("Bearer "));
    let answer = context.enrolment.enroll(&request, bearer, SystemTime::now()).await;
    context.answered(Asked::Enrolment, answer)
}

async fn renew(State(context): State<Context>, body: Body) -> Response {
    let request: RenewRequest = match read(body, context.body).await {
        Ok(request) => request,
        Err(response) => return *response,
    };
    let answer = renewed(&context, &request.csr).await;
    context.answered(Asked::Renewal, answer)
}

async fn renewed(context: &Context, csr: &str) -> Result<enrolment::Granted, Refusal> {
    let shown = context.peer.certificate.as_ref().ok_or(Refusal::NoCertificate)?;
    let shown = AgentCertificate::read(shown)?;
    context.enrolment.renew(&shown, csr, SystemTime::now()).await
}

async fn trust(State(context): State<Context>) -> Response {
    granted(context.enrolment.trust(SystemTime::now()))
}

async fn read<T: DeserializeOwned>(body: Body, deadline: Duration) -> Result<T, Box<Response>> {
    let bytes = collect(body, deadline).await?;
    serde_json::from_slice(&bytes).map_err(|error| {
        let message = format!("the body is no such JSON: {error}");
        let fix = "send an object with the text `csr`";
        Box::new(problem(StatusCode::BAD_REQUEST, "bad_request", &message, fix))
    })
}

async fn collect(body: Body, deadline: Duration) -> Result<Bytes, Box<Response>> {
    let collecting = Limited::new(body, BODY_BYTES).collect();
    let (status, code, message) = match tokio::time::timeout(deadline, collecting).await {
        Ok(Ok(collected)) => return Ok(collected.to_bytes()),
        Ok(Err(error)) if error.is::<LengthLimitError>() => (
            StatusCode::PAYLOAD_TOO_LARGE,
            "too_large",
            format!("more than {BODY_BYTES} bytes came"),
        ),
        Ok(Err(_)) => (StatusCode::BAD_REQUEST, "bad_request", "the body broke off".to_owned()),
        Err(_elapsed) => {
            let message = format!("the body did not come within {deadline:?}");
            (StatusCode::REQUEST_TIMEOUT, "too_slow", message)
        }
    };
    let mut response = problem(status, code, &message, "send one small JSON object at once");
    response.headers_mut().insert(header::CONNECTION, header::HeaderValue::from_static("close"));
    Err(Box::new(response))
}
