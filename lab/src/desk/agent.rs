//! One agent: its streams, what was kept of it, and the messages that are on their way to it.
//!
//! Orders go one after another: the next is sent when the agent answered the one before, because one that
//! is sent again after a newer one would bring back what was before. A request waits for nothing.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use guest_agent_proto::agent_communication::{
    ErrorReason, MessageBody, StreamAgentMessagesResponse, stream_agent_messages_response,
};
use guest_agent_proto::rpc;
use guest_agent_serve_kit::lock::lock;
use guest_fleet_sessions::desk::{OpenSession, busy_pause};
use guest_fleet_sessions::refusal;
use tokio::sync::{mpsc, oneshot, watch};
use tokio_util::sync::CancellationToken;
use tonic::Code;

use super::kept::Kept;
use crate::delivery::{Acknowledged, Delivery, DeliveryError, Outcome};

/// Most orders that wait for one agent.
const ORDERS: usize = 256;

/// Most requests to one agent that wait for their replies.
const REQUESTS: usize = 64;

/// How long an answer is awaited, and how often a message is sent on one stream.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Resend {
    pub(crate) after: Duration,
    pub(crate) attempts: u32,
}

/// One agent, by resource id.
#[derive(Debug)]
pub(crate) struct Agent {
    pub(crate) resource: Arc<str>,
    resend: Resend,
    ending: CancellationToken,
    state: Mutex<State>,
    kept: Mutex<Kept>,
    /// The stream that carries messages to the agent: the newest.
    newest: watch::Sender<Option<Arc<OpenSession>>>,
}

#[derive(Debug, Default)]
struct State {
    /// The open streams, the newest last.
    streams: Vec<Arc<OpenSession>>,
    orders: VecDeque<Order>,
    /// Whether a task hands the orders over.
    are_handed_over: bool,
    /// Who waits for the answer to a message, by its id.
    answers: HashMap<String, mpsc::Sender<rpc::Status>>,
    /// Who waits for a reply, by the id of the request.
    replies: HashMap<String, oneshot::Sender<MessageBody>>,
}

/// An order that waits to be handed over.
#[derive(Debug)]
struct Order {
    id: String,
    body: MessageBody,
    outcome: oneshot::Sender<Outcome>,
}

/// Too many messages wait for the agent.
#[derive(Debug)]
pub(crate) struct Full;

/// A request whose reply is awaited. When it is dropped, nobody waits for the reply any more.
pub(crate) struct Request {
    agent: Arc<Agent>,
    pub(crate) id: String,
    reply: oneshot::Receiver<MessageBody>,
}

/// The answers to a message; when it is dropped, nobody waits for them any more.
struct Answers<'a> {
    agent: &'a Agent,
    id: &'a str,
    answers: mpsc::Receiver<rpc::Status>,
}

// === impl Agent ===

impl Agent {
    pub(super) fn new(
        resource: Arc<str>,
        resend: Resend,
        ending: CancellationToken,
        kept: Kept,
    ) -> Self {
        Self {
            resource,
            resend,
            ending,
            state: Mutex::default(),
            kept: Mutex::new(kept),
            newest: watch::Sender::new(None),
        }
    }

    pub(crate) fn kept(&self) -> MutexGuard<'_, Kept> {
        lock(&self.kept)
    }

    pub(super) fn opened(&self, session: Arc<OpenSession>) {
        let mut state = lock(&self.state);
        state.streams.push(session);
        self.newest.send_replace(state.streams.last().cloned());
    }

    pub(super) fn closed(&self, stream: u64) {
        let mut state = lock(&self.state);
        state.streams.retain(|session| session.stream != stream);
        self.newest.send_replace(state.streams.last().cloned());
    }

    pub(super) fn answered(&self, id: &str, status: Option<&rpc::Status>) {
        if let Some(waits) = lock(&self.state).answers.get(id) {
            // Where an answer waits already, this one is that to a message that was sent twice.
            drop(waits.try_send(status.cloned().unwrap_or_default()));
        }
    }

    pub(super) fn replied(&self, request: &str, body: &MessageBody) {
        if let Some(waits) = lock(&self.state).replies.remove(request) {
            // It fails only when nobody waits any more.
            drop(waits.send(body.clone()));
        }
    }

    /// Hands a frame over as it is, once; `None` where the agent has no stream, false where too many
    /// frames wait on it.
    pub(crate) fn hand_over(&self, frame: StreamAgentMessagesResponse) -> Option<bool> {
        let session = self.newest.borrow().clone()?;
        Some(session.hand_over(frame, Box::new(|| true)))
    }

    /// Hands over an order after those that wait, and again until the agent answers.
    pub(crate) fn order(self: Arc<Self>, body: MessageBody) -> Result<Delivery, Full> {
        let id = uuid::Uuid::new_v4().to_string();
        let (delivery, outcome) = Delivery::new(id.clone());
        let mut state = lock(&self.state);
        if state.orders.len() >= ORDERS {
            return Err(Full);
        }
        state.orders.push_back(Order { id, body, outcome });
        if !std::mem::replace(&mut state.are_handed_over, true) {
            tokio::spawn(self.clone().hand_over_orders());
        }
        Ok(delivery)
    }

    async fn hand_over_orders(self: Arc<Self>) {
        loop {
            let next = {
                let mut state = lock(&self.state);
                let next = state.orders.pop_front();
                state.are_handed_over = next.is_some();
                next
            };
            let Some(order) = next else { return };
            let status = tokio::select! {
                () = self.ending.cancelled() => {
                    let mut state = lock(&self.state);
                    // Who waits for them learns that nothing is sent any more.
                    state.orders.clear();
                    state.are_handed_over = false;
                    return;
                }
                status = self.send(&order.id, order.body) => status,
            };
            let outcome = match status.code {
                0 => Ok(Acknowledged),
                code => Err(DeliveryError::Refused { code, message: status.message }),
            };
            // It fails only when nobody waits for it.
            drop(order.outcome.send(outcome));
        }
    }

    /// Makes a request, which [`Request::reply`] sends.
    pub(crate) fn request(self: Arc<Self>) -> Result<Request, Full> {
        let id = uuid::Uuid::new_v4().to_string();
        let (sender, reply) = oneshot::channel();
        {
            let mut state = lock(&self.state);
            if state.replies.len() >= REQUESTS {
                return Err(Full);
            }
            state.replies.insert(id.clone(), sender);
        }
        Ok(Request { agent: self, id, reply })
    }

    /// Sends a message on the newest stream until it is answered: again after a while, and on each next
    /// stream. A stream on which it is never answered is ended.
    async fn send(&self, id: &str, body: MessageBody) -> rpc::Status {
        let frame = StreamAgentMessagesResponse {
            message_id: id.to_owned(),
            r#type: Some(stream_agent_messages_response::Type::MessageBody(body)),
        };
        let mut answers = self.answers(id);
        let mut newest = self.newest.subscribe();
        loop {
            let Some(session) = newest.borrow_and_update().clone() else {
                // The sender is a part of the agent.
                let _changed = newest.changed().await;
                continue;
            };
            let on_stream = self.send_on(&session, &frame, &mut answers);
            tokio::select! {
                status = on_stream => match status {
                    Some(status) => return status,
                    None => drop(newest.changed().await),
                },
                _changed = newest.changed() => {}
            }
        }
    }

    /// Sends a message on one stream; `None` when the stream is ended because of it.
    async fn send_on(
        &self,
        session: &OpenSession,
        frame: &StreamAgentMessagesResponse,
        answers: &mut Answers<'_>,
    ) -> Option<rpc::Status> {
        let (mut sendings, mut unanswered) = (0_u32, 0);
        while unanswered < self.resend.attempts {
            // A frame that finds no room is sent again, as one that no agent answers.
            let _is_queued = session.hand_over(frame.clone(), Box::new(|| true));
            sendings = sendings.saturating_add(1);
            unanswered += 1;
            let answer = tokio::time::timeout(self.resend.after, answers.answers.recv()).await;
            let Ok(Some(status)) = answer else { continue };
            if status.code != i32::from(Code::ResourceExhausted) {
                return Some(status);
            }
            unanswered = 0;
            tokio::time::sleep(busy_pause(sendings)).await;
        }
        session.end(refusal(
            Code::DeadlineExceeded,
            ErrorReason::MessageNotAcked,
            "a message was sent several times and never acknowledged",
        ));
        None
    }

    fn answers<'a>(&'a self, id: &'a str) -> Answers<'a> {
        let (sender, answers) = mpsc::channel(1);
        lock(&self.state).answers.insert(id.to_owned(), sender);
        Answers { agent: self, id, answers }
    }
}

// === impl Request ===

impl Request {
    /// Sends the request, also on the next streams, and waits for its reply for so long as the caller
    /// does.
    pub(crate) async fn reply(mut self, body: MessageBody) -> Option<MessageBody> {
        let agent = self.agent.clone();
        let id = self.id.clone();
        let sent = async {
            agent.send(&id, body).await;
            std::future::pending().await
        };
        tokio::select! {
            reply = &mut self.reply => reply.ok(),
            () = sent => None,
            () = agent.ending.cancelled() => None,
        }
    }
}

impl Drop for Request {
    fn drop(&mut self) {
        lock(&self.agent.state).replies.remove(&self.id);
    }
}

// === impl Answers ===

impl Drop for Answers<'_> {
    fn drop(&mut self) {
        lock(&self.agent.state).answers.remove(self.id);
    }
}
