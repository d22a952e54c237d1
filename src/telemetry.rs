//! Sends traces to a collector, where one is configured: OTLP over gRPC.
//!
//! ```text
//!   span ends ─► spans (a layer of the log) ─► bounded queue ─► export (one task) ─► collector
//! ```
//!
//! Nothing waits for the collector. While it is away spans wait, up to a bound, and are dropped and counted beyond
//! it; one warning says so, and one line that it is back. Without an endpoint nothing of this runs, and spans
//! cost no more than their place in log lines. Which spans there are is in `docs/tracing.md`; why the exporter
//! is our own in decision 24.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use guest_agent_actors::id::BootId;
use opentelemetry_proto::tonic::common::v1::{AnyValue, KeyValue, any_value};
use opentelemetry_proto::tonic::resource::v1::Resource;
use opentelemetry_proto::tonic::trace::v1::Span;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use crate::config::Config;
use crate::logging;

mod export;
mod headers;
pub(crate) mod spans;

/// Most spans that wait for the collector.
const WAITING_MAX: usize = 2048;

/// Where spans go that have ended. Never waits: what there is no room for is counted.
#[derive(Clone, Debug)]
pub(crate) struct Queue {
    spans: mpsc::Sender<Span>,
    dropped: Arc<AtomicU64>,
}

/// The exporter at work.
#[derive(Debug)]
pub struct Telemetry {
    ending: CancellationToken,
    task: JoinHandle<()>,
}

// === impl Queue ===

impl Queue {
    fn new() -> (Self, mpsc::Receiver<Span>) {
        let (spans, waiting) = mpsc::channel(WAITING_MAX);
        (Self { spans, dropped: Arc::default() }, waiting)
    }

    pub(crate) fn put(&self, span: Span) {
        if self.spans.try_send(span).is_err() {
            self.dropped.fetch_add(1, Ordering::Relaxed);
        }
    }
}

// === impl Telemetry ===

impl Telemetry {
    /// Begins to export what is configured to be, on the runtime of whoever calls; nothing, where nothing is.
    #[must_use]
    pub fn start(config: &Config, instance_id: &str, boot: &BootId) -> Option<Self> {
        let endpoint = config.telemetry.otlp_endpoint.clone()?;
        if !config.telemetry.traces {
            return None;
        }
        let (queue, waiting) = Queue::new();
        let ending = CancellationToken::new();
        let exporter = export::Exporter {
            endpoint,
            headers_file: config.telemetry.otlp_headers_file.clone(),
            authorities: config.telemetry.otlp_ca_file.clone(),
            interval: config.telemetry.interval,
            timeout: config.telemetry.timeout,
            resource: resource(&config.agent.name, instance_id, boot),
            dropped: queue.dropped.clone(),
            ending: ending.clone(),
        };
        let task = tokio::spawn(exporter.run(waiting));
        logging::export_spans(queue);
        Some(Self { ending, task })
    }

    /// Sends what still waits, once and within a moment.
    pub async fn end(self) {
        self.ending.cancel();
        // It has a deadline of its own.
        drop(self.task.await);
    }
}

/// Who exports.
fn resource(name: &str, instance_id: &str, boot: &BootId) -> Resource {
    let attributes = [
        ("service.name", name),
        ("service.version", env!("CARGO_PKG_VERSION")),
        ("service.instance.id", instance_id),
        ("host.id", instance_id),
        ("host.boot.id", &boot.0),
    ];
    let attributes = attributes.into_iter().filter(|(_, value)| !value.is_empty());
    let mut attributes: Vec<_> = attributes.map(|(key, value)| text(key, value)).collect();
    attributes
        .push(attribute("process.pid", any_value::Value::IntValue(std::process::id().into())));
    Resource { attributes, ..Resource::default() }
}

fn text(key: &str, value: &str) -> KeyValue {
    attribute(key, any_value::Value::StringValue(value.to_owned()))
}

fn attribute(key: &str, value: any_value::Value) -> KeyValue {
    let value = Some(AnyValue { value: Some(value) });
    KeyValue { key: key.to_owned(), value, ..KeyValue::default() }
}
