//! Families in OpenMetrics, the format that prometheus-client encodes.

use std::fmt;

use prometheus_client::encoding::{DescriptorEncoder, MetricEncoder, NoLabelSet};
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::Unit as WireUnit;

use super::figures::{Sink, Value, Values};
use super::labels::{Labels, encode};
use super::metric::{Kind, Metric, Unit};

/// Writes figures in OpenMetrics' text format.
pub struct OpenMetrics<'a>(pub DescriptorEncoder<'a>);

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
