//! Why a call did nothing: one form for gRPC, HTTP and the command line.
//!
//! | code | HTTP | when |
//! |---|---|---|
//! | `INVALID_ARGUMENT` | 400 | the request is not valid; `fields` says what |
//! | `UNAUTHENTICATED` | 401 | there is no token, or it is nobody's |
//! | `PERMISSION_DENIED` | 403 | the role of the token is not enough |
//! | `NOT_FOUND` | 404 | it does not exist, or is outside of the scope |
//! | `ALREADY_EXISTS` | 409 | it exists |
//! | `ABORTED` | 409 | others changed the same meanwhile, again and again |
//! | `FAILED_PRECONDITION` | 412 | it cannot be done as things are |
//! | `RESOURCE_EXHAUSTED` | 429 | too many at once |
//! | `UNAVAILABLE` | 503 | the ledger cannot be reached |
//! | `DEADLINE_EXCEEDED` | 504 | it took too long; a change may have happened |
//! | `INTERNAL` | 500 | a mistake of the program |

use std::error::Error;

use ::http::StatusCode;
use guest_agent_proto::fleet_api as pb;
use prost::Message;
use thiserror::Error as ThisError;
use tonic::{Code, Status};

use super::calls::{Call, Kind as CallKind};
use crate::cli::failure::{Exit, Failure, Field, Kind};

/// Name of the message in the details of a status.
const TYPE_URL: &str = "type.googleapis.com/guest_agent.fleet.api.v1.Error";

/// Why a call did nothing.
#[derive(Clone, Debug, PartialEq, Eq, ThisError)]
#[error("{reason}")]
pub struct ApiError {
    /// What kind of error it is.
    pub code: Code,
    /// One line.
    pub reason: String,
    /// What caused it, the nearest first.
    pub causes: Vec<String>,
    /// What to try; may be empty.
    pub fix: String,
    /// The fields that are wrong, where the request is.
    pub fields: Vec<Field>,
    /// Whether the change may have happened.
    pub outcome_unknown: bool,
}

// === impl ApiError ===

impl ApiError {
    pub(crate) fn new(code: Code, reason: impl Into<String>, fix: impl Into<String>) -> Self {
        Self {
            code,
            reason: reason.into(),
            causes: Vec::new(),
            fix: fix.into(),
            fields: Vec::new(),
            outcome_unknown: false,
        }
    }

    pub(super) fn no_token() -> Self {
        let fix = "send the header `authorization: Bearer TOKEN`";
        Self::new(Code::Unauthenticated, "the request has no bearer token", fix)
    }

    pub(super) fn unauthenticated(reason: &str) -> Self {
        let fix = "ask an admin of the fleet for a token";
        Self::new(Code::Unauthenticated, reason, fix)
    }

    pub(super) fn denied(call: &Call) -> Self {
        let place = match call.reach {
            super::calls::Reach::Fleet => " for the whole fleet",
            _ => "",
        };
        let reason = format!("{} takes the role {}{place}", call.name, call.role);
        let fix = "ask an admin of the fleet for a token with that role";
        Self::new(Code::PermissionDenied, reason, fix)
    }

    pub(super) fn unavailable(reason: &str) -> Self {
        Self::new(Code::Unavailable, reason, "try again in a moment")
    }

    pub(super) fn exhausted(reason: &str, fix: &str) -> Self {
        Self::new(Code::ResourceExhausted, reason, fix)
    }

    pub(super) fn too_late(call: &Call) -> Self {
        let is_change = call.kind != CallKind::Look;
        let fix = match call.kind {
            CallKind::Look => "select fewer agents, or try again in a moment",
            _ => "it may have happened: ask again with the same idempotency key",
        };
        let reason = format!("{} took too long", call.name);
        Self { outcome_unknown: is_change, ..Self::new(Code::DeadlineExceeded, reason, fix) }
    }

    /// A mistake of the program. What it is stays in the log.
    pub(super) fn internal(error: &(dyn Error + 'static)) -> Self {
        tracing::error!(error = %crate::chain::Chain(error), "a call failed inside");
        Self::new(
            Code::Internal,
            "the server could not make its answer",
            "see the log of the server",
        )
    }

    /// A field of the request is wrong.
    pub(super) fn field(name: &str, problem: impl Into<String>, fix: &str) -> Self {
        let (name, problem, fix) = (name.to_owned(), problem.into(), fix.to_owned());
        let error = Self::new(Code::InvalidArgument, format!("{name}: {problem}"), fix.clone());
        Self { fields: vec![Field { name, problem, fix }], ..error }
    }

    /// The request cannot be read.
    pub(super) fn unread(problem: impl Into<String>) -> Self {
        let fix = "see docs/fleet-api.md, or /v1/openapi.json";
        Self::new(Code::InvalidArgument, problem, fix)
    }

    /// Name of the code, such as `NOT_FOUND`.
    #[must_use]
    pub fn name(&self) -> &'static str {
        NAMES.iter().find(|(code, ..)| *code == self.code).map_or("INTERNAL", |(_, name, _)| name)
    }

    /// Status of an HTTP answer.
    #[must_use]
    pub fn http(&self) -> StatusCode {
        let found = NAMES.iter().find(|(code, ..)| *code == self.code);
        found.map_or(StatusCode::INTERNAL_SERVER_ERROR, |(_, _, status)| *status)
    }

    /// As it is sent.
    #[must_use]
    pub fn message(&self) -> pb::Error {
        pb::Error {
            code: self.name().to_owned(),
            reason: self.reason.clone(),
            causes: self.causes.clone(),
            fix: self.fix.clone(),
            fields: self
                .fields
                .iter()
                .map(|it| pb::FieldProblem {
                    field: it.name.clone(),
                    problem: it.problem.clone(),
                    fix: it.fix.clone(),
                })
                .collect(),
            outcome_unknown: self.outcome_unknown,
        }
    }

    /// As it was sent.
    #[must_use]
    pub fn of_message(message: pb::Error) -> Self {
        let code = NAMES.iter().find(|(_, name, _)| *name == message.code);
        Self {
            code: code.map_or(Code::Unknown, |(code, ..)| *code),
            reason: message.reason,
            causes: message.causes,
            fix: message.fix,
            fields: message
                .fields
                .into_iter()
                .map(|it| Field { name: it.field, problem: it.problem, fix: it.fix })
                .collect(),
            outcome_unknown: message.outcome_unknown,
        }
    }
}

const NAMES: &[(Code, &str, StatusCode)] = &[
    (Code::InvalidArgument, "INVALID_ARGUMENT", StatusCode::BAD_REQUEST),
    (Code::Unauthenticated, "UNAUTHENTICATED", StatusCode::UNAUTHORIZED),
    (Code::PermissionDenied, "PERMISSION_DENIED", StatusCode::FORBIDDEN),
    (Code::NotFound, "NOT_FOUND", StatusCode::NOT_FOUND),
    (Code::AlreadyExists, "ALREADY_EXISTS", StatusCode::CONFLICT),
    (Code::Aborted, "ABORTED", StatusCode::CONFLICT),
    (Code::FailedPrecondition, "FAILED_PRECONDITION", StatusCode::PRECONDITION_FAILED),
    (Code::ResourceExhausted, "RESOURCE_EXHAUSTED", StatusCode::TOO_MANY_REQUESTS),
    (Code::Unavailable, "UNAVAILABLE", StatusCode::SERVICE_UNAVAILABLE),
    (Code::DeadlineExceeded, "DEADLINE_EXCEEDED", StatusCode::GATEWAY_TIMEOUT),
    (Code::Internal, "INTERNAL", StatusCode::INTERNAL_SERVER_ERROR),
];

/// The error in the details of a status, as [`ApiError`] puts it there; `None` where the status is not of an API.
#[must_use]
pub fn of_status(status: &Status) -> Option<ApiError> {
    let details = guest_agent_proto::rpc::Status::decode(status.details()).ok()?;
    let ours = details.details.into_iter().find(|it| it.type_url == TYPE_URL)?;
    pb::Error::decode(ours.value.as_slice()).ok().map(ApiError::of_message)
}

impl From<Failure> for ApiError {
    fn from(failure: Failure) -> Self {
        let code = match (failure.kind, failure.exit) {
            (Kind::Absent, _) => Code::NotFound,
            (Kind::Exists, _) => Code::AlreadyExists,
            (Kind::Denied, _) => Code::PermissionDenied,
            (Kind::Meanwhile, _) => Code::Aborted,
            (Kind::Usual, Exit::Usage) => Code::InvalidArgument,
            (Kind::Usual, Exit::Unreachable) => Code::Unavailable,
            (Kind::Usual, Exit::TimedOut) => Code::DeadlineExceeded,
            (Kind::Usual, Exit::Done | Exit::Failed) => Code::FailedPrecondition,
        };
        let mut error = Self {
            causes: failure.causes,
            fields: failure.fields,
            outcome_unknown: failure.exit == Exit::TimedOut,
            ..Self::new(code, failure.reason, failure.hint.unwrap_or_default())
        };
        if code == Code::Unavailable {
            // Addresses of the ledger's servers, and what they say.
            tracing::warn!(reason = %error.reason, causes = ?error.causes, "the ledger did not answer");
            error.causes.clear();
        }
        error
    }
}

impl From<ApiError> for Failure {
    fn from(error: ApiError) -> Self {
        let (exit, kind) = match error.code {
            Code::InvalidArgument => (Exit::Usage, Kind::Usual),
            Code::NotFound => (Exit::Failed, Kind::Absent),
            Code::AlreadyExists => (Exit::Failed, Kind::Exists),
            Code::PermissionDenied | Code::Unauthenticated => (Exit::Failed, Kind::Denied),
            Code::Unavailable => (Exit::Unreachable, Kind::Usual),
            Code::DeadlineExceeded => (Exit::TimedOut, Kind::Usual),
            _ => (Exit::Failed, Kind::Usual),
        };
        let mut failure = Self::new(exit, error.reason).kind(kind);
        failure.causes = error.causes;
        failure.fields = error.fields;
        failure.hint = Some(error.fix).filter(|fix| !fix.is_empty());
        failure
    }
}

impl From<ApiError> for Status {
    fn from(error: ApiError) -> Self {
        let details = guest_agent_proto::rpc::Status {
            code: error.code.into(),
            message: error.reason.clone(),
            details: vec![prost_types::Any {
                type_url: TYPE_URL.to_owned(),
                value: error.message().encode_to_vec(),
            }],
        };
        Self::with_details(error.code, error.reason, details.encode_to_vec().into())
    }
}
