//! The thread that unpacks and publishes a revision, and the handle that a transfer has of it.
//!
//! The handle passes the thread the bytes of the archive, waits for its end and stops it. One atomic
//! step decides whether the thread may still publish.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

use bytes::Bytes;
use guest_agent_actors::model::spec::{Artifact, PluginSpec};
use guest_agent_actors::ports::InstallStep;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

use super::failure::Failure;
use crate::hostinfo::preflight;
use crate::install::error::{FolderError, UnpackError};
use crate::install::folder::PluginFolder;
use crate::install::limits::Limits;
use crate::install::unpack::Unpacking;
use crate::install::unpack::limits_reader::Piece;
use crate::install::unpack::tree::Resolver;
use crate::install::window_budget::Hold;

/// The name that log filters know the spans by.
const SPANS: &str = "guest_agent::install::download::transfer";

/// Chunks that wait for the thread. When there are no more the download waits.
const CHUNKS_IN_FLIGHT: usize = 8;

/// The input of the thread.
pub(super) struct Parts<'a> {
    pub(super) folder: &'a PluginFolder,
    pub(super) limits: &'a Limits,
    pub(super) dry_run_for: Option<&'a Path>,
    pub(super) resolver: Resolver,
    pub(super) spec: &'a Arc<PluginSpec>,
    pub(super) artifact: &'a Artifact,
    pub(super) signature: Option<String>,
    pub(super) windows: Arc<Hold>,
}

/// The thread that unpacks. It stops when this is dropped.
pub(super) struct Worker {
    pieces: Option<mpsc::Sender<Piece>>,
    thread: Option<JoinHandle<Result<(), Failure>>>,
    /// The bytes that were hashed but not sent to the thread yet.
    queued: Option<Piece>,
    fate: Arc<Fate>,
}

/// Whether an installation may still become visible. This is decided once.
#[derive(Debug, Default)]
struct Fate(AtomicU8);

// === impl Parts ===

impl Parts<'_> {
    pub(super) fn start<H: Send + 'static>(self, needed: Option<u64>, hold: H) -> Worker {
        let (pieces, received) = mpsc::channel(CHUNKS_IN_FLIGHT);
        let fate = Arc::new(Fate::default());
        let spec = Arc::clone(self.spec);
        let sha256 = self.artifact.sha256;
        let folder = self.folder.clone();
        let limits = *self.limits;
        let dry_run_for = self.dry_run_for.map(Path::to_owned);
        let resolver = self.resolver;
        let decision = Arc::clone(&fate);
        let (windows, signature) = (self.windows, self.signature);
        let span = tracing::error_span!(target: SPANS, "unpack");
        let thread = tokio::task::spawn_blocking(move || {
            let _inside = span.enter();
            let _hold = hold;
            let mut staging = folder
                .stage(&spec.revision, needed, resolver)
                .map_err(|error| Failure::Folder(InstallStep::Prepare, error))?;
            let place = staging.path();
            let unpacking = Unpacking {
                tree: staging.tree(),
                place: place.clone(),
                entry_point: &spec.entry_point,
                limits: &limits,
                windows,
                is_cancelled: &|| decision.is_cancelled(),
            };
            unpacking.run(received).map_err(Failure::Unpack)?;
            // An interpreter that the plugin brings is named by its path after the installation.
            let plugins = dry_run_for.as_deref().or_else(|| place.ancestors().nth(2));
            preflight::before_publish(&place, &spec.entry_point, plugins)
                .map_err(Failure::Unfit)?;
            if decision.is_cancelled() {
                // Flushing a disk can take long, and no caller waits for it any more.
                return Err(Failure::Unpack(UnpackError::Abandoned));
            }
            let _publishing = tracing::error_span!(target: SPANS, "publish").entered();
            staging
                .publish(&spec.revision, (sha256, signature.as_deref()), || decision.commit())
                .map_err(|error| Failure::Folder(InstallStep::Publish, error))
        });
        Worker { pieces: Some(pieces), thread: Some(thread), queued: None, fate }
    }
}

// === impl Worker ===

impl Worker {
    /// Sends a message to the worker. If the worker has stopped, its result has the reason.
    pub(super) async fn hand_over(&mut self, piece: Piece) {
        self.flush().await;
        self.queued = Some(piece);
        self.flush().await;
    }

    /// Queues bytes for the next flush, which has to come before the next bytes are queued.
    pub(super) fn queue(&mut self, data: Bytes) {
        debug_assert!(self.queued.is_none());
        self.queued = Some(Piece::Data(data));
    }

    /// Sends the queued bytes to the worker. Dropping the future loses nothing.
    pub(super) async fn flush(&mut self) {
        if self.queued.is_none() {
            return;
        }
        let Some(pieces) = &self.pieces else {
            self.queued = None;
            return;
        };
        let room = pieces.reserve().await;
        let piece = self.queued.take();
        if let (Ok(room), Some(piece)) = (room, piece) {
            room.send(piece);
        }
    }

    /// Resolves when the worker takes no more pieces.
    pub(super) async fn stopped(&self) {
        if let Some(pieces) = &self.pieces {
            pieces.closed().await;
        }
    }

    /// Why a worker has stopped before its end: an error that the archive did not cause, or the
    /// reason if the archive did.
    pub(super) async fn verdict(&mut self) -> Result<Failure, Failure> {
        match self.end().await {
            Err(Failure::Unpack(error)) if error.is_about_content() => Ok(Failure::Unpack(error)),
            Err(other) => Err(other),
            Ok(()) => Err(Failure::Unpack(UnpackError::Abandoned)),
        }
    }

    /// Waits for the worker to end. Only the first call gets its result.
    pub(super) async fn end(&mut self) -> Result<(), Failure> {
        self.pieces = None;
        let gone = || Err(Failure::Unpack(UnpackError::Abandoned));
        let Some(thread) = &mut self.thread else { return gone() };
        let result = thread.await;
        self.thread = None;
        result.unwrap_or_else(|error| {
            if error.is_cancelled() {
                return gone();
            }
            Err(Failure::Folder(InstallStep::Unpack, FolderError::Panicked))
        })
    }

    pub(super) fn cancel(&self) {
        self.fate.cancel();
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        // The caller dropped the installation, so the thread must not publish it. The channel
        // closes as well.
        self.fate.cancel();
    }
}

// === impl Fate ===

impl Fate {
    const OPEN: u8 = 0;
    const CANCELLED: u8 = 1;
    const COMMITTED: u8 = 2;

    fn cancel(&self) {
        self.decide(Self::CANCELLED);
    }

    /// Whether the installation may be published.
    fn commit(&self) -> bool {
        self.decide(Self::COMMITTED)
    }

    fn is_cancelled(&self) -> bool {
        self.0.load(Ordering::Relaxed) == Self::CANCELLED
    }

    fn decide(&self, fate: u8) -> bool {
        self.0.compare_exchange(Self::OPEN, fate, Ordering::AcqRel, Ordering::Acquire).is_ok()
    }
}
