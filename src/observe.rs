//! The log, the metrics and the traces of the agent.

pub mod log;
pub mod metrics;
pub mod otlp;
