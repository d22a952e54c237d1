//! Fields in lines for people: all but those that are for exporters alone.

use std::error::Error;
use std::fmt;

use tracing::field::{Field, Visit};
use tracing_subscriber::field::{RecordFields, VisitOutput};
use tracing_subscriber::fmt::FormatFields;
use tracing_subscriber::fmt::format::{DefaultVisitor, Writer};

/// Whether a field is for exporters alone.
#[must_use]
pub fn is_plumbing(name: &str) -> bool {
    name.starts_with("otel.")
}

/// Formats fields as the default does, without those for exporters.
#[derive(Clone, Copy, Debug, Default)]
pub struct TextFields;

impl<'w> FormatFields<'w> for TextFields {
    fn format_fields<R: RecordFields>(&self, writer: Writer<'w>, fields: R) -> fmt::Result {
        let mut visitor = Shown(DefaultVisitor::new(writer, true));
        fields.record(&mut visitor);
        visitor.0.finish()
    }
}

struct Shown<'w>(DefaultVisitor<'w>);

impl Visit for Shown<'_> {
    fn record_str(&mut self, field: &Field, value: &str) {
        if !is_plumbing(field.name()) {
            self.0.record_str(field, value);
        }
    }

    fn record_error(&mut self, field: &Field, value: &(dyn Error + 'static)) {
        if !is_plumbing(field.name()) {
            self.0.record_error(field, value);
        }
    }

    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        if !is_plumbing(field.name()) {
            self.0.record_debug(field, value);
        }
    }
}
