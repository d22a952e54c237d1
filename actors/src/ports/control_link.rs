//! The connection to the control plane.

use std::collections::BTreeMap;
use std::time::Duration;

use async_trait::async_trait;

use crate::plugin::restart::spread_out;

/// Longest pause before a message that the server did not take is sent again, without its jitter.
const RESEND_PAUSE_MAX: Duration = Duration::from_secs(60);

/// Sends messages to the control plane. What arrives is pushed to the control-plane actor.
#[async_trait]
pub trait ControlLink: Send + Sync {
    /// Sends one message and waits for its acknowledgement: one attempt, bounded by the
    /// acknowledgement wait of the protocol. The caller decides about another.
    async fn deliver(&self, message: OutboundMessage) -> Result<(), DeliveryError>;

    /// Like [`ControlLink::deliver`], but on this stream or not at all: a message that only some
    /// servers understand must not go to another one, which the next stream may lead to.
    async fn deliver_on(&self, stream: u64, message: OutboundMessage) -> Result<(), DeliveryError>;

    /// Acknowledges a received message on the stream it came from. A stream that is gone makes
    /// this a no-op: the server sends the message again.
    async fn acknowledge(&self, receipt: Receipt);

    /// Answers a received message with INVALID_ARGUMENT: nothing of it is carried out, and it is
    /// not to be sent again. Otherwise like [`ControlLink::acknowledge`].
    async fn refuse(&self, receipt: Receipt, reason: String);
}

/// What a server announces itself as in the response headers of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ServerKind {
    /// One that knows the public protocol; all that announce nothing.
    Public,
    /// A gateway of a fleet, which takes reports of agents as well.
    Fleet,
}

/// A message for the control plane.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OutboundMessage {
    /// Stays the same through every attempt.
    pub id: String,
    /// At least `message_type`.
    pub labels: BTreeMap<String, String>,
    /// Type URL of the body.
    pub type_url: String,
    /// The encoded body.
    pub body: Vec<u8>,
}

/// A message from the control plane.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InboundMessage {
    /// What to acknowledge it with.
    pub receipt: Receipt,
    /// Its labels, `message_type` among them where the server set it.
    pub labels: BTreeMap<String, String>,
    /// The encoded body; empty when there was none.
    pub body: Vec<u8>,
}

/// Names a received message and the stream it came on.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Receipt {
    /// Counts the streams of this agent process.
    pub stream: u64,
    /// The server's message id. Not unique in practice.
    pub message_id: String,
}

/// Why a message was not acknowledged.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DeliveryError {
    /// There is no registered stream, or it ended before the acknowledgement came.
    #[error("the control plane is not connected")]
    NotConnected,
    /// No acknowledgement within the wait.
    #[error("the control plane did not acknowledge in time")]
    TimedOut,
    /// The server has no room now (RESOURCE_EXHAUSTED).
    #[error("the control plane is out of quota: {0}")]
    Exhausted(String),
    /// The server answered with another error.
    #[error("the control plane refused the message: {0}")]
    Refused(String),
}

impl DeliveryError {
    /// How long a sender waits before it sends the message `id` again, after `attempt` attempts.
    ///
    /// The protocol asks for 250 ms times the attempt where the server has no room; the jitter is
    /// added to that.
    #[must_use]
    pub fn pause(&self, attempt: u32, id: &str) -> Duration {
        let (step, longest) = match self {
            // The wait for the acknowledgement was pause enough.
            Self::TimedOut => return Duration::ZERO,
            // Another stream may be registered at any moment.
            Self::NotConnected => (Duration::from_millis(100), Duration::from_secs(1)),
            Self::Exhausted(_) => (Duration::from_millis(250), RESEND_PAUSE_MAX),
            Self::Refused(_) => (Duration::from_secs(1), RESEND_PAUSE_MAX),
        };
        spread_out(step.saturating_mul(attempt).min(longest), attempt, id)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn law_a_message_waits_for_its_step_and_up_to_a_quarter_more(
            attempt in 1u32.., id in "[a-f0-9-]{0,36}"
        ) {
            let errors = [
                (DeliveryError::NotConnected, 100, 1_000),
                (DeliveryError::Exhausted(String::new()), 250, 60_000),
                (DeliveryError::Refused(String::new()), 1_000, 60_000),
            ];
            for (error, step, longest) in errors {
                let least = Duration::from_millis(u64::from(attempt).saturating_mul(step).min(longest));
                let pause = error.pause(attempt, &id);
                prop_assert!(pause >= least && pause <= least + least / 4, "{error}: {pause:?}");
            }
            prop_assert_eq!(DeliveryError::TimedOut.pause(attempt, &id), Duration::ZERO);
        }
    }

    #[test]
    fn messages_that_were_refused_together_are_sent_again_apart() {
        let refused = DeliveryError::Refused(String::new());
        let distinct: std::collections::BTreeSet<_> =
            (0..100).map(|n| refused.pause(3, &format!("message-{n}"))).collect();
        assert!(distinct.len() > 90, "only {} of 100 pauses differ", distinct.len());
    }
}
