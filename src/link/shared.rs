//! What the sending end of a link and its task share.

use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock};
use std::time::SystemTime;

use tokio::sync::watch;

use super::config::LinkConfig;
use super::session::{self, Streams};

/// How the link is, for `status` and `doctor`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LinkState {
    /// A stream is registered.
    Connected {
        /// Since when there is one without a gap, by the wall clock.
        since: SystemTime,
        /// Where it leads, without secrets.
        endpoint: String,
    },
    /// A stream is being opened.
    Connecting,
    /// The last attempt failed, or the stream ended.
    Waiting {
        reason: String,
        /// When the next attempt is made, by the wall clock.
        until: SystemTime,
    },
    /// There will be no connection: it is not configured, or the link was closed.
    Disabled,
}

/// What both ends know.
pub(super) struct Shared {
    /// Empty while it is not known where the link leads.
    pub(super) config: OnceLock<LinkConfig>,
    pub(super) streams: Arc<Mutex<Streams>>,
    pub(super) state: watch::Sender<LinkState>,
    /// How often there was a connection where there was none.
    pub(super) connections: AtomicU64,
    pub(super) closing: watch::Sender<bool>,
}

// === impl Shared ===

impl Shared {
    pub(super) fn new(state: LinkState) -> Arc<Self> {
        Arc::new(Self {
            config: OnceLock::new(),
            streams: Arc::default(),
            state: watch::Sender::new(state),
            connections: AtomicU64::new(0),
            closing: watch::Sender::new(false),
        })
    }

    pub(super) fn streams(&self) -> MutexGuard<'_, Streams> {
        session::lock(&self.streams)
    }
}
