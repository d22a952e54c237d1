//! The page: figures in one of the text formats of Prometheus. Pure.

use std::fmt;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, text};
use prometheus_client::registry::Registry;

use crate::figures::Sink;
use crate::open_metrics::OpenMetrics;
use crate::prometheus_text::PrometheusText;

/// The text formats of Prometheus.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// OpenMetrics 1.0.0.
    OpenMetrics,
    /// The format that every Prometheus reads: its text format 0.0.4.
    Prometheus,
}

/// What a page is made from.
pub trait Figures: fmt::Debug + Send + Sync + 'static {
    /// Writes all metrics.
    ///
    /// # Errors
    /// The sink cannot write.
    fn write(&self, sink: &mut impl Sink) -> fmt::Result;
}

/// The page in a format.
///
/// # Errors
/// The page cannot be encoded.
pub fn render(figures: impl Figures, format: Format) -> Result<String, fmt::Error> {
    let mut registry = Registry::default();
    registry.register_collector(Box::new(Page { figures, format }));
    let mut page = String::new();
    match format {
        Format::OpenMetrics => text::encode(&mut page, &registry)?,
        // Only OpenMetrics has a line that marks the end of the page.
        Format::Prometheus => text::encode_registry(&mut page, &registry)?,
    }
    Ok(page)
}

#[derive(Debug)]
struct Page<F> {
    figures: F,
    format: Format,
}

impl<F: Figures> Collector for Page<F> {
    fn encode(&self, encoder: DescriptorEncoder<'_>) -> fmt::Result {
        match self.format {
            Format::OpenMetrics => self.figures.write(&mut OpenMetrics(encoder)),
            Format::Prometheus => self.figures.write(&mut PrometheusText(encoder)),
        }
    }
}

// === impl Format ===

impl Format {
    /// The format for a client that sent these `Accept` headers: OpenMetrics where it takes that.
    /// All others get what Prometheus has always read, which a person can read as well.
    #[must_use]
    pub fn accepted<'a>(accept: impl IntoIterator<Item = &'a str>) -> Self {
        let mut ranges = accept.into_iter().flat_map(|value| value.split(','));
        let takes_open_metrics = ranges.any(|range| {
            let mut parts = range.split(';').map(str::trim);
            let is_it = parts
                .next()
                .is_some_and(|kind| kind.eq_ignore_ascii_case("application/openmetrics-text"));
            let is_refused = parts.any(|parameter| {
                let quality = parameter.strip_prefix("q=").map(str::parse::<f32>);
                matches!(quality, Some(Ok(quality)) if quality <= 0.0)
            });
            is_it && !is_refused
        });
        if takes_open_metrics { Self::OpenMetrics } else { Self::Prometheus }
    }

    /// The value of the header `Content-Type`.
    #[must_use]
    pub const fn content_type(self) -> &'static str {
        match self {
            Self::OpenMetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
            Self::Prometheus => "text/plain; version=0.0.4; charset=utf-8",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clients_get_the_format_that_they_read() {
        let takes = |accept: &str| Format::accepted([accept]) == Format::OpenMetrics;
        let prometheus = "application/openmetrics-text;version=1.0.0;q=0.5,\
                          application/openmetrics-text;version=0.0.1;q=0.4,\
                          text/plain;version=0.0.4;q=0.3,*/*;q=0.2";
        assert!(takes(prometheus));
        assert!(takes("Application/OpenMetrics-Text"));
        assert!(!takes("application/openmetrics-text;q=0, text/plain"));
        assert!(!takes("text/html,application/xhtml+xml,*/*;q=0.8"));
        assert_eq!(Format::accepted([]), Format::Prometheus);
    }
}
