//! Faults that can be switched on, for tests and game days only. All are off by default, and
//! nothing in normal operation sets one.
//!
//! [`ControlPlane::set_faults`](crate::ControlPlane::set_faults) replaces them all. They are
//! read at the moment a fault could strike, so a change affects streams that are already open.
//! Counted faults are shared by all agents of the server.

use std::time::Duration;

use guest_agent_proto::rpc;
use tokio::time::Instant;
use tonic::Code;

/// The faults to inject. The default injects none.
#[derive(Clone, Debug, Default)]
pub struct Faults {
    /// Number of message bodies that are recorded but never acknowledged.
    pub drop_acknowledgements: u32,
    /// Delay of each acknowledgement; zero sends it at once.
    pub delay_acknowledgements: Duration,
    /// Number of message bodies that are not recorded and answered with RESOURCE_EXHAUSTED.
    pub exhaust_bodies: u32,
    /// Ends one stream after some frames.
    pub end_stream_after: Option<EndStream>,
    /// Refuses registrations for a while.
    pub refuse_registrations: Option<RefuseRegistrations>,
}

/// Ends a stream after some frames from agents.
#[derive(Clone, Debug)]
pub struct EndStream {
    /// Frames from registered agents that are still handled. The next one ends its stream and is
    /// not handled.
    pub frames: u32,
    /// gRPC status the stream ends with.
    pub code: Code,
}

/// Refuses registrations for a while.
#[derive(Clone, Debug)]
pub struct RefuseRegistrations {
    /// From this instant on registrations are accepted again.
    pub until: Instant,
    /// gRPC status they are refused with.
    pub code: Code,
    /// The form of the refusal.
    pub form: RefusalForm,
}

/// The form in which a registration is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RefusalForm {
    /// The stream ends with the status.
    StreamStatus,
    /// A message_response with the status comes first; then the stream ends normally.
    MessageResponse,
}

/// The fault that strikes one message body.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum BodyFault {
    None,
    /// The body is recorded and never acknowledged.
    DropAcknowledgement,
    /// The body is recorded and acknowledged later.
    DelayAcknowledgement(Duration),
    /// The body is not recorded and is answered with this status.
    Refuse(rpc::Status),
}

// === impl Faults ===

impl Faults {
    /// Takes the fault for the next message body.
    pub(crate) fn next_body(&mut self) -> BodyFault {
        if self.exhaust_bodies > 0 {
            self.exhaust_bodies -= 1;
            return BodyFault::Refuse(rpc::Status {
                code: i32::from(Code::ResourceExhausted),
                message: "AGENT_MESSAGE_RATE_QUOTA_EXCEEDED".to_owned(),
                details: Vec::new(),
            });
        }
        if self.drop_acknowledgements > 0 {
            self.drop_acknowledgements -= 1;
            return BodyFault::DropAcknowledgement;
        }
        if self.delay_acknowledgements.is_zero() {
            BodyFault::None
        } else {
            BodyFault::DelayAcknowledgement(self.delay_acknowledgements)
        }
    }

    /// Counts a frame; returns the status if the frame's stream has to end now.
    pub(crate) fn next_frame(&mut self) -> Option<Code> {
        let end = self.end_stream_after.as_mut()?;
        if end.frames > 0 {
            end.frames -= 1;
            return None;
        }
        self.end_stream_after.take().map(|end| end.code)
    }

    /// The refusal for a registration at `now`, if registrations are refused then.
    pub(crate) fn refusal(&self, now: Instant) -> Option<RefuseRegistrations> {
        self.refuse_registrations.clone().filter(|refuse| now < refuse.until)
    }
}
