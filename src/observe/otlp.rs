//! Sends traces and metrics to a collector, where one is configured: OTLP over gRPC.
//!
//! ```text
//!   span ends ─► spans (a layer of the log) ─► bounded queue ─► export (one task) ──┬─► collector
//!   the figures that `/metrics` shows ─► metrics (one task, every now and then) ────┘
//! ```
//!
//! Nothing waits for the collector. While it is away spans wait, up to a bound, and are dropped and
//! counted beyond it; one warning says so, and one line that it is back. Without an endpoint
//! nothing of this runs, and spans cost no more than their place in log lines. Which spans there
//! are is in `docs/tracing.md`; why the exporter is our own in decision 24.

use guest_agent_actors::model::id::BootId;
use opentelemetry_proto::tonic::common::v1::any_value;
use opentelemetry_proto::tonic::resource::v1::Resource;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use crate::config::Config;
use crate::observe::metrics::Sources;

mod attribute;
mod collector;
mod export;
mod headers;
mod metrics;
pub(super) mod queue;
pub(super) mod spans;

use attribute::{attribute, text};
use collector::Collector;
use queue::Queue;

/// The exporters at work.
#[derive(Debug)]
pub struct Telemetry {
    collector: Collector,
    resource: Resource,
    ending: CancellationToken,
    traces: Option<JoinHandle<()>>,
    metrics: Option<JoinHandle<()>>,
}

// === impl Telemetry ===

impl Telemetry {
    /// Begins to export spans, where that is configured, on the runtime of the caller. `None` where
    /// nothing is to be exported. The log makes the spans: `export_spans` hands it their queue.
    #[must_use]
    pub(crate) fn start(
        config: &Config,
        instance_id: &str,
        boot: &BootId,
        export_spans: impl FnOnce(Queue),
    ) -> Option<Self> {
        let wanted = &config.telemetry;
        let endpoint = wanted.otlp_endpoint.clone()?;
        if !wanted.traces && !wanted.metrics {
            return None;
        }
        let collector = Collector {
            endpoint,
            headers_file: wanted.otlp_headers_file.clone(),
            authorities: wanted.otlp_ca_file.clone(),
            timeout: wanted.timeout,
        };
        let resource = resource(&config.agent.name, instance_id, boot);
        let ending = CancellationToken::new();
        let traces = wanted.traces.then(|| {
            let (queue, waiting) = Queue::new();
            let exporter = export::Exporter {
                collector: collector.clone(),
                interval: wanted.interval,
                resource: resource.clone(),
                dropped: queue.dropped.clone(),
                ending: ending.clone(),
            };
            let task = tokio::spawn(exporter.run(waiting));
            export_spans(queue);
            task
        });
        Some(Self { collector, resource, ending, traces, metrics: None })
    }

    /// Begins to export metrics, where that is configured, from these sources.
    pub fn export_metrics(&mut self, config: &Config, sources: Sources) {
        if !config.telemetry.metrics {
            return;
        }
        let exporter = metrics::Exporter {
            collector: self.collector.clone(),
            interval: config.telemetry.metrics_interval,
            resource: self.resource.clone(),
            sources,
            ending: self.ending.clone(),
        };
        self.metrics = Some(tokio::spawn(exporter.run()));
    }

    /// Sends what still waits, once and within a moment.
    pub async fn end(self) {
        self.ending.cancel();
        for task in [self.traces, self.metrics].into_iter().flatten() {
            // Each has a deadline of its own.
            drop(task.await);
        }
    }
}

/// The resource of all messages: this agent and its machine.
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
