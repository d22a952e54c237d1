//! The page: figures in one of the text formats of Prometheus. Pure.

use std::fmt;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{
    DescriptorEncoder, EncodeLabelSet, LabelSetEncoder, MetricEncoder, NoLabelSet, text,
};
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::{Registry, Unit as WireUnit};

use super::catalogue::{Kind, Metric, Unit};
use super::figures::{self, Sink, Value, Values};
use super::prometheus_text::PrometheusText;
use super::snapshot::Snapshot;

/// The text formats of Prometheus.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Format {
    /// OpenMetrics 1.0.0.
    OpenMetrics,
    /// What Prometheus has always read: its text format 0.0.4.
    Prometheus,
}

/// The page in a format.
///
/// # Errors
/// When it cannot be encoded.
pub(crate) fn render(snapshot: Snapshot, format: Format) -> Result<String, fmt::Error> {
    let mut registry = Registry::default();
    registry.register_collector(Box::new(Page { snapshot, format }));
    let mut page = String::new();
    match format {
        Format::OpenMetrics => text::encode(&mut page, &registry)?,
        // The line that says where the page ends is OpenMetrics' own.
        Format::Prometheus => text::encode_registry(&mut page, &registry)?,
    }
    Ok(page)
}

#[derive(Debug)]
struct Page {
    snapshot: Snapshot,
    format: Format,
}

impl Collector for Page {
    fn encode(&self, encoder: DescriptorEncoder<'_>) -> fmt::Result {
        match self.format {
            Format::OpenMetrics => figures::write(&self.snapshot, &mut OpenMetrics(encoder)),
            Format::Prometheus => figures::write(&self.snapshot, &mut PrometheusText(encoder)),
        }
    }
}

/// Writes figures in OpenMetrics' text format.
pub(super) struct OpenMetrics<'a>(pub(super) DescriptorEncoder<'a>);

// === impl OpenMetrics ===

impl Sink for OpenMetrics<'_> {
    fn family<'v>(
        &mut self,
        metric: &'static Metric,
        samples: impl Iterator<Item = (Values<'v>, Value)>,
    ) -> fmt::Result {
        let mut samples = samples.peekable();
        if samples.peek().is_none() {
            return Ok(());
        }
        let mut encoder = self.describe(metric)?;
        for (values, value) in samples {
            let labels = Labels { names: metric.labels, values };
            match value {
                Value::Info => encoder.encode_info(&labels),
                Value::Gauge(value) => {
                    encode(&mut encoder, &labels, |encoder| encoder.encode_gauge(&value))
                }
                Value::Counter(value) => encode(&mut encoder, &labels, |encoder| {
                    encoder.encode_counter::<NoLabelSet, u64, f64>(&value, None)
                }),
                Value::Seconds(value) => encode(&mut encoder, &labels, |encoder| {
                    encoder.encode_counter::<NoLabelSet, f64, f64>(&value, None)
                }),
                Value::Times { sum, count, buckets } => encode(&mut encoder, &labels, |encoder| {
                    encoder.encode_histogram::<NoLabelSet>(sum, count, &buckets, None)
                }),
            }?;
        }
        Ok(())
    }
}

impl OpenMetrics<'_> {
    fn describe<'s>(&'s mut self, metric: &Metric) -> Result<MetricEncoder<'s>, fmt::Error> {
        let kind = match metric.kind {
            Kind::Gauge => MetricType::Gauge,
            Kind::Counter => MetricType::Counter,
            Kind::Histogram => MetricType::Histogram,
            Kind::Info => MetricType::Info,
        };
        let unit = match metric.unit {
            Unit::Seconds => Some(&WireUnit::Seconds),
            Unit::Bytes => Some(&WireUnit::Bytes),
            Unit::Number => None,
        };
        self.0.encode_descriptor(metric.name, metric.help, unit, kind)
    }
}

/// Encodes a value, with its labels where it has any.
pub(super) fn encode(
    encoder: &mut MetricEncoder<'_>,
    labels: &Labels<'_>,
    encode: impl FnOnce(&mut MetricEncoder<'_>) -> fmt::Result,
) -> fmt::Result {
    if labels.values.is_empty() {
        encode(encoder)
    } else {
        encode(&mut encoder.encode_family(labels)?)
    }
}

/// Names and values of a sample's labels; values may be any text.
pub(super) struct Labels<'a> {
    pub(super) names: &'static [&'static str],
    pub(super) values: Values<'a>,
}

impl EncodeLabelSet for Labels<'_> {
    fn encode(&self, encoder: &mut LabelSetEncoder<'_>) -> fmt::Result {
        let pairs = self.names.iter().copied().zip(self.values.iter().copied());
        let pairs: Vec<(&str, &str)> = pairs.collect();
        pairs.encode(encoder)
    }
}
