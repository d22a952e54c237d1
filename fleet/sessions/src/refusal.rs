//! The form in which a gateway refuses a stream or a call.

use guest_agent_proto::agent_communication::ErrorReason;
use tonic::{Code, Status};

/// A gRPC status whose text begins with the reason's name, which agents look for.
#[must_use]
pub fn refusal(code: Code, reason: ErrorReason, text: &str) -> Status {
    Status::new(code, format!("{}: {text}", reason.as_str_name()))
}
