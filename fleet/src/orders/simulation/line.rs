//! A stream between an agent and a gateway: the gateway's end of it as the production session serves
//! it, with a transport that is slow, loses answers, and is not always known to be gone.
//!
//! ```text
//!   Orders ─► queue ─► room in the transport? guard? ─► frames, late but in order ─► agent
//!          ◄─ bodies and answers, one at a time ◄──────────────────────────────────┘
//! ```

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use guest_agent_proto::agent_communication::{MessageBody, StreamAgentMessagesResponse};
use guest_agent_proto::rpc;
use guest_fleet_sessions::desk::{Desk, Guarded, OpenSession, Outgoing};
use tokio::sync::{mpsc, oneshot};
use tokio::time::Instant;

use super::world::{Gateway, World};

/// Longest that a frame is under way.
const UNDER_WAY: Duration = Duration::from_secs(2);

/// Longest that the transport takes nothing: longer than a view may be old.
const STALL: Duration = Duration::from_secs(9);

/// Longest until a gateway notices that an agent is gone.
const UNNOTICED: Duration = Duration::from_secs(20);

/// Longest until an agent notices that a gateway is gone.
const GONE: Duration = Duration::from_secs(3);

/// How long a registration may take.
const REGISTER: Duration = Duration::from_secs(10);

/// The agent's end of a stream.
pub(crate) struct Line {
    pub(crate) stream: u64,
    pub(crate) up: mpsc::UnboundedSender<Up>,
    pub(crate) down: mpsc::UnboundedReceiver<Down>,
}

/// What an agent sends.
pub(crate) enum Up {
    /// A body, and where the answer to it goes.
    Body { id: String, body: MessageBody, done: Done },
    /// The answer to a message.
    Answer { id: String, status: Option<rpc::Status> },
}

pub(crate) type Done = oneshot::Sender<Result<(), rpc::Status>>;

/// A frame to an agent, and when it arrives.
pub(crate) struct Down {
    pub(crate) at: Instant,
    pub(crate) frame: StreamAgentMessagesResponse,
}

/// The gateway's end.
struct Served {
    world: Arc<World>,
    gateway: Gateway,
    session: Arc<OpenSession>,
    outgoing: Outgoing,
}

/// Connects an agent to one of the gateways. `None` where that did not succeed in time.
pub(crate) async fn open(world: &Arc<World>, agent: &str) -> Option<Line> {
    let (at, gateway) = world.any_gateway();
    let stream = world.stream();
    world.trace(|| format!("{agent} connects to gateway {at}, stream {stream}"));
    let (session, outgoing) = OpenSession::unserved(agent, stream);
    let session = Arc::new(session);
    let opened = tokio::time::timeout(REGISTER, gateway.orders.opened(session.clone())).await;
    if !matches!(opened, Ok(Ok(()))) {
        gateway.orders.closed(&session);
        return None;
    }
    world.laws.fenced(agent, stream);
    let (up, ups) = mpsc::unbounded_channel();
    let (downs, down) = mpsc::unbounded_channel();
    let served = Served { world: world.clone(), gateway, session, outgoing };
    tokio::spawn(served.serve(ups, downs));
    Some(Line { stream, up, down })
}

// === impl Served ===

impl Served {
    async fn serve(self, ups: mpsc::UnboundedReceiver<Up>, downs: mpsc::UnboundedSender<Down>) {
        tokio::select! {
            biased;
            () = self.gateway.dead.cancelled() => {
                tokio::time::sleep(self.world.time(GONE)).await;
            }
            () = self.sends(&downs) => {}
            () = self.receives(ups) => {}
        }
        self.gateway.orders.closed(&self.session);
    }

    /// Hands over what is queued, until the gateway ends the stream.
    async fn sends(&self, downs: &mpsc::UnboundedSender<Down>) {
        let Self { world, gateway, session, outgoing } = self;
        let mut waiting: VecDeque<Guarded> = VecDeque::new();
        let (mut room_at, mut last) = (Instant::now(), Instant::now());
        while outgoing.take_end().is_none() {
            let stood_still = gateway.ledger.awake().await;
            while let Some(guarded) = outgoing.next() {
                // Where the process stood still it was queued before that, on a view that was new then.
                if !stood_still {
                    world.laws.queued(&session.resource, &guarded.frame);
                }
                waiting.push_back(guarded);
            }
            while Instant::now() >= room_at
                && let Some(guarded) = waiting.pop_front()
            {
                if !(guarded.guard)() {
                    world.trace(|| format!("{} stays", guarded.frame.message_id));
                    continue;
                }
                world.laws.handed_over(&session.resource, session.stream, &guarded.frame);
                // What is sent on one stream arrives in order.
                last = last.max(Instant::now() + world.delay(UNDER_WAY));
                // An agent that has gone reads nothing any more.
                drop(downs.send(Down { at: last, frame: guarded.frame }));
                if world.one_in(12) {
                    room_at = Instant::now() + world.time(STALL);
                }
            }
            tokio::select! {
                biased;
                () = outgoing.changed() => {}
                () = tokio::time::sleep_until(room_at), if !waiting.is_empty() => {}
            }
        }
    }

    /// Takes what comes, one after the other, until the agent is gone and that is noticed.
    async fn receives(&self, mut ups: mpsc::UnboundedReceiver<Up>) {
        let Self { world, gateway, session, .. } = self;
        // A lost answer leaves its sender waiting.
        let mut lost = Vec::new();
        while let Some(up) = ups.recv().await {
            gateway.ledger.awake().await;
            match up {
                Up::Answer { id, status } => {
                    gateway.orders.answered(session, &id, status.as_ref()).await;
                }
                Up::Body { id, body, done } => {
                    let stream = Some(session.stream);
                    let answer =
                        gateway.orders.received(&session.resource, stream, &id, &body).await;
                    if world.one_in(12) {
                        lost.push(done);
                    } else {
                        // Nobody waits where the agent has gone.
                        drop(done.send(answer));
                    }
                }
            }
        }
        if !world.is_calm() && world.below(2) == 0 {
            tokio::time::sleep(world.time(UNNOTICED)).await;
        }
    }
}
