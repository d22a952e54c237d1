//! One webhook: its lease, and the loop that delivers.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use guest_agent_serve_kit::backoff::{Jitter, Schedule};
use guest_fleet_ledger::records::time;
use guest_fleet_ledger::{Entry, Log, ReadError, bounds};
use http::{HeaderMap, HeaderName, HeaderValue};
use tokio::sync::Semaphore;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::gaps::{Before, Gap, Seen};
use super::lease::{Held, Lease, Lost};
use super::payload::{self, Batch};
use super::settings::Webhook;
use super::shared::Webhooks;
use super::sign::Secret;
use crate::chain::Chain;
use crate::net::outbound::{self, Message};
use crate::simulated::chance;

/// Header with the signature.
const SIGNATURE: HeaderName = HeaderName::from_static("guest-fleet-signature");
/// Header with the time that is signed, in seconds since 1970.
const TIMESTAMP: HeaderName = HeaderName::from_static("guest-fleet-timestamp");
/// How often a cursor that moves is written.
const SAVE: Duration = Duration::from_secs(1);
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
        Self { shared, webhook, pages, keeper, seen: Seen::default(), failures: 0 }
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
        loop {
            let reading = read(
                &self.shared,
                &self.webhook,
                &self.pages,
                &mut self.seen,
                begun,
                since,
                position,
            );
            let (batch, body) = match self.keeper.during(reading).await? {
                Ok(Some(read)) => read,
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
            if !batch.is_empty() {
                self.shared
                    .figures
                    .webhook(&self.webhook.name, |it| it.waiting_since = batch.oldest);
                self.send(&body).await?;
                self.shared.figures.webhook(&self.webhook.name, |it| {
                    it.delivered += batch.events;
                    it.lost += batch.lost;
                });
            }
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

    /// Sends a document until the receiver takes it.
    async fn send(&mut self, body: &Bytes) -> Result<(), Lost> {
        loop {
            let posting = post(&self.shared, &self.webhook, body);
            match self.keeper.during(posting).await? {
                Ok(()) => {
                    if std::mem::take(&mut self.failures) > 0 {
                        tracing::info!(
                            webhook = self.webhook.name,
                            "the receiver takes events again"
                        );
                    }
                    return Ok(());
                }
                Err(error) => {
                    self.failures = self.failures.saturating_add(1);
                    self.shared.figures.webhook(&self.webhook.name, |it| it.failures += 1);
                    if self.failures == 1 {
                        tracing::warn!(
                            webhook = self.webhook.name,
                            error,
                            "the receiver did not take events; they are sent again"
                        );
                    }
                    let pause = self.pause();
                    self.keeper.during(tokio::time::sleep(pause)).await?;
                }
            }
        }
    }

    /// Twice as long with every failure, in the upper half at random.
    fn pause(&self) -> Duration {
        let timings = &self.shared.timings;
        let (first, longest) = (timings.first_pause, timings.longest_pause);
        let pauses = Schedule::doubling(first, longest, Jitter::UpperHalf);
        pauses.wait(self.failures.saturating_sub(1), rand::random())
    }
}

/// The next entries as a document; `None` at the end of the log.
async fn read(
    shared: &Webhooks,
    webhook: &Webhook,
    pages: &Semaphore,
    seen: &mut Seen,
    begun: &Begun,
    since: Option<SystemTime>,
    position: u64,
) -> Result<Option<(Batch, Bytes)>, ReadError> {
    // It is never closed.
    let _page = pages.acquire().await.ok();
    seen.forget_page();
    let ledger = &*shared.ledger;
    let entries = ledger.read(Log::Events, "", position, payload::ENTRIES).await?;
    if entries.is_empty() {
        return Ok(None);
    }
    let mut batch = Batch::default();
    for entry in &entries {
        if batch.is_full() {
            break;
        }
        let gap = match seen.before(entry) {
            Before::Whole => None,
            Before::Gone(gap) => Some(gap),
            Before::Unknown => unknown(shared, begun, entry).await?,
        };
        if let Some(gap) = gap {
            batch.gap(entry, gap);
        }
        batch.add(webhook, since, entry);
        seen.note(entry);
    }
    seen.keep_page();
    let body = batch.document(&webhook.name);
    Ok(Some((batch, body)))
}

/// Whether entries before one may have gone undelivered, where nothing is known of its subject.
async fn unknown(
    shared: &Webhooks,
    begun: &Begun,
    entry: &Entry,
) -> Result<Option<Gap>, ReadError> {
    if begun.position == 0 {
        // What came before the webhook was there is not missed.
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

/// One try. The error is a text for the log, without the URL.
async fn post(shared: &Webhooks, webhook: &Webhook, body: &Bytes) -> Result<(), String> {
    let path = webhook.secret.clone();
    let reading = tokio::task::spawn_blocking(move || Secret::read(&path)).await;
    let secret = reading.map_err(|error| error.to_string())?;
    let secret = secret.map_err(|error| Chain(&error).to_string())?;
    let seconds = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
    let signature = HeaderValue::from_str(&secret.sign(seconds, body));
    let signature = signature.map_err(|error| error.to_string())?;
    let headers =
        HeaderMap::from_iter([(TIMESTAMP, HeaderValue::from(seconds)), (SIGNATURE, signature)]);
    let message = Message {
        target: &webhook.target,
        ca: webhook.ca.as_deref(),
        allowed: &shared.allowed,
        headers,
        body: body.clone(),
    };
    outbound::post(message).await.map_err(|error| Chain(&error).to_string())
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
