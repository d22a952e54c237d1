//! What happened to plugins, the newest first, and the memory of it that pages are made from.
//!
//! The store may hold a hundred thousand events. It is read once, when the console begins; from
//! then on the newest few hundred are kept here and new ones come as they are recorded, so that no
//! page makes the agent read its store.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};

use guest_agent_proto::local::{Event, StreamEventsRequest};
use maud::{Markup, html};
use tokio::sync::{mpsc, watch};
use tokio_util::sync::CancellationToken;

use super::hidden;
use super::pieces::{Ages, ago, class, page_of};
use crate::api::http::session::Sight;
use crate::api::local::LocalApi;
use crate::display::{event_kind, one_line, shortened};

/// How many events are kept.
pub(super) const KEPT_MAX: usize = 500;

/// Longest details of an event that are kept, in characters. `guest-agent events` has the rest.
const DETAILS_MAX: usize = 600;

/// The newest events.
#[derive(Debug)]
pub(super) struct Timeline {
    kept: Mutex<VecDeque<Event>>,
    moved: watch::Sender<()>,
}

/// Whether a list says whose its events are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Names {
    /// They are of many plugins.
    Shown,
    /// All are of one.
    Left,
}

// === impl Timeline ===

impl Timeline {
    pub(super) fn new() -> Arc<Self> {
        Arc::new(Self { kept: Mutex::default(), moved: watch::Sender::new(()) })
    }

    /// Keeps up with what is recorded until it is to end.
    pub(super) async fn follow(self: Arc<Self>, api: LocalApi, ending: CancellationToken) {
        let (sender, mut events) = mpsc::channel(32);
        let request = StreamEventsRequest { follow: true, ..StreamEventsRequest::default() };
        let told = api.events(request, sender);
        let keeping = async {
            // An error ends the stream. Pages go on to show the events that were read before.
            while let Some(Ok(event)) = events.recv().await {
                self.keep(event);
            }
        };
        tokio::select! {
            _ = async { tokio::join!(told, keeping) } => {}
            () = ending.cancelled() => {}
        }
    }

    /// The newest events, of one plugin or of all, newest first. Their details end with what a
    /// plugin said last.
    pub(super) fn newest(&self, most: usize, of: Option<&str>, sight: Sight) -> Vec<Event> {
        let kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        let wanted = |event: &&Event| of.is_none_or(|name| event.plugin == name);
        let shown = |event: &Event| {
            let mut event = event.clone();
            if sight == Sight::WithoutOutput {
                hidden::of_event(&mut event);
            }
            event
        };
        kept.iter().rev().filter(wanted).take(most).map(shown).collect()
    }

    /// Changes with every event.
    pub(super) fn watch(&self) -> watch::Receiver<()> {
        self.moved.subscribe()
    }

    pub(super) fn keep(&self, mut event: Event) {
        event.details = shortened(&event.details, DETAILS_MAX);
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        while kept.len() >= KEPT_MAX {
            kept.pop_front();
        }
        kept.push_back(event);
        drop(kept);
        self.moved.send_replace(());
    }
}

/// Events as a list.
pub(super) fn list(events: &[Event], ages: Ages, names: Names) -> Markup {
    html! {
        @if events.is_empty() { p class="empty" { "Nothing has happened yet." } }
        ol class="events" {
            @for event in events {
                @let (kind, tone) = event_kind(event);
                li class=(class(tone)) {
                    span class="when" { (ago(event.at.as_ref(), ages)) }
                    span class="kind" { (words_of(kind)) }
                    span class="what" {
                        @if names == Names::Shown && !event.plugin.is_empty() {
                            a href=(page_of(&event.plugin)) { (one_line(&event.plugin)) } " "
                        }
                        code { (shortened(&one_line(&event.revision), 40)) }
                        @if !event.details.is_empty() {
                            span class="details" { (one_line(&event.details)) }
                        }
                    }
                }
            }
        }
    }
}

/// The newest event as a sentence, for screen readers.
pub(super) fn said(event: Option<&Event>) -> Markup {
    html! {
        @if let Some(event) = event {
            (one_line(&event.plugin)) ": " (words_of(event_kind(event).0))
        }
    }
}

/// The wire name of a kind as words: `INSTALL_FAILED` is `install failed`.
fn words_of(kind: &str) -> String {
    one_line(&kind.to_ascii_lowercase().replace('_', " "))
}
