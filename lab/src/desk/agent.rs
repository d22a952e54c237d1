//! One agent: its streams, its kept messages, and the messages that are on their way to it.
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
    resend: Resend,
    ending: CancellationToken,
    state: Mutex<State>,
    kept: Mutex<Kept>,
    /// The open streams, the newest last. That one carries messages to the agent; watchers wake when
    /// another one does.
    streams: watch::Sender<Vec<Arc<OpenSession>>>,
}

#[derive(Debug, Default)]
struct State {
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
    pub(super) fn new(resend: Resend, ending: CancellationToken, kept: Kept) -> Self {
        Self {
            resend,
            ending,
            state: Mutex::default(),
            kept: Mutex::new(kept),
            streams: watch::Sender::default(),
        }
    }

    pub(crate) fn kept(&self) -> MutexGuard<'_, Kept> {
        lock(&self.kept)
    }

    pub(super) fn opened(&self, session: Arc<OpenSession>) {
        self.streams.send_modify(|streams| streams.push(session));
    }

    pub(super) fn closed(&self, stream: u64) {
        self.streams.send_if_modified(|streams| {
            let was_newest = streams.last().is_some_and(|session| session.stream == stream);
            streams.retain(|session| session.stream != stream);
            was_newest
        });
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
        let session = self.streams.borrow().last().cloned()?;
        Some(session.hand_over(frame, Box::new(|| true)))
    }

    /// Queues an order. It is sent after the orders that wait already, and again until the agent answers.
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
                    // Their callers learn that nothing is sent any more.
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
        let mut streams = self.streams.subscribe();
        loop {
            let Some(session) = streams.borrow_and_update().last().cloned() else {
                // The sender is a part of the agent.
                let _changed = streams.changed().await;
                continue;
            };
            let on_stream = self.send_on(&session, &frame, &mut answers);
            tokio::select! {
                status = on_stream => match status {
                    Some(status) => return status,
                    None => drop(streams.changed().await),
                },
                _changed = streams.changed() => {}
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

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn an_order_goes_out_once_on_the_newest_stream_and_again_on_the_one_that_is_left() {
        let resend = Resend { after: Duration::from_secs(3600), attempts: 3 };
        let agent = Agent::new(resend, CancellationToken::new(), Kept::default());
        let agent = Arc::new(agent);
        let sessions: Vec<_> = (1..=3).map(|stream| OpenSession::unserved("a", stream)).collect();
        let (sessions, outgoing): (Vec<_>, Vec<_>) = sessions.into_iter().unzip();
        sessions.into_iter().for_each(|session| agent.opened(Arc::new(session)));
        let delivery = agent.clone().order(MessageBody::default()).expect("there is room");
        outgoing[2].changed().await;
        let sent = outgoing[2].next().expect("it is sent");
        assert_eq!(sent.frame.message_id, delivery.message_id());
        // A stream that carries nothing ends.
        agent.closed(1);
        tokio::time::sleep(Duration::from_secs(1)).await;
        assert!(outgoing[2].next().is_none(), "nothing changed for the stream that carries it");
        agent.closed(3);
        outgoing[1].changed().await;
        let again = outgoing[1].next().expect("it is sent again");
        assert_eq!(again.frame.message_id, delivery.message_id());
        assert!(outgoing[0].next().is_none());
    }
}
