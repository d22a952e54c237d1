//! Labels of a sample, as prometheus-client encodes them.

use std::fmt;

use prometheus_client::encoding::{EncodeLabelSet, LabelSetEncoder, MetricEncoder};

use super::figures::Values;

/// Encodes a value, with its labels if it has any.
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
