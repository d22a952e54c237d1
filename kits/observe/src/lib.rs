//! What the agent and its fleet have in common where they are observed: how a catalogue of metrics is
//! written down, histograms of durations, the page in the text formats that Prometheus reads, how
//! lines of the log look, and how spans get to a collector.
//!
//! ```text
//!   catalogue! ─► Metric ─┐
//!   values ───────────────┴─► Writer ─► Sink ─┬─► OpenMetrics ─────┬─► page
//!                                             ├─► PrometheusText ──┘
//!                                             └─► a sink of the caller, such as OTLP
//!   event ─► json_lines | text_fields ─► a line of the log
//!   span ─► otlp::Queue ─► otlp::SpanExporter ─► a collector
//! ```
//!
//! It knows neither where values come from nor who asks for the page.

#![warn(missing_docs)]

pub mod chain;
pub mod figures;
pub mod histogram;
pub mod json_lines;
mod labels;
pub mod metric;
pub mod open_metrics;
#[cfg(feature = "otlp")]
pub mod otlp;
pub mod page;
mod prometheus_text;
pub mod text_fields;
