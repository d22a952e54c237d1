//! What the agent shows of itself to those who watch over it.

pub mod log;
pub mod metrics;
pub mod otlp;
