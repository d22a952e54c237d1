//! Log lines as JSON: one object per line, without nesting.
//!
//! ```json
//! {"timestamp":"2026-05-01T12:00:00.000000Z","level":"INFO","target":"guest_agent_actors::plugin",
//!  "message":"Installed","plugin":"a","revision":"1","order":7,"message_id":"…","span":"order"}
//! ```
//!
//! A line also has the fields of the spans that it was logged in: a search for a `message_id` or an
//! `order` finds the lines of all parts of the program. A field of the line itself takes precedence
//! over a span's field of the same name, and an inner span over an outer one.

use std::fmt;

use serde_json::{Map, Value};
use tracing::field::{Field, Visit};
use tracing::{Event, Subscriber};
use tracing_subscriber::fmt::format::{JsonFields, Writer};
use tracing_subscriber::fmt::time::{FormatTime, SystemTime};
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormattedFields};
use tracing_subscriber::registry::LookupSpan;

use crate::text_fields::is_plumbing;

/// Formats events as JSON.
#[derive(Clone, Copy, Debug, Default)]
pub struct JsonLines;

impl<S> FormatEvent<S, JsonFields> for JsonLines
where
    S: Subscriber + for<'a> LookupSpan<'a>,
{
    fn format_event(
        &self,
        context: &FmtContext<'_, S, JsonFields>,
        mut writer: Writer<'_>,
        event: &Event<'_>,
    ) -> fmt::Result {
        let mut time = String::new();
        SystemTime.format_time(&mut Writer::new(&mut time))?;
        let metadata = event.metadata();
        let mut line = Map::new();
        line.insert("timestamp".to_owned(), time.into());
        line.insert("level".to_owned(), metadata.level().as_str().into());
        line.insert("target".to_owned(), metadata.target().into());
        line.extend(own_fields(event));
        inherit(context, &mut line);
        let line = serde_json::to_string(&line).map_err(|_| fmt::Error)?;
        writeln!(writer, "{line}")
    }
}

/// The fields of an event, of which its message is one.
#[must_use]
pub fn own_fields(event: &Event<'_>) -> Map<String, Value> {
    let mut fields = Map::new();
    event.record(&mut Fields(&mut fields));
    fields
}

/// Adds the fields of the spans around an event, and the name of the inner one.
pub fn inherit<S>(context: &FmtContext<'_, S, JsonFields>, line: &mut Map<String, Value>)
where
    S: Subscriber + for<'a> LookupSpan<'a>,
{
    let Some(span) = context.lookup_current() else { return };
    line.entry("span").or_insert_with(|| span.name().into());
    for span in span.scope() {
        let extensions = span.extensions();
        let Some(fields) = extensions.get::<FormattedFields<JsonFields>>() else { continue };
        let Ok(fields) = serde_json::from_str::<Map<String, Value>>(&fields.fields) else {
            continue;
        };
        for (name, value) in fields.into_iter().filter(|(name, _)| !is_plumbing(name)) {
            line.entry(name).or_insert(value);
        }
    }
}

/// Puts the fields of an event into an object.
struct Fields<'a>(&'a mut Map<String, Value>);

impl Fields<'_> {
    fn put(&mut self, field: &Field, value: impl Into<Value>) {
        let name = field.name();
        self.0.insert(name.strip_prefix("r#").unwrap_or(name).to_owned(), value.into());
    }
}

impl Visit for Fields<'_> {
    fn record_f64(&mut self, field: &Field, value: f64) {
        self.put(field, value);
    }

    fn record_i64(&mut self, field: &Field, value: i64) {
        self.put(field, value);
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        self.put(field, value);
    }

    fn record_bool(&mut self, field: &Field, value: bool) {
        self.put(field, value);
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.put(field, value);
    }

    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.put(field, format!("{value:?}"));
    }
}
