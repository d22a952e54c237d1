//! One unpacking of a revision: the download of it and the writing of its files, side by side.
//!
//! ```text
//! this task: request ─► chunk ─► SHA-256,  ─┬─ bounded channel ─► thread: decode ─► untar ─► write
//!                                signature  ├─ both are right ─► "verified" ─► sync, publish
//!                                           └─ bounded channel ─► tee: keep it in the cache
//! ```
//!
//! The thread publishes the revision only after this task has sent it "verified": the checksum is
//! right, and so is the signature where one is necessary. If the caller drops this future, the
//! thread stops and deletes what it wrote. One atomic step decides between "cancelled" and "may
//! publish", so the thread never publishes half a revision.
//!
//! If the server is silent while others wait for the memory that this installation holds for its
//! decoder, the transfer fails with [`Failure::Stalled`]: the caller gives the memory to them, and
//! begins again.
//!
//! If a transfer breaks off or is too slow, this task requests the remaining bytes, if the server
//! supports that; the digest and the thread wait meanwhile. Each such request counts as one of the
//! ordered download attempts. If the server does not support it, the pipeline downloads the archive
//! from its beginning with the attempts that are left.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::Duration;

use bytes::Bytes;
use guest_agent_actors::error::Chain;
use guest_agent_actors::model::id::Sha256Digest;
use guest_agent_actors::model::spec::{Artifact, PluginSpec};
use guest_agent_actors::ports::{InstallError, InstallStep, Progress, ProgressSender};
use sha2::{Digest, Sha256};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio::time::{Instant, timeout_at};

use super::fetch::{self, Body, Fetcher};
use super::progress_reporter::ProgressReporter;
use crate::hostinfo::preflight::{self, Unfit};
use crate::install::cache::Tee;
use crate::install::error::{ChecksumError, FetchError, FolderError, SignatureError, UnpackError};
use crate::install::folder::PluginFolder;
use crate::install::limits::Limits;
use crate::install::retry;
use crate::install::trust::Check;
use crate::install::unpack::Unpacking;
use crate::install::unpack::limits_reader::Piece;
use crate::install::unpack::tree::Resolver;
use crate::install::window_budget::{Hold, STALLED_BYTES};

/// Chunks that wait for the thread. When there are no more the download waits.
const CHUNKS_IN_FLIGHT: usize = 8;

/// Most bytes that are still read of an archive that cannot be used, to find out whether it is the
/// ordered one at all.
const MAX_POST_MORTEM: u64 = 64 << 20;

/// The source of the archive.
#[derive(Clone, Copy, Debug)]
pub(in crate::install) enum ArchiveOrigin<'a> {
    /// The URL of the order.
    Ordered,
    /// The cache. The checksum is computed in any case.
    Cached(&'a Path),
}

/// Everything one transfer needs.
pub(in crate::install) struct Transfer<'a, H> {
    pub(in crate::install) fetcher: &'a Fetcher,
    pub(in crate::install) folder: &'a PluginFolder,
    pub(in crate::install) limits: &'a Limits,
    /// For a dry run: the folder below which the plugins would be.
    pub(in crate::install) dry_run_for: Option<&'a Path>,
    pub(in crate::install) resolver: Resolver,
    pub(in crate::install) spec: &'a Arc<PluginSpec>,
    pub(in crate::install) artifact: &'a Artifact,
    pub(in crate::install) progress: &'a ProgressSender,
    pub(in crate::install) origin: ArchiveOrigin<'a>,
    /// Keeps the archive in the cache, where that is wanted.
    pub(in crate::install) tee: Option<Tee>,
    /// The required signature, if one is required.
    pub(in crate::install) check: Option<Check<'a>>,
    /// The memory for the decoder's window.
    pub(in crate::install) windows: Arc<Hold>,
    /// The requests that were made and that may be made.
    pub(in crate::install) budget: &'a mut Budget,
    /// Held until the thread has ended, also if this future is dropped before that.
    pub(in crate::install) hold: H,
}

/// How often a request for an archive may be sent.
#[derive(Clone, Copy, Debug)]
pub(in crate::install) struct Budget {
    /// The number of the current request, counted from 1.
    pub(in crate::install) number: u32,
    /// The largest number that there may be.
    pub(in crate::install) attempts: u32,
    /// How much of this request's time had passed before the download began again in favour of
    /// others.
    pub(in crate::install) spent: Duration,
}

/// Why a transfer failed.
#[derive(Debug)]
pub(in crate::install) enum Failure {
    /// The archive did not arrive.
    Fetch(FetchError),
    /// The checksum of the bytes is not the ordered one.
    Checksum(ChecksumError),
    /// No trusted key made the signature.
    Signature(SignatureError),
    /// It could not be unpacked.
    Unpack(UnpackError),
    /// This machine cannot run its program.
    Unfit(Unfit),
    /// Its folder could not be made or published.
    Folder(InstallStep, FolderError),
    /// The server was silent while other installations waited for the memory that this one held.
    /// It has given that back and begins again, which is not a new attempt.
    Stalled,
}

/// The thread that unpacks. It stops when this is dropped.
struct Worker {
    pieces: Option<mpsc::Sender<Piece>>,
    thread: Option<JoinHandle<Result<(), Failure>>>,
    /// The bytes that were hashed but not sent to the thread yet.
    queued: Option<Piece>,
    fate: Arc<Fate>,
}

/// Whether an installation may still become visible. This is decided once.
#[derive(Debug, Default)]
struct Fate(AtomicU8);

// === impl Transfer ===

impl<H: Send + 'static> Transfer<'_, H> {
    /// Makes one attempt. When this returns, an unsuccessful attempt has left nothing behind.
    pub(in crate::install) async fn run(self) -> Result<(), Failure> {
        let Self { spec, artifact, fetcher, limits, progress, .. } = self;
        let url = &artifact.url;
        let timeout = spec.download.timeout;
        let late = |received| {
            Failure::Fetch(FetchError::Timeout { url: url.to_string(), timeout, received })
        };
        let mut deadline = Instant::now() + timeout.saturating_sub(self.budget.spent);
        let opening = async {
            match self.origin {
                ArchiveOrigin::Ordered => fetcher.open(url).await,
                ArchiveOrigin::Cached(path) => fetch::open_file(path.to_owned()).await,
            }
        };
        let mut body = match timeout_at(deadline, opening).await {
            Ok(opened) => opened.map_err(Failure::Fetch)?,
            Err(_) => return Err(late(0)),
        };
        let total = body.total();
        let limit = limits.archive_bytes;
        if total.is_some_and(|total| total > limit) {
            return Err(Failure::Fetch(FetchError::TooLarge { url: url.to_string(), limit }));
        }
        let mut reporter = ProgressReporter::new(progress, self.budget.number, total);
        let budget = self.budget;
        let parts = Parts {
            folder: self.folder,
            limits,
            dry_run_for: self.dry_run_for,
            resolver: self.resolver,
            spec,
            artifact,
            signature: self.check.as_ref().map(|check| check.signature().text().to_owned()),
            windows: Arc::clone(&self.windows),
        };
        let mut feed = Feed {
            spec,
            artifact,
            limits,
            worker: parts.start(total, self.hold),
            heard: Heard::new(self.check),
            post_mortem: match self.origin {
                ArchiveOrigin::Ordered => MAX_POST_MORTEM,
                ArchiveOrigin::Cached(_) => u64::MAX,
            },
            tee: self.tee,
            windows: self.windows,
        };
        loop {
            let failure = match timeout_at(deadline, feed.whole(&mut body, &mut reporter)).await {
                Ok(Ok(())) => {
                    feed.keep().await;
                    return Ok(());
                }
                Ok(Err(failure)) => failure,
                Err(_) => late(reporter.now.received),
            };
            match feed.go_on(fetcher, failure, &mut body, &mut reporter, budget).await {
                Ok(()) => deadline = Instant::now() + timeout,
                Err(failure) => {
                    if matches!(failure, Failure::Stalled) {
                        let left = deadline.saturating_duration_since(Instant::now());
                        budget.spent = timeout.saturating_sub(left);
                    }
                    feed.worker.cancel();
                    // The thread may have published before it saw the request to stop.
                    return feed.worker.end().await.map_err(|_| failure);
                }
            }
        }
    }
}

/// The input of the thread.
struct Parts<'a> {
    folder: &'a PluginFolder,
    limits: &'a Limits,
    dry_run_for: Option<&'a Path>,
    resolver: Resolver,
    spec: &'a Arc<PluginSpec>,
    artifact: &'a Artifact,
    signature: Option<String>,
    windows: Arc<Hold>,
}

impl Parts<'_> {
    fn start<H: Send + 'static>(self, needed: Option<u64>, hold: H) -> Worker {
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
        let span = tracing::error_span!("unpack");
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
            let _publishing = tracing::error_span!("publish").entered();
            staging
                .publish(&spec.revision, (sha256, signature.as_deref()), || decision.commit())
                .map_err(|error| Failure::Folder(InstallStep::Publish, error))
        });
        Worker { pieces: Some(pieces), thread: Some(thread), queued: None, fate }
    }
}

/// Passes the bytes to the worker. It outlives a transfer that breaks off.
struct Feed<'a> {
    spec: &'a Arc<PluginSpec>,
    artifact: &'a Artifact,
    limits: &'a Limits,
    worker: Worker,
    tee: Option<Tee>,
    heard: Heard<'a>,
    /// Most bytes that are still read of an archive that cannot be used.
    post_mortem: u64,
    windows: Arc<Hold>,
}

/// The task's knowledge of the bytes received so far.
struct Heard<'a> {
    digest: Sha256,
    check: Option<Check<'a>>,
    /// If the worker stopped early: the reason, and how many bytes the task had received by then.
    verdict: Option<(Failure, u64)>,
    /// Whether the task has sent [`Piece::Verified`] to the worker.
    verified: bool,
}

// === impl Feed ===

impl Feed<'_> {
    /// Sends the received bytes to the worker until the body ends, then waits for the worker. After
    /// a failure it can be called again with a body that begins where the last one stopped.
    async fn whole(
        &mut self,
        body: &mut Body,
        reporter: &mut ProgressReporter<'_>,
    ) -> Result<(), Failure> {
        if !self.heard.verified {
            self.receive(body, reporter).await?;
            tracing::error_span!("verify").in_scope(|| self.verify(reporter.now))?;
            self.worker.hand_over(Piece::Verified).await;
            self.heard.verified = true;
        }
        self.worker.end().await
    }

    async fn receive(
        &mut self,
        body: &mut Body,
        reporter: &mut ProgressReporter<'_>,
    ) -> Result<(), Failure> {
        let url = || self.artifact.url.to_string();
        // Sends what was left when a deadline dropped the last call.
        self.flush().await;
        let mut pace = Pace::default();
        loop {
            let asked = Instant::now();
            let chunk = tokio::select! {
                biased;
                () = self.worker.stopped(), if self.heard.verdict.is_none() => {
                    let verdict = self.worker.verdict().await?;
                    self.heard.verdict = Some((verdict, reporter.now.received));
                    self.tee = None;
                    continue;
                }
                chunk = body.chunk() => chunk,
                () = pace.stalls(&self.windows) => return Err(Failure::Stalled),
            };
            pace.add(
                asked.elapsed(),
                chunk.as_ref().map_or(0, |chunk| chunk.as_ref().map_or(0, Bytes::len)),
            );
            let Progress { received, total, .. } = reporter.now;
            let chunk = chunk.map_err(|source| {
                Failure::Fetch(FetchError::Broken { url: url(), received, total, source })
            })?;
            let Some(chunk) = chunk else {
                return match total {
                    Some(total) if total != received => {
                        Err(Failure::Fetch(FetchError::Short { url: url(), received, total }))
                    }
                    _ => Ok(()),
                };
            };
            // There is no await from here to the next receive: the digest, the count and the sent
            // bytes always agree, also when a deadline drops this future.
            reporter.add(chunk.len() as u64);
            self.heard.digest.update(&chunk);
            if let Some(check) = &mut self.heard.check {
                check.update(&chunk);
            }
            let received = reporter.now.received;
            let limit = self.limits.archive_bytes;
            if received > limit {
                return Err(Failure::Fetch(FetchError::TooLarge { url: url(), limit }));
            }
            match self.heard.verdict.take() {
                None => {
                    if let Some(tee) = &mut self.tee {
                        tee.queue(chunk.clone());
                    }
                    self.worker.queue(chunk);
                }
                Some((failure, since)) if received - since > self.post_mortem => {
                    return Err(failure);
                }
                verdict => self.heard.verdict = verdict,
            }
            self.flush().await;
        }
    }

    /// Sends the queued bytes. Dropping the future loses nothing.
    async fn flush(&mut self) {
        self.worker.flush().await;
        if let Some(tee) = &mut self.tee {
            tee.flush().await;
        }
    }

    /// Keeps the archive, which is installed now, and its signature.
    async fn keep(&mut self) {
        let signature = self.heard.check.as_ref().map(|check| check.signature().text().to_owned());
        if let Some(tee) = self.tee.take() {
            tee.keep(signature).await;
        }
    }

    fn verify(&mut self, now: Progress) -> Result<(), Failure> {
        let expected = self.artifact.sha256;
        let digest = std::mem::take(&mut self.heard.digest);
        let actual = Sha256Digest::from_bytes(digest.finalize().into());
        if actual != expected {
            let url = self.artifact.url.to_string();
            return Err(Failure::Checksum(ChecksumError { url, expected, actual }));
        }
        if let Some(check) = &mut self.heard.check {
            check.finish().map_err(Failure::Signature)?;
            tracing::info!(
                plugin = %self.spec.name,
                revision = %self.spec.revision,
                key = %check.key(),
                comment = check.signature().trusted_comment(),
                "the archive is signed by a trusted key"
            );
        }
        debug_assert!(now.total.is_none_or(|total| total == now.received));
        match self.heard.verdict.take() {
            Some((failure, _)) => Err(failure),
            None => Ok(()),
        }
    }

    /// After a failed transfer: requests the rest, within the remaining attempts. Returns the last
    /// failure when no attempt succeeds.
    async fn go_on(
        &mut self,
        fetcher: &Fetcher,
        failure: Failure,
        body: &mut Body,
        reporter: &mut ProgressReporter<'_>,
        budget: &mut Budget,
    ) -> Result<(), Failure> {
        let url = &self.artifact.url;
        let timeout = self.spec.download.timeout;
        let mut error = match failure {
            Failure::Fetch(error) if error.is_transient() => error,
            other => return Err(other),
        };
        while budget.number < budget.attempts
            && body.can_be_resumed()
            && self.heard.verdict.is_none()
            && !self.heard.verified
            && reporter.now.received > 0
        {
            let pause = retry::pause(budget.number, error.retry_after(), rand::random());
            tracing::info!(
                plugin = %self.spec.name,
                revision = %self.spec.revision,
                attempt = budget.number,
                received = reporter.now.received,
                pause_ms = pause.as_millis(),
                error = %Chain(&error),
                "the download will resume at the byte where it stopped"
            );
            // Until the remaining bytes arrive, the installation would hold memory that others
            // could use.
            let windows = Arc::clone(&self.windows);
            tokio::select! {
                () = tokio::time::sleep(pause) => {}
                () = windows.is_wanted() => break,
            }
            budget.number += 1;
            budget.spent = Duration::ZERO;
            reporter.again(budget.number);
            let asked = fetcher.resume(url, body, reporter.now.received);
            let answered = tokio::select! {
                answered = tokio::time::timeout(timeout, asked) => answered,
                // The remaining bytes are requested again, as part of this attempt.
                () = windows.is_wanted() => {
                    budget.number -= 1;
                    break;
                }
            };
            match answered {
                Ok(Ok(true)) => return Ok(()),
                // The whole archive has to be fetched again. The request that found this out is not
                // counted.
                Ok(Ok(false)) => {
                    budget.number -= 1;
                    break;
                }
                Ok(Err(next)) if next.is_transient() => error = next,
                Ok(Err(next)) => return Err(Failure::Fetch(next)),
                Err(_) => {
                    let received = reporter.now.received;
                    error = FetchError::Timeout { url: url.to_string(), timeout, received };
                }
            }
        }
        Err(Failure::Fetch(error))
    }
}

/// How quickly a server answers.
#[derive(Debug, Default)]
struct Pace {
    /// How long the agent waited for it.
    waited: Duration,
    /// How many bytes arrived in that time.
    bytes: u64,
}

// === impl Pace ===

impl Pace {
    /// Another piece arrived, after this time.
    fn add(&mut self, waited: Duration, bytes: usize) {
        self.waited = self.waited.saturating_add(waited);
        self.bytes = self.bytes.saturating_add(bytes as u64);
        if self.bytes >= STALLED_BYTES {
            *self = Self::default();
        }
    }

    /// Resolves when the server was silent for too long while other installations wait for the
    /// memory of this one. How long writing takes does not count.
    async fn stalls(&self, windows: &Hold) {
        tokio::time::sleep(windows.patience().saturating_sub(self.waited)).await;
        windows.is_wanted().await;
    }
}

// === impl Heard ===

impl<'a> Heard<'a> {
    fn new(check: Option<Check<'a>>) -> Self {
        Self { digest: Sha256::new(), check, verdict: None, verified: false }
    }
}

// === impl Failure ===

impl From<Failure> for InstallError {
    fn from(failure: Failure) -> Self {
        match failure {
            Failure::Fetch(error) => Self { step: InstallStep::Download, cause: error.into() },
            Failure::Checksum(error) => Self { step: InstallStep::Verify, cause: error.into() },
            Failure::Signature(error) => Self { step: InstallStep::Verify, cause: error.into() },
            Failure::Unpack(error) => Self { step: InstallStep::Unpack, cause: error.into() },
            Failure::Unfit(error) => Self { step: InstallStep::Check, cause: error.into() },
            Failure::Folder(step, error) => Self { step, cause: error.into() },
            // The caller begins again instead, for this reason.
            Failure::Stalled => {
                Self { step: InstallStep::Download, cause: UnpackError::Abandoned.into() }
            }
        }
    }
}

// === impl Worker ===

impl Worker {
    /// Sends a message to the worker. If the worker has stopped, its result has the reason.
    async fn hand_over(&mut self, piece: Piece) {
        self.flush().await;
        self.queued = Some(piece);
        self.flush().await;
    }

    /// Queues bytes for the next flush, which has to come before the next bytes are queued.
    fn queue(&mut self, data: Bytes) {
        debug_assert!(self.queued.is_none());
        self.queued = Some(Piece::Data(data));
    }

    /// Sends the queued bytes to the worker. Dropping the future loses nothing.
    async fn flush(&mut self) {
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
    async fn stopped(&self) {
        if let Some(pieces) = &self.pieces {
            pieces.closed().await;
        }
    }

    /// Why a worker has stopped before its end: an error that the archive did not cause, or the
    /// reason if the archive did.
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
