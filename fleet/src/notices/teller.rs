//! The process that looks for notices, under a lease.

use std::time::Duration;

use guest_fleet_core::notice::{Noticed, Told};
use guest_fleet_ledger::records::audit::{self, AuditRecord, KEPT};
use guest_fleet_ledger::records::event::{AgentSetPart, NOTICED, NOTICES_LEASE, NoticedRecord};
use guest_fleet_ledger::records::{self, RecordError, Versioned};
use guest_fleet_ledger::{Bucket, Ledger, ReadError, Revision, SharedLedger, Write, WriteError};
use prost::Message;
use thiserror::Error;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::append::{AppendError, append};
use super::presence::{self, Found, LookError, Open};
use super::{Notice, Settings, decisions};
use crate::chain::Chain;
use crate::configuration::audit::{AuditError, head};
use crate::fold::lease::{Lease, Turns};

/// Most entries of the audit record that one look takes in.
const ENTRIES: u64 = 200;

/// After so many looks all agents are looked at again while some are away and their number does not change.
const AGAIN: u32 = 12;

/// The same while their number changes.
const CHANGED: u32 = 2;

/// How much longer than the last look at all agents took it is until the next.
const REST: u32 = 10;

/// Longest that a page of agents, or an append, may take before it is begun anew.
const STEP: Duration = Duration::from_secs(30);

/// For how long an answer of the ledger may be a stale one: an audit entry that is not there, or a head that is lower
/// than one before.
const STALE: Duration = Duration::from_secs(60);

/// Why a process does not go on.
#[derive(Debug, Error)]
enum Lost {
    #[error("the ledger was not read")]
    Read(#[from] ReadError),
    #[error("how far notices are cannot be read")]
    Record(#[from] RecordError),
    #[error("the audit record was not read")]
    Audit(#[from] AuditError),
    #[error("agents were not looked at")]
    Look(#[from] LookError),
    #[error(transparent)]
    Append(#[from] AppendError),
    #[error("another process looks for notices, or it is not known what was written")]
    Written(#[source] WriteError),
    #[error("a step took longer than {STEP:?}")]
    TimedOut,
}

/// A process with the lease.
struct Teller<'a> {
    ledger: &'a dyn Ledger,
    settings: &'a Settings,
    lease: Lease,
    noticed: NoticedRecord,
    revision: Revision,
    sight: &'a mut Sight,
}

/// The observations of a process, under this lease and earlier ones.
#[derive(Default)]
struct Sight {
    /// Since when agents could connect without a break, and when that was seen last.
    open: Option<(Instant, Instant)>,
    /// When it was last tried to look at agents.
    tried: Option<Instant>,
    looked: Option<Looked>,
    /// The audit entry that is not there, or the head that is too low, and since when.
    odd: Option<(u64, Instant)>,
    /// How often it failed since it last went well.
    failures: u32,
}

/// A look at all agents.
#[derive(Clone, Copy)]
struct Looked {
    at: Instant,
    took: Duration,
    /// How many were offline, and in quarantine.
    counts: (u64, u64),
}

/// Looks for notices whenever no other process does, until `ending`.
pub async fn run(ledger: SharedLedger, settings: Settings, ending: CancellationToken) {
    let place = (Bucket::Configuration, NOTICES_LEASE);
    let turns = Turns::new(&*ledger, place, &settings.jittered, &ending);
    let mut sight = Sight::default();
    while let Some(lease) = turns.next().await {
        tracing::debug!("this process looks for notices");
        let telling = tell(&*ledger, &settings, lease, &mut sight, &ending);
        let Err(error) = turns.during(telling).await else { return };
        sight.failed(&error);
        // A newer program wrote how far notices are, and shall have the lease.
        let pause = if matches!(error, Lost::Record(_)) { Lease::TTL * 3 } else { settings.look };
        let Some(()) = turns.pause(pause).await else { return };
    }
}

async fn tell(
    ledger: &dyn Ledger,
    settings: &Settings,
    lease: Lease,
    sight: &mut Sight,
    ending: &CancellationToken,
) -> Result<(), Lost> {
    let (revision, noticed) = match noticed(ledger).await {
        Ok(found) => found,
        Err(error) => {
            lease.give_back(ledger).await;
            return Err(error);
        }
    };
    let mut teller = Teller { ledger, settings, lease, noticed, revision, sight };
    let ended = teller.tell(ending).await;
    teller.lease.give_back(ledger).await;
    ended
}

/// How far notices are.
async fn noticed(ledger: &dyn Ledger) -> Result<(Revision, NoticedRecord), Lost> {
    let found = ledger.get(Bucket::Configuration, NOTICED).await?;
    Ok(match found {
        Some(found) => (found.revision, records::decode(NOTICED, &found.value)?),
        // The past is no news.
        None => {
            let audit = head(ledger).await?.number;
            let version = NoticedRecord::VERSION;
            (Revision::ABSENT, NoticedRecord { version, audit, ..NoticedRecord::default() })
        }
    })
}

// === impl Teller ===

impl Teller<'_> {
    /// Looks until `ending`.
    async fn tell(&mut self, ending: &CancellationToken) -> Result<(), Lost> {
        if self.revision == Revision::ABSENT {
            self.keep(self.noticed.clone()).await?;
        }
        let mut changes = self.ledger.watch(Bucket::Configuration);
        loop {
            let is_whole = self.round().await?;
            self.renew().await?;
            if !is_whole {
                continue;
            }
            let pause = (self.settings.jittered)(self.settings.look);
            tokio::select! {
                biased;
                () = ending.cancelled() => return Ok(()),
                () = tokio::time::sleep(pause) => {}
                // A decision has its notice soon.
                () = async { drop(changes.changed().await); tokio::time::sleep(pause / 5).await } => {}
            }
        }
    }

    /// Looks at everything once; whether there was no more. Decisions that cannot be read keep no agent from its notice.
    async fn round(&mut self) -> Result<bool, Lost> {
        self.append_pending().await?;
        let decisions = match self.decisions().await {
            Err(error) if !error.is_of_lease() => {
                self.sight.failed(&error);
                Ok(None)
            }
            decisions => decisions.map(Some),
        };
        let decisions = decisions?;
        self.agents().await?;
        if decisions.is_some() {
            self.sight.failures = 0;
        }
        Ok(decisions.unwrap_or(true))
    }

    async fn decisions(&mut self) -> Result<bool, Lost> {
        let head = head(self.ledger).await?.number;
        if head < self.noticed.audit && !self.sight.is_so(head) {
            return Ok(true);
        }
        // A ledger that went back has fewer entries.
        let from = self.noticed.audit.min(head).max(head.saturating_sub(KEPT));
        let to = head.min(from + ENTRIES);
        if to == self.noticed.audit {
            return Ok(true);
        }
        for number in from + 1..=to {
            let key = audit::key(number);
            let found = self.ledger.get(Bucket::Configuration, &key).await?;
            let Some(found) = found else {
                // The answer may be a stale one: then a later look has the entry.
                if number + KEPT > head && !self.sight.is_so(number) {
                    if self.noticed.audit != number - 1 {
                        self.keep(NoticedRecord { audit: number - 1, ..self.noticed.clone() })
                            .await?;
                    }
                    return Ok(true);
                }
                tracing::error!(number, "a decision has no notice: its audit entry is gone");
                continue;
            };
            let notices = match records::decode::<AuditRecord>(&key, &found.value) {
                Ok(entry) => decisions::notices(&entry),
                Err(error) => {
                    tracing::error!(%error, "a decision has no notice");
                    continue;
                }
            };
            for notice in &notices {
                self.append(notice).await?;
            }
            // After a kill no more than one decision comes again.
            if !notices.is_empty() {
                self.keep(NoticedRecord { audit: number, ..self.noticed.clone() }).await?;
            }
            self.renew().await?;
        }
        self.sight.odd = None;
        if to != self.noticed.audit {
            self.keep(NoticedRecord { audit: to, ..self.noticed.clone() }).await?;
        }
        Ok(to == head)
    }

    async fn agents(&mut self) -> Result<(), Lost> {
        let look = self.settings.look;
        if self.sight.tried.is_some_and(|tried| tried.elapsed() < look) {
            return Ok(());
        }
        self.sight.tried = Some(Instant::now());
        let now = (self.settings.wall)();
        let Some(open) = presence::open(self.ledger, now).await? else {
            self.sight.open = None;
            return Ok(());
        };
        // Until then agents that have no stream may have had no chance to get one.
        let settle = self.settings.settle.max(Duration::from_secs(open.offline_after()));
        let is_settled = self.sight.open_for() >= settle;
        let counts = open.counts();
        if self.sight.looked.is_some_and(|looked| !looked.is_over(counts, look)) {
            return Ok(());
        }
        let told = told(&self.noticed);
        // Nobody is away, and nobody was.
        let is_calm = counts == (0, 0) && told == Some(Told::default());
        if is_calm || (told.is_none() && !is_settled) {
            return Ok(());
        }
        let began = Instant::now();
        let before = told.clone().unwrap_or_default();
        let found = self.scan(open, &before, is_settled).await;
        self.sight.looked = Some(Looked { at: Instant::now(), took: began.elapsed(), counts });
        let looks = self.noticed.looks + 1;
        let (notices, after) = found?.notices(&before, (looks, now));
        if told.as_ref() == Some(&after) {
            return Ok(());
        }
        let mut noticed = kept(&self.noticed, &after);
        // The past is no news.
        if told.is_some() {
            noticed.pending = notices.iter().map(Notice::pending).collect();
        }
        noticed.looks = looks;
        self.keep(noticed).await?;
        self.append_pending().await
    }

    async fn scan(
        &mut self,
        mut open: Open<'_>,
        before: &Told,
        is_settled: bool,
    ) -> Result<Found, Lost> {
        let mut found = Found::default();
        loop {
            let page = open.page((before, is_settled), &mut found);
            let more = tokio::time::timeout(STEP, page).await.map_err(|_| Lost::TimedOut)??;
            if !more {
                return Ok(found);
            }
            self.renew().await?;
        }
    }

    /// Appends the notices that are recorded and may not be in the log.
    async fn append_pending(&mut self) -> Result<(), Lost> {
        let pending: Vec<Notice> = self.noticed.pending.iter().map(Notice::of_pending).collect();
        if pending.is_empty() {
            return Ok(());
        }
        for notice in &pending {
            self.append(notice).await?;
            self.renew().await?;
        }
        self.keep(NoticedRecord { pending: Vec::new(), ..self.noticed.clone() }).await
    }

    async fn append(&self, notice: &Notice) -> Result<(), Lost> {
        let now = (self.settings.wall)();
        let appending = append(self.ledger, notice, now, || self.lease.is_held());
        Ok(tokio::time::timeout(STEP, appending).await.map_err(|_| Lost::TimedOut)??)
    }

    /// Records how far notices are.
    async fn keep(&mut self, noticed: NoticedRecord) -> Result<(), Lost> {
        let value = Some(noticed.encode_to_vec().into());
        let write = Write { key: NOTICED.to_owned(), expected: self.revision, value };
        self.revision = self.write(vec![write]).await?;
        self.noticed = noticed;
        Ok(())
    }

    /// Renews the lease where that is due.
    async fn renew(&mut self) -> Result<(), Lost> {
        if Instant::now() >= self.lease.due() {
            self.write(Vec::new()).await?;
        }
        Ok(())
    }

    /// Writes under the lease.
    async fn write(&mut self, mut batch: Vec<Write>) -> Result<Revision, Lost> {
        let begun = Instant::now();
        batch.push(self.lease.renewal());
        let written = self.ledger.write(Bucket::Configuration, batch).await;
        let revision = written.map_err(Lost::Written)?;
        self.lease.renewed(revision, begun);
        Ok(revision)
    }
}

// === impl Lost ===

impl Lost {
    /// Whether another process may have the lease.
    fn is_of_lease(&self) -> bool {
        let conflict = |error: &WriteError| {
            matches!(error, WriteError::Conflict { .. } | WriteError::Ambiguous(_))
        };
        match self {
            Self::Append(AppendError::Lost) => true,
            Self::Written(error) => conflict(error),
            _ => false,
        }
    }
}

// === impl Sight ===

impl Sight {
    /// For how long agents could connect without a break; it is so now.
    fn open_for(&mut self) -> Duration {
        let now = Instant::now();
        let known = self.open.filter(|(_, seen)| seen.elapsed() < STALE);
        let (since, _) = *self.open.insert((known.map_or(now, |(since, _)| since), now));
        now - since
    }

    /// Whether a number has been odd for so long that no stale answer explains it.
    fn is_so(&mut self, number: u64) -> bool {
        let known = self.odd.filter(|(odd, _)| *odd == number);
        let (_, since) = *self.odd.insert(known.unwrap_or((number, Instant::now())));
        since.elapsed() >= STALE
    }

    /// Says that notices wait, once until it goes well again.
    fn failed(&mut self, error: &Lost) {
        if error.is_of_lease() {
            tracing::debug!(error = %Chain(error), "notices are looked for anew");
            return;
        }
        self.failures = self.failures.saturating_add(1);
        if self.failures == 1 {
            tracing::warn!(error = %Chain(error), "notices wait; they are looked for anew");
        } else {
            tracing::debug!(error = %Chain(error), "notices wait still");
        }
    }
}

// === impl Looked ===

impl Looked {
    /// Whether it is time for the next look at all agents.
    fn is_over(&self, counts: (u64, u64), look: Duration) -> bool {
        let pause = if self.counts == counts { look * AGAIN } else { look * CHANGED };
        self.at.elapsed() >= pause.max(self.took * REST)
    }
}

/// The agents that were noticed; `None` where nobody looked at any yet.
fn told(noticed: &NoticedRecord) -> Option<Told> {
    let set = |part: &AgentSetPart| Noticed {
        agents: part.agents.iter().cloned().collect(),
        beyond: part.beyond,
    };
    let (offline, quarantined) = (noticed.offline.as_ref()?, noticed.quarantined.as_ref()?);
    Some(Told { offline: set(offline), quarantined: set(quarantined) })
}

fn kept(noticed: &NoticedRecord, told: &Told) -> NoticedRecord {
    let part = |noticed: &Noticed| AgentSetPart {
        agents: noticed.agents.iter().cloned().collect(),
        beyond: noticed.beyond,
    };
    NoticedRecord {
        offline: Some(part(&told.offline)),
        quarantined: Some(part(&told.quarantined)),
        ..noticed.clone()
    }
}
