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
use std::time::Duration;

use bytes::Bytes;
use guest_agent_actors::error::Chain;
use guest_agent_actors::model::id::Sha256Digest;
use guest_agent_actors::model::spec::{Artifact, ArtifactUrl, PluginSpec};
use guest_agent_actors::ports::{ContentCoding, Progress, ProgressSender};
use sha2::{Digest, Sha256};
use tokio::time::{Instant, timeout_at};

use super::failure::Failure;
use super::fetch::{self, Body, Fetcher};
use super::offer::Offer;
use super::progress_reporter::ProgressReporter;
use super::worker::{Parts, Worker};
use crate::install::cache::terms::Terms;
use crate::install::cache::{Beside, Tee};
use crate::install::error::{ChecksumError, CodingError, FetchError};
use crate::install::folder::PluginFolder;
use crate::install::limits::Limits;
use crate::install::retry;
use crate::install::trust::Check;
use crate::install::unpack::limits_reader::Piece;
use crate::install::unpack::tree::Resolver;
use crate::install::window_budget::{Hold, STALLED_BYTES};

/// Most bytes that are still read of an archive that cannot be used, to find out whether it is the
/// ordered one at all.
const MAX_POST_MORTEM: u64 = 64 << 20;

/// The source of the archive.
#[derive(Clone, Copy, Debug)]
pub(in crate::install) enum ArchiveOrigin<'a> {
    /// The URL of the order, in one of these forms.
    Ordered(&'a Offer),
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
    /// Where it says how the archive came over the network.
    pub(in crate::install) came: &'a mut Came,
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

/// How the archive of one transfer came over the network.
#[derive(Clone, Copy, Debug, Default)]
pub(in crate::install) struct Came {
    /// Its coding; `None` where there was no answer, or where it came from a file.
    pub(in crate::install) coding: Option<ContentCoding>,
    /// Bytes that came.
    pub(in crate::install) bytes: u64,
    /// Whether a later request could get what is missing.
    pub(in crate::install) can_be_resumed: bool,
}

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
                ArchiveOrigin::Ordered(offer) => fetcher.open(url, offer).await,
                ArchiveOrigin::Cached(path) => fetch::open_file(path.to_owned()).await,
            }
        };
        let mut body = match timeout_at(deadline, opening).await {
            Ok(opened) => opened.map_err(Failure::Fetch)?,
            Err(_) => return Err(late(0)),
        };
        let came = self.came;
        *came = match self.origin {
            ArchiveOrigin::Ordered(_) if is_of_network(url) => {
                let can_be_resumed = body.can_be_resumed();
                Came { coding: Some(body.coding()), bytes: 0, can_be_resumed }
            }
            ArchiveOrigin::Ordered(_) | ArchiveOrigin::Cached(_) => Came::default(),
        };
        let is_coded = !matches!(body.coding(), ContentCoding::Identity);
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
                // What a coding led to may be wrong where the archive is not.
                ArchiveOrigin::Ordered(_) if !is_coded => MAX_POST_MORTEM,
                ArchiveOrigin::Ordered(_) | ArchiveOrigin::Cached(_) => u64::MAX,
            },
            is_coded,
            tee: self.tee,
            windows: self.windows,
        };
        loop {
            let failure = match timeout_at(deadline, feed.whole(&mut body, &mut reporter)).await {
                Ok(Ok(())) => {
                    came.bytes = body.received();
                    feed.keep(body.terms()).await;
                    return Ok(());
                }
                Ok(Err(failure)) => failure,
                Err(_) => late(reporter.now.received),
            };
            came.bytes = body.received();
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
    /// Whether a content coding is undone.
    is_coded: bool,
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
            let chunk = chunk.map_err(|source| match source.downcast::<CodingError>() {
                Ok(error) => Failure::of_coding(*error),
                Err(source) => {
                    Failure::Fetch(FetchError::Broken { url: url(), received, total, source })
                }
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
                return Err(match self.is_coded {
                    true => Failure::Coded(CodingError::TooLarge { limit }),
                    false => Failure::Fetch(FetchError::TooLarge { url: url(), limit }),
                });
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

    /// Keeps the archive, which is installed now, its signature, and what it may be the dictionary
    /// for.
    async fn keep(&mut self, terms: Option<&Terms>) {
        let signature = self.heard.check.as_ref().map(|check| check.signature().text().to_owned());
        if let Some(tee) = self.tee.take() {
            tee.keep(Beside { signature, terms: terms.cloned() }).await;
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
            && body.resumes_at(reporter.now.received) > 0
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

/// Whether a URL is of a network, not of this machine.
fn is_of_network(url: &ArtifactUrl) -> bool {
    let text = url.expose();
    !text.starts_with("file:") && !text.starts_with("unix:")
}
