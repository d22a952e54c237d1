//! What is counted while a control plane runs. Counting begins again with every start, as readers
//! of counters expect.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};

use guest_agent_observe_kit::histogram::{Bounds, Histogram};
use guest_agent_serve_kit::front::OnClosed;
use guest_agent_serve_kit::lock::lock;
use guest_fleet_core::listed;
use guest_fleet_ledger::{Failure, Verb};

/// Counts what happens. Shared by all parts that something happens in.
#[derive(Debug, Default)]
pub struct Figures(Mutex<Counted>);

/// The counts at some moment.
#[derive(Clone, Debug, Default)]
pub struct Counted {
    /// Streams that are open.
    pub streams: u64,
    /// Streams that were opened.
    pub streams_opened: u64,
    /// Streams and calls that were refused, by the name of the status.
    pub refused: BTreeMap<&'static str, u64>,
    /// Orders that came into a state.
    pub orders: BTreeMap<OrderStep, u64>,
    /// How long orders took that were settled.
    pub settled: BTreeMap<OrderStep, Histogram<SettleBounds>>,
    /// Frames with orders that streams took.
    pub order_frames: u64,
    /// Writes of journals that somebody else's write was in the way of.
    pub journal_conflicts: u64,
    /// Sessions that ended because another session of their agent took over.
    pub sessions_replaced: u64,
    /// Events that were stored.
    pub events: u64,
    /// Events that came again and were known.
    pub events_known: u64,
    /// Operations of the ledger by verb.
    pub ledger: BTreeMap<Verb, Operations>,
    /// Bytes of artifacts that were read from the store.
    pub artifact_bytes_read: u64,
    /// Bytes of artifacts that came into the store.
    pub artifact_bytes_written: u64,
    /// Certificates that agents got, by what they asked for.
    pub certificates: BTreeMap<Asked, u64>,
    /// Requests for certificates that were refused, by the code of the answer.
    pub certificates_refused: BTreeMap<(Asked, &'static str), u64>,
    /// Connections that were closed before TLS.
    pub connections_closed: BTreeMap<Listener, u64>,
    /// What became of webhooks, by the name that the configuration gives them.
    pub webhooks: BTreeMap<String, Webhook>,
}

listed! {
    /// A state that an order came into.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
    pub enum OrderStep {
        /// It was recorded, to be sent.
        Given = "given",
        /// A newer one took its place before it was settled.
        Superseded = "superseded",
        /// The agent has it.
        Acknowledged = "acknowledged",
        /// The agent began with it.
        Begun = "begun",
        /// It was carried out.
        Done = "done",
        /// The agent had it already.
        Adopted = "adopted",
        /// It failed, or was refused.
        Failed = "failed",
        /// The agent took it back.
        TakenBack = "taken_back",
    }
}

/// The operations of one verb.
#[derive(Clone, Debug, Default)]
pub struct Operations {
    /// How long they took, failures too.
    pub took: Histogram<LedgerBounds>,
    /// Those that failed.
    pub failed: BTreeMap<Failure, u64>,
}

listed! {
    /// What a machine asked the enrolment server for.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
    pub enum Asked {
        /// To become an agent.
        Enrolment = "enrolment",
        /// The next certificate.
        Renewal = "renewal",
    }
}

listed! {
    /// A listener with a door.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
    pub enum Listener {
        /// Where agents connect.
        Gateway = "gateway",
        /// Where machines enrol.
        Enrolment = "enrolment",
        /// Where health and metrics are asked for.
        Observe = "http",
    }
}

/// What became of a webhook.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Webhook {
    /// Entries that the receiver took.
    pub delivered: u64,
    /// Requests that failed; each is made again.
    pub failures: u64,
    /// Entries that were gone before they could be delivered.
    pub lost: u64,
    /// When the oldest entry came that is not delivered; `None` where all are.
    pub waiting_since: Option<SystemTime>,
    /// Whether this process delivers it; another one does otherwise.
    pub is_ours: bool,
}

/// From a fast disk or a cluster nearby to one that hangs.
#[derive(Clone, Copy, Debug)]
pub struct LedgerBounds;

/// From an order that takes a second to one whose download takes an hour.
#[derive(Clone, Copy, Debug)]
pub struct SettleBounds;

impl Bounds for LedgerBounds {
    const SECONDS: &'static [f64] =
        &[0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0];
}

impl Bounds for SettleBounds {
    const SECONDS: &'static [f64] = &[1.0, 5.0, 10.0, 30.0, 60.0, 300.0, 900.0, 3600.0];
}

// === impl Figures ===

impl Figures {
    /// The counts until now.
    #[must_use]
    pub fn now(&self) -> Counted {
        lock(&self.0).clone()
    }

    fn add(&self, count: impl FnOnce(&mut Counted)) {
        count(&mut lock(&self.0));
    }

    /// So many streams are open.
    pub fn streams(&self, open: u64) {
        self.add(|counted| counted.streams = open);
    }

    /// A stream was opened.
    pub fn stream_opened(&self) {
        self.add(|counted| counted.streams_opened += 1);
    }

    /// A stream or a call was refused with this status.
    pub fn refused(&self, code: tonic::Code) {
        self.add(|counted| *counted.refused.entry(code_name(code)).or_default() += 1);
    }

    /// An order came into a state.
    pub fn order(&self, step: OrderStep) {
        self.add(|counted| *counted.orders.entry(step).or_default() += 1);
    }

    /// An order was settled after so long.
    pub fn settled(&self, step: OrderStep, after: Duration) {
        self.add(|counted| counted.settled.entry(step).or_default().add(after));
    }

    /// A stream took a frame with an order.
    pub fn order_frame(&self) {
        self.add(|counted| counted.order_frames += 1);
    }

    /// A write of a journal conflicted.
    pub fn journal_conflict(&self) {
        self.add(|counted| counted.journal_conflicts += 1);
    }

    /// A session ended because another one took over.
    pub fn session_replaced(&self) {
        self.add(|counted| counted.sessions_replaced += 1);
    }

    /// An event was stored, or was known already.
    pub fn event(&self, is_new: bool) {
        self.add(|counted| {
            let count = if is_new { &mut counted.events } else { &mut counted.events_known };
            *count += 1;
        });
    }

    /// An operation of the ledger ended.
    pub fn operation(&self, verb: Verb, took: Duration, failure: Option<Failure>) {
        self.add(|counted| {
            let operations = counted.ledger.entry(verb).or_default();
            operations.took.add(took);
            if let Some(failure) = failure {
                *operations.failed.entry(failure).or_default() += 1;
            }
        });
    }

    /// Bytes of artifacts were read from the store.
    pub fn artifact_read(&self, bytes: usize) {
        self.add(|counted| counted.artifact_bytes_read += wide(bytes));
    }

    /// Bytes of artifacts came for the store.
    pub fn artifact_written(&self, bytes: usize) {
        self.add(|counted| counted.artifact_bytes_written += wide(bytes));
    }

    /// An agent got a certificate.
    pub fn certificate(&self, asked: Asked) {
        self.add(|counted| *counted.certificates.entry(asked).or_default() += 1);
    }

    /// An agent got no certificate.
    pub fn certificate_refused(&self, asked: Asked, code: &'static str) {
        self.add(|counted| *counted.certificates_refused.entry((asked, code)).or_default() += 1);
    }

    /// A connection was closed before TLS.
    pub fn connection_closed(&self, listener: Listener) {
        self.add(|counted| *counted.connections_closed.entry(listener).or_default() += 1);
    }

    /// Counts the connections that this listener closes before TLS.
    #[must_use]
    pub fn on_closed(self: &Arc<Self>, listener: Listener) -> OnClosed {
        let figures = self.clone();
        Arc::new(move || figures.connection_closed(listener))
    }

    /// Something became of a webhook.
    pub fn webhook(&self, name: &str, change: impl FnOnce(&mut Webhook)) {
        self.add(|counted| change(counted.webhooks.entry(name.to_owned()).or_default()));
    }

    /// These are the webhooks that there are; nothing is kept of others.
    pub fn webhooks(&self, names: &[&str]) {
        self.add(|counted| {
            counted.webhooks.retain(|name, _| names.contains(&name.as_str()));
            for name in names {
                counted.webhooks.entry((*name).to_owned()).or_default();
            }
        });
    }
}

// === names ===

/// The name of a status of gRPC, as its specification writes it, in lower case.
fn code_name(code: tonic::Code) -> &'static str {
    use tonic::Code;

    match code {
        Code::Ok => "ok",
        Code::Cancelled => "cancelled",
        Code::Unknown => "unknown",
        Code::InvalidArgument => "invalid_argument",
        Code::DeadlineExceeded => "deadline_exceeded",
        Code::NotFound => "not_found",
        Code::AlreadyExists => "already_exists",
        Code::PermissionDenied => "permission_denied",
        Code::ResourceExhausted => "resource_exhausted",
        Code::FailedPrecondition => "failed_precondition",
        Code::Aborted => "aborted",
        Code::OutOfRange => "out_of_range",
        Code::Unimplemented => "unimplemented",
        Code::Internal => "internal",
        Code::Unavailable => "unavailable",
        Code::DataLoss => "data_loss",
        Code::Unauthenticated => "unauthenticated",
    }
}

fn wide(bytes: usize) -> u64 {
    u64::try_from(bytes).unwrap_or(u64::MAX)
}
