//! Who is which agent: how a gateway knows that the sender of a call is the agent that it names.
//!
//! ```text
//!   call ─► registration ─► dyn Admission ─┬─► Local     a process of this machine
//!                                          ├─► Bearer    a token that all agents share
//!                                          └─► Either    a certificate, or without one a token
//! ```
//!
//! A call is admitted before its stream gets headers; while the stream is open, it is asked again
//! whether it still is. The ways in which a fleet knows its agents are in `guest-fleet-server`.

mod bearer;
mod either;
mod local;
#[cfg(test)]
mod tests;

use std::time::SystemTime;

use async_trait::async_trait;
use guest_agent_proto::agent_communication::ErrorReason;
use guest_agent_serve_kit::certificate::Facts;
use guest_agent_serve_kit::front::PeerInfo;
use tokio::sync::watch;
use tonic::{Code, Status};

use crate::refusal::refusal;

pub use bearer::Bearer;
pub use either::Either;
pub use local::{Anyone, Local};

/// Who makes a call.
#[derive(Clone, Copy, Debug)]
pub struct Peer<'a> {
    /// The other end of the connection.
    pub info: &'a PeerInfo,
    /// The token of the metadata `authentication: Bearer <token>`.
    pub bearer: Option<&'a str>,
}

/// What an agent was admitted by.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Admitted {
    /// Id of the agent.
    pub agent: String,
    /// The certificate that it showed.
    pub certificate: Option<Facts>,
    /// When what it showed ends, and its stream with it.
    pub ends: Option<SystemTime>,
    /// Why it gets no orders.
    pub quarantine: Option<String>,
}

/// How a gateway knows agents.
#[async_trait]
pub trait Admission: Send + Sync {
    /// Whether the peer is the agent with this resource id. The error is the status of the call.
    async fn admit(&self, peer: &Peer<'_>, resource: &str) -> Result<Admitted, Status>;

    /// Whether an agent that was admitted still is. The error is the status that ends its stream.
    fn still(&self, admitted: &Admitted) -> Result<(), Status> {
        match admitted.ends {
            Some(ends) if ends <= SystemTime::now() => Err(unauthenticated(
                "what the agent showed when the stream began has ended: open another stream",
            )),
            _ => Ok(()),
        }
    }

    /// Changes its value when [`Admission::still`] may have another answer, besides by the clock.
    fn changes(&self) -> Option<watch::Receiver<u64>> {
        None
    }
}

/// The peer did not show who it is.
#[must_use]
pub fn unauthenticated(text: &str) -> Status {
    refusal(Code::Unauthenticated, ErrorReason::InvalidStreamHeaders, text)
}

/// The peer is somebody else.
#[must_use]
pub fn foreign(shown: &str, claimed: &str) -> Status {
    let (shown, claimed) = (shown.escape_debug(), claimed.escape_debug());
    Status::permission_denied(format!(
        "the agent is `{shown}` by what it showed and claims to be `{claimed}`"
    ))
}
