//! The state that the sending end of a link and its task share.

use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock};
use std::time::SystemTime;

use tokio::sync::watch;

use super::config::LinkConfig;
use super::session::{self, Streams};

/// The state of the link, for `status` and `doctor`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LinkState {
    /// A stream is registered.
    Connected {
        /// Since when a stream has been registered without a gap, by the wall clock.
        since: SystemTime,
        /// The endpoint, without secrets.
        endpoint: String,
    },
    /// A stream is being opened.
    Connecting,
    /// The last attempt failed, or the stream ended.
    Waiting {
        reason: String,
        /// The time of the next attempt, by the wall clock.
        until: SystemTime,
    },
    /// The link will not connect: it is not configured, or it was closed.
    Disabled,
}

/// The state that both ends use.
pub(super) struct Shared {
    /// Empty while the endpoint is not known.
    pub(super) config: OnceLock<LinkConfig>,
    pub(super) streams: Arc<Mutex<Streams>>,
    pub(super) state: watch::Sender<LinkState>,
    /// How often the link was connected after it was not.
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
