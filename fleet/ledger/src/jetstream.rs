//! The ledger of many machines: NATS JetStream, three servers with a copy each.
//!
//! ```text
//!   address ─► connect ─► servers: judged ─► streams: made or compared ─► engine
//!   write, append ─► room ─► task: write ─► forget ─┐
//!   get, scan, …  ─────────► read ──────────────────┴─► api: leader for single messages, replica for pages
//!   envelope: what is in a message · names: streams, subjects · transfer: backup and restore
//! ```
//!
//! A stream per bucket with one message per key, a stream per log. The compare-and-swap is the
//! server's (`Nats-Expected-Last-Subject-Sequence`), a batch is its atomic batch publish, and the
//! revision of a write is the sequence of its last message. See docs/decisions/0071.
//!
//! Its deadlines are those of real networks: a test that pauses tokio's time uses the ledger in
//! memory.

mod address;
mod advice;
mod api;
mod connect;
mod engine;
mod envelope;
mod forget;
mod graves;
mod names;
mod read;
mod servers;
mod streams;
mod transfer;
mod write;

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use async_nats::Event;
use async_trait::async_trait;
use bytes::Bytes;
use futures_util::StreamExt;
use futures_util::future::try_join_all;
use thiserror::Error;
use tokio::sync::{OnceCell, OwnedSemaphorePermit, Semaphore, watch};
use tokio::time::{Instant, sleep, timeout};
use tokio_util::sync::{CancellationToken, DropGuard};

pub use address::{AddressError, NatsAddress};
pub use connect::ConnectError;
pub use servers::ServerError;
pub use streams::StreamError;
pub use transfer::TransferError;

use crate::room::{self, NoRoom, TURN};
use crate::{
    Amend, Appended, Bucket, Changes, Entry, Ledger, Log, Page, ReadError, Record, Revision, Write,
    WriteError, check,
};
use address::FactsFrom;
use api::Api;
use connect::{Who, connect};
use engine::Engine;
use streams::Wanted;

/// How long a server takes no part before it counts as down, how long one that was not read may take
/// part before the ledger is refused, and how often that is looked at.
const SILENT: Duration = Duration::from_secs(5);
const ACTIVE: Duration = Duration::from_secs(10);
const LOOK: Duration = Duration::from_millis(200);

/// How long the end of a ledger waits for what is on its way.
const END: Duration = Duration::from_secs(30);

/// Hints of one bucket are not sent more often.
const HINTS: Duration = Duration::from_millis(10);

/// Why a ledger on NATS cannot be opened.
#[derive(Debug, Error)]
pub enum JetstreamError {
    /// There is no connection.
    #[error("the ledger on NATS cannot be reached")]
    Connect(#[from] ConnectError),
    /// A server would lose what it acknowledged, or cannot take it.
    #[error("the servers of the ledger are refused")]
    Server(#[from] ServerError),
    /// The streams are missing or others.
    #[error("the streams of the ledger cannot be used")]
    Stream(#[from] StreamError),
    /// A backup was not restored.
    #[error("the backup is not in the ledger")]
    Transfer(#[from] TransferError),
}

/// Why an operation was not tried.
#[derive(Debug, Error)]
enum NotTried {
    #[error("more was asked for within {} s than NATS takes", TURN.as_secs())]
    Busy,
    #[error("the ledger was closed")]
    Closed,
}

/// The ledger of many machines.
#[derive(Debug)]
pub struct JetstreamLedger {
    engine: Arc<Engine>,
    room: Arc<Semaphore>,
    address: String,
    _ending: DropGuard,
}

// === impl JetstreamLedger ===

impl JetstreamLedger {
    /// Connects, looks at the servers, and makes the streams where they are missing.
    ///
    /// # Errors
    /// No server answers; one of them would lose what it acknowledges; the streams are set otherwise.
    pub async fn open(address: &NatsAddress) -> Result<Arc<Self>, JetstreamError> {
        let (engine, ending) = prepare(address).await?;
        let servers = judged(address).await?;
        streams::refuse_restoring(&engine.api, &address.prefix).await?;
        ensure(&engine.api, &Wanted::all(&address.prefix), &servers).await?;
        let address = address.to_string();
        let room = room::room();
        start(&engine, ending.token());
        Ok(Arc::new(Self { engine, room, address, _ending: ending.guard() }))
    }

    /// The servers of the address, without anything that is secret.
    #[must_use]
    pub fn address(&self) -> &str {
        &self.address
    }

    /// Copies the ledger into a new file, while it is in use. The file is a ledger of one machine, and
    /// only its owner can use it. Each bucket and each log is as it was at one moment.
    ///
    /// # Errors
    /// The file exists or cannot be written; the ledger cannot be read.
    pub async fn backup(&self, to: &Path) -> Result<(), TransferError> {
        transfer::backup(self, &self.engine, to).await
    }

    /// Fills a ledger, which has to be empty, with what is in a backup. Nothing may use it meanwhile.
    ///
    /// # Errors
    /// There is something in the ledger; the backup is damaged; the servers are refused.
    pub async fn restore(
        address: &NatsAddress,
        from: &Path,
        amend: Amend,
    ) -> Result<(), JetstreamError> {
        let (engine, _ending) = prepare(address).await?;
        judged(address).await?;
        streams::refuse_restoring(&engine.api, &address.prefix).await?;
        Ok(transfer::restore(&engine, from, amend).await?)
    }

    /// Takes no writes any more, and waits for those that are on their way.
    pub async fn close(&self) {
        let all = u32::try_from(room::ALL).unwrap_or(u32::MAX);
        let turns = timeout(END, self.room.acquire_many(all)).await;
        self.room.close();
        drop(turns);
        // What is still in a buffer is a hint, or an answer that nobody waits for.
        drop(timeout(TURN, self.engine.api.client().flush()).await);
    }

    /// Room for an operation of this size.
    async fn room(&self, bytes: usize) -> Result<OwnedSemaphorePermit, WriteError> {
        room::take(&self.room, bytes).await.map_err(|error| {
            WriteError::Refused(Box::new(match error {
                NoRoom::Busy => NotTried::Busy,
                NoRoom::Closed(_) => NotTried::Closed,
            }))
        })
    }
}

/// Ends the tasks of a ledger.
struct Ending(CancellationToken);

impl Ending {
    fn token(&self) -> CancellationToken {
        self.0.clone()
    }

    fn guard(self) -> DropGuard {
        self.0.drop_guard()
    }
}

/// Connects.
async fn prepare(address: &NatsAddress) -> Result<(Arc<Engine>, Ending), ConnectError> {
    // The connection is older than what it tells that it came back.
    let told: Arc<OnceCell<std::sync::Weak<Engine>>> = Arc::default();
    let tell = Arc::clone(&told);
    let events = move |event: &Event| {
        if let (Event::Connected, Some(engine)) =
            (event, tell.get().and_then(std::sync::Weak::upgrade))
        {
            engine.reconnected();
        }
    };
    let client = connect(address, &address.login, Who::Ledger, events).await?;
    let engine = Arc::new(Engine::new(Api::new(client), address.prefix.clone()));
    // It is set once.
    drop(told.set(Arc::downgrade(&engine)));
    Ok((engine, Ending(CancellationToken::new())))
}

/// Reads the settings of the servers, and refuses those that lose what they acknowledge.
async fn judged(address: &NatsAddress) -> Result<servers::Read, JetstreamError> {
    let (read, fix) = match &address.facts {
        FactsFrom::Monitoring(hosts) => {
            let fix = "set `http: HOST:8222` in the servers and name these pages in `monitor=` of the address";
            (servers::from_monitoring(hosts).await, fix)
        }
        FactsFrom::SystemAccount(login) => {
            let client = connect(address, login, Who::SystemAccount, |_| {}).await?;
            let fix = "`system-creds=` of the address has to name a user of the system account";
            (servers::from_system_account(&client).await, fix)
        }
    };
    read.judge(fix)?;
    Ok(read)
}

/// Finds or makes the streams. Every server that takes part in one has to be among those that were
/// read. One that died takes part for a moment, and one whose replica was made just now does not yet,
/// so both are looked at for a while.
async fn ensure(api: &Api, all: &[Wanted], read: &servers::Read) -> Result<(), JetstreamError> {
    let begun = Instant::now();
    let mut silent_since = None;
    loop {
        let infos = try_join_all(all.iter().map(|wanted| wanted.ensure(api, 1))).await?;
        let judged: Result<Vec<bool>, ServerError> = all
            .iter()
            .zip(&infos)
            .map(|(wanted, info)| read.judge_replicas(&wanted.name, info))
            .collect();
        match judged {
            Ok(all_read) if all_read.iter().all(|it| *it) => return Ok(()),
            Ok(_) => {
                let since = *silent_since.get_or_insert_with(Instant::now);
                if since.elapsed() >= SILENT {
                    tracing::warn!("a server is down, so that its settings were not read");
                    return Ok(());
                }
            }
            Err(error) if begun.elapsed() >= ACTIVE => return Err(error.into()),
            Err(_) => silent_since = None,
        }
        sleep(LOOK).await;
    }
}

/// Starts what tells others of changes, and what receives their hints.
fn start(engine: &Arc<Engine>, ending: CancellationToken) {
    for bucket in Bucket::ALL {
        let (engine, ending) = (Arc::clone(engine), ending.clone());
        tokio::spawn(async move {
            let subject = engine.prefix.wake(bucket);
            let told = async {
                loop {
                    engine.records(bucket).changed.notified().await;
                    // A hint that does not get out is one that is lost.
                    drop(engine.api.client().publish(subject.clone(), Bytes::new()).await);
                    sleep(HINTS).await;
                }
            };
            tokio::select! {
                () = ending.cancelled() => {}
                () = told => {}
            }
        });
    }
    let engine = Arc::clone(engine);
    tokio::spawn(async move {
        let received = async {
            loop {
                let subscribed = engine.api.client().subscribe(engine.prefix.wake_all()).await;
                if let Ok(mut hints) = subscribed {
                    while let Some(hint) = hints.next().await {
                        if let Some(bucket) = engine.prefix.woken(&hint.subject) {
                            engine.watchers.changed(bucket);
                        }
                    }
                }
                sleep(TURN).await;
            }
        };
        tokio::select! {
            () = ending.cancelled() => {}
            () = received => {}
        }
    });
}

/// Runs a write to its end though the caller gives up.
async fn detached<T: Send + 'static>(
    write: impl Future<Output = Result<T, WriteError>> + Send + 'static,
) -> Result<T, WriteError> {
    let done = tokio::spawn(write).await;
    done.unwrap_or_else(|gone| Err(WriteError::Ambiguous(Box::new(gone))))
}

#[async_trait]
impl Ledger for JetstreamLedger {
    async fn get(&self, bucket: Bucket, key: &str) -> Result<Option<Record>, ReadError> {
        read::get(&self.engine, bucket, key).await
    }

    async fn write(&self, bucket: Bucket, batch: Vec<Write>) -> Result<Revision, WriteError> {
        let bytes = check::batch(&batch)?;
        let room = self.room(bytes).await?;
        let engine = Arc::clone(&self.engine);
        detached(async move {
            let written = write::write(&engine, bucket, &batch).await;
            if matches!(written, Ok(_) | Err(WriteError::Ambiguous(_))) {
                engine.watchers.changed(bucket);
                engine.records(bucket).changed.notify_one();
            }
            drop(room);
            written
        })
        .await
    }

    async fn scan(
        &self,
        bucket: Bucket,
        prefix: &str,
        next: Option<&str>,
        limit: usize,
    ) -> Result<Page, ReadError> {
        read::scan(&self.engine, bucket, prefix, next, check::page(limit)).await
    }

    async fn changes(
        &self,
        bucket: Bucket,
        after: Revision,
        at_least: Revision,
    ) -> Result<Changes, ReadError> {
        read::changes(&self.engine, bucket, after, at_least).await
    }

    async fn append(
        &self,
        log: Log,
        subject: &str,
        last: u64,
        id: &str,
        value: Bytes,
    ) -> Result<Appended, WriteError> {
        let bytes = check::entry(subject, id, &value)?;
        let room = self.room(bytes).await?;
        let engine = Arc::clone(&self.engine);
        let (subject, id) = (subject.to_owned(), id.to_owned());
        detached(async move {
            let appended = write::append(&engine, log, &subject, last, &id, &value).await;
            drop(room);
            appended
        })
        .await
    }

    async fn last(&self, log: Log, subject: &str) -> Result<Option<Entry>, ReadError> {
        read::last(&self.engine, log, subject).await
    }

    async fn read(
        &self,
        log: Log,
        prefix: &str,
        after: u64,
        limit: usize,
    ) -> Result<Vec<Entry>, ReadError> {
        read::read(&self.engine, log, prefix, after, check::page(limit)).await
    }

    fn wake(&self, bucket: Bucket) {
        self.engine.watchers.changed(bucket);
        self.engine.records(bucket).changed.notify_one();
    }

    fn watch(&self, bucket: Bucket) -> watch::Receiver<u64> {
        self.engine.watchers.watch(bucket)
    }
}
