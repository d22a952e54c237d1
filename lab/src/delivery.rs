//! The receipt for a configuration: awaits the agent's acknowledgement.

use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use thiserror::Error;
use tokio::sync::oneshot;

/// The result of a delivery.
pub(crate) type Outcome = Result<Acknowledged, DeliveryError>;

/// A configuration that is being delivered. Dropping this value cancels nothing.
///
/// As a future it resolves when the agent acknowledged the configuration, and an agent may never do
/// so: prefer
/// [`Delivery::wait`], which has a deadline.
#[derive(Debug)]
#[must_use = "a configuration is only known to have arrived when its delivery was awaited"]
pub struct Delivery {
    message_id: String,
    outcome: oneshot::Receiver<Outcome>,
}

/// The agent has acknowledged the configuration and keeps it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Acknowledged;

/// Why a configuration will not be acknowledged, or not in time.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum DeliveryError {
    /// The agent answered with another status than OK. It is not sent again.
    #[error("the agent refused the configuration with status {code}: {message}")]
    Refused {
        /// gRPC status code.
        code: i32,
        /// The agent's text.
        message: String,
    },
    /// The agent did not acknowledge it in time. It is still delivered later.
    #[error("not acknowledged within {0:?}")]
    TimedOut(Duration),
    /// The control plane ended. It forgets the configuration.
    #[error("the control plane ended before the configuration was acknowledged")]
    Closed,
}

// === impl Delivery ===

impl Delivery {
    /// A delivery of the message `message_id`, and the sender that reports its outcome.
    pub(crate) fn new(message_id: String) -> (Self, oneshot::Sender<Outcome>) {
        let (sender, outcome) = oneshot::channel();
        (Self { message_id, outcome }, sender)
    }

    /// Message id under which the configuration is sent each time.
    pub fn message_id(&self) -> &str {
        &self.message_id
    }

    /// Waits until the agent acknowledged it.
    ///
    /// # Errors
    /// See [`DeliveryError`].
    pub async fn wait(self, timeout: Duration) -> Result<Acknowledged, DeliveryError> {
        tokio::time::timeout(timeout, self).await.unwrap_or(Err(DeliveryError::TimedOut(timeout)))
    }
}

impl Future for Delivery {
    type Output = Result<Acknowledged, DeliveryError>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        Pin::new(&mut self.outcome)
            .poll(context)
            .map(|received| received.unwrap_or(Err(DeliveryError::Closed)))
    }
}
