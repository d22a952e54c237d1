//! The newest lines of the agent's own log, in memory, for `guest-agent logs --agent`.
//!
//! The log itself goes to the journal or to standard error. The agent can read neither: the service
//! manager decides where they lead. These are the same lines, as text, on every machine. They end
//! with the agent; what an earlier one logged is where its log went.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::SystemTime;

use tokio::sync::Notify;
use tokio::sync::futures::OwnedNotified;
use tracing::span::{Attributes, Id};
use tracing::{Event, Subscriber};
use tracing_subscriber::field::RecordFields;
use tracing_subscriber::fmt::FormatFields;
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::layer::{Context, Layer};
use tracing_subscriber::registry::{LookupSpan, Scope};

use guest_agent_observe_kit::text_fields::TextFields;

/// Most bytes of all lines together.
const BYTES_MAX: usize = 256 * 1024;

/// Most bytes of a line; a longer one is cut.
const LINE_MAX: usize = 8 * 1024;

/// The newest lines. Cheap to clone; clones share everything.
#[derive(Clone, Debug, Default)]
pub(crate) struct Recent {
    ring: Arc<Mutex<Ring>>,
    written: Arc<Notify>,
}

#[derive(Debug, Default)]
struct Ring {
    lines: VecDeque<Line>,
    bytes: usize,
    /// The position after the newest line, in bytes since the start.
    end: u64,
}

#[derive(Clone, Debug)]
struct Line {
    at: SystemTime,
    /// With its line feed.
    text: String,
}

/// Where to begin.
#[derive(Clone, Copy, Debug)]
pub(crate) enum From {
    /// Where an earlier answer ended.
    Position(u64),
    /// With the last lines, of them those since a time.
    Last { lines: u32, since: Option<SystemTime> },
}

/// Lines that follow each other.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Lines {
    pub(crate) text: String,
    /// Where each line begins in the text, and when it was logged.
    pub(crate) times: Vec<(usize, SystemTime)>,
    /// How many bytes before them are gone.
    pub(crate) skipped: u64,
    /// The position after them.
    pub(crate) next: u64,
}

// === impl Recent ===

impl Recent {
    /// The lines from a place on.
    pub(crate) fn lines(&self, from: From) -> Lines {
        self.ring.lock().unwrap_or_else(PoisonError::into_inner).from(from)
    }

    /// Resolves when a line is logged after this call.
    pub(crate) fn written(&self) -> OwnedNotified {
        self.written.clone().notified_owned()
    }

    fn push(&self, line: Line) {
        self.ring.lock().unwrap_or_else(PoisonError::into_inner).push(line);
        self.written.notify_waiters();
    }
}

impl<S> Layer<S> for Recent
where
    S: Subscriber + for<'a> LookupSpan<'a>,
{
    fn on_new_span(&self, attributes: &Attributes<'_>, id: &Id, context: Context<'_, S>) {
        let Some(span) = context.span(id) else { return };
        let text = format!("{}{{{}}}: ", attributes.metadata().name(), fields(attributes));
        span.extensions_mut().insert(Named(text));
    }

    fn on_event(&self, event: &Event<'_>, context: Context<'_, S>) {
        let metadata = event.metadata();
        let mut text = format!("{:>5} ", metadata.level());
        for span in context.event_scope(event).into_iter().flat_map(Scope::from_root) {
            if let Some(Named(named)) = span.extensions().get() {
                text.push_str(named);
            }
        }
        text.push_str(&[metadata.target(), ": ", &fields(event)].concat());
        self.push(Line { at: SystemTime::now(), text: one_line(&text) });
    }
}

/// A span with its fields, as lines begin that are logged in it.
struct Named(String);

/// Formatting into memory fails only where a value refuses; then the rest is shown.
fn fields<R: RecordFields>(of: R) -> String {
    let mut text = String::new();
    let _as_far_as_it_goes = TextFields.format_fields(Writer::new(&mut text), of);
    text
}

/// One line with its line feed, bounded, without control characters: an error may quote anything.
fn one_line(text: &str) -> String {
    let text = &text[..text.floor_char_boundary(LINE_MAX - 1)];
    let clean = text.chars().map(|c| if c.is_control() { ' ' } else { c });
    clean.chain(['\n']).collect()
}

// === impl Ring ===

impl Ring {
    fn push(&mut self, line: Line) {
        self.bytes += line.text.len();
        self.end = self.end.saturating_add(line.text.len() as u64);
        self.lines.push_back(line);
        while self.bytes > BYTES_MAX
            && let Some(old) = self.lines.pop_front()
        {
            self.bytes -= old.text.len();
        }
    }

    fn from(&self, from: From) -> Lines {
        let begin = self.end.saturating_sub(self.bytes as u64);
        let mut found = Lines { next: self.end, ..Lines::default() };
        let mut at = begin;
        let (skip, after) = match from {
            // A position beyond the end is one of an earlier agent's log.
            From::Position(position) if position > self.end => (0, begin),
            From::Position(position) => {
                found.skipped = begin.saturating_sub(position);
                (0, position)
            }
            From::Last { lines, since } => {
                let wanted = usize::try_from(lines).unwrap_or(usize::MAX);
                let old = |line: &&Line| since.is_some_and(|since| line.at < since);
                let old = self.lines.iter().take_while(old).count();
                (self.lines.len().saturating_sub(wanted).max(old), begin)
            }
        };
        for (index, line) in self.lines.iter().enumerate() {
            if index >= skip && at >= after {
                found.times.push((found.text.len(), line.at));
                found.text.push_str(&line.text);
            }
            at = at.saturating_add(line.text.len() as u64);
        }
        found
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tracing_subscriber::layer::SubscriberExt;

    use super::*;

    fn logged(recent: &Recent, work: impl FnOnce()) {
        let subscriber = tracing_subscriber::registry().with(recent.clone());
        tracing::subscriber::with_default(subscriber, work);
    }

    fn last(lines: u32) -> From {
        From::Last { lines, since: None }
    }

    #[test]
    fn lines_are_text_without_control_characters() {
        let recent = Recent::default();
        logged(&recent, || tracing::warn!(target: "t", plugin = "a\nb", "said {}", "\x1b[31mred"));
        let lines = recent.lines(last(9));
        assert_eq!(lines.text, " WARN t: said \\x1b[31mred plugin=\"a\\nb\"\n");
        assert_eq!(one_line("a\x1bb\nc"), "a b c\n", "whatever formats it");
        assert_eq!((lines.times.len(), lines.next), (1, lines.text.len() as u64));
    }

    #[test]
    fn a_line_says_in_which_spans_it_was_logged() {
        let recent = Recent::default();
        logged(&recent, || {
            let _order = tracing::info_span!("order", order = 7, otel.kind = "x").entered();
            let _step = tracing::info_span!("step").entered();
            tracing::info!(target: "t", "done");
        });
        assert_eq!(recent.lines(last(1)).text, " INFO order{order=7}: step{}: t: done\n");
    }

    #[test]
    fn a_follower_gets_each_line_once() {
        let recent = Recent::default();
        logged(&recent, || ["one", "two", "three"].iter().for_each(|it| tracing::info!("{it}")));
        let first = recent.lines(last(2));
        assert_eq!(first.text.lines().count(), 2);
        assert!(first.text.contains("two") && !first.text.contains("one"), "{}", first.text);
        let none = recent.lines(From::Position(first.next));
        assert_eq!((none.text.as_str(), none.next), ("", first.next));
        logged(&recent, || tracing::info!("four"));
        let more = recent.lines(From::Position(first.next));
        assert!(more.text.ends_with("four\n") && more.text.lines().count() == 1, "{}", more.text);
        // Another agent counts from its own beginning.
        assert_eq!(recent.lines(From::Position(u64::MAX)).text.lines().count(), 4);
    }

    #[test]
    fn lines_since_a_time_are_found() {
        let recent = Recent::default();
        let at = |seconds| SystemTime::UNIX_EPOCH + Duration::from_secs(seconds);
        for seconds in [10, 20, 30] {
            recent.push(Line { at: at(seconds), text: format!("{seconds}\n") });
        }
        let since =
            |seconds, lines| recent.lines(From::Last { lines, since: Some(at(seconds)) }).text;
        assert_eq!(since(15, 9), "20\n30\n");
        assert_eq!(since(15, 1), "30\n");
        assert_eq!(since(31, 9), "");
    }

    #[test]
    fn what_is_kept_is_bounded_and_what_is_gone_is_told() {
        let recent = Recent::default();
        logged(&recent, || {
            for number in 0..100 {
                tracing::info!(number, "{}", "x".repeat(2 * LINE_MAX));
            }
        });
        let lines = recent.lines(last(u32::MAX));
        assert!(lines.text.len() <= BYTES_MAX && lines.text.len() > BYTES_MAX / 2);
        assert!(lines.text.lines().all(|line| line.len() < LINE_MAX));
        let missed = recent.lines(From::Position(LINE_MAX as u64));
        assert_eq!(missed.skipped, lines.next - lines.text.len() as u64 - LINE_MAX as u64);
        assert_eq!(missed.text, lines.text);
    }

    #[tokio::test]
    async fn a_line_between_the_look_and_the_wait_is_not_missed() {
        let recent = Recent::default();
        let written = recent.written();
        logged(&recent, || tracing::info!("now"));
        tokio::time::timeout(Duration::from_secs(10), written)
            .await
            .expect("the line is announced");
    }
}
