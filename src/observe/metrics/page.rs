//! The page of a snapshot, in one of the text formats of Prometheus. Pure.

use std::fmt;

use guest_agent_observe_kit::figures::Sink;
pub(crate) use guest_agent_observe_kit::page::Format;
use guest_agent_observe_kit::page::{self, Figures};

use super::figures;
use super::snapshot::Snapshot;

impl Figures for Snapshot {
    fn write(&self, sink: &mut impl Sink) -> fmt::Result {
        figures::write(self, sink)
    }
}

/// The page in a format.
///
/// # Errors
/// The page cannot be encoded.
pub(crate) fn render(snapshot: Snapshot, format: Format) -> Result<String, fmt::Error> {
    page::render(snapshot, format)
}
