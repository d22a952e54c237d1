//! Sends traces, metrics and the logs of plugins to a collector, where one is configured: OTLP over gRPC.
//!
//! ```text
//!   span ends ─► spans (a layer of the log) ─► bounded queue ─► export (one task) ──┬─► collector
//!   the figures that `/metrics` shows ─► metrics (one task, every now and then) ────┤
//!   lines of plugins' logs ─► `crate::forward` ─► logs ─────────────────────────────┘
//! ```
//!
//! No part of the agent waits for the collector. While it does not answer, spans wait in a bounded
//! queue, and are dropped and counted when it is full; one warning says so, and one line says that
//! it answers again. Without an endpoint none of this runs, and spans cost no more than their fields
//! in log lines. The queue, the export and the answers of a collector are in `kits/observe`.
//! `docs/tracing.md` lists the spans; decision 24 says why the exporter is our own.

use guest_agent_actors::model::id::BootId;
use guest_agent_observe_kit::otlp::{self, Collector, Ending, Queue, SpanExporter};
use opentelemetry_proto::tonic::resource::v1::Resource;
use tokio::task::JoinHandle;

use crate::config::Config;
use crate::observe::metrics::Sources;

mod collector;
pub(crate) mod logs;
mod metrics;
pub(super) mod spans;

/// The running exporters.
#[derive(Debug)]
pub struct Telemetry {
    collector: Collector,
    resource: Resource,
    ending: Ending,
    traces: Option<JoinHandle<()>>,
    metrics: Option<JoinHandle<()>>,
}

// === impl Telemetry ===

impl Telemetry {
    /// Begins to export spans, where that is configured, on the caller's runtime. `None` where
    /// nothing is to be exported. The log makes the spans: `export_spans` gives it their queue.
    #[must_use]
    pub(crate) fn start(
        config: &Config,
        instance_id: &str,
        boot: &BootId,
        export_spans: impl FnOnce(Queue),
    ) -> Option<Self> {
        let wanted = &config.telemetry;
        let collector = collector::configured(wanted)?;
        if !wanted.traces && !wanted.metrics {
            return None;
        }
        let resource = resource(&config.agent.name, instance_id, boot);
        let ending = Ending::default();
        let traces = wanted.traces.then(|| {
            let (queue, waiting) = Queue::new();
            let exporter = SpanExporter {
                collector: collector.clone(),
                interval: wanted.interval,
                resource: resource.clone(),
                scope: collector::scope(),
                dropped: queue.dropped(),
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

    /// The agent begins to stop: sends the spans that wait, while other parts stop.
    pub(crate) fn flush(&self) {
        self.ending.began.cancel();
    }

    /// All other parts have stopped: sends the spans that ended meanwhile. A collector that has not
    /// answered within half a second since `flush` is not waited for.
    pub async fn end(self) {
        self.flush();
        self.ending.came.cancel();
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
    let mut attributes: Vec<_> = attributes.map(|(key, value)| otlp::text(key, value)).collect();
    attributes.push(otlp::number("process.pid", std::process::id().into()));
    Resource { attributes, ..Resource::default() }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use opentelemetry_proto::tonic::trace::v1::Span;
    use tokio::net::UnixListener;
    use tokio::time::Instant;

    use super::*;
    use crate::config::TelemetryConfig;

    /// Exports to a collector that accepts every connection and reads from none.
    fn swallowed() -> (Telemetry, Queue, UnixListener, tempfile::TempDir) {
        let folder = tempfile::tempdir().expect("a directory");
        let path = folder.path().join("collector.sock");
        let listener = UnixListener::bind(&path).expect("a socket");
        let endpoint = format!("unix:{}", path.display()).parse().expect("an endpoint");
        let telemetry = TelemetryConfig {
            otlp_endpoint: Some(endpoint),
            traces: true,
            metrics: false,
            ..TelemetryConfig::default()
        };
        let config = Config { telemetry, ..Config::default() };
        let mut queue = None;
        let boot = BootId("boot".into());
        let started = Telemetry::start(&config, "instance", &boot, |it| queue = Some(it));
        let (started, queue) = (started.expect("it exports"), queue.expect("a queue"));
        queue.put(Span::default());
        (started, queue, listener, folder)
    }

    #[tokio::test(start_paused = true)]
    async fn a_collector_that_swallows_messages_takes_no_time_of_its_own_when_the_agent_stops() {
        let (telemetry, _queue, _listener, _folder) = swallowed();
        tokio::time::sleep(Duration::from_secs(60)).await;
        telemetry.flush();
        // What the other parts take.
        tokio::time::sleep(Duration::from_millis(600)).await;
        let began = Instant::now();
        telemetry.end().await;
        assert_eq!(began.elapsed(), Duration::ZERO);
    }

    #[tokio::test(start_paused = true)]
    async fn an_agent_that_stops_at_once_waits_for_half_a_second_at_most() {
        let (telemetry, _queue, _listener, _folder) = swallowed();
        tokio::time::sleep(Duration::from_secs(60)).await;
        let began = Instant::now();
        telemetry.end().await;
        assert!(began.elapsed() <= Duration::from_millis(501), "{:?}", began.elapsed());
    }
}
