//! The newest events, in memory, for the pages that follow them.
//!
//! The store may hold a hundred thousand events. It is read once, when the console begins; from
//! then on the newest few hundred are kept here and new ones come as they are recorded. Only a page
//! of older ones reads the store, and a bounded part of it.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};

use guest_agent_proto::local::{Event, StreamEventsRequest};
use tokio::sync::{mpsc, watch};
use tokio_util::sync::CancellationToken;

use super::hidden;
use crate::api::http::session::Sight;
use crate::api::local::LocalApi;
use crate::display::shortened;

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

    /// The newest events that are wanted, newest first. Their details end with what a plugin said
    /// last.
    pub(super) fn newest(
        &self,
        most: usize,
        sight: Sight,
        wanted: impl Fn(&Event) -> bool,
    ) -> Vec<Event> {
        let kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        let shown = |event: &Event| {
            let mut event = event.clone();
            if sight == Sight::WithoutOutput {
                hidden::of_event(&mut event);
            }
            event
        };
        kept.iter().rev().filter(|event| wanted(event)).take(most).map(shown).collect()
    }

    /// The number below which there may be events that are not kept here; `None` where all are.
    pub(super) fn before(&self) -> Option<u64> {
        let kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        kept.front().filter(|_| kept.len() >= KEPT_MAX).map(|event| event.seq)
    }

    /// Changes with every event.
    pub(super) fn watch(&self) -> watch::Receiver<()> {
        self.moved.subscribe()
    }

    pub(super) fn keep(&self, mut event: Event) {
        shorten(&mut event);
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        while kept.len() >= KEPT_MAX {
            kept.pop_front();
        }
        kept.push_back(event);
        drop(kept);
        self.moved.send_replace(());
    }
}

/// Leaves of an event's details what a page shows.
pub(super) fn shorten(event: &mut Event) {
    event.details = shortened(&event.details, DETAILS_MAX);
}
