//! What requests are answered from.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Semaphore;

use super::options::{Delivery, ListenerOptions};
use crate::artifacts::encodings::Encodings;
use crate::artifacts::named::Known;
use crate::artifacts::store::ArtifactStore;

/// Longest that services take a signed address for.
const SIGNED_FOR_MOST: Duration = Duration::from_secs(7 * 24 * 3600);

/// What requests are answered from.
pub(super) struct Site {
    pub(super) store: Arc<dyn ArtifactStore>,
    pub(super) known: Arc<dyn Known>,
    pub(super) upload_tokens: Option<PathBuf>,
    pub(super) delivery: Delivery,
    pub(super) encodings: Option<Arc<Encodings>>,
    /// Longest that a client may send nothing of an upload.
    pub(super) stall: Duration,
    /// Places of uploads.
    pub(super) uploads: Semaphore,
}

impl Site {
    pub(super) fn new(options: ListenerOptions) -> Self {
        let ListenerOptions { store, known, upload_tokens, delivery, encodings, limits, .. } =
            options;
        let delivery = match delivery {
            Delivery::Redirect(lifetime) => Delivery::Redirect(lifetime.min(SIGNED_FOR_MOST)),
            Delivery::Stream => Delivery::Stream,
        };
        let uploads = Semaphore::new(limits.uploads);
        Self { store, known, upload_tokens, delivery, encodings, stall: limits.stall, uploads }
    }
}
