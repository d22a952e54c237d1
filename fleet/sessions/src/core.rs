//! The state that all listeners, sessions and handles of a gateway share: which streams there are, and
//! how much more is let in.
//!
//! It knows nothing of sockets and spawns nothing. An agent without a stream costs no memory here.

mod allowance;
mod registrations;
mod session_handle;
mod streams;
mod waiting;

use std::sync::{Arc, Mutex, OnceLock};

use guest_agent_proto::agent_communication::MessageBody;
use guest_agent_proto::rpc;
use guest_agent_serve_kit::lock::lock;
use prost::Message;
use tokio::sync::watch;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tonic::{Code, Status};

use crate::comeback::Comeback;
use crate::desk::Desk;
use crate::settings::{Limits, RateLimits, Timings};
use allowance::Allowances;
use registrations::Registrations;
use streams::Streams;
use waiting::{Room, Waiting};

pub(crate) use allowance::Allowed;
pub(crate) use registrations::Verdict;
pub(crate) use session_handle::SessionHandle;
pub use session_handle::{AgentConnection, Guard, Guarded};
pub(crate) use streams::Full;

/// The state that listeners, sessions and handles share.
pub(crate) struct Core {
    pub(crate) desk: Arc<dyn Desk>,
    pub(crate) timings: Timings,
    pub(crate) limits: Limits,
    pub(crate) rate_limits: RateLimits,
    /// Whether the response headers of streams announce a fleet.
    pub(crate) announces_fleet: bool,
    pub(crate) shutdown: CancellationToken,
    /// Ends the listeners; cancelled by the shutdown, too.
    pub(crate) draining: CancellationToken,
    /// The refusal of streams while the gateway drains.
    comeback: OnceLock<Comeback>,
    allowances: Mutex<Allowances>,
    waiting: Waiting,
    streams: Mutex<Streams>,
    registrations: Mutex<Registrations>,
    /// Grows with every stream that is registered or ended, and gives streams their numbers.
    changes: watch::Sender<u64>,
}

// === impl Core ===

impl Core {
    pub(crate) fn new(
        desk: Arc<dyn Desk>,
        timings: Timings,
        limits: Limits,
        rate_limits: RateLimits,
        announces_fleet: bool,
    ) -> Self {
        let shutdown = CancellationToken::new();
        Self {
            desk,
            timings,
            limits,
            rate_limits,
            announces_fleet,
            draining: shutdown.child_token(),
            shutdown,
            comeback: OnceLock::new(),
            allowances: Mutex::new(Allowances::new(rate_limits, limits.agents, Instant::now())),
            waiting: Waiting::new(limits.waiting_messages, limits.waiting_bytes),
            streams: Mutex::default(),
            registrations: Mutex::new(Registrations::new(
                limits.registrations_per_minute,
                limits.agents,
                Instant::now(),
            )),
            changes: watch::Sender::new(0),
        }
    }

    /// The streams, under their lock.
    pub(crate) fn streams<T>(&self, look: impl FnOnce(&mut Streams) -> T) -> T {
        look(&mut lock(&self.streams))
    }

    /// Counts a registration of an agent.
    pub(crate) fn count_registration(&self, resource: &Arc<str>) -> Verdict {
        lock(&self.registrations).register(resource, Instant::now())
    }

    /// Begins to drain: no listener accepts any more. The first call counts.
    pub(crate) fn begin_drain(&self, comeback: Comeback) -> Comeback {
        let comeback = *self.comeback.get_or_init(|| comeback);
        self.draining.cancel();
        comeback
    }

    /// The refusal of a new stream, while the gateway drains or shuts down.
    pub(crate) fn closing(&self) -> Option<Status> {
        let shutting_down = || Status::unavailable("the server is shutting down");
        self.draining
            .is_cancelled()
            .then(|| self.comeback.get().map_or_else(shutting_down, Comeback::status))
    }

    pub(crate) fn watch_streams(&self) -> watch::Receiver<u64> {
        self.changes.subscribe()
    }

    /// A number for a new stream: larger than all before.
    pub(crate) fn next_stream(&self) -> u64 {
        let mut number = 0;
        self.changes.send_modify(|last| {
            *last += 1;
            number = *last;
        });
        number
    }

    /// Wakes every wait for a change of streams.
    pub(crate) fn streams_changed(&self) {
        self.changes.send_modify(|_| {});
    }

    /// Has the desk take a message of an agent, if it is not more than the agent may send and there is
    /// room. The error is the status to answer with.
    pub(crate) async fn record(
        &self,
        resource: &Arc<str>,
        stream: Option<u64>,
        message_id: &str,
        body: &MessageBody,
    ) -> Result<(), rpc::Status> {
        let bytes = body.encoded_len();
        match lock(&self.allowances).take(resource, bytes, Instant::now()) {
            Allowed::Yes => {}
            is_over => {
                // The others of the row are not worth a line each.
                if is_over == Allowed::NotFirst {
                    tracing::warn!(%resource, "sends more than its limit; messages are refused");
                }
                return Err(exhausted("this agent sends more than its limit allows"));
            }
        }
        let _room: Room = self.waiting.take(bytes).ok_or_else(|| {
            exhausted("the ledger is slower than what comes: send it again later")
        })?;
        self.desk.received(resource, stream, message_id, body).await
    }
}

/// A status to refuse a message with that the agent should send again, more slowly.
fn exhausted(reason: &str) -> rpc::Status {
    rpc::Status {
        code: i32::from(Code::ResourceExhausted),
        message: format!("the message was not recorded: {reason}"),
        details: Vec::new(),
    }
}
