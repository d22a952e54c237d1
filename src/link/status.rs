//! Describes how a stream or an attempt ended, and how long to wait after it.

use std::error::Error;
use std::time::Duration;

use guest_agent_actors::error::Chain;
use guest_agent_actors::ports::DeliveryError;
use guest_agent_proto::rpc;
use tonic::metadata::MetadataMap;
use tonic::{Code, Status};

use super::announced;
use super::backoff::Severity;
use crate::net::dial::DialError;
use crate::net::tls::TlsError;
use crate::net::token::TokenError;

/// The end of a stream, or of the attempt to open one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct StreamEnd {
    pub(super) code: Code,
    message: String,
    /// The time after which the server wants the agent back, if it said so.
    pub(super) retry_after: Option<Duration>,
}

// === impl StreamEnd ===

impl StreamEnd {
    /// An end that this side found.
    pub(super) fn new(code: Code, message: &str) -> Self {
        Self { code, message: shown(message), retry_after: None }
    }

    /// The server closed the stream in good order, with these trailers.
    pub(super) fn closed(trailers: Option<&MetadataMap>) -> Self {
        let retry_after = trailers.and_then(announced::retry_after);
        Self { retry_after, ..Self::new(Code::Ok, "the control plane closed the stream") }
    }

    /// Keepalive pings came too often for the server; `interval` is the next one.
    pub(super) fn fewer_pings(interval: Duration) -> Self {
        let seconds = interval.as_secs_f32();
        let text = format!("too_many_pings; they come after {seconds} s without data from now on");
        Self::new(Code::Unavailable, &text)
    }

    /// Which wait follows this end.
    pub(super) fn severity(&self) -> Severity {
        match self.code {
            Code::Ok
            | Code::Cancelled
            | Code::DeadlineExceeded
            | Code::ResourceExhausted
            | Code::Unavailable => Severity::Ordinary,
            Code::Unknown
            | Code::InvalidArgument
            | Code::NotFound
            | Code::AlreadyExists
            | Code::PermissionDenied
            | Code::FailedPrecondition
            | Code::Aborted
            | Code::OutOfRange
            | Code::Unimplemented
            | Code::Internal
            | Code::DataLoss
            | Code::Unauthenticated => Severity::Severe,
        }
    }

    /// The end in words for people, without secrets.
    pub(super) fn reason(&self) -> String {
        let reason = match (self.code, self.message.as_str()) {
            (Code::Ok, message) => message.to_owned(),
            (code, "") => name(code),
            (code, message) => format!("{}: {message}", name(code)),
        };
        match self.retry_after {
            Some(asked) => format!("{reason}; it asked to wait for {} s", asked.as_secs()),
            None => reason,
        }
    }

    /// The error that a delivery returns when its call ended with this status.
    pub(super) fn into_delivery_error(self) -> DeliveryError {
        match self.code {
            Code::ResourceExhausted => DeliveryError::Exhausted(self.message),
            Code::Unavailable | Code::Cancelled => DeliveryError::NotConnected,
            Code::DeadlineExceeded => DeliveryError::TimedOut,
            _ => DeliveryError::Refused(self.reason()),
        }
    }
}

impl From<Status> for StreamEnd {
    fn from(status: Status) -> Self {
        Self::from(&status)
    }
}

impl From<&Status> for StreamEnd {
    fn from(status: &Status) -> Self {
        // A broken connection is reported as UNAVAILABLE, UNKNOWN or INTERNAL, depending on what
        // broke first; only an answer of the server itself has no source.
        let broken = matches!(status.code(), Code::Unknown | Code::Internal)
            && Error::source(status).is_some();
        let code = if broken { Code::Unavailable } else { status.code() };
        let retry_after = announced::retry_after(status.metadata());
        Self { retry_after, ..Self::new(code, status.message()) }
    }
}

impl From<TokenError> for StreamEnd {
    fn from(error: TokenError) -> Self {
        // Tokens come from services that restart: that is as ordinary as a restart of the server.
        Self::new(Code::Unavailable, &Chain(&error).to_string())
    }
}

impl From<DialError> for StreamEnd {
    fn from(error: DialError) -> Self {
        let code = match &error {
            DialError::Failed(_) => Code::Unavailable,
            // The configuration cannot work; another attempt soon does not help.
            DialError::Unusable(_)
            | DialError::Tls(TlsError::Unusable(_) | TlsError::File { .. }) => {
                Code::FailedPrecondition
            }
            DialError::Tls(TlsError::Aborted) => Code::Internal,
        };
        Self::new(code, &Chain(&error).to_string())
    }
}

/// The result that an acknowledgement states.
pub(super) fn answer(status: Option<rpc::Status>) -> Result<(), StreamEnd> {
    match status {
        None => Ok(()),
        Some(status) if status.code == 0 => Ok(()),
        Some(status) => Err(StreamEnd::new(Code::from_i32(status.code), &status.message)),
    }
}

/// A text from outside, on one line and cut.
pub(super) fn shown(text: &str) -> String {
    text.chars().take(300).map(|c| if c.is_control() { ' ' } else { c }).collect()
}

/// The name of a code as the protocol writes it.
fn name(code: Code) -> String {
    let mut name = String::new();
    for (index, letter) in format!("{code:?}").chars().enumerate() {
        if index > 0 && letter.is_uppercase() {
            name.push('_');
        }
        name.push(letter.to_ascii_uppercase());
    }
    name
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_broken_connection_is_ordinary_and_a_servers_own_error_is_not() {
        let said = StreamEnd::from(Status::unknown("transport error"));
        assert_eq!(said.severity(), Severity::Severe);
        let broken = Status::from_error("transport error".into());
        assert_eq!(broken.code(), Code::Unknown);
        assert_eq!(StreamEnd::from(broken).severity(), Severity::Ordinary);
    }

    #[test]
    fn reasons_are_short_and_on_one_line() {
        let end = StreamEnd::new(Code::PermissionDenied, "no\nway");
        assert_eq!(end.reason(), "PERMISSION_DENIED: no way");
        assert_eq!(StreamEnd::new(Code::Internal, "").reason(), "INTERNAL");
        assert!(StreamEnd::new(Code::Internal, &"é".repeat(9_999)).reason().len() < 700);
    }

    #[test]
    fn an_acknowledgement_is_good_without_a_status_or_with_code_zero() {
        let status = |code| Some(rpc::Status { code, message: String::new(), details: vec![] });
        assert_eq!(answer(None), Ok(()));
        assert_eq!(answer(status(0)), Ok(()));
        assert_eq!(answer(status(8)).map_err(|e| e.code), Err(Code::ResourceExhausted));
        assert_eq!(answer(status(-1)).map_err(|e| e.code), Err(Code::Unknown));
    }
}
