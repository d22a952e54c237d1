//! The connection of an agent to the gateways, as the agent's actors use it.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use guest_agent_actors::ports::{ControlLink, DeliveryError, OutboundMessage, Receipt};
use guest_agent_proto::agent_communication::MessageBody;
use guest_agent_proto::rpc;
use guest_agent_serve_kit::lock::lock;
use tokio::sync::{mpsc, oneshot};
use tonic::Code;

use super::line::Up;
use super::world::World;

/// How long an acknowledgement is awaited.
const ACKNOWLEDGEMENT: Duration = Duration::from_secs(5);

/// The connection. It outlives the agent, as sockets of a killed process do for a moment.
pub(super) struct Link {
    world: Arc<World>,
    streams: Mutex<Streams>,
}

#[derive(Default)]
struct Streams {
    /// The stream on which the agent sends.
    current: Option<u64>,
    up: BTreeMap<u64, mpsc::UnboundedSender<Up>>,
    /// The newest stream on which nothing arrives any more.
    dark: u64,
}

// === impl Link ===

impl Link {
    pub(super) fn new(world: Arc<World>) -> Self {
        Self { world, streams: Mutex::default() }
    }

    /// A stream is registered.
    pub(super) fn attach(&self, stream: u64, up: mpsc::UnboundedSender<Up>) {
        let streams = &mut *lock(&self.streams);
        streams.current = Some(stream);
        streams.up.insert(stream, up);
    }

    /// A stream broke.
    pub(super) fn detach(&self, stream: u64) {
        let streams = &mut *lock(&self.streams);
        streams.up.remove(&stream);
        streams.current.take_if(|current| *current == stream);
    }

    /// The agent was killed.
    pub(super) fn hang_up(&self) {
        let streams = &mut *lock(&self.streams);
        streams.up.clear();
        streams.current = None;
    }

    /// From now on nothing arrives on this stream, in either direction.
    pub(super) fn darken(&self, stream: u64) {
        lock(&self.streams).dark = stream;
    }

    pub(super) fn is_dark(&self, stream: u64) -> bool {
        lock(&self.streams).dark == stream
    }

    fn answer(&self, receipt: Receipt, status: Option<rpc::Status>) {
        let streams = lock(&self.streams);
        if streams.dark == receipt.stream || self.world.one_in(10) {
            return;
        }
        if let Some(up) = streams.up.get(&receipt.stream) {
            // A gateway that is gone reads nothing any more.
            drop(up.send(Up::Answer { id: receipt.message_id, status }));
        }
    }

    async fn send(&self, only: Option<u64>, message: OutboundMessage) -> Result<(), DeliveryError> {
        let OutboundMessage { id, labels, type_url, body: value } = message;
        let labels = labels.into_iter().collect();
        let body = MessageBody { labels, body: Some(prost_types::Any { type_url, value }) };
        let answer = {
            let streams = lock(&self.streams);
            let stream = streams.current.filter(|current| only.is_none_or(|only| only == *current));
            let stream = stream.ok_or(DeliveryError::NotConnected)?;
            let up = streams.up.get(&stream).ok_or(DeliveryError::NotConnected)?;
            let (done, answer) = oneshot::channel();
            if streams.dark == stream {
                None
            } else {
                up.send(Up::Body { id, body, done }).map_err(|_| DeliveryError::NotConnected)?;
                Some(answer)
            }
        };
        let answered = async {
            match answer {
                Some(answer) => answer.await,
                None => std::future::pending().await,
            }
        };
        match tokio::time::timeout(ACKNOWLEDGEMENT, answered).await {
            Err(_) => Err(DeliveryError::TimedOut),
            Ok(Err(_)) => Err(DeliveryError::NotConnected),
            Ok(Ok(Ok(()))) => Ok(()),
            Ok(Ok(Err(status))) if status.code == i32::from(Code::ResourceExhausted) => {
                Err(DeliveryError::Exhausted(status.message))
            }
            Ok(Ok(Err(status))) => Err(DeliveryError::Refused(status.message)),
        }
    }
}

#[async_trait]
impl ControlLink for Link {
    async fn deliver(&self, message: OutboundMessage) -> Result<(), DeliveryError> {
        self.send(None, message).await
    }

    async fn deliver_on(&self, stream: u64, message: OutboundMessage) -> Result<(), DeliveryError> {
        self.send(Some(stream), message).await
    }

    async fn acknowledge(&self, receipt: Receipt) {
        self.answer(receipt, None);
    }

    async fn refuse(&self, receipt: Receipt, reason: String) {
        let code = i32::from(Code::InvalidArgument);
        self.answer(receipt, Some(rpc::Status { code, message: reason, details: Vec::new() }));
    }
}
