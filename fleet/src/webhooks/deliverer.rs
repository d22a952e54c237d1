//! One webhook: its lease, and the loop that delivers.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use guest_agent_serve_kit::backoff::{Jitter, Schedule};
use guest_fleet_ledger::gaps::{Before, Gap, Seen};
use guest_fleet_ledger::records::time;
use guest_fleet_ledger::{Entry, Log, ReadError, bounds};
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode};
use tokio::sync::Semaphore;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::lease::{Held, Lease, Lost};
use super::payload::{self, Batch, Limit};
use super::refusal::{self, Event, Refusal, Refused};
use super::settings::Webhook;
use super::shared::Webhooks;
use super::sign::Secret;
use crate::chain::Chain;
use crate::net::outbound::{self, Answer, Message};
use crate::simulated::chance;

/// Header with the signature.
const SIGNATURE: HeaderName = HeaderName::from_static("guest-fleet-signature");
/// Header with the time that is signed, in seconds since 1970.
const TIMESTAMP: HeaderName = HeaderName::from_static("guest-fleet-timestamp");
/// How often a cursor that moves is written.
const SAVE: Duration = Duration::from_secs(1);
/// After so many documents that a receiver took, it is tried whether it takes larger ones again.
const GROW: u32 = 100;
/// Longest wait that a receiver may ask for.
const RETRY_AFTER: Duration = Duration::from_secs(3600);
/// How much earlier an entry may go than this clock says.
const CLOCKS: Duration = Duration::from_secs(3600);

/// Delivers one webhook while it has the lease.
pub(super) struct Deliverer {
    shared: Webhooks,
    webhook: Webhook,
    pages: Arc<Semaphore>,
    keeper: Keeper,
    seen: Seen,
    failures: u32,
    limit: Limit,
    /// Documents that the receiver took since the limit changed.
    taken: u32,
    refusal: Refusal,
}

/// Why a document was not taken.
struct Failed {
    /// A text for the log, without the URL.
    reason: String,
    /// How long the receiver wants to be left alone.
    retry_after: Option<Duration>,
    /// The content is the reason: the same is refused again.
    of_content: Option<StatusCode>,
}

/// A lease, and what is held of it.
struct Keeper {
    lease: Lease,
    held: Option<Held>,
    beat_at: Instant,
}

/// How the log stood when this process began to deliver.
struct Begun {
    /// Where; 0 where nothing was delivered before.
    position: u64,
    /// Whether entries may have gone with their age since then.
    is_late: bool,
}

// === impl Deliverer ===

impl Deliverer {
    pub(super) fn new(shared: Webhooks, webhook: Webhook, pages: Arc<Semaphore>) -> Self {
        let lease = Lease::new(shared.ledger.clone(), &webhook.name, shared.timings.lease);
        let keeper = Keeper { lease, held: None, beat_at: Instant::now() };
        Self {
            shared,
            webhook,
            pages,
            keeper,
            seen: Seen::default(),
            failures: 0,
            limit: Limit::default(),
            taken: 0,
            refusal: Refusal::default(),
        }
    }

    /// Delivers until `ending`; then gives the lease back.
    pub(super) async fn run(mut self, ending: CancellationToken) {
        tokio::select! {
            biased;
            () = ending.cancelled() => {}
            never = self.work() => match never {},
        }
        if let Some(held) = self.keeper.held.take() {
            self.keeper.lease.give_back(held).await;
        }
    }

    async fn work(&mut self) -> Infallible {
        loop {
            let held = loop {
                match self.keeper.lease.take().await {
                    Some(held) => break held,
                    None => tokio::time::sleep(self.keeper.lease.beat()).await,
                }
            };
            tracing::info!(webhook = self.webhook.name, "delivers the webhook");
            let delivered = time(held.record.delivered);
            let age = delivered.and_then(|at| SystemTime::now().duration_since(at).ok());
            let begun = Begun {
                position: held.record.position,
                is_late: age.is_some_and(|age| age + CLOCKS >= bounds::ENTRY_AGE),
            };
            self.keeper.begin(held);
            self.seen = Seen::default();
            self.shared.figures.webhook(&self.webhook.name, |it| it.is_ours = true);
            let Err(Lost) = self.deliver(&begun).await;
            self.keeper.held = None;
            self.shared.figures.webhook(&self.webhook.name, |it| {
                (it.is_ours, it.waiting_since) = (false, None);
            });
            tracing::warn!(webhook = self.webhook.name, "another process delivers the webhook");
        }
    }

    async fn deliver(&mut self, begun: &Begun) -> Result<Infallible, Lost> {
        let mut position = begun.position;
        let since = self.keeper.held.as_ref().and_then(|held| time(held.record.since));
        let mut saved = Instant::now();
        self.refusal = Refusal::default();
        loop {
            let reading = Reading {
                shared: &self.shared,
                webhook: &self.webhook,
                pages: &self.pages,
                begun,
                since,
                limit: self.limit,
                refused: self.refusal.passed_over(),
            };
            let reading = reading.read(&mut self.seen, position);
            let batch = match self.keeper.during(reading).await? {
                Ok(Some(batch)) => batch,
                Ok(None) => {
                    self.caught_up();
                    let poll = chance::jittered(self.shared.timings.poll);
                    self.keeper.during(tokio::time::sleep(poll)).await?;
                    continue;
                }
                Err(error) => {
                    tracing::warn!(
                        webhook = self.webhook.name,
                        error = %Chain(&error),
                        "events were not read"
                    );
                    let pause = chance::jittered(self.shared.timings.poll * 2);
                    self.keeper.during(tokio::time::sleep(pause)).await?;
                    continue;
                }
            };
            self.refusal = self.refusal.step(Event::Made { first: batch.first });
            if !batch.is_empty() {
                // An entry that cannot be read does not say when it came.
                let now = SystemTime::now();
                self.shared.figures.webhook(&self.webhook.name, |it| {
                    it.waiting_since = batch.oldest.or(it.waiting_since).or(Some(now));
                });
                if !self.send(&batch).await? {
                    continue;
                }
                self.shared.figures.webhook(&self.webhook.name, |it| {
                    it.delivered += batch.events;
                    it.lost += batch.lost;
                });
            }
            self.seen.keep_page();
            position = batch.through;
            self.keeper.moved(position, batch.newest);
            if saved.elapsed() >= SAVE {
                saved = Instant::now();
                self.keeper.write().await?;
            }
        }
    }

    /// Everything that there is was delivered.
    fn caught_up(&mut self) {
        self.keeper.moved_to_now();
        self.shared.figures.webhook(&self.webhook.name, |it| it.waiting_since = None);
    }

    /// Sends a batch until the receiver takes it. False where it has to be made anew, because the receiver refuses its
    /// content.
    async fn send(&mut self, batch: &Batch) -> Result<bool, Lost> {
        let body = batch.document(&self.webhook.name);
        loop {
            let posting = post(&self.shared, &self.webhook, &body);
            let Err(failed) = self.keeper.during(posting).await? else {
                self.took(batch);
                return Ok(true);
            };
            self.shared.figures.webhook(&self.webhook.name, |it| it.failures += 1);
            self.failures = self.failures.saturating_add(1);
            if self.failures == 1 {
                tracing::warn!(
                    webhook = self.webhook.name,
                    error = failed.reason,
                    "the receiver did not take events; they are sent again"
                );
            }
            let other = failed.of_content.is_some_and(|status| self.learn(batch, status));
            // A smaller document is worth a try at once.
            let is_smaller =
                failed.of_content == Some(StatusCode::PAYLOAD_TOO_LARGE) && batch.told > 1;
            if !is_smaller || failed.retry_after.is_some() {
                let pause = self.pause(failed.retry_after);
                self.keeper.during(tokio::time::sleep(pause)).await?;
            }
            if other {
                return Ok(false);
            }
        }
    }

    fn took(&mut self, batch: &Batch) {
        if std::mem::take(&mut self.failures) > 0 {
            tracing::info!(webhook = self.webhook.name, "the receiver takes events again");
        }
        if batch.has_refused {
            self.refusal = self.refusal.step(Event::GapTaken);
        }
        self.limit.entries = payload::ENTRIES.min(self.limit.entries.saturating_mul(2));
        self.taken += 1;
        if self.taken >= GROW {
            self.taken = 0;
            self.limit.bytes = payload::BYTES.min(self.limit.bytes.saturating_mul(2));
        }
    }

    /// Learns from a document whose content was refused. True where the next one has to be made anew: it is half as
    /// large, says of an entry that it is passed over, or has that entry again.
    fn learn(&mut self, batch: &Batch, status: StatusCode) -> bool {
        if batch.told > 1 {
            self.limit.entries = batch.told / 2;
            if status == StatusCode::PAYLOAD_TOO_LARGE {
                self.limit.bytes = batch.bytes() / 2;
                self.taken = 0;
            }
            return true;
        }
        let event = match (batch.has_refused, batch.has_entry) {
            (true, _) => Event::GapRefused,
            (false, true) => Event::EntryRefused(Refused { position: batch.first, status }),
            (false, false) => return false,
        };
        let before = self.refusal.passed_over();
        self.refusal = self.refusal.step(event);
        if let Refusal::PassedOver { times: refusal::TIMES, .. } = self.refusal {
            tracing::warn!(
                webhook = self.webhook.name,
                status = status.as_u16(),
                "the receiver refuses an event, which is passed over: `guest-fleet events` shows it"
            );
        }
        self.refusal.passed_over() != before
    }

    /// Twice as long with every failure, in the upper half at random; at least as long as the receiver wants.
    fn pause(&self, retry_after: Option<Duration>) -> Duration {
        let timings = &self.shared.timings;
        let (first, longest) = (timings.first_pause, timings.longest_pause);
        let pauses = Schedule::doubling(first, longest, Jitter::UpperHalf);
        let pause = pauses.wait(self.failures.saturating_sub(1), rand::random());
        let wanted = retry_after.map(|wanted| wanted.min(RETRY_AFTER) + chance::jittered(first));
        wanted.map_or(pause, |wanted| wanted.max(pause))
    }
}

/// How a batch is read.
struct Reading<'a> {
    shared: &'a Webhooks,
    webhook: &'a Webhook,
    pages: &'a Semaphore,
    begun: &'a Begun,
    since: Option<SystemTime>,
    limit: Limit,
    refused: Option<Refused>,
}

// === impl Reading ===

impl Reading<'_> {
    /// The next entries; `None` at the end of the log.
    async fn read(self, seen: &mut Seen, position: u64) -> Result<Option<Batch>, ReadError> {
        // It is never closed.
        let _page = self.pages.acquire().await.ok();
        seen.forget_page();
        let ledger = &*self.shared.ledger;
        let entries = ledger.read(Log::Events, "", position, payload::ENTRIES).await?;
        if entries.is_empty() {
            return Ok(None);
        }
        let mut batch = Batch::default();
        for entry in &entries {
            let gap = match seen.before(entry) {
                Before::Whole => None,
                Before::Gone(gap) => Some(gap),
                Before::Unknown => unknown(self.shared, self.begun, entry).await?,
            };
            let of = (self.webhook, self.since);
            if !batch.add(of, (entry, gap), self.refused, self.limit) {
                break;
            }
            seen.note(entry);
        }
        Ok(Some(batch))
    }
}

/// Whether entries before one may have gone undelivered, where nothing is known of its subject.
async fn unknown(
    shared: &Webhooks,
    begun: &Begun,
    entry: &Entry,
) -> Result<Option<Gap>, ReadError> {
    if begun.position == 0 {
        // Entries that came before the webhook was there are not missed.
        return Ok(None);
    }
    let gap = Some(Gap { from: None, to: entry.number });
    if begun.is_late {
        return Ok(gap);
    }
    let last = shared.ledger.last(Log::Events, &entry.subject).await?;
    // It is the oldest that the log keeps of its subject, so that the one before it has gone.
    let is_oldest = last.is_some_and(|last| last.number + 1 >= entry.number + bounds::ENTRIES);
    Ok(gap.filter(|_| is_oldest))
}

/// One try.
async fn post(shared: &Webhooks, webhook: &Webhook, body: &Bytes) -> Result<(), Failed> {
    let failed = |reason: String| Failed { reason, retry_after: None, of_content: None };
    let path = webhook.secret.clone();
    let reading = tokio::task::spawn_blocking(move || Secret::read(&path)).await;
    let secret = reading.map_err(|error| failed(error.to_string()))?;
    let secret = secret.map_err(|error| failed(Chain(&error).to_string()))?;
    let seconds = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
    let signature = HeaderValue::from_str(&secret.sign(seconds, body));
    let signature = signature.map_err(|error| failed(error.to_string()))?;
    let headers =
        HeaderMap::from_iter([(TIMESTAMP, HeaderValue::from(seconds)), (SIGNATURE, signature)]);
    let message = Message {
        target: &webhook.target,
        ca: webhook.ca.as_deref(),
        allowed: &shared.allowed,
        headers,
        body: body.clone(),
    };
    let posted = outbound::post(message).await;
    let Answer { status, retry_after } =
        posted.map_err(|error| failed(Chain(&error).to_string()))?;
    if status.is_success() {
        return Ok(());
    }
    let of_content = matches!(
        status,
        StatusCode::PAYLOAD_TOO_LARGE | StatusCode::BAD_REQUEST | StatusCode::UNPROCESSABLE_ENTITY
    );
    Err(Failed {
        reason: format!("the answer has the status {status}; redirects are not followed"),
        retry_after,
        of_content: of_content.then_some(status),
    })
}

// === impl Keeper ===

impl Keeper {
    fn begin(&mut self, held: Held) {
        self.held = Some(held);
        self.beat_at = Instant::now() + self.lease.beat();
    }

    /// Does something while the lease is kept.
    async fn during<T>(&mut self, doing: impl Future<Output = T>) -> Result<T, Lost> {
        tokio::pin!(doing);
        loop {
            tokio::select! {
                biased;
                () = tokio::time::sleep_until(self.beat_at) => self.write().await?,
                done = &mut doing => {
                    self.lease.check(self.held.as_ref().ok_or(Lost)?)?;
                    return Ok(done);
                }
            }
        }
    }

    async fn write(&mut self) -> Result<(), Lost> {
        let held = self.held.as_mut().ok_or(Lost)?;
        self.lease.write(held).await?;
        self.beat_at = Instant::now() + self.lease.beat();
        Ok(())
    }

    /// Everything up to a position was delivered; the last entry of it came then.
    fn moved(&mut self, position: u64, at: Option<SystemTime>) {
        if let Some(held) = &mut self.held {
            held.record.position = position;
            if let Some(at) = at {
                held.record.delivered = Some(at.into());
            }
        }
    }

    /// Everything that came until now was delivered.
    fn moved_to_now(&mut self) {
        if let Some(held) = &mut self.held {
            held.record.delivered = Some(SystemTime::now().into());
        }
    }
}
