//! What the server's handle and its handler share.

use std::sync::Mutex;
use std::time::Duration;

use guest_agent_serve_kit::lock::lock;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::tree::Tree;

/// The state that the handler reads and changes.
pub(super) struct Shared {
    pub(super) tree: watch::Sender<Tree>,
    pub(super) faults: Mutex<MetadataFaults>,
    pub(super) token_life: Mutex<Duration>,
    pub(super) asked: Mutex<Vec<String>>,
    pub(super) writable: bool,
    pub(super) shutdown: CancellationToken,
}

/// The faults of every answer from now on. For tests and game days.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MetadataFaults {
    /// Wait this long before each answer.
    pub delay: Duration,
    /// Answer with this HTTP status instead.
    pub status: Option<u16>,
    /// Answer every request with this text instead of the value.
    pub garbage: Option<String>,
    /// Answer with a body of so many bytes.
    pub huge: Option<usize>,
    /// Leave out the `Metadata-Flavor` header.
    pub without_flavor: bool,
    /// Leave out the ETag.
    pub without_etag: bool,
    /// Answer requests that wait for a change at once.
    pub impatient: bool,
}

// === impl Shared ===

impl Shared {
    pub(super) fn set(&self, path: &str, value: &str) {
        self.tree.send_if_modified(|tree| tree.set(path, value));
    }

    pub(super) fn remove(&self, path: &str) -> bool {
        self.tree.send_if_modified(|tree| tree.remove(path))
    }

    pub(super) fn note(&self, path: &str) {
        const NOTED_MAX: usize = 10_000;
        let mut asked = lock(&self.asked);
        if asked.len() < NOTED_MAX {
            asked.push(path.to_owned());
        }
    }
}
