//! Why a server did not answer, or refused: what, why and what to try, as every failure of a verb.

use std::error::Error;
use std::time::Duration;

use rustls::CertificateError;
use tonic::{Code, Status};

use super::server::Server;
use crate::api::calls::{Call, Kind as CallKind};
use crate::api::error::{ApiError, of_status};
use crate::api::wire::WireError;
use crate::cli::failure::{Exit, Failure};
use crate::cli::text::one_line;
use crate::outbound::FetchError;

/// Why there is no answer.
#[derive(Debug)]
pub(super) enum Problem {
    /// The connection failed.
    Connect(FetchError),
    /// It took too long to connect.
    ConnectTooSlow(Duration),
    /// The connection broke before the request was sent.
    Broken(Box<dyn Error + Send + Sync>),
    /// The answer took too long.
    TooSlow(Duration),
    /// The server answered that it did not do it, or what it answered is no answer.
    Refused(Box<Status>),
    /// The answer cannot be read.
    Unread(WireError),
}

/// How far a request came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Sent {
    /// There was no connection.
    Never,
    /// The server may have carried it out.
    PerhapsTaken,
    /// It was carried out.
    Answered,
}

/// The API has no call for a verb.
pub(super) fn refused(verb: &str, why: &str) -> Failure {
    Failure::usage(format_args!("`{verb}` is no verb for --server: {why}"))
        .hint("run it on the machine of the ledger, with --ledger")
}

// === impl Problem ===

impl Problem {
    /// Whether the same request may succeed in a moment.
    pub(super) fn passes(&self) -> bool {
        match self {
            Self::Connect(FetchError::Connect(error)) => tls(error).is_none(),
            Self::Broken(_) => true,
            Self::Refused(status) => match of_status(status) {
                Some(error) => error.code == Code::Unavailable,
                None => is_of_connection(status),
            },
            // What took so long once is not tried again behind somebody's back.
            Self::Connect(_) | Self::ConnectTooSlow(_) | Self::TooSlow(_) | Self::Unread(_) => {
                false
            }
        }
    }

    /// As a verb fails.
    pub(super) fn failure(self, server: &Server, call: &Call, sent: Sent) -> Failure {
        let shown = server.shown();
        // An API that refuses says itself whether it may have happened.
        let is_said = matches!(&self, Self::Refused(status) if of_status(status).is_some());
        let failure = match self {
            Self::Connect(error) => unconnected(&error, &shown),
            Self::ConnectTooSlow(limit) => Failure::new(
                Exit::Unreachable,
                format_args!(
                    "the server {shown} cannot be reached within {} seconds",
                    limit.as_secs()
                ),
            )
            .hint("check the address of --server, and the network between"),
            Self::Broken(error) => broken(error.as_ref(), &shown, call),
            Self::TooSlow(limit) => Failure::new(
                Exit::TimedOut,
                format_args!(
                    "the server {shown} did not answer {} within {} seconds",
                    call.name,
                    limit.as_secs()
                ),
            )
            .hint("try again in a moment"),
            Self::Refused(status) => match of_status(&status) {
                Some(error) => denied(error, server),
                None if is_of_connection(&status) => broken(&*status, &shown, call),
                None => no_answer(&status, &shown, call),
            },
            Self::Unread(error) => {
                let mut failure = Failure::failed(format_args!(
                    "the answer of the server {shown} to {} cannot be read",
                    call.name
                ))
                .hint("use the program of the server's version");
                failure.causes = chain(&error);
                failure
            }
        };
        let failure = told(failure);
        let is_unknown = call.kind != CallKind::Look
            && sent == Sent::PerhapsTaken
            && !is_said
            && matches!(failure.exit, Exit::Unreachable | Exit::TimedOut);
        if !is_unknown {
            return failure;
        }
        let exit = Exit::TimedOut;
        Failure { exit, ..failure }
            .hint("it may have happened: see `guest-fleet audit` before you try again")
    }
}

/// The connection failed.
fn unconnected(error: &FetchError, shown: &str) -> Failure {
    let mut failure =
        Failure::new(Exit::Unreachable, format_args!("the server {shown} cannot be reached"));
    failure.causes = chain(error);
    let of_tls = match error {
        FetchError::Connect(error) => tls(error),
        _ => None,
    };
    let hint = match (error, of_tls) {
        (_, Some(rustls::Error::InvalidCertificate(of))) => match of {
            CertificateError::UnknownIssuer | CertificateError::BadSignature => {
                "name the certificates of its authority with --server-ca FILE"
            }
            CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. } => {
                "give --server a name that its certificate has"
            }
            CertificateError::Expired
            | CertificateError::ExpiredContext { .. }
            | CertificateError::NotValidYet
            | CertificateError::NotValidYetContext { .. } => {
                "renew its certificate, and check the clocks of both machines"
            }
            _ => "check its certificate and --server-ca",
        },
        (_, Some(_)) => {
            "check that --server names the TLS listener of the API (`serve --api-listen`)"
        }
        (FetchError::Authorities(_), None) => "name a file of certificates with --server-ca FILE",
        (FetchError::Protocol, None) => "check that --server names the listener of the API",
        (FetchError::Plaintext(_), None) => "write https:// in --server",
        _ => "check the address of --server, and that `guest-fleet serve --api-listen` runs there",
    };
    failure.hint(hint)
}

/// The connection was there, and is no more.
fn broken(error: &(dyn Error + 'static), shown: &str, call: &Call) -> Failure {
    let mut failure = Failure::new(
        Exit::Unreachable,
        format_args!("the connection to the server {shown} broke before it answered {}", call.name),
    )
    .hint(
        "try again in a moment; if it stays so, check that --server names the listener of the API",
    );
    failure.causes = chain(error);
    failure
}

/// The API did not do it.
fn denied(error: ApiError, server: &Server) -> Failure {
    let (code, is_unknown) = (error.code, error.outcome_unknown);
    let mut failure = Failure::from(error);
    // A single field is the reason already.
    let fields = failure.fields.iter().filter(|field| !failure.reason.contains(&field.problem));
    let lines = fields.map(|field| match field.name.as_str() {
        // A problem of declarations names its file itself.
        "files" => field.problem.clone(),
        name => format!("{name}: {}", field.problem),
    });
    let lines: Vec<String> = lines.collect();
    failure.causes.extend(lines);
    if failure.fields.iter().any(|field| field.name == "files") {
        // As over a ledger: each problem says what puts it right.
        return Failure { exit: Exit::Failed, hint: None, ..failure };
    }
    if code == Code::Unauthenticated {
        failure.causes.push(format!("it is in `{}`", server.token_file.display()));
        return failure.hint(
            "have an admin make another one with `guest-fleet access token create NAME --role ROLE`",
        );
    }
    if is_unknown {
        return failure.hint("it may have happened: see `guest-fleet audit` before you try again");
    }
    failure
}

/// What came is no answer of the API.
fn no_answer(status: &Status, shown: &str, call: &Call) -> Failure {
    let mut failure = match status.code() {
        Code::Unimplemented => Failure::failed(format_args!(
            "the server {shown} has no call {}: it is an older one, or not the API of a fleet",
            call.name
        ))
        .hint("check that --server names the listener of the API; use the program of its version"),
        _ => Failure::failed(format_args!(
            "what the server {shown} answered to {} is no answer of the API",
            call.name
        ))
        .hint("check that --server names the listener of the API"),
    };
    failure.causes.push(format!("{:?}: {}", status.code(), status.message()));
    failure
}

/// Whether a status was made here of an error of the connection.
fn is_of_connection(status: &Status) -> bool {
    status.source().is_some() || status.code() == Code::Unavailable
}

/// The error of TLS in an error of a connection.
fn tls(error: &std::io::Error) -> Option<&rustls::Error> {
    error.get_ref()?.downcast_ref()
}

/// An error and its causes, each once.
fn chain(error: &(dyn Error + 'static)) -> Vec<String> {
    let mut causes: Vec<String> = Vec::new();
    let mut next = Some(error);
    while let Some(error) = next {
        let text = error.to_string();
        if causes.last().is_none_or(|last| !last.contains(&text)) {
            causes.push(text);
        }
        next = error.source();
    }
    causes
}

/// What a server says moves nothing on a terminal.
fn told(mut failure: Failure) -> Failure {
    failure.reason = one_line(&failure.reason);
    failure.causes = failure.causes.iter().map(|cause| one_line(cause)).collect();
    failure.hint = failure.hint.as_deref().map(one_line);
    failure
}
