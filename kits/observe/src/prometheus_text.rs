//! Families in the text format 0.0.4: a family has the name of its samples and no unit, and info is
//! a gauge.
//!
//! The encoder of prometheus-client knows OpenMetrics alone, where a counter is encoded with the
//! suffix `_total` and an info with `_info`. Here the suffix is a part of the name that is
//! described, and the sample is encoded as a gauge, which has none.

use std::fmt;

use prometheus_client::encoding::{DescriptorEncoder, MetricEncoder, NoLabelSet};
use prometheus_client::metrics::MetricType;

use super::figures::{Sink, Value, Values};
use super::labels::{Labels, encode};
use super::metric::{Kind, Metric};

/// Writes figures in the text format 0.0.4.
pub(super) struct PrometheusText<'a>(pub(super) DescriptorEncoder<'a>);

// === impl PrometheusText ===

impl Sink for PrometheusText<'_> {
    fn family<'v>(
        &mut self,
        metric: &'static Metric,
        samples: impl Iterator<Item = (Values<'v>, Value)>,
    ) -> fmt::Result {
        let mut samples = samples.peekable();
        if samples.peek().is_none() {
            return Ok(());
        }
        let kind = match metric.kind {
            Kind::Gauge | Kind::Info => MetricType::Gauge,
            Kind::Counter => MetricType::Counter,
            Kind::Histogram => MetricType::Histogram,
        };
        let name = format!("{}{}", metric.family(), metric.suffix());
        let mut encoder = self.0.encode_descriptor(&name, metric.help, None, kind)?;
        for (values, value) in samples {
            let labels = Labels { names: metric.labels, values };
            encode(&mut encoder, &labels, |encoder| sample(encoder, &value))?;
        }
        Ok(())
    }
}

fn sample(encoder: &mut MetricEncoder<'_>, value: &Value) -> fmt::Result {
    match value {
        Value::Info => encoder.encode_gauge(&1_u64),
        Value::Counter(value) => encoder.encode_gauge(value),
        Value::Gauge(value) | Value::Seconds(value) => encoder.encode_gauge(value),
        Value::Times { sum, count, buckets } => {
            encoder.encode_histogram::<NoLabelSet>(*sum, *count, buckets, None)
        }
    }
}
