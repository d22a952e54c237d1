//! What the pages of the console share.

use std::sync::Arc;

use axum::http::StatusCode;
use guest_agent_console_kit::live::{Hub, Seat};
use tokio::sync::Mutex;

use super::source::Source;
use crate::api::http::refusal::Refusal;
use crate::api::http::site::Site;

/// What the pages of the console share. Cheap to clone.
#[derive(Clone)]
pub(super) struct Console {
    pub(super) site: Site,
    pub(super) source: Source,
    pub(super) hub: Arc<Hub<Source>>,
    /// Held while the machine is examined.
    pub(super) examination: Arc<Mutex<()>>,
    /// Held while a login with a wrong token waits for its answer, so that tokens are not tried in
    /// parallel.
    pub(super) wrong_tokens: Arc<Mutex<()>>,
}

// === impl Console ===

impl Console {
    pub(super) fn new(site: Site, source: Source, hub: Arc<Hub<Source>>) -> Self {
        let (examination, wrong_tokens) = (Arc::default(), Arc::default());
        Self { site, source, hub, examination, wrong_tokens }
    }

    /// A place for a stream to a browser, which is lost when a session ends or the tokens change;
    /// `None` when all are taken.
    pub(super) fn seat(&self) -> Option<Seat> {
        let (mut sessions, mut tokens) = (self.site.sessions.watch(), self.site.tokens.watch());
        self.hub.seat(async move {
            tokio::select! {
                _ = sessions.changed() => {}
                _ = tokens.changed() => {}
            }
        })
    }
}

/// The refusal of a browser for which no seat is free.
pub(super) fn no_seat() -> Refusal {
    let why = "too many browsers follow pages of this agent; close one, or read the page again";
    Refusal::new(StatusCode::SERVICE_UNAVAILABLE, why)
}
