//! The agent's own log: writes trace events to the journal, or to standard error as text or JSON.
//!
//! `main.rs` starts it through `Services::start_logging`. By default the log goes to the journal
//! where standard error is connected to it: entries then have fields and priorities.
//!
//! ```text
//!   event ─► filter (level, changed at SIGHUP) ─► bounded (so many of one kind) ─┬─► text | JSON | journal
//!                                                                                └─► recent, in memory
//! ```

use std::io::IsTerminal;
use std::os::fd::AsFd;
use std::path::Path;
use std::sync::OnceLock;

use guest_agent_observe_kit::json_lines::JsonLines;
use guest_agent_observe_kit::otlp::Queue;
use guest_agent_observe_kit::text_fields::TextFields;
use tracing_subscriber::filter::FilterExt;
use tracing_subscriber::fmt::MakeWriter;
use tracing_subscriber::layer::{Layer, SubscriberExt};
use tracing_subscriber::reload::{self, Handle};
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{EnvFilter, Registry};

use crate::config::{JOURNAL_SOCKET, LogConfig, LogFormat, log_filter};
use crate::observe::otlp::spans::{Destination, Spans, Wanted};

mod bounded;
mod journal;
mod rate_limit;
pub(crate) mod recent;

use bounded::Bounded;
use journal::Journal;
use rate_limit::{Unwritten, WINDOW};
use recent::Recent;

/// The controls of the log, once it has started.
static STARTED: OnceLock<Controls> = OnceLock::new();

/// Handles of a log in use.
struct Controls {
    filter: Handle<EnvFilter, Registry>,
    bounded: Bounded,
    spans: Destination,
    /// The journal, if lines are written to it.
    journal: Option<Journal>,
    recent: Recent,
}

/// The layer that writes lines.
type Lines = Box<dyn Layer<Registry> + Send + Sync>;

/// Starts the log as configured, and logs panics from then on. A second call changes nothing.
pub fn start(log: &LogConfig) {
    let (lines, journal, trouble) =
        match wants_journal(log.format).then(|| Journal::at(Path::new(JOURNAL_SOCKET))) {
            Some(Ok(journal)) => {
                (entries(journal.clone(), journal::Entries::of_this_process()), Some(journal), None)
            }
            Some(Err(error)) => (on_standard_error(log.format), None, Some(error)),
            None => (on_standard_error(log.format), None, None),
        };
    let (subscriber, mut controls) = subscriber(log, lines);
    controls.journal = journal;
    if subscriber.try_init().is_ok() {
        drop(STARTED.set(controls));
        std::panic::set_hook(Box::new(trace_panic));
        if let Some(trouble) = trouble {
            tracing::warn!(error = %trouble, "the journal cannot be written to; logs text instead");
        }
    }
}

/// Changes the filter of the log. Without a started log nothing changes.
pub fn set_level(level: &str) {
    if let Some(controls) = STARTED.get()
        && let Err(error) = controls.filter.reload(log_filter::filter(level))
    {
        tracing::error!(%error, "the log settings stay unchanged");
    }
}

/// The newest lines of the log. Before the log is started, they are empty and stay so.
pub(crate) fn recent() -> Recent {
    STARTED.get().map(|controls| controls.recent.clone()).unwrap_or_default()
}

/// From now on the log puts ended spans into this queue.
pub(crate) fn export_spans(queue: Queue) {
    if let Some(controls) = STARTED.get() {
        controls.spans.lead_to(queue);
    }
}

/// Reports from time to time how many lines were not written because they repeated others.
pub async fn report_unwritten() {
    let Some(controls) = STARTED.get() else { return };
    let mut beat = tokio::time::interval(WINDOW / 4);
    loop {
        beat.tick().await;
        report(controls.bounded.over());
        report_lost(controls);
    }
}

/// Reports for the last time how many lines were not written.
pub fn report_last_unwritten() {
    if let Some(controls) = STARTED.get() {
        report(controls.bounded.all());
        report_lost(controls);
    }
}

fn report_lost(controls: &Controls) {
    match controls.journal.as_ref().map_or(0, Journal::take_lost) {
        0 => {}
        lines => tracing::warn!(lines, "the journal did not accept {lines} lines"),
    }
}

/// Each place is reported once, so these reports cannot become a flood.
fn report(all: Vec<Unwritten>) {
    for Unwritten { place, lines, example } in all {
        tracing::warn!(
            lines,
            file = place.file,
            line = place.line,
            module = place.target,
            like = example,
            "{lines} more lines like this were not written"
        );
    }
}

fn wants_journal(format: LogFormat) -> bool {
    match format {
        LogFormat::Json | LogFormat::Text => false,
        LogFormat::Journald => true,
        LogFormat::Auto => leads_to_the_journal(),
    }
}

fn on_standard_error(format: LogFormat) -> Lines {
    let colour = std::io::stderr().is_terminal() && std::env::var_os("NO_COLOR").is_none();
    match format {
        LogFormat::Json => json(std::io::stderr),
        LogFormat::Text | LogFormat::Journald | LogFormat::Auto => text(std::io::stderr, colour),
    }
}

/// Whether the service manager connected standard error to the journal: it then says which file
/// that is.
fn leads_to_the_journal() -> bool {
    let Some(promised) = std::env::var_os("JOURNAL_STREAM") else { return false };
    let Ok(is) = rustix::fs::fstat(std::io::stderr().as_fd()) else { return false };
    promised.to_str() == Some(&format!("{}:{}", is.st_dev, is.st_ino))
}

fn entries<W>(writer: W, entries: journal::Entries) -> Lines
where
    W: for<'a> MakeWriter<'a> + Send + Sync + 'static,
{
    tracing_subscriber::fmt::layer().with_writer(writer).json().event_format(entries).boxed()
}

fn text<W>(writer: W, colour: bool) -> Lines
where
    W: for<'a> MakeWriter<'a> + Send + Sync + 'static,
{
    tracing_subscriber::fmt::layer()
        .with_writer(writer)
        .with_ansi(colour)
        .fmt_fields(TextFields)
        .boxed()
}

fn json<W>(writer: W) -> Lines
where
    W: for<'a> MakeWriter<'a> + Send + Sync + 'static,
{
    tracing_subscriber::fmt::layer().with_writer(writer).json().event_format(JsonLines).boxed()
}

fn subscriber(
    log: &LogConfig,
    lines: Lines,
) -> (impl tracing::Subscriber + Send + Sync + use<>, Controls) {
    let bounded = Bounded::default();
    let (filter, handle) = reload::Layer::new(log_filter::filter(&log.level));
    let recent = Recent::default();
    let lines = lines.and_then(recent.clone());
    let lines = lines.with_filter(FilterExt::<Registry>::and(filter, bounded.clone()));
    let spans = Destination::default();
    let layer = Spans(spans.clone()).with_filter(Wanted(spans.clone()));
    let subscriber = tracing_subscriber::registry().with(lines).with(layer);
    (subscriber, Controls { filter: handle, bounded, spans, journal: None, recent })
}

/// Traces a panic without a backtrace: symbolising one takes tens of megabytes that a small agent
/// never gives back.
fn trace_panic(panic: &std::panic::PanicHookInfo<'_>) {
    let message = panic.payload_as_str().unwrap_or("without a message");
    let location = panic.location().map_or_else(String::new, ToString::to_string);
    let thread = std::thread::current();
    let thread = thread.name().unwrap_or("unnamed");
    tracing::error!(location, thread, "panicked: {message}");
}

#[cfg(test)]
mod tests;
