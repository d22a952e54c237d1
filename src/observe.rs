//! What the agent shows of itself to those who watch over it.

pub mod metrics;
