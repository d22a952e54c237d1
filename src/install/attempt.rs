//! One attempt to install a revision: the download and the unpacking of it, side by side.
//!
//! ```text
//! this task: request ─► chunk ─► SHA-256 ─┬─ bounded channel ─► thread: decode ─► untar ─► write
//!                                         └─ digest is right ─► "verified" ─► sync, publish
//! ```
//!
//! The thread publishes only after it has heard that the checksum is right. If this future is
//! dropped, the thread is told to stop and deletes what it wrote; whether it may still publish is
//! decided by one atomic step, so it is never half done. The pipeline calls this and retries.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

use guest_agent_actors::id::Sha256Digest;
use guest_agent_actors::ports::{InstallError, InstallStep, Progress, ProgressSender};
use guest_agent_actors::spec::{Artifact, PluginSpec};
use sha2::{Digest, Sha256};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio::time::{Instant, timeout_at};

use super::error::{ChecksumError, FetchError, FolderError, UnpackError};
use super::fetch::{Body, Fetcher};
use super::folder::PluginFolder;
use super::guard::Piece;
use super::limits::Limits;
use super::tree::Resolver;
use super::unpack::Unpacking;

/// Chunks on their way to the thread. When they are used up the download waits.
const CHUNKS_IN_FLIGHT: usize = 8;

/// How much is still read of an archive that turned out to be unusable, to learn whether it is the
/// ordered one at all.
const MAX_POST_MORTEM: u64 = 64 << 20;

/// Everything one attempt needs.
pub(super) struct Attempt<'a, H> {
    pub(super) fetcher: &'a Fetcher,
    pub(super) folder: &'a PluginFolder,
    pub(super) limits: &'a Limits,
    pub(super) resolver: Resolver,
    pub(super) spec: &'a Arc<PluginSpec>,
    pub(super) artifact: &'a Artifact,
    pub(super) progress: &'a ProgressSender,
    /// Counts from 1.
    pub(super) number: u32,
    /// Kept until the thread has ended, also if this future has not lived to see it.
    pub(super) hold: H,
}

/// Why an attempt failed.
#[derive(Debug)]
pub(super) enum Failure {
    /// The archive did not arrive.
    Fetch(FetchError),
    /// It was another archive.
    Checksum(ChecksumError),
    /// It could not be unpacked.
    Unpack(UnpackError),
    /// Its folder could not be made or published.
    Folder(InstallStep, FolderError),
}

/// The thread that unpacks. Told to stop when this is dropped.
struct Worker {
    pieces: Option<mpsc::Sender<Piece>>,
    thread: Option<JoinHandle<Result<(), Failure>>>,
    fate: Arc<Fate>,
}

/// Whether an installation may still become visible. Decided once.
#[derive(Debug, Default)]
struct Fate(AtomicU8);

// === impl Attempt ===

impl<H: Send + 'static> Attempt<'_, H> {
    /// Tries. When this answers, an unsuccessful attempt has left nothing behind.
    pub(super) async fn run(self) -> Result<(), Failure> {
        let artifact = self.artifact;
        let url = &artifact.url;
        let timeout = self.spec.download.timeout;
        let late = |received| {
            Failure::Fetch(FetchError::Timeout { url: url.to_string(), timeout, received })
        };
        let deadline = Instant::now() + timeout;
        let mut body = match timeout_at(deadline, self.fetcher.open(url)).await {
            Ok(opened) => opened.map_err(Failure::Fetch)?,
            Err(_) => return Err(late(0)),
        };
        let total = body.total();
        let mut meter = Transfer::new(self.progress, self.number, total);
        let limit = self.limits.archive_bytes;
        if total.is_some_and(|total| total > limit) {
            return Err(Failure::Fetch(FetchError::TooLarge { url: url.to_string(), limit }));
        }
        let limits = self.limits;
        let mut worker = self.start(total);
        let whole = async {
            feed(artifact, limits, &mut body, &mut worker, &mut meter).await?;
            worker.end().await
        };
        match timeout_at(deadline, whole).await {
            Ok(Ok(())) => Ok(()),
            Ok(Err(failure)) => {
                worker.cancel();
                worker.end().await.ok();
                Err(failure)
            }
            Err(_) => {
                worker.cancel();
                // Publishing may have been faster than the word that it is too late.
                worker.end().await.map_err(|_| late(meter.now.received))
            }
        }
    }

    fn start(self, needed: Option<u64>) -> Worker {
        let (pieces, received) = mpsc::channel(CHUNKS_IN_FLIGHT);
        let fate = Arc::new(Fate::default());
        let spec = Arc::clone(self.spec);
        let sha256 = self.artifact.sha256;
        let folder = self.folder.clone();
        let limits = *self.limits;
        let Self { resolver, hold, .. } = self;
        let decision = Arc::clone(&fate);
        let thread = tokio::task::spawn_blocking(move || {
            let _hold = hold;
            let mut staging = folder
                .stage(&spec.revision, needed, resolver)
                .map_err(|error| Failure::Folder(InstallStep::Prepare, error))?;
            let place = staging.path();
            let unpacking = Unpacking {
                tree: staging.tree(),
                place,
                entry_point: &spec.entry_point,
                limits: &limits,
                is_cancelled: &|| decision.is_cancelled(),
            };
            unpacking.run(received).map_err(Failure::Unpack)?;
            if decision.is_cancelled() {
                // Flushing a disk can take long, and nobody waits for it any more.
                return Err(Failure::Unpack(UnpackError::Abandoned));
            }
            staging
                .publish(&spec.revision, sha256, || decision.commit())
                .map_err(|error| Failure::Folder(InstallStep::Publish, error))
        });
        Worker { pieces: Some(pieces), thread: Some(thread), fate }
    }
}

/// Hands the whole body to the worker, and the word that it is the right one.
async fn feed(
    artifact: &Artifact,
    limits: &Limits,
    body: &mut Body,
    worker: &mut Worker,
    transfer: &mut Transfer<'_>,
) -> Result<(), Failure> {
    let url = || artifact.url.to_string();
    let mut digest = Sha256::new();
    // What the worker thinks of the archive, if it has stopped early, and what was received then.
    let mut verdict: Option<(Failure, u64)> = None;
    loop {
        let chunk = tokio::select! {
            biased;
            () = worker.stopped(), if verdict.is_none() => {
                verdict = Some((worker.verdict().await?, transfer.now.received));
                continue;
            }
            chunk = body.chunk() => chunk,
        };
        let chunk = chunk.map_err(|source| {
            let Progress { received, total, .. } = transfer.now;
            Failure::Fetch(FetchError::Broken { url: url(), received, total, source })
        })?;
        let Some(chunk) = chunk else { break };
        transfer.add(chunk.len() as u64);
        let received = transfer.now.received;
        if received > limits.archive_bytes {
            let limit = limits.archive_bytes;
            return Err(Failure::Fetch(FetchError::TooLarge { url: url(), limit }));
        }
        digest.update(&chunk);
        match verdict {
            None => worker.hand_over(Piece::Data(chunk)).await,
            Some((failure, since)) if received - since > MAX_POST_MORTEM => return Err(failure),
            Some(_) => {}
        }
    }
    let Progress { received, total, .. } = transfer.now;
    if let Some(total) = total
        && total != received
    {
        return Err(Failure::Fetch(FetchError::Short { url: url(), received, total }));
    }
    let expected = artifact.sha256;
    let actual = Sha256Digest::from_bytes(digest.finalize().into());
    if actual != expected {
        return Err(Failure::Checksum(ChecksumError { url: url(), expected, actual }));
    }
    if let Some((failure, _)) = verdict {
        return Err(failure);
    }
    worker.hand_over(Piece::Verified).await;
    Ok(())
}

// === impl Failure ===

impl From<Failure> for InstallError {
    fn from(failure: Failure) -> Self {
        match failure {
            Failure::Fetch(error) => Self { step: InstallStep::Download, cause: error.into() },
            Failure::Checksum(error) => Self { step: InstallStep::Verify, cause: error.into() },
            Failure::Unpack(error) => Self { step: InstallStep::Unpack, cause: error.into() },
            Failure::Folder(step, error) => Self { step, cause: error.into() },
        }
    }
}

// === impl Worker ===

impl Worker {
    /// Gives the worker something. If it has stopped, its result says why.
    async fn hand_over(&mut self, piece: Piece) {
        if let Some(pieces) = &self.pieces {
            pieces.send(piece).await.ok();
        }
    }

    /// Resolves when the worker takes no more pieces.
    async fn stopped(&self) {
        if let Some(pieces) = &self.pieces {
            pieces.closed().await;
        }
    }

    /// Why a worker that should still be at it has stopped: fails with a reason that the archive is
    /// not to blame for, answers with one that it is.
    async fn verdict(&mut self) -> Result<Failure, Failure> {
        match self.end().await {
            Err(Failure::Unpack(error)) if error.is_about_content() => Ok(Failure::Unpack(error)),
            Err(other) => Err(other),
            Ok(()) => Err(Failure::Unpack(UnpackError::Abandoned)),
        }
    }

    /// Waits for the worker to end. Only the first call gets its result.
    async fn end(&mut self) -> Result<(), Failure> {
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

    fn cancel(&self) {
        self.fate.cancel();
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        // Whoever dropped the installation does not want it. The channel closes with this, too.
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

    /// Whether it may be published.
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

/// Counts what arrives and tells about it.
struct Transfer<'a> {
    now: Progress,
    progress: &'a ProgressSender,
}

// === impl Transfer ===

impl<'a> Transfer<'a> {
    fn new(progress: &'a ProgressSender, attempt: u32, total: Option<u64>) -> Self {
        let transfer = Self { now: Progress { received: 0, total, attempt }, progress };
        transfer.tell();
        transfer
    }

    /// Tells at once: a transfer that hangs from here on is seen where it hangs. Whoever shows it
    /// looks when it wants to, so this costs no more than the store it is.
    fn add(&mut self, bytes: u64) {
        self.now.received = self.now.received.saturating_add(bytes);
        self.tell();
    }

    fn tell(&self) {
        self.progress.send_replace(self.now);
    }
}
