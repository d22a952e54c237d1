//! A layer of the log that turns spans of `tracing` into OTLP spans, and passes them on when they
//! end.
//!
//! The layer follows only spans that belong to a trace: a span with the field `trace_id`, and all
//! spans below one. A span ends when its field `otel.end` says so, and at the latest when its last
//! handle is dropped; connections hold the span they were opened in. A span that has a field
//! `outcome` ends when the outcome is known, and is not exported without it: another part of the
//! agent, or the agent after a restart, continues the span under the same id.
//!
//! A collector should not get spans whose parent never arrives, because the agent was killed before
//! the parent ended. So a span that ended is passed on together with its parent, unless the parent
//! is exported without it.

use std::fmt;
use std::sync::{Arc, OnceLock};
use std::time::{SystemTime, UNIX_EPOCH};

use guest_agent_actors::trace::{SpanId, TraceId};
use guest_agent_observe_kit::otlp::{Queue, attribute, text};
use opentelemetry_proto::tonic::common::v1::{KeyValue, any_value};
use opentelemetry_proto::tonic::trace::v1::span::{Event as SpanEvent, SpanKind};
use opentelemetry_proto::tonic::trace::v1::status::StatusCode;
use opentelemetry_proto::tonic::trace::v1::{Span as WireSpan, Status};
use tracing::field::{Field, Visit};
use tracing::level_filters::LevelFilter;
use tracing::span::{Attributes, Id, Record};
use tracing::subscriber::Interest;
use tracing::{Event, Level, Metadata, Subscriber};
use tracing_subscriber::Layer;
use tracing_subscriber::layer::{Context, Filter};
use tracing_subscriber::registry::{LookupSpan, SpanRef};

/// Most lines of the log that a span carries.
const EVENTS_MAX: usize = 32;

/// Most attributes of a span, and most bytes of one.
const ATTRIBUTES_MAX: usize = 32;
const VALUE_MAX: usize = 1024;

/// Most spans that wait for the end of their parent. Further ones do not wait.
const PARTS_MAX: usize = 64;

/// The receiver of spans; `None` until an exporter runs.
#[derive(Clone, Debug, Default)]
pub(crate) struct Destination(Arc<OnceLock<Queue>>);

/// The layer.
pub(crate) struct Spans(pub(crate) Destination);

/// The filter that lets spans and lines of this program pass, once an exporter runs.
pub(crate) struct Wanted(pub(crate) Destination);

/// A span that the layer follows.
struct Followed {
    /// Its trace is exported.
    is_sampled: bool,
    /// Its data is dropped: it was exported, or never will be.
    is_skipped: bool,
    needs_outcome: bool,
    wire: WireSpan,
    /// Its child spans that have ended.
    parts: Vec<WireSpan>,
}

// === impl Destination ===

impl Destination {
    /// From now on spans go into this queue.
    pub(crate) fn lead_to(&self, queue: Queue) {
        if self.0.set(queue).is_ok() {
            // The cached interest of call sites has to be computed again.
            tracing::callsite::rebuild_interest_cache();
        }
    }

    fn leads_somewhere(&self) -> bool {
        self.0.get().is_some()
    }
}

// === impl Wanted ===

impl Wanted {
    fn wants(&self, metadata: &Metadata<'_>) -> bool {
        self.0.leads_somewhere()
            && metadata.target().starts_with("guest_agent")
            && *metadata.level() <= Level::INFO
    }
}

impl<S> Filter<S> for Wanted {
    fn enabled(&self, metadata: &Metadata<'_>, _: &Context<'_, S>) -> bool {
        self.wants(metadata)
    }

    fn callsite_enabled(&self, metadata: &'static Metadata<'static>) -> Interest {
        if self.wants(metadata) { Interest::always() } else { Interest::never() }
    }

    fn max_level_hint(&self) -> Option<LevelFilter> {
        Some(LevelFilter::INFO)
    }
}

// === impl Spans ===

impl<S> Layer<S> for Spans
where
    S: Subscriber + for<'a> LookupSpan<'a>,
{
    fn on_new_span(&self, attributes: &Attributes<'_>, id: &Id, context: Context<'_, S>) {
        let Some(span) = context.span(id) else { return };
        let mut fields = Fields::default();
        attributes.record(&mut fields);
        let above = span.parent().and_then(|parent| {
            let extensions = parent.extensions();
            let above = extensions.get::<Followed>()?;
            Some((above.wire.trace_id.clone(), above.wire.span_id.clone(), above.is_sampled))
        });
        let (trace_id, parent_span_id, is_sampled) = match (fields.trace, above) {
            (Some(trace), _) => {
                let parent = fields.parent.map(|parent| parent.as_bytes().to_vec());
                (trace.as_bytes().to_vec(), parent.unwrap_or_default(), !fields.is_unsampled)
            }
            (None, Some(above)) => above,
            (None, None) => return,
        };
        let own = fields.span.map_or_else(random_id, |id| id.as_bytes().to_vec());
        let wire = WireSpan {
            trace_id,
            span_id: own,
            parent_span_id,
            name: span.name().to_owned(),
            kind: SpanKind::Internal.into(),
            start_time_unix_nano: fields.start_ns.unwrap_or_else(now),
            // Sampled, and the parent is known to be in another process.
            flags: 0x101,
            ..WireSpan::default()
        };
        let needs_outcome = attributes.metadata().fields().field("outcome").is_some();
        let parts = Vec::new();
        let mut followed =
            Followed { is_sampled, is_skipped: !is_sampled, needs_outcome, wire, parts };
        followed.take(fields);
        span.extensions_mut().insert(followed);
    }

    fn on_record(&self, id: &Id, values: &Record<'_>, context: Context<'_, S>) {
        let Some(span) = context.span(id) else { return };
        let mut extensions = span.extensions_mut();
        let Some(followed) = extensions.get_mut::<Followed>() else { return };
        let mut fields = Fields::default();
        values.record(&mut fields);
        let is_over = fields.is_over || fields.outcome.is_some();
        followed.take(fields);
        if is_over {
            let over = followed.end();
            drop(extensions);
            self.hand_on(over, span.parent());
        }
    }

    fn on_event(&self, event: &Event<'_>, context: Context<'_, S>) {
        let Some(span) = context.event_span(event) else { return };
        let mut extensions = span.extensions_mut();
        let Some(Followed { is_skipped: false, wire, .. }) = extensions.get_mut::<Followed>()
        else {
            return;
        };
        if wire.events.len() >= EVENTS_MAX {
            wire.dropped_events_count = wire.dropped_events_count.saturating_add(1);
            return;
        }
        let mut fields = Fields::default();
        event.record(&mut fields);
        fields.attributes.push(text("level", event.metadata().level().as_str()));
        wire.events.push(SpanEvent {
            time_unix_nano: now(),
            name: fields.message.unwrap_or_default(),
            attributes: fields.attributes,
            dropped_attributes_count: fields.dropped,
        });
    }

    fn on_close(&self, id: Id, context: Context<'_, S>) {
        let Some(span) = context.span(&id) else { return };
        let followed = span.extensions_mut().remove::<Followed>();
        if let Some(mut followed) = followed.filter(|followed| !followed.needs_outcome) {
            self.hand_on(followed.end(), span.parent());
        }
    }
}

impl Spans {
    /// Passes on a span that ended: to its parent, if that ends soon, or into the queue.
    fn hand_on<S>(&self, over: Vec<WireSpan>, parent: Option<SpanRef<'_, S>>)
    where
        S: for<'a> LookupSpan<'a>,
    {
        if let Some(parent) = &parent
            && let Some(above) = parent.extensions_mut().get_mut::<Followed>()
            && !above.is_skipped
            && !above.needs_outcome
            && above.parts.len() + over.len() <= PARTS_MAX
        {
            above.parts.extend(over);
            return;
        }
        if let Some(queue) = self.0.0.get() {
            over.into_iter().for_each(|wire| queue.put(wire));
        }
    }
}

// === impl Followed ===

impl Followed {
    /// Ends a span, once: itself and its child spans. Its ids stay, for child spans that still run.
    fn end(&mut self) -> Vec<WireSpan> {
        if std::mem::replace(&mut self.is_skipped, true) {
            return Vec::new();
        }
        let (trace_id, span_id) = (self.wire.trace_id.clone(), self.wire.span_id.clone());
        let ids = WireSpan { trace_id, span_id, ..WireSpan::default() };
        let mut wire = std::mem::replace(&mut self.wire, ids);
        wire.end_time_unix_nano = now().max(wire.start_time_unix_nano);
        let mut over = std::mem::take(&mut self.parts);
        over.push(wire);
        over
    }

    fn take(&mut self, fields: Fields) {
        if self.is_skipped {
            return;
        }
        if let Some(outcome) = fields.outcome {
            if outcome == "ok" {
                self.wire.status =
                    Some(Status { code: StatusCode::Ok.into(), message: String::new() });
            }
            self.wire.attributes.push(text("outcome", &outcome));
        }
        if let Some(message) = fields.error {
            self.wire.status = Some(Status { code: StatusCode::Error.into(), message });
        }
        let dropped = &mut self.wire.dropped_attributes_count;
        *dropped = dropped.saturating_add(fields.dropped);
        for attribute in fields.attributes {
            if self.wire.attributes.len() < ATTRIBUTES_MAX {
                self.wire.attributes.push(attribute);
            } else {
                *dropped = dropped.saturating_add(1);
            }
        }
    }
}

/// The values of a span's or a line's fields.
#[derive(Default)]
struct Fields {
    trace: Option<TraceId>,
    span: Option<SpanId>,
    parent: Option<SpanId>,
    is_unsampled: bool,
    is_over: bool,
    start_ns: Option<u64>,
    outcome: Option<String>,
    error: Option<String>,
    message: Option<String>,
    attributes: Vec<KeyValue>,
    dropped: u32,
}

// === impl Fields ===

impl Fields {
    fn put(&mut self, field: &Field, value: any_value::Value) {
        if self.attributes.len() < ATTRIBUTES_MAX {
            self.attributes.push(attribute(field.name(), value));
        } else {
            self.dropped = self.dropped.saturating_add(1);
        }
    }
}

impl Visit for Fields {
    fn record_f64(&mut self, field: &Field, value: f64) {
        self.put(field, any_value::Value::DoubleValue(value));
    }

    fn record_i64(&mut self, field: &Field, value: i64) {
        self.put(field, any_value::Value::IntValue(value));
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        match field.name() {
            "otel.start_ns" => self.start_ns = Some(value),
            // Larger numbers than a signed one holds become the largest signed one.
            _ => self.record_i64(field, i64::try_from(value).unwrap_or(i64::MAX)),
        }
    }

    fn record_bool(&mut self, field: &Field, value: bool) {
        match field.name() {
            "otel.sampled" => self.is_unsampled = !value,
            "otel.end" => self.is_over = value,
            _ => self.put(field, any_value::Value::BoolValue(value)),
        }
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        match field.name() {
            "trace_id" => self.trace = value.parse().ok(),
            "otel.span" => self.span = value.parse().ok(),
            "otel.parent" => self.parent = value.parse().ok(),
            "outcome" => self.outcome = Some(value.to_owned()),
            "error" => self.error = Some(cut(value).to_owned()),
            "message" => self.message = Some(cut(value).to_owned()),
            _ => self.put(field, any_value::Value::StringValue(cut(value).to_owned())),
        }
    }

    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.record_str(field, &format!("{value:?}"));
    }
}

fn cut(text: &str) -> &str {
    &text[..text.floor_char_boundary(VALUE_MAX)]
}

fn now() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
}

fn random_id() -> Vec<u8> {
    // Zero is no id.
    rand::random::<u64>().max(1).to_be_bytes().to_vec()
}

#[cfg(test)]
mod tests;
