//! What a gateway knows of the configuration, and how old that is.
//!
//! ```text
//!   now ─► write the heartbeat (CAS) ─► its revision ─► read all changes up to it ─► publish
//!    └──────────── the age of the view counts from here, on a clock that never stops
//! ```
//!
//! The heartbeat is a record in the bucket of the configuration itself: its revision stands after
//! every change that was committed before it, so a view that reaches it misses none. A gateway that
//! cannot write cannot prove that, and orders nothing after [`AGE_MAX`].

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use guest_agent_serve_kit::lock::lock;
use guest_fleet_ledger::records::gateway::{GATEWAY, GatewayRecord, MissingSecret};
use guest_fleet_ledger::{Bucket, ReadError, Revision, SharedLedger, Write, WriteError};
use prost::Message;
use thiserror::Error;
use tokio::sync::futures::Notified;
use tokio::sync::{Notify, watch};
use tokio_util::sync::CancellationToken;

use super::environment::Environment;
use crate::chain::Chain;
use crate::configuration::Configuration;
use crate::gateways::ends;
use crate::gateways::needs::Needs;
use crate::secrets::Secrets;
use crate::secrets::directory::Snapshot;
use crate::simulated::removed;

/// Oldest view on which an order may leave.
pub const AGE_MAX: Duration = Duration::from_secs(5);

/// How often the view is renewed. Two attempts fit into [`AGE_MAX`].
const INTERVAL: Duration = Duration::from_secs(2);

/// How soon after a change. Changes that come together are one.
const AT_ONCE: Duration = Duration::from_millis(200);

/// Longest that one renewal may take.
const DEADLINE: Duration = Duration::from_secs(4);

/// The view of a gateway. Renewed by [`Views::run`], read by the sessions.
pub(crate) struct Views {
    ledger: SharedLedger,
    environment: Arc<dyn Environment>,
    key: String,
    known: Mutex<Known>,
    changed: Notify,
    wanted: Notify,
    heartbeat: tokio::sync::Mutex<Heartbeat>,
    counted: Mutex<GatewayRecord>,
    /// The matters of agents that the controller decides, by stream.
    needs: Mutex<BTreeMap<u64, Needs>>,
    secrets: Secrets,
    /// No order leaves any more, however new the view is.
    is_closed: AtomicBool,
}

/// A configuration, and from when it is.
#[derive(Clone, Debug, Default)]
pub(crate) struct Known {
    pub(crate) configuration: Arc<Configuration>,
    /// When the renewal began that read it, on the clock since boot; `None` before the first.
    pub(crate) as_of: Option<Duration>,
}

#[derive(Default)]
struct Heartbeat {
    revision: Revision,
    configuration: Configuration,
    /// The configuration is newer than the view.
    is_ahead: bool,
    /// The secrets when it was written.
    secrets: Option<Snapshot>,
}

/// Why a view was not renewed.
#[derive(Debug, Error)]
pub(crate) enum RenewError {
    #[error("the gateway's heartbeat was not written")]
    Write(#[source] WriteError),
    #[error("the configuration was not read")]
    Read(#[source] ReadError),
    #[error("the ledger did not answer within {DEADLINE:?}")]
    TimedOut,
}

// === impl Views ===

impl Views {
    pub(crate) fn new(
        ledger: SharedLedger,
        environment: Arc<dyn Environment>,
        id: &str,
        record: GatewayRecord,
        secrets: Secrets,
    ) -> Self {
        Self {
            ledger,
            secrets,
            environment,
            key: format!("{GATEWAY}{id}"),
            known: Mutex::default(),
            changed: Notify::new(),
            wanted: Notify::new(),
            heartbeat: tokio::sync::Mutex::default(),
            counted: Mutex::new(record),
            needs: Mutex::default(),
            is_closed: AtomicBool::new(false),
        }
    }

    /// The newest view, if it is new enough to order on.
    pub(crate) fn fresh(&self) -> Option<Known> {
        let known = lock(&self.known).clone();
        let is_unguarded = removed::is(removed::Guard::ViewAgeBeforeJournal);
        (self.is_fresh(known.as_of?) || is_unguarded).then_some(known)
    }

    /// Whether a view from that moment is still new enough.
    pub(crate) fn is_fresh(&self, as_of: Duration) -> bool {
        if self.is_closed.load(Ordering::SeqCst) {
            return false;
        }
        // A clock that went back would make an old view young: then it is not trusted.
        self.environment.since_boot().checked_sub(as_of).is_some_and(|age| age <= AGE_MAX)
    }

    /// Has the view renewed soon.
    pub(crate) fn want(&self) {
        self.wanted.notify_one();
    }

    /// Age of the view; `None` before the first.
    pub(crate) fn age(&self) -> Option<Duration> {
        let as_of = lock(&self.known).as_of?;
        Some(self.environment.since_boot().saturating_sub(as_of))
    }

    /// Completes when the view changes after this call.
    pub(crate) fn changed(&self) -> Notified<'_> {
        self.changed.notified()
    }

    /// Says with the next heartbeat how many agents are connected.
    pub(crate) fn count(&self, agents: u64) {
        lock(&self.counted).agents = agents;
    }

    /// Tells the controller with the next heartbeat what it has to decide for the agent of a stream.
    pub(crate) fn needs(&self, stream: u64, needs: Needs) {
        let mut all = lock(&self.needs);
        let former =
            if needs.is_empty() { all.remove(&stream) } else { all.insert(stream, needs.clone()) };
        drop(all);
        // What merely changes waits for the next heartbeat: an agent does not say how many there are.
        if former.unwrap_or_default().lacks(&needs) {
            self.want();
        }
    }

    /// Key of the gateway's own record.
    pub(crate) fn key(&self) -> &str {
        &self.key
    }

    /// Lets no order leave from now on, also none that waits for room in the transport, and says so
    /// with the next heartbeat.
    pub(crate) fn close(&self) {
        self.is_closed.store(true, Ordering::SeqCst);
        lock(&self.counted).is_draining = true;
    }

    /// Renews the view until the gateway ends; then takes the heartbeat back.
    pub(crate) async fn run(self: Arc<Self>, ending: CancellationToken) {
        let mut changes = self.ledger.watch(Bucket::Configuration);
        let mut failures: u32 = 0;
        loop {
            match self.renew().await {
                Ok(()) if failures > 0 => {
                    failures = 0;
                    tracing::info!("the ledger answers again");
                }
                Ok(()) => {}
                Err(error) => {
                    failures = failures.saturating_add(1);
                    if failures == 1 {
                        tracing::warn!(error = %Chain(&error), "the view was not renewed; no order leaves on an old one");
                    }
                }
            }
            let pause = tokio::time::sleep(self.environment.jittered(INTERVAL));
            tokio::select! {
                biased;
                () = ending.cancelled() => break,
                () = pause => {}
                () = self.is_due(&mut changes) => {}
            }
        }
        self.take_back().await;
    }

    /// Completes when the view is to be renewed at once.
    async fn is_due(&self, changes: &mut watch::Receiver<u64>) {
        loop {
            let changed = async {
                // A ledger that never reports a change is polled.
                if changes.changed().await.is_err() {
                    std::future::pending::<()>().await;
                }
            };
            let is_wanted = tokio::select! {
                biased;
                () = self.wanted.notified() => true,
                () = changed => false,
            };
            tokio::time::sleep(AT_ONCE).await;
            // Every heartbeat of a gateway is a change as well, also its own.
            if is_wanted || self.is_outdated().await {
                return;
            }
        }
    }

    /// Whether the ledger has a change that the view may lack.
    async fn is_outdated(&self) -> bool {
        let mut heartbeat = self.heartbeat.lock().await;
        let Heartbeat { configuration, is_ahead, .. } = &mut *heartbeat;
        let through = configuration.through();
        let read = configuration.catch_up(&*self.ledger, through);
        match tokio::time::timeout(DEADLINE, read).await {
            Ok(Ok(changed)) => *is_ahead |= changed,
            // The renewal says why.
            Ok(Err(_)) | Err(_) => return true,
        }
        *is_ahead
    }

    /// Renews the view once.
    pub(crate) async fn renew(&self) -> Result<(), RenewError> {
        tokio::time::timeout(DEADLINE, self.try_renew()).await.unwrap_or(Err(RenewError::TimedOut))
    }

    async fn try_renew(&self) -> Result<(), RenewError> {
        let mut heartbeat = self.heartbeat.lock().await;
        self.record_secrets(&heartbeat.configuration).await;
        let as_of = self.environment.since_boot();
        let value = {
            let mut counted = lock(&self.counted);
            let wall = Duration::from_secs(self.environment.wall().0);
            counted.beat = SystemTime::UNIX_EPOCH.checked_add(wall).map(Into::into);
            counted.secrets_key = self.secrets.key_name();
            let missing = self.secrets.missing(&heartbeat.configuration).into_iter();
            counted.missing_secrets =
                missing.map(|(name, problem)| MissingSecret { name, problem }).collect();
            let mut all = Needs::default();
            lock(&self.needs).values().for_each(|needs| all.add(needs));
            all.tell(&mut counted);
            Bytes::from(counted.encode_to_vec())
        };
        let write =
            Write { key: self.key.clone(), expected: heartbeat.revision, value: Some(value) };
        match self.ledger.write(Bucket::Configuration, vec![write]).await {
            Ok(revision) => heartbeat.revision = revision,
            Err(error) => {
                // Whatever happened to it: the next one begins from what is there.
                if let Ok(found) = self.ledger.get(Bucket::Configuration, &self.key).await {
                    heartbeat.revision = found.map_or(Revision::ABSENT, |record| record.revision);
                }
                return Err(RenewError::Write(error));
            }
        }
        let at_least = heartbeat.revision;
        let read = heartbeat.configuration.catch_up(&*self.ledger, at_least).await;
        let changed = read.map_err(RenewError::Read)? | std::mem::take(&mut heartbeat.is_ahead);
        // An order may wait for a file that is there now.
        let secrets = Some(self.secrets.snapshot());
        let has_secrets = std::mem::replace(&mut heartbeat.secrets, secrets) != secrets;
        let is_new = {
            let mut known = lock(&self.known);
            let is_new = changed || known.as_of.is_none();
            if is_new {
                known.configuration = Arc::new(heartbeat.configuration.clone());
            }
            // A view that was too old is one that orders may leave on again.
            let is_back = known.as_of.is_some_and(|as_of| !self.is_fresh(as_of));
            known.as_of = Some(as_of);
            is_new || is_back || has_secrets
        };
        if is_new {
            self.changed.notify_waiters();
        }
        Ok(())
    }

    /// Records the content of secrets that are ordered for the first time.
    async fn record_secrets(&self, configuration: &Configuration) {
        let host = lock(&self.counted).host.clone();
        let writes = self.secrets.to_record(configuration, (&host, self.environment.wall()));
        if writes.is_empty() {
            return;
        }
        let count = writes.len();
        match self.ledger.write(Bucket::Configuration, writes).await {
            Ok(_) => tracing::info!(count, "the content of secrets is recorded"),
            // Another gateway was first, or it is not known: the next renewal tells.
            Err(error @ (WriteError::Conflict { .. } | WriteError::Ambiguous(_))) => {
                tracing::debug!(error = %Chain(&error), "the content of secrets was not recorded");
            }
            Err(error) => {
                tracing::warn!(error = %Chain(&error), "the content of secrets was not recorded");
            }
        }
    }

    /// Id of the gateway.
    pub(crate) fn id(&self) -> &str {
        self.key.strip_prefix(GATEWAY).unwrap_or(&self.key)
    }

    async fn take_back(&self) {
        let revision = self.heartbeat.lock().await.revision;
        if revision != Revision::ABSENT {
            let now = self.environment.wall();
            let deleted = ends::forget(&*self.ledger, (&self.key, revision), now);
            // A heartbeat that stays is taken for dead by the others.
            drop(tokio::time::timeout(DEADLINE, deleted).await);
        }
    }
}
