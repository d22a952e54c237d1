//! A control plane's end of the stream, in memory.

use std::collections::VecDeque;
use std::time::Duration;

use async_trait::async_trait;
use tokio::time::Instant;

use crate::fakes::Shared;
use crate::fakes::answers::{Answer, Delivery};
use crate::fakes::fate::{Decider, Fact};
use crate::ports::{ControlLink, DeliveryError, OutboundMessage, Receipt};

/// How long an acknowledgement is waited for.
const ACKNOWLEDGEMENT_WAIT: Duration = Duration::from_secs(2);

/// A link whose other end does as scripted.
pub struct FakeLink(LinkHandle);

/// The other end of a [`FakeLink`]. Lives on when the agent does not.
#[derive(Clone)]
pub struct LinkHandle(Shared<Server>);

/// A message that arrived at the control plane.
#[derive(Clone, Debug, PartialEq)]
pub struct Heard {
    /// When.
    pub at: Instant,
    /// The message.
    pub message: OutboundMessage,
}

#[derive(Default)]
struct Server {
    stream: u64,
    connected: bool,
    script: VecDeque<Delivery>,
    always: Option<Delivery>,
    attempts: Vec<Instant>,
    heard: Vec<Heard>,
    acknowledged: Vec<Receipt>,
    refused: Vec<(Receipt, String)>,
    fate: Decider,
}

/// A link that is not connected yet.
#[must_use]
pub fn link() -> (FakeLink, LinkHandle) {
    let handle = LinkHandle(Shared::new(Server::default()));
    (FakeLink(handle.clone()), handle)
}

// === impl LinkHandle ===

impl LinkHandle {
    /// A new stream is registered; gives its number.
    pub fn connect(&self) -> u64 {
        self.0.with(|server| {
            server.connected = true;
            server.stream += 1;
            server.stream
        })
    }

    /// The stream ends.
    pub fn disconnect(&self) {
        self.0.with(|server| server.connected = false);
    }

    pub(super) fn fate(&self) -> Decider {
        self.0.with(|server| server.fate.clone())
    }

    /// The number of the newest stream.
    #[must_use]
    pub fn stream(&self) -> u64 {
        self.0.with(|server| server.stream)
    }

    /// What becomes of the next messages.
    pub fn script(&self, deliveries: &[Delivery]) {
        self.0.with(|server| server.script.extend(deliveries.iter().cloned()));
    }

    /// What becomes of every message that nothing else is scripted for; `None` acknowledges them.
    pub fn always(&self, delivery: Option<Delivery>) {
        self.0.with(|server| server.always = delivery);
    }

    /// Messages that arrived, in order; one that was sent twice stands here twice.
    #[must_use]
    pub fn heard(&self) -> Vec<Heard> {
        self.0.with(|server| server.heard.clone())
    }

    /// When messages were sent, those that did not arrive included.
    #[must_use]
    pub fn attempts(&self) -> Vec<Instant> {
        self.0.with(|server| server.attempts.clone())
    }

    /// Messages of the control plane that the agent acknowledged.
    #[must_use]
    pub fn acknowledged(&self) -> Vec<Receipt> {
        self.0.with(|server| server.acknowledged.clone())
    }

    /// Messages of the control plane that the agent refused, and why.
    #[must_use]
    pub fn refused(&self) -> Vec<(Receipt, String)> {
        self.0.with(|server| server.refused.clone())
    }
}

// === impl FakeLink ===

#[async_trait]
impl ControlLink for FakeLink {
    async fn deliver_on(&self, stream: u64, message: OutboundMessage) -> Result<(), DeliveryError> {
        if self.0.stream() != stream {
            return Err(DeliveryError::NotConnected);
        }
        self.deliver(message).await
    }

    async fn deliver(&self, message: OutboundMessage) -> Result<(), DeliveryError> {
        let sent = self.0.0.with(|server| {
            if !server.connected {
                return None;
            }
            server.attempts.push(Instant::now());
            let once = server.script.pop_front();
            Some((once.or(server.always.clone()), server.stream))
        });
        let Some((delivery, stream)) = sent else { return Err(DeliveryError::NotConnected) };
        let fate = self.0.fate();
        let delivery = delivery.or_else(|| Some(fate.get()?.delivery(&message)));
        let delivery = delivery.unwrap_or(Delivery::Acknowledge);
        if let Delivery::Late(delay) = delivery {
            tokio::time::sleep(delay).await;
            if !self.0.0.with(|server| server.connected && server.stream == stream) {
                return Err(DeliveryError::NotConnected);
            }
        }
        let confirmed = matches!(delivery, Delivery::Acknowledge | Delivery::Late(_));
        if confirmed || delivery == Delivery::LoseAcknowledgement {
            fate.happened(Fact::Heard(&message));
            if confirmed {
                fate.happened(Fact::Confirmed(&message));
            }
            self.0.0.with(|server| server.heard.push(Heard { at: Instant::now(), message }));
        }
        match delivery {
            Delivery::Acknowledge | Delivery::Late(_) => Ok(()),
            Delivery::Exhausted => Err(DeliveryError::Exhausted("quota".to_owned())),
            Delivery::Refuse => Err(DeliveryError::Refused("INTERNAL".to_owned())),
            Delivery::LoseAcknowledgement | Delivery::Lose => {
                let ended = self
                    .0
                    .0
                    .until(|server| (!server.connected || server.stream != stream).then_some(()));
                match tokio::time::timeout(ACKNOWLEDGEMENT_WAIT, ended).await {
                    Ok(()) => Err(DeliveryError::NotConnected),
                    Err(_) => Err(DeliveryError::TimedOut),
                }
            }
        }
    }

    async fn acknowledge(&self, receipt: Receipt) {
        let fate = self.0.fate();
        let answer = fate.get().map(|fate| fate.answer("acknowledge", &receipt.message_id));
        if answer.unwrap_or(Answer::Succeed) != Answer::Succeed {
            return;
        }
        let arrived = self.0.0.with(|server| {
            let arrived = server.connected && server.stream == receipt.stream;
            if arrived {
                server.acknowledged.push(receipt.clone());
            }
            arrived
        });
        if arrived {
            fate.happened(Fact::Acknowledged(&receipt));
        }
    }

    async fn refuse(&self, receipt: Receipt, reason: String) {
        self.0.0.with(|server| {
            if server.connected && server.stream == receipt.stream {
                server.refused.push((receipt, reason));
            }
        });
    }
}
