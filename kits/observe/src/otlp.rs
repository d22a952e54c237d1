//! Spans and other messages for a collector: OTLP over gRPC.
//!
//! ```text
//!   who makes spans ─► Queue (bounded) ─► SpanExporter (one task) ─┐
//!   other messages of the caller ──────────────────────────────────┴─► Collector ─► dyn Dial
//! ```
//!
//! Nobody who makes a span waits: one that does not fit is dropped and counted. How the collector
//! is reached is the caller's.

mod attribute;
mod collector;
mod export;
mod headers;
mod queue;

pub use attribute::{attribute, number, scope, text};
pub use collector::{
    CallError, Collector, Connected, Connection, Dial, Ending, Refusal, Standing, beginning,
};
pub use export::SpanExporter;
pub use headers::HeadersError;
pub use queue::{Dropped, Queue, WAITING_MAX};
