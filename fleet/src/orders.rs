//! A gateway's orders: what connected agents are ordered, decided on the ledger's configuration and
//! recorded in each agent's journal before it leaves.
//!
//! ```text
//!   configuration ─► view ─► desired() ─┐
//!   agent record, report, list ─────────┼─► journal::next ─► journal (CAS) ─► guard ─► stream
//!   event ─► log (CAS) ─► journal ──────┘                         ▲
//!   acknowledgement ──────────────────────────────────────────────┘
//! ```
//!
//! One task per stream owns what is known of its agent. It fences the former session of the agent
//! by writing its own id into the journal: a session that finds another id there ends. An order leaves only
//! on a view that is at most [`AGE_MAX`] old, which is asked before the journal is written, after it,
//! and when the transport has room for the frame. After a former session only views from after its
//! fence count: it may have ordered on a newer one than the gateway that the agent came to.

mod agent;
mod compose;
mod composer;
mod environment;
mod health;
mod observed;
mod people;
mod shared;
#[cfg(test)]
pub(crate) mod simulation;
#[cfg(test)]
pub(crate) mod tests;
mod told;
mod view;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};

use async_trait::async_trait;
use guest_agent_proto::agent_communication::MessageBody;
use guest_agent_proto::rpc;
use guest_agent_serve_kit::lock::lock;
use guest_fleet_ledger::SharedLedger;
use guest_fleet_ledger::records::Versioned;
use guest_fleet_ledger::records::gateway::GatewayRecord;
use guest_fleet_sessions::desk::{Desk, OpenSession};
use tokio::sync::{Semaphore, mpsc, oneshot};
use tokio_util::sync::CancellationToken;
use tonic::Status;

use crate::chain::Chain;
use agent::{AgentTask, Input};
use composer::Composer;
use shared::{Shared, unavailable};
use view::Views;

pub use compose::GENERATION;
pub use environment::{Environment, Machine};
pub use shared::{OrderSettings, UnknownAgents};
pub use view::AGE_MAX;

/// Messages of one stream that wait for its task; a session sends one at a time, so that only
/// acknowledgements and changes of labels add to it.
const INPUTS: usize = 64;

/// Most ends of sessions that are recorded at a time.
const ENDINGS: usize = 32;

/// Longest that a message of an agent waits for the ledger.
const RECORD_DEADLINE: Duration = Duration::from_secs(30);

/// The desk of a fleet's gateway.
pub struct Orders {
    shared: Arc<Shared>,
    sessions: Mutex<BTreeMap<u64, Running>>,
}

struct Running {
    resource: Arc<str>,
    inputs: mpsc::Sender<Input>,
}

// === impl Orders ===

impl Orders {
    /// A desk on a ledger. It orders nothing before [`Orders::run`] renewed its view.
    #[must_use]
    pub fn new(ledger: SharedLedger, settings: OrderSettings) -> Arc<Self> {
        let id = settings.environment.id();
        let record = GatewayRecord {
            version: GatewayRecord::VERSION,
            host: rustix::system::uname().nodename().to_string_lossy().into_owned(),
            pid: std::process::id(),
            since: Some(SystemTime::now().into()),
            program: env!("CARGO_PKG_VERSION").to_owned(),
            ..GatewayRecord::default()
        };
        let (environment, secrets) = (settings.environment.clone(), settings.secrets.clone());
        let views = Views::new(ledger.clone(), environment, &id, record, secrets);
        let views = Arc::new(views);
        let composer = Composer::new(settings.artifacts.clone(), settings.secrets.clone());
        let ending = CancellationToken::new();
        let endings = Semaphore::new(ENDINGS);
        let shared = Shared { ledger, views, composer, settings, ending, endings };
        Arc::new(Self { shared: Arc::new(shared), sessions: Mutex::default() })
    }

    /// Renews the view and follows changes of agents' labels, until [`Orders::stop`].
    pub async fn run(self: Arc<Self>) {
        let views = self.shared.views.clone().run(self.shared.ending.clone());
        let changed = |agent: &str| self.agent_changed(agent);
        let people = people::follow(&*self.shared.ledger, &self.shared.ending, changed);
        tokio::join!(views, people);
    }

    /// Hands over no order any more, and tells the other gateways; what agents send is still kept.
    pub async fn drain(&self) {
        self.shared.views.close();
        if let Err(error) = self.shared.views.renew().await {
            tracing::warn!(error = %Chain(&error), "other gateways do not learn that this one drains");
        }
    }

    /// Key of this gateway's own record of presence.
    #[must_use]
    pub fn key(&self) -> &str {
        self.shared.views.key()
    }

    /// Ends [`Orders::run`] and all tasks. No order leaves after it.
    pub fn stop(&self) {
        self.shared.ending.cancel();
    }

    /// Age of what is known of the configuration; `None` before it was read.
    #[must_use]
    pub fn view_age(&self) -> Option<Duration> {
        self.shared.views.age()
    }

    /// Has the streams of an agent on this gateway look at its record again.
    fn agent_changed(&self, agent: &str) {
        for running in lock(&self.sessions).values().filter(|running| *running.resource == *agent) {
            // A full queue means that it acts anyway.
            drop(running.inputs.try_send(Input::RecordChanged));
        }
    }

    fn inputs(&self, stream: u64) -> Option<mpsc::Sender<Input>> {
        lock(&self.sessions).get(&stream).map(|running| running.inputs.clone())
    }

    fn count(&self) {
        let agents = u64::try_from(lock(&self.sessions).len()).unwrap_or(u64::MAX);
        self.shared.views.count(agents);
        self.shared.settings.figures.streams(agents);
    }
}

#[async_trait]
impl Desk for Orders {
    async fn opened(&self, session: Arc<OpenSession>) -> Result<(), Status> {
        let (inputs, queue) = mpsc::channel(INPUTS);
        let figures = &self.shared.settings.figures;
        let task = AgentTask::begin(self.shared.clone(), session.clone(), queue)
            .await
            .inspect_err(|status| figures.refused(status.code()))?;
        figures.stream_opened();
        let running = Running { resource: session.resource.clone(), inputs };
        lock(&self.sessions).insert(session.stream, running);
        self.count();
        tokio::spawn(task.run());
        Ok(())
    }

    async fn received(
        &self,
        resource: &str,
        stream: Option<u64>,
        id: &str,
        body: &MessageBody,
    ) -> Result<(), rpc::Status> {
        let Some(stream) = stream else {
            // What comes in unary calls (how modules started, the platform) decides nothing.
            tracing::debug!(resource, "a unary message is not kept");
            return Ok(());
        };
        let (done, answer) = oneshot::channel();
        let input = Input::Received { id: id.to_owned(), body: body.clone(), done };
        let wait = async {
            self.inputs(stream)?.send(input).await.ok()?;
            answer.await.ok()
        };
        match tokio::time::timeout(RECORD_DEADLINE, wait).await {
            Ok(Some(result)) => result,
            Ok(None) => Err(unavailable("the stream ends")),
            Err(_) => Err(unavailable("the ledger did not answer in time")),
        }
    }

    async fn answered(&self, session: &OpenSession, id: &str, status: Option<&rpc::Status>) {
        let Some(inputs) = self.inputs(session.stream) else { return };
        let input = Input::Answered { id: id.to_owned(), status: status.cloned() };
        // It fails only when the task has ended, and with it the stream.
        drop(inputs.send(input).await);
    }

    fn closed(&self, session: &OpenSession) {
        // The task ends when its queue is closed.
        lock(&self.sessions).remove(&session.stream);
        self.count();
    }
}
