//! The page: figures in OpenMetrics' text format. Pure.

use std::fmt;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{
    DescriptorEncoder, EncodeLabelSet, LabelSetEncoder, MetricEncoder, NoLabelSet, text,
};
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::{Registry, Unit as WireUnit};

use super::catalogue::{Kind, Metric, Unit};
use super::figures::{self, Sink, Value, Values};
use super::snapshot::Snapshot;

/// The page in OpenMetrics' text format.
pub(super) fn render(snapshot: Snapshot) -> Result<String, fmt::Error> {
    let mut registry = Registry::default();
    registry.register_collector(Box::new(Page(snapshot)));
    let mut page = String::new();
    text::encode(&mut page, &registry)?;
    Ok(page)
}

#[derive(Debug)]
struct Page(Snapshot);

impl Collector for Page {
    fn encode(&self, encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let Self(snapshot) = self;
        figures::write(snapshot, &mut Text(encoder))
    }
}

/// Writes figures as text.
pub(super) struct Text<'a>(pub(super) DescriptorEncoder<'a>);

// === impl Text ===

impl Sink for Text<'_> {
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

impl Text<'_> {
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
fn encode(
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
struct Labels<'a> {
    names: &'static [&'static str],
    values: Values<'a>,
}

impl EncodeLabelSet for Labels<'_> {
    fn encode(&self, encoder: &mut LabelSetEncoder<'_>) -> fmt::Result {
        let pairs = self.names.iter().copied().zip(self.values.iter().copied());
        let pairs: Vec<(&str, &str)> = pairs.collect();
        pairs.encode(encoder)
    }
}
