//! Spans of orders, for a collector: OTLP over gRPC, as agents send theirs.
//!
//! ```text
//!   journal written ─► OrderSpans ─► Queue (bounded) ─► SpanExporter (one task) ─► collector
//! ```
//!
//! Nobody who settles an order waits for the collector. While it does not answer, spans wait in the
//! queue, and those that do not fit are dropped and counted. The ids are made from the message's id
//! alone, so the span is in the trace of the agent's spans of the same order (docs/tracing.md), and
//! any gateway that tells of the order tells of the same span. Decision 79 says why it is no parent
//! of the agent's.

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use async_trait::async_trait;
use guest_agent_observe_kit::otlp::{
    Collector, Connection, Dial, Dropped, Ending, Queue, SpanExporter, number, scope, text,
};
use guest_agent_serve_kit::backoff::{Jitter, Schedule};
use opentelemetry_proto::tonic::resource::v1::Resource;
use opentelemetry_proto::tonic::trace::v1::span::SpanKind;
use opentelemetry_proto::tonic::trace::v1::status::StatusCode;
use opentelemetry_proto::tonic::trace::v1::{Span, Status};
use sha2::{Digest, Sha256};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

use crate::chain::Chain;
use crate::net::outbound::grpc::GrpcServer;

/// Pauses after failures.
const PAUSES: Schedule =
    Schedule::doubling(Duration::from_secs(1), Duration::from_secs(60), Jitter::UpperHalf);

/// What the spans and their resource call this program.
const PROGRAM: &str = "guest-fleet";

/// How spans are exported.
#[derive(Clone, Debug)]
pub struct TraceSettings {
    /// Where the collector is.
    pub endpoint: GrpcServer,
    /// File with headers that it requires, a `name: value` per line; read for every connection.
    pub headers_file: Option<PathBuf>,
    /// Authorities that may have signed its certificate, PEM; those of the machine without it.
    pub ca_file: Option<PathBuf>,
    /// Longest time for which spans wait for others before they are sent.
    pub interval: Duration,
    /// How long the collector may take for one message.
    pub timeout: Duration,
}

/// An exporter that does not run yet; what ends meanwhile waits for it.
#[derive(Debug)]
pub struct Prepared {
    settings: TraceSettings,
    queue: Queue,
    waiting: mpsc::Receiver<Span>,
}

/// The running exporter.
#[derive(Debug)]
pub struct Traces {
    ending: Ending,
    task: JoinHandle<()>,
}

/// Takes orders that ended, and makes spans of them. Clones are the same; without an exporter
/// nothing is made.
#[derive(Clone, Debug, Default)]
pub struct OrderSpans(Option<Queue>);

/// An order that ended.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ended<'a> {
    /// Resource id of the agent.
    pub(crate) resource: &'a str,
    pub(crate) plugin: &'a str,
    /// Empty where the plugin was to be removed.
    pub(crate) revision: &'a str,
    pub(crate) generation: u64,
    pub(crate) assignment: &'a str,
    pub(crate) message_id: &'a str,
    pub(crate) outcome: Outcome<'a>,
    pub(crate) made: SystemTime,
    pub(crate) ended: SystemTime,
}

/// How it ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome<'a> {
    /// It was carried out.
    Ok,
    /// It failed or was refused, for this reason.
    Failed(&'a str),
    /// The agent took it back, for this reason.
    TakenBack(&'a str),
    /// A newer order took its place.
    Superseded,
}

/// The trace of a message as its agent names it: the first 16 bytes of a digest (docs/tracing.md).
pub(crate) fn trace_id(message_id: &str) -> Vec<u8> {
    let digest = Sha256::digest(format!("guest-agent\0trace\0message\0{message_id}"));
    digest[..16].to_vec()
}

/// The span of the order that a message carries.
fn span_id(message_id: &str) -> Vec<u8> {
    let digest = Sha256::digest(format!("guest-fleet\0span\0order\0{message_id}"));
    digest[..8].to_vec()
}

// === impl Prepared ===

impl Prepared {
    /// An exporter with these settings.
    #[must_use]
    pub fn new(settings: TraceSettings) -> Self {
        let (queue, waiting) = Queue::new();
        Self { settings, queue, waiting }
    }

    /// What makes the spans.
    #[must_use]
    pub fn spans(&self) -> OrderSpans {
        OrderSpans(Some(self.queue.clone()))
    }

    /// Begins to export, on the caller's runtime, as this instance.
    #[must_use]
    pub fn start(self, instance: &str) -> Traces {
        let Self { settings, queue, waiting } = self;
        let ending = Ending::default();
        let way = Way { endpoint: settings.endpoint, ca: settings.ca_file };
        let collector = Collector {
            dial: Arc::new(way),
            headers_file: settings.headers_file,
            timeout: settings.timeout,
        };
        let version = env!("CARGO_PKG_VERSION");
        let attributes = vec![
            text("service.name", PROGRAM),
            text("service.version", version),
            text("service.instance.id", instance),
            number("process.pid", std::process::id().into()),
        ];
        let exporter = SpanExporter {
            collector,
            interval: settings.interval,
            resource: Resource { attributes, ..Resource::default() },
            scope: scope(PROGRAM, version),
            dropped: queue.dropped(),
            ending: ending.clone(),
        };
        let task = tokio::spawn(exporter.run(waiting));
        Traces { ending, task }
    }
}

// === impl Traces ===

impl Traces {
    /// Sends the spans that wait. A collector that does not answer within half a second is not
    /// waited for.
    pub async fn end(self) {
        self.ending.began.cancel();
        self.ending.came.cancel();
        // It has a deadline of its own.
        drop(self.task.await);
    }
}

// === impl OrderSpans ===

impl OrderSpans {
    /// What is counted of spans that no collector gets; `None` where none are made.
    #[must_use]
    pub fn dropped(&self) -> Option<Dropped> {
        self.0.as_ref().map(Queue::dropped)
    }

    pub(crate) fn ended(&self, order: &Ended<'_>) {
        if let Some(queue) = &self.0 {
            queue.put(order.span());
        }
    }
}

// === impl Ended ===

impl Ended<'_> {
    fn span(&self) -> Span {
        let attributes = vec![
            text("resource", self.resource),
            text("plugin", self.plugin),
            text("revision", self.revision),
            number("generation", self.generation),
            text("assignment", self.assignment),
            text("message_id", self.message_id),
            text("outcome", self.outcome.name()),
        ];
        let (start, end) = (nanos(self.made), nanos(self.ended));
        Span {
            trace_id: trace_id(self.message_id),
            span_id: span_id(self.message_id),
            name: "order".to_owned(),
            kind: SpanKind::Internal.into(),
            start_time_unix_nano: start,
            end_time_unix_nano: end.max(start),
            attributes,
            status: self.outcome.status(),
            // Sampled.
            flags: 1,
            ..Span::default()
        }
    }
}

// === impl Outcome ===

impl<'a> Outcome<'a> {
    /// Its name, which is that of the agent's spans where they have one.
    const fn name(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Failed(_) => "failed",
            Self::TakenBack(_) => "taken_back",
            Self::Superseded => "superseded",
        }
    }

    fn status(self) -> Option<Status> {
        let status = |code: StatusCode, message: &'a str| {
            Some(Status { code: code.into(), message: message.to_owned() })
        };
        match self {
            Self::Ok => status(StatusCode::Ok, ""),
            Self::Failed(reason) | Self::TakenBack(reason) => status(StatusCode::Error, reason),
            Self::Superseded => None,
        }
    }
}

fn nanos(at: SystemTime) -> u64 {
    let since = at.duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
}

/// The way to the collector.
#[derive(Debug)]
struct Way {
    endpoint: GrpcServer,
    ca: Option<PathBuf>,
}

// === impl Way ===

impl fmt::Display for Way {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.endpoint.fmt(formatter)
    }
}

#[async_trait]
impl Dial for Way {
    async fn dial(&self) -> Result<Connection, String> {
        let connected = self.endpoint.connect(self.ca.as_deref()).await;
        connected.map_err(|error| Chain(&error).to_string())
    }

    fn pause(&self, failures: u32, random: f64) -> Duration {
        PAUSES.wait(failures.saturating_sub(1), random)
    }
}

#[cfg(test)]
mod tests;
