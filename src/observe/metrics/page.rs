//! The page: figures in one of the text formats of Prometheus. Pure.

use std::fmt;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, text};
use prometheus_client::registry::Registry;

use super::figures;
use super::open_metrics::OpenMetrics;
use super::prometheus_text::PrometheusText;
use super::snapshot::Snapshot;

/// The text formats of Prometheus.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Format {
    /// OpenMetrics 1.0.0.
    OpenMetrics,
    /// The format that every Prometheus reads: its text format 0.0.4.
    Prometheus,
}

/// The page in a format.
///
/// # Errors
/// The page cannot be encoded.
pub(crate) fn render(snapshot: Snapshot, format: Format) -> Result<String, fmt::Error> {
    let mut registry = Registry::default();
    registry.register_collector(Box::new(Page { snapshot, format }));
    let mut page = String::new();
    match format {
        Format::OpenMetrics => text::encode(&mut page, &registry)?,
        // Only OpenMetrics has a line that marks the end of the page.
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
