//! The filter before the writer: at most so many lines of one kind
//! ([`crate::observe::log::rate_limit`]).

use std::fmt::{self, Write};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use tracing::field::{Field, Visit};
use tracing::level_filters::LevelFilter;
use tracing::subscriber::Interest;
use tracing::{Event, Level, Metadata};
use tracing_subscriber::layer::{Context, Filter};

use crate::observe::log::rate_limit::{Decision, Kind, LogSite, Repeats, Unwritten};

/// Longest example of a line that was not written, in bytes.
const EXAMPLE_MAX: usize = 160;

/// Lets lines pass while they are few. Lines of `debug` and `trace` are not bounded.
#[derive(Clone, Debug, Default)]
pub(super) struct Bounded(Arc<Mutex<Repeats>>);

// === impl Bounded ===

impl Bounded {
    /// Lines that were counted instead of written, in windows that have ended.
    pub(super) fn over(&self) -> Vec<Unwritten> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).over(Instant::now())
    }

    /// The same, in all windows.
    pub(super) fn all(&self) -> Vec<Unwritten> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).all()
    }
}

impl<S> Filter<S> for Bounded {
    fn enabled(&self, _: &Metadata<'_>, _: &Context<'_, S>) -> bool {
        true
    }

    fn callsite_enabled(&self, _: &'static Metadata<'static>) -> Interest {
        Interest::always()
    }

    fn max_level_hint(&self) -> Option<LevelFilter> {
        Some(LevelFilter::TRACE)
    }

    fn event_enabled(&self, event: &Event<'_>, _: &Context<'_, S>) -> bool {
        let metadata = event.metadata();
        if *metadata.level() > Level::INFO {
            return true;
        }
        let mut about = About(0);
        event.record(&mut about);
        let place = LogSite {
            target: metadata.target(),
            file: metadata.file().unwrap_or_default(),
            line: metadata.line().unwrap_or_default(),
        };
        let kind = Kind { place, about: about.0 };
        let mut repeats = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        repeats.heard(kind, Instant::now(), || Message::of(event)) == Decision::Write
    }
}

/// A hash of a line's subject: its plugin.
struct About(u64);

impl Visit for About {
    fn record_str(&mut self, field: &Field, value: &str) {
        if field.name() == "plugin" {
            let mut hasher = DefaultHasher::new();
            value.hash(&mut hasher);
            self.0 = hasher.finish();
        }
    }

    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        if field.name() == "plugin" {
            self.record_str(field, &format!("{value:?}"));
        }
    }
}

/// The message of a line, without its other fields.
struct Message(String);

impl Message {
    fn of(event: &Event<'_>) -> String {
        let mut message = Self(String::new());
        event.record(&mut message);
        message.0
    }
}

impl Visit for Message {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        if field.name() == "message" && write!(self.0, "{value:?}").is_ok() {
            self.0.truncate(self.0.floor_char_boundary(EXAMPLE_MAX));
        }
    }
}
