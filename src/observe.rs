//! The log, the metrics and the traces of the agent, and how its forwarding of other logs fares.

pub mod forwarding;
pub mod log;
pub mod metrics;
pub mod otlp;
