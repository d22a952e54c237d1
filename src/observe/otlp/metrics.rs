//! The task that sends metrics: the current values of those of [`crate::observe::metrics`], at
//! intervals.
//!
//! Nothing waits while the collector does not answer: the counters continue, and the next message
//! has all of it.

use std::fmt;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use guest_agent_observe_kit::otlp::{
    Collector, Connected, Ending, Refusal, Standing, beginning, text,
};
use opentelemetry_proto::tonic::collector::metrics::v1::ExportMetricsServiceRequest;
use opentelemetry_proto::tonic::collector::metrics::v1::metrics_service_client::MetricsServiceClient;
use opentelemetry_proto::tonic::common::v1::KeyValue;
use opentelemetry_proto::tonic::metrics::v1::{
    AggregationTemporality, Gauge, Histogram, HistogramDataPoint, Metric, NumberDataPoint,
    ResourceMetrics, ScopeMetrics, Sum, metric, number_data_point,
};
use opentelemetry_proto::tonic::resource::v1::Resource;
use tracing::warn;

use super::collector::scope;
use crate::observe::metrics::Sources;
use crate::observe::metrics::catalogue::{self, Unit};
use crate::observe::metrics::figures::{self, Sink, Value, Values};
use crate::observe::metrics::snapshot::Snapshot;

/// Most samples in one message: collectors take no more than 4 MiB.
const POINTS_MAX: usize = 4000;

/// Exports metrics.
pub(super) struct Exporter {
    pub(super) collector: Collector,
    pub(super) interval: Duration,
    pub(super) resource: Resource,
    pub(super) sources: Sources,
    pub(super) ending: Ending,
}

/// Figures in the form of messages of a bounded size.
#[derive(Debug)]
struct Messages {
    /// When counting began.
    since: u64,
    now: u64,
    messages: Vec<Vec<Metric>>,
    /// How many samples the last message has.
    points: usize,
}

// === impl Exporter ===

impl Exporter {
    /// Sends until the agent ends: once more when it begins to stop, and, where the collector took
    /// that, when all other parts have stopped.
    pub(super) async fn run(self) {
        let mut connected = None;
        let mut standing = Standing::of("metrics");
        // Machines that start at the same time do not send at the same time.
        let mut pause = self.interval.mul_f64(rand::random());
        loop {
            tokio::select! {
                () = tokio::time::sleep(pause) => {}
                () = self.ending.began.cancelled() => break,
            }
            match self.ending.in_time(self.send(&mut connected)).await {
                Some(Ok(())) => standing.is_back(0),
                Some(Err(Refusal::Later(why) | Refusal::Never(why))) => {
                    standing.is_away(&self.collector, &why);
                }
                None => {
                    warn!("the last metrics did not reach the collector");
                    return;
                }
            }
            pause = self.interval.max(standing.pause(&self.collector).unwrap_or_default());
        }
        for _ in 0..2 {
            if !matches!(self.ending.in_time(self.send(&mut connected)).await, Some(Ok(()))) {
                warn!("the last metrics did not reach the collector");
                return;
            }
            self.ending.came.cancelled().await;
        }
    }

    /// Sends all current values, even if the collector rejects some samples.
    async fn send(&self, connected: &mut Option<Connected>) -> Result<(), Refusal> {
        let mut rejected = None;
        let messages = Messages::of(&Snapshot::take(&self.sources).await);
        for metrics in messages {
            let scope_metrics =
                vec![ScopeMetrics { scope: Some(scope()), metrics, ..ScopeMetrics::default() }];
            let resource_metrics = vec![ResourceMetrics {
                resource: Some(self.resource.clone()),
                scope_metrics,
                ..ResourceMetrics::default()
            }];
            let request = ExportMetricsServiceRequest { resource_metrics };
            let export = |connected: Connected| async move {
                let request = connected.request(request);
                MetricsServiceClient::new(connected.connection).export(request).await
            };
            let answer = self.collector.call(connected, export).await?;
            let part = answer.into_inner().partial_success;
            rejected = rejected.or(part.filter(|part| part.rejected_data_points > 0));
        }
        rejected.map_or(Ok(()), |part| {
            let (count, why) = (part.rejected_data_points, beginning(&part.error_message));
            Err(Refusal::Never(format!("it rejected {count} samples: {why}")))
        })
    }
}

// === impl Messages ===

impl Messages {
    fn of(snapshot: &Snapshot) -> Vec<Vec<Metric>> {
        let mut all = Self {
            since: nanos(snapshot.started_at),
            now: nanos(snapshot.now),
            messages: vec![Vec::new()],
            points: 0,
        };
        let written = figures::write(snapshot, &mut all);
        debug_assert!(written.is_ok(), "it is written into memory, which does not fail");
        all.messages
    }

    /// Adds one sample. The samples of a metric are in one message, unless that would be too long.
    fn add(
        &mut self,
        is_first: bool,
        metric: &catalogue::Metric,
        values: &Values<'_>,
        value: &Value,
    ) {
        let is_new = is_first || self.points >= POINTS_MAX;
        if self.points >= POINTS_MAX {
            self.messages.push(Vec::new());
            self.points = 0;
        }
        self.points += 1;
        let attributes = metric.labels.iter().zip(values).map(|(key, value)| text(key, value));
        let attributes: Vec<_> = attributes.collect();
        // The counters of a plugin start again with its process, and not with the agent.
        let since = if metric.labels.contains(&"plugin") { 0 } else { self.since };
        let now = self.now;
        let Some(metrics) = self.messages.last_mut() else { return };
        if is_new {
            metrics.push(empty(metric, value));
        }
        let data = metrics.last_mut().and_then(|metric| metric.data.as_mut());
        match (data, value) {
            (Some(metric::Data::Histogram(all)), Value::Times { sum, count, buckets }) => {
                let ends = buckets.iter().map(|(end, _)| *end).filter(|end| end.is_finite());
                all.data_points.push(HistogramDataPoint {
                    attributes,
                    start_time_unix_nano: since,
                    time_unix_nano: now,
                    count: *count,
                    sum: Some(*sum),
                    bucket_counts: buckets.iter().map(|(_, count)| *count).collect(),
                    explicit_bounds: ends.collect(),
                    ..HistogramDataPoint::default()
                });
            }
            (Some(metric::Data::Sum(all)), value) => {
                all.data_points.push(point(attributes, since, now, value));
            }
            (Some(metric::Data::Gauge(all)), value) => {
                all.data_points.push(point(attributes, 0, now, value));
            }
            _ => {}
        }
    }
}

impl Sink for Messages {
    fn family<'v>(
        &mut self,
        metric: &'static catalogue::Metric,
        samples: impl Iterator<Item = (Values<'v>, Value)>,
    ) -> fmt::Result {
        for (number, (values, value)) in samples.enumerate() {
            self.add(number == 0, metric, &values, &value);
        }
        Ok(())
    }
}

/// A metric without samples, for values like this one. A collector that turns it into Prometheus
/// metrics gets the names of `/metrics`.
fn empty(metric: &catalogue::Metric, value: &Value) -> Metric {
    let temporality = AggregationTemporality::Cumulative.into();
    let data = match value {
        Value::Gauge(_) | Value::Info => metric::Data::Gauge(Gauge::default()),
        Value::Counter(_) | Value::Seconds(_) => metric::Data::Sum(Sum {
            aggregation_temporality: temporality,
            is_monotonic: true,
            ..Sum::default()
        }),
        Value::Times { .. } => metric::Data::Histogram(Histogram {
            aggregation_temporality: temporality,
            ..Histogram::default()
        }),
    };
    let suffix = if matches!(value, Value::Info) { metric.suffix() } else { "" };
    Metric {
        name: format!("{}{suffix}", metric.name),
        description: metric.help.to_owned(),
        unit: match metric.unit {
            Unit::Seconds => "s",
            Unit::Bytes => "By",
            Unit::Number => "",
        }
        .to_owned(),
        data: Some(data),
        ..Metric::default()
    }
}

fn point(attributes: Vec<KeyValue>, since: u64, now: u64, value: &Value) -> NumberDataPoint {
    let value = match value {
        Value::Gauge(number) | Value::Seconds(number) => {
            number_data_point::Value::AsDouble(*number)
        }
        Value::Counter(count) => {
            number_data_point::Value::AsInt(i64::try_from(*count).unwrap_or(i64::MAX))
        }
        Value::Info | Value::Times { .. } => number_data_point::Value::AsInt(1),
    };
    NumberDataPoint {
        attributes,
        start_time_unix_nano: since,
        time_unix_nano: now,
        value: Some(value),
        ..NumberDataPoint::default()
    }
}

fn nanos(at: SystemTime) -> u64 {
    let since = at.duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests;
