//! What the pages of the console share.

use std::sync::Arc;

use tokio::sync::Mutex;

use super::live::Hub;
use super::source::Source;
use crate::api::http::site::Site;

/// What the pages of the console share. Cheap to clone.
#[derive(Clone)]
pub(super) struct Console {
    pub(super) site: Site,
    pub(super) source: Source,
    pub(super) hub: Arc<Hub>,
    /// Held while a login with a wrong token waits for its answer, so that tokens are not tried in
    /// parallel.
    pub(super) wrong_tokens: Arc<Mutex<()>>,
}

// === impl Console ===

impl Console {
    pub(super) fn new(site: Site, source: Source, hub: Arc<Hub>) -> Self {
        Self { site, source, hub, wrong_tokens: Arc::default() }
    }
}
