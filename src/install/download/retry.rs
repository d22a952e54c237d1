//! Tries to install an archive until that succeeds, or fails for a reason that another try would
//! not change.
//!
//! The cache is used before the network, but not again when its archive is damaged. Over the network
//! the agent takes what changed since an archive of the cache, or the archive compressed, where the
//! server has that; when that cannot be used, the archive is downloaded in the next simpler form, which
//! is not another attempt. After a
//! transient failure the download is tried again after a pause, as often as the order says; after a
//! full disk it is tried again when the cache can make room. Every other failure is final. The
//! pipeline calls this while it holds the plugin's turn.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use guest_agent_actors::error::Chain;
use guest_agent_actors::model::spec::{Artifact, PluginSpec};
use guest_agent_actors::ports::{
    Arrival, ContentCoding, InstallError, InstallStep, Progress, ProgressSender, Unused,
};
use guest_agent_actors::trace;
use reqwest::Url;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tracing::error_span;
use tracing::field::Empty;

use super::expand::DICTIONARY_MAX;
use super::failure::Failure;
use super::fetch::{self, Fetcher};
use super::offer::Offer;
use super::redirect::RedirectRules;
use crate::install::cache::{Cache, Kept, Tee, Yield};
use crate::install::download::transfer::{ArchiveOrigin, Budget, Came, Transfer};
use crate::install::error::{
    CodingError, Exhausted, FetchError, FolderError, SignatureError, UnpackError,
};
use crate::install::folder::{PluginFolder, Turn};
use crate::install::limits::Limits;
use crate::install::retry;
use crate::install::trust::{self, Check, Keyring, Signature, Trust};
use crate::install::unpack::tree::Resolver;
use crate::install::window_budget::{Hold, WindowBudget};

/// The shared state of all downloads.
#[derive(Debug)]
pub(in crate::install) struct Downloader {
    pub(in crate::install) fetcher: Fetcher,
    limits: Limits,
    pub(in crate::install) resolver: Resolver,
    slots: Arc<Semaphore>,
    pub(in crate::install) windows: Arc<WindowBudget>,
    trust: Mutex<Arc<Trust>>,
    pub(in crate::install) cache: Arc<Cache>,
    /// For a dry run, which publishes nothing: the folder below which the plugins would be.
    pub(in crate::install) dry_run_for: Option<PathBuf>,
}

/// The progress text of an installation that waits for memory.
const WINDOW_TAKEN: &str = "other installations use the memory for expanding archives";

/// One installation under way.
pub(in crate::install) struct Retry<'a> {
    pub(in crate::install) downloader: &'a Downloader,
    pub(in crate::install) spec: &'a Arc<PluginSpec>,
    pub(in crate::install) artifact: &'a Artifact,
    pub(in crate::install) folder: &'a PluginFolder,
    pub(in crate::install) turn: &'a Turn,
    pub(in crate::install) progress: &'a ProgressSender,
}

/// The receiver of its progress.
struct Course {
    budget: Budget,
    /// Whether the cache may provide the archive.
    kept: bool,
    /// The archives that the cache deleted for this installation.
    yielded: Option<Yield>,
    /// The memory that its decoder needs, as far as it is known, in units of the budget.
    window: u32,
    /// The forms in which the archive may still come.
    forms: Forms,
    /// How it came in the last transfer.
    came: Came,
    /// How it came in all of them.
    arrival: Arrival,
}

/// The forms in which an archive is asked for. Each failure of one leaves the simpler ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Forms {
    /// As what changed, compressed, or as it is.
    Any,
    /// Compressed, or as it is.
    Whole,
    /// As it is.
    Plain,
}

// === impl Downloader ===

impl Downloader {
    /// A downloader that runs up to `max_parallel` transfers at the same time, and at least one.
    pub(in crate::install) fn new(
        limits: Limits,
        max_parallel: usize,
        resolver: Resolver,
        trust: Trust,
        cache: Arc<Cache>,
        redirects: RedirectRules,
    ) -> Self {
        Self {
            fetcher: Fetcher::new(redirects),
            limits,
            resolver,
            slots: Arc::new(Semaphore::new(max_parallel.max(1))),
            windows: Arc::default(),
            trust: Mutex::new(Arc::new(trust)),
            cache,
            dry_run_for: None,
        }
    }

    /// Uses these keys for every transfer that begins from now on.
    pub(in crate::install) fn set_trust(&self, trust: Trust) {
        *self.trust.lock().unwrap_or_else(PoisonError::into_inner) = Arc::new(trust);
    }

    /// Judges archives by these limits.
    #[cfg(test)]
    pub(in crate::install) fn set_limits(&mut self, limits: Limits) {
        self.limits = limits;
    }

    pub(in crate::install) fn trust(&self) -> Arc<Trust> {
        Arc::clone(&self.trust.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

// === impl Retry ===

impl Retry<'_> {
    /// Installs the archive.
    pub(in crate::install) async fn until_done(self) -> Result<(), InstallError> {
        let attempts = self.spec.download.attempts.max(1);
        let budget = Budget { number: 1, attempts, spent: Duration::ZERO };
        let mut course = Course {
            budget,
            kept: true,
            yielded: None,
            window: 0,
            forms: Forms::Any,
            came: Came::default(),
            arrival: Arrival::default(),
        };
        let done = self.attempts(&mut course).await;
        let arrival = course.arrival;
        self.progress.send_if_modified(|progress| {
            progress.arrival = arrival;
            arrival != Arrival::default()
        });
        done
    }

    async fn attempts(&self, course: &mut Course) -> Result<(), InstallError> {
        let Self { spec, .. } = self;
        let attempts = course.budget.attempts;
        loop {
            course.came = Came::default();
            let done = self.once(course).await;
            if let Came { coding: Some(coding), bytes, .. } = course.came {
                course.arrival.add(coding, bytes);
            }
            let error = match done {
                Ok(()) => return Ok(()),
                Err(failure) if self.falls_back(&failure, course).await => {
                    let error = InstallError::from(failure);
                    tracing::warn!(
                        plugin = %spec.name,
                        revision = %spec.revision,
                        url = %self.artifact.url,
                        error = %Chain(&error),
                        "the form in which the archive came is not usable; the agent downloads it \
                         in a simpler one"
                    );
                    continue;
                }
                // This is not another attempt: the installation only let others go first. It cannot
                // go on for ever, because an archive may not ask for more than it did the second
                // time, and the time of a download that stalls is counted.
                Err(Failure::Stalled | Failure::Unpack(UnpackError::WindowTaken { .. })) => {
                    tracing::info!(
                        plugin = %spec.name,
                        revision = %spec.revision,
                        "the installation waits for memory to expand its archive, and begins again"
                    );
                    continue;
                }
                Err(failure) if failure.is_space() && self.make_room(course).await => continue,
                Err(Failure::Fetch(error)) if error.is_transient() => error,
                Err(failure) => return Err(failure.into()),
            };
            let number = course.budget.number;
            if number >= attempts {
                if attempts == 1 {
                    return Err(Failure::Fetch(error).into());
                }
                let cause = Box::new(Exhausted { attempts, last: error });
                return Err(InstallError { step: InstallStep::Download, cause });
            }
            let pause = retry::pause(number, error.retry_after(), rand::random());
            tracing::info!(
                plugin = %spec.name,
                revision = %spec.revision,
                attempt = number,
                pause_ms = pause.as_millis(),
                error = %Chain(&error),
                "the download will be tried again"
            );
            tokio::time::sleep(pause).await;
            course.budget.number += 1;
            course.budget.spent = Duration::ZERO;
        }
    }

    /// Whether the archive is to be asked for in a simpler form now, after a failure.
    async fn falls_back(&self, failure: &Failure, course: &mut Course) -> bool {
        let coding = course.came.coding;
        // Some servers and what is before them refuse what they do not know.
        if let Failure::Fetch(FetchError::Status { status: 400 | 406 | 415, .. }) = failure
            && self.offer(course, None).await.is_something()
        {
            course.forms = Forms::Plain;
            course.arrival.give_up(ContentCoding::Zstd, Unused::Refused);
            return true;
        }
        let reason = match (failure, coding) {
            (_, None | Some(ContentCoding::Identity)) => return false,
            (Failure::Coded(error), Some(_)) => error.reason(),
            (Failure::Checksum(_), Some(_)) => Unused::Checksum,
            (Failure::Unpack(UnpackError::Window { .. }), Some(_)) => Unused::TooLarge,
            (Failure::Fetch(error), Some(_)) if error.is_transient() => {
                // A server that compresses as it sends cannot go on where it broke off.
                if !course.came.can_be_resumed {
                    course.forms = Forms::Plain;
                }
                return false;
            }
            _ => return false,
        };
        if let Failure::Coded(CodingError::Dictionary { path, .. }) = failure {
            let name = path.file_name().and_then(|name| name.to_str()?.parse().ok());
            let cache = Arc::clone(&self.downloader.cache);
            if let Some(sha256) = name {
                aside(move || cache.forget(sha256)).await;
            }
        }
        let coding = coding.unwrap_or(ContentCoding::Identity);
        course.arrival.give_up(coding, reason);
        course.forms = if coding == ContentCoding::Delta { Forms::Whole } else { Forms::Plain };
        true
    }

    /// The forms in which the archive is asked for.
    async fn offer(&self, course: &Course, memory: Option<&Arc<Hold>>) -> Offer {
        let Ok(url) = Url::parse(self.artifact.url.expose()) else { return Offer::nothing() };
        let is_http = matches!(url.scheme(), "http" | "https");
        if course.forms == Forms::Plain || !is_http {
            return Offer::nothing();
        }
        let memory = match memory {
            Some(memory) => Arc::clone(memory),
            None => Arc::new(self.downloader.windows.take(0, || {}).await),
        };
        let whole = Offer { memory: Some(memory), dictionary: None }.at(&url);
        if course.forms == Forms::Whole || !whole.is_something() {
            return whole;
        }
        let (cache, sha256) = (Arc::clone(&self.downloader.cache), self.artifact.sha256);
        let found = aside(move || cache.dictionary_for(&url, sha256, DICTIONARY_MAX)).await;
        Offer { dictionary: found.flatten(), ..whole }
    }

    async fn once(&self, course: &mut Course) -> Result<(), Failure> {
        let trust = self.downloader.trust();
        let keyring = trust.keyring().map_err(Failure::Signature)?;
        let windows = Arc::new(self.windows(course).await);
        let mut slot = self.slot().await;
        // Another installation may have downloaded it while this one waited.
        if let Some(kept) = self.kept(course).await {
            let voucher = self.voucher(Some(&kept), keyring).await?;
            let check = self.check(keyring, voucher.as_ref())?;
            let origin = ArchiveOrigin::Cached(&kept.path);
            match self.transfer(origin, check, slot, &windows, course).await {
                Err(failure) if failure.may_be_of_what_was_kept() => {
                    tracing::warn!(
                        plugin = %self.spec.name,
                        revision = %self.spec.revision,
                        archive = %kept.path.display(),
                        error = %Chain(&InstallError::from(failure)),
                        "the archive in the cache is not usable; the agent downloads it again"
                    );
                    let (cache, sha256) =
                        (Arc::clone(&self.downloader.cache), self.artifact.sha256);
                    aside(move || cache.forget(sha256)).await;
                    course.kept = false;
                }
                done => return done,
            }
            slot = self.slot().await;
        }
        let voucher = self.voucher(None, keyring).await?;
        let check = self.check(keyring, voucher.as_ref())?;
        let offer = self.offer(course, Some(&windows)).await;
        self.transfer(ArchiveOrigin::Ordered(&offer), check, slot, &windows, course).await
    }

    /// Waits for the memory that its decoder needs, where that is known already. The installation
    /// holds no download slot meanwhile.
    async fn windows(&self, course: &Course) -> Hold {
        let wait = || {
            let held_up = Some(WINDOW_TAKEN);
            let attempt = course.budget.number;
            self.progress.send_replace(Progress { held_up, attempt, ..Progress::default() });
        };
        let hold = self.downloader.windows.take(course.window, wait).await;
        self.progress.send_if_modified(|progress| progress.held_up.take().is_some());
        hold
    }

    /// Waits for one of the download slots. The caller releases it after one transfer, so that an
    /// order whose server is unreachable does not delay the others.
    async fn slot(&self) -> OwnedSemaphorePermit {
        let slot = Arc::clone(&self.downloader.slots).acquire_owned();
        let slot = trace::within(error_span!("queue", otel.end = Empty), slot).await;
        slot.expect("the semaphore is never closed")
    }

    async fn kept(&self, course: &Course) -> Option<Kept> {
        if !course.kept {
            return None;
        }
        let (cache, sha256) = (Arc::clone(&self.downloader.cache), self.artifact.sha256);
        aside(move || cache.find(sha256)).await.flatten()
    }

    async fn transfer(
        &self,
        origin: ArchiveOrigin<'_>,
        check: Option<Check<'_>>,
        slot: OwnedSemaphorePermit,
        windows: &Arc<Hold>,
        course: &mut Course,
    ) -> Result<(), Failure> {
        let Self { downloader, spec, artifact, .. } = *self;
        let cache = &downloader.cache;
        // If the cache had to delete archives for this installation, it does not keep the new
        // archive.
        let keeps = matches!(origin, ArchiveOrigin::Ordered(_))
            && course.yielded.is_none()
            && cache.is_on();
        let transfer = Transfer {
            fetcher: &downloader.fetcher,
            folder: self.folder,
            limits: &downloader.limits,
            dry_run_for: downloader.dry_run_for.as_deref(),
            resolver: downloader.resolver,
            spec,
            artifact,
            progress: self.progress,
            origin,
            tee: keeps.then(|| Tee::begin(Arc::clone(cache), artifact.sha256)),
            check,
            windows: Arc::clone(windows),
            budget: &mut course.budget,
            came: &mut course.came,
            hold: (slot, Arc::clone(self.turn)),
        };
        let number = transfer.budget.number;
        let is_kept = matches!(origin, ArchiveOrigin::Cached(_));
        let span = error_span!(
            "download",
            attempt = number,
            cached = is_kept,
            error = Empty,
            otel.end = Empty
        );
        let said = span.clone();
        let run = async {
            let done = transfer.run().await;
            if done.is_err() {
                // The error of the installation has the reason, with URLs as they may be shown.
                trace::fail(&said, "this attempt failed");
            }
            done
        };
        let done = trace::within(span, run).await;
        // The installation gives its memory back, and takes as much at once the next time.
        windows.release();
        course.window = windows.most();
        done
    }

    /// An archive that no key can verify is not downloaded.
    fn check<'k>(
        &self,
        keyring: Option<&'k Keyring>,
        signature: Option<&'k Signature>,
    ) -> Result<Option<Check<'k>>, Failure> {
        let (Some(keyring), Some(signature)) = (keyring, signature) else { return Ok(None) };
        let check = keyring.judge(signature, &self.spec.name, &self.spec.revision);
        check.map(Some).map_err(Failure::Signature)
    }

    /// The signature in the cache, if a currently trusted key made it, or else the signature beside
    /// the archive. `None` if none is necessary.
    async fn voucher(
        &self,
        kept: Option<&Kept>,
        keyring: Option<&Keyring>,
    ) -> Result<Option<Signature>, Failure> {
        let Some(keyring) = keyring else { return Ok(None) };
        let kept = kept.and_then(|kept| Signature::parse(kept.signature.as_deref()?).ok());
        if let Some(signature) = kept
            && self.check(Some(keyring), Some(&signature)).is_ok()
        {
            return Ok(Some(signature));
        }
        let span = error_span!("signature", otel.end = Empty);
        trace::within(span, self.signature()).await.map(Some)
    }

    async fn signature(&self) -> Result<Signature, Failure> {
        let url = fetch::beside(&self.artifact.url, trust::SUFFIX);
        let place = || url.to_string();
        let timeout = self.spec.download.timeout;
        let fetched = self.downloader.fetcher.small(&url, trust::SIGNATURE_MAX, timeout).await;
        let bytes = match fetched {
            Ok(bytes) => bytes,
            Err(error) if error.is_absence() => {
                return Err(Failure::Signature(SignatureError::Missing { place: place() }));
            }
            Err(error) => return Err(Failure::Fetch(error)),
        };
        Signature::parse(&bytes).map_err(|reason| {
            Failure::Signature(SignatureError::Malformed { place: place(), reason })
        })
    }

    /// Makes room by deleting archives in the cache. Returns whether another attempt may succeed.
    async fn make_room(&self, course: &mut Course) -> bool {
        let how = match course.yielded {
            None => Yield::Unneeded,
            Some(Yield::Unneeded) => Yield::All,
            Some(Yield::All) => return false,
        };
        course.yielded = Some(how);
        let cache = Arc::clone(&self.downloader.cache);
        let freed = aside(move || cache.make_room(how)).await.unwrap_or(false);
        tracing::info!(
            plugin = %self.spec.name,
            revision = %self.spec.revision,
            freed,
            "the disk is full; deletes archives of the cache to make room for the installation"
        );
        // Without the copy for the cache the archive may fit by itself.
        freed || how == Yield::Unneeded
    }
}

// === impl Failure ===

impl Failure {
    /// Whether the disk is full.
    fn is_space(&self) -> bool {
        matches!(self, Self::Folder(_, FolderError::Space(_)) | Self::Unpack(UnpackError::Space(_)))
    }

    /// Whether the error can come from a damaged archive in the cache.
    fn may_be_of_what_was_kept(&self) -> bool {
        matches!(self, Self::Fetch(_) | Self::Checksum(_) | Self::Signature(_))
    }
}

/// Runs a blocking function on a thread of its own. `None` when it panicked.
async fn aside<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Option<T> {
    tokio::task::spawn_blocking(work).await.ok()
}
